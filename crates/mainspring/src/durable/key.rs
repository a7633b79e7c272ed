//! Keys: how a durable operation finds its record again.
//!
//! A key is the path of scopes, the operation's name, and what tells repeats apart: `left/charge`, `charge#2` for the
//! second in a row, `charge#=7` for one that was given the key `7`. Names and given keys have neither `/` nor `#`, so that
//! no two operations have the same key by accident. What belongs to an operation beside its result is kept under
//! `…#until`, `…#begun`, `…#result` and `…#dropped`.
//!
//! The number of a repeat must not depend on timing. Two open operations of one key are refused; so is a repeat, without
//! a key of its own, of a name whose earlier operation was open together with another.
//!
//! # Invariants
//! - No two open operations of one handler have the same key.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use mainspring_core::name::Key;
use mainspring_core::{Error, Result};

/// All scopes of a handler, by their paths.
#[derive(Default)]
pub(crate) struct Scopes(BTreeMap<Arc<str>, Box<Scope>>);

#[derive(Default)]
struct Scope {
    labels: BTreeMap<Arc<str>, Label>,
    open: usize,
    /// The one open operation that has not met another, if there is one.
    alone: Option<Arc<str>>,
}

#[derive(Default)]
struct Label {
    closed: u32,
    open: bool,
    /// Whether one that was used met another while it was open.
    overlapped: bool,
    /// Whether the open one has met another.
    met: bool,
}

impl Scopes {
    /// Takes the next key of a label. `given`: it has a key of its own.
    pub(super) fn take(&mut self, path: &Arc<str>, label: &Arc<str>, given: bool) -> Result<Key> {
        let scope = self.0.entry(Arc::clone(path)).or_default();
        let (closed, ambiguous) = scope.labels.get(label).map_or((0, false), |label| {
            (label.closed, label.open || (!given && label.closed > 0 && label.overlapped))
        });
        let key = spell(path, label, closed + 1)?;
        if ambiguous {
            return Err(Error::DuplicateKey { key });
        }
        let it = scope.labels.entry(Arc::clone(label)).or_default();
        it.open = true;
        scope.open += 1;
        if scope.open == 1 {
            scope.alone = Some(Arc::clone(label));
        } else {
            it.met = true;
            if let Some(other) = scope.alone.take().and_then(|alone| scope.labels.get_mut(&alone)) {
                other.met = true;
            }
        }
        Ok(key)
    }

    /// Lets a key go: `used` if its operation was polled.
    pub(super) fn free(&mut self, path: &str, label: &Arc<str>, used: bool) {
        let Some(scope) = self.0.get_mut(path) else { return };
        scope.open = scope.open.saturating_sub(1);
        if scope.alone.as_ref() == Some(label) {
            scope.alone = None;
        }
        if let Some(label) = scope.labels.get_mut(label) {
            label.open = false;
            label.closed += u32::from(used);
            // One that is built without a key, and then given one, was never really there.
            label.overlapped |= std::mem::take(&mut label.met) && used;
        }
    }

    /// Whether an operation has been open together with another.
    pub(super) fn overlapped(&self, path: &str, label: &str) -> bool {
        self.0
            .get(path)
            .and_then(|scope| scope.labels.get(label))
            .is_some_and(|label| label.overlapped || label.met)
    }

    /// Whether a name was asked for in a scope.
    pub(crate) fn asked(&self, path: &str, name: &str) -> bool {
        self.0.get(path).is_some_and(|scope| {
            // Those of a name are itself and, beside each other, those that go on with a mark.
            let marked = format!("{name}#");
            let mut from = scope.labels.range::<str, _>((Bound::Included(&*marked), Bound::Unbounded));
            scope.labels.contains_key(name)
                || from.next().is_some_and(|(label, _)| label.starts_with(&marked))
        })
    }

    /// Whether a name was asked for in a scope before this operation.
    pub(crate) fn repeats(&self, path: &str, label: &str, name: &str) -> bool {
        self.0.get(path).is_some_and(|scope| {
            let used = |one: &Label| one.closed > 0 || one.open;
            let before = |(one, state): (&Arc<str>, &Label)| {
                if &**one == label { state.closed > 0 } else { is_of(one, name) && used(state) }
            };
            scope.labels.iter().any(before)
        })
    }

    /// A scope has ended, and all inside of it.
    pub(crate) fn end(&mut self, scope: &str, inside: (Bound<&str>, Bound<&str>)) {
        self.0.remove(scope);
        let paths: Vec<Arc<str>> = self.0.range::<str, _>(inside).map(|(path, _)| Arc::clone(path)).collect();
        for path in paths {
            self.0.remove(&path);
        }
    }

    /// Notes what the record of an operation says of it.
    pub(super) fn overlap(&mut self, path: &str, label: &str) {
        if let Some(label) = self.0.get_mut(path).and_then(|scope| scope.labels.get_mut(label)) {
            label.overlapped = true;
        }
    }
}

/// Whether a label is one of a name.
fn is_of(label: &str, name: &str) -> bool {
    label.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('#'))
}

fn spell(path: &str, label: &str, number: u32) -> Result<Key> {
    let mut key = String::with_capacity(path.len() + label.len() + 4);
    if !path.is_empty() {
        key.push_str(path);
        key.push('/');
    }
    key.push_str(label);
    if number > 1 {
        key.push('#');
        key.push_str(&number.to_string());
    }
    Key::new(key)
}

/// A key beside an operation's own, for what belongs to it besides its result.
pub(crate) fn side_key(key: &Key, what: &str) -> Result<Key> {
    Key::new(format!("{key}#{what}"))
}

/// The name in a label.
pub(super) fn name_of(label: &str) -> &str {
    label.split('#').next().unwrap_or(label)
}

/// Whether a label is that of a result, and not of what belongs to an operation beside it.
pub(super) fn is_result(label: &str) -> bool {
    match label.rsplit_once('#') {
        None => true,
        Some((_, last)) => last.starts_with('=') || last.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(scopes: &mut Scopes, path: &str, label: &str) -> Result<String> {
        scopes.take(&path.into(), &label.into(), label.contains("#=")).map(|key| key.to_string())
    }

    fn free(scopes: &mut Scopes, path: &str, label: &str, used: bool) {
        scopes.free(path, &label.into(), used);
    }

    #[test]
    fn repeats_in_a_row_are_numbered_and_unused_keys_are_free_again() {
        let mut scopes = Scopes::default();
        for (used, expected) in [(true, "a"), (false, "a#2"), (true, "a#2"), (true, "a#3")] {
            assert_eq!(take(&mut scopes, "", "a").expect("a key"), expected);
            free(&mut scopes, "", "a", used);
        }
        assert_eq!(take(&mut scopes, "left", "a").expect("a key"), "left/a");
        assert_eq!(take(&mut scopes, "", "b#=7").expect("a key"), "b#=7");
    }

    #[test]
    fn two_open_operations_of_one_key_are_refused() {
        let mut scopes = Scopes::default();
        take(&mut scopes, "", "a").expect("the first");
        assert!(matches!(take(&mut scopes, "", "a"), Err(Error::DuplicateKey { .. })));
        take(&mut scopes, "left", "a").expect("another scope");
    }

    #[test]
    fn a_name_that_was_open_with_another_is_not_repeated_without_a_key() {
        let mut scopes = Scopes::default();
        for label in ["a", "b", "c#=1"] {
            take(&mut scopes, "", label).expect("a key");
        }
        for label in ["a", "b", "c#=1"] {
            assert!(scopes.overlapped("", label), "{label}");
            free(&mut scopes, "", label, true);
        }
        take(&mut scopes, "", "e").expect("a key");
        take(&mut scopes, "", "f").expect("a key");
        free(&mut scopes, "", "f", false);
        assert!(scopes.overlapped("", "e") && !scopes.overlapped("", "f"), "an unused one was not there");
        free(&mut scopes, "", "e", true);
        assert!(matches!(take(&mut scopes, "", "a"), Err(Error::DuplicateKey { .. })));
        assert!(matches!(take(&mut scopes, "", "b"), Err(Error::DuplicateKey { .. })));
        assert_eq!(take(&mut scopes, "", "c#=1").expect("it has a key of its own"), "c#=1#2");
        free(&mut scopes, "", "c#=1", true);
        assert_eq!(take(&mut scopes, "", "d").expect("another name"), "d");
        assert!(!scopes.overlapped("", "d"));
    }

    #[test]
    fn results_are_told_from_what_belongs_to_them() {
        for label in ["a", "a#2", "a#=k", "a#=k#12", "a b#=until"] {
            assert!(is_result(label), "{label}");
            assert!(["a", "a b"].contains(&name_of(label)));
        }
        for label in ["a#until", "a#2#begun", "a#=k#dropped", "a#turn=7", "a#accepted"] {
            assert!(!is_result(label), "{label}");
        }
    }
}
