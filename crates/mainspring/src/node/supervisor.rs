//! The supervisor: starts the parts of a node and stops them in order.
//!
//! Shutdown: stop claiming; give back what has not started; let running jobs end, up to the drain time; stop the rest and
//! give it back; store what is left of outcomes; leave. Each wait has an end, so that shutdown never hangs. If the
//! process dies in between, what is left is rescued like the claims of any dead node.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mainspring_core::fault;
use tokio::sync::mpsc;

use super::{NodeShared, Phase, claimer, finisher, handler_cache, keeper, reconcile};
use crate::job_run::Stop;

/// How long a handler that has to stop may take to reach an await, and the store to take the last outcomes.
const LAST: Duration = Duration::from_secs(5);
/// The first wait before a store that did not let the node leave is asked again.
const BACKOFF: Duration = Duration::from_millis(50);

/// Starts all parts.
pub(super) fn start(shared: &Arc<NodeShared>, entries: mpsc::UnboundedReceiver<finisher::UnstoredOutcome>) {
    shared.spawn(finisher::run(Arc::clone(shared), entries));
    shared.spawn(claimer::run(Arc::clone(shared)));
    shared.spawn(handler_cache::run(Arc::clone(shared)));
    reconcile::start(shared);
    let keeper = keeper::run(Arc::clone(shared));
    shared.engine.seams().spawn.spawn_dedicated("mainspring-lease", Box::pin(keeper));
    shared.spawn(run(Arc::clone(shared), AliveGuard(Arc::clone(shared))));
}

/// Goes out when the executor drops the supervisor: the keeper must not renew for tasks that are gone, and nobody must
/// wait for them.
struct AliveGuard(Arc<NodeShared>);

impl Drop for AliveGuard {
    fn drop(&mut self) {
        self.0.alive.store(false, Ordering::Relaxed);
        self.0.advance(Phase::Stopped);
    }
}

async fn run(shared: Arc<NodeShared>, _guard: AliveGuard) {
    shared.closing().await;
    fault::point!("node.leave.draining");
    let unstarted = shared.slot_table.close();
    shared.release(unstarted);
    tokio::select! {
        biased;
        () = shared.held.empty() => {}
        () = shared.reached(Phase::Stopping) => {}
        () = shared.clock().sleep(shared.options.drain) => {}
    }
    shared.advance(Phase::Stopping);
    for run in shared.held.all() {
        run.stop(Stop::Release);
    }
    bounded(&shared, shared.held.empty()).await;
    let left = shared.held.all().len();
    if left > 0 {
        tracing::warn!(left, "jobs that do not yield, or whose outcome could not be stored, are given back");
    }
    fault::point!("node.leave.retiring");
    if bounded(&shared, retire(&shared)).await.is_none() {
        tracing::warn!("the store did not answer; the lease will lapse");
    }
    fault::point!("node.leave.retired");
    shared.advance(Phase::Stopped);
}

/// Tells the store that the node is gone, as often as it takes: what it still holds would otherwise wait for its lease.
async fn retire(shared: &NodeShared) {
    let mut wait = BACKOFF;
    loop {
        match shared.store().retire(shared.held.node()).await {
            Ok(_) => return,
            Err(error) if error.is_retryable() => {
                shared.clock().sleep(wait).await;
                wait *= 2;
            }
            Err(error) => {
                tracing::warn!(%error, "could not leave in good order; the lease will lapse");
                return;
            }
        }
    }
}

/// Waits for something, but not for ever.
async fn bounded<T>(shared: &NodeShared, future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        output = future => Some(output),
        () = shared.clock().sleep(LAST) => None,
    }
}
