//! Journals: what a handler records is there when it runs again, and written by the owner of its claim only.

use std::time::Duration;

use mainspring_core::id::{Claim, ClaimBatchNo, NodeNo, Row};
use mainspring_core::job::{Outcome, Reason, State, Verb};
use mainspring_core::journal::{Entry, EntryKind, Recorded, Timeline, Value, Writes, Written};
use mainspring_core::store::{Cancellation, Retention};
use mainspring_core::{bounds, time};

use super::extreme_texts::HOSTILE;
use super::workflow_calls::{
    forgets, key, reads, recording, starting, steps, suspended, until_signal, value, writes,
};
use crate::harness::{Harness, LEASE, SECOND, because, cancel, fail, fault, plain, retry, stopped, succeed};

/// What was recorded comes with the next claim: every kind of entry, in the order of recording.
pub async fn recorded_entries_come_with_the_next_claim(h: &Harness) {
    let (node, claim) = h.running().await;
    let mut expected = Vec::new();
    for (number, &kind) in EntryKind::ALL.iter().enumerate() {
        // Neither the keys nor the kinds are in the order of recording.
        let name = format!("step {}", 9 - number);
        let entry = Entry {
            key: key(&name),
            kind,
            overlapped: number % 2 == 1,
            value: name.clone().into_bytes(),
            took: None,
        };
        h.record(node, claim, writes([entry.clone()])).await;
        expected.push(Written {
            key: entry.key,
            kind,
            overlapped: entry.overlapped,
            claim: 1,
            at: h.now(),
            value: Value::Here(entry.value),
            took: None,
        });
        h.advance(SECOND);
    }
    h.end(node, claim, Outcome::Release).await;
    let claimed = h.take(node).await;
    assert_eq!(h.entries(&claimed).await, expected);
}

/// An entry keeps the number of the claim that recorded it.
pub async fn entries_tell_the_claim_that_recorded_them(h: &Harness) {
    h.put_one().await;
    let node = h.node().await;
    for name in ["z", "a", "m"] {
        let claim = h.claim_one(node).await;
        h.record(node, claim, steps([name])).await;
        h.end(node, claim, Outcome::Release).await;
    }
    let claimed = h.take(node).await;
    let told: Vec<_> =
        h.entries(&claimed).await.into_iter().map(|entry| (entry.key.to_string(), entry.claim)).collect();
    assert_eq!(told, [("z".into(), 1), ("a".into(), 2), ("m".into(), 3)]);
}

/// A job that has recorded nothing and was sent nothing has no journal.
pub async fn plain_job_has_no_journal(h: &Harness) {
    let (node, claim) = h.running().await;
    h.end(node, claim, Outcome::Release).await;
    let claimed = h.take(node).await;
    assert_eq!(claimed.journal, None);
    assert_eq!(h.timeline(claim.id).await, Timeline::default());
}

/// An entry whose key is there changes nothing: not its value, not its kind, not its time.
pub async fn entry_never_changes(h: &Harness) {
    let (node, claim) = h.running().await;
    h.record(node, claim, writes([value("a", "first"), value("a", "second")])).await;
    let recorded_at = h.now();
    h.advance(SECOND);
    h.end(node, claim, Outcome::Release).await;
    let claim = h.claim_one(node).await;
    let other = Entry { kind: EntryKind::Error, overlapped: true, ..value("a", "third") };
    h.record(node, claim, writes([other, value("b", "new")])).await;
    h.end(node, claim, Outcome::Release).await;
    let claimed = h.take(node).await;
    let entries = h.entries(&claimed).await;
    let first = Written {
        key: key("a"),
        kind: EntryKind::Value,
        overlapped: false,
        claim: 1,
        at: recorded_at,
        value: Value::Here(b"first".to_vec()),
        took: None,
    };
    assert_eq!((entries.len(), &entries[0]), (2, &first));
    assert_eq!((entries[1].key.as_str(), entries[1].claim), ("b", 2));
}

/// A repeat of a recording is acknowledged and changes nothing.
pub async fn repeated_recording_is_harmless(h: &Harness) {
    let (node, claim) = h.running().await;
    h.send(claim.id, "go", "a").await;
    let read = h.messages(claim).await;
    let again = Writes { read: reads(&read).read, ..steps(["a", "b"]) };
    h.record(node, claim, again.clone()).await;
    let before = h.timeline(claim.id).await;
    h.advance(SECOND);
    for _ in 0..2 {
        h.record(node, claim, again.clone()).await;
    }
    assert_eq!(h.timeline(claim.id).await, before);
    let twice = vec![recording(claim, again.clone()), recording(claim, again)];
    assert_eq!(h.record_all(node, twice).await, [Recorded::Stored; 2]);
    assert_eq!(h.timeline(claim.id).await, before);
}

/// Tries to record in every way, and finds that nothing was.
async fn cannot_record(h: &Harness, node: NodeNo, claim: Claim) {
    let before = h.store.timeline(claim.id).await.expect("timeline");
    let child = h.child();
    let id = child.job.id;
    let mut recording = starting(claim, vec![child]);
    let unread = before.iter().flat_map(|timeline| &timeline.inbox.messages);
    recording.writes.read = reads(unread).read;
    recording.writes.forget =
        before.iter().flat_map(|timeline| &timeline.entries).map(|e| e.key.clone()).collect();
    assert_eq!(h.record_all(node, vec![recording]).await, [Recorded::LeaseLost]);
    assert_eq!(h.store.timeline(claim.id).await.expect("timeline"), before);
    assert_eq!(h.find(id).await, None, "a child was started");
}

/// A claimed job that has recorded something and was sent something.
async fn running_with_a_past(h: &Harness) -> (NodeNo, Claim) {
    let (node, claim) = h.running().await;
    h.record(node, claim, steps(["a"])).await;
    h.send(claim.id, "go", "a").await;
    (node, claim)
}

/// A claim that was given back, whether or not the job was claimed again, cannot record.
pub async fn stale_claim_cannot_record(h: &Harness) {
    let (node, stale) = running_with_a_past(h).await;
    h.end(node, stale, Outcome::Release).await;
    cannot_record(h, node, stale).await;
    let claim = h.claim_one(node).await;
    cannot_record(h, node, stale).await;
    h.record(node, claim, steps(["b"])).await;
    h.end(node, claim, succeed()).await;
    cannot_record(h, node, claim).await;
    h.apply(claim.id, Verb::Delete).await;
    cannot_record(h, node, claim).await;
}

/// The claim is the node's: no other node can record with it.
pub async fn other_node_cannot_record(h: &Harness) {
    let (_, claim) = running_with_a_past(h).await;
    let other = h.node().await;
    cannot_record(h, other, claim).await;
    cannot_record(h, NodeNo(999_999), claim).await;
}

/// A claim that never was cannot record: of another row, another job, a number to come.
pub async fn unknown_claim_cannot_record(h: &Harness) {
    let (node, claim) = running_with_a_past(h).await;
    let mut elsewhere = claim;
    elsewhere.row = Row(999_999);
    cannot_record(h, node, elsewhere).await;
    let mut future = claim;
    future.number += 1;
    cannot_record(h, node, future).await;
    assert_eq!(h.timeline(claim.id).await.entries.len(), 1);
}

/// A node that was rescued from cannot record any more, and neither can one that has retired.
pub async fn node_that_is_gone_cannot_record(h: &Harness) {
    let (node, claim) = running_with_a_past(h).await;
    h.lose(node).await;
    cannot_record(h, node, claim).await;
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    h.store.retire(node).await.expect("retire");
    cannot_record(h, node, claim).await;
}

/// A node whose lease has lapsed, but whom nobody has expired, is still the owner.
pub async fn lapsed_node_can_record(h: &Harness) {
    let (node, claim) = h.running().await;
    h.advance(LEASE * 2);
    h.record(node, claim, steps(["a"])).await;
    assert_eq!(h.timeline(claim.id).await.entries.len(), 1);
}

/// One stale claim in a batch loses alone; answers come in order.
pub async fn one_stale_recording_does_not_fail_its_batch(h: &Harness) {
    let ids = h.put_many(3).await;
    let node = h.node().await;
    let claims: Vec<_> = h.claim(node, 3).await.into_iter().map(|job| job.claim).collect();
    h.end(node, claims[1], Outcome::Release).await;
    let recordings = claims.iter().map(|claim| recording(*claim, steps(["a"]))).collect();
    let answers = h.record_all(node, recordings).await;
    assert_eq!(answers, [Recorded::Stored, Recorded::LeaseLost, Recorded::Stored]);
    for (id, count) in ids.into_iter().zip([1, 0, 1]) {
        assert_eq!(h.timeline(id).await.entries.len(), count);
    }
}

/// Recordings of one claim in one batch are written in their order, and the first of a key counts.
pub async fn recordings_of_one_batch_are_written_in_order(h: &Harness) {
    let (node, claim) = h.running().await;
    let batch = vec![
        recording(claim, steps(["b", "a"])),
        recording(claim, writes([value("a", "late"), value("c", "c")])),
        recording(claim, forgets(["b"])),
        recording(claim, steps(["b"])),
    ];
    assert_eq!(h.record_all(node, batch).await, [Recorded::Stored; 4]);
    h.end(node, claim, Outcome::Release).await;
    let claimed = h.take(node).await;
    assert_eq!(h.keys(&claimed).await, ["a", "c", "b"]);
    assert_eq!(h.values(claimed.claim, vec![key("a")]).await, [Some(b"a".to_vec())]);
}

/// A full batch of recordings of as many jobs is stored, and so are as many entries of one.
pub async fn full_batch_is_recorded(h: &Harness) {
    h.put_many(bounds::BATCH).await;
    let node = h.node().await;
    let claimed = h.claim(node, bounds::BATCH).await;
    let recordings: Vec<_> = claimed.iter().map(|job| recording(job.claim, steps(["a"]))).collect();
    assert!(h.record_all(node, recordings).await.iter().all(|answer| *answer == Recorded::Stored));
    let (first, last) = (claimed[0].claim, claimed[bounds::BATCH - 1].claim);
    let entries: Vec<_> = (0..bounds::BATCH).map(|number| value(&format!("{number:04}"), "1")).collect();
    h.record(node, first, writes(entries)).await;
    assert_eq!(h.values(last, vec![key("a")]).await, [Some(b"a".to_vec())]);
    h.end(node, first, Outcome::Release).await;
    let keys = h.keys(&h.take(node).await).await;
    assert_eq!(keys.len(), bounds::BATCH + 1);
    assert!(keys[1..].is_sorted());
}

/// Recording nothing is nothing.
pub async fn empty_recording_is_accepted(h: &Harness) {
    let (node, claim) = h.running().await;
    assert!(h.record_all(node, Vec::new()).await.is_empty());
    h.record(node, claim, Writes::default()).await;
    assert_eq!(h.timeline(claim.id).await, Timeline::default());
}

/// A forgotten entry is gone, and its key may be recorded again, also with the same recording.
pub async fn forgotten_entry_may_be_recorded_again(h: &Harness) {
    let (node, claim) = h.running().await;
    h.record(node, claim, steps(["a", "b", "c"])).await;
    h.record(node, claim, forgets(["a", "c", "unknown"])).await;
    assert_eq!(h.values(claim, vec![key("a"), key("b")]).await, [None, Some(b"b".to_vec())]);
    h.record(node, claim, writes([value("a", "new")])).await;
    let again = Writes { forget: vec![key("b")], ..writes([value("b", "newer")]) };
    h.record(node, claim, again).await;
    h.end(node, claim, Outcome::Release).await;
    let claimed = h.take(node).await;
    assert_eq!(h.keys(&claimed).await, ["a", "b"]);
    let values = h.values(claimed.claim, vec![key("a"), key("b"), key("c")]).await;
    assert_eq!(values, [Some(b"new".to_vec()), Some(b"newer".to_vec()), None]);
}

/// A job that records has made progress: its crashes are forgotten, and three more are one too many.
pub async fn recording_resets_crashes(h: &Harness) {
    let id = h.put_one().await;
    h.crash(2).await;
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    assert_eq!(h.get(id).await.summary.crashes, 2);
    h.record(node, claim, steps(["a"])).await;
    assert_eq!(h.get(id).await.summary.crashes, 0);
    h.lose(node).await;
    h.crash(1).await;
    assert_eq!((h.status(id).await, h.get(id).await.summary.crashes), (plain(State::Ready), 2));
    h.crash(1).await;
    assert_eq!(h.status(id).await, because(State::Suspended, Reason::Quarantine));
}

/// How long a claim lasted that was lost before the job made progress does not count any more.
pub async fn recording_forgets_how_long_lost_claims_lasted(h: &Harness) {
    let (node, _) = h.running().await;
    h.advance(LEASE * 10);
    h.lose(node).await;
    let node = h.node().await;
    let claimed = h.take(node).await;
    assert_eq!(claimed.crashed_micros, time::micros(LEASE * 11));
    h.record(node, claimed.claim, steps(["a"])).await;
    h.lose(node).await;
    let node = h.node().await;
    assert_eq!(h.take(node).await.crashed_micros, time::micros(LEASE));
}

/// A claim that is to be cancelled still records what was done.
pub async fn flagged_claim_can_record(h: &Harness) {
    let (node, claim) = h.running().await;
    h.apply(claim.id, cancel("enough")).await;
    let child = h.start(node, claim, h.child()).await;
    h.record(node, claim, steps(["a"])).await;
    assert_eq!(h.renew(node).await.cancel, [(claim, Cancellation::operator("enough"))]);
    assert_eq!(h.timeline(claim.id).await.entries.len(), 2);
    h.end(node, claim, stopped("enough")).await;
    assert_eq!(h.status(child).await, because(State::Cancelled, Reason::Parent));
}

/// Keys are told apart by their exact text, whatever that is.
pub async fn hostile_keys_are_data(h: &Harness) {
    let (node, claim) = h.running().await;
    let alike = ["a", "A", "a ", " a", "a/", "\u{e9}", "e\u{301}", "é#=1", "é#=2", "1", "1.0", "01"];
    let longest = "k".repeat(bounds::STEP_KEY_BYTES);
    let texts: Vec<&str> = HOSTILE
        .iter()
        .copied()
        .chain(alike.into_iter().filter(|text| *text != " "))
        .chain([&*longest])
        .collect();
    h.record(node, claim, writes(texts.iter().map(|text| value(text, *text)))).await;
    h.end(node, claim, Outcome::Release).await;
    let claimed = h.take(node).await;
    assert_eq!(h.keys(&claimed).await, texts);
    for text in texts {
        let values = h.values(claimed.claim, vec![key(text)]).await;
        assert_eq!(values, [Some(text.as_bytes().to_vec())], "{text}");
    }
}

/// Values are bytes: empty ones, NUL and what is not UTF-8 come back.
pub async fn values_that_are_not_text_survive(h: &Harness) {
    let (node, claim) = h.running().await;
    let odd: [&[u8]; 4] = [b"", &[0], &[0, 0xFF, 0xFE, 0xC3, 0x28, 0, b'\''], b"null"];
    let entries = odd.iter().enumerate().map(|(number, bytes)| value(&number.to_string(), *bytes));
    h.record(node, claim, writes(entries)).await;
    h.end(node, claim, Outcome::Release).await;
    let claimed = h.take(node).await;
    let values: Vec<_> = h.entries(&claimed).await.into_iter().map(|entry| entry.value).collect();
    assert_eq!(values, odd.map(|bytes| Value::Here(bytes.to_vec())));
}

/// A value of the largest size comes back byte by byte.
pub async fn value_of_the_largest_size_survives(h: &Harness) {
    let (node, claim) = h.running().await;
    let payload: Vec<u8> =
        (0..bounds::PAYLOAD_BYTES_MAX).map(|i| u8::try_from(i % 251).unwrap_or(0)).collect();
    h.record(node, claim, writes([value("large", payload.clone()), value("small", "1")])).await;
    h.end(node, claim, Outcome::Release).await;
    let claimed = h.take(node).await;
    assert_eq!(h.keys(&claimed).await, ["large", "small"]);
    let values = h.values(claimed.claim, vec![key("small"), key("large")]).await;
    assert_eq!(values[0].as_deref(), Some(&b"1"[..]));
    assert!(values[1].as_deref() == Some(&payload[..]));
}

/// All keys come with a claim, however much they hold: what does not come is read.
pub async fn values_beyond_the_budget_are_read(h: &Harness) {
    let (node, claim) = h.running().await;
    let count = 2 * bounds::PREFETCH_BYTES / (48 << 10);
    let text = |number: usize| format!("{number:02}").repeat(24 << 10).into_bytes();
    for number in 0..count {
        h.record(node, claim, writes([value(&format!("{number}"), text(number))])).await;
    }
    h.end(node, claim, Outcome::Release).await;
    let claimed = h.take(node).await;
    let entries = h.entries(&claimed).await;
    assert_eq!(entries.len(), count);
    for (number, entry) in entries.into_iter().enumerate() {
        assert_eq!(entry.key.as_str(), number.to_string());
        assert!(entry.value == Value::Here(text(number)), "value {number}");
    }
}

/// Values come in the order of the keys; a key that is not there, or a job, has none.
pub async fn values_come_in_order_of_the_keys(h: &Harness) {
    let (node, claim) = h.running().await;
    h.record(node, claim, steps(["a", "b"])).await;
    let asked = vec![key("b"), key("x"), key("a"), key("b")];
    let (a, b) = (Some(b"a".to_vec()), Some(b"b".to_vec()));
    assert_eq!(h.values(claim, asked).await, [b.clone(), None, a, b]);
    assert!(h.values(claim, Vec::new()).await.is_empty());
    let mut unknown = claim;
    unknown.id = h.id();
    unknown.row = Row(999_999);
    assert_eq!(h.values(unknown, vec![key("a")]).await, [None]);
}

/// Jobs that record under the same keys do not meet.
pub async fn journals_of_two_jobs_do_not_meet(h: &Harness) {
    h.put_many(2).await;
    let node = h.node().await;
    let claims: Vec<_> = h.claim(node, 2).await.into_iter().map(|job| job.claim).collect();
    for (claim, text) in claims.iter().zip(["one", "two"]) {
        h.record(node, *claim, writes([value("a", text)])).await;
        h.send(claim.id, "go", "a").await;
    }
    h.record(node, claims[0], forgets(["a"])).await;
    assert_eq!(h.values(claims[0], vec![key("a")]).await, [None]);
    assert_eq!(h.values(claims[1], vec![key("a")]).await, [Some(b"two".to_vec())]);
    // A message is read by its own job.
    let other = h.messages(claims[1]).await;
    h.record(node, claims[0], reads(&other)).await;
    assert_eq!(h.messages(claims[1]).await, other);
}

/// Whatever leads from one claim to the next leaves the journal and the unread messages as they are.
pub async fn journal_survives_every_way_to_the_next_claim(h: &Harness) {
    let ways =
        ["retry", "snooze", "release", "crash", "retire", "disown", "hold", "suspend", "fail", "cancel"];
    for way in ways {
        let (node, claim) = running_with_a_past(h).await;
        let id = claim.id;
        match way {
            "retry" => h.end(node, claim, retry(Duration::ZERO)).await,
            "snooze" => h.end(node, claim, Outcome::Snooze { after: Duration::ZERO }).await,
            "crash" => assert_eq!(h.lose(node).await.returned, 1),
            "retire" => assert_eq!(h.store.retire(node).await.expect("retire"), 1),
            "disown" => {
                assert_eq!(h.store.disown(node, ClaimBatchNo(1), Vec::new()).await.expect("disown"), 1);
            }
            "hold" => {
                h.end(node, claim, Outcome::Release).await;
                h.apply(id, Verb::Hold { why: String::new() }).await;
                h.apply(id, Verb::Resume).await;
            }
            "suspend" => {
                h.end(node, claim, suspended(until_signal("x"))).await;
                h.send(id, "x", "x").await;
            }
            "fail" => {
                h.end(node, claim, fail()).await;
                h.apply(id, Verb::Retry).await;
            }
            "cancel" => {
                h.end(node, claim, Outcome::Release).await;
                h.apply(id, cancel("")).await;
                h.apply(id, Verb::Retry).await;
            }
            _ => h.end(node, claim, Outcome::Release).await,
        }
        h.promote().await;
        let node = h.node().await;
        let claimed = h.take(node).await;
        assert_eq!(h.keys(&claimed).await, ["a"], "{way}");
        assert_eq!(h.mail(&claimed).await[0].body.sender(), "a", "{way}");
        h.end(node, claimed.claim, succeed()).await;
    }
}

/// A job in quarantine keeps its journal until an operator lets it go on.
pub async fn journal_survives_quarantine(h: &Harness) {
    let (node, claim) = running_with_a_past(h).await;
    h.lose(node).await;
    h.crash(2).await;
    assert_eq!(h.status(claim.id).await, because(State::Suspended, Reason::Quarantine));
    h.apply(claim.id, Verb::Resume).await;
    let node = h.node().await;
    let claimed = h.take(node).await;
    assert_eq!((h.keys(&claimed).await, h.mail(&claimed).await.len()), (vec!["a".to_owned()], 1));
}

/// A repeated claim batch brings the journal again, and what was recorded since.
pub async fn adopted_claims_bring_the_journal(h: &Harness) {
    let (node, claim) = running_with_a_past(h).await;
    h.end(node, claim, Outcome::Release).await;
    let request = h.request(node, 1);
    let claimed = h.claim_as(request.clone()).await.remove(0);
    let adopted = h.claim_as(request.clone()).await.remove(0);
    assert_eq!((adopted.claim, h.entries(&adopted).await), (claimed.claim, h.entries(&claimed).await));
    assert_eq!(h.mail(&adopted).await, h.mail(&claimed).await);
    h.record(node, claimed.claim, steps(["b"])).await;
    let adopted = h.claim_as(request).await.remove(0);
    assert_eq!(h.keys(&adopted).await, ["a", "b"]);
}

/// A deleted job's journal and inbox are gone: a job of its id begins anew.
pub async fn journal_is_gone_with_a_deleted_job(h: &Harness) {
    let (node, claim) = running_with_a_past(h).await;
    h.end(node, claim, Outcome::Release).await;
    h.apply(claim.id, Verb::Delete).await;
    begins_anew(h, node, claim).await;
}

/// A pruned job's journal and inbox are gone: a job of its id begins anew.
pub async fn journal_is_gone_with_a_pruned_job(h: &Harness) {
    let (node, claim) = running_with_a_past(h).await;
    h.end(node, claim, succeed()).await;
    h.advance(Retention::default().succeeded.0);
    assert_eq!(h.prune().await, 1);
    begins_anew(h, node, claim).await;
}

async fn begins_anew(h: &Harness, node: NodeNo, old: Claim) {
    assert_eq!(h.store.timeline(old.id).await.expect("timeline"), None);
    assert_eq!(h.values(old, vec![key("a")]).await, [None]);
    assert!(h.messages(old).await.is_empty());
    h.put(h.job_with(|job| job.id = old.id)).await;
    assert_eq!(h.timeline(old.id).await, Timeline::default());
    h.send(old.id, "go", "a").await;
    let claimed = h.take(node).await;
    assert_eq!((h.keys(&claimed).await.len(), h.mail(&claimed).await.len()), (0, 1));
}

/// An error that a handler recorded and went on from does not count as a failure of the job.
pub async fn recorded_error_is_no_failure(h: &Harness) {
    let (node, claim) = h.running().await;
    h.record(node, claim, writes([Entry { kind: EntryKind::Error, ..value("a", "\"no\"") }])).await;
    let record = h.get(claim.id).await;
    assert_eq!((record.summary.failures, record.errors.len()), (0, 0));
    h.end(node, claim, Outcome::Retry { after: SECOND, fault: fault("no") }).await;
    assert_eq!(h.get(claim.id).await.summary.failures, 1);
}
