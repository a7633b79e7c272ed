//! The rules of races, maps, loops, changed code and tokens: each catches a bad history.

use mainspring_core::name::Key;

use super::workflows::line;
use super::*;
use crate::history::{JournalWrites, Line};

fn key(key: &str) -> Key {
    Key::new(key).expect("a key")
}

/// Results of these keys, in place of those.
fn instead(entries: &[&str], forget: &[&str]) -> JournalWrites {
    let entries = entries.iter().map(|key| line(key, 7)).collect();
    JournalWrites { entries, forget: forget.iter().map(|one| key(one)).collect(), ..JournalWrites::default() }
}

/// A workflow of one job on one node, in its first claim.
fn begun() -> TestHistory {
    let mut case = TestHistory::default();
    case.joined(1).stored(1).claimed(1, 1, 1);
    case
}

/// Its second claim, which is given these.
fn again(case: &mut TestHistory, entries: &[&str]) {
    case.ended(1, 1, 1, EndKind::Snooze, true);
    let entries: Vec<Line> = entries.iter().map(|key| line(key, 7)).collect();
    case.given(1, 1, 2, entries, Vec::new());
}

fn ends(mut case: TestHistory, claim: u32) -> TestHistory {
    case.ended(1, 1, claim, EndKind::Succeed, true);
    case.succeeded(1, claim);
    case
}

fn decided(claim: u32, digest: u64) -> Fact {
    Fact::Decided { id: id(1), claim, key: "race".into(), digest }
}

/// A race with a step in each arm, the first of which has won.
fn raced() -> TestHistory {
    let mut case = begun();
    case.ran(1, 1, "race/a/x").recorded(1, 1, 1, "race/a/x", 7).ran(1, 1, "race/b/x");
    case.recorded(1, 1, 1, "race/b/x", 7).see(1, decided(1, 7));
    case.writes(1, 1, 1, instead(&["race"], &["race/a/x", "race/b/x"]));
    case
}

#[test]
fn a_good_race_breaks_nothing() {
    let mut case = raced();
    again(&mut case, &["race"]);
    case.see(1, decided(2, 7)).ran(1, 2, "b").recorded(1, 1, 2, "b", 7);
    assert_eq!(ends(case, 2).rules(EXACT), Vec::<&str>::new());
    // Before anything is recorded, nobody has won.
    let mut case = begun();
    case.see(1, decided(1, 8));
    again(&mut case, &[]);
    case.see(1, decided(2, 7)).recorded(1, 1, 2, "race", 7);
    assert_eq!(ends(case, 2).rules(EXACT), Vec::<&str>::new());
}

#[test]
fn a_race_has_one_winner() {
    let mut case = raced();
    again(&mut case, &["race"]);
    case.see(1, decided(2, 8));
    ends(case, 2).breaks("a race has one winner");
}

#[test]
fn nothing_is_done_in_a_scope_that_has_ended() {
    let rule = "nothing is done in a scope that has ended";
    let mut case = raced();
    case.entered(1, 1, "race/b/y");
    ends(case, 1).breaks(rule);
    let mut case = raced();
    again(&mut case, &["race"]);
    case.entered(1, 2, "race/b/deep/y");
    ends(case, 2).breaks(rule);
    // Turns are scopes.
    let mut case = begun();
    case.ran(1, 1, "loop/1/x").recorded(1, 1, 1, "loop/1/x", 7);
    case.writes(1, 1, 1, instead(&["loop#turn=1"], &["loop/1/x"])).entered(1, 1, "loop/1/y");
    ends(case, 1).breaks(rule);
}

#[test]
fn scopes_take_along_what_they_recorded() {
    let rule = "a scope takes along what it recorded";
    let mut case = begun();
    case.recorded(1, 1, 1, "race/a/x", 7).recorded(1, 1, 1, "race/b/x", 7);
    case.writes(1, 1, 1, instead(&["race"], &["race/a/x"]));
    ends(case, 1).breaks(rule);
    // A record that comes twice stays behind, and does no harm.
    let mut case = raced();
    case.recorded(1, 1, 1, "race/a/x", 7);
    assert_eq!(ends(case, 1).rules(EXACT), Vec::<&str>::new());
    // A loop keeps neither earlier turns nor earlier states.
    let mut case = begun();
    case.recorded(1, 1, 1, "loop/1/x", 7).writes(1, 1, 1, instead(&["loop#turn=1"], &[]));
    ends(case, 1).breaks(rule);
    let mut case = begun();
    case.writes(1, 1, 1, instead(&["loop#turn=1"], &[])).writes(1, 1, 1, instead(&["loop#turn=2"], &[]));
    ends(case, 1).breaks(rule);
}

#[test]
fn children_of_losers_are_cancelled_before_their_records_go() {
    let child = Line { kind: mainspring_core::journal::EntryKind::Child, ..line("race/b/c", 7) };
    let started = JournalWrites { entries: vec![child], ..JournalWrites::default() };
    let mut case = begun();
    case.writes(1, 1, 1, started.clone()).writes(1, 1, 1, instead(&["race"], &[]));
    case.writes(1, 1, 1, instead(&["b"], &["race/b/c"]));
    assert_eq!(ends(case, 1).rules(EXACT), Vec::<&str>::new());
    // One that was not waited for stays, until it was.
    let mut case = begun();
    case.writes(1, 1, 1, started.clone()).writes(1, 1, 1, instead(&["race"], &[]));
    assert_eq!(ends(case, 1).rules(EXACT), Vec::<&str>::new());
    let mut case = begun();
    case.writes(1, 1, 1, started).recorded(1, 1, 1, "race/b/c#result", 7);
    case.writes(1, 1, 1, instead(&["race"], &["race/b/c#result"]));
    assert_eq!(ends(case, 1).rules(EXACT), Vec::<&str>::new());
}

#[test]
fn turns_go_up_by_one() {
    let rule = "turns go up by one";
    let first = || {
        let mut case = begun();
        case.writes(1, 1, 1, instead(&["loop#turn=1"], &[]));
        case
    };
    let mut case = first();
    case.writes(1, 1, 1, instead(&["loop#turn=2"], &["loop#turn=1"]));
    case.writes(1, 1, 1, instead(&["loop"], &["loop#turn=2"]));
    assert_eq!(ends(case, 1).rules(EXACT), Vec::<&str>::new());
    let mut case = first();
    case.writes(1, 1, 1, instead(&["loop#turn=3"], &["loop#turn=1"]));
    ends(case, 1).breaks(rule);
    let mut case = first();
    case.writes(1, 1, 1, instead(&["b", "loop#turn=1"], &[]));
    ends(case, 1).breaks(rule);
}

fn renamed(declared: bool) -> Fact {
    Fact::Renamed { id: id(1), from: "a".into(), to: "b".into(), declared }
}

#[test]
fn nothing_is_done_again_under_another_name() {
    for declared in [true, false] {
        let mut case = begun();
        case.see(9, renamed(declared)).ran(1, 1, "a").recorded(1, 1, 1, "a", 7);
        again(&mut case, &["a"]);
        case.entered(1, 2, "b");
        ends(case, 2).breaks("nothing is done again under another name");
    }
    // What is not recorded may begin under any name.
    let mut case = begun();
    case.see(9, renamed(false)).entered(1, 1, "a");
    again(&mut case, &[]);
    case.ran(1, 2, "b").recorded(1, 1, 2, "b", 7);
    assert_eq!(ends(case, 2).rules(EXACT), Vec::<&str>::new());
}

#[test]
fn what_fits_is_not_held() {
    let held = |declared| {
        let mut case = begun();
        case.see(9, renamed(declared)).ran(1, 1, "a").recorded(1, 1, 1, "a", 7);
        again(&mut case, &["a"]);
        case.suspended(1, 2, &[], None);
        case.found(1, Status::because(State::Suspended, Reason::Drift), 2);
        case
    };
    held(true).breaks("what fits is not held");
    assert_eq!(held(false).rules(EXACT), Vec::<&str>::new());
}

#[test]
fn a_token_is_good_for_one_signal() {
    let redeemed = |good| Fact::Redeemed { id: id(1), key: "ask".into(), good };
    let mut case = begun();
    case.see(9, redeemed(true)).see(9, redeemed(false));
    assert_eq!(ends(case, 1).rules(EXACT), Vec::<&str>::new());
    let mut case = begun();
    case.see(9, redeemed(true)).see(8, redeemed(true));
    ends(case, 1).breaks("a token is good for one signal");
}
