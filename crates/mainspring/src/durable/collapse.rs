//! Scopes that end: what was recorded inside gives way to their result.
//!
//! The commit that records the result of a scope removes what the scope recorded on its way. That commit is the next one
//! of the handler, whatever it is for: until then the scope would come out the same way again, from its records.
//!
//! What reaches beyond a scope stays: the starts of children that have not been seen to end, because a scope around it may
//! yet be given up with them, and the signals that were read, because a retry from before the scope takes them back. A
//! loop is to need no more room than one turn: it forgets what its turns have read, and looks now and then which of the
//! children have ended.
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
use mainspring_core::journal::{Entry, EntryKind, Sight, Value, Written};
use mainspring_core::name::Key;
use mainspring_core::{Error, Result, bounds};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::child::RESULT;
use super::error;
use super::key::{Slot, beside};
use super::session::Session;

/// What is recorded inside of scopes.
#[derive(Default)]
pub(crate) struct Inner {
    records: BTreeMap<Key, Reach>,
    /// Whether operations that are given up now leave no mark.
    quiet: bool,
}

/// How far a record reaches.
#[derive(Clone, Copy)]
enum Reach {
    /// Nobody asks for it once its scope has ended.
    Scope,
    /// The start of a child that is cancelled if its scope is given up; without an id if that has to be read first.
    Child(Option<JobId>),
    /// Signals that were read.
    Read,
}

/// What of a scope that has ended stays recorded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stays {
    /// All that reaches beyond it.
    Reaching,
    /// Of that, children alone.
    Children,
}

/// Where the children are noted that their scope does not take along.
pub(crate) const ABANDONED: &str = "abandoned";

impl Inner {
    /// What a journal has of it.
    pub(crate) fn load(entries: &BTreeMap<Key, Written>) -> Self {
        let reach = |key: &Key, written: &Written| {
            let value = match &written.value {
                Value::Here(value) => value.as_slice(),
                Value::There(_) => &[],
            };
            Reach::of(key, written.kind, value, |mark| entries.contains_key(mark))
        };
        let inner = entries.iter().filter(|(key, _)| is_inner(key));
        let records = inner.map(|(key, written)| (key.clone(), reach(key, written))).collect();
        Inner { records, quiet: false }
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Notes what is being recorded.
    pub(crate) fn note(&mut self, entries: &[Entry]) {
        for entry in entries.iter().filter(|entry| is_inner(&entry.key)) {
            let has = |mark: &Key| entries.iter().any(|entry| entry.key == *mark);
            let reach = Reach::of(&entry.key, entry.kind, &entry.value, has);
            self.records.insert(entry.key.clone(), reach);
        }
    }

    /// Notes what is removed by itself.
    pub(crate) fn forget(&mut self, key: &Key) {
        self.records.remove(key);
    }

    /// Forgets what is inside of a scope and does not stay; its keys. `told`: ends of children that are not recorded yet.
    fn take(&mut self, inside: &Inside, stays: Stays, told: &BTreeSet<Key>) -> Vec<Key> {
        let ended = |child: &Key| {
            let end = beside(child, RESULT);
            end.is_ok_and(|end| told.contains(&end) || self.records.contains_key(&end))
        };
        let goes = |(key, reach): &(&Key, &Reach)| match reach {
            Reach::Scope => true,
            Reach::Child(_) => ended(key),
            Reach::Read => stays == Stays::Children,
        };
        let keys: Vec<Key> =
            self.records.range::<str, _>(inside.range()).filter(goes).map(|(key, _)| key.clone()).collect();
        for key in &keys {
            self.records.remove(key);
        }
        keys
    }

    /// Children inside of a scope that are cancelled if it is given up.
    fn children(&self, inside: &Inside) -> impl Iterator<Item = (&Key, Option<JobId>)> {
        self.records.range::<str, _>(inside.range()).filter_map(|(key, reach)| match reach {
            Reach::Child(id) => Some((key, *id)),
            Reach::Scope | Reach::Read => None,
        })
    }
}

impl Reach {
    /// Of what is recorded; `has`: whether a mark is there.
    fn of(key: &Key, kind: EntryKind, value: &[u8], has: impl Fn(&Key) -> bool) -> Self {
        match kind {
            EntryKind::Child if !beside(key, ABANDONED).is_ok_and(|mark| has(&mark)) => {
                Reach::Child(serde_json::from_slice(value).ok())
            }
            EntryKind::Received => Reach::Read,
            _ => Reach::Scope,
        }
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

    fn take(&self, set: &mut BTreeSet<Key>) {
        let keys: Vec<Key> = set.range::<str, _>(self.range()).cloned().collect();
        for key in &keys {
            set.remove(key);
        }
    }
}

impl Session {
    /// A scope has ended: its result is recorded in place of what is inside of it, with the next operation.
    pub(crate) fn collapse(&self, scope: &Key, result: Option<Entry>, stays: Stays) {
        let inside = Inside::of(scope);
        let state = &mut *self.state();
        let reads = |entry: &Entry| entry.kind == EntryKind::Received && stays == Stays::Reaching;
        let gone = state.riding.entries.extract_if(.., |entry| inside.has(&entry.key) && !reads(entry));
        let told = gone.map(|entry| entry.key).collect();
        let keys = state.inner.take(&inside, stays, &told);
        state.remove(keys);
        inside.empty(&mut state.entries);
        inside.take(&mut state.errors);
        inside.take(&mut state.left);
        state.outputs.end(|path| path == scope.as_str() || path.starts_with(&inside.first));
        state.scopes.end(scope.as_str(), inside.range());
        state.riding.entries.extend(result);
    }

    /// Forgets children inside of a scope that have ended, if there are more than so many; how many may be there before
    /// it is worth another look.
    pub(crate) async fn shed_children(&self, scope: &Key, most: usize) -> Result<usize> {
        let there: Vec<(Key, Option<JobId>)> = {
            let inside = Inside::of(scope);
            let state = self.state();
            if state.inner.children(&inside).count() <= most {
                return Ok(most);
            }
            state.inner.children(&inside).map(|(key, id)| (key.clone(), id)).collect()
        };
        let (keys, ids) = self.ids_of(there).await?;
        let mut over = Vec::new();
        for (keys, ids) in keys.chunks(bounds::BATCH).zip(ids.chunks(bounds::BATCH)) {
            let _busy = self.busy();
            // If that cannot be told now, then after the next turn.
            let Ok(sights) = self.engine.store().sights(ids.to_vec()).await else { return Ok(most) };
            let ended = keys.iter().zip(sights).filter(|(_, sight)| !matches!(sight, Sight::Open));
            over.extend(ended.map(|(key, _)| key.clone()));
        }
        let state = &mut *self.state();
        let left = keys.len() - over.len();
        for key in &over {
            state.inner.forget(key);
        }
        state.remove(over);
        Ok(CHILDREN.max(2 * left))
    }

    /// The ids of children; those that are not known are read.
    async fn ids_of(&self, children: Vec<(Key, Option<JobId>)>) -> Result<(Vec<Key>, Vec<JobId>)> {
        let mut ids = Vec::with_capacity(children.len());
        for (key, id) in &children {
            ids.push(match id {
                Some(id) => *id,
                None => self.child_of(key).await?,
            });
        }
        Ok((children.into_iter().map(|(key, _)| key).collect(), ids))
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
            let children = state.inner.children(&inside);
            children.filter(|(key, _)| !keep(key)).map(|(key, id)| (key.clone(), id)).collect()
        };
        if lost.is_empty() {
            return Ok(());
        }
        self.settle_all().await?;
        let (keys, ids) = self.ids_of(lost).await?;
        let _busy = self.busy();
        let why = cut(format!("`{scope}` was decided without it"), bounds::WHY_BYTES);
        let verb = Verb::Recall { why };
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
        for key in keys {
            state.inner.records.insert(key, Reach::Scope);
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
    pub(crate) fn end<T: Serialize + DeserializeOwned>(&self, value: T) -> Result<T> {
        let session = self.session();
        let json = serde_json::to_vec(&value).map_err(unfit)?;
        if json.len() > session.engine.limits().step {
            return Ok(value);
        }
        drop(value);
        let value = serde_json::from_slice(&json).map_err(unfit)?;
        session.collapse(self.key(), Some(self.entry(EntryKind::Value, json)), Stays::Reaching);
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

/// Children that a loop has not waited for, from which on it looks which of them have ended.
pub(crate) const CHILDREN: usize = 256;

/// How long to wait before the store is asked again.
const PAUSE: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_takes_along_what_is_inside_of_it_and_nothing_else() {
        let mut inner = Inner::default();
        let keys = ["a/x", "a#2/x", "a/b/y", "a#=k/x", "ab/x", "a/x#until", "a b/x"];
        inner.note(&keys.map(|key| entry(key, EntryKind::Value)));
        inner.note(&[entry("plain", EntryKind::Value)]);
        assert_eq!(taken(&mut inner, Stays::Reaching, &[]), ["a/b/y", "a/x", "a/x#until"]);
        assert_eq!(inner.records.len(), 4);
    }

    #[test]
    fn children_that_have_not_ended_and_what_was_read_stay() {
        use EntryKind::{Child, Received, Value as V};
        let mut inner = Inner::default();
        inner.note(&[entry("a/left", Child)]);
        inner.note(&[entry("a/free", Child), entry("a/free#abandoned", V)]);
        inner.note(&[entry("a/over", Child), entry("a/over#result", V), entry("a/told", Child)]);
        inner.note(&[entry("a/go", Received)]);
        let gone = ["a/free", "a/free#abandoned", "a/over", "a/over#result", "a/told"];
        assert_eq!(taken(&mut inner, Stays::Reaching, &["a/told#result"]), gone);
        assert_eq!(taken(&mut inner, Stays::Children, &[]), ["a/go"]);
        assert_eq!(taken(&mut inner, Stays::Children, &["a/left#result"]), ["a/left"]);
    }

    fn key(key: &str) -> Key {
        Key::new(key).expect("a key")
    }

    fn entry(name: &str, kind: EntryKind) -> Entry {
        Entry { key: key(name), kind, overlapped: false, value: b"1".to_vec() }
    }

    fn taken(inner: &mut Inner, stays: Stays, told: &[&str]) -> Vec<String> {
        let told = told.iter().map(|one| key(one)).collect();
        let keys = inner.take(&Inside::of(&key("a")), stays, &told);
        keys.iter().map(ToString::to_string).collect()
    }
}
