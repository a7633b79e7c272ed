//! Forks: a new job that shares what another one has recorded up to a step.
//!
//! What is recorded never changes, so a fork needs neither the other job's claim nor its consent: it is a copy, stored with
//! the new job in one commit. What the other job removes meanwhile (a scope that ends, an error that is taken back) is found
//! out, and looked at again.
//!
//! # Invariants
//! - A fork touches nothing of the other job: neither its children, nor its inbox, nor its tokens.
//! - A child belongs to one parent. One that has ended is shared with its end; any other is started again by the fork.

use std::collections::{BTreeMap, BTreeSet};
use std::future::IntoFuture;

use mainspring_core::id::JobId;
use mainspring_core::job::{New, Options, Origin};
use mainspring_core::journal::{Ended, Entry, EntryKind, JobEnd, MessageBody, Timeline, Value, Written, cut};
use mainspring_core::name::Key;
use mainspring_core::seam::Pending;
use mainspring_core::{Error, Result, bounds};
use serde::Serialize;

use crate::durable::child::{self, RESULT};
use crate::durable::drift::ACCEPTED;
use crate::durable::key::side_key;
use crate::durable::scope_end::ABANDONED;
use crate::engine::Engine;
use crate::enqueue::flush::{flush, only};
use crate::enqueue::receipt;

/// How often a journal is read anew because its job has changed it meanwhile.
const ROUNDS: usize = 8;
/// Steps that an error names.
const LISTED_STEPS: usize = 50;
/// Who is said to have sent a signal that a fork was given.
const SENDER: &str = "~fork";

/// A fork of a job. Nothing is stored until you await it; see [`Jobs::fork`](crate::admin::Jobs::fork).
#[must_use = "nothing is forked until this is awaited"]
pub struct Fork<'a> {
    engine: &'a Engine,
    source: JobId,
    id: JobId,
    from: Option<String>,
    input: Option<Result<Vec<u8>>>,
    results: Vec<(String, Result<Vec<u8>>)>,
    dry_run: bool,
}

/// A fork that was stored, or with a dry run would have been.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forked {
    /// The new job.
    pub id: JobId,
    /// The keys of the records that both jobs share.
    pub shared: Vec<Key>,
    /// The keys of children that the other job has started and that have not ended: the fork starts its own.
    pub restarted: Vec<Key>,
}

impl<'a> Fork<'a> {
    pub(crate) fn new(engine: &'a Engine, source: JobId) -> Self {
        let seams = engine.seams();
        let id = JobId::mint(seams.clock.now(), &*seams.rng);
        Fork { engine, source, id, from: None, input: None, results: Vec::new(), dry_run: false }
    }

    /// Sets the step to fork from, by its key: the fork shares all records before it, and runs this step and
    /// everything after it again. Default: it shares all records.
    pub fn from(mut self, step: impl Into<String>) -> Self {
        self.from = Some(step.into());
        self
    }

    /// Gives the fork another input.
    pub fn input(mut self, input: &impl Serialize) -> Self {
        self.input = Some(json("input", input));
        self
    }

    /// Gives a step another result, which the fork shares in place of the old one. The step is a shared one, or the
    /// one to fork from, which then does not run. For a wait for a signal, the value is the signal's payload.
    pub fn result(mut self, step: impl Into<String>, value: &impl Serialize) -> Self {
        self.results.push((step.into(), json("result", value)));
        self
    }

    /// Sets the fork's id. The same id is the same fork: of the same job and step with the same input. Default: a new
    /// id.
    ///
    /// If the id belongs to another job, the fork fails with [`Error::IdTaken`].
    pub fn id(mut self, id: JobId) -> Self {
        self.id = id;
        self
    }

    /// Returns the records that the fork would share, and stores nothing.
    pub fn dry_run(mut self) -> Self {
        self.dry_run = true;
        self
    }

    async fn store(self) -> Result<Forked> {
        let Fork { engine, source, id, from, input, results, dry_run } = self;
        let record = engine.store().get(source).await?.ok_or(Error::NotFound(source))?;
        let past = Past::read(engine, source, from.as_deref()).await?;
        let step = from.as_deref().map(Key::new).transpose()?;
        let (restarted, mut journal) = past.shared;
        for (step, value) in results {
            replace(&mut journal, past.own.as_ref(), &step, value?)?;
        }
        let options = Options {
            unique: None,
            parent: None,
            forked: Some(Origin { job: source, step }),
            ..record.summary.options
        };
        let job = New {
            id,
            kind: record.summary.kind,
            queue: record.summary.queue,
            priority: record.summary.priority,
            input: input.unwrap_or(Ok(record.input))?,
            run: None,
            deadline: None,
            options,
            journal,
        };
        job.check(engine.bounds(), engine.seams().clock.now())?;
        let shared = job.journal.iter().map(|entry| entry.key.clone()).collect();
        if !dry_run {
            let receipts = flush(&**engine.store(), std::slice::from_ref(&job)).await?;
            receipt::<()>(id, only(&receipts))?;
        }
        Ok(Forked { id, shared, restarted })
    }
}

impl<'a> IntoFuture for Fork<'a> {
    type Output = Result<Forked>;
    type IntoFuture = Pending<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.store())
    }
}

fn json(what: &'static str, value: &impl Serialize) -> Result<Vec<u8>> {
    crate::json::to_vec(value).map_err(|error| Error::Convert { what, source: error.into() })
}

/// Says that a step is not recorded, and which are.
pub(crate) fn unknown(step: &str, timeline: &Timeline) -> Error {
    if timeline.more {
        return Error::TooLarge {
            what: "journal",
            size: timeline.entries.len() + 1,
            limit: bounds::TIMELINE,
        };
    }
    let mut seen = BTreeSet::new();
    let ended = Ended::of(timeline.entries.iter().map(|entry| (entry.key.as_str(), entry.kind)));
    let operations = timeline.entries.iter().map(Written::operation);
    let operations = operations.filter(|step| !ended.has(step));
    let steps: Vec<&str> = operations.filter(|step| !step.is_empty() && seen.insert(*step)).collect();
    let more = if steps.len() > LISTED_STEPS { ", …" } else { "" };
    let listed: Vec<String> = steps.iter().take(LISTED_STEPS).map(|step| format!("`{step}`")).collect();
    let why = match listed.as_slice() {
        [] => format!("`{step}` is not recorded; the job has no records"),
        listed => format!("`{step}` is not recorded; the job has {}{more}", listed.join(", ")),
    };
    Error::Invalid { what: "step", why }
}

/// Which records stay if a journal is cut before a step; `None` if nothing is recorded of it.
pub(crate) fn stays(timeline: &Timeline, step: &str) -> Option<Vec<bool>> {
    let entries: Vec<_> = timeline.entries.iter().map(|entry| (entry.key.as_str(), entry.kind)).collect();
    cut(&entries, step)
}

/// What a fork takes along.
struct Past {
    /// Children that are started again, and what is shared.
    shared: (Vec<Key>, Vec<Entry>),
    /// What the step itself has recorded.
    own: Option<Written>,
}

impl Past {
    /// Reads what was recorded before a step, as it was at one moment.
    async fn read(engine: &Engine, id: JobId, from: Option<&str>) -> Result<Past> {
        let timeline = async || engine.store().timeline(id).await?.ok_or(Error::NotFound(id));
        let mut now = timeline().await?;
        for _ in 0..ROUNDS {
            let keep = match from {
                Some(step) => stays(&now, step).ok_or_else(|| unknown(step, &now))?,
                None if now.more => return Err(unknown("", &now)),
                None => vec![true; now.entries.len()],
            };
            let kept: Vec<&Written> =
                now.entries.iter().zip(keep).filter(|(_, keep)| *keep).map(|(entry, _)| entry).collect();
            let kept = without_scopes(kept);
            let there = kept.iter().filter(|entry| matches!(entry.value, Value::There(_)));
            let long: Vec<Key> = there.map(|entry| entry.key.clone()).collect();
            let values = if long.is_empty() {
                Some(BTreeMap::new())
            } else {
                let values = engine.store().values(id, long.clone()).await?;
                let again = timeline().await?;
                // A value is the one that was meant if its record is still there.
                let steady = long.iter().all(|key| of(&again, key) == of(&now, key));
                let values: Option<Vec<Vec<u8>>> = values.into_iter().collect();
                let values = values.filter(|_| steady).map(|values| long.into_iter().zip(values).collect());
                if values.is_none() {
                    now = again;
                    continue;
                }
                values
            };
            let ends = ends(engine, &now, &kept).await?;
            let own =
                from.and_then(|step| now.entries.iter().find(|entry| entry.key.as_str() == step)).cloned();
            return Ok(Past { shared: share(&kept, &values.unwrap_or_default(), &ends)?, own });
        }
        Err(Error::unavailable("the job records faster than it can be read"))
    }
}

fn of<'s>(timeline: &'s Timeline, key: &Key) -> Option<&'s Written> {
    timeline.entries.iter().find(|entry| entry.key == *key)
}

/// Leaves out what is inside of scopes that have ended, what reaches beyond them included: it is the other job's. And tokens,
/// which are good for that one.
fn without_scopes(mut kept: Vec<&Written>) -> Vec<&Written> {
    let ended = Ended::of(kept.iter().map(|entry| (entry.key.as_str(), entry.kind)));
    kept.retain(|entry| !entry.operation().is_empty() && !ended.has(entry.key.as_str()));
    kept
}

/// How those children ended whose end is not among what is kept, by the keys of their starts.
async fn ends(engine: &Engine, timeline: &Timeline, kept: &[&Written]) -> Result<BTreeMap<Key, Vec<u8>>> {
    let recorded: BTreeSet<&str> = kept.iter().map(|entry| entry.key.as_str()).collect();
    let mut open = BTreeMap::new();
    for entry in kept.iter().filter(|entry| entry.kind == EntryKind::Child) {
        if !recorded.contains(side_key(&entry.key, RESULT)?.as_str())
            && let Some(id) = child_of(entry)
        {
            open.insert(id, entry.key.clone());
        }
    }
    let mut ends = BTreeMap::new();
    for message in &timeline.inbox.messages {
        if let MessageBody::Ended { child, status, result, message } = &message.body
            && let Some(key) = open.remove(child)
        {
            ends.insert(key, child::ended(*status, result.as_deref(), message.clone())?);
        }
    }
    let ids: Vec<JobId> = open.keys().copied().collect();
    for ids in ids.chunks(bounds::BATCH) {
        for (id, job_end) in ids.iter().zip(engine.store().job_ends(ids.to_vec()).await?) {
            if let (JobEnd::Ended { status, result, message }, Some(key)) = (job_end, open.remove(id)) {
                ends.insert(key, child::ended(status, result.as_deref(), message)?);
            }
        }
    }
    Ok(ends)
}

fn child_of(entry: &Written) -> Option<JobId> {
    match &entry.value {
        Value::Here(value) => serde_json::from_slice(value).ok(),
        Value::There(_) => None,
    }
}

/// Makes records of a new job of those of another; and which children are not among them.
fn share(
    kept: &[&Written],
    values: &BTreeMap<Key, Vec<u8>>,
    ends: &BTreeMap<Key, Vec<u8>>,
) -> Result<(Vec<Key>, Vec<Entry>)> {
    let keys: BTreeSet<&str> = kept.iter().map(|entry| entry.key.as_str()).collect();
    let (mut restarted, mut shared): (Vec<Key>, Vec<Entry>) = (Vec::new(), Vec::new());
    let mark = |key, value| Entry { key, kind: EntryKind::Value, overlapped: false, value, took: None };
    for entry in kept {
        if entry.key.as_str().ends_with(ABANDONED_MARK) {
            // Comes with the start that it is of.
            continue;
        }
        let value = match &entry.value {
            Value::Here(value) => value.clone(),
            Value::There(_) => values.get(&entry.key).cloned().unwrap_or_default(),
        };
        let (key, end) = (entry.key.clone(), ends.get(&entry.key));
        let is_child = entry.kind == EntryKind::Child;
        let result = side_key(&key, RESULT);
        if is_child && end.is_none() && !result.as_ref().is_ok_and(|key| keys.contains(key.as_str())) {
            // It is new to the fork, and what is recorded behind it is not missed because of that.
            shared.push(mark(side_key(&key, ACCEPTED)?, b"null".to_vec()));
            restarted.push(key);
            continue;
        }
        shared.push(Entry {
            key: key.clone(),
            kind: entry.kind,
            overlapped: entry.overlapped,
            took: entry.took,
            value,
        });
        if let (true, Some(end)) = (is_child, end) {
            shared.push(mark(result?, end.clone()));
        }
        if is_child && key.as_str().contains('/') {
            // Whatever becomes of its scope: it is not the fork's to cancel.
            shared.push(mark(side_key(&key, ABANDONED)?, b"null".to_vec()));
        }
    }
    Ok((restarted, shared))
}

const ABANDONED_MARK: &str = "#abandoned";

/// Puts another result in the place of the one that is shared, or that the step itself has recorded.
fn replace(journal: &mut Vec<Entry>, own: Option<&Written>, step: &str, value: Vec<u8>) -> Result<()> {
    let invalid = |why| Err(Error::Invalid { what: "result", why });
    let at = journal.iter().position(|entry| entry.key.as_str() == step);
    let own = own.filter(|own| own.key.as_str() == step);
    let (kind, overlapped) = match (at.map(|at| &journal[at]), own) {
        (Some(entry), _) => (entry.kind, entry.overlapped),
        (None, Some(own)) => (own.kind, own.overlapped),
        (None, None) => {
            return invalid(format!(
                "`{step}` is neither shared nor the step before which is forked, or has none"
            ));
        }
    };
    let (kind, value) = match kind {
        EntryKind::Value | EntryKind::Error => (EntryKind::Value, value),
        EntryKind::Received => {
            let body = serde_json::value::RawValue::from_string(String::from_utf8_lossy(&value).into_owned())
                .map_err(|error| Error::Convert { what: "result", source: error.into() })?;
            (EntryKind::Received, json("result", &[(SENDER, body)])?)
        }
        EntryKind::Child | EntryKind::Begun | EntryKind::Until => {
            return invalid(format!("`{step}` is not a step that has a result of its own"));
        }
    };
    let entry = Entry { key: Key::new(step)?, kind, overlapped, value, took: None };
    match at {
        Some(at) => journal[at] = entry,
        None => journal.push(entry),
    }
    Ok(())
}
