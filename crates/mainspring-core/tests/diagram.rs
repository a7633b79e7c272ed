//! The diagram of the nine states in `docs/states.md` is drawn from `transition`.
//!
//! Every status meets every input; the edges found are gathered by the pair of states they join. When the function
//! changes, this test fails until the page is drawn anew: `BLESS=1 cargo test -p mainspring-core --test diagram`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use mainspring_core::job::{Input, Reason, State, Status, transition};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/states.md");
const OPEN: &str = "```mermaid\n";
const CLOSE: &str = "```\n";

/// All statuses that can exist.
fn statuses() -> Vec<Status> {
    let mut all = Vec::new();
    for &state in State::ALL {
        let reasons = Reason::ALL.iter().copied().filter(|reason| reason.fits(state));
        let with_reason: Vec<_> = reasons.map(|reason| Status::because(state, reason)).collect();
        if with_reason.is_empty() {
            all.push(Status::plain(state));
        }
        all.extend(with_reason);
    }
    all
}

/// All inputs that can exist, each with the word for it on an arrow. The match in [`word`] fails to compile when an
/// input is added, so that none is forgotten here.
fn inputs() -> Vec<Input> {
    let mut all = vec![
        Input::Unblock { later: false },
        Input::Unblock { later: true },
        Input::Skip,
        Input::Due,
        Input::Claim,
        Input::Succeed,
        Input::Retry,
        Input::Snooze,
        Input::Release,
        Input::Crash { quarantine: false },
        Input::Crash { quarantine: true },
        Input::Wake,
        Input::Hold,
        Input::Resume { later: false },
        Input::Resume { later: true },
        Input::Revive,
    ];
    for &reason in Reason::ALL {
        all.extend([Input::Fail(reason), Input::Suspend(reason), Input::Cancel(reason), Input::Stop(reason)]);
    }
    all
}

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
        Input::Wake => "wake",
        Input::Cancel(_) => "cancel",
        Input::Stop(_) => "stop",
        Input::Hold => "hold",
        Input::Resume { .. } => "resume",
        Input::Revive => "run again",
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
    assert_eq!(page[start..end], drawn, "draw it anew: BLESS=1 cargo test -p mainspring-core --test diagram");
}
