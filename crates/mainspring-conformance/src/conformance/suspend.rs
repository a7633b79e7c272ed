//! Suspension: a job that waits holds nothing, and goes on when what it waits for happens.

use std::time::Duration;

use mainspring_core::id::{NodeNo, Row};
use mainspring_core::job::{Outcome, Reason, State, Unique, Verb, When};
use mainspring_core::journal::{Signalled, Subject, Suspension, Wait, Writes};
use mainspring_core::store::{Changed, Filter, Finish, Finished, Receipt};
use mainspring_core::{Error, bounds};

use super::extreme_texts::HOSTILE;
use super::workflow_calls::{forgets, reads, senders, steps, suspended, until_signal, until_time, wait};
use crate::harness::{
    Harness, LEASE, MICRO, SECOND, because, cancel, claimed_ids, just_before, plain, priority, retry, succeed,
};

/// Every reason for which a handler can be suspended.
const REASONS: [Reason; 6] =
    [Reason::Timer, Reason::Signal, Reason::Child, Reason::Approval, Reason::Budget, Reason::Drift];

/// A suspended job holds no claim; what it waits for, until when and why can be seen. Nothing is counted.
pub async fn suspended_job_holds_nothing(h: &Harness) {
    let (node, claim) = h.running().await;
    let until = h.now().after(SECOND * 9);
    let suspension = Suspension {
        until: Some(until),
        waits: vec![wait("go", 2), Wait { subject: Subject::Child(claim.id), need: 1 }],
        note: Some("waits for people".into()),
        ..until_signal("go")
    };
    h.suspend(node, claim, suspension.clone()).await;
    let record = h.get(claim.id).await;
    assert_eq!(record.summary.status, because(State::Suspended, Reason::Signal));
    assert_eq!((record.summary.run_at, record.summary.claim), (Some(until), 1));
    assert_eq!(
        (record.summary.node, record.summary.claimed_at, record.summary.finished_at),
        (None, None, None)
    );
    assert_eq!((record.summary.failures, record.summary.crashes, record.errors.len()), (0, 0, 0));
    assert_eq!((record.waits, record.note), (suspension.waits, suspension.note));
    assert_eq!(h.list(&Filter::default(), 9).await, [record.summary]);
    assert_eq!(h.node_view(node).await.claims, 0);
    assert_eq!(h.counts().await.total(State::Suspended), 1);
    assert!(h.claim(node, 9).await.is_empty());
}

/// A handler can be suspended for every reason that is a handler's.
pub async fn each_reason_is_kept(h: &Harness) {
    for reason in REASONS {
        let (_, id) = h.waiting(Suspension { reason, ..until_signal("go") }).await;
        let record = h.get(id).await;
        assert_eq!(record.summary.status, because(State::Suspended, reason));
        assert_eq!((record.waits, record.note, record.summary.run_at), (vec![wait("go", 1)], None, None));
    }
}

/// A handler cannot be suspended for a reason that is somebody else's, and nothing of such a batch is done.
pub async fn reason_of_others_is_refused(h: &Harness) {
    h.put_many(2).await;
    let node = h.node().await;
    let claims = h.claim(node, 2).await;
    for reason in [Reason::Hold, Reason::Quarantine, Reason::Exhausted, Reason::Parent] {
        let bad = suspended(Suspension { reason, writes: steps(["a"]), ..until_signal("go") });
        let batch = vec![
            Finish { claim: claims[0].claim, outcome: succeed() },
            Finish { claim: claims[1].claim, outcome: bad },
        ];
        let answer = h.store.finish(node, batch).await;
        assert!(matches!(answer, Err(Error::Invalid { .. })), "{reason}: {answer:?}");
    }
    assert_eq!(h.counts().await.total(State::Running), 2);
    assert!(h.timeline(claims[1].claim.id).await.entries.is_empty());
}

/// Names, notes and waits of a suspension come back as they were.
pub async fn hostile_suspensions_are_data(h: &Harness) {
    for text in HOSTILE {
        let note = Some(format!("{text}\n{text}"));
        let waits = vec![wait(text, 1), wait(&format!("{text}:2"), u32::MAX), wait("c:x", 7)];
        let (_, id) =
            h.waiting(Suspension { waits: waits.clone(), note: note.clone(), ..until_signal("x") }).await;
        let record = h.get(id).await;
        assert_eq!((record.waits, record.note), (waits, note), "{text}");
        h.send(id, text, text).await;
        assert_eq!(h.status(id).await, plain(State::Ready), "{text}");
        h.apply(id, Verb::Delete).await;
    }
    let note = Some("n".repeat(bounds::ERROR_BYTES));
    let waits: Vec<_> = (0..100).map(|number| wait(&format!("{number:0128}"), 1)).collect();
    let (_, id) =
        h.waiting(Suspension { waits: waits.clone(), note: note.clone(), ..until_signal("x") }).await;
    let record = h.get(id).await;
    assert_eq!((record.waits, record.note), (waits, note));
}

/// What is written with a suspension is there with the next claim, and what it has read is not.
pub async fn writes_are_stored_with_the_suspension(h: &Harness) {
    let (node, claim) = h.running().await;
    for sender in ["a", "b"] {
        h.send(claim.id, "early", sender).await;
    }
    h.record(node, claim, steps(["first", "wrong"])).await;
    let read = reads(&h.messages(claim).await[..1]).read;
    let forget = forgets(["wrong"]).forget;
    h.advance(SECOND);
    let writes = Writes { read, forget, ..steps(["second", "first"]) };
    h.suspend(node, claim, Suspension { writes, ..until_signal("go") }).await;
    let suspended_at = h.now();
    h.advance(SECOND);
    h.send(claim.id, "go", "c").await;
    let claimed = h.take(node).await;
    assert_eq!(h.keys(&claimed).await, ["first", "second"]);
    let last = &h.entries(&claimed).await[1];
    assert_eq!((last.claim, last.at), (1, suspended_at));
    assert_eq!(senders(&h.mail(&claimed).await), ["b", "c"]);
}

/// A handler that suspended itself came through: crashes before do not count.
pub async fn suspension_resets_crashes(h: &Harness) {
    let id = h.put_one().await;
    h.crash(2).await;
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    h.suspend(node, claim, until_signal("go")).await;
    assert_eq!(h.get(id).await.summary.crashes, 0);
    h.send(id, "go", "a").await;
    let claimed = h.take(node).await;
    assert_eq!((claimed.crashes, claimed.crashed_micros, claimed.is_suspect()), (0, 0, false));
}

/// A claim that was to be cancelled is cancelled when it suspends; what it recorded is kept.
pub async fn flagged_suspension_is_cancelled(h: &Harness) {
    let past = h.now();
    for suspension in [until_signal("go"), until_time(past)] {
        let (node, claim) = h.running().await;
        h.apply(claim.id, cancel("enough")).await;
        h.suspend(node, claim, Suspension { writes: steps(["a"]), ..suspension }).await;
        let record = h.get(claim.id).await;
        assert_eq!(record.summary.status, because(State::Cancelled, Reason::Operator));
        assert_eq!((record.note.as_deref(), record.waits.len()), (Some("enough"), 0));
        h.apply(claim.id, Verb::Retry).await;
        let claimed = h.take(node).await;
        assert_eq!(h.keys(&claimed).await, ["a"]);
        h.end(node, claimed.claim, succeed()).await;
    }
}

/// Who does not hold the claim cannot suspend the job, and nothing is written.
pub async fn stale_suspension_is_refused(h: &Harness) {
    let (node, stale) = h.running().await;
    h.send(stale.id, "go", "a").await;
    let unread = h.messages(stale).await;
    let other = h.node().await;
    let writes = Writes { read: reads(&unread).read, ..steps(["a"]) };
    let outcome = || suspended(Suspension { writes: writes.clone(), ..until_signal("x") });
    assert_eq!(h.finish(other, stale, outcome()).await, Finished::LeaseLost);
    assert_eq!(h.finish(NodeNo(999_999), stale, outcome()).await, Finished::LeaseLost);
    let (mut future, mut elsewhere) = (stale, stale);
    future.number += 1;
    elsewhere.row = Row(999_999);
    for claim in [future, elsewhere] {
        assert_eq!(h.finish(node, claim, outcome()).await, Finished::LeaseLost);
    }
    h.end(node, stale, Outcome::Release).await;
    assert_eq!(h.finish(node, stale, outcome()).await, Finished::LeaseLost);
    let claim = h.claim_one(node).await;
    assert_eq!(h.finish(node, stale, outcome()).await, Finished::LeaseLost);
    h.lose(node).await;
    assert_eq!(h.finish(node, claim, outcome()).await, Finished::LeaseLost);
    let timeline = h.timeline(claim.id).await;
    assert_eq!((timeline.entries.len(), timeline.inbox.messages), (0, unread));
    assert_eq!(h.status(claim.id).await, plain(State::Ready));
}

/// A suspension leaves nothing to know a repeat by, while the job waits and when it goes on.
pub async fn repeated_suspension_is_lost(h: &Harness) {
    let (node, claim) = h.running().await;
    let outcome = || suspended(Suspension { writes: steps(["a"]), ..until_signal("go") });
    h.end(node, claim, outcome()).await;
    let before = h.get(claim.id).await;
    assert_eq!(h.finish(node, claim, outcome()).await, Finished::LeaseLost);
    assert_eq!(h.get(claim.id).await, before);
    h.send(claim.id, "go", "a").await;
    assert_eq!(h.finish(node, claim, outcome()).await, Finished::LeaseLost);
    let next = h.claim_one(node).await;
    assert_eq!(h.finish(node, claim, outcome()).await, Finished::LeaseLost);
    h.end(node, next, succeed()).await;
}

/// A suspension shares its batch with every other outcome, and one that is stale loses alone.
pub async fn suspensions_share_a_batch(h: &Harness) {
    h.put_many(5).await;
    let node = h.node().await;
    let claims: Vec<_> = h.claim(node, 5).await.into_iter().map(|job| job.claim).collect();
    h.end(node, claims[4], Outcome::Release).await;
    let outcomes = [
        suspended(until_signal("go")),
        succeed(),
        suspended(until_time(h.now())),
        retry(SECOND),
        suspended(until_signal("go")),
    ];
    let finishes =
        claims.iter().zip(outcomes).map(|(claim, outcome)| Finish { claim: *claim, outcome }).collect();
    let answers = h.store.finish(node, finishes).await.expect("finish");
    assert_eq!(answers[..4], [Finished::Applied; 4]);
    assert_eq!(answers[4], Finished::LeaseLost);
    let counts = h.counts().await;
    for (state, count) in
        [(State::Suspended, 1), (State::Succeeded, 1), (State::Ready, 2), (State::Scheduled, 1)]
    {
        assert_eq!(counts.total(state), count, "{state}");
    }
}

/// A job waits as often as it likes, and what it waited for before does not matter any more.
pub async fn job_waits_again_and_again(h: &Harness) {
    let (node, id) = h.waiting(Suspension { note: Some("1".into()), ..until_signal("go 1") }).await;
    for round in 2..5 {
        h.send(id, &format!("go {}", round - 1), "a").await;
        let record = h.get(id).await;
        assert_eq!((record.summary.status, record.summary.run_at), (plain(State::Ready), None));
        assert_eq!((record.waits.len(), record.note), (0, None));
        let claimed = h.take(node).await;
        assert_eq!(claimed.claim.number, round);
        h.suspend(node, claimed.claim, until_signal(&format!("go {round}"))).await;
        h.send(id, "go 1", &round.to_string()).await;
        assert_eq!(h.status(id).await, because(State::Suspended, Reason::Signal));
    }
}

/// A suspended job is nobody's: the loss of the node that ran it is no crash of it.
pub async fn suspended_job_outlives_its_node(h: &Harness) {
    let (node, id) = h.waiting(until_signal("go")).await;
    h.claim(node, 1).await;
    let (other, _) = h.running().await;
    h.advance(LEASE);
    let rescuer = h.node().await;
    assert_eq!(h.rescue(rescuer).await.expired, [other]);
    h.store.retire(node).await.expect("retire");
    let summary = h.get(id).await.summary;
    assert_eq!((summary.status, summary.crashes), (because(State::Suspended, Reason::Signal), 0));
}

/// A deadline ends a suspended job, and what it waited for cannot wake it any more.
pub async fn deadline_fails_a_suspended_job(h: &Harness) {
    let id = h.put(h.job_with(|job| job.deadline = Some(When::After(SECOND * 2)))).await;
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    let suspension = Suspension {
        until: Some(h.now().after(SECOND * 5)),
        note: Some("waits".into()),
        ..until_signal("go")
    };
    h.suspend(node, claim, suspension).await;
    h.advance(just_before(SECOND * 2));
    assert_eq!(h.expire().await, 0);
    h.advance(MICRO);
    assert_eq!(h.expire().await, 1);
    let record = h.get(id).await;
    let expired = because(State::Failed, Reason::Expired);
    assert_eq!((record.summary.status, record.summary.run_at), (expired, None));
    assert_eq!((record.waits.len(), record.note), (0, None));
    assert_eq!(h.signal(id, "go", "a").await, Signalled::Ended(expired));
    h.advance(SECOND * 5);
    let swept = h.store.promote(9).await.expect("promote");
    assert_eq!((swept.moved, swept.next), (0, None));
}

/// A deadline that passed while the job ran ends it when it is set aside.
pub async fn deadline_that_passed_fails_a_suspended_job(h: &Harness) {
    let id = h.put(h.job_with(|job| job.deadline = Some(When::After(SECOND)))).await;
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    h.advance(SECOND * 2);
    h.suspend(node, claim, until_signal("go")).await;
    assert_eq!(h.get(id).await.summary.deadline, Some(h.now().before(SECOND)));
    assert_eq!(h.expire().await, 1);
    assert_eq!(h.status(id).await, because(State::Failed, Reason::Expired));
}

/// A waiting job that is held waits for nobody but its operator; then it looks for itself what has come.
pub async fn held_job_is_woken_by_nobody(h: &Harness) {
    let suspension =
        Suspension { until: Some(h.now().after(SECOND)), note: Some("waits".into()), ..until_signal("go") };
    let (node, id) = h.waiting(suspension).await;
    h.apply(id, Verb::Hold { why: String::new() }).await;
    let record = h.get(id).await;
    assert_eq!(record.summary.status, because(State::Suspended, Reason::Hold));
    assert_eq!((record.waits.len(), record.note, record.summary.run_at), (0, None, None));
    h.send(id, "go", "a").await;
    h.advance(SECOND * 2);
    let swept = h.store.promote(9).await.expect("promote");
    assert_eq!((swept.moved, swept.next), (0, None));
    assert_eq!(h.status(id).await, because(State::Suspended, Reason::Hold));
    h.apply(id, Verb::Resume).await;
    assert_eq!(h.status(id).await, plain(State::Ready));
    let claimed = h.take(node).await;
    assert_eq!(senders(&h.mail(&claimed).await), ["a"]);
    h.suspend(node, claimed.claim, until_signal("go")).await;
    assert_eq!(h.status(id).await, plain(State::Ready));
}

/// A sleeper that was held runs when it is resumed, and does not sleep on behind its handler's back.
pub async fn resumed_sleeper_runs_at_once(h: &Harness) {
    let (_, id) = h.waiting(until_time(h.now().after(SECOND * 9))).await;
    h.apply(id, Verb::Hold { why: String::new() }).await;
    h.apply(id, Verb::Resume).await;
    let summary = h.get(id).await.summary;
    assert_eq!((summary.status, summary.run_at), (plain(State::Ready), None));
}

/// An operator lets a waiting job go on without what it waits for; it stands in line.
pub async fn waiting_job_is_resumed_by_an_operator(h: &Harness) {
    for suspension in [until_signal("go"), until_time(h.now().after(SECOND * 9))] {
        let (node, id) = h.waiting(suspension).await;
        let before = h.put_one().await;
        h.advance(MICRO);
        h.apply(id, Verb::Resume).await;
        assert_eq!(h.store.promote(9).await.expect("promote").next, None);
        assert_eq!(h.get(id).await.waits, []);
        let claimed = h.claim(node, 2).await;
        assert_eq!(claimed_ids(&claimed), [before, id]);
        for job in claimed {
            h.end(node, job.claim, succeed()).await;
        }
    }
}

/// An operator cancels or fails a waiting job; its wait ends with it.
pub async fn waiting_job_is_ended_by_an_operator(h: &Harness) {
    let ends = [
        (cancel("enough"), because(State::Cancelled, Reason::Operator)),
        (Verb::Fail { why: "enough".into() }, because(State::Failed, Reason::Operator)),
    ];
    for (verb, status) in ends {
        let suspension = Suspension {
            until: Some(h.now().after(SECOND)),
            note: Some("waits".into()),
            ..until_signal("go")
        };
        let (_, id) = h.waiting(suspension).await;
        h.apply(id, verb).await;
        let record = h.get(id).await;
        assert_eq!((record.summary.status, record.summary.run_at), (status, None));
        assert_eq!((record.note.as_deref(), record.waits.len()), (Some("enough"), 0));
        assert_eq!(h.signal(id, "go", "a").await, Signalled::Ended(status));
        assert_eq!(h.store.promote(9).await.expect("promote").next, None);
        h.apply(id, Verb::Retry).await;
        assert_eq!((h.status(id).await, h.get(id).await.note), (plain(State::Ready), None));
        h.apply(id, Verb::Delete).await;
    }
}

/// Every verb does to every kind of suspension what the state machine says.
pub async fn every_verb_on_a_suspension_is_as_the_machine_says(h: &Harness) {
    let why = || "because".to_owned();
    let verbs = [
        Verb::Cancel { why: why() },
        Verb::Retry,
        Verb::Hold { why: String::new() },
        Verb::Resume,
        Verb::Fail { why: why() },
        Verb::Delete,
        Verb::SetPriority(priority(1)),
    ];
    for reason in REASONS {
        for verb in verbs.clone() {
            let until = Some(h.now().after(SECOND));
            let (_, id) = h.waiting(Suspension { reason, until, ..until_signal("go") }).await;
            let (from, before) = (because(State::Suspended, reason), h.find(id).await);
            let expected = match verb.apply(from, false) {
                Ok(to) => Changed::Applied { from, to },
                Err(illegal) => Changed::Illegal(illegal),
            };
            let dry = h.store.change(vec![id], verb.clone(), true).await.expect("change");
            assert_eq!((dry, h.find(id).await), (vec![expected], before), "{verb} from {from}, dry");
            assert_eq!(h.change(id, verb.clone()).await, expected, "{verb} from {from}");
            let status = h.find(id).await.map(|job| job.summary.status);
            match expected {
                Changed::Applied { to, .. } => assert_eq!(status, to, "{verb} from {from}"),
                Changed::Illegal(_) | Changed::Stale | Changed::NotFound => {
                    assert_eq!(status, Some(from), "{verb} from {from}");
                }
            }
            if status.is_some() {
                h.apply(id, Verb::Delete).await;
            }
        }
    }
}

/// A waiting job that gets another priority goes on waiting for the same, and is claimed as it says now.
pub async fn reprioritised_job_keeps_its_waits(h: &Harness) {
    let until = Some(h.now().after(SECOND * 9));
    let suspension = || Suspension { until, note: Some("waits".into()), ..until_signal("go") };
    let (node, first) = h.waiting(suspension()).await;
    let (_, second) = h.waiting(suspension()).await;
    let before = h.get(second).await;
    h.apply(second, Verb::SetPriority(priority(1))).await;
    let mut expected = before;
    expected.summary.priority = priority(1);
    assert_eq!(h.get(second).await, expected);
    for id in [first, second] {
        h.send(id, "go", "a").await;
    }
    assert_eq!(claimed_ids(&h.claim(node, 2).await), [second, first]);
}

/// A unique key is held while its job waits.
pub async fn key_is_held_while_suspended(h: &Harness) {
    let unique = || Some(Unique::new("key"));
    let id = h.put(h.job_with(|job| job.options.unique = unique())).await;
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    h.suspend(node, claim, until_signal("go")).await;
    let other = h.job_with(|job| job.options.unique = unique());
    assert_eq!(h.enqueue(other.clone()).await, Receipt::Existing(id));
    h.send(id, "go", "a").await;
    assert_eq!(h.enqueue(other.clone()).await, Receipt::Existing(id));
    let claim = h.claim_one(node).await;
    h.end(node, claim, succeed()).await;
    assert_eq!(h.enqueue(other).await, Receipt::Created);
}

/// A waiting job is replaced as any other that waits.
pub async fn replace_cancels_a_suspended_holder(h: &Harness) {
    let id = h.put(h.job_with(|job| job.options.unique = Some(Unique::new("key")))).await;
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    let suspension = Suspension { until: Some(h.now().after(SECOND)), ..until_signal("go") };
    h.suspend(node, claim, suspension).await;
    h.put(h.job_with(|job| job.options.unique = Some(Unique::new("key").replace()))).await;
    let replaced = because(State::Cancelled, Reason::Replaced);
    assert_eq!((h.status(id).await, h.get(id).await.waits.len()), (replaced, 0));
    assert_eq!(h.signal(id, "go", "a").await, Signalled::Ended(replaced));
    assert_eq!(h.store.promote(9).await.expect("promote").next, None);
}

/// A job whose records do not fit its code waits for people only: neither time nor messages wake it.
pub async fn drift_is_woken_by_people_only(h: &Harness) {
    let drift = |until| Suspension { reason: Reason::Drift, until, ..until_signal("go") };
    let (node, id) = h.waiting(drift(Some(h.now()))).await;
    let status = because(State::Suspended, Reason::Drift);
    assert_eq!(h.status(id).await, status);
    h.send(id, "go", "a").await;
    h.advance(SECOND);
    assert_eq!((h.promote().await, h.status(id).await), (0, status));
    h.apply(id, Verb::Resume).await;
    let claim = h.claim_one(node).await;
    h.suspend(node, claim, drift(None)).await;
    assert_eq!(h.status(id).await, status);
}

/// A sleeper is woken when its time has come, and not a moment before.
pub async fn sleeper_is_woken_when_its_time_has_come(h: &Harness) {
    for reason in [Reason::Timer, Reason::Signal, Reason::Child, Reason::Approval, Reason::Budget] {
        let at = h.now().after(SECOND);
        let (node, id) = h
            .waiting(Suspension { reason, note: Some("waits".into()), until: Some(at), ..until_signal("go") })
            .await;
        h.advance(just_before(SECOND));
        let swept = h.store.promote(9).await.expect("promote");
        assert_eq!((swept.moved, swept.next), (0, Some(at)));
        h.advance(MICRO);
        let swept = h.store.promote(9).await.expect("promote");
        assert_eq!((swept.moved, swept.next), (1, None));
        let record = h.get(id).await;
        assert_eq!((record.summary.status, record.summary.run_at), (plain(State::Ready), None));
        assert_eq!((record.waits.len(), record.note), (0, None));
        let claim = h.claim_one(node).await;
        assert_eq!((claim.id, claim.number), (id, 2));
        h.end(node, claim, succeed()).await;
    }
}

/// A woken job goes before fresh ones; one that was scheduled and becomes due with it does not.
pub async fn woken_job_goes_before_fresh(h: &Harness) {
    let at = h.now().after(SECOND);
    let scheduled = h.put(h.job_with(|job| job.run = Some(When::At(at)))).await;
    let (node, sleeper) = h.waiting(until_time(at)).await;
    let fresh = h.put_one().await;
    h.advance(SECOND);
    assert_eq!(h.promote().await, 2);
    assert_eq!(claimed_ids(&h.claim(node, 9).await), [sleeper, fresh, scheduled]);
}

/// The next time is the earliest of those of scheduled jobs and of sleepers.
pub async fn next_is_the_earliest_of_timers_and_sleepers(h: &Harness) {
    let start = h.now();
    let next = async || h.store.promote(9).await.expect("promote").next;
    h.put(h.job_with(|job| job.run = Some(When::At(start.after(SECOND * 3))))).await;
    h.waiting(until_time(start.after(SECOND * 5))).await;
    assert_eq!(next().await, Some(start.after(SECOND * 3)));
    h.waiting(until_time(start.after(SECOND * 2))).await;
    assert_eq!(next().await, Some(start.after(SECOND * 2)));
    h.advance(SECOND * 2);
    assert_eq!(next().await, Some(start.after(SECOND * 3)));
    h.advance(SECOND);
    assert_eq!(next().await, Some(start.after(SECOND * 5)));
    h.advance(SECOND * 2);
    assert_eq!(next().await, None);
}

/// One limit counts for scheduled jobs and sleepers together; the longest due go first.
pub async fn promotion_of_sleepers_is_limited(h: &Harness) {
    let start = h.now();
    let at = |seconds: u32| start.after(SECOND * seconds);
    let scheduled = async |at| h.put(h.job_with(|job| job.run = Some(When::At(at)))).await;
    let fourth = scheduled(at(4)).await;
    let (_, third) = h.waiting(until_time(at(3))).await;
    let (_, first) = h.waiting(until_time(at(1))).await;
    let second = scheduled(at(2)).await;
    h.advance(SECOND * 9);
    let mut left = vec![first, second, third, fourth];
    for due in [Some(at(2)), Some(at(3)), Some(at(4)), None] {
        let swept = h.store.promote(1).await.expect("promote");
        assert_eq!((swept.moved, swept.next), (1, due));
        assert_eq!(h.status(left.remove(0)).await, plain(State::Ready));
        for id in &left {
            assert_ne!(h.status(*id).await, plain(State::Ready));
        }
    }
    assert_eq!(h.promote().await, 0);
}

/// A time that has come, or passed, wakes at once.
pub async fn time_that_has_passed_wakes_at_once(h: &Harness) {
    let fresh = h.put(h.job_with(|job| job.run = Some(When::After(MICRO)))).await;
    for ago in [Duration::ZERO, MICRO, Duration::from_hours(24)] {
        let suspension = Suspension { writes: steps(["a"]), ..until_time(h.now().before(ago)) };
        let (node, id) = h.waiting(suspension).await;
        let record = h.get(id).await;
        assert_eq!((record.summary.status, record.summary.run_at), (plain(State::Ready), None));
        let claimed = h.take(node).await;
        assert_eq!((claimed.claim.id, h.keys(&claimed).await), (id, vec!["a".to_owned()]));
        h.end(node, claimed.claim, succeed()).await;
    }
    assert_eq!(h.status(fresh).await, plain(State::Scheduled));
}

/// A job that was woken by a message before its time does not wake again when that comes.
pub async fn message_before_the_time_ends_the_wait(h: &Harness) {
    let until = Some(h.now().after(SECOND));
    let (node, id) = h.waiting(Suspension { until, ..until_signal("go") }).await;
    h.send(id, "go", "a").await;
    h.advance(SECOND);
    let swept = h.store.promote(9).await.expect("promote");
    assert_eq!((swept.moved, swept.next), (0, None));
    let claim = h.claim_one(node).await;
    assert_eq!(h.promote().await, 0);
    h.end(node, claim, succeed()).await;
}

/// A job that time has woken is not woken again by the message it waited for.
pub async fn message_after_the_time_wakes_nobody(h: &Harness) {
    let until = Some(h.now().after(SECOND));
    let (node, id) = h.waiting(Suspension { until, ..until_signal("go") }).await;
    h.advance(SECOND);
    assert_eq!(h.promote().await, 1);
    h.send(id, "go", "a").await;
    let claimed = h.take(node).await;
    assert_eq!((claimed.claim.number, h.mail(&claimed).await.len()), (2, 1));
    assert!(h.claim(node, 9).await.is_empty());
}

/// The furthest time that a job can sleep until is kept.
pub async fn longest_sleep_is_kept(h: &Harness) {
    let at = h.now().after(bounds::DELAY);
    let (_, id) = h.waiting(until_time(at)).await;
    assert_eq!(h.get(id).await.summary.run_at, Some(at));
    h.advance(just_before(bounds::DELAY));
    assert_eq!(h.promote().await, 0);
    h.advance(MICRO);
    assert_eq!(h.promote().await, 1);
}
