//! Enqueuing: builders that do nothing until they are awaited.

use std::fmt;
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::time::Duration;

use mainspring_core::backoff::Backoff;
use mainspring_core::id::JobId;
use mainspring_core::job::{New, OnConflict, Priority, Unique};
use mainspring_core::name::{Kind, Label, QueueName, Tag};
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

/// A job that was enqueued, or that was there already.
pub struct Enqueued<J> {
    /// Its id.
    pub id: JobId,
    /// Whether it was there already, because of a unique key or the same id; nothing new was stored then.
    ///
    /// If the answer of the store was lost and the engine had to ask again, a job of the same id counts as stored now.
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

/// Stands for the type of a job that is known only by its kind.
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
        Ok(Draft { kind, queue, priority, run: None, deadline: None, options })
    }

    fn job(&self, id: JobId, input: Vec<u8>) -> New {
        New {
            id,
            kind: self.kind.clone(),
            queue: self.queue.clone(),
            priority: self.priority,
            input,
            run: self.run,
            deadline: self.deadline,
            options: self.options.clone(),
            journal: Vec::new(),
        }
    }
}

/// Setters that both builders have. Each notes the first thing that is wrong; awaiting the builder tells it.
macro_rules! setters {
    () => {
        /// The queue it goes to.
        pub fn queue(self, queue: impl AsRef<str>) -> Self {
            self.set(|draft| QueueName::new(queue).map(|queue| draft.queue = queue))
        }

        /// From 0 (claimed first) to 9 (last).
        pub fn priority(self, priority: u8) -> Self {
            self.set(|draft| Priority::new(priority).map(|priority| draft.priority = priority))
        }

        /// When it may run: a [`SystemTime`](std::time::SystemTime), or a [`Duration`] from now.
        pub fn run_at(self, when: impl Into<When>) -> Self {
            self.set(|draft| {
                draft.run = Some(when.into());
                Ok(())
            })
        }

        /// How long to wait before it may run.
        pub fn delay(self, delay: Duration) -> Self {
            self.run_at(delay)
        }

        /// When it fails if it has not ended: a [`SystemTime`](std::time::SystemTime), or a [`Duration`] from now.
        pub fn deadline(self, when: impl Into<When>) -> Self {
            self.set(|draft| {
                draft.deadline = Some(when.into());
                Ok(())
            })
        }

        /// How often it may fail before it fails for good.
        pub fn max_attempts(self, attempts: u16) -> Self {
            self.set(|draft| {
                draft.options.max_attempts = attempts;
                Ok(())
            })
        }

        /// How long to wait between attempts.
        pub fn backoff(self, backoff: Backoff) -> Self {
            self.set(|draft| {
                draft.options.backoff = Some(backoff);
                Ok(())
            })
        }

        /// How long one attempt may take.
        pub fn timeout(self, timeout: Duration) -> Self {
            self.set(|draft| {
                draft.options.timeout = Some(Span(timeout));
                Ok(())
            })
        }

        /// A word to find it by. May be called up to 16 times.
        pub fn tag(self, tag: impl AsRef<str>) -> Self {
            self.set(|draft| {
                let tag = Tag::new(tag)?;
                if !draft.options.tags.contains(&tag) {
                    draft.options.tags.push(tag);
                }
                Ok(())
            })
        }

        /// A label that a node must have to run it. May be called up to 16 times.
        pub fn label(self, label: impl AsRef<str>) -> Self {
            self.set(|draft| {
                draft.options.labels.push(Label::new(label)?);
                draft.options.labels.sort();
                draft.options.labels.dedup();
                Ok(())
            })
        }

        /// Only nodes of this build run it: those whose [version](crate::NodeBuilder::version) it is, and those that
        /// [take it over](crate::NodeBuilder::takes_over). Without it, any node that has its kind does. Its children are
        /// pinned as it is, unless they say otherwise.
        pub fn pin(self, build: impl AsRef<str>) -> Self {
            self.set(|draft| {
                draft.options.labels.retain(|label| label.build().is_none());
                draft.options.labels.push(Label::of_build(build.as_ref())?);
                draft.options.labels.sort();
                Ok(())
            })
        }

        /// Any node that has its kind runs it; for children of a job that is [pinned](Self::pin).
        pub fn any_build(self) -> Self {
            self.set(|draft| {
                draft.options.labels.retain(|label| label.build().is_none());
                Ok(())
            })
        }

        /// Something that travels with it untouched, such as a trace context.
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

/// One job on its way in. Await it to store it.
#[must_use = "nothing is enqueued until this is awaited"]
pub struct Enqueue<'a, J> {
    engine: &'a Engine,
    id: JobId,
    input: Vec<u8>,
    draft: Result<Draft>,
    job: PhantomData<fn() -> J>,
}

impl<'a, J> Enqueue<'a, J> {
    setters!();

    fn new(engine: &'a Engine, draft: Result<Draft>, input: Result<Vec<u8>>) -> Self {
        let id = mint(engine);
        let (draft, input) = match (draft, input) {
            (Ok(draft), Ok(input)) => (Ok(draft), input),
            (Err(error), _) | (_, Err(error)) => (Err(error), Vec::new()),
        };
        Enqueue { engine, id, input, draft, job: PhantomData }
    }

    /// The id to store it under: the same id twice is the same job, which is stored once. If the id belongs to a job of another
    /// kind or input, or to a child or a fork, [`Error::IdTaken`] says so. A fresh id is minted if this is not called.
    ///
    /// The id of a job that was deleted, or removed after its retention, is free again.
    pub fn id(mut self, id: JobId) -> Self {
        self.id = id;
        self
    }

    /// At most one job of its kind with this key at a time; see [`Unique`].
    pub fn unique(self, unique: impl Into<Unique>) -> Self {
        self.set(|draft| {
            draft.options.unique = Some(unique.into());
            Ok(())
        })
    }

    fn build(self) -> Result<(&'a Engine, New)> {
        let job = self.draft?.job(self.id, self.input);
        job.check(self.engine.bounds(), self.engine.seams().clock.now())?;
        Ok((self.engine, job))
    }

    /// What would be stored.
    pub(crate) fn into_new(self) -> Result<New> {
        self.build().map(|(_, job)| job)
    }

    async fn store(self) -> Result<Enqueued<J>> {
        let (engine, job) = self.build()?;
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

    /// Stores it in the caller's own transaction: it exists if and only if that commits. Durability is the caller's.
    ///
    /// A unique key that is held never aborts the transaction, nor does an id that is taken. After the commit, [`Engine::nudge`] wakes nodes at
    /// once; without it the job is picked up within a second.
    ///
    /// # Errors
    /// [`Error::ForeignTransaction`] if the transaction is on another database than the engine's store,
    /// [`Error::NotInTransaction`] for a unique key that is to replace its holder, [`Error::IdTaken`] for an id of another job.
    pub async fn within<S, T: Enlist<S>>(self, transaction: &mut T) -> Result<Enqueued<J>> {
        let (engine, job) = self.enlisted()?;
        let id = job.id;
        let ticket = engine.store().ticket_for(vec![job.clone()]).await?;
        receipt(id, only(&transaction.enlist(&ticket, vec![job]).await?))
    }

    /// As [`within`](Self::within), without an `await`: for clients such as rusqlite, whose open transaction cannot be
    /// held across one in a handler or a spawned task.
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
        Enqueue::new(engine, Draft::new(J::KIND, J::QUEUE, &J::options()), input_of(engine, job))
    }
}

impl<'a> Enqueue<'a, Json> {
    pub(crate) fn json(engine: &'a Engine, kind: &str, input: &Value) -> Self {
        Enqueue::new(engine, Draft::new(kind, "default", &JobOptions::default()), encode(input))
    }
}

impl<'a, J: 'a> IntoFuture for Enqueue<'a, J> {
    type Output = Result<Enqueued<J>>;
    type IntoFuture = Pending<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.store())
    }
}

/// The input of a job as it is stored.
fn input_of<J: Job>(engine: &Engine, job: &J) -> Result<Vec<u8>> {
    let input = encode(job)?;
    if engine.reads_back() {
        let read = crate::json::come_back::<J>(&input);
        read.map_err(|error| Error::Convert { what: "input", source: error.into() })?;
    }
    Ok(input)
}

fn encode(value: &impl serde::Serialize) -> Result<Vec<u8>> {
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
        Receipt::Contended => {
            Err(Error::unavailable("its unique key or its id is in the hands of an open transaction"))
        }
    }
}
