//! What the node does for its queues, where people can see it: in the log, in metrics, with each renewal, and on demand.
//!
//! Each claim has two lines in the log at level `debug`, one when it is sent and one when it is answered, and adds to the counters
//! `mainspring_asked_total` and `mainspring_claimed_total`. Each renewal sets the gauges, logs the same, and takes it to the store.

use std::sync::{Arc, Weak};
use std::time::Duration;

use mainspring_core::id::{ClaimBatchNo, NodeNo};
use mainspring_core::store::QueueActivity;

use super::slot_table::ClaimPlan;
use super::{NodeShared, Phase};

/// What it is called in logs.
const TARGET: &str = "mainspring::claims";

/// A node of this process, as its engine knows it.
pub(crate) struct LocalNode(Weak<NodeShared>);

impl LocalNode {
    pub(super) fn new(shared: &Arc<NodeShared>) -> Self {
        LocalNode(Arc::downgrade(shared))
    }

    /// Whether it has not been dropped.
    pub(crate) fn is_there(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Its number and what it does for its queues, unless it has stopped.
    pub(crate) fn activity(&self) -> Option<(NodeNo, Vec<QueueActivity>)> {
        let shared = self.0.upgrade().filter(|shared| shared.phase() < Phase::Stopped)?;
        Some((shared.held.node(), snapshot(&shared)))
    }
}

/// What the node does for each of its queues at this moment.
pub(super) fn snapshot(shared: &NodeShared) -> Vec<QueueActivity> {
    let mut queues = shared.slot_table.activity(shared.clock().monotonic());
    if shared.unstored.count() > 0 {
        let runs = shared.held.all();
        for queue in &mut queues {
            let held = runs.iter().filter(|run| run.info.queue == queue.queue).count();
            let started = usize::try_from(queue.running + queue.waiting).unwrap_or(usize::MAX);
            queue.unstored = u32::try_from(held.saturating_sub(started)).unwrap_or(u32::MAX);
        }
    }
    queues
}

/// A claim goes out.
pub(super) fn sent(plan: &ClaimPlan, batch: ClaimBatchNo) {
    for (queue, asked) in &plan.queues {
        let ahead = plan.ahead.iter().find(|(name, _)| name == queue).map_or(0, |(_, ahead)| *ahead);
        tracing::debug!(target: TARGET, %queue, asked, ahead, batch = batch.0, "claim sent");
    }
}

/// A claim was answered, and the slot table has taken in what each of its queues got.
pub(super) fn answered(shared: &NodeShared, plan: &ClaimPlan, got: &[usize], batch: ClaimBatchNo) {
    let queues = shared.slot_table.activity(shared.clock().monotonic());
    for ((queue, asked), got) in plan.queues.iter().zip(got) {
        let Some(QueueActivity { running, waiting, .. }) = queues.iter().find(|one| one.queue == *queue)
        else {
            continue;
        };
        tracing::debug!(target: TARGET, %queue, asked, got, running, waiting, batch = batch.0, "claim answered");
        let count = |name, jobs| metrics::counter!(name, "queue" => queue.to_string()).increment(jobs as u64);
        count("mainspring_asked_total", *asked);
        count("mainspring_claimed_total", *got);
    }
}

/// What a renewal says of the queues; the log and the gauges say the same. The gauges name the node: a process may have several.
pub(super) fn report(shared: &NodeShared) -> Vec<QueueActivity> {
    let queues = snapshot(shared);
    for activity in &queues {
        let QueueActivity { queue, running, waiting, unstored, asking, next_look, .. } = activity;
        tracing::debug!(target: TARGET, %queue, running, waiting, unstored, asking, ?next_look, "queue served");
        let node = &shared.registration.name;
        let gauge = |name, value| {
            metrics::gauge!(name, "queue" => queue.to_string(), "node" => node.clone()).set(value);
        };
        gauge("mainspring_running", f64::from(*running));
        gauge("mainspring_waiting", f64::from(*waiting));
        gauge("mainspring_unstored", f64::from(*unstored));
        gauge("mainspring_asking", f64::from(*asking));
        gauge("mainspring_next_look_seconds", Duration::as_secs_f64(next_look));
    }
    queues
}
