//! One place of a pool: a task that keeps a child in it.

use std::time::Duration;

use super::PoolShared;
use super::child::{Child, End};

/// The first pause before a child that ended without having finished a job is replaced; it doubles each time.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_mins(1);

/// Starts children, one after the other, until the pool ends.
pub(super) async fn run(pool: &std::sync::Arc<PoolShared>) {
    let mut pause = PAUSE;
    while !pool.is_closed() {
        let trouble = match Child::start(pool).await {
            Ok(mut child) => {
                pool.change(|state| state.up += 1);
                let end = serve(pool, &mut child).await;
                pool.change(|state| state.up -= 1);
                let End::Broken(how) = end else { continue };
                if child.has_finished_jobs() {
                    pause = PAUSE;
                    tracing::warn!(pool = pool.name, "a child {how}; the next one starts at once");
                    continue;
                }
                how
            }
            Err(End::Retired) => continue,
            Err(End::Broken(how)) => how,
        };
        tracing::warn!(pool = pool.name, "a child {trouble}; the next one starts in {pause:?}");
        pool.change(|state| state.trouble = Some(trouble));
        tokio::select! {
            biased;
            () = pool.closed() => {}
            () = pool.seams.clock.sleep(pause) => {}
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Gives jobs to a child until it is to be replaced, and ends it.
async fn serve(pool: &PoolShared, child: &mut Child) -> End {
    loop {
        if let Some(why) = child.is_worn_out() {
            tracing::debug!(pool = pool.name, "a child is replaced: {why}");
            return child.retire().await;
        }
        let age_left = child.age_left();
        let request = tokio::select! {
            biased;
            () = pool.closed() => return child.retire().await,
            how = child.idle() => return child.broken(how).await,
            () = pool.seams.clock.sleep(age_left.unwrap_or(PAUSE_MAX)), if age_left.is_some() => continue,
            request = pool.waiting.next() => request,
        };
        if let Err(end) = child.work(request).await {
            return end;
        }
        pool.change(|state| state.trouble = None);
    }
}
