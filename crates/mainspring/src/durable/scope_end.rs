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
use std::time::Duration;

use mainspring_core::id::JobId;
use mainspring_core::job::{Verb, cut};
use mainspring_core::journal::{Entry, EntryKind, JobEnd, Value, Written};
use mainspring_core::name::Key;
use mainspring_core::{Error, Result, bounds};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::child::RESULT;
use super::key::side_key;
use super::operation::OpKey;
use super::session::Session;

/// What is recorded inside of scopes.
#[derive(Default)]
pub(crate) struct ScopedRecords {
    records: BTreeMap<Key, Reach>,
    /// Whether operations that are dropped now leave no mark.
    no_drop_marks: bool,
    /// Starts of children that the store has not confirmed yet: their ids may belong to others.
    pub(super) unconfirmed_starts: BTreeSet<Key>,
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
pub(crate) enum Survivors {
    /// All that reaches beyond it.
    Reaching,
    /// Of that, children alone.
    Children,
}

/// Where the children are noted that their scope does not take along.
pub(crate) const ABANDONED: &str = "abandoned";

impl ScopedRecords {
    /// What a journal has of it.
    pub(crate) fn load(entries: &BTreeMap<Key, Written>) -> Self {
        let reach = |key: &Key, written: &Written| {
            let value = match &written.value {
                Value::Here(value) => Ok(value.as_slice()),
                Value::There(bytes) => Err(*bytes),
            };
            Reach::of(key, written.kind, value, |mark| entries.contains_key(mark))
        };
        let inner = entries.iter().filter(|(key, _)| is_inner(key));
        let records = inner.map(|(key, written)| (key.clone(), reach(key, written))).collect();
        ScopedRecords { records, no_drop_marks: false, unconfirmed_starts: BTreeSet::new() }
    }

    pub(crate) fn leaves_no_drop_marks(&self) -> bool {
        self.no_drop_marks
    }

    /// Notes what is being recorded.
    pub(crate) fn note(&mut self, entries: &[Entry]) {
        for entry in entries.iter().filter(|entry| is_inner(&entry.key)) {
            let has = |mark: &Key| entries.iter().any(|entry| entry.key == *mark);
            let reach = Reach::of(&entry.key, entry.kind, Ok(&entry.value), has);
            self.records.insert(entry.key.clone(), reach);
        }
    }

    /// Notes what is removed by itself.
    pub(crate) fn forget(&mut self, key: &Key) {
        self.records.remove(key);
    }

    /// Forgets what is inside of a scope and does not stay; its keys. `deferred_ends`: ends of children
    /// that are not recorded yet.
    pub(super) fn take(
        &mut self,
        inside: &Inside,
        survivors: Survivors,
        deferred_ends: &BTreeSet<Key>,
    ) -> Vec<Key> {
        let ended = |child: &Key| {
            let end = side_key(child, RESULT);
            end.is_ok_and(|end| deferred_ends.contains(&end) || self.records.contains_key(&end))
        };
        let goes = |(key, reach): &(&Key, &Reach)| match reach {
            Reach::Scope => true,
            Reach::Child(_) => ended(key),
            Reach::Read => survivors == Survivors::Children,
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
    /// Of what is recorded, with its value or how large that is; `has`: whether a mark is there.
    fn of(
        key: &Key,
        kind: EntryKind,
        value: std::result::Result<&[u8], usize>,
        has: impl Fn(&Key) -> bool,
    ) -> Self {
        if kind == EntryKind::Child && !side_key(key, ABANDONED).is_ok_and(|mark| has(&mark)) {
            return Reach::Child(value.ok().and_then(|value| serde_json::from_slice(value).ok()));
        }
        let bytes = value.map_or_else(|bytes| bytes, <[u8]>::len);
        if has_read(kind, bytes) { Reach::Read } else { Reach::Scope }
    }
}

/// Whether a wait has read anything: what is recorded of one whose time was up is an empty list.
fn has_read(kind: EntryKind, bytes: usize) -> bool {
    kind == EntryKind::Received && bytes > "[]".len()
}

fn is_inner(key: &Key) -> bool {
    key.as_str().contains('/')
}

/// The keys inside of a scope are in one row: `/` is what they go on with, and `0` is what follows that.
pub(super) struct Inside {
    first: String,
    behind: String,
}

impl Inside {
    fn of(scope: &Key) -> Self {
        Inside { first: format!("{scope}/"), behind: format!("{scope}0") }
    }

    pub(super) fn range(&self) -> (Bound<&str>, Bound<&str>) {
        (Bound::Included(&self.first), Bound::Excluded(&self.behind))
    }

    fn has(&self, key: &Key) -> bool {
        key.as_str().starts_with(&self.first)
    }

    pub(super) fn remove_from_map<V>(&self, map: &mut BTreeMap<Key, V>) {
        let keys: Vec<Key> = map.range::<str, _>(self.range()).map(|(key, _)| key.clone()).collect();
        for key in keys {
            map.remove(&key);
        }
    }

    pub(super) fn remove_from_set(&self, set: &mut BTreeSet<Key>) {
        let keys: Vec<Key> = set.range::<str, _>(self.range()).cloned().collect();
        for key in &keys {
            set.remove(key);
        }
    }
}

/// A scope has ended: its result is recorded in place of what is inside of it, with the next operation.
pub(super) fn collapse(session: &Session, scope: &Key, result: Option<Entry>, survivors: Survivors) {
    let inside = Inside::of(scope);
    let state = &mut *session.state();
    let reaches = |entry: &Entry| survivors == Survivors::Reaching && has_read(entry.kind, entry.value.len());
    let deferred_ends = state.deferred.retract_all(|entry| inside.has(&entry.key) && !reaches(entry));
    let keys = state.replay.end_scope(scope, &inside, survivors, &deferred_ends);
    state.remove(keys);
    state.outputs.end(|path| path == scope.as_str() || path.starts_with(&inside.first));
    if let Some(result) = result {
        state.deferred.add(result, false);
    }
}

/// The scope of an operation has ended with a value, which is recorded in place of what is inside of it; as the
/// handler will read it again. One that is too large for a record leaves everything as it is.
pub(super) fn end<T: Serialize + DeserializeOwned>(op_key: &OpKey, value: T) -> Result<T> {
    let session = op_key.session();
    let json = crate::json::to_vec(&value).map_err(unfit)?;
    if json.len() > session.engine.bounds().step {
        return Ok(value);
    }
    drop(value);
    let value = serde_json::from_slice(&json).map_err(unfit)?;
    collapse(session, op_key.key(), Some(op_key.entry(EntryKind::Value, json)), Survivors::Reaching);
    Ok(value)
}

fn unfit(error: serde_json::Error) -> Error {
    Error::Convert { what: "result", source: error.into() }
}

/// Drops what runs inside of a scope that is over for now: the scope's own record decides what comes back, and nothing
/// is noted of the operations in it.
pub(super) fn drop_inside<T>(session: &Session, inside: T) {
    let _guard = WithoutDropMarks::new(session);
    drop(inside);
}

/// Forgets children inside of a scope that have ended, if there are many.
pub(super) async fn forget_ended_children(session: &Session, scope: &Key) {
    let inside = Inside::of(scope);
    if session.state().replay.scoped.children(&inside).count() < CHILDREN {
        return;
    }
    // If that cannot be found out now, then at the next look.
    if let Ok(over) = ended_children(session, &inside).await {
        session.state().remove(over);
    }
}

async fn ended_children(session: &Session, inside: &Inside) -> Result<Vec<Key>> {
    let _busy = session.busy();
    let children = ids_of(session, inside, |_| true).await?;
    let mut over = Vec::new();
    for children in children.chunks(bounds::BATCH) {
        let ids = children.iter().map(|(_, id)| *id).collect();
        let job_ends = session.engine.store().job_ends(ids).await?;
        let ended = children.iter().zip(job_ends).filter(|(_, job_end)| !matches!(job_end, JobEnd::Open));
        over.extend(ended.map(|((key, _), _)| key.clone()));
    }
    Ok(over)
}

/// Children inside of a scope that are cancelled with it; ids that are not known are read.
async fn ids_of(
    session: &Session,
    inside: &Inside,
    wanted: impl Fn(&Key) -> bool,
) -> Result<Vec<(Key, JobId)>> {
    let unknown: Vec<Key> = {
        let scoped = &session.state().replay.scoped;
        let unknown = scoped.children(inside).filter(|(key, id)| id.is_none() && wanted(key));
        unknown.map(|(key, _)| key.clone()).collect()
    };
    for keys in unknown.chunks(bounds::PAGE) {
        let values = session.engine.store().values(session.run().claim.id, keys.to_vec()).await?;
        let records = &mut session.state().replay.scoped.records;
        for (key, value) in keys.iter().zip(values) {
            let id = value.and_then(|value| serde_json::from_slice(&value).ok());
            let id = id.ok_or_else(|| Error::Corrupt { why: format!("`{key}` is not a child") })?;
            records.insert(key.clone(), Reach::Child(Some(id)));
        }
    }
    let scoped = &session.state().replay.scoped;
    let children = scoped.children(inside).filter(|(key, _)| wanted(key));
    Ok(children.filter_map(|(key, id)| Some((key.clone(), id?))).collect())
}

/// Leaves out jobs that are no children of this one: an operation that was dropped did not learn that its id is another's.
async fn own_children(session: &Session, mut children: Vec<(Key, JobId)>) -> Result<Vec<(Key, JobId)>> {
    let unsure = |(key, _): &(Key, JobId)| session.state().replay.scoped.unconfirmed_starts.contains(key);
    let parent = Some(session.run().claim.id);
    for at in (0..children.len()).rev().filter(|&at| unsure(&children[at])).collect::<Vec<_>>() {
        let job = session.engine.store().get(children[at].1).await?;
        if job.is_none_or(|job| job.summary.options.parent != parent) {
            children.remove(at);
        }
    }
    Ok(children)
}

/// Cancels the children of what was given up inside of a scope: of all but what is to be kept. What decided that is
/// recorded first.
pub(super) async fn cancel_children(
    session: &Session,
    scope: &Key,
    keep: impl Fn(&Key) -> bool,
) -> Result<()> {
    let inside = Inside::of(scope);
    if session.state().replay.scoped.children(&inside).all(|(key, _)| keep(key)) {
        return Ok(());
    }
    session.record_deferred().await?;
    let _busy = session.busy();
    let lost = own_children(session, ids_of(session, &inside, |key| !keep(key)).await?).await?;
    let why = cut(format!("`{scope}` was decided without it"), bounds::WHY_BYTES);
    let verb = Verb::Recall { why };
    let clock = &session.engine.seams().clock;
    for lost in lost.chunks(bounds::BATCH) {
        let ids: Vec<JobId> = lost.iter().map(|(_, id)| *id).collect();
        while let Err(error) = session.engine.store().change(ids.clone(), verb.clone(), false).await {
            if !error.is_retryable() {
                return Err(error);
            }
            clock.sleep(PAUSE).await;
        }
    }
    let records = &mut session.state().replay.scoped.records;
    for (key, _) in lost {
        records.insert(key, Reach::Scope);
    }
    Ok(())
}

/// While this lives, operations that are dropped leave no mark.
struct WithoutDropMarks<'a>(&'a Session);

impl<'a> WithoutDropMarks<'a> {
    fn new(session: &'a Session) -> Self {
        session.state().replay.scoped.no_drop_marks = true;
        WithoutDropMarks(session)
    }
}

impl Drop for WithoutDropMarks<'_> {
    fn drop(&mut self) {
        self.0.state().replay.scoped.no_drop_marks = false;
    }
}

/// Children that a loop has not waited for, from which on it is worth a look which of them have ended.
const CHILDREN: usize = 256;

/// How long to wait before the store is asked again.
const PAUSE: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_takes_along_what_is_inside_of_it_and_nothing_else() {
        let mut inner = ScopedRecords::default();
        let keys = ["a/x", "a#2/x", "a/b/y", "a#=k/x", "ab/x", "a/x#until", "a b/x"];
        inner.note(&keys.map(|key| entry(key, EntryKind::Value)));
        inner.note(&[entry("plain", EntryKind::Value)]);
        assert_eq!(taken(&mut inner, Survivors::Reaching, &[]), ["a/b/y", "a/x", "a/x#until"]);
        assert_eq!(inner.records.len(), 4);
    }

    #[test]
    fn children_that_have_not_ended_and_what_was_read_stay() {
        use EntryKind::{Child, Received, Value as V};
        let mut inner = ScopedRecords::default();
        inner.note(&[entry("a/left", Child)]);
        inner.note(&[entry("a/free", Child), entry("a/free#abandoned", V)]);
        inner.note(&[entry("a/over", Child), entry("a/over#result", V), entry("a/deferred", Child)]);
        inner.note(&[entry("a/late", Received)]);
        inner.note(&[Entry { value: b"[1]".to_vec(), ..entry("a/go", Received) }]);
        let gone = ["a/deferred", "a/free", "a/free#abandoned", "a/late", "a/over", "a/over#result"];
        assert_eq!(taken(&mut inner, Survivors::Reaching, &["a/deferred#result"]), gone);
        assert_eq!(taken(&mut inner, Survivors::Children, &[]), ["a/go"]);
        assert_eq!(taken(&mut inner, Survivors::Children, &["a/left#result"]), ["a/left"]);
    }

    fn key(key: &str) -> Key {
        Key::new(key).expect("a key")
    }

    fn entry(name: &str, kind: EntryKind) -> Entry {
        Entry { key: key(name), kind, overlapped: false, took: None, value: b"[]".to_vec() }
    }

    fn taken(inner: &mut ScopedRecords, survivors: Survivors, deferred_ends: &[&str]) -> Vec<String> {
        let deferred_ends = deferred_ends.iter().map(|one| key(one)).collect();
        let keys = inner.take(&Inside::of(&key("a")), survivors, &deferred_ends);
        keys.iter().map(ToString::to_string).collect()
    }
}
