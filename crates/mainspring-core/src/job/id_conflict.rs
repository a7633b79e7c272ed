//! Ids that are taken: whether the job that has an id is the one that is enqueued.
//!
//! Who enqueues with an id of his own may do it again: it is the same job, and nothing is stored. An id that belongs to
//! *another* job is a mistake, and must not look like a success. Both are told apart by what never changes of a job: its kind,
//! its parent, what it was forked from, and its input.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::value::RawValue;

use crate::job::{New, Options};

/// In what the job that has an id differs from the one that was to be stored under it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Differs {
    /// It is of another kind.
    Kind,
    /// Another job has started it, or none has.
    Parent,
    /// It was forked from another job or step, or is no fork.
    Origin,
    /// It has another input.
    Input,
    /// Another step of the same job has started it.
    Step,
}

impl fmt::Display for Differs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Differs::Kind => "is of another kind",
            Differs::Parent => "has another parent",
            Differs::Origin => "was forked from elsewhere, or not at all",
            Differs::Input => "has another input",
            Differs::Step => "was started by another step",
        })
    }
}

impl New {
    /// In what the job that is stored under this one's id differs from it; `None`: it is the same job.
    ///
    /// Inputs are compared as JSON: neither spaces nor the order of an object's members matter.
    pub fn differs(&self, kind: &str, options: &Options, input: &[u8]) -> Option<Differs> {
        if kind != self.kind.as_str() {
            Some(Differs::Kind)
        } else if options.parent != self.options.parent {
            Some(Differs::Parent)
        } else if options.forked != self.options.forked {
            Some(Differs::Origin)
        } else if !is_same_json(input, &self.input) {
            Some(Differs::Input)
        } else {
            None
        }
    }
}

/// Nesting that is looked into. What is deeper is compared byte by byte: that bounds the stack, and how often a byte is read.
const DEPTH: usize = 64;

/// Whether two texts say the same. Numbers are the same if they are written alike.
fn is_same_json(one: &[u8], other: &[u8]) -> bool {
    let parse = |text| serde_json::from_slice::<&RawValue>(text).ok();
    one == other || matches!((parse(one), parse(other)), (Some(one), Some(other)) if is_same(one, other, 0))
}

fn is_same(one: &RawValue, other: &RawValue, depth: usize) -> bool {
    let (one, other) = (one.get(), other.get());
    if one == other {
        return true;
    }
    if depth == DEPTH {
        return false;
    }
    match (one.as_bytes().first(), other.as_bytes().first()) {
        (Some(b'{'), Some(b'{')) => match (members(one), members(other)) {
            (Some(one), Some(other)) => {
                one.len() == other.len()
                    && one
                        .iter()
                        .zip(&other)
                        .all(|((name, one), (also, other))| name == also && is_same(one, other, depth + 1))
            }
            _ => false,
        },
        (Some(b'['), Some(b'[')) => match (items(one), items(other)) {
            (Some(one), Some(other)) => {
                one.len() == other.len()
                    && one.iter().zip(&other).all(|(one, other)| is_same(one, other, depth + 1))
            }
            _ => false,
        },
        (Some(b'"'), Some(b'"')) => {
            let text = |text| serde_json::from_str::<String>(text).ok();
            text(one).is_some_and(|one| Some(one) == text(other))
        }
        _ => false,
    }
}

fn members(text: &str) -> Option<BTreeMap<String, &RawValue>> {
    serde_json::from_str(text).ok()
}

fn items(text: &str) -> Option<Vec<&RawValue>> {
    serde_json::from_str(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(one: &str, other: &str) -> bool {
        let both = is_same_json(one.as_bytes(), other.as_bytes());
        assert_eq!(both, is_same_json(other.as_bytes(), one.as_bytes()), "{one} {other}");
        both
    }

    #[test]
    fn spaces_order_and_escapes_do_not_matter() {
        for (one, other) in [
            (r#"{"a":1,"b":[true,null]}"#, r#" { "b" : [ true , null ] , "a" : 1 } "#),
            (r#"[{"a":{"b":1,"c":2}}]"#, r#"[{"a":{"c":2,"b":1}}]"#),
            (r#""\u00e4/""#, r#""ä\/""#),
            ("[]", "[ ]"),
            ("1", " 1"),
        ] {
            assert!(same(one, other), "{one} {other}");
        }
    }

    #[test]
    fn other_values_are_other_inputs() {
        for (one, other) in [
            (r#"{"a":1}"#, r#"{"a":2}"#),
            (r#"{"a":1}"#, r#"{"a":1,"b":2}"#),
            (r#"{"a":1}"#, r#"{"b":1}"#),
            ("[1,2]", "[2,1]"),
            ("[1]", "[1,1]"),
            ("18446744073709551616", "18446744073709551617"),
            ("null", "{}"),
            ("\"a\"", "\"b\""),
            ("no JSON", "no JSON "),
        ] {
            assert!(!same(one, other), "{one} {other}");
        }
    }

    #[test]
    fn what_is_nested_too_deep_is_compared_byte_by_byte() {
        let nested =
            |levels: usize, inner: &str| format!("{}{inner}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(same(&nested(DEPTH, "1"), &nested(DEPTH, "1 ")));
        assert!(!same(&nested(DEPTH + 1, "1"), &nested(DEPTH + 1, "1 ")));
        assert!(same(&nested(DEPTH + 1, "1"), &nested(DEPTH + 1, "1")));
        assert!(!same(&nested(100_000, "1"), &nested(100_000, "1 ")));
    }
}
