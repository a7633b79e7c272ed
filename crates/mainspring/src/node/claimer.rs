//! The claimer: keeps the desk filled.
//!
//! Where there is plenty, the next claim goes out before the last one is answered: what it costs to take jobs in and to start
//! them is then no time in which the store has nothing to do. A claim whose answer is lost is repeated under the same
//! batch number until the store says what it did; whatever else it may have claimed under that number is then disowned.
//!
//! # Invariants
//! - Answers are taken in in the order in which the claims were sent: what is disowned is all that came from batches up to a
//!   number and that the node does not know of.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use mainspring_core::id::{Batch, Claim, NodeNo};
use mainspring_core::planted::{self, Defect};
use mainspring_core::seam::Pending;
use mainspring_core::store::{ClaimRequest, ClaimedBatch};
use mainspring_core::{Error, Result, fault};

use super::desk::{Plan, Work};
use super::{Shared, broken, runner};
use crate::context::Run;

/// What it is called in logs.
const PART: &str = "claim";
/// Waits after a failed claim: first and longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// Claims on their way.
const SENT_MAX: usize = 2;
/// Outcomes waiting to be stored above which nothing more is claimed.
const UNSETTLED_MAX: usize = 8 * mainspring_core::bounds::BATCH;

/// A claim that the store has answered.
struct Answered {
    plan: Plan,
    batch: Batch,
    node: NodeNo,
    answer: Result<ClaimedBatch>,
}

/// Claims on their way, in the order in which they were sent.
#[derive(Default)]
struct Sent(VecDeque<(Pending<'static, Answered>, Option<Answered>)>);

impl Sent {
    fn send(&mut self, shared: &Arc<Shared>, plan: Plan, batch: Batch) {
        self.0.push_back((Box::pin(send(Arc::clone(shared), plan, batch)), None));
    }

    /// The next answer, in order; pending for ever if nothing is on its way.
    async fn next(&mut self) -> Answered {
        poll_fn(|context| {
            for (answer, answered) in self.0.iter_mut().filter(|(_, answered)| answered.is_none()) {
                if let Poll::Ready(came) = answer.as_mut().poll(context) {
                    *answered = Some(came);
                }
            }
            match self.0.pop_front_if(|(_, answered)| answered.is_some()) {
                Some((_, Some(answered))) => Poll::Ready(answered),
                _ => Poll::Pending,
            }
        })
        .await
    }
}

pub(super) async fn run(shared: Arc<Shared>) {
    let mut last = 0;
    let mut sent = Sent::default();
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
        let may = !shared.is_closing()
            && sent.0.len() < SENT_MAX
            && shared.unsettled.load(Ordering::Relaxed) < UNSETTLED_MAX;
        let plan = if may { shared.desk.plan() } else { None };
        if let Some(plan) = plan {
            last += 1;
            sent.send(&shared, plan, Batch(last));
        } else if sent.0.is_empty() && shared.is_closing() {
            return;
        } else {
            tokio::select! {
                biased;
                answered = sent.next() => receive(&shared, answered).await,
                () = shared.desk.wake.notified() => {}
                () = shared.clock().sleep(every.saturating_sub(now.saturating_sub(looked))) => {}
            }
        }
    }
}

async fn send(shared: Arc<Shared>, plan: Plan, batch: Batch) -> Answered {
    let node = shared.held.node();
    let request = ClaimRequest { node, batch, queues: plan.queues.clone(), suspects: plan.suspects };
    let answer = shared.store().claim(request).await;
    Answered { plan, batch, node, answer }
}

/// Takes an answer in, and repeats the claim until there is one way or the other.
async fn receive(shared: &Arc<Shared>, answered: Answered) {
    let Answered { plan, batch, mut node, mut answer } = answered;
    let mut wait = BACKOFF.0;
    let mut unknown = false;
    loop {
        match answer {
            Ok(claimed) => {
                fault::point!("node.claimed");
                shared.answered(PART);
                accept(shared, &plan, node, claimed);
                if unknown {
                    disown(shared, node, batch).await;
                }
                return;
            }
            // The keeper finds the same and joins anew; what was claimed under the old number is rescued.
            Err(Error::LeaseLost) => {
                shared.answered(PART);
                shared.desk.missed(&plan);
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
                    return shared.desk.missed(&plan);
                }
                if !error.is_retryable() {
                    shared.answered(PART);
                    broken(&error);
                    shared.desk.missed(&plan);
                    shared.desk.hope(None);
                    return shared.pause(BACKOFF.1).await;
                }
                shared.failed(PART, &error);
                shared.pause(wait).await;
                wait = (wait * 2).min(BACKOFF.1);
            }
        }
        Answered { node, answer, .. } = send(Arc::clone(shared), plan.clone(), batch).await;
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
        return shared.desk.missed(plan);
    }
    let (start, refused) = shared.desk.put(plan, works);
    for (queue, work) in start {
        shared.spawn(runner::run(Arc::clone(shared), queue, work));
    }
    shared.release(refused);
}

/// Gives back what a lost answer may have claimed beyond what the repeat told. No other claim is sent before that is done:
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
