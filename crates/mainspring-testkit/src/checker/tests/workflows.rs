//! The rules of workflows: each catches a bad history.

use mainspring_core::journal::EntryKind;
use mainspring_core::name::Key;

use super::*;
use crate::history::{InboxMessage, JournalWrites, Line, SignalAnswer};

pub(super) fn line(key: &str, digest: u64) -> Line {
    Line { key: Key::new(key).expect("a key"), kind: EntryKind::Value, digest: Some(digest) }
}

pub(super) fn letter(no: i64) -> InboxMessage {
    InboxMessage { no, subject: "s:go".into(), sender: "somebody".into() }
}

impl TestHistory {
    pub(super) fn entered(&mut self, job: u8, claim: u32, key: &str) -> &mut Self {
        let fact = Fact::Entered { id: id(job), claim, since: claim, key: key.into(), once: false };
        self.see(1, fact)
    }

    pub(super) fn ran(&mut self, job: u8, claim: u32, key: &str) -> &mut Self {
        self.entered(job, claim, key).see(1, Fact::Ran { id: id(job), claim, key: key.into() })
    }

    pub(super) fn writes(&mut self, node: u32, job: u8, claim: u32, writes: JournalWrites) -> &mut Self {
        let (id, node) = (id(job), NodeNo(node.into()));
        self.see(1, Fact::Recording { node, id, claim });
        self.see(1, Fact::Recorded { node, id, claim, stored: true, writes })
    }

    pub(super) fn recorded(&mut self, node: u32, job: u8, claim: u32, key: &str, digest: u64) -> &mut Self {
        self.writes(
            node,
            job,
            claim,
            JournalWrites { entries: vec![line(key, digest)], ..JournalWrites::default() },
        )
    }

    pub(super) fn suspended(
        &mut self,
        job: u8,
        claim: u32,
        waits: &[(&str, u32)],
        until: Option<Timestamp>,
    ) -> &mut Self {
        let waits = waits.iter().map(|(subject, need)| ((*subject).to_owned(), *need)).collect();
        let fact = Fact::Suspending { id: id(job), claim, waits, until, writes: JournalWrites::default() };
        self.see(1, fact).ended(1, job, claim, EndKind::Suspend, true)
    }

    /// A claim that is given a past.
    pub(super) fn given(
        &mut self,
        node: u32,
        job: u8,
        claim: u32,
        entries: Vec<Line>,
        inbox: Vec<InboxMessage>,
    ) -> &mut Self {
        let (node_no, now) = (NodeNo(node.into()), at(self.history.len()));
        let claimed = Fact::Claimed {
            node: node_no,
            id: id(job),
            claim,
            crashes: 0,
            crashed: 60_000_000,
            ahead: false,
            now,
        };
        self.see(node, claimed);
        self.see(node, Fact::Remembers { id: id(job), claim, entries, inbox, more: false });
        self.see(node, Fact::Began { id: id(job), claim })
    }

    pub(super) fn signalled(&mut self, job: u8) -> &mut Self {
        let (subject, sender) = ("s:go".into(), "somebody".into());
        self.see(9, Fact::Signalled { id: id(job), subject, sender, answer: SignalAnswer::Stored })
    }
}

#[test]
fn what_is_dropped_is_gone_and_no_repeat_of_it_comes() {
    let rule = "what is dropped is gone, and no repeat of it comes";
    let dropped = |sender: Option<&str>| Fact::Dropped {
        id: id(1),
        subject: "s:go".into(),
        sender: sender.map(Into::into),
        count: 1,
    };
    let mut given = TestHistory::default();
    given.joined(1).stored(1).signalled(1).see(8, dropped(None)).given(1, 1, 1, Vec::new(), vec![letter(1)]);
    given.breaks_too(rule);
    let mut repeated = TestHistory::default();
    repeated.joined(1).stored(1).signalled(1).see(8, dropped(Some("somebody"))).signalled(1);
    repeated.breaks_too(rule);
    let mut another = TestHistory::default();
    another.joined(1).stored(1).signalled(1).see(8, dropped(Some("another")));
    another.given(1, 1, 1, Vec::new(), vec![letter(1)]);
    assert!(!another.rules(EXACT).contains(&rule));
    // Nobody is to be given what was dropped.
    let mut lost = TestHistory::default();
    lost.joined(1).stored(1).signalled(1).see(8, dropped(None)).claimed(1, 1, 1);
    assert!(!lost.rules(EXACT).contains(&"messages are not lost"));
    // Whom it has woken before finds nothing.
    let woken = |count: usize| {
        let mut case = TestHistory::default();
        case.joined(1).stored(1).claimed(1, 1, 1).suspended(1, 1, &[("s:go", 1)], None);
        let fact = Fact::Dropped { id: id(1), subject: "s:go".into(), sender: None, count };
        case.see(8, fact).claimed(1, 1, 2);
        case.rules(EXACT).contains(&"who sleeps is woken in time")
    };
    assert!(woken(0) && !woken(1));
}

#[test]
fn what_does_not_fit_is_set_aside() {
    let met = |read: Vec<i64>| {
        let mut case = TestHistory::default();
        case.joined(1).stored(1).signalled(1).given(1, 1, 1, Vec::new(), vec![letter(1)]);
        case.writes(
            1,
            1,
            1,
            JournalWrites { entries: vec![line("go#unfit", 1)], read, ..JournalWrites::default() },
        );
        case.see(1, Fact::Unfit { id: id(1), since: 1, key: "go".into() });
        case.rules(EXACT).contains(&"what does not fit is set aside")
    };
    assert!(met(Vec::new()) && !met(vec![1]));
}

/// A workflow with one step, which is put off afterwards.
fn half_done() -> TestHistory {
    let mut case = TestHistory::default();
    case.joined(1).stored(1).claimed(1, 1, 1).ran(1, 1, "a").recorded(1, 1, 1, "a", 7);
    case.ended(1, 1, 1, EndKind::Snooze, true);
    case
}

fn ends(mut case: TestHistory, claim: u32) -> TestHistory {
    case.ended(1, 1, claim, EndKind::Succeed, true);
    case.succeeded(1, claim);
    case
}

#[test]
fn a_good_workflow_breaks_nothing() {
    let mut case = half_done();
    case.signalled(1).given(1, 1, 2, vec![line("a", 7)], vec![letter(1)]);
    case.writes(1, 1, 2, JournalWrites { read: vec![1], ..JournalWrites::default() });
    case.suspended(1, 2, &[], Some(at(0))).given(1, 1, 3, vec![line("a", 7)], Vec::new());
    case.ran(1, 3, "b").recorded(1, 1, 3, "b", 8);
    assert_eq!(ends(case, 3).rules(EXACT), Vec::<&str>::new());
}

#[test]
fn records_stay_as_they_were() {
    let rule = "what is recorded stays as it was";
    for entries in [vec![line("a", 8)], vec![], vec![line("a", 7), line("b", 7)]] {
        let mut case = half_done();
        case.given(1, 1, 2, entries, Vec::new());
        ends(case, 2).breaks(rule);
    }
    // Not even told that there is a past.
    let mut case = half_done();
    case.claimed(1, 1, 2);
    ends(case, 2).breaks(rule);
    // What gives way must be told, unless whoever knew was killed before he could tell.
    for (before, after) in [("s/x", "s"), ("l#turn=1", "l#turn=2"), ("l/1/x", "l#turn=1"), ("l#turn=1", "l")]
    {
        let gives_way = || {
            let mut case = half_done();
            case.given(1, 1, 2, vec![line("a", 7)], Vec::new()).recorded(1, 1, 2, before, 7);
            case.ended(1, 1, 2, EndKind::Snooze, true);
            case.given(1, 1, 3, vec![line("a", 7), line(after, 8)], Vec::new());
            ends(case, 3)
        };
        gives_way().breaks(rule);
        assert_eq!(gives_way().rules(CheckTerms { exact: false, ..EXACT }), Vec::<&str>::new(), "{before}");
    }
    // An error may be taken back.
    let mut case = half_done();
    case.given(1, 1, 2, vec![line("a", 7)], Vec::new());
    case.writes(
        1,
        1,
        2,
        JournalWrites { forget: vec![Key::new("a").expect("a key")], ..JournalWrites::default() },
    );
    case.ended(1, 1, 2, EndKind::Snooze, true).given(1, 1, 3, Vec::new(), Vec::new());
    assert_eq!(ends(case, 3).rules(EXACT), Vec::<&str>::new());
}

#[test]
fn only_owners_record() {
    let rule = "only the owner records";
    let mut case = half_done();
    case.given(1, 1, 2, vec![line("a", 7)], Vec::new()).recorded(1, 1, 1, "b", 8);
    ends(case, 2).breaks(rule);
    let mut case = half_done();
    case.joined(2).given(1, 1, 2, vec![line("a", 7)], Vec::new()).recorded(2, 1, 2, "b", 8);
    ends(case, 2).breaks(rule);
}

#[test]
fn what_is_recorded_is_not_done_again() {
    let mut case = half_done();
    case.given(1, 1, 2, vec![line("a", 7)], Vec::new()).entered(1, 2, "a");
    ends(case, 2).breaks("what is recorded is not done again");
}

#[test]
fn bodies_run_again_only_when_they_were_lost() {
    let rule = "a body runs once, and once more when it was lost";
    let mut case = TestHistory::default();
    case.joined(1).stored(1).claimed(1, 1, 1).ran(1, 1, "a").ended(1, 1, 1, EndKind::Snooze, true);
    case.claimed(1, 1, 2).ran(1, 2, "a").recorded(1, 1, 2, "a", 7);
    ends(case, 2).breaks(rule);
    let mut case = TestHistory::default();
    case.joined(1).joined(2).stored(1).claimed(1, 1, 1).ran(1, 1, "a").fault("kill", 1).expired(1);
    case.claimed_after(2, 1, 2, 1).ran(1, 2, "a").recorded(2, 1, 2, "a", 7).ended(
        2,
        1,
        2,
        EndKind::Succeed,
        true,
    );
    case.succeeded(1, 2);
    assert_eq!(case.rules(EXACT), Vec::<&str>::new());
    let mut case = TestHistory::default();
    let once = |claim| Fact::Entered { id: id(1), claim, since: claim, key: "o".into(), once: true };
    case.joined(1).stored(1).claimed(1, 1, 1).see(1, once(1)).ended(1, 1, 1, EndKind::Retry, true);
    case.claimed(1, 1, 2).see(1, once(2)).ended(1, 1, 2, EndKind::Succeed, true);
    case.succeeded(1, 2).failures = 1;
    case.breaks(rule);
}

#[test]
fn what_is_seen_is_recorded() {
    let rule = "what a handler has seen is recorded";
    let saw = |rides| Fact::Saw { id: id(1), since: 1, key: "a".into(), digest: Some(7), rides };
    let mut case = TestHistory::default();
    case.joined(1).stored(1).claimed(1, 1, 1).see(1, saw(false)).recorded(1, 1, 1, "a", 7);
    ends(case, 1).breaks(rule);
    let mut case = TestHistory::default();
    case.joined(1).stored(1).claimed(1, 1, 1).see(1, saw(true)).ran(1, 1, "b").recorded(1, 1, 1, "a", 7);
    ends(case, 1).breaks(rule);
    let mut case = TestHistory::default();
    case.joined(1).stored(1).claimed(1, 1, 1).see(1, saw(true)).recorded(1, 1, 1, "a", 7).ran(1, 1, "b");
    assert_eq!(ends(case, 1).rules(EXACT), Vec::<&str>::new());
}

#[test]
fn who_goes_on_was_suspended_by_every_claim_before() {
    let later = Fact::Entered { id: id(1), claim: 3, since: 1, key: "b".into(), once: false };
    let history = |refused: bool| {
        let mut case = TestHistory::default();
        case.joined(1).stored(1).claimed(1, 1, 1);
        if refused {
            case.ended(1, 1, 1, EndKind::Suspend, false);
        } else {
            case.suspended(1, 1, &[], Some(at(0)));
        }
        case.given(1, 1, 2, Vec::new(), Vec::new()).suspended(1, 2, &[], Some(at(0)));
        case.given(1, 1, 3, Vec::new(), Vec::new()).see(1, later.clone());
        case.rules(EXACT)
    };
    let rule = "who goes on was suspended";
    assert!(history(true).contains(&rule) && !history(false).contains(&rule));
}

#[test]
fn results_are_those_of_peace() {
    let mut case = TestHistory::default();
    case.joined(1).stored(1).see(9, Fact::Expects { id: id(1), results: vec![1, 2] }).claimed(1, 1, 1);
    case.see(1, Fact::Returns { id: id(1), claim: 1, result: 3 });
    ends(case, 1).breaks("a workflow comes to what it comes to in peace");
}

#[test]
fn messages_are_read_once() {
    let rule = "messages are read once";
    let read = || JournalWrites { read: vec![1], ..JournalWrites::default() };
    let mut case = half_done();
    case.given(1, 1, 2, vec![line("a", 7)], vec![letter(1)]).writes(1, 1, 2, read());
    case.ended(1, 1, 2, EndKind::Snooze, true).given(1, 1, 3, vec![line("a", 7)], vec![letter(1)]);
    ends(case, 3).breaks(rule);
    let mut case = half_done();
    case.given(1, 1, 2, vec![line("a", 7)], vec![letter(1)]).writes(1, 1, 2, read());
    case.writes(1, 1, 2, JournalWrites { entries: vec![line("b", 7)], ..read() });
    ends(case, 2).breaks(rule);
}

#[test]
fn messages_are_not_lost() {
    let rule = "messages are not lost";
    let mut case = half_done();
    case.signalled(1).given(1, 1, 2, vec![line("a", 7)], Vec::new());
    ends(case, 2).breaks(rule);
    // The end of a child is a message too.
    let mut case = half_done();
    case.see(1, Fact::Belongs { id: id(2), parent: id(1), abandoned: false });
    case.stored(2).claimed(1, 2, 1).ended(1, 2, 1, EndKind::Succeed, true);
    case.succeeded(2, 1);
    case.given(1, 1, 2, vec![line("a", 7)], Vec::new());
    ends(case, 2).breaks(rule);
}

#[test]
fn sleepers_are_woken_in_time() {
    let rule = "who sleeps is woken in time";
    let mut case = half_done();
    case.given(1, 1, 2, vec![line("a", 7)], Vec::new()).suspended(1, 2, &[("s:go", 1)], Some(at(500)));
    case.given(1, 1, 3, vec![line("a", 7)], Vec::new());
    ends(case, 3).breaks(rule);
}

#[test]
fn children_end_with_their_parents() {
    let rule = "children end with their parents";
    let mut case = half_done();
    case.see(1, Fact::Belongs { id: id(2), parent: id(1), abandoned: false });
    case.stored(2).given(1, 1, 2, vec![line("a", 7)], Vec::new());
    let mut case = ends(case, 2);
    case.claimed(1, 2, 1).ended(1, 2, 1, EndKind::Succeed, true);
    case.succeeded(2, 1);
    case.breaks(rule);
}
