//! What is kept of a claim once it has ended: when it began and on which node, that it crashed, how long its steps took.

use std::time::Duration;

use mainspring_core::id::{Claim, NodeNo};
use mainspring_core::job::{FaultKind, Outcome, State, Summary, Verb, When};
use mainspring_core::journal::{Entry, JobEnd, Recorded};
use mainspring_core::store::{ClaimRequest, ErrorText, Filter, Finish, Finished};
use mainspring_core::time::Timestamp;
use mainspring_core::{Error, bounds};

use super::workflow_calls::{steps, suspended, until_signal, value, writes};
use crate::harness::{Harness, SECOND, cancel, fail, fault, plain, queue, retry, stopped, succeed};

/// When the claim that a job shows began, and whose it is.
fn shown(summary: &Summary) -> (Option<Timestamp>, Option<NodeNo>) {
    (summary.claimed_at, summary.node)
}

/// The end of a job keeps when and on which node the claim that ended it began, in lists as well.
pub async fn end_keeps_when_and_where_its_claim_began(h: &Harness) {
    let result = Outcome::Succeed { result: Some(b"42".as_slice().into()) };
    for outcome in [succeed(), result, fail(), stopped("x")] {
        let (node, claim) = h.running().await;
        let began = h.now();
        h.advance(SECOND);
        h.end(node, claim, outcome.clone()).await;
        h.advance(SECOND);
        let summary = h.get(claim.id).await.summary;
        assert_eq!(shown(&summary), (Some(began), Some(node)), "{outcome:?}");
        assert_eq!(h.list(&Filter::default(), 9).await.first(), Some(&summary));
    }
}

/// The same for jobs that are ended by the hundred.
pub async fn ends_of_a_batch_keep_when_and_where_their_claims_began(h: &Harness) {
    let ids = h.put_many(9).await;
    let node = h.node().await;
    let began = h.now();
    let claimed = h.claim(node, 9).await;
    h.advance(SECOND);
    let finishes = claimed.iter().map(|job| Finish { claim: job.claim, outcome: succeed() }).collect();
    let answers = h.store.finish(node, finishes).await.expect("finish");
    assert_eq!(answers, [Finished::Applied; 9]);
    for id in ids {
        assert_eq!(shown(&h.get(id).await.summary), (Some(began), Some(node)));
    }
}

/// A claim that is stopped by its rescue ended the job as well.
pub async fn job_that_its_rescue_cancels_keeps_its_claim(h: &Harness) {
    let (node, claim) = h.running().await;
    let began = h.now();
    h.apply(claim.id, cancel("no")).await;
    h.lose(node).await;
    let record = h.get(claim.id).await;
    assert_eq!(record.summary.status.state, State::Cancelled);
    assert_eq!(shown(&record.summary), (Some(began), Some(node)));
    assert!(record.errors.is_empty(), "it was to end");
}

/// A job that ends while it waits was ended by no claim, though it may have had some.
pub async fn end_of_a_waiting_job_has_no_claim(h: &Harness) {
    let (node, claim) = h.running().await;
    h.end(node, claim, Outcome::Release).await;
    h.apply(claim.id, cancel("no")).await;
    assert_eq!(shown(&h.get(claim.id).await.summary), (None, None));
    let late = h.put(h.job_with(|job| job.deadline = Some(When::After(SECOND)))).await;
    h.advance(SECOND);
    assert_eq!(h.expire().await, 1);
    assert_eq!(shown(&h.get(late).await.summary), (None, None));
}

/// A job that runs again shows its own claim, and none while it waits.
pub async fn job_that_runs_again_shows_its_own_claim(h: &Harness) {
    let (first, claim) = h.running().await;
    h.end(first, claim, fail()).await;
    h.apply(claim.id, Verb::Retry).await;
    assert_eq!(shown(&h.get(claim.id).await.summary), (None, None));
    h.advance(SECOND);
    let (second, began) = (h.node().await, h.now());
    let again = h.claim_one(second).await;
    h.advance(SECOND);
    h.end(second, again, succeed()).await;
    assert_eq!(shown(&h.get(claim.id).await.summary), (Some(began), Some(second)));
}

/// An error keeps when and on which node its claim began.
pub async fn errors_keep_when_and_where_their_claims_began(h: &Harness) {
    let id = h.put_one().await;
    let mut expected = Vec::new();
    for outcome in [retry(Duration::ZERO), retry(Duration::ZERO), fail()] {
        let node = h.node().await;
        let claim = h.claim_one(node).await;
        expected.push((claim.number, h.now(), node, h.now().after(SECOND)));
        h.advance(SECOND);
        h.end(node, claim, outcome).await;
        h.promote().await;
    }
    let errors = h.get(id).await.errors.into_iter();
    let told: Vec<_> = errors.map(|error| (error.claim, error.claimed_at, error.node, error.at)).collect();
    assert_eq!(told, expected);
}

/// The loss of a node is noted among the errors of each job that it ran. It is no failure.
pub async fn crash_is_noted_and_is_no_failure(h: &Harness) {
    let (node, claim) = h.running().await;
    let began = h.now();
    h.lose(node).await;
    let record = h.get(claim.id).await;
    assert_eq!((record.summary.failures, record.summary.crashes, record.errors.len()), (0, 1, 1));
    let error = &record.errors[0];
    assert_eq!((error.kind, error.claim), (FaultKind::Crashed, claim.number));
    assert_eq!((error.claimed_at, error.node, error.at), (began, node, h.now()));
    assert!(!error.message.is_empty());
}

/// Every crash is noted, the one that brings a job into quarantine as well.
pub async fn each_crash_is_noted(h: &Harness) {
    let id = h.put_one().await;
    h.crash(usize::from(bounds::QUARANTINE_CRASHES)).await;
    let record = h.get(id).await;
    assert_eq!(record.summary.status.state, State::Suspended);
    let told: Vec<_> = record.errors.iter().map(|error| (error.claim, error.kind)).collect();
    assert_eq!(told, [(1, FaultKind::Crashed), (2, FaultKind::Crashed), (3, FaultKind::Crashed)]);
}

/// A job that was only claimed ahead has not crashed, and one that was given back has not either.
pub async fn claim_that_was_no_run_notes_no_crash(h: &Harness) {
    let ids = h.put_many(2).await;
    let node = h.node().await;
    let ahead = ClaimRequest { ahead: vec![(queue("q"), 1)], ..h.request(node, 2) };
    assert_eq!(h.claim_as(ahead).await.len(), 2);
    h.lose(node).await;
    assert_eq!((h.get(ids[0]).await.errors.len(), h.get(ids[1]).await.errors.len()), (1, 0));
    let (node, claim) = (h.node().await, h.node().await);
    h.store.retire(claim).await.expect("retire");
    assert_eq!(h.claim(node, 2).await.len(), 2);
    h.store.retire(node).await.expect("retire");
    assert_eq!(h.get(ids[1]).await.errors.len(), 0);
}

/// Notes of crashes and errors share one bound.
pub async fn notes_of_crashes_are_bounded(h: &Harness) {
    let id = h.put_one().await;
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    h.end(node, claim, Outcome::Retry { after: Duration::ZERO, fault: fault("the first") }).await;
    h.promote().await;
    for run in 1..=bounds::ERRORS_KEPT {
        let node = h.node().await;
        let claim = h.claim_one(node).await;
        // Progress: its crashes are not in a row.
        h.record(node, claim, steps([format!("{run}").as_str()])).await;
        h.lose(node).await;
    }
    let record = h.get(id).await;
    assert_eq!((record.summary.failures, record.summary.crashes), (1, 1));
    let claims: Vec<usize> = record.errors.iter().map(|error| error.claim as usize).collect();
    assert_eq!(claims, (2..=bounds::ERRORS_KEPT + 1).collect::<Vec<_>>());
    assert!(record.errors.iter().all(|error| error.kind == FaultKind::Crashed));
}

/// The crash of a claim is no trace of an outcome that its node wanted to store.
pub async fn retry_of_a_crashed_claim_is_lost(h: &Harness) {
    let (node, claim) = h.running().await;
    h.lose(node).await;
    assert_eq!(h.finish(node, claim, retry(SECOND)).await, Finished::LeaseLost);
    assert_eq!(h.status(claim.id).await, plain(State::Ready));
}

/// What went wrong last is the last failure, for whoever waits for the end and for whoever looks for an error.
pub async fn crash_is_not_what_went_wrong_last(h: &Harness) {
    let (node, claim) = h.running().await;
    h.end(node, claim, Outcome::Retry { after: Duration::ZERO, fault: fault("no route") }).await;
    h.promote().await;
    h.crash(1).await;
    let filter = |text| Filter { error: Some(ErrorText::new(text).expect("a text")), ..Filter::default() };
    assert_eq!(h.ids(&filter("no route")).await, [claim.id]);
    let crashed = h.get(claim.id).await.errors.pop().expect("a crash").message;
    assert!(h.ids(&filter(crashed.as_str())).await.is_empty());
    h.apply(claim.id, cancel("")).await;
    let ends = h.store.job_ends(vec![claim.id]).await.expect("ends");
    let [JobEnd::Ended { message, .. }] = ends.as_slice() else { panic!("{ends:?}") };
    assert_eq!(message.as_deref(), Some("no route"));
}

/// No outcome tells of a crash: the node that says it lives.
pub async fn outcome_that_tells_of_a_crash_is_refused(h: &Harness) {
    let (node, claim) = h.running().await;
    let crashed = mainspring_core::job::Fault::crashed();
    let finish = Finish { claim, outcome: Outcome::Retry { after: SECOND, fault: crashed } };
    let answer = h.store.finish(node, vec![finish]).await;
    assert!(matches!(answer, Err(Error::Invalid { what: "outcome", .. })), "{answer:?}");
    assert_eq!(h.status(claim.id).await, plain(State::Running));
}

/// An entry of which it is measured how long it took.
fn measured(name: &str, took: Option<Duration>) -> Entry {
    Entry { took, ..value(name, "1") }
}

/// An entry keeps how long its step took, in whole milliseconds, if that was measured.
pub async fn entries_keep_how_long_they_took(h: &Harness) {
    let (node, claim) = h.running().await;
    let (most, more) =
        (Duration::from_millis(i32::MAX.unsigned_abs().into()), Duration::from_hours(24 * 365));
    let given = [
        ("none", None, None),
        ("zero", Some(Duration::ZERO), Some(Duration::ZERO)),
        ("part", Some(Duration::from_micros(1_999)), Some(Duration::from_millis(1))),
        ("whole", Some(SECOND * 90), Some(SECOND * 90)),
        ("most", Some(most), Some(most)),
        ("more", Some(more), Some(most)),
    ];
    let entries: Vec<Entry> = given.iter().map(|(name, took, _)| measured(name, *took)).collect();
    let (now, later) = entries.split_at(4);
    h.record(node, claim, writes(now.to_vec())).await;
    h.end(node, claim, suspended(waiting(later))).await;
    h.send(claim.id, "go", "a").await;
    let expected: Vec<_> = given.iter().map(|(name, _, kept)| ((*name).to_owned(), *kept)).collect();
    let told = |entries: Vec<mainspring_core::journal::Written>| -> Vec<_> {
        entries.into_iter().map(|entry| (entry.key.to_string(), entry.took)).collect()
    };
    let claimed = h.take(node).await;
    assert_eq!(told(h.entries(&claimed).await), expected);
    assert_eq!(told(h.timeline(claim.id).await.entries), expected);
}

/// Waits for a signal, and records these with it.
fn waiting(entries: &[Entry]) -> mainspring_core::journal::Suspension {
    mainspring_core::journal::Suspension { writes: writes(entries.to_vec()), ..until_signal("go") }
}

/// The journal that a fork begins with keeps it as well; what is recorded again does not change it.
pub async fn forks_keep_how_long_their_entries_took(h: &Harness) {
    let took = Some(SECOND);
    h.put(h.job_with(|job| job.journal = vec![measured("a", took)])).await;
    let node = h.node().await;
    let claimed = h.take(node).await;
    let again = writes([measured("a", Some(SECOND * 9))]);
    assert_eq!(h.try_record(node, claimed.claim, again).await, Recorded::Stored);
    assert_eq!(took_of(h, claimed.claim).await, [took]);
}

async fn took_of(h: &Harness, claim: Claim) -> Vec<Option<Duration>> {
    h.timeline(claim.id).await.entries.into_iter().map(|entry| entry.took).collect()
}
