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

/// Describes a job to its handler, layers and hooks.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Info {
    /// The id of the job, the same in all attempts: a good idempotency key for calls to the outside.
    pub id: JobId,
    /// The kind, as stored (an alias if the job was enqueued under one).
    pub kind: Kind,
    /// The queue.
    pub queue: QueueName,
    /// The priority.
    pub priority: Priority,
    /// The attempt: failures so far plus one.
    pub attempt: u16,
    /// The number of this claim, which grows each time a node claims the job: a good fence for writes to the outside.
    pub claim: u32,
    /// The nodes lost while they ran the job, since it last made progress.
    pub crashes: u16,
    /// When it was enqueued.
    pub created_at: Timestamp,
    /// When it fails for good if it has not ended, if ever.
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

    /// Returns how often the job may fail before it fails for good.
    pub fn max_attempts(&self) -> u16 {
        self.options.max_attempts
    }

    /// Returns how long one attempt may take, if that is bounded.
    pub fn timeout(&self) -> Option<Duration> {
        self.options.timeout.map(|timeout| timeout.0)
    }

    /// Returns the tags.
    pub fn tags(&self) -> &[Tag] {
        &self.options.tags
    }

    /// Returns the headers, which travel with the job untouched, such as a trace context.
    pub fn headers(&self) -> &BTreeMap<String, String> {
        &self.options.headers
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }
}

/// The handler's access to its job and the engine, and to durable operations such as [`step`](Self::step).
///
/// The handler owns it. It is not `Clone`, because it stands for this one run.
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

    /// Describes the job. If the engine resumes a handler from memory, it keeps the values of its start;
    /// [`StepContext::claim`](crate::StepContext::claim) has the number of the present claim.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Returns the job's id, the same in all attempts.
    pub fn id(&self) -> JobId {
        self.info.id
    }

    /// Returns the attempt: failures so far plus one.
    pub fn attempt(&self) -> u16 {
        self.info.attempt
    }

    /// Returns the engine, to enqueue more jobs.
    pub fn engine(&self) -> &Engine {
        &self.session.engine
    }

    /// Returns a value that you gave to the node with [`NodeBuilder::state`](crate::NodeBuilder::state).
    ///
    /// # Errors
    /// [`Error::NodeSetup`](crate::Error::NodeSetup) if the node has no value of this type. Name the type with
    /// [`NodeBuilder::needs`](crate::NodeBuilder::needs) to get this error when the node starts.
    pub fn state<T: Send + Sync + 'static>(&self) -> Result<&T> {
        self.states.get::<T>()
    }

    /// Waits until somebody cancels the job.
    ///
    /// A handler that calls this gets [`NodeBuilder::cancel_grace`](crate::NodeBuilder::cancel_grace) to end in its
    /// own way. Any other handler is dropped at its next await when its job is cancelled.
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

    /// Returns whether somebody has cancelled the job. A handler that calls it gets a grace to end in its own way, as
    /// with [`cancelled`](Self::cancelled).
    pub fn is_cancelled(&self) -> bool {
        let run = self.session.run();
        run.cooperate();
        matches!(run.stop_reason(), Some(Stop::Cancel(_)))
    }

    /// Waits until the node drains: it shuts down, and lets running jobs end for
    /// [`NodeBuilder::drain`](crate::NodeBuilder::drain). Then it drops the handlers that still run and gives their jobs
    /// back, which counts nothing.
    ///
    /// A long handler uses the time to reach a good place to stop. It can store how far it has come and return
    /// [`snooze`](crate::snooze), and another node runs the job again at once:
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use mainspring::{Context, Failure};
    /// # async fn next_page(_from: u64) -> Result<Option<u64>, Failure> { Ok(None) }
    /// # async fn save(_page: u64) -> Result<(), Failure> { Ok(()) }
    /// # async fn import(ctx: Context, mut page: u64) -> Result<(), Failure> {
    /// while let Some(next) = next_page(page).await? {
    ///     page = next;
    ///     if ctx.is_draining() {
    ///         save(page).await?;
    ///         Err(mainspring::snooze(Duration::ZERO))?;
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The engine does not record that a node drains. So do not let it decide which durable operations come next: run
    /// again on another node, the handler would take the other way. A handler that is suspended does not hold up its
    /// node, and hears nothing.
    pub async fn draining(&self) {
        // As with a cancellation: not under a waker of the handler's own.
        let own = |context: &mut std::task::Context<'_>| context.waker().will_wake(&self.session.waker);
        std::future::poll_fn(|context| {
            if self.is_draining() || !own(context) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        if !self.is_draining() {
            self.session.run().drained().await;
        }
    }

    /// Returns whether the node drains; see [`draining`](Self::draining).
    pub fn is_draining(&self) -> bool {
        self.session.run().is_draining()
    }

    /// Reports the job's progress, and never waits. The engine keeps only the latest, and stores it within about a
    /// second.
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
            why: format!("the node has no state of type `{}`; add .state(…) to it", type_name::<T>()),
        })
    }
}
