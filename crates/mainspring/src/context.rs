//! What a handler gets besides its input.

use std::any::{Any, TypeId, type_name};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use mainspring_core::id::JobId;
use mainspring_core::job::{Options, Priority, Progress, cut};
use mainspring_core::name::{Kind, QueueName, Tag};
use mainspring_core::store::Claimed;
use mainspring_core::time::Timestamp;
use mainspring_core::{Error, Result, bounds};

use crate::durable::session::Session;
use crate::engine::Engine;
use crate::job_run::Stop;

/// What a job is, to its handler, layers and hooks.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Info {
    /// Its id. Stable over all attempts: a good idempotency key for calls to the outside.
    pub id: JobId,
    /// Its kind, as stored (an alias if it was enqueued under one).
    pub kind: Kind,
    /// Its queue.
    pub queue: QueueName,
    /// Its priority.
    pub priority: Priority,
    /// Failures so far plus one.
    pub attempt: u16,
    /// The number of this claim: grows each time the job is claimed. A good fence for writes to the outside.
    pub claim: u32,
    /// How many nodes were lost while running it, since it last made progress.
    pub crashes: u16,
    /// When it was enqueued.
    pub created_at: Timestamp,
    /// When it fails if it has not ended.
    pub deadline: Option<Timestamp>,
    options: Options,
}

impl Info {
    pub(crate) fn new(job: &mut Claimed) -> Self {
        Info {
            id: job.claim.id,
            kind: job.kind.clone(),
            queue: job.queue.clone(),
            priority: job.priority,
            attempt: job.failures.saturating_add(1),
            claim: job.claim.number,
            crashes: job.crashes,
            created_at: job.created_at,
            deadline: job.deadline,
            options: std::mem::take(&mut job.options),
        }
    }

    /// How often it may fail before it fails for good.
    pub fn max_attempts(&self) -> u16 {
        self.options.max_attempts
    }

    /// How long one attempt may take.
    pub fn timeout(&self) -> Option<Duration> {
        self.options.timeout.map(|timeout| timeout.0)
    }

    /// Its tags.
    pub fn tags(&self) -> &[Tag] {
        &self.options.tags
    }

    /// What travels with it untouched, such as a trace context.
    pub fn headers(&self) -> &BTreeMap<String, String> {
        &self.options.headers
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }
}

/// What a handler gets besides its input: facts about its job, ways to talk to the engine, and durable operations.
///
/// Owned by the handler and not `Clone`: it stands for this one run.
pub struct Context {
    session: Arc<Session>,
    /// The scope of its operations.
    path: Arc<str>,
    info: Arc<Info>,
    states: Arc<States>,
}

impl Context {
    pub(crate) fn new(session: Arc<Session>, states: Arc<States>) -> Self {
        let info = Arc::clone(&session.run().info);
        Context { session, path: Arc::from(""), info, states }
    }

    /// The same in a scope of its own.
    pub(crate) fn within(&self, path: Arc<str>) -> Self {
        let (session, states) = (Arc::clone(&self.session), Arc::clone(&self.states));
        Context { session, path, info: Arc::clone(&self.info), states }
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    pub(crate) fn path(&self) -> &Arc<str> {
        &self.path
    }

    /// What the job is. A handler that was suspended and goes on from memory keeps what it began with; the number of the
    /// present claim is [`StepContext::claim`](crate::StepContext::claim).
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// The job's id.
    pub fn id(&self) -> JobId {
        self.info.id
    }

    /// Failures so far plus one.
    pub fn attempt(&self) -> u16 {
        self.info.attempt
    }

    /// The engine, for enqueuing more jobs.
    pub fn engine(&self) -> &Engine {
        &self.session.engine
    }

    /// Something that was given to the node with [`NodeBuilder::state`](crate::NodeBuilder::state).
    ///
    /// # Errors
    /// If nothing of this type was given. Name the type with [`NodeBuilder::needs`](crate::NodeBuilder::needs) to be
    /// told so when the node starts.
    pub fn state<T: Send + Sync + 'static>(&self) -> Result<&T> {
        self.states.get::<T>()
    }

    /// Waits until somebody cancels the job.
    ///
    /// A handler that calls this is given [`NodeBuilder::cancel_grace`](crate::NodeBuilder::cancel_grace) to end in
    /// its own way; any other is dropped at its next await when its job is cancelled.
    pub async fn cancelled(&self) {
        // Not under a waker of the handler's own: the node polls it when the job is cancelled, and a handler that waits for
        // nothing else can be suspended meanwhile.
        let own = |context: &mut std::task::Context<'_>| context.waker().will_wake(&self.session.waker);
        std::future::poll_fn(|context| {
            if self.is_cancelled() || !own(context) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        if !self.is_cancelled() {
            self.session.run().cancelled().await;
        }
    }

    /// Whether somebody has cancelled the job. Calling it makes the handler cooperative, as
    /// [`cancelled`](Self::cancelled) does.
    pub fn is_cancelled(&self) -> bool {
        let run = self.session.run();
        run.cooperate();
        matches!(run.stop_reason(), Some(Stop::Cancel(_)))
    }

    /// Says how far the job has come. Only the latest is kept; it is stored within about a second and is never in the
    /// way of the handler.
    pub fn progress(&self, done: u64, total: u64, note: impl Into<String>) {
        let note = cut(note.into(), bounds::NOTE_BYTES);
        self.session.run().set_progress(Progress { done, total, note });
    }

    pub(crate) fn output_bound(&self) -> usize {
        self.engine().bounds().result
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("info", &self.info).field("path", &self.path).finish_non_exhaustive()
    }
}

/// Values that handlers can ask for by type.
#[derive(Default)]
pub(crate) struct States(BTreeMap<TypeId, Box<dyn Any + Send + Sync>>);

impl States {
    pub(crate) fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        self.0.insert(TypeId::of::<T>(), Box::new(value));
    }

    pub(crate) fn get<T: Send + Sync + 'static>(&self) -> Result<&T> {
        let found = self.0.get(&TypeId::of::<T>()).and_then(|value| value.downcast_ref::<T>());
        found.ok_or_else(|| Error::NodeSetup {
            why: format!("no state of type `{}` was given; add .state(…) to the node", type_name::<T>()),
        })
    }
}
