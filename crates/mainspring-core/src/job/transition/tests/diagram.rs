//! The diagram of the nine states in `docs/states.md` is drawn from `transition`.
//!
//! Every status meets every input; the edges found are gathered by the pair of states they join. When the function
//! changes, this test fails until the page is drawn anew: `BLESS=1 cargo test -p mainspring-core diagram`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use super::{inputs, statuses};
use crate::job::{Input, Reason, State, transition};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/states.md");
const OPEN: &str = "```mermaid\n";
const CLOSE: &str = "```\n";

/// The word for an input on an arrow. Fails to compile when an input is added, so that none is forgotten.
fn word(input: Input) -> &'static str {
    match input {
        Input::Unblock { .. } => "unblock",
        Input::Skip => "skip",
        Input::Due => "due",
        Input::Claim => "claim",
        Input::Succeed => "succeed",
        Input::Fail(Reason::Expired) => "deadline",
        Input::Fail(_) => "fail",
        Input::Retry => "retry",
        Input::Snooze => "snooze",
        Input::Release => "release",
        Input::Crash { quarantine: false } => "crash",
        Input::Crash { quarantine: true } => "third crash",
        Input::Suspend(_) => "suspend",
        Input::Unreadable => "unreadable",
        Input::Wake => "wake",
        Input::Cancel(_) => "cancel",
        Input::Stop(_) => "stop",
        Input::Hold => "hold",
        Input::Resume { .. } => "resume",
        Input::Revive => "run again",
        Input::Rewind => "run again from a step",
    }
}

fn diagram() -> String {
    let mut edges: BTreeMap<(State, State), BTreeSet<&str>> = BTreeMap::new();
    for from in statuses() {
        for input in inputs() {
            if let Ok(to) = transition(from, input) {
                edges.entry((from.state, to.state)).or_default().insert(word(input));
            }
        }
    }
    let mut text = "stateDiagram-v2\n    [*] --> ready: enqueue\n    [*] --> scheduled: enqueue\n".to_owned();
    for ((from, to), words) in edges {
        let words: Vec<_> = words.into_iter().collect();
        writeln!(text, "    {from} --> {to}: {}", words.join(", ")).expect("writing to a string");
    }
    for &state in State::ALL.iter().filter(|state| state.is_terminal()) {
        writeln!(text, "    {state} --> [*]").expect("writing to a string");
    }
    text
}

#[test]
fn the_diagram_of_the_states_is_what_transition_does() {
    let page = std::fs::read_to_string(PAGE).expect("docs/states.md");
    let start = page.find(OPEN).expect("a diagram") + OPEN.len();
    let end = start + page[start..].find(CLOSE).expect("the diagram's end");
    let drawn = diagram();
    if std::env::var_os("BLESS").is_some() {
        let page = format!("{}{drawn}{}", &page[..start], &page[end..]);
        std::fs::write(Path::new(PAGE), page).expect("docs/states.md can be written");
        return;
    }
    assert_eq!(page[start..end], drawn, "draw it anew: BLESS=1 cargo test -p mainspring-core diagram");
}
