//! Schedules, as operators see them.

use mainspring_core::audit::{AuditEntry, Subject, check_who};
use mainspring_core::id::JobId;
use mainspring_core::job::{New, Verb};
use mainspring_core::journal::JobEnd;
use mainspring_core::name::ScheduleName;
use mainspring_core::schedule::{Cause, Definition, Hold, Schedule, ScheduleWhy, backfill};
use mainspring_core::store::{Receipt, ScheduleWrite, Written};
use mainspring_core::time::Timestamp;
use mainspring_core::{Error, Result, Uuid, bounds};
use serde_json::Value;

use super::NewSchedule;
use crate::engine::Engine;

/// How often a change is decided again because the schedule has changed meanwhile: it fires once a second at most.
pub(super) const ROUNDS: usize = 32;

/// Schedules; made by [`Engine::schedules`].
#[derive(Debug)]
pub struct Schedules<'a> {
    engine: &'a Engine,
    who: String,
}

/// A fresh id.
pub(super) fn fresh(engine: &Engine) -> Uuid {
    let seams = engine.seams();
    JobId::mint(seams.clock.now(), &*seams.rng).uuid()
}

/// What is remembered of a schedule when it changes.
pub(super) fn json(schedule: &Schedule) -> Value {
    let definition = serde_json::to_value(&schedule.definition).unwrap_or_default();
    let paused = serde_json::to_value(&schedule.state.paused).unwrap_or_default();
    serde_json::json!({ "definition": definition, "paused": paused })
}

/// What a change makes of a schedule.
struct Change {
    row: Option<Schedule>,
    jobs: Vec<New>,
}

impl<'a> Schedules<'a> {
    pub(crate) fn new(engine: &'a Engine) -> Self {
        Schedules { engine, who: "application".to_owned() }
    }

    /// Who makes the changes that follow: the audit remembers it. `application` if not set.
    #[must_use]
    pub fn by(mut self, who: impl Into<String>) -> Self {
        self.who = who.into();
        self
    }

    /// All schedules, sorted by their names.
    pub async fn list(&self) -> Result<Vec<Schedule>> {
        let mut all: Vec<Schedule> = Vec::new();
        loop {
            let after = all.last().map(|schedule| schedule.name.clone());
            let page = self.engine.store().list_schedules(after, bounds::PAGE).await?;
            let done = page.len() < bounds::PAGE;
            all.extend(page);
            if done {
                return Ok(all);
            }
        }
    }

    /// A schedule.
    ///
    /// # Errors
    /// [`Error::NoSchedule`] if there is none of this name.
    pub async fn get(&self, name: &str) -> Result<Schedule> {
        let name = ScheduleName::new(name)?;
        self.find(&name).await?.ok_or(Error::NoSchedule(name))
    }

    async fn find(&self, name: &ScheduleName) -> Result<Option<Schedule>> {
        Ok(self.engine.store().find_schedules(vec![name.clone()]).await?.pop().flatten())
    }

    /// Creates a schedule, or defines it anew. From then on no code undoes that, until it is deleted.
    ///
    /// # Errors
    /// [`Error::Invalid`] or [`Error::TooLarge`] for what is wrong with it.
    pub async fn set(&self, mut schedule: NewSchedule) -> Result<Schedule> {
        crate::limit::seed::plant(self.engine, schedule.take_limits(), "application").await?;
        let (name, definition, _) = schedule.parts()?;
        self.define(name.as_str(), definition).await
    }

    /// The same, for a definition that is there as a whole.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub async fn define(&self, name: &str, definition: Definition) -> Result<Schedule> {
        let name = ScheduleName::new(name)?;
        definition.check(&name, self.engine.bounds(), self.now().await?)?;
        self.change(&name, "set", |found, now, _| {
            let mut row = match found {
                Some(found) => found.redefined(definition.clone(), now),
                None => Schedule::create(name.clone(), definition.clone(), fresh(self.engine), now),
            };
            row.state.edited_by = Some(self.who.clone());
            Ok(Change { row: Some(row), jobs: Vec::new() })
        })
        .await?;
        self.get(name.as_str()).await
    }

    /// Stops a schedule from firing, with a note for those who ask why. Jobs that it has enqueued go on.
    pub async fn pause(&self, name: &str, note: &str) -> Result<Schedule> {
        if note.len() > bounds::NOTE_BYTES {
            return Err(Error::TooLarge { what: "note", size: note.len(), limit: bounds::NOTE_BYTES });
        }
        self.edit(name, "pause", |found, now| found.paused(&self.who, note, now)).await
    }

    /// Lets a schedule fire again. Fires that were due while it was paused do not happen; see [`backfill`](Self::backfill).
    pub async fn resume(&self, name: &str) -> Result<Schedule> {
        self.edit(name, "resume", Schedule::resumed).await
    }

    /// Removes a schedule; its jobs stay. Returns whether there was one. Code that names it makes it again when its next node
    /// starts: pause it instead.
    pub async fn delete(&self, name: &str) -> Result<bool> {
        let name = ScheduleName::new(name)?;
        let gone = |_: Option<&Schedule>, _, _| Ok(Change { row: None, jobs: Vec::new() });
        if self.find(&name).await?.is_none() {
            return Ok(false);
        }
        self.change(&name, "delete", gone).await.map(|_| true)
    }

    /// Enqueues a job of a schedule now, also if it is paused. A schedule that does not [overlap](super::Overlap) refuses that while its last
    /// job has not ended.
    ///
    /// # Errors
    /// [`Error::ScheduleHeld`] in that case.
    pub async fn run(&self, name: &str) -> Result<JobId> {
        self.run_by_hand(name, false).await
    }

    /// The same, whatever its last job does.
    pub async fn run_forced(&self, name: &str) -> Result<JobId> {
        self.run_by_hand(name, true).await
    }

    async fn run_by_hand(&self, name: &str, force: bool) -> Result<JobId> {
        let found = self.get(name).await?;
        if let Some(job) = found.state.last_job.filter(|_| !force) {
            let open = matches!(self.engine.store().job_ends(vec![job]).await?.as_slice(), [JobEnd::Open]);
            let before =
                open.then_some(mainspring_core::job::Status::plain(mainspring_core::job::State::Running));
            match found.definition.overlap.hold(false, before) {
                Hold::Fire | Hold::Pause => {}
                Hold::Skip => return Err(Error::ScheduleHeld { name: found.name, job }),
                Hold::Cancel => {
                    let why = format!("schedule {name} was run by hand");
                    self.engine.store().change(vec![job], Verb::Cancel { why }, false).await?;
                }
            }
        }
        // One time, however often it is asked for.
        let at = self.now().await?;
        let made = self
            .change(&found.name, "run", |found, _, request| {
                let mut row = found.cloned().ok_or_else(|| gone(name))?;
                let job = row.job(at, Cause::Request(request));
                row.state.last_job = Some(job.id);
                Ok(Change { row: Some(row), jobs: vec![job] })
            })
            .await?;
        match made.as_slice() {
            [(id, Receipt::Created | Receipt::Repeated)] => Ok(*id),
            [(_, Receipt::Existing(existing) | Receipt::Rejected(existing))] => {
                Err(Error::Conflict { existing: *existing })
            }
            [(id, Receipt::Taken(differs))] => Err(Error::IdTaken { id: *id, differs: *differs }),
            _ => Err(Error::unavailable("an open transaction holds the unique key of its job")),
        }
    }

    /// Enqueues a job for each fire of a schedule from one time to another, both included, whatever was fired already. It
    /// neither waits for other jobs nor counts for the schedule.
    ///
    /// # Errors
    /// [`Error::TooLarge`] for more than 1,000 fires.
    pub async fn backfill(&self, name: &str, from: Timestamp, to: Timestamp) -> Result<Vec<JobId>> {
        let name = ScheduleName::new(name)?;
        let made = self
            .change(&name, "backfill", |found, _, request| {
                let row = found.cloned().ok_or_else(|| gone(name.as_str()))?;
                let jobs = backfill(&row, from, to, request)?;
                Ok(Change { row: Some(row), jobs })
            })
            .await?;
        let stored = |(id, receipt)| matches!(receipt, Receipt::Created | Receipt::Repeated).then_some(id);
        Ok(made.into_iter().filter_map(stored).collect())
    }

    /// When a schedule fires next, at most so many times.
    pub async fn next(&self, name: &str, most: usize) -> Result<Vec<Timestamp>> {
        let found = self.get(name).await?;
        Ok(found.next_fires(self.now().await?, most.min(bounds::PAGE)))
    }

    /// What was changed about a schedule, the last first.
    pub async fn audit(&self, name: &str) -> Result<Vec<AuditEntry>> {
        let subject = Subject::Schedule(ScheduleName::new(name)?);
        self.engine.store().audit(Some(subject), bounds::AUDIT).await
    }

    /// The one reason that a schedule is not firing now.
    pub async fn why(&self, name: &str) -> Result<ScheduleWhy> {
        let (found, nodes) = (self.get(name).await?, self.engine.store().nodes().await?);
        Ok(found.why(&nodes, self.now().await?))
    }

    async fn now(&self) -> Result<Timestamp> {
        Ok(self.engine.store().due_schedules(0).await?.now)
    }

    async fn edit(
        &self,
        name: &str,
        verb: &'static str,
        edit: impl Fn(&Schedule, Timestamp) -> Schedule,
    ) -> Result<Schedule> {
        let known = ScheduleName::new(name)?;
        self.change(&known, verb, |found, now, _| {
            let found = found.ok_or_else(|| gone(name))?;
            Ok(Change { row: Some(edit(found, now)), jobs: Vec::new() })
        })
        .await?;
        self.get(name).await
    }

    /// Decides on a change and writes it, again if the schedule has changed meanwhile. Returns its jobs, and what became of each.
    ///
    /// The change gets the id of the request, which the audit remembers: who has lost an answer looks there before he writes again.
    async fn change(
        &self,
        name: &ScheduleName,
        verb: &'static str,
        change: impl Fn(Option<&Schedule>, Timestamp, Uuid) -> Result<Change>,
    ) -> Result<Vec<(JobId, Receipt)>> {
        check_who(&self.who)?;
        let request = fresh(self.engine);
        // The jobs of a write whose answer was lost.
        let mut unknown: Option<Vec<JobId>> = None;
        for _ in 0..ROUNDS {
            match self.attempt(name, verb, request, &mut unknown, &change).await {
                Ok(Some(done)) => return Ok(done),
                Ok(None) => {}
                // Whether the lost one arrived, nobody can say now.
                Err(error) if unknown.is_some() && error.is_retryable() => {
                    return Err(Error::OutcomeUnknown { source: Some(error.into()) });
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::unavailable(format!("other callers keep changing schedule `{name}`")))
    }

    /// Decides once. Nothing comes of it if the schedule has changed meanwhile, or if the answer was lost.
    async fn attempt(
        &self,
        name: &ScheduleName,
        verb: &'static str,
        request: Uuid,
        unknown: &mut Option<Vec<JobId>>,
        change: &impl Fn(Option<&Schedule>, Timestamp, Uuid) -> Result<Change>,
    ) -> Result<Option<Vec<(JobId, Receipt)>>> {
        let (found, now) = (self.find(name).await?, self.now().await?);
        if let Some(ids) = unknown
            && self.is_noted(name, request).await?
        {
            return Ok(Some(ids.iter().map(|id| (*id, Receipt::Repeated)).collect()));
        }
        if found.is_none() && verb != "set" {
            return Err(Error::NoSchedule(name.clone()));
        }
        let Change { row, jobs } = change(found.as_ref(), now, request)?;
        let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
        let audit = AuditEntry {
            no: 0,
            at: now,
            who: self.who.clone(),
            subject: Subject::Schedule(name.clone()),
            verb: verb.to_owned(),
            request: Some(request),
            old: found.as_ref().map(json),
            new: row.as_ref().map(json),
        };
        let expected = found.map(|found| found.version);
        let write = ScheduleWrite { name: name.clone(), expected, row, jobs, audit: Some(audit) };
        match self.engine.store().write_schedules(vec![write]).await {
            Ok(answers) => Ok(match answers.into_iter().next() {
                Some(Written::Stored(receipts)) => Some(ids.into_iter().zip(receipts).collect()),
                _ => None,
            }),
            Err(Error::OutcomeUnknown { .. }) => {
                *unknown = Some(ids);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether a request was stored.
    async fn is_noted(&self, name: &ScheduleName, request: Uuid) -> Result<bool> {
        let entries = self.engine.store().audit(Some(Subject::Schedule(name.clone())), bounds::AUDIT).await?;
        Ok(entries.iter().any(|entry| entry.request == Some(request)))
    }
}

fn gone(name: &str) -> Error {
    match ScheduleName::new(name) {
        Ok(name) => Error::NoSchedule(name),
        Err(error) => error,
    }
}
