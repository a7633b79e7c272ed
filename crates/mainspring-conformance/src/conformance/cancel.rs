//! Cancelling: a flag on a claim that is never lost.

use mainspring_core::id::{Claim, ClaimBatchNo, NodeNo};
use mainspring_core::job::{Outcome, Reason, State, Status, Verb};
use mainspring_core::store::{Cancellation, Changed, Finished};

use crate::harness::{Harness, SECOND, because, cancel, fail, plain, retry, stopped, succeed};

const CANCELLED: Status = Status::because(State::Cancelled, Reason::Operator);

async fn flagged(h: &Harness) -> (NodeNo, Claim) {
    let (node, claim) = h.running().await;
    h.apply(claim.id, cancel("enough")).await;
    (node, claim)
}

async fn assert_cancelled(h: &Harness, claim: Claim) {
    let record = h.get(claim.id).await;
    assert_eq!((record.summary.status, record.note.as_deref()), (CANCELLED, Some("enough")));
    assert_eq!((record.summary.finished_at, record.summary.cancelling), (Some(h.now()), false));
    assert_eq!(record.summary.run_at, None);
}

/// A waiting job is cancelled at once.
pub async fn waiting_job_is_cancelled_at_once(h: &Harness) {
    let id = h.put_one().await;
    h.advance(SECOND);
    let answer = h.change(id, cancel("enough")).await;
    assert_eq!(answer, Changed::Applied { from: plain(State::Ready), to: Some(CANCELLED) });
    let record = h.get(id).await;
    assert_eq!((record.summary.finished_at, record.note.as_deref()), (Some(h.now()), Some("enough")));
    let node = h.node().await;
    assert!(h.claim(node, 1).await.is_empty());
}

/// No words are no note.
pub async fn empty_reason_leaves_no_note(h: &Harness) {
    let id = h.put_one().await;
    h.apply(id, cancel("")).await;
    assert_eq!(h.get(id).await.note, None);
}

/// A running job goes on, flagged, and its node is told until the claim ends.
pub async fn running_job_is_flagged_and_its_node_told(h: &Harness) {
    let (node, claim) = h.running().await;
    let other = h.node().await;
    let answer = h.change(claim.id, cancel("enough")).await;
    let running = plain(State::Running);
    assert_eq!(answer, Changed::Applied { from: running, to: Some(running) });
    let summary = h.get(claim.id).await.summary;
    assert_eq!((summary.status, summary.cancelling), (running, true));
    for _ in 0..2 {
        assert_eq!(h.renew(node).await.cancel, [(claim, Cancellation::operator("enough"))]);
    }
    assert!(h.renew(other).await.cancel.is_empty());
    h.end(node, claim, stopped("enough")).await;
    assert_cancelled(h, claim).await;
    assert!(h.renew(node).await.cancel.is_empty());
}

/// The reason that was given first stays.
pub async fn first_reason_stays(h: &Harness) {
    let (node, claim) = flagged(h).await;
    h.apply(claim.id, cancel("again")).await;
    assert_eq!(h.renew(node).await.cancel, [(claim, Cancellation::operator("enough"))]);
}

/// A flag without words is a flag.
pub async fn flag_needs_no_reason(h: &Harness) {
    let (node, claim) = h.running().await;
    h.apply(claim.id, cancel("")).await;
    assert!(h.get(claim.id).await.summary.cancelling);
    assert_eq!(h.renew(node).await.cancel, [(claim, Cancellation::operator(""))]);
    h.end(node, claim, Outcome::Release).await;
    let record = h.get(claim.id).await;
    assert_eq!((record.summary.status, record.note), (CANCELLED, None));
}

/// A terminal outcome that arrives first wins.
pub async fn terminal_outcome_wins_over_a_cancellation(h: &Harness) {
    let (node, claim) = flagged(h).await;
    h.end(node, claim, succeed()).await;
    assert_eq!(h.status(claim.id).await, plain(State::Succeeded));
    let (node, claim) = flagged(h).await;
    h.end(node, claim, fail()).await;
    assert_eq!(h.status(claim.id).await, because(State::Failed, Reason::Exhausted));
    let (node, claim) = flagged(h).await;
    h.end(node, claim, Outcome::Cancel { reason: Reason::Handler, why: "own".into() }).await;
    assert_eq!(h.status(claim.id).await, because(State::Cancelled, Reason::Handler));
}

/// A retry of a flagged claim counts its failure, and the job is cancelled instead.
pub async fn flagged_retry_is_cancelled(h: &Harness) {
    let (node, claim) = flagged(h).await;
    h.end(node, claim, retry(SECOND)).await;
    assert_cancelled(h, claim).await;
    let record = h.get(claim.id).await;
    assert_eq!((record.summary.failures, record.errors.len()), (1, 1));
    assert_eq!(h.finish(node, claim, retry(SECOND)).await, Finished::Applied);
    h.advance(SECOND);
    assert_eq!(h.promote().await, 0);
}

/// A snooze of a flagged claim is a cancellation.
pub async fn flagged_snooze_is_cancelled(h: &Harness) {
    let (node, claim) = flagged(h).await;
    h.end(node, claim, Outcome::Snooze { after: SECOND }).await;
    assert_cancelled(h, claim).await;
}

/// A flagged claim that is given back is cancelled: by release, by disowning, by retiring.
pub async fn flagged_claim_that_is_given_back_is_cancelled(h: &Harness) {
    let (node, claim) = flagged(h).await;
    h.end(node, claim, Outcome::Release).await;
    assert_cancelled(h, claim).await;
    let (node, claim) = flagged(h).await;
    assert_eq!(h.store.disown(node, ClaimBatchNo(1), Vec::new()).await.expect("disown"), 1);
    assert_cancelled(h, claim).await;
    let (node, claim) = flagged(h).await;
    assert_eq!(h.store.retire(node).await.expect("retire"), 1);
    assert_cancelled(h, claim).await;
}

/// A flagged claim of a dead node is cancelled, and counts no crash.
pub async fn flagged_claim_of_a_dead_node_is_cancelled(h: &Harness) {
    let (node, claim) = flagged(h).await;
    let rescued = h.lose(node).await;
    assert_eq!((rescued.returned, rescued.quarantined), (0, 0));
    assert_cancelled(h, claim).await;
    assert_eq!(h.get(claim.id).await.summary.crashes, 0);
    assert_eq!(h.finish(node, claim, succeed()).await, Finished::LeaseLost);
}

/// The flag belongs to the claim: a job that is run again is not flagged.
pub async fn flag_ends_with_the_claim(h: &Harness) {
    let (node, claim) = flagged(h).await;
    h.end(node, claim, stopped("enough")).await;
    h.apply(claim.id, Verb::Retry).await;
    h.claim_one(node).await;
    assert!(!h.get(claim.id).await.summary.cancelling);
    assert!(h.renew(node).await.cancel.is_empty());
    assert_eq!(h.get(claim.id).await.note, None);
}
