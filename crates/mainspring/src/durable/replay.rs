//! Replay: what a job has recorded, and how much of that its handler has asked for.
//!
//! A handler runs from its top, and each of its operations takes the record under its key out of this index. What remains in a scope
//! is what the code has not asked for: the drift guard judges by that. Beside the records themselves, this keeps what later records depend
//! on: which keys a scope has given out, what goes when a scope ends, which errors can be taken back, and how many records there are.
//!
//! # Invariants
//! - A record is found once.
//! - A key that is removed from the journal is removed here in the same moment, and so is counted once.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use mainspring_core::journal::{Entry, EntryKind, TURN, Written};
use mainspring_core::name::Key;

use super::drift::Drift;
use super::dropped;
use super::key::{Scopes, is_result, side_key};
use super::scope_end::{Inside, ScopedRecords, Survivors};

/// What is recorded of a job, as its handler sees it.
pub(crate) struct Replay {
    /// Records that have not been asked for yet.
    pub(super) entries: BTreeMap<Key, Written>,
    pub(super) scopes: Scopes,
    /// What is recorded inside of scopes.
    pub(super) scoped: ScopedRecords,
    /// Operations that may not fit what is recorded.
    pub(super) drift: Drift,
    /// Keys of recorded errors that can be taken back.
    errors: BTreeSet<Key>,
    /// How many records there are.
    count: usize,
    /// Operations that were dropped in an earlier run.
    dropped_before: BTreeSet<Key>,
}

impl Replay {
    /// What a journal has; its entries are in the order of recording.
    pub(super) fn load(entries: Vec<Written>) -> Self {
        let (count, drift) = (entries.len(), Drift::load(&entries));
        let entries: BTreeMap<Key, Written> =
            entries.into_iter().map(|entry| (entry.key.clone(), entry)).collect();
        let once = |key: &Key| side_key(key, "begun").is_ok_and(|begun| entries.contains_key(&begun));
        let errors = entries.values().filter(|entry| entry.kind == EntryKind::Error && !once(&entry.key));
        Replay {
            errors: errors.map(|entry| entry.key.clone()).collect(),
            scoped: ScopedRecords::load(&entries),
            dropped_before: dropped::load(&entries),
            scopes: Scopes::default(),
            drift,
            count,
            entries,
        }
    }

    /// What is recorded under a key. It is found once.
    pub(super) fn find(&mut self, key: &Key) -> Option<Written> {
        self.entries.remove(key)
    }

    /// How many records there are, with those that are on their way.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Whether anything is recorded of an operation, or inside of it.
    pub(super) fn knows(&self, key: &str) -> bool {
        let behind = self.entries.range::<str, _>((Bound::Included(key), Bound::Unbounded));
        let mut family = behind.map_while(|(one, _)| one.as_str().strip_prefix(key));
        family
            .any(|rest| rest.is_empty() || rest.starts_with('/') || rest.starts_with('#') && !is_result(rest))
    }

    /// Whether operations are recorded inside of this one, or turns of it.
    pub(super) fn was_scope(&self, key: &Key) -> bool {
        let behind = self.entries.range::<str, _>((Bound::Excluded(key.as_str()), Bound::Unbounded));
        let mut family = behind.map_while(|(one, _)| one.as_str().strip_prefix(key.as_str()));
        family.any(|rest| rest.starts_with('/') || rest.starts_with(TURN))
    }

    /// What is recorded in a scope and was not found yet: its label, whether the record lies deeper, and the record.
    pub(super) fn recorded_in(&self, scope: &str) -> impl Iterator<Item = (&str, bool, &Written)> {
        let first = if scope.is_empty() { String::new() } else { format!("{scope}/") };
        let entries = self.entries.range::<str, _>((Bound::Included(first.as_str()), Bound::Unbounded));
        let inside = entries.map_while(|(key, written)| Some((key.as_str().strip_prefix(&first)?, written)));
        let labels = inside.map(|(rest, written)| match rest.split_once('/') {
            Some((label, _)) => (label, true, written),
            None => (rest, false, written),
        });
        labels.collect::<Vec<_>>().into_iter()
    }

    /// Nobody has to ask for this name any more.
    pub(crate) fn ignore_name(&mut self, scope: &Arc<str>, name: &str) {
        self.drift.ignore_name(scope, name);
    }

    /// Whether an operation was dropped in an earlier run.
    pub(super) fn was_dropped(&self, key: &Key) -> bool {
        self.dropped_before.contains(key)
    }

    /// Lets operations continue that were dropped in an earlier run. Returns the keys of the records that said so.
    pub(super) fn revive_dropped(&mut self) -> Vec<Key> {
        let dropped = std::mem::take(&mut self.dropped_before);
        dropped.iter().filter_map(|key| dropped::mark_key(key).ok()).collect()
    }

    /// The error of this operation stays recorded, whatever the handler does with it.
    pub(super) fn keep_error(&mut self, key: &Key) {
        self.errors.remove(key);
    }

    /// Whether an error is recorded under a key, and can be taken back.
    pub(super) fn has_error(&self, key: &Key) -> bool {
        self.errors.contains(key)
    }

    /// These are recorded now, or on their way.
    pub(super) fn add(&mut self, entries: &[Entry]) {
        let errors = entries.iter().filter(|entry| entry.kind == EntryKind::Error);
        self.errors.extend(errors.map(|entry| entry.key.clone()));
        self.count += entries.len();
        self.scoped.note(entries);
    }

    /// So many of those that were on their way were refused.
    pub(super) fn refused(&mut self, count: usize) {
        self.count = self.count.saturating_sub(count);
    }

    /// Records are removed.
    pub(super) fn forget(&mut self, keys: &[Key]) {
        self.count = self.count.saturating_sub(keys.len());
        for key in keys {
            self.scoped.forget(key);
        }
    }

    /// A scope has ended. Returns the keys of the records inside of it that do not stay. `deferred_ends`: ends of children that are
    /// not recorded yet.
    pub(super) fn end_scope(
        &mut self,
        scope: &Key,
        inside: &Inside,
        survivors: Survivors,
        deferred_ends: &BTreeSet<Key>,
    ) -> Vec<Key> {
        inside.remove_from_map(&mut self.entries);
        inside.remove_from_set(&mut self.errors);
        inside.remove_from_set(&mut self.dropped_before);
        self.scopes.end(scope.as_str(), inside.range());
        self.scoped.take(inside, survivors, deferred_ends)
    }
}
