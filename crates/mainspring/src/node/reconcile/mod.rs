//! Reconcilers: supervised loops that tend the store, one file each.
//!
//! Every node runs all of them; two that do the same at once do no harm, because each works by moving rows that are
//! there. A tick that fails, or panics, is logged and tried again later; it never ends its loop.

mod expire;
mod fire;
mod promote;
mod prune;
mod rescue;
mod stranded;

use std::sync::Arc;
use std::time::Duration;

use mainspring_core::seam::Pending;
use mainspring_core::store::Swept;
use mainspring_core::{Result, bounds};
use tokio::sync::Notify;

use super::NodeShared;
use crate::panic::caught;

/// Waits after a failed tick: first and longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// A part of the store's housekeeping.
trait Reconciler: Send + 'static {
    /// What it is called in logs, as a task and as a part that calls the store.
    const NAME: &'static str;

    /// The longest wait after a failed tick.
    const PATIENCE: Duration = BACKOFF.1;

    /// Does what there is to do; says when to come again.
    fn tick<'a>(&'a mut self, shared: &'a NodeShared) -> Pending<'a, Result<Duration>>;

    /// What calls for a tick before its time.
    fn wake(shared: &NodeShared) -> Option<&Notify>;
}

/// Starts all reconcilers of a node.
pub(super) fn start(shared: &Arc<NodeShared>) {
    supervise(shared, rescue::Rescuer::default());
    supervise(shared, promote::Promote::default());
    supervise(shared, expire::Expire);
    supervise(shared, fire::Fire::default());
    supervise(shared, prune::Prune);
    supervise(shared, stranded::Stranded::default());
}

fn supervise<R: Reconciler>(shared: &Arc<NodeShared>, reconciler: R) {
    shared.supervise(R::NAME, run(Arc::clone(shared), reconciler));
}

async fn run<R: Reconciler>(shared: Arc<NodeShared>, mut reconciler: R) {
    let mut backoff = BACKOFF.0;
    while !shared.is_closing() {
        let wait = match caught(reconciler.tick(&shared)).await {
            Ok(Ok(wait)) => {
                shared.answered(R::NAME);
                backoff = BACKOFF.0;
                wait
            }
            Ok(Err(error)) => {
                if error.is_retryable() {
                    shared.failed(R::NAME, &error);
                } else {
                    shared.answered(R::NAME);
                    tracing::warn!(%error, reconciler = R::NAME, "reconciler failed; trying again later");
                }
                let wait = backoff;
                backoff = (backoff * 2).min(R::PATIENCE);
                wait
            }
            Err(message) => {
                tracing::error!(message, reconciler = R::NAME, "reconciler panicked; trying again later");
                R::PATIENCE
            }
        };
        tokio::select! {
            biased;
            () = shared.closing() => {}
            () = woken(R::wake(&shared)) => {}
            () = shared.clock().idle(wait) => {}
        }
    }
}

async fn woken(wake: Option<&Notify>) {
    match wake {
        Some(wake) => wake.notified().await,
        None => std::future::pending().await,
    }
}

/// When to sweep again: at once if there is more, else when the next row is due, else before long, because a hint may
/// have been lost.
fn again(shared: &NodeShared, swept: Swept) -> Duration {
    let before_long = shared.options.lease / 3;
    match swept.next {
        _ if swept.moved >= bounds::BATCH => Duration::ZERO,
        Some(next) => next.since(swept.now).min(before_long),
        None => before_long,
    }
}
