//! The claimer: keeps the desk filled.
//!
//! One claim at a time. A claim whose answer is lost is repeated under the same batch number until the store says what
//! it did; whatever else it may have claimed under that number is then disowned.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mainspring_core::id::{Batch, Claim, NodeNo};
use mainspring_core::planted::{self, Defect};
use mainspring_core::store::{ClaimRequest, ClaimedBatch};
use mainspring_core::{Error, fault};

use super::desk::{Plan, Work};
use super::{Shared, broken, runner};
use crate::context::Run;

/// What it is called in logs.
const PART: &str = "claim";
/// Waits after a failed claim: first and longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// Outcomes waiting to be stored above which nothing more is claimed.
const UNSETTLED_MAX: usize = 8 * mainspring_core::bounds::BATCH;

pub(super) async fn run(shared: Arc<Shared>) {
    let mut batch = 0;
    // Hints may be lost, and a busy queue's wake-ups must not put off the look at the others.
    let every = shared.options.lease / 3;
    let mut looked = shared.clock().monotonic();
    loop {
        let now = shared.clock().monotonic();
        if now.saturating_sub(looked) >= every {
            looked = now;
            shared.desk.hope(None);
        }
        // The desk closes a moment later than the node. Until then, a claim that is refused would be made again at once.
        let may = !shared.is_closing() && shared.unsettled.load(Ordering::Relaxed) < UNSETTLED_MAX;
        let plan = if may { shared.desk.plan() } else { None };
        match plan {
            Some(plan) => {
                batch += 1;
                claim(&shared, &plan, Batch(batch)).await;
            }
            None if shared.is_closing() => return,
            None => tokio::select! {
                biased;
                () = shared.desk.wake.notified() => {}
                () = shared.clock().sleep(every.saturating_sub(now.saturating_sub(looked))) => {}
            },
        }
    }
}

/// Claims, until the store has answered one way or the other.
async fn claim(shared: &Arc<Shared>, plan: &Plan, batch: Batch) {
    let mut wait = BACKOFF.0;
    let mut unknown = false;
    loop {
        let node = shared.held.node();
        let request = ClaimRequest { node, batch, queues: plan.queues.clone(), suspects: plan.suspects };
        match shared.store().claim(request).await {
            Ok(claimed) => {
                fault::point!("node.claimed");
                shared.answered(PART);
                accept(shared, plan, node, claimed);
                if unknown {
                    disown(shared, node, batch).await;
                }
                return;
            }
            // The keeper finds the same and joins anew; what was claimed under the old number is rescued.
            Err(Error::LeaseLost) => {
                shared.answered(PART);
                shared.desk.hope(None);
                shared.renew_now.notify_one();
                tokio::select! {
                    biased;
                    () = shared.rejoined(node) => {}
                    () = shared.closing() => {}
                }
                return;
            }
            Err(error) => {
                unknown |= matches!(error, Error::OutcomeUnknown { .. });
                if shared.is_closing() || (unknown && planted::is(Defect::ClaimForgotten)) {
                    return;
                }
                if !error.is_retryable() {
                    shared.answered(PART);
                    broken(&error);
                    shared.desk.hope(None);
                    return shared.pause(BACKOFF.1).await;
                }
                shared.failed(PART, &error);
                shared.pause(wait).await;
                wait = (wait * 2).min(BACKOFF.1);
            }
        }
    }
}

/// Takes claimed jobs in and starts those for which there is a slot.
fn accept(shared: &Arc<Shared>, plan: &Plan, node: NodeNo, claimed: ClaimedBatch) {
    let now = shared.clock().monotonic();
    let works: Vec<_> = claimed
        .jobs
        .into_iter()
        .map(|mut job| {
            let input = std::mem::take(&mut job.input);
            let journal = job.journal.take();
            Work { run: Arc::new(Run::new(&mut job, node, claimed.now, now)), input, journal }
        })
        .collect();
    if !shared.held.enter(node, works.iter().map(|work| Arc::clone(&work.run))) {
        return;
    }
    let (start, refused) = shared.desk.put(plan, works);
    for (queue, work) in start {
        shared.spawn(runner::run(Arc::clone(shared), queue, work));
    }
    shared.release(refused);
}

/// Gives back what a lost answer may have claimed beyond what the repeat told. Nothing is claimed before that is done:
/// what nobody knows of would otherwise be leased for as long as the node lives.
async fn disown(shared: &Shared, node: NodeNo, batch: Batch) {
    let mut wait = BACKOFF.0;
    loop {
        let keep: Vec<Claim> = shared.held.all().iter().map(|run| run.claim).collect();
        match shared.store().disown(node, batch, keep).await {
            Ok(count) => {
                shared.answered(PART);
                if count > 0 {
                    tracing::warn!(count, "claims whose answer was lost were given back");
                }
                return;
            }
            Err(error) if error.is_retryable() && !shared.is_closing() && shared.held.node() == node => {
                shared.failed(PART, &error);
                shared.pause(wait).await;
                wait = (wait * 2).min(BACKOFF.1);
            }
            // The claims go with the node: when it leaves, or when it is rescued.
            Err(_) => return shared.answered(PART),
        }
    }
}
