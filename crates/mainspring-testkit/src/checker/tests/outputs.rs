//! The rule of what workflows say catches bad outputs.

use mainspring_core::name::Key;
use mainspring_core::output::{OutputItem, What};

use super::*;
use crate::history::{JournalWrites, OutputFrame, digest};

const RULE: &str = "what a workflow says is told once, and in order";

/// A frame of the handler, of a step, or a reset.
enum SaidFrame {
    Frame(Option<&'static str>, &'static str),
    Reset(Option<&'static str>, u64),
}
use SaidFrame::{Frame, Reset};

/// A workflow that is to say `a`, then `b` and `c` in a step, then `d`; and what the store has of it.
fn said(says: &[SaidFrame]) -> TestHistory {
    let mut case = TestHistory::default();
    let word = |step: Option<&str>, text: &str| OutputFrame {
        step: step.map(ToOwned::to_owned),
        digest: digest(text.as_bytes()),
    };
    let words = vec![word(None, "a"), word(Some("x"), "b"), word(Some("x"), "c"), word(None, "d")];
    case.see(9, Fact::Says { id: id(1), words });
    let items = says.iter().zip(1..).map(|(say, position)| {
        let (step, what) = match say {
            Frame(step, text) => (step, What::Frame(text.as_bytes().to_vec())),
            Reset(step, from) => (step, What::Reset { from: *from }),
        };
        let step = step.map(|step| Key::new(step).expect("a key"));
        OutputItem { position, at: at(0), claim: 1, step, what }
    });
    case.found.outputs.insert(id(1), items.collect());
    case.joined(1).stored(1).claimed(1, 1, 1);
    case
}

fn succeeded(says: &[SaidFrame]) -> TestHistory {
    let mut case = said(says);
    case.ended(1, 1, 1, EndKind::Succeed, true).succeeded(1, 1);
    case
}

fn failed(says: &[SaidFrame]) -> TestHistory {
    let mut case = said(says);
    case.ended(1, 1, 1, EndKind::Fail, true);
    let job = case.found(1, Status::because(State::Failed, Reason::Exhausted), 1);
    (job.failures, job.options.max_attempts) = (1, 1);
    case
}

/// The frames that are expected.
fn peace() -> [SaidFrame; 4] {
    [Frame(None, "a"), Frame(Some("x"), "b"), Frame(Some("x"), "c"), Frame(None, "d")]
}

#[test]
fn what_is_said_once_and_in_order_breaks_nothing() {
    assert_eq!(succeeded(&peace()).rules(EXACT), Vec::<&str>::new());
    let again = [
        Frame(None, "a"),
        Frame(Some("x"), "b"),
        Reset(None, 1),
        Frame(None, "a"),
        Reset(Some("x"), 2),
        Frame(Some("x"), "b"),
        Frame(Some("x"), "c"),
        Frame(None, "d"),
    ];
    assert_eq!(succeeded(&again).rules(EXACT), Vec::<&str>::new());
    // It ends before it comes to that.
    for until in 0..=again.len() {
        assert_eq!(failed(&again[..until]).rules(EXACT), Vec::<&str>::new(), "{until}");
    }
}

#[test]
fn what_is_said_twice_too_late_or_not_at_all_is_found() {
    let (a, b, c, d) =
        (|| Frame(None, "a"), || Frame(Some("x"), "b"), || Frame(Some("x"), "c"), || Frame(None, "d"));
    // Nothing, too little, too much, in another order, by somebody else, and not taken back.
    succeeded(&[]).breaks(RULE);
    succeeded(&[a(), b(), d()]).breaks(RULE);
    succeeded(&[a(), a(), b(), c(), d()]).breaks(RULE);
    succeeded(&[a(), c(), b(), d()]).breaks(RULE);
    succeeded(&[a(), b(), Frame(None, "c"), d()]).breaks(RULE);
    succeeded(&[a(), b(), b(), c(), d()]).breaks(RULE);
    succeeded(&[a(), b(), Reset(None, 1), c(), d()]).breaks(RULE);
    // Whoever does not come to the end has said nothing else until then.
    failed(&[a(), c()]).breaks(RULE);
    failed(&[a(), b(), b()]).breaks(RULE);
    failed(&[d()]).breaks(RULE);
}

#[test]
fn positions_go_up_claims_too_and_resets_reach_back() {
    let changed = |change: fn(&mut Vec<OutputItem>)| {
        let mut case = succeeded(&peace());
        change(case.found.outputs.get_mut(&id(1)).expect("an output"));
        case
    };
    changed(|items| items[3].position = 3).breaks(RULE);
    changed(|items| items[3].position = 9).breaks(RULE);
    changed(|items| items[0].claim = 2).breaks(RULE);
    succeeded(&[Frame(None, "a"), Reset(None, 2), Frame(None, "a")]).breaks(RULE);
    // Of a long output, the last is kept.
    let kept = changed(|items| {
        items.remove(0);
    });
    assert_eq!(kept.rules(EXACT), Vec::<&str>::new());
    changed(|items| {
        items.remove(0);
        items.pop();
    })
    .breaks(RULE);
}

/// A stream is no progress: who dies after some frames has come no further than those before him.
#[test]
fn what_is_idle_resets_no_crashes() {
    let told_two_crashes = |idle| {
        let mut case = TestHistory::default();
        case.joined(1).joined(2).joined(3).stored(1).claimed(1, 1, 1).fault("kill", 1).expired(1);
        case.claimed_after(2, 1, 2, 1).writes(2, 1, 2, JournalWrites { idle, ..JournalWrites::default() });
        case.fault("kill", 2).expired(2).claimed_after(3, 1, 3, 2).ended(3, 1, 3, EndKind::Succeed, true);
        case.succeeded(1, 3);
        case.rules(EXACT).contains(&"crashes are counted")
    };
    assert!(!told_two_crashes(true) && told_two_crashes(false));
}
