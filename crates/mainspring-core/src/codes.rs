//! Names of codes in statements: `{state.succeeded}` stands for 5.
//!
//! Stores keep states, reasons, flags and the like as numbers, and their statements compare them. A number in a statement
//! says nothing to its reader, and nobody finds it again. So statements name it, and [`named!`](crate::named) puts the
//! number in when the program is compiled. The text that a database gets is the same as before.
//!
//! # Invariants
//! - A number has one source: the type that it belongs to. This file only lists types.
//! - A name that is unknown does not compile.

use crate::bounds;
use crate::job::{FaultKind, Priority, Reason, State, Until};
use crate::journal::{EntryKind, OnClose};
use crate::store::{Class, Level, Mark, NodeState, flags};

/// A statement whose codes are named: each `{group.name}` in it is replaced by its number.
///
/// The text is a constant: a literal, or several under `concat!`. Other braces stay as they are.
#[macro_export]
macro_rules! named {
    ($text:expr) => {{
        const TEXT: &str = $text;
        const BYTES: [u8; $crate::codes::expanded_len(TEXT)] = $crate::codes::expanded(TEXT);
        const NAMED: &str = match ::core::str::from_utf8(&BYTES) {
            Ok(text) => text,
            Err(_) => panic!("a name was replaced by digits"),
        };
        NAMED
    }};
}

type Names = &'static [(&'static str, u32)];

/// The names of an enum's variants, as people see them.
macro_rules! variants {
    ($type:ident) => {{
        let mut names = [("", 0); $type::ALL.len()];
        let mut at = 0;
        while at < names.len() {
            names[at] = ($type::ALL[at].as_str(), $type::ALL[at].code() as u32);
            at += 1;
        }
        names
    }};
}

const STATES: [(&str, u32); State::ALL.len()] = variants!(State);
const REASONS: [(&str, u32); Reason::ALL.len()] = variants!(Reason);
const FAULTS: [(&str, u32); FaultKind::ALL.len()] = variants!(FaultKind);

/// The bits of flags that mean something.
const FLAGS: [(&str, u32); flags::ALL.len()] = {
    let mut names = [("", 0); flags::ALL.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = (flags::ALL[at].name, flags::ALL[at].bit.cast_unsigned() as u32);
        at += 1;
    }
    names
};

/// The groups, and the names in each.
const GROUPS: &[(&str, Names)] = &[
    ("state", &STATES),
    ("reason", &REASONS),
    ("fault", &FAULTS),
    // Reasons are numbered so that those of one sort are neighbours; the tests of the states hold that.
    (
        "reasons",
        &[
            ("first", Reason::Timer.code() as u32),
            ("last_awaiting", Reason::LAST_AWAITING.code() as u32),
            ("last_suspended", Reason::LAST_SUSPENDED.code() as u32),
            ("first_ended", Reason::FIRST_ENDED.code() as u32),
            ("last", Reason::LAST.code() as u32),
        ],
    ),
    ("states", &[("first_ended", State::FIRST_ENDED.code() as u32), ("last", State::LAST.code() as u32)]),
    ("flag", &FLAGS),
    (
        "flags",
        &[
            ("held_by_job", flags::HELD_BY_JOB as u32),
            ("held_by_claim", flags::HELD_BY_CLAIM as u32),
            ("of_claim", flags::OF_CLAIM as u32),
            ("told", flags::TOLD as u32),
            ("lasting", flags::LASTING as u32),
        ],
    ),
    // A level is a class in its high bits and a priority in its low ones.
    (
        "level",
        &[
            ("suspect", Level::new(Class::Suspect, Priority::HIGHEST).code() as u32),
            ("lost", Level::new(Class::Lost, Priority::HIGHEST).code() as u32),
            ("returned", Level::new(Class::Returned, Priority::HIGHEST).code() as u32),
            ("fresh", Level::new(Class::Fresh, Priority::HIGHEST).code() as u32),
            ("last", Level::COUNT as u32 - 1),
            ("priority_bits", Level::PRIORITY_BITS as u32),
        ],
    ),
    ("priority", &[("last", Priority::LOWEST.get() as u32)]),
    (
        "until",
        &[
            ("started", Until::STARTED as u32),
            ("finished", Until::FINISHED as u32),
            ("after", Until::AFTER as u32),
        ],
    ),
    (
        "node",
        &[
            ("live", NodeState::Live.code() as u32),
            ("retired", NodeState::Retired.code() as u32),
            ("expired", NodeState::Expired.code() as u32),
        ],
    ),
    ("limit_scope", &[("limit", 0), ("queue", 1), ("kind", 2)]),
    ("on_close", &[("cancel", OnClose::Cancel as u32), ("abandon", OnClose::Abandon as u32)]),
    (
        "entry",
        &[
            ("value", EntryKind::Value.code() as u32),
            ("error", EntryKind::Error.code() as u32),
            ("begun", EntryKind::Begun.code() as u32),
            ("until", EntryKind::Until.code() as u32),
            ("child", EntryKind::Child.code() as u32),
            ("received", EntryKind::Received.code() as u32),
        ],
    ),
    (
        "stuck",
        &[("none", Mark::NONE as u32), ("blocked", Mark::BLOCKED as u32), ("foreign", Mark::FOREIGN as u32)],
    ),
    (
        "bound",
        &[
            ("suspect_crashes", bounds::SUSPECT_CRASHES as u32),
            ("quarantine_crashes", bounds::QUARANTINE_CRASHES as u32),
            ("errors_kept", small(bounds::ERRORS_KEPT)),
            ("audit", small(bounds::AUDIT)),
            ("claim_input_bytes", small(bounds::CLAIM_INPUT_BYTES)),
            ("units", bounds::UNITS as u32),
            // More than any limit has, so that sums of two fit into an integer.
            ("any_units", 1 << 30),
            ("generation_hits", 64),
        ],
    ),
];

/// A bound as a number.
const fn small(bound: usize) -> u32 {
    assert!(bound <= u16::MAX as usize, "a larger one is an argument of its statement");
    #[expect(clippy::cast_possible_truncation, reason = "asserted above")]
    {
        bound as u32
    }
}

/// How long a statement is once its names are replaced.
pub const fn expanded_len(text: &str) -> usize {
    let text = text.as_bytes();
    let (mut at, mut length) = (0, 0);
    while at < text.len() {
        let name = name_length(text, at);
        if name == 0 {
            (at, length) = (at + 1, length + 1);
        } else {
            (at, length) = (at + name, length + digits(code(text, at, name)));
        }
    }
    length
}

/// A statement with numbers instead of names.
pub const fn expanded<const LENGTH: usize>(text: &str) -> [u8; LENGTH] {
    let text = text.as_bytes();
    let mut bytes = [0; LENGTH];
    let (mut at, mut to) = (0, 0);
    while at < text.len() {
        let name = name_length(text, at);
        if name == 0 {
            bytes[to] = text[at];
            (at, to) = (at + 1, to + 1);
            continue;
        }
        let mut number = code(text, at, name);
        let end = to + digits(number);
        let mut digit = end;
        while digit > to {
            digit -= 1;
            bytes[digit] = b'0' + (number % 10) as u8;
            number /= 10;
        }
        (at, to) = (at + name, end);
    }
    bytes
}

/// How many bytes the name takes that begins here, with its braces; 0 if none does. A name begins with a letter, so JSON and
/// empty arrays are none.
const fn name_length(text: &[u8], at: usize) -> usize {
    if text[at] != b'{' || at + 1 == text.len() || !text[at + 1].is_ascii_lowercase() {
        return 0;
    }
    let mut end = at + 1;
    while text[end] != b'}' {
        end += 1;
        assert!(end < text.len(), "the name of a code has no closing brace");
    }
    end + 1 - at
}

/// The number of the name that takes these bytes.
const fn code(text: &[u8], at: usize, length: usize) -> u32 {
    let mut group = 0;
    while group < GROUPS.len() {
        let (word, names) = GROUPS[group];
        // `{group.name}`
        let after = at + 1 + word.len();
        if is_at(text, at + 1, word) && after < at + length && text[after] == b'.' {
            let mut index = 0;
            while index < names.len() {
                let (name, code) = names[index];
                if is_at(text, after + 1, name) && after + 1 + name.len() == at + length - 1 {
                    return code;
                }
                index += 1;
            }
        }
        group += 1;
    }
    panic!("the name of a code that is none: `mainspring_core::codes` lists those that there are");
}

/// Whether a word stands there.
const fn is_at(text: &[u8], at: usize, word: &str) -> bool {
    let word = word.as_bytes();
    if at + word.len() > text.len() {
        return false;
    }
    let mut index = 0;
    while index < word.len() {
        if text[at + index] != word[index] {
            return false;
        }
        index += 1;
    }
    true
}

const fn digits(number: u32) -> usize {
    match number.checked_ilog10() {
        Some(log) => log as usize + 1,
        None => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_replaced_by_their_codes() {
        const SQL: &str = named!("state = {state.succeeded} OR reason <= {reasons.last_awaiting}");
        assert_eq!(SQL, "state = 5 OR reason <= 5");
        assert_eq!(named!(concat!("{reason.parent}", "{state.blocked}")), "220");
        assert_eq!(named!("{level.returned} {level.priority_bits}"), "32 15");
        assert_eq!(
            named!("flags & {flag.key} <> 0 AND flags & ~{flag.ahead}"),
            "flags & 1 <> 0 AND flags & ~16384"
        );
        assert_eq!(named!("{flags.lasting} {flags.told} {flags.held_by_job}"), "56 48 259");
        assert_eq!(named!("LIMIT {bound.claim_input_bytes}"), "LIMIT 16384");
    }

    #[test]
    fn other_braces_and_other_letters_stay() {
        assert_eq!(named!("'{}' '{\"a\": 1}' }{ ä {"), "'{}' '{\"a\": 1}' }{ ä {");
        assert_eq!(named!(""), "");
    }

    #[test]
    fn name_is_known_in_one_group_and_once() {
        for (at, (group, names)) in GROUPS.iter().enumerate() {
            assert!(GROUPS[..at].iter().all(|(other, _)| other != group), "{group} is there twice");
            for (at, (name, _)) in names.iter().enumerate() {
                assert!(names[..at].iter().all(|(other, _)| other != name), "{group}.{name} is there twice");
            }
        }
    }

    #[test]
    fn reasons_of_one_sort_are_neighbours() {
        for reason in Reason::ALL {
            let ends = [State::Failed, State::Cancelled].iter().any(|state| reason.fits(*state));
            assert_eq!(reason.awaits(), reason.code() <= Reason::LAST_AWAITING.code(), "{reason}");
            assert_eq!(reason.fits(State::Suspended), reason.code() <= Reason::LAST_SUSPENDED.code());
            assert_eq!(ends, reason.code() >= Reason::FIRST_ENDED.code(), "{reason}");
            assert!(reason.code() <= Reason::LAST.code());
        }
        for state in State::ALL {
            assert_eq!(state.is_terminal(), state.code() >= State::FIRST_ENDED.code(), "{state}");
        }
    }
}
