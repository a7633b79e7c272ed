//! The claimer: keeps the slot table filled.
//!
//! Where there is plenty, the next claim goes out before the last one is answered: what it costs to take jobs in and to start
//! them is then no time in which the store has nothing to do. A claim whose answer is lost is repeated under the same
//! batch number until the store says what it did; whatever else it may have claimed under that number is then disowned.
//!
//! # Invariants
//! - What was claimed is taken in as soon as the answer is there, whatever became of other claims: its deadlines count from
//!   then on.
//! - Claims are repeated one at a time and in the order in which they were sent, and meanwhile no other is sent: what is disowned
//!   is all that came from batches up to a number and that the node does not know of.
//! - Nothing is claimed while the outcomes that wait to be stored are more than [`bounds::UNSTORED_BYTES`].

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

#[cfg(doc)]
use mainspring_core::bounds;
use mainspring_core::id::{Claim, ClaimBatchNo, NodeNo};
use mainspring_core::journal::Value;
use mainspring_core::name::QueueName;
use mainspring_core::planted::{self, Defect};
use mainspring_core::seam::Pending;
use mainspring_core::store::{ClaimRequest, ClaimedBatch};
use mainspring_core::{Error, Result, fault};

use super::slot_table::{ClaimPlan, SENT_MAX, UnstartedJob};
use super::{NodeShared, activity, broken, finisher};
use crate::job_run::JobRun;

/// What it is called in logs.
const PART: &str = "claim";
/// Waits after a failed claim: first and longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// A claim that the store has answered.
struct AnsweredClaim {
    plan: ClaimPlan,
    batch: ClaimBatchNo,
    node: NodeNo,
    /// When it was sent, by the monotonic clock.
    sent: Duration,
    answer: Result<ClaimedBatch>,
}

/// A claim that was sent.
enum SentClaim {
    UnderWay(Pending<'static, AnsweredClaim>),
    TakenIn,
    Failed(Box<AnsweredClaim>),
}

/// The next claim of those that were sent, in their order, of which is known what became: `Some` if it failed. Whatever is
/// answered meanwhile is taken in.
async fn next(shared: &Arc<NodeShared>, sent: &mut VecDeque<SentClaim>) -> Option<Box<AnsweredClaim>> {
    poll_fn(|context| {
        for claim in &mut *sent {
            if let SentClaim::UnderWay(answer) = claim
                && let Poll::Ready(answered) = answer.as_mut().poll(context)
            {
                let failed = take_in(shared, answered);
                *claim = failed.map_or(SentClaim::TakenIn, |answered| SentClaim::Failed(Box::new(answered)));
            }
        }
        match sent.pop_front_if(|claim| !matches!(claim, SentClaim::UnderWay(_))) {
            Some(SentClaim::TakenIn) => Poll::Ready(None),
            Some(SentClaim::Failed(answered)) => Poll::Ready(Some(answered)),
            Some(SentClaim::UnderWay(_)) | None => Poll::Pending,
        }
    })
    .await
}

pub(super) async fn run(shared: Arc<NodeShared>) {
    let mut last = 0;
    let mut sent: VecDeque<SentClaim> = VecDeque::with_capacity(SENT_MAX);
    let mut failed: VecDeque<Box<AnsweredClaim>> = VecDeque::new();
    let mut repeating: Option<Pending<'static, ()>> = None;
    // Hints may be lost, and a busy queue's wake-ups must not put off the look at the others.
    let every = shared.options.lease / 3;
    let mut looked = shared.clock().monotonic();
    shared.slot_table.look(looked + every);
    loop {
        let now = shared.clock().monotonic();
        if now.saturating_sub(looked) >= every {
            looked = now;
            shared.slot_table.look(looked + every);
        }
        if repeating.is_none()
            && let Some(claim) = failed.pop_front()
        {
            repeating = Some(Box::pin(repeat(Arc::clone(&shared), claim)));
        }
        // The slot table closes a moment later than the node. Until then, a claim that is refused would be made again at once.
        let may = !shared.is_closing()
            && repeating.is_none()
            && !sent.iter().any(|claim| matches!(claim, SentClaim::Failed(_)))
            && sent.len() < SENT_MAX
            && !shared.unstored.is_heavy();
        let plan = if may { shared.slot_table.plan(finisher::backlog(&shared)) } else { None };
        if let Some(plan) = plan {
            last += 1;
            sent.push_back(SentClaim::UnderWay(Box::pin(send(
                Arc::clone(&shared),
                plan,
                ClaimBatchNo(last),
            ))));
        } else if sent.is_empty() && repeating.is_none() && shared.is_closing() {
            return;
        } else {
            tokio::select! {
                biased;
                claim = next(&shared, &mut sent) => failed.extend(claim),
                () = repeat_ended(&mut repeating) => repeating = None,
                () = shared.slot_table.wake.notified() => {}
                () = shared.clock().idle(every.saturating_sub(now.saturating_sub(looked))) => {}
            }
        }
    }
}

/// Waits until what is repeated is answered; for ever, if nothing is.
async fn repeat_ended(repeating: &mut Option<Pending<'static, ()>>) {
    match repeating {
        Some(repeating) => repeating.await,
        None => std::future::pending().await,
    }
}

async fn send(shared: Arc<NodeShared>, plan: ClaimPlan, batch: ClaimBatchNo) -> AnsweredClaim {
    let node = shared.held.node();
    let (queues, ahead) = (plan.queues.clone(), plan.ahead.clone());
    let request = ClaimRequest { node, batch, queues, ahead, suspects: plan.suspects };
    activity::sent(&plan, batch);
    let sent = shared.clock().monotonic();
    let answer = shared.store().claim(request).await;
    AnsweredClaim { plan, batch, node, sent, answer }
}

/// Starts what was claimed; or gives the answer back.
fn take_in(shared: &Arc<NodeShared>, answered: AnsweredClaim) -> Option<AnsweredClaim> {
    let AnsweredClaim { plan, batch, node, sent, answer } = answered;
    match answer {
        Ok(claimed) => {
            fault::point!("node.claimed");
            shared.answered(PART);
            accept(shared, &plan, batch, (node, sent), claimed);
            None
        }
        failed => Some(AnsweredClaim { plan, batch, node, sent, answer: failed }),
    }
}

/// Claims again until the store has answered one way or the other.
async fn repeat(shared: Arc<NodeShared>, claim: Box<AnsweredClaim>) {
    let mut claim = *claim;
    let mut wait = BACKOFF.0;
    let mut unknown = false;
    while let Err(error) = &claim.answer {
        // The keeper finds the same and joins anew; what was claimed under the old number is rescued.
        if matches!(error, Error::LeaseLost) {
            shared.answered(PART);
            shared.slot_table.claim_failed(&claim.plan);
            shared.slot_table.expect_jobs(None);
            shared.renew_now.notify_one();
            tokio::select! {
                biased;
                () = shared.rejoined(claim.node) => {}
                () = shared.closing() => {}
                // It may have been a misunderstanding, and nobody joins anew.
                () = shared.clock().sleep(shared.options.lease) => {}
            }
            return;
        }
        unknown |= matches!(error, Error::OutcomeUnknown { .. });
        if shared.is_closing() || (unknown && planted::is(Defect::ClaimForgotten)) {
            return shared.slot_table.claim_failed(&claim.plan);
        }
        if !error.is_retryable() {
            shared.answered(PART);
            broken(error);
            shared.slot_table.claim_failed(&claim.plan);
            shared.slot_table.expect_jobs(None);
            // It may be the answer that is broken, and not the claim.
            disown(&shared, claim.node, claim.batch).await;
            return shared.pause(BACKOFF.1).await;
        }
        shared.failed(PART, error);
        shared.pause(wait).await;
        wait = (wait * 2).min(BACKOFF.1);
        let answered = send(Arc::clone(&shared), claim.plan, claim.batch).await;
        let (node, batch) = (answered.node, answered.batch);
        match take_in(&shared, answered) {
            Some(failed) => claim = failed,
            None if unknown => return disown(&shared, node, batch).await,
            None => return,
        }
    }
}

/// Takes claimed jobs in and starts those for which there is a slot.
fn accept(
    shared: &Arc<NodeShared>,
    plan: &ClaimPlan,
    batch: ClaimBatchNo,
    (node, sent): (NodeNo, Duration),
    claimed: ClaimedBatch,
) {
    let now = shared.clock().monotonic();
    let works: Vec<_> = claimed
        .jobs
        .into_iter()
        .map(|mut job| {
            let input = std::mem::replace(&mut job.input, Value::There(0));
            let journal = job.journal.take();
            let run = JobRun::new(&mut job, node, Arc::clone(&shared.lease), claimed.now, now);
            UnstartedJob { run: Arc::new(run.asked_for_at(sent)), input, journal, ahead: job.ahead }
        })
        .collect();
    if !shared.held.add(node, works.iter().map(|work| Arc::clone(&work.run))) {
        return shared.slot_table.claim_failed(plan);
    }
    let of = |queue: &QueueName| works.iter().filter(|work| work.run.info.queue == *queue).count();
    let got: Vec<usize> = plan.queues.iter().map(|(queue, _)| of(queue)).collect();
    let (start, refused) = shared.slot_table.admit(plan, works, claimed.now);
    activity::answered(shared, plan, &got, batch);
    shared.start(start);
    shared.release(refused);
}

/// Gives back what a lost answer may have claimed beyond the answer to the repeat. No other claim is sent before that is done:
/// claims that nobody knows of would otherwise be leased for as long as the node lives.
async fn disown(shared: &NodeShared, node: NodeNo, batch: ClaimBatchNo) {
    let mut wait = BACKOFF.0;
    loop {
        let keep: Vec<Claim> = shared.held.all().iter().map(|run| run.claim).collect();
        match shared.store().disown(node, batch, keep).await {
            Ok(count) => {
                shared.answered(PART);
                if count > 0 {
                    tracing::warn!(count, "gave back claims whose answer was lost");
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
