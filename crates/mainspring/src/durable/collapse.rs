//! Scopes that end: what was recorded inside gives way to their result.
//!
//! The commit that records the result of a scope removes what the scope recorded on its way. That commit is the next one
//! of the handler, whatever it is for: until then the scope would come out the same way again, from its records.
//!
//! # Invariants
//! - Nothing inside of a scope is asked for once the scope has a result. So a record that comes late, or twice, and stays
//!   behind does no harm.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use mainspring_core::failure::Failure;
use mainspring_core::id::JobId;
use mainspring_core::job::{Verb, cut};
use mainspring_core::journal::{Entry, EntryKind, Value, Written};
use mainspring_core::name::Key;
use mainspring_core::{Error, Result, bounds};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error;
use super::key::{Slot, beside};
use super::session::Session;

/// What is recorded inside of scopes.
#[derive(Default)]
pub(crate) struct Inner {
    keys: BTreeSet<Key>,
    /// Children that are cancelled if their scope is given up; without an id if that has to be read first.
    children: BTreeMap<Key, Option<JobId>>,
    /// Whether operations that are given up now leave no mark.
    quiet: bool,
}

/// Where the children are noted that their scope does not take along.
pub(crate) const ABANDONED: &str = "abandoned";

impl Inner {
    /// What a journal has of it.
    pub(crate) fn load(entries: &BTreeMap<Key, Written>) -> Self {
        let mut inner = Inner::default();
        for (key, written) in entries.iter().filter(|(key, _)| is_inner(key)) {
            inner.keys.insert(key.clone());
            let abandoned = || beside(key, ABANDONED).is_ok_and(|mark| entries.contains_key(&mark));
            if written.kind == EntryKind::Child && !abandoned() {
                let id = match &written.value {
                    Value::Here(value) => serde_json::from_slice(value).ok(),
                    Value::There(_) => None,
                };
                inner.children.insert(key.clone(), id);
            }
        }
        inner
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Notes what is being recorded.
    pub(crate) fn note(&mut self, entries: &[Entry]) {
        for entry in entries.iter().filter(|entry| is_inner(&entry.key)) {
            self.keys.insert(entry.key.clone());
            let abandoned = || {
                let mark = beside(&entry.key, ABANDONED);
                mark.is_ok_and(|mark| entries.iter().any(|entry| entry.key == mark))
            };
            if entry.kind == EntryKind::Child && !abandoned() {
                self.children.insert(entry.key.clone(), serde_json::from_slice(&entry.value).ok());
            }
        }
    }

    /// Notes what is removed by itself.
    pub(crate) fn forget(&mut self, key: &Key) {
        self.keys.remove(key);
    }

    /// Forgets what is inside of a scope; its keys.
    fn take(&mut self, inside: &Inside) -> Vec<Key> {
        inside.empty(&mut self.children);
        inside.take(&mut self.keys)
    }
}

fn is_inner(key: &Key) -> bool {
    key.as_str().contains('/')
}

/// The keys inside of a scope are in one row: `/` is what they go on with, and `0` is what follows that.
struct Inside {
    first: String,
    behind: String,
}

impl Inside {
    fn of(scope: &Key) -> Self {
        Inside { first: format!("{scope}/"), behind: format!("{scope}0") }
    }

    fn range(&self) -> (Bound<&str>, Bound<&str>) {
        (Bound::Included(&self.first), Bound::Excluded(&self.behind))
    }

    fn has(&self, key: &Key) -> bool {
        key.as_str().starts_with(&self.first)
    }

    fn empty<V>(&self, map: &mut BTreeMap<Key, V>) {
        let keys: Vec<Key> = map.range::<str, _>(self.range()).map(|(key, _)| key.clone()).collect();
        for key in keys {
            map.remove(&key);
        }
    }

    fn take(&self, set: &mut BTreeSet<Key>) -> Vec<Key> {
        let keys: Vec<Key> = set.range::<str, _>(self.range()).cloned().collect();
        for key in &keys {
            set.remove(key);
        }
        keys
    }
}

impl Session {
    /// A scope has ended: its result is recorded in place of what is inside of it, with the next operation. `eager`: before
    /// a body can have seen it, because it might not come out the same way again.
    pub(crate) fn collapse(&self, scope: &Key, result: Option<Entry>, eager: bool) {
        let inside = Inside::of(scope);
        let state = &mut *self.state();
        state.riding.entries.retain(|entry| !inside.has(&entry.key));
        let keys = state.inner.take(&inside);
        state.remove(keys);
        inside.empty(&mut state.entries);
        inside.take(&mut state.errors);
        inside.take(&mut state.left);
        state.outputs.end(|path| path == scope.as_str() || path.starts_with(&inside.first));
        state.scopes.end(scope.as_str(), inside.range());
        state.riding.entries.extend(result);
        state.eager |= eager;
    }

    /// Drops what runs inside of a scope that is over for now: the scope's own record decides what comes back, and nothing
    /// is noted of the operations in it.
    pub(crate) fn drop_inside<T>(&self, inside: T) {
        let _quiet = Quiet::new(self);
        drop(inside);
    }

    /// Takes a record back that something later stands for, with the next operation.
    pub(crate) fn retract(&self, key: &Key) {
        let mut state = self.state();
        let before = state.riding.entries.len();
        state.riding.entries.retain(|entry| entry.key != *key);
        if state.riding.entries.len() == before {
            state.riding.forget.push(key.clone());
            state.count = state.count.saturating_sub(1);
        }
    }

    /// Cancels the children of what was given up inside of a scope: of all but what is to be kept. What decided that is
    /// recorded first.
    pub(crate) async fn cancel_children(
        self: &Arc<Self>,
        scope: &Key,
        keep: impl Fn(&Key) -> bool,
    ) -> Result<()> {
        let lost: Vec<(Key, Option<JobId>)> = {
            let inside = Inside::of(scope);
            let state = self.state();
            let children = state.inner.children.range::<str, _>(inside.range());
            children.filter(|(key, _)| !keep(key)).map(|(key, id)| (key.clone(), *id)).collect()
        };
        if lost.is_empty() {
            return Ok(());
        }
        self.settle_all().await?;
        let mut ids = Vec::new();
        for (key, id) in &lost {
            ids.push(match id {
                Some(id) => *id,
                None => self.child_of(key).await?,
            });
        }
        let _busy = self.busy();
        let why = cut(format!("`{scope}` was decided without it"), bounds::WHY_BYTES);
        let verb = Verb::Cancel { why };
        let clock = &self.engine.seams().clock;
        for ids in ids.chunks(bounds::BATCH) {
            while let Err(error) = self.engine.store().change(ids.to_vec(), verb.clone(), false).await {
                if !error.is_retryable() {
                    return Err(error);
                }
                clock.sleep(PAUSE).await;
            }
        }
        let mut state = self.state();
        for (key, _) in &lost {
            state.inner.children.remove(key);
        }
        Ok(())
    }
}

/// While this lives, operations that are given up leave no mark.
struct Quiet<'a>(&'a Session);

impl<'a> Quiet<'a> {
    fn new(session: &'a Session) -> Self {
        session.state().inner.quiet = true;
        Quiet(session)
    }
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        self.0.state().inner.quiet = false;
    }
}

impl Slot {
    /// The scope under this key has ended with a value, which is recorded in place of what is inside of it; as the
    /// handler will read it again. One that is too large for a record leaves everything as it is.
    pub(crate) fn end<T: Serialize + DeserializeOwned>(&self, value: T, eager: bool) -> Result<T> {
        let session = self.session();
        let json = serde_json::to_vec(&value).map_err(unfit)?;
        if json.len() > session.engine.limits().step {
            return Ok(value);
        }
        drop(value);
        let value = serde_json::from_slice(&json).map_err(unfit)?;
        session.collapse(self.key(), Some(self.entry(EntryKind::Value, json)), eager);
        Ok(value)
    }

    /// Something to be recorded under this key.
    pub(crate) fn entry(&self, kind: EntryKind, value: Vec<u8>) -> Entry {
        Entry { key: self.key().clone(), kind, overlapped: self.overlapped(), value }
    }

    /// The scope under this key has failed. What is inside of it stays: if the handler returns the error, the next attempt
    /// goes on with it. If the handler survives it, a later run meets the same error.
    pub(crate) fn fail(&self, failure: Failure) -> Error {
        let session = self.session();
        session.ride(self.entry(EntryKind::Error, error::encode(&failure)), &[], true);
        error::failed(self.key(), failure.into_error())
    }
}

fn unfit(error: serde_json::Error) -> Error {
    Error::Convert { what: "result", source: error.into() }
}

/// How long to wait before the store is asked again.
const PAUSE: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_takes_along_what_is_inside_of_it_and_nothing_else() {
        let mut inner = Inner::default();
        let keys = ["a/x", "a#2/x", "a/b/y", "a#=k/x", "ab/x", "a/x#until", "a b/x"];
        let entry = |key: &&str| Entry {
            key: Key::new(key).expect("a key"),
            kind: EntryKind::Value,
            overlapped: false,
            value: b"1".to_vec(),
        };
        inner.note(&keys.iter().map(entry).collect::<Vec<_>>());
        inner.note(&[entry(&"plain")]);
        let taken: Vec<String> =
            inner.take(&Inside::of(&Key::new("a").expect("a key"))).iter().map(ToString::to_string).collect();
        assert_eq!(taken, ["a/b/y", "a/x", "a/x#until"]);
        assert_eq!(inner.keys.len(), 4);
    }
}
