//! Finish: where each outcome leads, and who may say it.

use std::time::Duration;

use mainspring_core::bounds;
use mainspring_core::id::Row;
use mainspring_core::job::{ErrorEntry, Fault, FaultKind, Outcome, Reason, State, Verb, When};
use mainspring_core::store::{Finish, Finished};

use crate::harness::{
    Harness, LEASE, SECOND, because, cancel, claimed_ids, fail, fault, plain, priority, retry, stopped,
    succeed,
};

/// Success ends a job and keeps its result.
pub async fn success_keeps_the_result(h: &Harness) {
    let (node, claim) = h.running().await;
    h.advance(SECOND);
    h.end(node, claim, Outcome::Succeed { result: Some(b"42".as_slice().into()) }).await;
    let record = h.get(claim.id).await;
    assert_eq!(record.summary.status, plain(State::Succeeded));
    assert_eq!((record.summary.finished_at, record.summary.claim), (Some(h.now()), 1));
    assert_eq!((record.result, record.note, record.errors), (Some(b"42".to_vec()), None, Vec::new()));
    assert_eq!(h.node_view(node).await.claims, 0);
    assert!(h.claim(node, 1).await.is_empty());
}

/// Success without a result is success.
pub async fn success_needs_no_result(h: &Harness) {
    let (node, claim) = h.running().await;
    h.end(node, claim, succeed()).await;
    assert_eq!(h.get(claim.id).await.result, None);
}

/// A retry counts a failure, keeps its error, and waits as long as it says.
pub async fn retry_counts_and_waits(h: &Harness) {
    let (node, claim) = h.running().await;
    let fault = Fault::new(FaultKind::Timeout, "too slow");
    h.end(node, claim, Outcome::Retry { after: SECOND * 5, fault }).await;
    let record = h.get(claim.id).await;
    assert_eq!(record.summary.status, plain(State::Scheduled));
    assert_eq!((record.summary.failures, record.summary.run_at), (1, Some(h.now().after(SECOND * 5))));
    assert_eq!((record.summary.claim, record.summary.node, record.summary.finished_at), (1, None, None));
    let (claimed_at, message) = (h.now(), "too slow".into());
    let entry = ErrorEntry { claim: 1, claimed_at, node, at: h.now(), kind: FaultKind::Timeout, message };
    assert_eq!(record.errors, [entry]);
    h.advance(SECOND * 5);
    assert_eq!(h.promote().await, 1);
    let claimed = h.claim(node, 1).await.remove(0);
    assert_eq!((claimed.failures, claimed.claim.number), (1, 2));
}

/// A retry without delay waits for the next promotion.
pub async fn retry_without_delay_is_due_at_once(h: &Harness) {
    let (node, claim) = h.running().await;
    h.end(node, claim, retry(Duration::ZERO)).await;
    assert_eq!(h.status(claim.id).await, plain(State::Scheduled));
    assert_eq!(h.promote().await, 1);
    assert_eq!(h.claim_one(node).await.number, 2);
}

/// The last failure ends a job, with its reason, its count and its error.
pub async fn failure_keeps_its_reason(h: &Harness) {
    for reason in [Reason::Exhausted, Reason::Discarded, Reason::Expired] {
        let (node, claim) = h.running().await;
        h.end(node, claim, Outcome::Fail { reason, fault: fault("bad") }).await;
        let record = h.get(claim.id).await;
        assert_eq!(record.summary.status, because(State::Failed, reason));
        assert_eq!((record.summary.failures, record.summary.finished_at), (1, Some(h.now())));
        assert_eq!((record.errors.len(), record.errors[0].message.as_str()), (1, "bad"));
        assert_eq!((record.result, record.note), (None, None));
    }
}

/// A snooze counts nothing and keeps no error.
pub async fn snooze_counts_nothing(h: &Harness) {
    let (node, claim) = h.running().await;
    h.end(node, claim, Outcome::Snooze { after: SECOND }).await;
    let record = h.get(claim.id).await;
    assert_eq!(record.summary.status, plain(State::Scheduled));
    assert_eq!((record.summary.failures, record.summary.run_at), (0, Some(h.now().after(SECOND))));
    assert!(record.errors.is_empty());
}

/// A release counts nothing: the job is where it was, and goes first.
pub async fn release_counts_nothing(h: &Harness) {
    let (node, claim) = h.running().await;
    h.end(node, claim, Outcome::Release).await;
    let record = h.get(claim.id).await;
    assert_eq!((record.summary.status, record.summary.claim), (plain(State::Ready), 1));
    assert_eq!((record.summary.failures, record.summary.crashes, record.errors.len()), (0, 0, 0));
    assert_eq!(h.claim_one(node).await.number, 2);
}

/// Released work keeps its priority among what was released.
pub async fn released_jobs_keep_their_priority(h: &Harness) {
    let low = h.put(h.job_with(|job| job.priority = priority(7))).await;
    let high = h.put(h.job_with(|job| job.priority = priority(2))).await;
    let node = h.node().await;
    let claimed = h.claim(node, 2).await;
    for job in claimed.iter().rev() {
        h.end(node, job.claim, Outcome::Release).await;
        h.advance(SECOND);
    }
    assert_eq!(claimed_ids(&h.claim(node, 2).await), [high, low]);
}

/// A handler's own cancellation keeps its words.
pub async fn handler_cancels_in_its_own_words(h: &Harness) {
    let (node, claim) = h.running().await;
    h.end(node, claim, Outcome::Cancel { reason: Reason::Handler, why: "gone".into() }).await;
    let record = h.get(claim.id).await;
    assert_eq!(record.summary.status, because(State::Cancelled, Reason::Handler));
    assert_eq!((record.note.as_deref(), record.summary.failures), (Some("gone"), 0));
}

/// A claim that was given back and claimed again cannot write, in any way.
pub async fn stale_claim_cannot_complete(h: &Harness) {
    let (node, stale) = h.running().await;
    h.end(node, stale, Outcome::Release).await;
    for outcome in every_outcome() {
        assert_eq!(h.finish(node, stale, outcome).await, Finished::LeaseLost);
    }
    let claim = h.claim_one(node).await;
    for outcome in every_outcome() {
        assert_eq!(h.finish(node, stale, outcome).await, Finished::LeaseLost);
    }
    assert_eq!(h.get(claim.id).await.summary.status, plain(State::Running));
    h.end(node, claim, succeed()).await;
}

/// The number alone is not enough: the claim is the node's.
pub async fn other_node_cannot_complete(h: &Harness) {
    let (node, claim) = h.running().await;
    let other = h.node().await;
    for outcome in every_outcome() {
        assert_eq!(h.finish(other, claim, outcome).await, Finished::LeaseLost);
    }
    h.end(node, claim, succeed()).await;
}

fn every_outcome() -> [Outcome; 6] {
    let snooze = Outcome::Snooze { after: SECOND };
    [succeed(), retry(SECOND), fail(), snooze, Outcome::Release, stopped("x")]
}

/// A claim of a job that was never there is lost, and harms nobody.
pub async fn unknown_claim_cannot_complete(h: &Harness) {
    let (node, claim) = h.running().await;
    let mut unknown = claim;
    unknown.id = h.id();
    unknown.row = Row(999_999);
    assert_eq!(h.finish(node, unknown, succeed()).await, Finished::LeaseLost);
    let mut future = claim;
    future.number += 1;
    assert_eq!(h.finish(node, future, succeed()).await, Finished::LeaseLost);
    assert_eq!(h.status(claim.id).await, plain(State::Running));
}

/// A node that was rescued from cannot write any more.
pub async fn finish_after_rescue_is_lost(h: &Harness) {
    let (node, claim) = h.running().await;
    h.lose(node).await;
    for outcome in every_outcome() {
        assert_eq!(h.finish(node, claim, outcome).await, Finished::LeaseLost);
    }
    assert_eq!(h.status(claim.id).await, plain(State::Ready));
}

/// A node whose lease has lapsed, but whom nobody has expired, is still the owner.
pub async fn lapsed_node_can_finish(h: &Harness) {
    let (node, claim) = h.running().await;
    h.advance(LEASE * 2);
    h.end(node, claim, succeed()).await;
    let rescuer = h.node().await;
    assert!(h.rescue(rescuer).await.expired.is_empty());
}

/// The same outcome again is acknowledged and counted once.
pub async fn repeated_finish_is_applied_once(h: &Harness) {
    for outcome in [succeed(), retry(SECOND), fail(), stopped("x")] {
        let (node, claim) = h.running().await;
        h.end(node, claim, outcome.clone()).await;
        let before = h.get(claim.id).await;
        h.advance(Duration::from_millis(1));
        assert_eq!(h.finish(node, claim, outcome.clone()).await, Finished::Applied, "{outcome:?}");
        assert_eq!(h.get(claim.id).await, before);
    }
}

/// A repeat within one batch is acknowledged and counted once.
pub async fn finish_twice_in_one_batch_is_applied_once(h: &Harness) {
    let (node, claim) = h.running().await;
    let finish = Finish { claim, outcome: retry(SECOND) };
    let answers = h.store.finish(node, vec![finish.clone(), finish]).await.expect("finish");
    assert_eq!(answers, [Finished::Applied; 2]);
    let record = h.get(claim.id).await;
    assert_eq!((record.summary.failures, record.errors.len()), (1, 1));
}

/// A late repeat of a retry is known by its error, and does not touch the next claim.
pub async fn repeated_retry_is_applied_after_the_next_claim(h: &Harness) {
    let (node, claim) = h.running().await;
    h.end(node, claim, retry(Duration::ZERO)).await;
    h.promote().await;
    let next = h.claim_one(node).await;
    assert_eq!(h.finish(node, claim, retry(Duration::ZERO)).await, Finished::Applied);
    assert_eq!(h.get(claim.id).await.summary.status, plain(State::Running));
    h.end(node, next, succeed()).await;
    assert_eq!(h.get(claim.id).await.summary.failures, 1);
}

/// A late repeat of an end is known after an operator has run the job again.
pub async fn repeated_failure_is_applied_after_an_operators_retry(h: &Harness) {
    let (node, claim) = h.running().await;
    h.end(node, claim, fail()).await;
    h.apply(claim.id, Verb::Retry).await;
    assert_eq!(h.finish(node, claim, fail()).await, Finished::Applied);
    assert_eq!(h.get(claim.id).await.summary.status, plain(State::Ready));
}

/// An ended job takes no second outcome.
pub async fn ended_job_takes_no_other_outcome(h: &Harness) {
    let (node, claim) = h.running().await;
    h.end(node, claim, succeed()).await;
    for outcome in [retry(SECOND), fail(), stopped("x"), Outcome::Release] {
        assert_eq!(h.finish(node, claim, outcome.clone()).await, Finished::LeaseLost, "{outcome:?}");
    }
    assert_eq!(h.status(claim.id).await, plain(State::Succeeded));
}

/// A release or snooze leaves nothing to know a repeat by.
pub async fn repeated_release_or_snooze_is_lost(h: &Harness) {
    for outcome in [Outcome::Release, Outcome::Snooze { after: SECOND }] {
        let (node, claim) = h.running().await;
        h.end(node, claim, outcome.clone()).await;
        assert_eq!(h.finish(node, claim, outcome).await, Finished::LeaseLost);
        h.apply(claim.id, Verb::Delete).await;
    }
}

/// One stale claim in a batch loses alone; answers come in order.
pub async fn one_stale_finish_does_not_fail_its_batch(h: &Harness) {
    h.put_many(3).await;
    let node = h.node().await;
    let claims: Vec<_> = h.claim(node, 3).await.into_iter().map(|job| job.claim).collect();
    h.end(node, claims[1], Outcome::Release).await;
    let finishes = claims.iter().map(|claim| Finish { claim: *claim, outcome: succeed() }).collect();
    let answers = h.store.finish(node, finishes).await.expect("finish");
    assert_eq!(answers, [Finished::Applied, Finished::LeaseLost, Finished::Applied]);
    assert_eq!(h.counts().await.total(State::Succeeded), 2);
}

/// Different outcomes share a batch.
pub async fn one_batch_holds_every_outcome(h: &Harness) {
    h.put_many(6).await;
    let node = h.node().await;
    let claims = h.claim(node, 6).await;
    let finishes = claims
        .iter()
        .zip(every_outcome())
        .map(|(job, outcome)| Finish { claim: job.claim, outcome })
        .collect();
    let answers = h.store.finish(node, finishes).await.expect("finish");
    assert_eq!(answers, [Finished::Applied; 6]);
    let counts = h.counts().await;
    let expected = [
        (State::Succeeded, 1),
        (State::Scheduled, 2),
        (State::Failed, 1),
        (State::Ready, 1),
        (State::Cancelled, 1),
        (State::Running, 0),
    ];
    for (state, count) in expected {
        assert_eq!(counts.total(state), count, "{state}");
    }
}

/// Errors are kept up to their bound, and the oldest go first.
pub async fn errors_are_bounded(h: &Harness) {
    let id = h.put_one().await;
    let node = h.node().await;
    let runs = bounds::ERRORS_KEPT + 3;
    for run in 1..=runs {
        let claim = h.claim_one(node).await;
        let fault = fault(&format!("error {run}"));
        h.end(node, claim, Outcome::Retry { after: Duration::ZERO, fault }).await;
        h.promote().await;
    }
    let record = h.get(id).await;
    assert_eq!(usize::from(record.summary.failures), runs);
    let claims: Vec<usize> = record.errors.iter().map(|error| error.claim as usize).collect();
    assert_eq!(claims, (4..=runs).collect::<Vec<_>>());
    assert_eq!(record.errors[0].message, "error 4");
}

/// A handler that came to an end clears the crashes before it; one that was interrupted does not.
pub async fn outcome_resets_crashes_and_release_keeps_them(h: &Harness) {
    for outcome in [succeed(), retry(SECOND), fail(), Outcome::Snooze { after: SECOND }] {
        let id = h.put_one().await;
        h.crash(1).await;
        let node = h.node().await;
        let claim = h.claim_one(node).await;
        h.end(node, claim, Outcome::Release).await;
        assert_eq!(h.get(id).await.summary.crashes, 1);
        let claim = h.claim_one(node).await;
        h.end(node, claim, outcome).await;
        assert_eq!(h.get(id).await.summary.crashes, 0);
        h.apply(id, Verb::Delete).await;
    }
}

/// An ended job has no deadline any more, also when it is run again.
pub async fn ended_job_has_no_deadline(h: &Harness) {
    let id = h.put(h.job_with(|job| job.deadline = Some(When::After(SECOND)))).await;
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    assert!(h.get(id).await.summary.deadline.is_some());
    h.end(node, claim, fail()).await;
    assert_eq!(h.get(id).await.summary.deadline, None);
    h.apply(id, Verb::Retry).await;
    h.advance(SECOND * 2);
    assert_eq!(h.expire().await, 0);
    let claimed = h.claim(node, 1).await.remove(0);
    assert_eq!(claimed.deadline, None);
    h.apply(id, cancel("")).await;
    h.end(node, claimed.claim, stopped("")).await;
}

/// Finishing nothing is nothing.
pub async fn empty_finish_is_accepted(h: &Harness) {
    let node = h.node().await;
    assert!(h.store.finish(node, Vec::new()).await.expect("finish").is_empty());
}
