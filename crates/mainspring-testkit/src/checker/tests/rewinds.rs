//! Forks and retries from a step: what is taken back may be done again, and nothing else.

use mainspring_core::journal::EntryKind;
use mainspring_core::name::Key;

use super::workflows::{letter, line};
use super::*;
use crate::history::{JournalWrites, Line};

const GROW: &str = "claim numbers grow";
const STAYS: &str = "what is recorded stays as it was";
const AGAIN: &str = "what is recorded is not done again";

fn lines(keys: &[&str]) -> Vec<Line> {
    keys.iter().map(|key| line(key, 7)).collect()
}

impl TestHistory {
    fn rewound(&mut self, from: &str, claim: u32) -> &mut Self {
        let from = Key::new(from).expect("a key");
        self.verb(1, "rewind").see(8, Fact::Rewound { id: id(1), from, claim })
    }

    /// A claim that is given these, after a retry from a step that followed claim 1.
    fn anew(&mut self, from: &str, given: &[&str]) -> &mut Self {
        self.ended(1, 1, 1, EndKind::Snooze, true).rewound(from, 1);
        self.given(1, 1, 3, lines(given), Vec::new())
    }

    fn holds(mut self) {
        self.ended(1, 1, 3, EndKind::Succeed, true).succeeded(1, 3);
        assert_eq!(self.rules(EXACT), Vec::<&str>::new());
    }

    fn fails(mut self, rule: &str) {
        self.ended(1, 1, 3, EndKind::Succeed, true).succeeded(1, 3);
        self.breaks(rule);
    }
}

/// A workflow in its first claim that has recorded these, one by one.
fn did(keys: &[&str]) -> TestHistory {
    let mut case = TestHistory::default();
    case.joined(1).stored(1).claimed(1, 1, 1);
    for key in keys {
        case.ran(1, 1, key).recorded(1, 1, 1, key, 7);
    }
    case
}

#[test]
fn what_is_taken_back_is_done_again_and_nothing_else() {
    let mut case = did(&["a", "b", "c"]);
    case.anew("b", &["a"]).ran(1, 3, "b").recorded(1, 1, 3, "b", 8).ran(1, 3, "c").recorded(1, 1, 3, "c", 9);
    case.holds();
    // It is gone, and what came before is not.
    for given in [vec!["a", "b"], vec!["a", "c"], vec![]] {
        let mut case = did(&["a", "b", "c"]);
        case.anew("b", &given);
        case.fails(STAYS);
    }
    let mut case = did(&["a", "b", "c"]);
    case.anew("b", &["a"]).entered(1, 3, "a");
    case.fails(AGAIN);
}

#[test]
fn a_retry_from_a_step_takes_a_number() {
    let mut case = did(&["a"]);
    case.ended(1, 1, 1, EndKind::Snooze, true).rewound("a", 1).given(1, 1, 2, Vec::new(), Vec::new());
    case.ended(1, 1, 2, EndKind::Succeed, true).succeeded(1, 2);
    case.breaks(GROW);
    // A repeat finds another number.
    let mut case = did(&["a"]);
    case.ended(1, 1, 1, EndKind::Snooze, true).rewound("a", 1).rewound("a", 1);
    case.given(1, 1, 3, Vec::new(), Vec::new());
    case.fails(GROW);
    // So a handler that was kept does not go on.
    let mut case = did(&["a", "b"]);
    case.suspended(1, 1, &[], Some(at(0))).rewound("b", 1).given(1, 1, 3, lines(&["a"]), Vec::new());
    case.see(1, Fact::Entered { id: id(1), claim: 3, since: 1, key: "b".into(), once: false });
    case.fails("who goes on was suspended");
}

#[test]
fn a_success_is_final() {
    let mut case = did(&["a"]);
    case.ended(1, 1, 1, EndKind::Succeed, true).rewound("a", 1).given(1, 1, 3, Vec::new(), Vec::new());
    case.fails("what has ended stays ended");
    let mut case = did(&["a"]);
    case.ended(1, 1, 1, EndKind::Cancel, true).rewound("a", 1).given(1, 1, 3, Vec::new(), Vec::new());
    case.holds();
}

#[test]
fn what_is_done_once_is_done_once_more_if_it_was_taken_back() {
    let once = |claim| Fact::Entered { id: id(1), claim, since: claim, key: "o".into(), once: true };
    let case = |from: &str, given: &[&str]| {
        let mut case = did(&["a"]);
        case.see(1, once(1)).recorded(1, 1, 1, "o", 7).recorded(1, 1, 1, "b", 7);
        case.anew(from, given).see(1, once(3));
        case
    };
    case("a", &[]).holds();
    case("o", &["a"]).holds();
    case("b", &["a", "o"]).fails(AGAIN);
    // Nor does it begin again if all that is known of it is that it had begun.
    let mut case = did(&["a"]);
    case.see(1, once(1)).recorded(1, 1, 1, "b", 7).anew("b", &["a"]).see(1, once(3));
    case.fails("a body runs once, and once more when it was lost");
}

/// A workflow that has read a message, and recorded something after that.
fn heard(from: &str, given: &[&str], inbox: &[i64]) -> TestHistory {
    let mut case = did(&["a"]);
    case.signalled(1).see(1, Fact::Delivered { id: id(1), claim: 1, inbox: vec![letter(1)] });
    let received = Line { kind: EntryKind::Received, ..line("go", 7) };
    case.writes(
        1,
        1,
        1,
        JournalWrites { entries: vec![received.clone()], read: vec![1], ..JournalWrites::default() },
    );
    case.recorded(1, 1, 1, "b", 7).ended(1, 1, 1, EndKind::Snooze, true).rewound(from, 1);
    let given = given.iter().map(|key| if *key == "go" { received.clone() } else { line(key, 7) });
    let (given, inbox) = (given.collect(), inbox.iter().map(|no| letter(*no)).collect());
    case.given(1, 1, 3, given, inbox);
    case
}

#[test]
fn messages_are_unread_again_if_what_came_of_them_is_taken_back() {
    let mut case = heard("go", &["a"], &[1]);
    case.writes(1, 1, 3, JournalWrites { read: vec![1], ..JournalWrites::default() });
    case.holds();
    heard("go", &["a"], &[]).fails("messages are not lost");
    heard("b", &["a", "go"], &[]).holds();
    heard("b", &["a", "go"], &[1]).fails("messages are read once");
    let mut case = heard("b", &["a", "go"], &[]);
    case.writes(1, 1, 3, JournalWrites { read: vec![1], ..JournalWrites::default() });
    case.fails("messages are read once");
}

#[test]
fn a_race_that_is_taken_back_is_decided_anew() {
    let raced = |from: &str, given: &[&str]| {
        let decided = |claim, digest| Fact::Decided { id: id(1), claim, key: "race".into(), digest };
        let mut case = did(&["race/a/x"]);
        let forget = vec![Key::new("race/a/x").expect("a key")];
        case.writes(1, 1, 1, JournalWrites { entries: lines(&["race"]), forget, ..JournalWrites::default() });
        case.see(1, decided(1, 7)).recorded(1, 1, 1, "b", 7).anew(from, given).see(1, decided(3, 8));
        case
    };
    let mut case = raced("race", &[]);
    case.ran(1, 3, "race/a/x");
    case.holds();
    raced("b", &["race"]).fails("a race has one winner");
    let mut case = raced("race", &[]);
    case.recorded(1, 1, 3, "race", 8).entered(1, 3, "race/a/x");
    case.fails("nothing is done in a scope that has ended");
}

#[test]
fn a_loop_that_is_taken_back_begins_anew() {
    let looped = |from: &str, given: &[&str]| {
        let mut case = did(&["a", "loop/1/x"]);
        let turned = |key: &str, gone: &str| {
            let forget = vec![Key::new(gone).expect("a key")];
            JournalWrites { entries: lines(&[key]), forget, ..JournalWrites::default() }
        };
        case.writes(1, 1, 1, turned("loop#turn=1", "loop/1/x"));
        case.writes(1, 1, 1, turned("loop#turn=2", "loop#turn=1"));
        case.recorded(1, 1, 1, "b", 7).anew(from, given);
        case
    };
    for from in ["a", "loop"] {
        let mut case = looped(from, if from == "a" { &[] } else { &["a"] });
        case.ran(1, 3, "loop/1/x").recorded(1, 1, 3, "loop#turn=1", 7);
        case.holds();
    }
    let mut case = looped("b", &["a", "loop#turn=2"]);
    case.recorded(1, 1, 3, "loop#turn=1", 7);
    case.fails("turns go up by one");
    let mut case = looped("b", &["a", "loop#turn=2"]);
    case.entered(1, 3, "loop/2/x");
    case.fails("nothing is done in a scope that has ended");
}

#[test]
fn a_step_that_is_done_again_makes_another_token() {
    let redeemed = || Fact::Redeemed { id: id(1), key: "ask".into(), good: true };
    let asked = |from: &str, given: &[&str]| {
        let mut case = did(&["ask", "b"]);
        case.see(9, redeemed()).anew(from, given).see(9, redeemed());
        case
    };
    asked("ask", &[]).holds();
    asked("b", &["ask"]).fails("a token is good for one signal");
}

#[test]
fn a_parent_that_is_brought_back_may_have_other_children() {
    let family = |back: bool| {
        let mut case = did(&["a"]);
        case.ended(1, 1, 1, EndKind::Cancel, true);
        if back {
            case.rewound("a", 1).given(1, 1, 3, Vec::new(), Vec::new());
        }
        case.see(1, Fact::Belongs { id: id(2), parent: id(1), abandoned: false });
        case.stored(2).claimed(1, 2, 1).ended(1, 2, 1, EndKind::Succeed, true);
        case.succeeded(2, 1);
        case
    };
    family(true).holds();
    let mut case = family(false);
    case.found(1, Status::because(State::Cancelled, Reason::Operator), 1);
    case.breaks("children end with their parents");
}

#[test]
fn what_a_fork_shares_is_not_done_again() {
    let forked = |given: &[&str]| {
        let mut case = TestHistory::default();
        case.joined(1).see(9, Fact::Asked { id: id(1), unique: None, delay: 0 });
        let entries = lines(&["a", "loop#turn=4"]);
        case.see(
            9,
            Fact::Shares { id: id(1), writes: JournalWrites { entries, ..JournalWrites::default() } },
        );
        case.see(9, Fact::Acknowledged { id: id(1), told: EnqueueAnswer::Created });
        case.given(1, 1, 1, lines(given), Vec::new());
        case
    };
    let ends = |mut case: TestHistory| {
        case.ended(1, 1, 1, EndKind::Succeed, true).succeeded(1, 1);
        case
    };
    let all = ["a", "loop#turn=4"];
    let mut case = forked(&all);
    case.ran(1, 1, "loop/5/x").recorded(1, 1, 1, "b", 7);
    assert_eq!(ends(case).rules(EXACT), Vec::<&str>::new());
    let mut case = forked(&all);
    case.entered(1, 1, "a");
    ends(case).breaks(AGAIN);
    let mut case = forked(&all);
    case.entered(1, 1, "loop/4/x");
    ends(case).breaks("nothing is done in a scope that has ended");
    ends(forked(&["a"])).breaks(STAYS);
    ends(forked(&["a", "b", "loop#turn=4"])).breaks(STAYS);
}
