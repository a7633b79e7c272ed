//! What a handler gets besides its input.

use std::any::{Any, TypeId, type_name};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::task::Poll;
use std::time::Duration;

use mainspring_core::id::{Claim, JobId, NodeNo};
use mainspring_core::job::{Options, Priority, Progress, cut};
use mainspring_core::name::{Key, Kind, QueueName, Tag};
use mainspring_core::store::{Cancellation, Claimed, Mark};
use mainspring_core::time::Timestamp;
use mainspring_core::{Error, Result, bounds};
use tokio::sync::Notify;

use crate::durable::session::Session;
use crate::engine::Engine;
use crate::node::lease::Lease;
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex};

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

/// Why a run is to stop.
#[derive(Debug, Clone)]
pub(crate) enum Stop {
    /// Somebody cancelled the job.
    Cancel(Cancellation),
    /// The node shuts down: the claim is given back.
    Release,
    /// The node lost its lease: nothing that this run writes would be accepted.
    Abandon,
}

/// One run of one job on this node: what the runner, the lease keeper and the handler share.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) info: Arc<Info>,
    pub(crate) claim: Claim,
    pub(crate) node: NodeNo,
    lease: Arc<Lease>,
    pub(crate) suspect: bool,
    pub(crate) crashed: Duration,
    /// When it was started, in microseconds on the monotonic clock; 0 while it waits for a slot, and when it is over.
    began: AtomicU64,
    /// Whether its input is read before its handler begins.
    reading: AtomicBool,
    /// When it was claimed, by the store's clock and by ours.
    claimed: (Timestamp, Duration),
    /// How long after the monotonic clock's start its deadline passes.
    deadline: Option<Duration>,
    /// Whether the keeper has told the store that it is stuck, cleared, or awaits something foreign.
    marked: [AtomicBool; 3],
    /// Whether the handler awaits something that is not durable, and has done so for a while.
    foreign: AtomicBool,
    /// Whether the handler wants to be asked before it is dropped.
    cooperative: AtomicBool,
    /// Whether the handler gets no more time to end in its own way.
    hurry: AtomicBool,
    stop: Mutex<Option<Stop>>,
    stopped: Notify,
    progress: Mutex<Option<Progress>>,
    /// Whether something was sent to the job since its handler last looked, and who is to be woken by that.
    mail: Mutex<(bool, Option<std::task::Waker>)>,
    /// The pause for which alone the handler waits; see [`set_backoff`](Self::set_backoff).
    backoff: Mutex<Option<StepBackoff>>,
    /// Transactions of its steps that are under way.
    transactions: AtomicUsize,
}

/// A transaction of a step that is under way, until it is dropped.
pub(crate) struct InTransaction(Arc<Run>);

impl InTransaction {
    pub(crate) fn begin(run: Arc<Run>) -> Self {
        run.transactions.fetch_add(1, Ordering::SeqCst);
        InTransaction(run)
    }
}

impl Drop for InTransaction {
    fn drop(&mut self) {
        self.0.transactions.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The backoff of a step: the handler is in its slot and goes on when the time has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StepBackoff {
    pub(crate) key: Key,
    /// By the monotonic clock.
    pub(crate) until: Duration,
}

impl Run {
    /// A job that was claimed at `now` by the store's clock, which is `monotonic` by ours.
    pub(crate) fn new(
        job: &mut Claimed,
        node: NodeNo,
        lease: Arc<Lease>,
        now: Timestamp,
        monotonic: Duration,
    ) -> Self {
        Run {
            lease,
            claim: job.claim,
            node,
            suspect: job.is_suspect(),
            crashed: Duration::from_micros(u64::try_from(job.crashed_micros).unwrap_or(0)),
            info: Arc::new(Info::new(job)),
            began: AtomicU64::new(0),
            reading: AtomicBool::new(false),
            claimed: (now, monotonic),
            deadline: job.deadline.map(|deadline| monotonic + deadline.since(now)),
            marked: [const { AtomicBool::new(false) }; 3],
            foreign: AtomicBool::new(false),
            cooperative: AtomicBool::new(false),
            hurry: AtomicBool::new(false),
            stop: Mutex::new(None),
            stopped: Notify::new(),
            progress: Mutex::new(None),
            mail: Mutex::default(),
            backoff: Mutex::default(),
            transactions: AtomicUsize::new(0),
        }
    }

    /// Whether the claim has certainly lapsed, so that nothing is to be begun under it: the process was stopped.
    pub(crate) fn is_lapsed(&self, monotonic: Duration) -> bool {
        self.lease.is_lapsed(self.claimed.1, monotonic)
    }

    /// The store's time, reckoned from when it told it last.
    pub(crate) fn store_time(&self, monotonic: Duration) -> Timestamp {
        self.claimed.0.after(monotonic.saturating_sub(self.claimed.1))
    }

    /// When it was claimed, by the store's clock.
    pub(crate) fn claimed_at(&self) -> Timestamp {
        self.claimed.0
    }

    /// Notes that the handler waits for nothing but backoffs of its steps, of which this ends first; or that it does not.
    pub(crate) fn set_backoff(&self, backoff: Option<StepBackoff>) {
        *self.backoff.lock().unwrap_or_else(PoisonError::into_inner) = backoff;
    }

    /// Whether a transaction of one of its steps is under way.
    pub(crate) fn in_transaction(&self) -> bool {
        self.transactions.load(Ordering::SeqCst) > 0
    }

    /// The backoff that the handler waits for, if it waits for nothing else.
    pub(crate) fn backoff(&self) -> Option<StepBackoff> {
        self.backoff.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes that the job was sent something.
    pub(crate) fn notify_mail(&self) {
        let waker = {
            let mut mail = self.mail.lock().unwrap_or_else(PoisonError::into_inner);
            mail.0 = true;
            mail.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether the job was sent something since the last look; whoever looks is woken by the next.
    pub(crate) fn take_mail(&self, context: &mut std::task::Context<'_>) -> bool {
        let mut mail = self.mail.lock().unwrap_or_else(PoisonError::into_inner);
        mail.1 = Some(context.waker().clone());
        std::mem::take(&mut mail.0)
    }

    /// Waits until the job is cancelled.
    pub(crate) async fn cancelled(&self) {
        self.cooperate();
        while !matches!(self.stop_requested().await, Stop::Cancel(_)) {
            // Released or abandoned: the run is dropped from outside, there is nothing to wait for here.
            std::future::pending::<()>().await;
        }
    }

    /// The handler wants to be asked before it is dropped.
    pub(crate) fn cooperate(&self) {
        self.cooperative.store(true, Ordering::Relaxed);
    }

    /// Notes that the handler starts.
    pub(crate) fn begin(&self, monotonic: Duration) {
        let micros = u64::try_from(monotonic.as_micros()).unwrap_or(u64::MAX);
        self.began.store(micros.max(1), Ordering::Relaxed);
        self.reading.store(false, Ordering::Relaxed);
    }

    /// Notes that its input is read first: the handler begins once that is there.
    pub(crate) fn read(&self) {
        self.reading.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_reading(&self) -> bool {
        self.reading.load(Ordering::Relaxed)
    }

    /// Notes that the handler is over.
    pub(crate) fn end(&self) {
        self.began.store(0, Ordering::Relaxed);
    }

    /// How long the handler has been running; `None` if it has not begun, or is over.
    pub(crate) fn running_for(&self, monotonic: Duration) -> Option<Duration> {
        match self.began.load(Ordering::Relaxed) {
            0 => None,
            micros => Some(monotonic.saturating_sub(Duration::from_micros(micros))),
        }
    }

    /// Notes whether the store has been told of a mark; returns whether that is news.
    pub(crate) fn mark(&self, mark: Mark, stored: bool) -> bool {
        let (at, stored) = match mark {
            Mark::Stuck => (0, stored),
            Mark::Cleared => (1, stored),
            Mark::Foreign => (2, stored),
            Mark::GoesOn => (2, !stored),
        };
        self.marked[at].swap(stored, Ordering::Relaxed) != stored
    }

    /// Notes whether the handler awaits something that is not durable, and has done so for a while.
    pub(crate) fn set_foreign(&self, foreign: bool) {
        self.foreign.store(foreign, Ordering::Relaxed);
    }

    pub(crate) fn is_foreign(&self) -> bool {
        self.foreign.load(Ordering::Relaxed)
    }

    /// How much time is left until the deadline.
    pub(crate) fn until_deadline(&self, monotonic: Duration) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_sub(monotonic))
    }

    /// Asks the run to stop. A cancellation is not forgotten because the node shuts down; only the loss of the lease
    /// overrules it.
    pub(crate) fn stop(&self, why: Stop) {
        if !matches!(why, Stop::Cancel(_)) {
            self.hurry.store(true, Ordering::Relaxed);
        }
        let mut stop = self.stop.lock().unwrap_or_else(PoisonError::into_inner);
        if stop.is_none() || matches!(why, Stop::Abandon) {
            *stop = Some(why);
        }
        drop(stop);
        self.stopped.notify_waiters();
    }

    pub(crate) fn stop_reason(&self) -> Option<Stop> {
        self.stop.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until the run is asked to stop.
    pub(crate) async fn stop_requested(&self) -> Stop {
        self.look_until(Run::stop_reason).await
    }

    /// Waits until the run is to stop for another reason than a cancellation, which it cannot put off.
    pub(crate) async fn must_go(&self) {
        self.look_until(|run| run.hurry.load(Ordering::Relaxed).then_some(())).await;
    }

    /// Waits until what becomes of the run is nobody's business any more.
    pub(crate) async fn abandoned(&self) {
        self.look_until(|run| matches!(run.stop_reason(), Some(Stop::Abandon)).then_some(())).await;
    }

    /// Waits for a stop in which `look` finds what it looks for.
    async fn look_until<T>(&self, look: impl Fn(&Self) -> Option<T>) -> T {
        loop {
            let mut notified = std::pin::pin!(self.stopped.notified());
            // Registered before the look, so that a request in between is not missed.
            notified.as_mut().enable();
            if let Some(seen) = look(self) {
                return seen;
            }
            notified.await;
        }
    }

    pub(crate) fn is_cooperative(&self) -> bool {
        self.cooperative.load(Ordering::Relaxed)
    }

    /// Says how far the job has come.
    fn set_progress(&self, progress: Progress) {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress);
    }

    /// Keeps what could not be stored, unless the handler has said something since.
    pub(crate) fn keep_progress(&self, said: Progress) {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(said);
    }

    /// What the handler last said, once.
    pub(crate) fn take_progress(&self) -> Option<Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).take()
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
    /// present claim is told by [`StepContext::claim`](crate::StepContext::claim).
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
        self.engine().limits().output
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
