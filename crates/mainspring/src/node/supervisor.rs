//! The supervisor: starts the parts of a node and stops them in order.
//!
//! Shutdown: stop claiming; give back what has not started; let running jobs end, up to the drain time; stop the rest and
//! give it back; store what is left of outcomes; leave; wait until all tasks have ended. Each wait has an end, so that
//! shutdown never hangs. If the process dies in between, what is left is rescued like the claims of any dead node.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mainspring_core::fault;
use tokio::sync::mpsc;

use super::{NodeShared, Phase, claimer, finisher, handler_cache, keeper, reconcile};
use crate::job_run::Stop;

/// What it is called as a task.
const NAME: &str = "supervisor";
/// How long a handler that has to stop may take to reach an await, and the store to take the last outcomes. Then again, how
/// long the store may take to let the node go, and the node's tasks to end.
const LAST: Duration = Duration::from_secs(5);
/// What tasks get of that at least, to take their last turn.
const LAST_TURN: Duration = Duration::from_millis(100);
/// The first wait before a store that did not let the node leave is asked again.
const BACKOFF: Duration = Duration::from_millis(50);

/// Starts all parts.
pub(super) fn start(shared: &Arc<NodeShared>, entries: mpsc::UnboundedReceiver<finisher::UnstoredOutcome>) {
    shared.supervise("finisher", needed(shared, finisher::run(Arc::clone(shared), entries)));
    shared.supervise("claimer", needed(shared, claimer::run(Arc::clone(shared))));
    shared.supervise("handler cache", handler_cache::run(Arc::clone(shared)));
    reconcile::start(shared);
    let keeper = shared.tasks.register("keeper", needed(shared, keeper::run(Arc::clone(shared))));
    shared.engine.seams().spawn.spawn_dedicated("mainspring-lease", keeper);
    shared.supervise(NAME, run(Arc::clone(shared), AliveGuard(Arc::clone(shared))));
}

/// A part without which the node is worth nothing: if it ends before its time, by a panic, the node stops and gives its jobs back.
/// It would otherwise hold them for as long as it renews its lease.
fn needed<Part>(shared: &Arc<NodeShared>, part: Part) -> impl Future<Output = ()> + Send + use<Part>
where
    Part: Future<Output = ()> + Send + 'static,
{
    let stop = StopNode(Arc::clone(shared));
    async move {
        let _stop = stop;
        part.await;
    }
}

/// Stops the node when it is dropped, unless that is shutting down.
struct StopNode(Arc<NodeShared>);

impl Drop for StopNode {
    fn drop(&mut self) {
        if self.0.phase() == Phase::Open {
            self.0.advance(Phase::Stopping);
        }
    }
}

/// Goes out when the executor drops the supervisor: the keeper must not renew for tasks that are gone, and nobody must
/// wait for them.
struct AliveGuard(Arc<NodeShared>);

impl Drop for AliveGuard {
    fn drop(&mut self) {
        self.0.alive.store(false, Ordering::Relaxed);
        self.0.advance(Phase::Gone);
    }
}

async fn run(shared: Arc<NodeShared>, _guard: AliveGuard) {
    shared.closing().await;
    fault::point!("node.leave.draining");
    let unstarted = shared.slot_table.close();
    shared.release(unstarted);
    // Nothing starts any more: these are all.
    for run in shared.held.all() {
        run.drain();
    }
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
    bounded(&shared, LAST, shared.held.empty()).await;
    let left = shared.held.all().len();
    if left > 0 {
        tracing::warn!(jobs = left, "giving back jobs that do not yield or have no stored outcome");
    }
    fault::point!("node.leave.retiring");
    let left_at = shared.clock().monotonic();
    if bounded(&shared, LAST, retire(&shared)).await.is_none() {
        tracing::warn!("cannot retire the node in time; its lease will expire");
    }
    fault::point!("node.leave.retired");
    shared.advance(Phase::Stopped);
    let took = shared.clock().monotonic().saturating_sub(left_at);
    let rest = LAST.saturating_sub(took).max(LAST_TURN);
    if bounded(&shared, rest, shared.tasks.others_ended(NAME)).await.is_none() {
        let tasks = shared.tasks.others(NAME).join(", ");
        tracing::warn!(tasks, "tasks of the node did not end in time");
    }
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
                tracing::warn!(%error, "cannot retire the node; its lease will expire");
                return;
            }
        }
    }
}

/// Waits for something, but not for ever.
async fn bounded<T>(shared: &NodeShared, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        output = future => Some(output),
        () = shared.clock().sleep(limit) => None,
    }
}
