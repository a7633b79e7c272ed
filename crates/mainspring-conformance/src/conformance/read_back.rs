//! Ends and timelines: what those who wait for a job see of it, and what people see of its past.

use mainspring_core::bounds;
use mainspring_core::id::JobId;
use mainspring_core::job::{Outcome, Reason, State, Verb, When};
use mainspring_core::journal::{Entry, EntryKind, JobEnd, Timeline, Value, Written};
use mainspring_core::store::Retention;

use super::workflow_calls::{key, senders, signal, suspended, until_signal, until_time, value, writes};
use crate::harness::{Harness, SECOND, because, cancel, fail, fault, plain, retry, succeed};

async fn job_end(h: &Harness, id: JobId) -> JobEnd {
    let mut job_ends = h.store.job_ends(vec![id]).await.expect("job_ends");
    assert_eq!(job_ends.len(), 1, "one answer per id");
    job_ends.remove(0)
}

fn ended(state: State, reason: Reason, message: Option<&str>) -> JobEnd {
    JobEnd::Ended { status: because(state, reason), result: None, message: message.map(str::to_owned) }
}

/// A job that was never there, or is gone, is missing.
pub async fn unknown_job_is_missing(h: &Harness) {
    assert_eq!(job_end(h, h.id()).await, JobEnd::Missing);
    let id = h.put_one().await;
    h.apply(id, Verb::Delete).await;
    assert_eq!(job_end(h, id).await, JobEnd::Missing);
    let (node, claim) = h.running().await;
    h.end(node, claim, succeed()).await;
    h.advance(Retention::default().succeeded.0);
    h.prune().await;
    assert_eq!(job_end(h, claim.id).await, JobEnd::Missing);
    assert_eq!(h.store.timeline(claim.id).await.expect("timeline"), None);
}

/// A job is open in every state that is no end.
pub async fn job_is_open_until_it_ends(h: &Harness) {
    let scheduled = h.put(h.job_with(|job| job.run = Some(When::After(SECOND)))).await;
    assert_eq!(job_end(h, scheduled).await, JobEnd::Open);
    let (node, claim) = h.running().await;
    assert_eq!(job_end(h, claim.id).await, JobEnd::Open);
    h.apply(claim.id, cancel("")).await;
    assert_eq!(job_end(h, claim.id).await, JobEnd::Open);
    h.end(node, claim, succeed()).await;
    let pauses = [
        Outcome::Release,
        retry(SECOND),
        Outcome::Snooze { after: SECOND },
        suspended(until_signal("go")),
        suspended(until_time(h.now().after(SECOND * 9))),
    ];
    for pause in pauses {
        let (node, claim) = h.running().await;
        h.end(node, claim, pause.clone()).await;
        assert_eq!(job_end(h, claim.id).await, JobEnd::Open, "{pause:?}");
        h.apply(claim.id, Verb::Delete).await;
    }
    let held = h.put_one().await;
    h.apply(held, Verb::Hold { why: String::new() }).await;
    assert_eq!(job_end(h, held).await, JobEnd::Open);
}

/// Who waits for a result sees it: what a job returned, and that it returned nothing.
pub async fn result_of_a_success_is_seen(h: &Harness) {
    for result in [Some(b"42".to_vec()), Some(Vec::new()), None] {
        let (node, claim) = h.running().await;
        h.end(node, claim, retry(SECOND)).await;
        h.advance(SECOND);
        h.promote().await;
        let claim = h.claim_one(node).await;
        h.end(node, claim, Outcome::Succeed { result: result.clone().map(Into::into) }).await;
        let status = plain(State::Succeeded);
        assert_eq!(job_end(h, claim.id).await, JobEnd::Ended { status, result, message: None });
    }
}

/// Who waits for a job that came to nothing sees why: the reason that was given, else the last error.
pub async fn reason_of_a_failure_is_seen(h: &Harness) {
    let (node, claim) = h.running().await;
    h.end(node, claim, Outcome::Retry { after: SECOND, fault: fault("first") }).await;
    h.advance(SECOND);
    h.promote().await;
    let claim = h.claim_one(node).await;
    h.end(node, claim, fail()).await;
    assert_eq!(job_end(h, claim.id).await, ended(State::Failed, Reason::Exhausted, Some("no")));
    h.apply(claim.id, Verb::Retry).await;
    assert_eq!(job_end(h, claim.id).await, JobEnd::Open);
    h.apply(claim.id, cancel("enough")).await;
    assert_eq!(job_end(h, claim.id).await, ended(State::Cancelled, Reason::Operator, Some("enough")));
    h.apply(claim.id, Verb::Retry).await;
    h.apply(claim.id, cancel("")).await;
    assert_eq!(job_end(h, claim.id).await, ended(State::Cancelled, Reason::Operator, Some("no")));
    let id = h.put(h.job_with(|job| job.deadline = Some(When::After(SECOND)))).await;
    h.advance(SECOND);
    assert_eq!(h.expire().await, 1);
    assert_eq!(job_end(h, id).await, ended(State::Failed, Reason::Expired, None));
}

/// Sights come in the order of the ids, as often as they were asked for, and as many as a batch holds.
pub async fn sights_come_in_order_of_the_ids(h: &Harness) {
    let ids = h.put_many(bounds::BATCH - 2).await;
    h.apply(ids[1], cancel("")).await;
    let cancelled = ended(State::Cancelled, Reason::Operator, None);
    let asked = [&ids[..], &[h.id(), ids[1]]].concat();
    let job_ends = h.store.job_ends(asked).await.expect("job_ends");
    assert_eq!(job_ends.len(), bounds::BATCH);
    assert_eq!(job_ends[..3], [JobEnd::Open, cancelled.clone(), JobEnd::Open]);
    assert_eq!(job_ends[bounds::BATCH - 3..], [JobEnd::Open, JobEnd::Missing, cancelled]);
    assert!(h.store.job_ends(Vec::new()).await.expect("job_ends").is_empty());
}

/// A timeline tells what was recorded and sent, also when the job has ended.
pub async fn story_tells_what_was_recorded_and_sent(h: &Harness) {
    let id = h.put_one().await;
    assert_eq!(h.timeline(id).await, Timeline::default());
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    let begun = Entry { kind: EntryKind::Begun, overlapped: true, ..value("b", "1") };
    h.record(node, claim, writes([begun, value("a", "2")])).await;
    let recorded_at = h.now();
    h.advance(SECOND);
    for sender in ["x", "y"] {
        h.send(id, "go", sender).await;
    }
    let written = |name: &str, kind, overlapped, text: &str| Written {
        key: key(name),
        kind,
        overlapped,
        claim: 1,
        at: recorded_at,
        value: Value::Here(text.as_bytes().to_vec()),
        took: None,
    };
    let expected = [written("b", EntryKind::Begun, true, "1"), written("a", EntryKind::Value, false, "2")];
    let running = h.timeline(id).await;
    assert_eq!((&running.entries[..], running.more), (&expected[..], false));
    assert_eq!((senders(&running.inbox.messages), running.inbox.more), (vec!["x", "y"], false));
    assert_eq!(running.inbox.messages, h.messages(claim).await);
    h.end(node, claim, fail()).await;
    assert_eq!(h.timeline(id).await, running);
    h.apply(id, Verb::Retry).await;
    assert_eq!(h.timeline(id).await, running);
}

/// Long values of a timeline are left where they are; it says how long they are.
pub async fn long_values_of_a_story_are_left_out(h: &Harness) {
    let (node, claim) = h.running().await;
    let sizes = [0, bounds::TIMELINE_VALUE_BYTES, bounds::TIMELINE_VALUE_BYTES + 1, bounds::STEP_BYTES];
    let entries = sizes.map(|size| value(&size.to_string(), vec![b'1'; size]));
    h.record(node, claim, writes(entries)).await;
    let told: Vec<_> = h.timeline(claim.id).await.entries.into_iter().map(|entry| entry.value).collect();
    let here = |size| Value::Here(vec![b'1'; size]);
    assert_eq!(told, [here(sizes[0]), here(sizes[1]), Value::There(sizes[2]), Value::There(sizes[3])]);
}

/// A timeline has as many entries as its bound, and says when there are more.
pub async fn story_is_bounded(h: &Harness) {
    let (node, claim) = h.running().await;
    let keys: Vec<String> = (0..bounds::TIMELINE).map(|number| format!("{number:05}")).collect();
    for batch in keys.chunks(bounds::BATCH) {
        h.record(node, claim, writes(batch.iter().map(|key| value(key, "1")))).await;
    }
    let timeline = h.timeline(claim.id).await;
    assert_eq!((timeline.entries.len(), timeline.more), (bounds::TIMELINE, false));
    h.record(node, claim, writes([value("last", "1")])).await;
    let timeline = h.timeline(claim.id).await;
    assert_eq!((timeline.entries.len(), timeline.more), (bounds::TIMELINE, true));
    assert!(timeline.entries.iter().map(|entry| entry.key.as_str()).eq(keys.iter().map(String::as_str)));
    h.end(node, claim, Outcome::Release).await;
    let keys = h.keys(&h.take(node).await).await;
    assert_eq!((keys.len(), keys.last().map(String::as_str)), (bounds::TIMELINE + 1, Some("last")));
}

/// A timeline shows the first unread messages, and says when there are more.
pub async fn inbox_of_a_story_is_bounded(h: &Harness) {
    let id = h.put_one().await;
    let all: Vec<_> = (0..=bounds::INBOX_PAGE).map(|number| signal(id, "go", &number.to_string())).collect();
    for batch in all.chunks(bounds::BATCH) {
        h.signal_all(batch.to_vec()).await;
    }
    let inbox = h.timeline(id).await.inbox;
    assert!(inbox.more && !inbox.messages.is_empty() && inbox.messages.len() <= bounds::INBOX_PAGE);
    assert_eq!(inbox.messages[0].body.sender(), "0");
}
