//! Enqueuing: builders that do nothing until they are awaited.

use std::fmt;
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::time::Duration;

use mainspring_core::backoff::Backoff;
use mainspring_core::id::JobId;
use mainspring_core::job::{New, OnConflict, Priority, Unique};
use mainspring_core::limit::LimitUse;
use mainspring_core::name::{Kind, Label, LimitName, QueueName, Tag};
use mainspring_core::seam::Pending;
use mainspring_core::store::Receipt;
use mainspring_core::time::Span;
use mainspring_core::{Error, Result};
use serde_json::Value;

pub use mainspring_core::job::{Differs, Options, Origin, PayloadBounds, When};
pub use mainspring_core::store::{Enlist, EnlistSync};

use crate::engine::Engine;
use crate::enqueue::flush::{ContendedRetry, only};
use crate::job::{Job, JobOptions};
use crate::limit::seed::TypeSeeds;

/// A job that an enqueue has stored, or found.
pub struct Enqueued<J> {
    /// The id of the job. With a held unique key, the id of the job that holds it.
    pub id: JobId,
    /// Whether the job existed already, because of a unique key or the same id. The enqueue has stored nothing then.
    ///
    /// If the store's answer was lost and the engine had to ask again, a job with the same id counts as stored now.
    pub existing: bool,
    job: PhantomData<fn() -> J>,
}

impl<J> Enqueued<J> {
    fn new(id: JobId, existing: bool) -> Self {
        Enqueued { id, existing, job: PhantomData }
    }

    /// A job that is known to be of this type.
    pub(crate) fn known(id: JobId) -> Self {
        Enqueued::new(id, true)
    }
}

impl<J> Clone for Enqueued<J> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<J> Copy for Enqueued<J> {}

impl<J> fmt::Debug for Enqueued<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Enqueued").field("id", &self.id).field("existing", &self.existing).finish()
    }
}

/// Stands for the type of a job that you know only by its kind.
#[derive(Debug)]
pub enum Json {}

/// What all jobs of one call have in common.
struct Draft {
    kind: Kind,
    queue: QueueName,
    priority: Priority,
    run: Option<When>,
    deadline: Option<When>,
    options: Options,
    /// Limits that the call names, in its order; they win over those of the job's type.
    limits: Vec<LimitUse>,
}

impl Draft {
    fn new(kind: &str, queue: &str, defaults: &JobOptions) -> Result<Self> {
        let mut options = Options::default();
        if let Some(attempts) = defaults.max_attempts {
            options.max_attempts = attempts;
        }
        options.timeout = defaults.timeout.map(Span);
        options.backoff = defaults.backoff;
        let priority = defaults.priority.map(Priority::new).transpose()?.unwrap_or_default();
        let (kind, queue) = (Kind::new(kind)?, QueueName::new(queue)?);
        Ok(Draft { kind, queue, priority, run: None, deadline: None, options, limits: Vec::new() })
    }

    /// The limits of a job whose type names these.
    fn limits(&self, of_type: &[LimitUse]) -> Vec<LimitUse> {
        let kept = of_type.iter().filter(|one| !self.limits.iter().any(|other| other.limit == one.limit));
        in_order(kept.chain(&self.limits).cloned().collect())
    }

    /// The limit that was named last, for what is said of it.
    fn last_limit(&mut self, what: &'static str) -> Result<&mut LimitUse> {
        let none = || Error::Invalid { what, why: "name its limit before, with .limit(…)".into() };
        self.limits.last_mut().ok_or_else(none)
    }

    fn job(&self, id: JobId, input: Vec<u8>, limits: &[LimitUse]) -> New {
        let limits = self.limits(limits);
        New {
            id,
            kind: self.kind.clone(),
            queue: self.queue.clone(),
            priority: self.priority,
            input,
            run: self.run,
            deadline: self.deadline,
            options: Options { limits, ..self.options.clone() },
            journal: Vec::new(),
        }
    }
}

/// Setters that both builders have. Each notes the first thing that is wrong; awaiting the builder tells it.
macro_rules! setters {
    () => {
        /// Sets the queue. Default: the type's, or `default`.
        pub fn queue(self, queue: impl AsRef<str>) -> Self {
            self.set(|draft| QueueName::new(queue).map(|queue| draft.queue = queue))
        }

        /// Sets the priority, from 0 (claimed first) to 9 (last). Default: the type's, or 5.
        pub fn priority(self, priority: u8) -> Self {
            self.set(|draft| Priority::new(priority).map(|priority| draft.priority = priority))
        }

        /// Sets the earliest start: a [`SystemTime`](std::time::SystemTime), or a [`Duration`] from now. Default:
        /// now.
        pub fn run_at(self, when: impl Into<When>) -> Self {
            self.set(|draft| {
                draft.run = Some(when.into());
                Ok(())
            })
        }

        /// Lets the job wait this long before it may run. At most ten years.
        pub fn delay(self, delay: Duration) -> Self {
            self.run_at(delay)
        }

        /// Sets the time at which the job fails for good if it has not ended, waits included: a
        /// [`SystemTime`](std::time::SystemTime), or a [`Duration`] from now. Default: none.
        pub fn deadline(self, when: impl Into<When>) -> Self {
            self.set(|draft| {
                draft.deadline = Some(when.into());
                Ok(())
            })
        }

        /// Sets how often the job may fail before it fails for good, from 1 to 10,000. Default: the type's, or 10.
        pub fn max_attempts(self, attempts: u16) -> Self {
            self.set(|draft| {
                draft.options.max_attempts = attempts;
                Ok(())
            })
        }

        /// Sets how long to wait between attempts. Default: the type's, then the queue's, then exponential from one
        /// second to an hour.
        pub fn backoff(self, backoff: Backoff) -> Self {
            self.set(|draft| {
                draft.options.backoff = Some(backoff);
                Ok(())
            })
        }

        /// Sets how long one attempt may take, without the waits of a workflow. Exceeding it is a failure like any
        /// other. Default: the type's, or none.
        pub fn timeout(self, timeout: Duration) -> Self {
            self.set(|draft| {
                draft.options.timeout = Some(Span(timeout));
                Ok(())
            })
        }

        /// Adds a tag, a word to find the job by. A job has up to 16.
        pub fn tag(self, tag: impl AsRef<str>) -> Self {
            self.set(|draft| {
                let tag = Tag::new(tag)?;
                if !draft.options.tags.contains(&tag) {
                    draft.options.tags.push(tag);
                }
                Ok(())
            })
        }

        /// Adds a label that a node must have to run the job. A job has up to 16.
        pub fn label(self, label: impl AsRef<str>) -> Self {
            self.set(|draft| {
                draft.options.labels.push(Label::new(label)?);
                draft.options.labels.sort();
                draft.options.labels.dedup();
                Ok(())
            })
        }

        /// Pins the job to a build: only nodes with this [version](crate::NodeBuilder::version), or nodes that [take
        /// it over](crate::NodeBuilder::takes_over), run it. Its children get the same pin, unless they say
        /// otherwise. Default: any node that handles its kind.
        pub fn pin(self, build: impl AsRef<str>) -> Self {
            self.set(|draft| {
                draft.options.labels.retain(|label| label.build().is_none());
                draft.options.labels.push(Label::of_build(build.as_ref())?);
                draft.options.labels.sort();
                Ok(())
            })
        }

        /// Lets any node that handles its kind run the job: for children of a [pinned](Self::pin) job.
        pub fn any_build(self) -> Self {
            self.set(|draft| {
                draft.options.labels.retain(|label| label.build().is_none());
                Ok(())
            })
        }

        /// Lets the job take part in a [limit](crate::limit): it runs while there is room. A job has up to eight limits,
        /// and takes units of all of them or of none. [`key`](Self::key) and [`units`](Self::units) say more about the
        /// limit that you named last. A limit of the job's type is replaced if you name it here.
        ///
        /// ```
        /// # async fn example(engine: &mainspring::Engine) -> Result<(), mainspring::Error> {
        /// # let input = serde_json::json!(null);
        /// engine.enqueue_json("render", &input).limit("gpu").units(4).limit("tenant").key("acme").await?;
        /// # Ok(())
        /// # }
        /// ```
        pub fn limit(self, limit: impl AsRef<str>) -> Self {
            self.set(|draft| {
                draft.limits.push(LimitUse::new(LimitName::new(limit)?));
                Ok(())
            })
        }

        /// Sets the key of the limit that you named last. Each key has counters of its own. Up to 256 bytes.
        pub fn key(self, key: impl ToString) -> Self {
            self.set(|draft| {
                draft.last_limit("limit key")?.key = key.to_string();
                Ok(())
            })
        }

        /// Sets how many units of the limit that you named last the job takes, from 1 to 16. Default: 1.
        pub fn units(self, units: u16) -> Self {
            self.set(|draft| {
                draft.last_limit("units")?.units = units;
                Ok(())
            })
        }

        /// Adds a header, such as a trace context. It travels with the job untouched; the handler reads it from
        /// [`Info::headers`](crate::handler::Info::headers).
        pub fn header(self, name: impl Into<String>, value: impl Into<String>) -> Self {
            self.set(|draft| {
                draft.options.headers.insert(name.into(), value.into());
                Ok(())
            })
        }

        fn set(mut self, change: impl FnOnce(&mut Draft) -> Result<()>) -> Self {
            if let Ok(draft) = &mut self.draft
                && let Err(error) = change(draft)
            {
                self.draft = Err(error);
            }
            self
        }
    };
}

pub(crate) mod flush;
mod many;

pub use many::EnqueueMany;

/// A job to enqueue. Nothing happens until you await it; then the job is on stable storage.
#[must_use = "nothing is enqueued until this is awaited"]
pub struct Enqueue<'a, J> {
    engine: &'a Engine,
    id: JobId,
    input: Input,
    draft: Result<Draft>,
    seeds: TypeSeeds,
    job: PhantomData<fn() -> J>,
}

impl<'a, J> Enqueue<'a, J> {
    setters!();

    fn new(engine: &'a Engine, draft: Result<Draft>, input: Result<Input>, seeds: TypeSeeds) -> Self {
        let id = mint(engine);
        let (draft, input) = match (draft, input) {
            (Ok(draft), Ok(input)) => (Ok(draft), input),
            (Err(error), _) | (_, Err(error)) => (Err(error), Input::default()),
        };
        Enqueue { engine, id, input, draft, seeds, job: PhantomData }
    }

    /// Sets the job's id. The same id is the same job: a repeat stores nothing and returns `existing: true`. Default:
    /// a new id.
    ///
    /// If the id belongs to a job of another kind or input, or to a child or a fork, the enqueue fails with
    /// [`Error::IdTaken`]. When a job is deleted, or removed after its retention, its id is free again.
    pub fn id(mut self, id: JobId) -> Self {
        self.id = id;
        self
    }

    /// Sets a unique key: at most one job of a kind has it at a time. See [`Unique`] for how long a job holds it, and
    /// for conflicts.
    pub fn unique(self, unique: impl Into<Unique>) -> Self {
        self.set(|draft| {
            draft.options.unique = Some(unique.into());
            Ok(())
        })
    }

    fn build(self) -> Result<(&'a Engine, New)> {
        let job = self.draft?.job(self.id, self.input.bytes, &self.input.limits);
        job.check(self.engine.bounds(), self.engine.seams().clock.now())?;
        Ok((self.engine, job))
    }

    /// What would be stored. The store knows the limits that its type defines.
    pub(crate) async fn into_new(self) -> Result<New> {
        let seeds = self.seeds;
        let (engine, job) = self.build()?;
        if !job.options.limits.is_empty() {
            seeds.plant(engine).await?;
        }
        Ok(job)
    }

    async fn store(self) -> Result<Enqueued<J>> {
        let seeds = self.seeds;
        let (engine, job) = self.build()?;
        if job.options.limits.is_empty() {
            return Enqueue::send(engine, job).await;
        }
        seeds.plant(engine).await?;
        match Enqueue::send(engine, job.clone()).await {
            // Somebody has deleted it since.
            Err(Error::UnknownLimit { .. }) if seeds.plant_again(engine).await? => {
                Enqueue::send(engine, job).await
            }
            answer => answer,
        }
    }

    async fn send(engine: &Engine, job: New) -> Result<Enqueued<J>> {
        let id = job.id;
        // Only a job with a unique key can be contended.
        let again = job.options.unique.is_some().then(|| job.clone());
        let mut answer = engine.enqueues().send(job).await??;
        if let (Receipt::Contended, Some(job)) = (answer, again) {
            let clock = &*engine.seams().clock;
            answer = ContendedRetry::new().ask(&**engine.store(), clock, &job).await?;
        }
        receipt(id, answer)
    }

    /// Stores the job in your own transaction: the job exists if and only if the transaction commits. It is as
    /// durable as your transaction.
    ///
    /// A held unique key never aborts the transaction, nor does a taken id. After the commit, [`Engine::nudge`] wakes
    /// nodes at once; without it, they find the job within a second.
    ///
    /// # Errors
    /// [`Error::ForeignTransaction`] if the transaction is on another database than the engine's store;
    /// [`Error::NotInTransaction`] for a unique key that replaces its holder; [`Error::IdTaken`] for an id of another
    /// job; [`Error::Conflict`] if you asked for a refusal.
    pub async fn within<S, T: Enlist<S>>(self, transaction: &mut T) -> Result<Enqueued<J>> {
        let seeds = self.seeds;
        let (engine, job) = self.enlisted()?;
        if !job.options.limits.is_empty() {
            seeds.plant(engine).await?;
        }
        let id = job.id;
        let ticket = engine.store().ticket_for(vec![job.clone()]).await?;
        receipt(id, only(&transaction.enlist(&ticket, vec![job]).await?))
    }

    /// Stores the job in your own transaction, without an `await`.
    ///
    /// It is for clients such as rusqlite: you cannot hold their open transaction across an await in a handler or a
    /// spawned task. Otherwise as [`within`](Self::within).
    ///
    /// # Errors
    /// As [`within`](Self::within).
    pub fn within_sync<S, T: EnlistSync<S>>(self, transaction: &mut T) -> Result<Enqueued<J>> {
        let (engine, job) = self.enlisted()?;
        let id = job.id;
        receipt(id, only(&transaction.enlist_sync(&engine.store().ticket(), vec![job])?))
    }

    fn enlisted(self) -> Result<(&'a Engine, New)> {
        let (engine, job) = self.build()?;
        if job.options.unique.as_ref().is_some_and(|unique| unique.on_conflict == OnConflict::Replace) {
            return Err(Error::NotInTransaction { what: "replacing the holder of a unique key" });
        }
        Ok((engine, job))
    }
}

impl<'a, J: Job> Enqueue<'a, J> {
    pub(crate) fn of(engine: &'a Engine, job: &J) -> Self {
        let draft = Draft::new(J::KIND, J::QUEUE, &J::options());
        Enqueue::new(engine, draft, input_of(engine, job), TypeSeeds::of::<J>())
    }
}

impl<'a> Enqueue<'a, Json> {
    pub(crate) fn json(engine: &'a Engine, kind: &str, input: &Value) -> Self {
        let draft = Draft::new(kind, "default", &JobOptions::default());
        let input = encode(input).map(|bytes| Input { bytes, limits: Vec::new() });
        Enqueue::new(engine, draft, input, TypeSeeds::unknown())
    }
}

impl<'a, J: 'a> IntoFuture for Enqueue<'a, J> {
    type Output = Result<Enqueued<J>>;
    type IntoFuture = Pending<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.store())
    }
}

/// Limits in the order that a store wants. A limit key that is named twice counts once, with the larger number of units: no job
/// is to wait for itself.
pub(crate) fn in_order(mut uses: Vec<LimitUse>) -> Vec<LimitUse> {
    uses.sort_by(|a, b| (&a.limit, &a.key).cmp(&(&b.limit, &b.key)).then(b.units.cmp(&a.units)));
    uses.dedup_by(|one, first| one.is_same_key(first));
    uses
}

/// What is known of a job by its value.
#[derive(Default)]
struct Input {
    /// The input as it is stored.
    bytes: Vec<u8>,
    /// Its limits, as its type says them.
    limits: Vec<LimitUse>,
}

fn input_of<J: Job>(engine: &Engine, job: &J) -> Result<Input> {
    let (input, limits) = (encode(job)?, job.limits()?);
    if engine.reads_back() {
        let read = crate::json::come_back::<J>(&input);
        read.map_err(|error| Error::Convert { what: "input", source: error.into() })?;
    }
    Ok(Input { bytes: input, limits })
}

pub(crate) fn encode(value: &impl serde::Serialize) -> Result<Vec<u8>> {
    crate::json::to_vec(value).map_err(|error| Error::Convert { what: "input", source: error.into() })
}

fn mint(engine: &Engine) -> JobId {
    let seams = engine.seams();
    JobId::mint(seams.clock.now(), &*seams.rng)
}

pub(crate) fn receipt<J>(id: JobId, receipt: Receipt) -> Result<Enqueued<J>> {
    match receipt {
        Receipt::Created => Ok(Enqueued::new(id, false)),
        Receipt::Repeated => Ok(Enqueued::new(id, true)),
        Receipt::Taken(differs) => Err(Error::IdTaken { id, differs }),
        Receipt::Existing(existing) => Ok(Enqueued::new(existing, true)),
        Receipt::Rejected(existing) => Err(Error::Conflict { existing }),
        Receipt::Contended => Err(Error::unavailable("an open transaction holds its unique key or its id")),
    }
}
