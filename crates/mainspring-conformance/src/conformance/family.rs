//! Families: a child starts with a record of its parent, tells it once how it ended, and ends with it if it must.

use mainspring_core::id::{Claim, ClaimBatchNo, JobId, NodeNo};
use mainspring_core::job::{Differs, Outcome, Reason, State, Status, Unique, Verb, When};
use mainspring_core::journal::{
    Child, ChildSummary, MessageBody, OnClose, Recorded, Recording, Subject, Suspension, Timeline, Wait,
};
use mainspring_core::name::Key;
use mainspring_core::store::{Cancellation, Finish, Finished, Retention};
use mainspring_core::{Error, bounds};

use super::workflow_calls::{
    key, mails, reads, recording, starting, steps, suspended, until_child, until_signal, until_time, value,
};
use crate::harness::{
    Harness, SECOND, because, cancel, claimed_ids, fail, fault, kind, plain, priority, queue, retry, stopped,
    succeed, tag,
};

const BY_PARENT: Status = Status::because(State::Cancelled, Reason::Parent);

fn ended(child: JobId, status: Status, message: Option<&str>) -> MessageBody {
    MessageBody::Ended { child, status, result: None, message: message.map(str::to_owned) }
}

/// A child is a job as any other, and knows its parent.
pub async fn child_starts_with_its_record(h: &Harness) {
    let (node, claim) = h.running().await;
    let child = h.child_with(|job| {
        job.kind = kind("k2");
        job.queue = queue("q3");
        job.priority = priority(2);
        job.input = b"[1]".to_vec();
        job.run = Some(When::After(SECOND));
        job.deadline = Some(When::After(SECOND * 9));
        job.options.max_attempts = 3;
        job.options.tags = vec![tag("t")];
        job.options.headers = [("h".to_owned(), "v".to_owned())].into();
    });
    let mut options = child.job.options.clone();
    options.parent = Some(claim.id);
    let id = h.start(node, claim, child).await;
    let record = h.get(id).await;
    assert_eq!(record.summary.status, plain(State::Scheduled));
    assert_eq!((record.summary.kind, record.summary.queue), (kind("k2"), queue("q3")));
    assert_eq!((record.summary.priority, record.input), (priority(2), b"[1]".to_vec()));
    assert_eq!(record.summary.run_at, Some(h.now().after(SECOND)));
    assert_eq!(record.summary.deadline, Some(h.now().after(SECOND * 9)));
    assert_eq!((&record.summary.options, record.summary.created_at), (&options, h.now()));
    h.advance(SECOND);
    assert_eq!(h.promote().await, 1);
    let claimed = h.take_in(node, "q3").await;
    assert_eq!((claimed.claim.id, claimed.claim.number, claimed.options), (id, 1, options));
}

/// A child that is due now is claimed as any other job of its queue.
pub async fn children_stand_in_line(h: &Harness) {
    let before = h.put(h.job_with(|job| job.queue = queue("q2"))).await;
    let (node, claim) = h.running().await;
    h.advance(SECOND);
    let low = h.child();
    let high = h.child_with(|job| job.priority = priority(1));
    let ids = [high.job.id, before, low.job.id];
    assert_eq!(h.record_all(node, vec![starting(claim, vec![low, high])]).await, [Recorded::Stored]);
    h.advance(SECOND);
    h.put(h.job_with(|job| job.queue = queue("q2"))).await;
    let mut request = h.request(node, 3);
    request.queues = vec![(queue("q2"), 3)];
    assert_eq!(claimed_ids(&h.claim_as(request).await), ids);
}

/// A repeat of a record starts no child again, whatever has become of it.
pub async fn child_is_started_once(h: &Harness) {
    let (node, claim) = h.running().await;
    let child = h.child();
    let id = child.job.id;
    let start = || starting(claim, vec![child.clone(), child.clone()]);
    assert_eq!(h.record_all(node, vec![start(), start()]).await, [Recorded::Stored; 2]);
    assert_eq!(h.counts().await.total(State::Ready), 1);
    let of_child = h.take_in(node, "q2").await.claim;
    assert_eq!(h.record_all(node, vec![start()]).await, [Recorded::Stored]);
    assert_eq!(h.status(id).await, plain(State::Running));
    h.end(node, of_child, succeed()).await;
    let before = h.get(id).await;
    assert_eq!(h.record_all(node, vec![start()]).await, [Recorded::Stored]);
    assert_eq!(h.get(id).await, before);
    assert_eq!((h.timeline(claim.id).await.children.len(), h.messages(claim).await.len()), (1, 1));
}

/// A job that was there before does not become a child of whoever names its id.
pub async fn job_that_is_there_does_not_become_a_child(h: &Harness) {
    let stranger = h.put(h.job_with(|job| job.queue = queue("q2"))).await;
    let (node, claim) = h.running().await;
    let before = h.get(stranger).await;
    let child = h.child_with(|job| job.id = stranger);
    let mut recording = starting(claim, vec![child]);
    recording.writes.entries.push(value("beside", "1"));
    let taken = Recorded::Taken { child: stranger, differs: Differs::Parent };
    assert_eq!(h.record_all(node, vec![recording]).await, [taken]);
    let other = h.child_with(|job| (job.id, job.kind) = (stranger, kind("k2")));
    let taken = Recorded::Taken { child: stranger, differs: Differs::Kind };
    // Nothing of it is started, in whatever order they come.
    let fresh = h.child();
    for children in [vec![other.clone(), fresh.clone()], vec![fresh.clone(), other]] {
        assert_eq!(h.record_all(node, vec![starting(claim, children)]).await, [taken]);
    }
    // Of several, the first is named.
    let same = h.child_with(|job| job.id = stranger);
    let both = vec![same, h.child_with(|job| (job.id, job.kind) = (stranger, kind("k2")))];
    let taken = Recorded::Taken { child: stranger, differs: Differs::Parent };
    assert_eq!(h.record_all(node, vec![starting(claim, both)]).await, [taken]);
    assert_eq!((h.find(fresh.job.id).await, h.timeline(claim.id).await.entries), (None, Vec::new()));
    assert_eq!(h.get(stranger).await, before);
    assert!(h.timeline(claim.id).await.children.is_empty());
    h.end_child(node, succeed()).await;
    assert!(h.messages(claim).await.is_empty());
}

/// A child that one entry has started is not that of another one: whoever waited for it there would wait for ever.
pub async fn child_of_another_entry_is_not_started_again(h: &Harness) {
    let (node, claim) = h.running().await;
    let child = h.child();
    h.start(node, claim, child.clone()).await;
    let mut again = starting(claim, vec![child.clone()]);
    again.writes.entries[0].key = key("again");
    let taken = Recorded::Taken { child: child.job.id, differs: Differs::Step };
    assert_eq!(h.record_all(node, vec![again.clone()]).await, [taken]);
    let both = vec![starting(claim, vec![child.clone()]), again];
    assert_eq!(h.record_all(node, both).await, [Recorded::Stored, taken]);
    // In one batch, before any of it is stored.
    let fresh = h.child();
    let mut again = starting(claim, vec![fresh.clone()]);
    again.writes.entries[0].key = key("again");
    let both = vec![starting(claim, vec![fresh.clone()]), again];
    let taken = Recorded::Taken { child: fresh.job.id, differs: Differs::Step };
    assert_eq!(h.record_all(node, both).await, [Recorded::Stored, taken]);
    assert_eq!(h.timeline(claim.id).await.children.len(), 2);
    h.assert_sound().await;
}

/// A recording whose child's id is taken is refused by itself; under a claim that is lost, it is that which is told.
pub async fn taken_child_does_not_fail_its_batch(h: &Harness) {
    let stranger = h.put(h.job_with(|job| job.queue = queue("q2"))).await;
    let (node, claim) = h.running().await;
    let (child, bad) = (h.child(), h.child_with(|job| job.id = stranger));
    let old = Claim { number: claim.number + 1, ..claim };
    let batch = vec![
        starting(claim, vec![bad.clone()]),
        Recording { claim, writes: steps(["one"]), children: Vec::new() },
        starting(claim, vec![child.clone()]),
    ];
    let taken = Recorded::Taken { child: stranger, differs: Differs::Parent };
    assert_eq!(h.record_all(node, batch).await, [taken, Recorded::Stored, Recorded::Stored]);
    let keys: Vec<Key> = h.timeline(claim.id).await.entries.into_iter().map(|entry| entry.key).collect();
    assert_eq!(keys, [key("one"), key(&child.job.id.to_string())]);
    assert_eq!(h.record_all(node, vec![starting(old, vec![bad])]).await, [Recorded::LeaseLost]);
    assert_eq!(h.timeline(claim.id).await.children.len(), 1);
    h.assert_sound().await;
}

/// A child cannot have a unique key, and nothing of such a batch is done.
pub async fn child_with_a_unique_key_is_refused(h: &Harness) {
    h.put_many(2).await;
    let node = h.node().await;
    let claims: Vec<_> = h.claim(node, 2).await.into_iter().map(|job| job.claim).collect();
    let good = h.child();
    let bad = h.child_with(|job| job.options.unique = Some("key".into()));
    let ids = [good.job.id, bad.job.id];
    let batch = vec![
        recording(claims[0], steps(["a"])),
        starting(claims[0], vec![good]),
        starting(claims[1], vec![bad]),
    ];
    let answer = h.store.record(node, batch).await;
    assert!(matches!(answer, Err(Error::Invalid { .. })), "{answer:?}");
    for claim in claims {
        assert!(h.timeline(claim.id).await.entries.is_empty());
    }
    for id in ids {
        assert_eq!(h.find(id).await, None);
    }
}

/// Children count for the bound of lines as all jobs do; nothing of a batch beyond it is done.
pub async fn lines_of_children_are_bounded(h: &Harness) {
    let (node, claim) = h.running().await;
    let kinds: Vec<usize> = (1..bounds::LINES).collect();
    for numbers in kinds.chunks(bounds::BATCH) {
        let of_kind = |number: &usize| h.job_with(|job| job.kind = kind(&format!("kind-{number}")));
        h.enqueue_all(numbers.iter().map(of_kind).collect()).await;
    }
    let child = h.child();
    let id = child.job.id;
    let batch = vec![recording(claim, steps(["a"])), starting(claim, vec![child])];
    let answer = h.store.record(node, batch).await;
    assert!(matches!(answer, Err(Error::TooLarge { .. })), "{answer:?}");
    assert_eq!((h.timeline(claim.id).await.entries.len(), h.find(id).await), (0, None));
    h.start(node, claim, h.child_with(|job| job.queue = queue("q"))).await;
}

/// One recording starts as many children as a batch holds, and they are cancelled together.
pub async fn many_children_start_and_end_together(h: &Harness) {
    let (node, claim) = h.running().await;
    let children: Vec<_> = (0..bounds::BATCH).map(|_| h.child()).collect();
    let ids: Vec<_> = children.iter().map(|child| child.job.id).collect();
    assert_eq!(h.record_all(node, vec![starting(claim, children)]).await, [Recorded::Stored]);
    assert_eq!(h.counts().await.total(State::Ready), bounds::BATCH as u64);
    let started: Vec<_> = h.timeline(claim.id).await.children.into_iter().map(|kin| kin.id).collect();
    assert_eq!(started, ids);
    h.end(node, claim, succeed()).await;
    assert_eq!(h.counts().await.total(State::Cancelled), bounds::BATCH as u64);
}

/// The end of a child wakes the parent that waits for it, and tells what came of it.
pub async fn end_of_a_child_wakes_its_parent(h: &Harness) {
    let (node, claim, child) = h.parent().await;
    h.suspend(node, claim, until_child(child)).await;
    h.advance(SECOND);
    h.end_child(node, Outcome::Succeed { result: Some(b"42".as_slice().into()) }).await;
    let record = h.get(claim.id).await;
    assert_eq!((record.summary.status, record.waits.len()), (plain(State::Ready), 0));
    let claimed = h.take(node).await;
    let messages = h.mail(&claimed).await;
    assert_eq!((messages.len(), messages[0].at), (1, h.now()));
    let (status, result) = (plain(State::Succeeded), Some(b"42".to_vec()));
    assert_eq!(messages[0].body, MessageBody::Ended { child, status, result, message: None });
}

/// The end of a child wakes nobody who waits for another.
pub async fn end_of_another_child_wakes_nobody(h: &Harness) {
    let (node, claim, first) = h.parent().await;
    let second = h.start(node, claim, h.child()).await;
    h.suspend(node, claim, until_child(second)).await;
    h.end_child(node, succeed()).await;
    assert_eq!(h.status(claim.id).await, because(State::Suspended, Reason::Child));
    h.end_child(node, succeed()).await;
    let claimed = h.take(node).await;
    let told: Vec<_> = h.mail(&claimed).await.into_iter().map(|message| message.body.subject()).collect();
    assert_eq!(told, [Subject::Child(first), Subject::Child(second)]);
}

/// A parent that waits for any of its children is woken by the first that ends.
pub async fn first_child_to_end_is_enough(h: &Harness) {
    let (node, claim, first) = h.parent().await;
    let second = h.start(node, claim, h.child()).await;
    let waits = [first, second].map(|child| Wait { subject: Subject::Child(child), need: 1 }).to_vec();
    h.suspend(node, claim, Suspension { waits, ..until_child(first) }).await;
    h.apply(second, cancel("")).await;
    assert_eq!(h.status(claim.id).await, plain(State::Ready));
}

/// A parent that runs while its child ends finds the message, and does not sleep past it.
pub async fn child_that_ended_before_the_suspension_wakes_it(h: &Harness) {
    let (node, claim, child) = h.parent().await;
    h.end_child(node, succeed()).await;
    assert_eq!(mails(h.messages(claim).await), [ended(child, plain(State::Succeeded), None)]);
    h.suspend(node, claim, until_child(child)).await;
    assert_eq!(h.status(claim.id).await, plain(State::Ready));
    let claim = h.claim_one(node).await;
    h.record(node, claim, reads(&h.messages(claim).await)).await;
    h.suspend(node, claim, until_child(child)).await;
    assert_eq!(h.status(claim.id).await, because(State::Suspended, Reason::Child));
}

/// A parent that waits for a node, for a time or for an operator finds the message when it runs.
pub async fn parent_that_does_not_run_finds_the_message(h: &Harness) {
    let (node, claim, child) = h.parent().await;
    h.end(node, claim, retry(SECOND)).await;
    h.end_child(node, succeed()).await;
    assert_eq!(h.status(claim.id).await, plain(State::Scheduled));
    h.advance(SECOND);
    h.promote().await;
    let claimed = h.take(node).await;
    let told = ended(child, plain(State::Succeeded), None);
    assert_eq!(mails(h.mail(&claimed).await), std::slice::from_ref(&told));
    let second = h.start(node, claimed.claim, h.child()).await;
    h.end(node, claimed.claim, Outcome::Release).await;
    h.apply(claim.id, Verb::Hold { why: String::new() }).await;
    h.end_child(node, succeed()).await;
    assert_eq!(h.status(claim.id).await, because(State::Suspended, Reason::Hold));
    h.apply(claim.id, Verb::Resume).await;
    let claimed = h.take(node).await;
    assert_eq!(mails(h.mail(&claimed).await), [told, ended(second, plain(State::Succeeded), None)]);
}

/// However a claim of a child ends the child, its parent is told.
pub async fn every_end_of_a_running_child_is_told(h: &Harness) {
    let by_operator = because(State::Cancelled, Reason::Operator);
    let handler = Outcome::Cancel { reason: Reason::Handler, why: "own".into() };
    let expired = Outcome::Fail { reason: Reason::Expired, fault: fault("late") };
    let ends = [
        (succeed(), false, plain(State::Succeeded), None),
        (fail(), false, because(State::Failed, Reason::Exhausted), Some("no")),
        (expired, false, because(State::Failed, Reason::Expired), Some("late")),
        (handler, false, because(State::Cancelled, Reason::Handler), Some("own")),
        (stopped("enough"), true, by_operator, Some("enough")),
        (Outcome::Release, true, by_operator, Some("flag")),
        (Outcome::Snooze { after: SECOND }, true, by_operator, Some("flag")),
        (retry(SECOND), true, by_operator, Some("flag")),
    ];
    for (outcome, flagged, status, message) in ends {
        let (node, claim, child) = h.parent().await;
        h.suspend(node, claim, until_child(child)).await;
        let of_child = h.take_in(node, "q2").await.claim;
        if flagged {
            h.apply(child, cancel("flag")).await;
            assert_eq!(h.status(claim.id).await, because(State::Suspended, Reason::Child));
        }
        h.end(node, of_child, outcome.clone()).await;
        let claimed = h.take(node).await;
        assert_eq!(mails(h.mail(&claimed).await), [ended(child, status, message)], "{outcome:?}");
        h.end(node, claimed.claim, succeed()).await;
    }
}

/// A child that is cancelled because its node was lost, went, or lost track of it is told as any other.
pub async fn end_of_a_flagged_child_without_its_node_is_told(h: &Harness) {
    for way in ["rescue", "retire", "disown"] {
        let (node, claim, child) = h.parent().await;
        h.suspend(node, claim, until_child(child)).await;
        let other = h.node().await;
        h.take_in(other, "q2").await;
        h.apply(child, cancel("flag")).await;
        match way {
            "rescue" => assert_eq!(h.lose(other).await.returned, 0),
            "retire" => assert_eq!(h.store.retire(other).await.expect("retire"), 1),
            _ => {
                assert_eq!(h.store.disown(other, ClaimBatchNo(1), Vec::new()).await.expect("disown"), 1);
            }
        }
        let node = h.node().await;
        let claimed = h.take(node).await;
        let told = ended(child, because(State::Cancelled, Reason::Operator), Some("flag"));
        assert_eq!(mails(h.mail(&claimed).await), [told], "{way}");
        h.end(node, claimed.claim, succeed()).await;
    }
}

/// However a child ends that does not run, its parent is told.
pub async fn every_end_of_a_waiting_child_is_told(h: &Harness) {
    let by_operator = because(State::Cancelled, Reason::Operator);
    for way in ["cancel", "cancel without a word", "delete", "expire", "fail"] {
        let (node, claim) = h.running().await;
        let child = h.child_with(|job| job.deadline = Some(When::After(SECOND)));
        let child = h.start(node, claim, child).await;
        h.suspend(node, claim, until_child(child)).await;
        let (status, message) = match way {
            "cancel" => {
                h.apply(child, cancel("enough")).await;
                (by_operator, Some("enough"))
            }
            "cancel without a word" => {
                h.apply(child, cancel("")).await;
                (by_operator, None)
            }
            "delete" => {
                h.apply(child, Verb::Delete).await;
                (by_operator, None)
            }
            "expire" => {
                h.advance(SECOND);
                assert_eq!(h.expire().await, 1);
                (because(State::Failed, Reason::Expired), None)
            }
            _ => {
                h.apply(child, Verb::Hold { why: String::new() }).await;
                h.apply(child, Verb::Fail { why: "broken".into() }).await;
                (because(State::Failed, Reason::Operator), Some("broken"))
            }
        };
        let claimed = h.take(node).await;
        assert_eq!(mails(h.mail(&claimed).await), [ended(child, status, message)], "{way}");
        h.end(node, claimed.claim, succeed()).await;
    }
}

/// What is told is the reason that was given, else the last error; of a success neither.
pub async fn reason_of_an_end_is_the_note_or_the_last_error(h: &Harness) {
    for (way, message) in
        [("cancel", Some("enough")), ("silent", Some("no")), ("delete", Some("no")), ("succeed", None)]
    {
        let (node, claim, child) = h.parent().await;
        let of_child = h.take_in(node, "q2").await.claim;
        h.end(node, of_child, Outcome::Retry { after: SECOND, fault: fault("first") }).await;
        h.advance(SECOND);
        h.promote().await;
        h.end_child(node, retry(SECOND)).await;
        assert!(h.messages(claim).await.is_empty(), "an attempt is no end");
        match way {
            "cancel" => h.apply(child, cancel("enough")).await,
            "silent" => h.apply(child, cancel("")).await,
            "delete" => h.apply(child, Verb::Delete).await,
            _ => {
                h.advance(SECOND);
                h.promote().await;
                h.end_child(node, succeed()).await;
            }
        }
        let messages = mails(h.messages(claim).await);
        let [MessageBody::Ended { message: told, .. }] = &messages[..] else {
            panic!("one end: {messages:?}")
        };
        assert_eq!(told.as_deref(), message, "{way}");
        h.end(node, claim, succeed()).await;
    }
}

/// A child that waits, crashes or is tried again has not ended.
pub async fn child_that_goes_on_tells_nothing(h: &Harness) {
    let (node, claim, child) = h.parent().await;
    let pauses = [
        Outcome::Release,
        retry(SECOND),
        Outcome::Snooze { after: SECOND },
        suspended(until_time(h.now().after(SECOND))),
        suspended(until_signal("go")),
    ];
    for pause in pauses {
        h.end_child(node, pause).await;
        h.advance(SECOND);
        h.promote().await;
    }
    h.apply(child, Verb::Hold { why: String::new() }).await;
    assert!(h.messages(claim).await.is_empty());
}

/// A child tells its end once: an operator's retry, and another end, tell nothing new.
pub async fn end_is_told_once(h: &Harness) {
    let (node, claim, child) = h.parent().await;
    h.end_child(node, fail()).await;
    let told = h.messages(claim).await;
    h.apply(child, Verb::Retry).await;
    h.end_child(node, succeed()).await;
    assert_eq!(h.status(child).await, plain(State::Succeeded));
    assert_eq!(h.messages(claim).await, told);
    // Neither when the first was read.
    let second = h.start(node, claim, h.child()).await;
    h.end_child(node, fail()).await;
    h.record(node, claim, reads(&h.messages(claim).await)).await;
    h.apply(second, Verb::Retry).await;
    h.suspend(node, claim, until_child(second)).await;
    h.end_child(node, succeed()).await;
    assert_eq!(h.status(claim.id).await, because(State::Suspended, Reason::Child));
    assert!(h.messages(claim).await.is_empty());
}

/// A repeated finish of a child tells nothing again.
pub async fn repeated_end_is_told_once(h: &Harness) {
    let (node, claim, _) = h.parent().await;
    let of_child = h.take_in(node, "q2").await.claim;
    for _ in 0..2 {
        h.end(node, of_child, succeed()).await;
    }
    assert_eq!(h.messages(claim).await.len(), 1);
}

/// A parent that has ended is told all the same: it may be run again, and would otherwise wait for ever.
pub async fn parent_that_has_ended_is_told_for_later(h: &Harness) {
    let (node, claim) = h.running().await;
    let child = Child { on_close: OnClose::Abandon, ..h.child() };
    let child = h.start(node, claim, child).await;
    h.end(node, claim, fail()).await;
    h.end_child(node, succeed()).await;
    let told = ended(child, plain(State::Succeeded), None);
    assert_eq!(mails(h.timeline(claim.id).await.inbox.messages), std::slice::from_ref(&told));
    h.apply(claim.id, Verb::Retry).await;
    let claimed = h.take(node).await;
    assert_eq!(mails(h.mail(&claimed).await), [told]);
}

/// A child whose parent is gone ends quietly.
pub async fn child_of_a_parent_that_is_gone_ends_quietly(h: &Harness) {
    for pruned in [true, false] {
        let (node, claim) = h.running().await;
        let child = h.start(node, claim, Child { on_close: OnClose::Abandon, ..h.child() }).await;
        if pruned {
            h.end(node, claim, succeed()).await;
            h.advance(Retention::default().succeeded.0);
            assert_eq!(h.prune().await, 1);
        } else {
            h.end(node, claim, Outcome::Release).await;
            h.apply(claim.id, Verb::Delete).await;
        }
        assert_eq!(h.find(claim.id).await, None);
        assert_eq!(h.get(child).await.summary.options.parent, Some(claim.id));
        // A job that takes the id of the parent has no such child.
        let anew = h.put(h.job_with(|job| job.id = claim.id)).await;
        h.end_child(node, succeed()).await;
        assert_eq!(h.timeline(anew).await, Timeline::default());
        h.apply(anew, Verb::Delete).await;
    }
}

/// Brings a parent to its end in some way.
async fn end_parent(h: &Harness, way: &str, child: impl AsyncFnOnce(NodeNo, Claim)) {
    let keyed = h.job_with(|job| {
        job.deadline = Some(When::After(SECOND));
        job.options.unique = Some(Unique::new(way));
    });
    h.put(keyed).await;
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    child(node, claim).await;
    match way {
        "succeed" => return h.end(node, claim, succeed()).await,
        "fail" => return h.end(node, claim, fail()).await,
        "stop" => return h.end(node, claim, stopped("")).await,
        "flagged" => {
            h.apply(claim.id, cancel("")).await;
            return h.suspend(node, claim, until_signal("go")).await;
        }
        "retire" => {
            h.apply(claim.id, cancel("")).await;
            assert!(h.store.retire(node).await.expect("retire") > 0);
            return;
        }
        _ => h.suspend(node, claim, until_signal("go")).await,
    }
    match way {
        "replace" => {
            let unique = Some(Unique::new(way).replace());
            let other = h.put(h.job_with(|job| job.options.unique = unique)).await;
            h.apply(other, Verb::Delete).await;
        }
        "cancel" => h.apply(claim.id, cancel("")).await,
        "fail by an operator" => h.apply(claim.id, Verb::Fail { why: "no".into() }).await,
        "delete" => h.apply(claim.id, Verb::Delete).await,
        _ => {
            h.advance(SECOND);
            assert_eq!(h.expire().await, 1);
        }
    }
}

const WAYS: [&str; 10] = [
    "succeed",
    "fail",
    "stop",
    "flagged",
    "retire",
    "replace",
    "cancel",
    "fail by an operator",
    "delete",
    "expire",
];

/// However a parent ends, its children that wait are cancelled with it, in whatever way they wait.
pub async fn waiting_children_end_with_their_parent(h: &Harness) {
    for way in WAYS {
        let mut ids = Vec::new();
        end_parent(h, way, async |node, claim| {
            let sleeper = h.start(node, claim, h.child()).await;
            h.end_child(node, suspended(until_time(h.now().after(SECOND * 9)))).await;
            let waiting = h.start(node, claim, h.child()).await;
            h.end_child(node, suspended(until_signal("go"))).await;
            let held = h.start(node, claim, h.child()).await;
            h.apply(held, Verb::Hold { why: String::new() }).await;
            let ready = h.start(node, claim, h.child()).await;
            let later = h.child_with(|job| job.run = Some(When::After(SECOND * 9)));
            let scheduled = h.start(node, claim, later).await;
            ids.extend([sleeper, waiting, held, ready, scheduled]);
        })
        .await;
        for id in ids {
            let record = h.get(id).await;
            assert_eq!((record.summary.status, record.note), (BY_PARENT, None), "{way}");
            assert_eq!((record.summary.finished_at, record.summary.run_at), (Some(h.now()), None), "{way}");
        }
        assert_eq!(h.store.promote(9).await.expect("promote").next, None, "{way}");
    }
}

/// However a parent ends, its children that run are asked to stop.
pub async fn running_children_are_flagged_when_their_parent_ends(h: &Harness) {
    for way in WAYS {
        let mut claims = Vec::new();
        let other = h.node().await;
        end_parent(h, way, async |node, claim| {
            h.start(node, claim, h.child()).await;
            claims.push(h.take_in(other, "q2").await.claim);
        })
        .await;
        let child = claims[0];
        let summary = h.get(child.id).await.summary;
        assert_eq!((summary.status, summary.cancelling), (plain(State::Running), true), "{way}");
        assert_eq!(h.renew(other).await.cancel, [(child, Cancellation::orphan())], "{way}");
        h.end(other, child, Outcome::Release).await;
        let record = h.get(child.id).await;
        assert_eq!(record.summary.status, BY_PARENT, "{way}");
        assert_eq!(record.note.as_deref(), Some("its parent ended"), "{way}");
    }
}

/// However a parent ends, children that are to go on by themselves do.
pub async fn abandoned_children_go_on(h: &Harness) {
    for way in WAYS {
        let mut ids = Vec::new();
        end_parent(h, way, async |node, claim| {
            for _ in 0..2 {
                ids.push(h.start(node, claim, Child { on_close: OnClose::Abandon, ..h.child() }).await);
            }
        })
        .await;
        assert_eq!(h.status(ids[0]).await, plain(State::Ready), "{way}");
        let node = h.node().await;
        for id in ids {
            h.end_child(node, succeed()).await;
            assert_eq!(h.status(id).await, plain(State::Succeeded), "{way}");
        }
    }
}

/// A child that has ended stays as it ended, and one that was to be cancelled keeps the first reason.
pub async fn end_of_a_parent_changes_no_other_end(h: &Harness) {
    let (node, claim, ended) = h.parent().await;
    h.end_child(node, succeed()).await;
    let flagged = h.start(node, claim, h.child()).await;
    let of_flagged = h.take_in(node, "q2").await.claim;
    h.apply(flagged, cancel("first")).await;
    let before = h.get(ended).await;
    h.end(node, claim, succeed()).await;
    assert_eq!(h.get(ended).await, before);
    assert_eq!(h.renew(node).await.cancel, [(of_flagged, Cancellation::operator("first"))]);
    // What a handler comes to while it is asked to stop counts.
    h.end(node, of_flagged, succeed()).await;
    assert_eq!(h.status(flagged).await, plain(State::Succeeded));
}

/// A parent that goes on does not end its children.
pub async fn children_outlive_attempts_of_their_parent(h: &Harness) {
    let (node, claim, child) = h.parent().await;
    h.end(node, claim, retry(SECOND)).await;
    h.advance(SECOND);
    h.promote().await;
    h.crash(3).await;
    assert_eq!(h.status(claim.id).await, because(State::Suspended, Reason::Quarantine));
    h.apply(claim.id, Verb::Resume).await;
    h.apply(claim.id, Verb::Hold { why: String::new() }).await;
    assert_eq!(h.status(child).await, plain(State::Ready));
}

/// An end goes down through children that wait, and stops where one is to go on by itself.
pub async fn grandchildren_end_with_their_grandparent(h: &Harness) {
    let (node, claim, child) = h.parent().await;
    let of_child = h.take_in(node, "q2").await.claim;
    let in_q3 = |on_close| Child { on_close, ..h.child_with(|job| job.queue = queue("q3")) };
    let grandchild = h.start(node, of_child, in_q3(OnClose::Cancel)).await;
    let of_grandchild = h.take_in(node, "q3").await.claim;
    let last = h.start(node, of_grandchild, in_q3(OnClose::Cancel)).await;
    h.suspend(node, of_grandchild, until_child(last)).await;
    let free = h.start(node, of_child, in_q3(OnClose::Abandon)).await;
    h.suspend(node, of_child, until_child(grandchild)).await;
    h.end(node, claim, succeed()).await;
    for id in [child, grandchild, last] {
        assert_eq!(h.status(id).await, BY_PARENT);
    }
    assert_eq!(h.status(free).await, plain(State::Ready));
    for id in [child, grandchild] {
        assert_eq!(h.timeline(id).await.inbox.messages.len(), 1, "who has ended is told all the same");
    }
}

/// A child that runs is asked to stop; its own children end when it does.
pub async fn grandchildren_outlive_a_child_that_runs(h: &Harness) {
    let (node, claim, child) = h.parent().await;
    let of_child = h.take_in(node, "q2").await.claim;
    let grandchild = h.start(node, of_child, h.child_with(|job| job.queue = queue("q3"))).await;
    h.end(node, claim, succeed()).await;
    assert_eq!(h.status(grandchild).await, plain(State::Ready));
    h.suspend(node, of_child, until_child(grandchild)).await;
    assert_eq!([h.status(child).await, h.status(grandchild).await], [BY_PARENT; 2]);
}

/// A parent and a child whose deadlines have both passed both end, in whatever order the sweep finds them.
pub async fn late_parent_and_late_child_both_end(h: &Harness) {
    for (of_parent, of_child) in [(1, 2), (2, 1), (1, 1)] {
        h.put(h.job_with(|job| job.deadline = Some(When::After(SECOND * of_parent)))).await;
        let node = h.node().await;
        let claim = h.claim_one(node).await;
        let child = h.child_with(|job| job.deadline = Some(When::After(SECOND * of_child)));
        let child = h.start(node, claim, child).await;
        h.suspend(node, claim, until_child(child)).await;
        h.advance(SECOND * 3);
        let swept = h.store.expire(9).await.expect("expire");
        assert!((1..=2).contains(&swept.moved) && swept.next.is_none(), "{swept:?}");
        let expired = because(State::Failed, Reason::Expired);
        assert_eq!(h.status(claim.id).await, expired);
        assert!([expired, BY_PARENT].contains(&h.status(child).await));
        assert_eq!(h.expire().await, 0);
    }
}

/// A parent and its child that end in one call both end as they say, whichever is named first.
pub async fn parent_and_child_finish_in_one_call(h: &Harness) {
    for parent_first in [true, false] {
        let (node, claim, child) = h.parent().await;
        let of_child = h.take_in(node, "q2").await.claim;
        let mut batch = [claim, of_child].map(|claim| Finish { claim, outcome: succeed() }).to_vec();
        if !parent_first {
            batch.reverse();
        }
        assert_eq!(h.store.finish(node, batch).await.expect("finish"), [Finished::Applied; 2]);
        for id in [claim.id, child] {
            assert_eq!(h.status(id).await, plain(State::Succeeded));
        }
    }
}

/// A parent and its child that an operator ends or deletes in one call are ended or gone, whichever is named first.
pub async fn parent_and_child_are_changed_in_one_call(h: &Harness) {
    for (verb, parent_first) in
        [(cancel(""), true), (cancel(""), false), (Verb::Delete, true), (Verb::Delete, false)]
    {
        let (node, claim, child) = h.parent().await;
        h.suspend(node, claim, until_child(child)).await;
        let ids = if parent_first { vec![claim.id, child] } else { vec![child, claim.id] };
        let answers = h.store.change(ids.clone(), verb.clone(), false).await.expect("change");
        assert_eq!(answers.len(), 2);
        for id in ids {
            let state = h.find(id).await.map(|job| job.summary.status.state);
            assert_eq!(state, (verb != Verb::Delete).then_some(State::Cancelled), "{verb}");
        }
    }
}

/// The deletion of an ended parent changes nothing for its children.
pub async fn deleting_an_ended_parent_changes_no_child(h: &Harness) {
    let (node, claim, child) = h.parent().await;
    h.end(node, claim, fail()).await;
    h.apply(child, Verb::Retry).await;
    h.apply(claim.id, Verb::Delete).await;
    assert_eq!(h.status(child).await, plain(State::Ready));
    h.end_child(node, succeed()).await;
    assert_eq!(h.status(child).await, plain(State::Succeeded));
}

/// A parent that was run again and ends again ends the children that were run again too.
pub async fn parent_that_ends_again_ends_its_children_again(h: &Harness) {
    let (node, claim, child) = h.parent().await;
    h.end(node, claim, fail()).await;
    h.apply(claim.id, Verb::Retry).await;
    h.apply(child, Verb::Retry).await;
    let again = h.claim_one(node).await;
    h.end(node, again, succeed()).await;
    assert_eq!(h.status(child).await, BY_PARENT);
}

/// A parent's timeline tells of its children as long as they are known, in the order in which they started.
pub async fn story_tells_of_children(h: &Harness) {
    let (node, claim, first) = h.parent().await;
    let second = h.start(node, claim, Child { on_close: OnClose::Abandon, ..h.child() }).await;
    let third = h.start(node, claim, h.child()).await;
    h.end_child(node, fail()).await;
    let kin = |id, status, on_close| ChildSummary { id, status, on_close };
    let failed = because(State::Failed, Reason::Exhausted);
    let expected = [
        kin(first, failed, OnClose::Cancel),
        kin(second, plain(State::Ready), OnClose::Abandon),
        kin(third, plain(State::Ready), OnClose::Cancel),
    ];
    assert_eq!(h.timeline(claim.id).await.children, expected);
    h.apply(second, Verb::Delete).await;
    assert_eq!(h.timeline(claim.id).await.children, [expected[0].clone(), expected[2].clone()]);
    h.advance(Retention::default().failed.0);
    assert_eq!(h.prune().await, 1);
    assert_eq!(h.timeline(claim.id).await.children, [expected[2].clone()]);
    assert_eq!(h.messages(claim).await.len(), 2);
}
