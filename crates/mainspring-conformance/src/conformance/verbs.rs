//! What operators do to jobs: every verb from every state, and what each leaves behind.

use std::time::Duration;

use mainspring_core::bounds;
use mainspring_core::id::JobId;
use mainspring_core::job::{Outcome, Reason, State, Status, Verb, When, Why};
use mainspring_core::store::Changed;

use crate::harness::{
    Harness, SECOND, because, cancel, claimed_ids, fail, plain, priority, retry, stopped, succeed,
};

/// Every status that a job can be brought into through a store.
const REACHABLE: [Status; 12] = [
    Status::plain(State::Scheduled),
    Status::plain(State::Ready),
    Status::plain(State::Running),
    Status::because(State::Suspended, Reason::Hold),
    Status::because(State::Suspended, Reason::Quarantine),
    Status::plain(State::Succeeded),
    Status::because(State::Failed, Reason::Exhausted),
    Status::because(State::Failed, Reason::Expired),
    Status::because(State::Failed, Reason::Operator),
    Status::because(State::Cancelled, Reason::Operator),
    Status::because(State::Cancelled, Reason::Handler),
    Status::because(State::Cancelled, Reason::Replaced),
];

fn every_verb() -> [Verb; 8] {
    let why = || "because".to_owned();
    [
        Verb::Cancel { why: why() },
        Verb::Recall { why: why() },
        Verb::Retry,
        Verb::Hold { why: String::new() },
        Verb::Resume,
        Verb::Fail { why: why() },
        Verb::Delete,
        Verb::SetPriority(priority(1)),
    ]
}

/// Brings a fresh job into a status. No other job may be ready.
async fn bring(h: &Harness, status: Status) -> JobId {
    let id = h.id();
    let job = h.job_with(|job| {
        job.id = id;
        job.options.unique = Some(id.to_string().into());
        if status.state == State::Scheduled {
            job.run = Some(When::After(SECOND));
        }
        if status.reason == Some(Reason::Expired) {
            job.deadline = Some(When::At(job_now(h)));
        }
    });
    h.put(job).await;
    let end = async |outcome: Outcome| {
        let node = h.node().await;
        let claim = h.claim_one(node).await;
        h.end(node, claim, outcome).await;
    };
    match (status.state, status.reason) {
        (State::Running, _) => {
            let node = h.node().await;
            h.claim_one(node).await;
        }
        (_, Some(Reason::Hold)) => h.apply(id, Verb::Hold { why: String::new() }).await,
        (_, Some(Reason::Quarantine)) => h.crash(3).await,
        (State::Succeeded, _) => end(succeed()).await,
        (_, Some(Reason::Exhausted)) => end(fail()).await,
        (_, Some(Reason::Expired)) => assert_eq!(h.expire().await, 1),
        (State::Failed, Some(Reason::Operator)) => {
            h.apply(id, Verb::Hold { why: String::new() }).await;
            h.apply(id, Verb::Fail { why: "no".into() }).await;
        }
        (State::Cancelled, Some(Reason::Operator)) => h.apply(id, cancel("no")).await,
        (_, Some(Reason::Handler)) => {
            end(Outcome::Cancel { reason: Reason::Handler, why: "no".into() }).await;
        }
        (_, Some(Reason::Replaced)) => {
            let unique = mainspring_core::job::Unique::new(id.to_string()).replace();
            let other = h.put(h.job_with(|job| job.options.unique = Some(unique))).await;
            h.apply(other, Verb::Delete).await;
        }
        _ => {}
    }
    assert_eq!(h.status(id).await, status);
    id
}

fn job_now(h: &Harness) -> mainspring_core::time::Timestamp {
    h.now()
}

/// Every verb does to every state exactly what the state machine says, and a dry run says it without doing it.
pub async fn every_verb_from_every_state_is_as_the_machine_says(h: &Harness) {
    for from in REACHABLE {
        for verb in every_verb() {
            let id = bring(h, from).await;
            let before = h.find(id).await;
            let expected = match verb.apply(from, from.state == State::Scheduled) {
                Ok(to) => Changed::Applied { from, to },
                Err(illegal) => Changed::Illegal(illegal),
            };
            let dry = h.store.change(vec![id], verb.clone(), true).await.expect("change");
            assert_eq!(dry, [expected], "{verb} from {from}, dry");
            assert_eq!(h.find(id).await, before, "{verb} from {from} changed something in a dry run");
            assert_eq!(h.change(id, verb.clone()).await, expected, "{verb} from {from}");
            let after = h.find(id).await;
            match expected {
                Changed::Applied { to: None, .. } => assert_eq!(after, None),
                Changed::Applied { to, .. } => assert_eq!(after.map(|job| job.summary.status), to),
                Changed::Illegal(_) | Changed::Stale | Changed::NotFound => {
                    assert_eq!(after, before, "{verb} from {from}");
                }
            }
            clear(h, id).await;
        }
    }
}

/// Takes a job away, whatever it is.
async fn clear(h: &Harness, id: JobId) {
    let Some(job) = h.find(id).await else { return };
    if let Some(node) = job.summary.node {
        h.store.retire(node).await.expect("retire");
    }
    h.apply(id, Verb::Delete).await;
}

/// A job that is not there is told, in its place among the answers.
pub async fn answers_come_in_order_of_the_ids(h: &Harness) {
    let ids = h.put_many(2).await;
    h.apply(ids[1], cancel("")).await;
    let asked = vec![ids[1], h.id(), ids[0]];
    let answers = h.store.change(asked, cancel(""), false).await.expect("change");
    assert!(matches!(answers[0], Changed::Illegal(_)));
    assert_eq!(answers[1], Changed::NotFound);
    assert!(matches!(answers[2], Changed::Applied { .. }));
    assert!(h.store.change(Vec::new(), Verb::Retry, false).await.expect("change").is_empty());
}

/// A verb reaches as many jobs as a batch holds.
pub async fn verb_reaches_a_whole_batch(h: &Harness) {
    let ids = h.put_many(bounds::BATCH).await;
    let answers = h.store.change(ids.clone(), cancel("all"), false).await.expect("change");
    assert!(answers.iter().all(|answer| matches!(answer, Changed::Applied { .. })));
    assert_eq!(h.counts().await.total(State::Cancelled), bounds::BATCH as u64);
    h.store.change(ids, Verb::Delete, false).await.expect("change");
    assert!(h.counts().await.0.is_empty());
}

/// A retry begins with fresh counts, keeps the errors, and goes on with the next claim number.
pub async fn retry_clears_the_counts_and_keeps_the_errors(h: &Harness) {
    let (node, claim) = h.running().await;
    h.end(node, claim, retry(Duration::ZERO)).await;
    h.promote().await;
    let claim = h.claim_one(node).await;
    h.end(node, claim, fail()).await;
    h.advance(SECOND);
    h.apply(claim.id, Verb::Retry).await;
    let record = h.get(claim.id).await;
    assert_eq!(record.summary.status, plain(State::Ready));
    assert_eq!((record.summary.failures, record.summary.crashes), (0, 0));
    assert_eq!((record.summary.finished_at, record.errors.len()), (None, 2));
    let claim = h.claim_one(node).await;
    assert_eq!(claim.number, 3);
    h.end(node, claim, Outcome::Succeed { result: Some(b"1".as_slice().into()) }).await;
    let record = h.get(claim.id).await;
    assert_eq!((record.summary.status.state, record.result), (State::Succeeded, Some(b"1".to_vec())));
}

/// A scheduled job can be run now.
pub async fn retry_runs_a_scheduled_job_now(h: &Harness) {
    let (node, claim) = h.running().await;
    h.end(node, claim, retry(SECOND * 60)).await;
    h.apply(claim.id, Verb::Retry).await;
    let summary = h.get(claim.id).await.summary;
    assert_eq!((summary.status, summary.run_at, summary.failures), (plain(State::Ready), None, 0));
    h.claim_one(node).await;
    h.advance(SECOND * 60);
    assert_eq!(h.promote().await, 0);
}

/// Retried and resumed jobs stand in line like fresh ones.
pub async fn retried_and_resumed_jobs_stand_in_line(h: &Harness) {
    let retried = h.put_one().await;
    let resumed = h.put_one().await;
    h.apply(retried, cancel("")).await;
    h.apply(resumed, Verb::Hold { why: String::new() }).await;
    let waiting = h.put_one().await;
    h.advance(SECOND);
    h.apply(retried, Verb::Retry).await;
    h.advance(SECOND);
    h.apply(resumed, Verb::Resume).await;
    let node = h.node().await;
    assert_eq!(claimed_ids(&h.claim(node, 10).await), [waiting, retried, resumed]);
}

/// The same end can come again, with no claim between.
pub async fn job_can_be_cancelled_retried_and_cancelled_again(h: &Harness) {
    let id = h.put_one().await;
    for why in ["one", "two", "three"] {
        h.apply(id, cancel(why)).await;
        assert_eq!(h.get(id).await.note.as_deref(), Some(why));
        h.apply(id, Verb::Retry).await;
        assert_eq!(h.get(id).await.note, None);
    }
    assert_eq!(h.status(id).await, plain(State::Ready));
}

/// A held job keeps the time that it waits for, and waits for it again if it is still to come.
pub async fn held_job_keeps_its_time(h: &Harness) {
    let id = h.put(h.job_with(|job| job.run = Some(When::After(SECOND * 10)))).await;
    let at = Some(h.now().after(SECOND * 10));
    h.apply(id, Verb::Hold { why: String::new() }).await;
    let summary = h.get(id).await.summary;
    assert_eq!((summary.status, summary.run_at), (because(State::Suspended, Reason::Hold), at));
    h.advance(SECOND * 5);
    let answer = h.change(id, Verb::Resume).await;
    let held = because(State::Suspended, Reason::Hold);
    assert_eq!(answer, Changed::Applied { from: held, to: Some(plain(State::Scheduled)) });
    assert_eq!(h.get(id).await.summary.run_at, at);
    h.apply(id, Verb::Hold { why: String::new() }).await;
    h.advance(SECOND * 5);
    assert_eq!(h.promote().await, 0);
    h.apply(id, Verb::Resume).await;
    let summary = h.get(id).await.summary;
    assert_eq!((summary.status, summary.run_at), (plain(State::Ready), None));
}

/// A held job is claimed by nobody, and counts and failures are as before when it goes on.
pub async fn held_job_is_not_claimed(h: &Harness) {
    let (node, claim) = h.running().await;
    h.end(node, claim, retry(Duration::ZERO)).await;
    h.promote().await;
    h.apply(claim.id, Verb::Hold { why: String::new() }).await;
    assert!(h.claim(node, 1).await.is_empty());
    h.apply(claim.id, Verb::Resume).await;
    let claimed = h.claim(node, 1).await.remove(0);
    assert_eq!((claimed.failures, claimed.claim.number), (1, 2));
}

/// Failing a job keeps the operator's words.
pub async fn failing_keeps_the_operators_words(h: &Harness) {
    let id = h.put_one().await;
    h.crash(3).await;
    h.apply(id, Verb::Fail { why: "poison".into() }).await;
    let record = h.get(id).await;
    assert_eq!(record.summary.status, because(State::Failed, Reason::Operator));
    assert_eq!((record.note.as_deref(), record.summary.failures), (Some("poison"), 0));
    assert_eq!(record.summary.finished_at, Some(h.now()));
}

/// Holding a job keeps the operator's words, from wherever it waits and for as long as it is held.
pub async fn holding_keeps_the_operators_words_until_it_is_over(h: &Harness) {
    let held = because(State::Suspended, Reason::Hold);
    let hold = |why: &str| Verb::Hold { why: why.to_owned() };
    let ready = h.put_one().await;
    let timed = h.put(h.job_with(|job| job.run = Some(When::After(SECOND)))).await;
    for (id, waits) in [(ready, State::Ready), (timed, State::Scheduled)] {
        for (why, note) in [("wrong price", Some("wrong price")), ("", None), ("again", Some("again"))] {
            h.apply(id, hold(why)).await;
            h.apply(id, Verb::SetPriority(priority(3))).await;
            let record = h.get(id).await;
            assert_eq!((record.summary.status, record.note.as_deref()), (held, note));
            let said = Why::Held { note: note.map(str::to_owned) };
            assert_eq!(mainspring_core::job::why(&record, None, &[], None, h.now()), said);
            h.apply(id, Verb::Resume).await;
            let record = h.get(id).await;
            assert_eq!((record.summary.status, record.note), (plain(waits), None));
        }
    }
    // What ends a held job has words of its own.
    for (verb, note) in [(cancel("sold out"), Some("sold out")), (Verb::Fail { why: String::new() }, None)] {
        let id = h.put_one().await;
        h.apply(id, hold("wrong price")).await;
        h.apply(id, verb).await;
        assert_eq!(h.get(id).await.note.as_deref(), note);
    }
    // Several at once, and words at their bound and beyond.
    let ids = h.put_many(3).await;
    let long = "x".repeat(bounds::WHY_BYTES);
    for wrong in [format!("{long}x"), "a\0b".to_owned()] {
        h.store.change(ids.clone(), hold(&wrong), false).await.expect_err("these words cannot be kept");
        assert_eq!(h.status(ids[0]).await, plain(State::Ready));
    }
    h.store.change(ids.clone(), hold(&long), false).await.expect("held");
    for id in ids {
        assert_eq!(h.get(id).await.note.as_deref(), Some(long.as_str()));
    }
}

/// A new priority moves a waiting job in its line; it keeps its turn among its equals.
pub async fn reprioritised_job_moves_in_its_line(h: &Harness) {
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(h.put_one().await);
        h.advance(SECOND);
    }
    h.apply(ids[2], Verb::SetPriority(priority(1))).await;
    h.apply(ids[0], Verb::SetPriority(priority(9))).await;
    assert_eq!(h.get(ids[2]).await.summary.priority, priority(1));
    h.apply(ids[0], Verb::SetPriority(priority(5))).await;
    let node = h.node().await;
    assert_eq!(claimed_ids(&h.claim(node, 10).await), [ids[2], ids[0], ids[1]]);
}

/// A new priority outlives every later move.
pub async fn reprioritised_job_keeps_its_priority(h: &Harness) {
    let id = h.put(h.job_with(|job| job.run = Some(When::After(SECOND)))).await;
    h.apply(id, Verb::SetPriority(priority(2))).await;
    h.apply(id, Verb::Hold { why: String::new() }).await;
    h.apply(id, Verb::SetPriority(priority(1))).await;
    assert_eq!(h.get(id).await.summary.priority, priority(1));
    h.apply(id, Verb::Resume).await;
    h.advance(SECOND);
    h.promote().await;
    let node = h.node().await;
    for outcome in [Outcome::Release, retry(Duration::ZERO), fail()] {
        let claimed = h.claim(node, 1).await.remove(0);
        assert_eq!(claimed.priority, priority(1));
        h.end(node, claimed.claim, outcome).await;
        h.promote().await;
    }
    assert_eq!(h.get(id).await.summary.priority, priority(1));
    h.apply(id, Verb::Retry).await;
    assert_eq!(h.claim(node, 1).await[0].priority, priority(1));
}

/// A returned job that gets another priority still goes before the fresh.
pub async fn reprioritised_job_keeps_its_class(h: &Harness) {
    let (node, claim) = h.running().await;
    h.end(node, claim, Outcome::Release).await;
    let fresh = h.put(h.job_with(|job| job.priority = priority(0))).await;
    h.apply(claim.id, Verb::SetPriority(priority(9))).await;
    assert_eq!(claimed_ids(&h.claim(node, 2).await), [claim.id, fresh]);
}

/// A deleted job is gone, and its late worker has nothing to write to.
pub async fn deleted_job_is_gone(h: &Harness) {
    let (node, claim) = h.running().await;
    h.end(node, claim, stopped("x")).await;
    h.apply(claim.id, Verb::Delete).await;
    assert_eq!(h.find(claim.id).await, None);
    assert_eq!(h.change(claim.id, Verb::Delete).await, Changed::NotFound);
    let lost = h.finish(node, claim, stopped("x")).await;
    assert_eq!(lost, mainspring_core::store::Finished::LeaseLost);
    assert!(h.counts().await.0.is_empty());
    let later = h.put(h.job_with(|job| job.run = Some(When::After(SECOND)))).await;
    h.apply(later, Verb::Delete).await;
    h.advance(SECOND);
    assert_eq!(h.promote().await, 0);
}
