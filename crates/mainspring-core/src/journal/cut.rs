//! Cutting a journal before a step: what a fork shares, and what a retry from a step takes back.
//!
//! What was recorded before the step stays, and what was recorded after it goes: it may have come of it. The record of the
//! step itself goes with all that belongs to it: its marks, and what is inside of it if it is a scope.
//!
//! # Invariants
//! - What had begun by then and is done once keeps its end, wherever that is recorded: the result of a child whose start
//!   stays, and of a step that is done at most once.
//! - What an operator said of the step stays: it is no result.
//! - A scope whose result goes is done again as a whole: nothing of its inside stays. Neither does anything of a loop that has
//!   lost its state.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::value::RawValue;

use crate::id::JobId;
use crate::name::{Key, SignalName};

use super::{EntryKind, Written};

impl Written {
    /// The operation that it belongs to: its key without what is kept beside the result. Empty if it belongs to none.
    pub fn operation(&self) -> &str {
        operation(self.key.as_str())
    }
}

/// The operation that a record belongs to, by the record's key; see [`Written::operation`].
pub fn operation(key: &str) -> &str {
    let label = key.rfind('/').map_or(0, |at| at + 1);
    let mut end = key.len();
    let mut at = label;
    while let Some(next) = key[at..].find('#').map(|found| at + found) {
        let mark = key[next + 1..].split('#').next().unwrap_or_default();
        if !mark.starts_with('=') && !mark.bytes().all(|byte| byte.is_ascii_digit()) {
            end = next;
            break;
        }
        at = next + 1;
    }
    &key[..end]
}

/// Where the state of a loop after so many turns is kept, beside it.
pub const TURN: &str = "#turn=";

/// Scopes of a journal that have ended, and turns that are done. Nobody asks for what is recorded inside of them: it has given
/// way, or reaches beyond them and waits for whoever takes them back.
#[derive(Debug, Default)]
pub struct Ended<'j> {
    results: BTreeSet<&'j str>,
    turns: BTreeMap<&'j str, u64>,
}

impl<'j> Ended<'j> {
    /// Those of a journal.
    pub fn of(entries: impl IntoIterator<Item = (&'j str, EntryKind)>) -> Self {
        let mut ended = Ended::default();
        for (key, _) in entries.into_iter().filter(|(_, kind)| *kind == EntryKind::Value) {
            if operation(key) == key {
                ended.results.insert(key);
            } else if let Some((key, turns)) = key.rsplit_once(TURN)
                && let Ok(turns) = turns.parse()
            {
                // Earlier states can be there if a record came twice.
                let last = ended.turns.entry(key).or_insert(turns);
                *last = turns.max(*last);
            }
        }
        ended
    }

    /// Whether something is recorded inside of one of them.
    pub fn has(&self, key: &str) -> bool {
        let mut scopes = key.match_indices('/').map(|(at, _)| (&key[..at], &key[at + 1..]));
        scopes.any(|(scope, inside)| {
            let turn = inside.split('/').next().and_then(|turn| turn.parse::<u64>().ok());
            let is_done = |last: &u64| turn.is_some_and(|turn| turn <= *last);
            self.results.contains(scope) || self.turns.get(scope).is_some_and(is_done)
        })
    }
}

/// Which records stay if a journal is cut before a step; in the order of recording. `None` if nothing is recorded of it, or
/// if it is inside of a scope that has ended: what came before it there is not known any more.
pub fn cut(entries: &[(&str, EntryKind)], from: &str) -> Option<Vec<bool>> {
    if operation(from) != from || Ended::of(entries.iter().copied()).has(from) {
        return None;
    }
    let inside = format!("{from}/");
    let own = |key: &str| operation(key) == from || key.starts_with(&inside);
    let result = entries.iter().position(|(key, _)| *key == from);
    let at = result.or_else(|| entries.iter().position(|(key, _)| own(key)))?;
    let said = [format!("{from}#accepted"), format!("{from}#renamed")];
    let stays = |(index, (key, _)): (usize, &(&str, EntryKind))| {
        if own(key) { said.iter().any(|said| said == key) } else { index < at }
    };
    let mut keep: Vec<bool> = entries.iter().enumerate().map(stays).collect();
    let of =
        |kept: bool| entries.iter().zip(&keep).filter(move |(_, keep)| **keep == kept).map(|(one, _)| *one);
    let (lost, left) = (Ended::of(of(false)), Ended::of(of(true)));
    let undone: BTreeSet<&str> = lost.results.into_iter().chain(lost.turns.into_keys()).collect();
    let undone = |scope: &str| undone.contains(scope) && !left.turns.contains_key(scope);
    let again = |key: &str| key.match_indices('/').any(|(at, _)| undone(&key[..at]));
    for (keep, (key, _)) in keep.iter_mut().zip(entries) {
        *keep &= own(key) || !again(key);
    }
    let begun =
        entries.iter().zip(&keep).filter(|(_, keep)| **keep).filter_map(|((key, kind), _)| match kind {
            EntryKind::Child => Some(format!("{key}#result")),
            EntryKind::Begun => Some(operation(key).to_owned()),
            EntryKind::Value | EntryKind::Error | EntryKind::Until | EntryKind::Received => None,
        });
    let begun: BTreeSet<String> = begun.collect();
    for (keep, (key, _)) in keep.iter_mut().zip(entries) {
        *keep |= begun.contains(*key) && !own(key);
    }
    Some(keep)
}

/// What a retry from a step takes back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rewind {
    /// Records that are removed.
    pub forget: Vec<Key>,
    /// Children whose start is among them.
    pub children: Vec<JobId>,
    /// Signals that were read by waits among them: they are unread again.
    pub unread: Vec<Unread>,
}

/// A signal that is unread again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    /// Its name.
    pub name: SignalName,
    /// Who sent it.
    pub sender: String,
    /// What it says, as the wait has recorded it.
    pub body: Vec<u8>,
}

/// A record as a retry from a step looks at it; with its value if it is of a child or of signals.
pub type Line = (Key, EntryKind, Option<Vec<u8>>);

/// What a retry from a step takes back of a journal. `None` if nothing is recorded of that step.
pub fn rewind(lines: &[Line], from: &Key) -> Option<Rewind> {
    let entries: Vec<(&str, EntryKind)> = lines.iter().map(|(key, kind, _)| (key.as_str(), *kind)).collect();
    let keep = cut(&entries, from.as_str())?;
    let mut rewind = Rewind::default();
    for ((key, kind, value), _) in lines.iter().zip(keep).filter(|(_, keep)| !keep) {
        rewind.forget.push(key.clone());
        let value = value.as_deref().unwrap_or_default();
        match kind {
            EntryKind::Child => rewind.children.extend(serde_json::from_slice::<JobId>(value).ok()),
            EntryKind::Received => rewind.unread.extend(senders(key, value)),
            EntryKind::Value | EntryKind::Error | EntryKind::Begun | EntryKind::Until => {}
        }
    }
    // A sender that was forgotten may have been heard twice: an inbox has room for one of them.
    let mut seen = BTreeSet::new();
    rewind.unread.retain(|one| seen.insert((one.name.clone(), one.sender.clone())));
    Some(rewind)
}

/// The signals that a wait has read. It has their name.
fn senders(key: &Key, value: &[u8]) -> Vec<Unread> {
    let label = key.as_str().rsplit('/').next().unwrap_or_default();
    let name = SignalName::new(label.split('#').next().unwrap_or_default());
    let told: Result<Vec<(String, Box<RawValue>)>, _> = serde_json::from_slice(value);
    let (Ok(name), Ok(told)) = (name, told) else { return Vec::new() };
    let unread = |(sender, body): (String, Box<RawValue>)| Unread {
        name: name.clone(),
        sender,
        body: body.get().as_bytes().to_vec(),
    };
    told.into_iter().map(unread).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_an_operation_is_told_from_other_operations() {
        for (key, expected) in [
            ("a", "a"),
            ("a#2", "a#2"),
            ("a#=until", "a#=until"),
            ("a#=k#2#until", "a#=k#2"),
            ("a#result#left", "a"),
            ("a#turn=7", "a"),
            ("a#2/b#begun", "a#2/b"),
            ("a#until/b", "a#until/b"),
            ("a#/b#2", "a#/b#2"),
            ("é/b#begun", "é/b"),
            ("#token=00", ""),
        ] {
            assert_eq!(operation(key), expected, "{key}");
        }
    }

    /// The keys that stay.
    fn kept(entries: &[(&'static str, EntryKind)], from: &str) -> Option<Vec<&'static str>> {
        let keep = cut(entries, from)?;
        Some(entries.iter().zip(keep).filter(|(_, keep)| *keep).map(|((key, _), _)| *key).collect())
    }

    #[test]
    fn what_was_recorded_before_stays_and_the_rest_goes() {
        use EntryKind::Value as V;
        let row = [("a", V), ("b", V), ("b#2", V), ("c", V)];
        assert_eq!(kept(&row, "a"), Some(vec![]));
        assert_eq!(kept(&row, "b"), Some(vec!["a"]));
        assert_eq!(kept(&row, "b#2"), Some(vec!["a", "b"]));
        assert_eq!(kept(&row, "d"), None);
        assert_eq!(kept(&row, "b#left"), None);
        let scopes =
            [("a", V), ("s/x", V), ("s/y", V), ("t", V), ("l#turn=3", V), ("l/4/x", V), ("l/4/y", V)];
        assert_eq!(kept(&scopes, "s/y"), Some(vec!["a", "s/x"]));
        assert_eq!(kept(&scopes, "s"), Some(vec!["a"]));
        assert_eq!(kept(&scopes, "l/4/y"), Some(vec!["a", "s/x", "s/y", "t", "l#turn=3", "l/4/x"]));
        assert_eq!(kept(&scopes, "l"), Some(vec!["a", "s/x", "s/y", "t"]));
    }

    #[test]
    fn marks_go_with_their_operation_and_what_had_begun_keeps_its_end() {
        use EntryKind::{Begun, Child, Until, Value as V};
        let beside = [
            ("nap#until", Until),
            ("ship", Child),
            ("pay#begun", Begun),
            ("x#accepted", V),
            ("x#begun", Begun),
            ("x", V),
            ("pay", V),
            ("ship#result", V),
            ("nap", V),
            ("x#again", V),
        ];
        let expected = vec!["nap#until", "ship", "pay#begun", "x#accepted", "pay", "ship#result"];
        assert_eq!(kept(&beside, "x"), Some(expected));
        assert_eq!(kept(&beside, "ship"), Some(vec!["nap#until"]));
        let others = vec!["ship", "pay#begun", "x#accepted", "x#begun", "x", "pay", "ship#result"];
        assert_eq!(kept(&beside, "nap"), Some(others));
        assert_eq!(kept(&beside, "nap#until"), None);
    }

    #[test]
    fn a_scope_whose_result_goes_is_done_again_as_a_whole() {
        use EntryKind::{Child, Received, Value as V};
        // What reaches beyond `a` was recorded before `b`, and its result after it.
        let beside = [("a/go", Received), ("a/part", Child), ("b", V), ("a", V), ("c", V)];
        assert_eq!(kept(&beside, "b"), Some(vec![]));
        assert_eq!(kept(&beside, "c"), Some(vec!["a/go", "a/part", "b", "a"]));
        let loops = [("l/1/part", Child), ("b", V), ("l#turn=2", V), ("l/3/x", V)];
        assert_eq!(kept(&loops, "b"), Some(vec![]));
        assert_eq!(kept(&loops, "l/3/x"), Some(vec!["l/1/part", "b", "l#turn=2"]));
        let stale = [("l/1/part", Child), ("l#turn=3", V), ("b", V), ("l#turn=2", V)];
        assert_eq!(kept(&stale, "b"), Some(vec!["l/1/part", "l#turn=3"]));
    }

    #[test]
    fn nothing_begins_inside_of_a_scope_that_has_ended() {
        use EntryKind::{Child, Received, Value as V};
        let ended = [
            ("s/go", Received),
            ("s", V),
            ("l/2/part", Child),
            ("l#turn=3", V),
            ("l#turn=2", V),
            ("l/4/x", V),
        ];
        for inside in ["s/go", "s/deep", "l/2/part", "l/3/y", "l/2"] {
            assert_eq!(kept(&ended, inside), None, "{inside}");
        }
        assert_eq!(kept(&ended, "l/4/x").map(|kept| kept.len()), Some(5));
    }

    #[test]
    fn a_rewind_names_children_and_signals() {
        let id = JobId::from_bytes([7; 16]);
        let key = |key: &str| Key::new(key).expect("a key");
        let child = serde_json::to_vec(&id).expect("JSON");
        let lines: Vec<Line> = vec![
            (key("a"), EntryKind::Value, None),
            (key("s/ship"), EntryKind::Child, Some(child)),
            (key("s/go#2"), EntryKind::Received, Some(br#"[["ada",1],["~x",{"y":[]}]]"#.to_vec())),
            (key("late"), EntryKind::Received, Some(b"[]".to_vec())),
            (key("go#3"), EntryKind::Received, Some(br#"[["ada",2]]"#.to_vec())),
        ];
        let taken = rewind(&lines, &key("s")).expect("it is recorded");
        let name = SignalName::new("go").expect("a name");
        assert_eq!(taken.children, [id]);
        let unread = |sender: &str, body: &str| Unread {
            name: name.clone(),
            sender: sender.to_owned(),
            body: body.as_bytes().to_vec(),
        };
        assert_eq!(taken.unread, [unread("ada", "1"), unread("~x", r#"{"y":[]}"#)]);
        assert_eq!(taken.forget, [key("s/ship"), key("s/go#2"), key("late"), key("go#3")]);
        assert_eq!(rewind(&lines, &key("nothing")), None);
    }
}
