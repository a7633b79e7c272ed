//! Journals, inboxes and families: what the seam does not show.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainspring_core::id::{Claim, JobId, NodeNo};
use mainspring_core::job::{New, Outcome, Reason, State, Status, Verb, When};
use mainspring_core::journal::{
    Child, Entry, EntryKind, JobEnd, OnClose, Recorded, Recording, Signal, Signalled, Subject, Suspension,
    Value, Wait, Writes,
};
use mainspring_core::name::{Key, SignalName};
use mainspring_core::store::{
    Claimed, Finish, Finished, Hint, Journals, Listener, Nodes, Operators, Producers, Store,
};
use mainspring_core::time::Timestamp;
use mainspring_core::{Error, bounds};

use super::support::{Fixture, block_on, claim, job, registration};
use crate::op::prune;
use crate::writer::{Tx, Weight};

fn entry(key: &str, value: &[u8]) -> Entry {
    let key = Key::new(key).expect("a key");
    Entry { key, kind: EntryKind::Value, overlapped: false, value: value.to_vec(), took: None }
}

fn recording(claim: Claim, entries: Vec<Entry>) -> Recording {
    Recording { claim, writes: Writes { entries, ..Writes::default() }, children: Vec::new() }
}

fn go() -> SignalName {
    SignalName::new("go").expect("a name")
}

fn signal(job: JobId, sender: &str) -> Signal {
    Signal { job, name: go(), sender: sender.into(), body: b"1".to_vec() }
}

fn suspend(reason: Reason, waits: Vec<Wait>, until: Option<Timestamp>) -> Outcome {
    let note = Some("a note".to_owned());
    Outcome::Suspend(Box::new(Suspension {
        reason,
        waits,
        until,
        keep: false,
        writes: Writes::default(),
        note,
    }))
}

fn wait_go(need: u32) -> Vec<Wait> {
    vec![Wait { subject: Subject::Signal(go()), need }]
}

/// A store with a node, which claims with a number of its own each time.
struct World {
    it: Fixture,
    node: NodeNo,
    batch: u64,
}

impl World {
    fn new() -> Self {
        let it = Fixture::new();
        let node = block_on(it.store.register(registration(&it.seams))).expect("a node").no;
        World { it, node, batch: 0 }
    }

    fn add(&self) -> JobId {
        let job = job(&self.it.seams);
        let id = job.id;
        block_on(self.it.store.enqueue(vec![job])).expect("enqueued");
        id
    }

    fn claim(&mut self) -> Vec<Claimed> {
        self.batch += 1;
        block_on(self.it.store.claim(claim(self.node, self.batch))).expect("claimed").jobs
    }

    fn claim_one(&mut self) -> Claimed {
        let mut jobs = self.claim();
        assert_eq!(jobs.len(), 1);
        jobs.remove(0)
    }

    fn record(&self, recording: Recording) -> Recorded {
        block_on(self.it.store.record(self.node, vec![recording])).expect("recorded")[0]
    }

    /// Starts children of a claimed job.
    fn start(&self, parent: Claim, on_close: OnClose, jobs: &[New]) {
        let children = jobs.iter().map(|job| Child { job: job.clone(), on_close }).collect();
        let recorded = self.record(Recording { claim: parent, writes: Writes::default(), children });
        assert_eq!(recorded, Recorded::Stored);
    }

    fn finish(&self, claim: Claim, outcome: Outcome) -> Finished {
        block_on(self.it.store.finish(self.node, vec![Finish { claim, outcome }])).expect("finished")[0]
    }

    fn signal(&self, signal: Signal) -> Signalled {
        block_on(self.it.store.signal(vec![signal])).expect("signalled")[0]
    }

    fn status(&self, id: JobId) -> Status {
        block_on(self.it.store.get(id)).expect("read").expect("a job").summary.status
    }

    fn rows(&self, table: &str) -> i64 {
        let sql = format!("SELECT count(*) FROM mainspring_{table}");
        self.it.raw().query_row(&sql, [], |row| row.get(0)).expect("a count")
    }

    fn findings(&self) -> Vec<String> {
        block_on(self.it.store.check()).expect("a check").into_iter().map(|finding| finding.what).collect()
    }
}

#[test]
fn only_the_first_recording_of_a_claim_touches_its_lease() {
    let mut w = World::new();
    w.add();
    let claim = w.claim_one().claim;
    let conn = w.it.raw();
    conn.execute_batch(
        "CREATE TABLE touched (n); CREATE TRIGGER touch AFTER UPDATE ON mainspring_lease
         BEGIN INSERT INTO touched VALUES (1); END",
    )
    .expect("a trigger");
    for key in ["a", "b", "c"] {
        assert_eq!(w.record(recording(claim, vec![entry(key, b"1")])), Recorded::Stored);
    }
    let touched: i64 = conn.query_row("SELECT count(*) FROM touched", [], |row| row.get(0)).expect("a count");
    assert_eq!(touched, 1);
}

#[test]
fn an_entry_that_is_there_stays_as_it_is() {
    let mut w = World::new();
    w.add();
    let claim = w.claim_one().claim;
    w.record(recording(claim, vec![entry("a", b"1"), entry("b", b"2")]));
    w.record(recording(claim, vec![entry("b", b"3"), entry("c", b"4"), entry("a", b"5")]));
    let keys = ["c", "a", "b", "d"].map(|key| Key::new(key).expect("a key")).to_vec();
    let values = block_on(w.it.store.values(claim.id, keys)).expect("values");
    assert_eq!(values, [Some(b"4".to_vec()), Some(b"1".to_vec()), Some(b"2".to_vec()), None]);
    let stale = Claim { number: claim.number + 1, ..claim };
    assert_eq!(w.record(recording(stale, vec![entry("z", b"1")])), Recorded::LeaseLost);
    assert_eq!(w.rows("steps"), 3);
    w.it.assert_sound();
}

#[test]
fn a_claim_brings_small_values_and_leaves_what_exceeds_its_budget() {
    let mut w = World::new();
    w.add();
    let claim = w.claim_one().claim;
    let big = vec![b'1'; bounds::PREFETCH_BYTES - 1];
    let huge = vec![b'1'; bounds::PREFETCH_BYTES + 1];
    for (key, value) in [("z", &b"1"[..]), ("a", &huge), ("m", &big), ("b", b"22")] {
        w.record(recording(claim, vec![entry(key, value)]));
    }
    w.finish(claim, Outcome::Release);
    let journal = w.claim_one().journal.expect("a journal");
    let got: Vec<_> = journal.entries.iter().map(|entry| (entry.key.as_str(), &entry.value)).collect();
    let expected = [
        ("z", Value::Here(b"1".to_vec())),
        ("a", Value::There(huge.len())),
        ("m", Value::Here(big)),
        ("b", Value::There(2)),
    ];
    let expected: Vec<_> = expected.iter().map(|(key, value)| (*key, value)).collect();
    assert_eq!(got, expected);
}

#[test]
fn the_flag_of_a_journal_goes_through_every_place() {
    let mut w = World::new();
    let id = w.add();
    let first = w.claim_one();
    assert!(first.journal.is_none());
    w.record(recording(first.claim, vec![entry("a", b"1")]));
    let store = &w.it.store;
    let verb = |verb| block_on(store.change(vec![id], verb, false)).expect("changed");
    w.finish(first.claim, Outcome::Snooze { after: Duration::from_secs(1) });
    verb(Verb::Hold { why: String::new() });
    verb(Verb::Resume);
    verb(Verb::Cancel { why: String::new() });
    verb(Verb::Retry);
    w.it.assert_sound();
    let second = w.claim_one();
    assert_eq!(second.journal.expect("a journal").entries.len(), 1);
    w.finish(second.claim, suspend(Reason::Timer, Vec::new(), Some(w.it.seams.clock.now().after(SECOND))));
    w.it.clock.advance(SECOND);
    assert_eq!(block_on(w.it.store.promote(10)).expect("promoted").moved, 1);
    assert_eq!(w.claim_one().journal.expect("a journal").entries.len(), 1);
    w.it.assert_sound();
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn message_and_suspension_meet_in_either_order() {
    let mut w = World::new();
    let id = w.add();
    let one = w.claim_one().claim;
    assert_eq!(w.signal(signal(id, "a")), Signalled::Stored);
    w.finish(one, suspend(Reason::Signal, wait_go(2), None));
    assert_eq!(w.status(id), Status::because(State::Suspended, Reason::Signal));
    let record = block_on(w.it.store.get(id)).expect("read").expect("a job");
    assert_eq!((record.waits, record.note.as_deref()), (wait_go(2), Some("a note")));
    assert_eq!(w.signal(signal(id, "a")), Signalled::Repeated);
    assert_eq!(w.signal(signal(id, "b")), Signalled::Stored);
    assert_eq!(w.status(id), Status::plain(State::Ready));
    let two = w.claim_one();
    assert_eq!(two.journal.expect("a journal").inbox.messages.len(), 2);
    w.finish(two.claim, suspend(Reason::Signal, wait_go(2), None));
    assert_eq!(w.status(id), Status::plain(State::Ready), "both are there already");
    w.it.assert_sound();
}

#[test]
fn of_signals_that_were_read_the_last_are_remembered() {
    let mut w = World::new();
    let id = w.add();
    let claim = w.claim_one().claim;
    let signals =
        |from: usize, to: usize| -> Vec<Signal> { (from..to).map(|n| signal(id, &n.to_string())).collect() };
    block_on(w.it.store.signal(signals(0, bounds::INBOX_READ))).expect("signalled");
    block_on(w.it.store.signal(signals(bounds::INBOX_READ, bounds::INBOX_READ + 1))).expect("signalled");
    let inbox = block_on(w.it.store.inbox(vec![(claim, 0)])).expect("an inbox").remove(0);
    assert_eq!((inbox.messages.len(), inbox.more), (bounds::INBOX_PAGE, true));
    let last = inbox.messages[bounds::INBOX_PAGE - 1].no;
    let rest = block_on(w.it.store.inbox(vec![(claim, last)])).expect("an inbox").remove(0);
    assert_eq!((rest.messages.len(), rest.more), (1, false));
    let read = inbox.messages.iter().chain(&rest.messages).map(|message| message.no).collect();
    let writes = Writes { read, ..Writes::default() };
    w.record(Recording { claim, writes, children: Vec::new() });
    assert_eq!(w.signal(signal(id, "1")), Signalled::Repeated);
    assert_eq!(w.signal(signal(id, "0")), Signalled::Stored, "the oldest is forgotten");
    let bodies = "SELECT count(*) FROM mainspring_inbox WHERE read = 1 AND body IS NOT NULL";
    assert_eq!(w.it.raw().query_row(bodies, [], |row| row.get::<_, i64>(0)).expect("a count"), 0);
}

#[test]
fn a_family_of_any_depth_ends_with_its_parent() {
    const DEPTH: usize = 20_000;
    let w = World::new();
    let jobs: Vec<New> = (0..DEPTH).map(|_| job(&w.it.seams)).collect();
    let (top, last) = (jobs[0].id, jobs[DEPTH - 1].id);
    block_on(w.it.store.enqueue(jobs)).expect("enqueued");
    // Each is the child of the one before it. By hand, because a chain of recordings takes a commit for each.
    let chain = "INSERT INTO mainspring_children SELECT no, no - 1, 0 FROM mainspring_jobs WHERE no > 1;
        UPDATE mainspring_ready SET flags = 48";
    w.it.raw().execute_batch(chain).expect("a chain");
    block_on(w.it.store.change(vec![top], Verb::Cancel { why: "enough".into() }, false)).expect("cancelled");
    let counts = block_on(w.it.store.counts()).expect("counts");
    assert_eq!(counts.total(State::Cancelled), DEPTH as u64);
    assert_eq!(w.status(last), Status::because(State::Cancelled, Reason::Parent));
    assert_eq!(
        usize::try_from(w.rows("inbox")),
        Ok(DEPTH - 1),
        "each has told its parent, which may be run again"
    );
}

#[test]
fn ends_in_one_batch_take_effect_in_its_order() {
    let mut w = World::new();
    w.add();
    let parent = w.claim_one().claim;
    let children = [job(&w.it.seams), job(&w.it.seams)];
    w.start(parent, OnClose::Cancel, &children);
    let claims: Vec<Claim> = w.claim().iter().map(|job| job.claim).collect();
    let finishes = vec![
        Finish { claim: claims[1], outcome: Outcome::Snooze { after: SECOND } },
        Finish { claim: parent, outcome: Outcome::Succeed { result: None } },
        Finish { claim: claims[0], outcome: Outcome::Snooze { after: SECOND } },
    ];
    let answers = block_on(w.it.store.finish(w.node, finishes)).expect("finished");
    assert_eq!(answers, [Finished::Applied; 3]);
    assert_eq!(w.status(children[1].id), Status::because(State::Cancelled, Reason::Parent), "it waited");
    assert_eq!(w.status(children[0].id), Status::because(State::Cancelled, Reason::Parent), "it ran");
    w.it.assert_sound();
}

#[test]
fn a_retired_node_gives_back_a_child_that_was_flagged_a_moment_ago() {
    let mut w = World::new();
    let top = w.add();
    let parent = w.claim_one().claim;
    let child = job(&w.it.seams);
    w.start(parent, OnClose::Cancel, std::slice::from_ref(&child));
    w.claim_one();
    block_on(w.it.store.change(vec![top], Verb::Cancel { why: "stop".into() }, false)).expect("flagged");
    assert_eq!(block_on(w.it.store.retire(w.node)).expect("retired"), 2);
    assert_eq!(w.status(child.id), Status::because(State::Cancelled, Reason::Parent));
    let job_ends = block_on(w.it.store.job_ends(vec![child.id])).expect("job_ends");
    assert!(matches!(&job_ends[0], JobEnd::Ended { message: Some(why), .. } if why == "its parent ended"));
    w.it.assert_sound();
}

#[test]
fn parent_and_child_that_expire_together_are_each_ended_once() {
    let mut w = World::new();
    let deadline = Some(When::After(SECOND));
    let top = New { deadline, ..job(&w.it.seams) };
    block_on(w.it.store.enqueue(vec![top.clone()])).expect("enqueued");
    let parent = w.claim_one().claim;
    let child = New { deadline, ..job(&w.it.seams) };
    w.start(parent, OnClose::Cancel, std::slice::from_ref(&child));
    w.finish(parent, Outcome::Release);
    w.it.clock.advance(SECOND);
    assert_eq!(block_on(w.it.store.expire(10)).expect("expired").moved, 1);
    assert_eq!(w.status(top.id), Status::because(State::Failed, Reason::Expired));
    assert_eq!(w.status(child.id), Status::because(State::Cancelled, Reason::Parent));
    w.it.assert_sound();
}

#[test]
fn prune_and_delete_leave_nothing_of_a_journal_or_a_family() {
    let mut w = World::new();
    let top = w.add();
    let parent = w.claim_one().claim;
    let child = job(&w.it.seams);
    w.record(recording(parent, vec![entry("a", b"1")]));
    w.start(parent, OnClose::Abandon, std::slice::from_ref(&child));
    let claimed = w.claim_one();
    w.finish(claimed.claim, Outcome::Succeed { result: Some(b"7".as_slice().into()) });
    w.signal(signal(top, "me"));
    assert_eq!((w.rows("steps"), w.rows("inbox"), w.rows("children")), (1, 2, 1));
    w.it.clock.advance(Duration::from_hours(24));
    assert_eq!(block_on(w.it.store.prune(10)).expect("pruned"), 1);
    assert_eq!(w.rows("children"), 0, "the child is gone, and its place in the family");
    w.it.assert_sound();
    w.finish(parent, Outcome::Release);
    block_on(w.it.store.change(vec![top], Verb::Delete, false)).expect("deleted");
    assert_eq!((w.rows("steps"), w.rows("inbox"), w.rows("children"), w.rows("jobs")), (0, 0, 0, 0));
    w.it.assert_sound();
}

#[test]
fn long_journals_are_pruned_in_several_commits() {
    let mut w = World::new();
    for _ in 0..3 {
        w.add();
    }
    for claimed in w.claim() {
        w.record(recording(claimed.claim, Vec::new()));
        w.finish(claimed.claim, Outcome::Succeed { result: None });
    }
    let fill = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30000)
        INSERT INTO mainspring_steps (no, key, kind, overlapped, claim, at, value)
            SELECT j.no, n.i, 0, 0, 1, 1, x'31' FROM n, mainspring_jobs j";
    w.it.raw().execute_batch(fill).expect("journals");
    w.it.clock.advance(Duration::from_hours(24));
    let one = block_on(w.it.store.write(Weight::rows(1), |tx: &mut Tx<'_>| prune::run(tx, 10)));
    let one = one.expect("pruned");
    assert_eq!((one.removed, one.more), (2, true), "as many as make {} rows", prune::ROWS);
    w.it.assert_sound();
    assert_eq!(block_on(w.it.store.prune(10)).expect("pruned"), 1);
    assert_eq!((w.rows("steps"), w.rows("jobs")), (0, 0));
    w.it.assert_sound();
}

#[test]
fn children_with_a_key_are_refused_with_all_of_their_batch() {
    let mut w = World::new();
    w.add();
    let claim = w.claim_one().claim;
    let mut child = job(&w.it.seams);
    child.options.unique = Some(mainspring_core::job::Unique::new("key"));
    let children = vec![Child { job: child, on_close: OnClose::Cancel }];
    let bad = Recording { claim, writes: Writes::default(), children };
    let refused = block_on(w.it.store.record(w.node, vec![recording(claim, vec![entry("a", b"1")]), bad]));
    assert!(matches!(refused, Err(Error::Invalid { what: "child", .. })), "{refused:?}");
    assert_eq!((w.rows("steps"), w.rows("jobs")), (0, 1));
}

#[test]
fn the_check_finds_sleepers_and_what_nobody_owns() {
    let mut w = World::new();
    let id = w.add();
    let claim = w.claim_one().claim;
    w.finish(claim, suspend(Reason::Signal, wait_go(1), None));
    assert_eq!(w.findings(), [""; 0]);
    let conn = w.it.raw();
    conn.execute_batch(
        "INSERT INTO mainspring_inbox (no, subject, sender, at, body) VALUES (1, 's:go', 'me', 1, x'31');
         INSERT INTO mainspring_steps (no, key, kind, overlapped, claim, at, value)
            VALUES (77, 'a', 0, 0, 1, 1, x'31');
         INSERT INTO mainspring_children VALUES (1, 78, 0)",
    )
    .expect("damaged");
    let findings = w.findings();
    for what in [
        "job number 1 waits for what it has been sent",
        "steps holds number 77, which is no job",
        "children holds number 78, which is no job",
        "job number 1 has a family that its place does not know of",
    ] {
        assert!(findings.iter().any(|found| found == what), "{what}: {findings:?}");
    }
    conn.execute_batch("DELETE FROM mainspring_steps; DELETE FROM mainspring_children").expect("mended");
    block_on(w.it.store.change(vec![id], Verb::Resume, false)).expect("resumed");
    assert_eq!(w.findings(), [""; 0]);
    conn.execute_batch("UPDATE mainspring_ready SET flags = 0").expect("damaged");
    assert_eq!(w.findings(), ["job number 1 has a journal that its place does not know of"]);
}

#[derive(Default)]
struct HintLog(Mutex<Vec<Hint>>);

impl Listener for HintLog {
    fn hint(&self, hint: &Hint) {
        self.0.lock().expect("a lock").push(hint.clone());
    }
}

#[test]
fn running_jobs_are_told_of_messages_and_sleepers_of_their_time() {
    let mut w = World::new();
    let id = w.add();
    let claim = w.claim_one().claim;
    let heard = Arc::new(HintLog::default());
    let listener: Arc<dyn Listener> = heard.clone();
    w.it.store.subscribe(Arc::downgrade(&listener));
    w.signal(signal(id, "me"));
    let until = w.it.seams.clock.now().after(SECOND);
    w.finish(claim, suspend(Reason::Timer, Vec::new(), Some(until)));
    let heard: Vec<Hint> =
        heard.0.lock().expect("a lock").iter().filter(|hint| **hint != Hint::Foreign).cloned().collect();
    assert_eq!(heard, [Hint::Message(id), Hint::Due(until)]);
}
