//! Forks: a new job has a past from its first moment on.

use mainspring_core::Error;
use mainspring_core::id::JobId;
use mainspring_core::job::{Differs, New, Origin, Outcome, State, Unique, When};
use mainspring_core::journal::{Entry, EntryKind, Recording, Value, Writes, Written};
use mainspring_core::store::Receipt;

use super::workflow_calls::{key, starting, value};
use crate::harness::{Harness, SECOND, plain};

/// Entries of every kind, neither their keys nor their kinds in order.
fn past() -> Vec<Entry> {
    let entry = |(number, &kind): (usize, &EntryKind)| Entry {
        key: key(&format!("step {}", 9 - number)),
        kind,
        overlapped: number % 2 == 1,
        value: format!("\"{number}\"").into_bytes(),
        took: None,
    };
    EntryKind::ALL.iter().enumerate().map(entry).collect()
}

fn fork(h: &Harness, of: JobId) -> New {
    h.job_with(|job| {
        job.journal = past();
        job.options.forked = Some(Origin { job: of, step: Some(key("pack")) });
    })
}

fn as_written(h: &Harness, entry: Entry) -> Written {
    let Entry { key, kind, overlapped, took, value } = entry;
    Written { key, kind, overlapped, took, claim: 0, at: h.now(), value: Value::Here(value) }
}

/// What a fork shares comes with its first claim, in order, and is there for people before.
pub async fn shared_journal_comes_with_the_first_claim(h: &Harness) {
    let new = fork(h, h.id());
    let (origin, id) = (new.options.forked.clone(), h.put(new).await);
    let expected: Vec<Written> = past().into_iter().map(|entry| as_written(h, entry)).collect();
    assert_eq!(h.timeline(id).await.entries, expected);
    assert_eq!(h.get(id).await.summary.options.forked, origin);
    let keys: Vec<_> = past().into_iter().map(|entry| entry.key).collect();
    let values = h.store.values(id, keys).await.expect("values");
    assert_eq!(values, past().into_iter().map(|entry| Some(entry.value)).collect::<Vec<_>>());
    let node = h.node().await;
    let claimed = h.take(node).await;
    assert_eq!(h.entries(&claimed).await, expected);
    h.record(node, claimed.claim, super::workflow_calls::steps(["step 9", "new"])).await;
    h.end(node, claimed.claim, Outcome::Release).await;
    let claimed = h.take(node).await;
    let told: Vec<(String, u32)> =
        h.entries(&claimed).await.into_iter().map(|entry| (entry.key.to_string(), entry.claim)).collect();
    assert_eq!(told.len(), past().len() + 1, "what is shared is recorded");
    assert_eq!((told[0].clone(), told.last().cloned()), (("step 9".into(), 0), Some(("new".into(), 1))));
    h.assert_sound().await;
}

/// A repeat of a fork's id changes nothing, whatever it shares.
pub async fn repeated_fork_is_the_first_one(h: &Harness) {
    let new = fork(h, h.id());
    let id = h.put(new.clone()).await;
    let before = h.timeline(id).await;
    h.advance(SECOND);
    let other = New { journal: vec![value("another", "past")], ..new.clone() };
    assert_eq!(h.enqueue_all(vec![new.clone(), other]).await, [Receipt::Repeated; 2]);
    assert_eq!(h.timeline(id).await, before);
    // Beside one that is new.
    let fresh = fork(h, id);
    let second = fresh.id;
    let stranger = New { id, ..fork(h, id) };
    let receipts = h.enqueue_all(vec![new, stranger, fresh]).await;
    assert_eq!(receipts, [Receipt::Repeated, Receipt::Taken(Differs::Origin), Receipt::Created]);
    assert_eq!((h.timeline(id).await, h.timeline(second).await.entries.len()), (before, past().len()));
    h.assert_sound().await;
}

/// Forks among other jobs of a batch: with keys, for later, with a deadline; each has its own past, and one that is not stored
/// leaves none.
pub async fn forks_of_one_batch_do_not_meet(h: &Harness) {
    let unique = |job: &mut New| job.options.unique = Some(Unique::new("one").reject());
    let job = |name: &str, change: fn(&mut New)| {
        h.job_with(|job| {
            job.journal = vec![value(name, name), value("all", name)];
            change(job);
        })
    };
    let mut keyed = job("keyed", |_| {});
    unique(&mut keyed);
    let mut refused = job("refused", |_| {});
    unique(&mut refused);
    let later = job("later", |job| job.run = Some(When::After(SECOND)));
    let dated = job("dated", |job| job.deadline = Some(When::After(SECOND * 9)));
    let plain_job = h.job();
    let ids = [&keyed, &later, &dated, &plain_job].map(|job| job.id);
    let gone = refused.id;
    let receipts = h.enqueue_all(vec![keyed, refused, later, dated, plain_job]).await;
    assert_eq!(receipts[1], Receipt::Rejected(ids[0]));
    assert_eq!(h.find(gone).await, None);
    for (id, name) in ids.into_iter().zip(["keyed", "later", "dated"]) {
        let told: Vec<_> =
            h.timeline(id).await.entries.into_iter().map(|entry| (entry.key, entry.value)).collect();
        let expected = Value::Here(name.as_bytes().to_vec());
        assert_eq!(told, [(key(name), expected.clone()), (key("all"), expected)]);
    }
    assert!(h.timeline(ids[3]).await.entries.is_empty());
    h.advance(SECOND);
    assert_eq!(h.promote().await, 1);
    let node = h.node().await;
    let claimed = h.claim(node, 9).await;
    assert_eq!(claimed.len(), 4);
    for job in claimed {
        let count = job.journal.map_or(0, |journal| journal.entries.len());
        assert_eq!(count, if job.claim.id == ids[3] { 0 } else { 2 });
    }
    h.assert_sound().await;
}

/// What a fork shares is gone with it.
pub async fn shared_journal_is_gone_with_its_job(h: &Harness) {
    let id = h.put(fork(h, h.id())).await;
    h.apply(id, mainspring_core::job::Verb::Delete).await;
    assert_eq!(h.store.timeline(id).await.expect("timeline"), None);
    let again = h.put(New { id, journal: vec![value("a", "1")], ..h.job() }).await;
    assert_eq!(h.timeline(again).await.entries.len(), 1);
    assert_eq!(h.status(again).await, plain(State::Ready));
    h.assert_sound().await;
}

/// A child begins with nothing: its parent's record is its past.
pub async fn child_with_a_journal_is_refused(h: &Harness) {
    let (node, claim) = h.running().await;
    let mut child = h.child();
    child.job.journal = past();
    let id = child.job.id;
    let recording: Recording = starting(claim, vec![child]);
    let answer = h.store.record(node, vec![recording]).await;
    assert!(matches!(answer, Err(Error::Invalid { what: "child", .. })), "{answer:?}");
    assert_eq!(h.find(id).await, None);
    h.record(node, claim, Writes::default()).await;
}
