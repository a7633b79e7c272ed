//! Testing jobs: a real engine with a store in memory, a clock that you move, and faults on demand.
//!
//! Handlers run exactly as on a node: claimed, leased, retried, timed out. Only time stands still until you
//! [`advance`](TestEngine::advance) it. So a test of a job that retries for a week takes a millisecond, and runs the same
//! way each time.
//!
//! ```
//! use mainspring::testing::TestEngine;
//! use mainspring::{Context, Job};
//! use serde::{Deserialize, Serialize};
//! use std::time::Duration;
//!
//! #[derive(Serialize, Deserialize, Job)]
//! #[job(kind = "signup")]
//! struct Signup { user: u64 }
//!
//! #[derive(Serialize, Deserialize, Job)]
//! #[job(kind = "reminder", result = String)]
//! struct Reminder { user: u64 }
//!
//! async fn signup(ctx: Context, job: Signup) -> mainspring::HandlerResult<()> {
//!     ctx.engine().enqueue(Reminder { user: job.user }).delay(Duration::from_hours(72)).await?;
//!     Ok(())
//! }
//!
//! async fn reminder(_ctx: Context, job: Reminder) -> mainspring::HandlerResult<String> {
//!     Ok(format!("user {}, we miss you", job.user))
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let test = TestEngine::new();
//! test.node(|node| node.handle(signup).handle(reminder).queue("default", 1)).await?;
//!
//! test.run(Signup { user: 7 }).await?;
//! let reminder = test.assert_enqueued::<Reminder>(|job| job.user == 7);
//! assert!(test.outcome(&reminder).is_err()); // not yet
//!
//! test.advance(Duration::from_hours(72)).await?;
//! assert_eq!(test.outcome(&reminder)?, "user 7, we miss you");
//! # Ok(())
//! # }
//! ```
//!
//! # Is my handler idempotent?
//!
//! A handler may run again after a crash. You have three ways to test whether it tolerates that:
//! [`run_twice`](TestEngine::run_twice) loses the outcome of each first run, [`fail_once`](TestEngine::fail_once) makes
//! each first attempt fail after the handler has done its work, and [`crash`](TestEngine::crash) drops everything in the
//! middle.
//!
//! ```
//! # use mainspring::testing::TestEngine;
//! # use mainspring::{Context, Job};
//! # use serde::{Deserialize, Serialize};
//! # use std::sync::atomic::{AtomicU64, Ordering};
//! # use std::sync::Arc;
//! #[derive(Serialize, Deserialize, Job)]
//! #[job(kind = "charge")]
//! struct Charge { cents: u64 }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let charged = Arc::new(AtomicU64::new(0));
//! let account = Arc::clone(&charged);
//! let charge = move |_ctx: Context, job: Charge| {
//!     let account = Arc::clone(&account);
//!     async move {
//!         account.fetch_add(job.cents, Ordering::Relaxed); // not idempotent
//!         mainspring::HandlerResult::Ok(())
//!     }
//! };
//! let test = TestEngine::new();
//! test.node(|node| node.handle(charge).queue("default", 1)).await?;
//! test.run_twice::<Charge>();
//! test.run(Charge { cents: 100 }).await?;
//! assert_eq!(charged.load(Ordering::Relaxed), 200, "the test has found the mistake");
//! # Ok(())
//! # }
//! ```

//! # Does my workflow survive a crash between any two steps?
//!
//! A [`Trial`] runs it again and again, each time with another mishap, and names the step that broke.

mod clock;
mod error;
mod expect;
mod faults;
mod limits;
mod observed_store;
mod probe;
mod tasks;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod temporary_store;
mod trial;
mod verify;

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mainspring_core::id::{JobId, NodeNo};
use mainspring_core::job::{PayloadBounds, Record, State};
use mainspring_core::memory::Memory;
use mainspring_core::name::Key;
use mainspring_core::seam::{Clock, Rng, Seams, Threads};
use mainspring_core::store::{Filter, NodeState, Page, Store};
use mainspring_core::time::Timestamp;
use mainspring_core::{Error as EngineError, bounds};
use tokio::runtime::Handle;

pub use error::{Error, Result};
pub use expect::Expected;
pub(crate) use probe::{Probe, ProbeVerdict};
pub use trial::Trial;
pub use verify::{Verified, verify_journal};

use crate::engine::Engine;
use crate::enqueue::Enqueued;
use crate::job::Job;
use crate::job_run::JobRun;
use crate::node::{Node, NodeBuilder};
use clock::ManualClock;
use faults::Faults;
use observed_store::{EnqueuedJob, ObservedStore};
use tasks::{BusyTasks, Group, Tasks};

/// How long handlers may wait for something outside of the test's clock, in real time.
const PATIENCE: Duration = Duration::from_secs(5);
/// How much longer than for something outside a test waits for jobs that keep it busy, before it is told that there is
/// no end in sight.
const ENDLESS: u32 = 12;
/// Polls of tasks after which a test is told that there is no end in sight: some hundred thousand jobs.
const POLLS_MAX: u64 = 5_000_000;
/// How long before something is due the clock begins to stop for housekeeping, too: long enough for a lease to lapse and
/// its jobs to be rescued.
const NEAR: Duration = Duration::from_mins(2);
/// How often the clock may stop on one way, if nothing else is said. A node alone makes it stop twice a second while one of its handlers waits for
/// something that is near, so that this is the better part of a week.
const STOPS: usize = 1_000_000;
/// Backoffs of steps after which a job is taken to have no end.
const WAITS: usize = 10_000;

/// An [`Engine`] for tests, on a clock that stands still until you move it.
///
/// It runs in memory, or on a real [file](Self::sqlite) or [database](Self::postgres) if a job's rows are part of
/// your test. It derefs to [`Engine`]: enqueue, look at and change jobs as usual. Make it within a Tokio runtime;
/// `#[tokio::test]` will do.
pub struct TestEngine {
    engine: Engine,
    observed: Arc<ObservedStore>,
    /// What a real store lives in.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    temporary: Option<temporary_store::TemporaryStore>,
    clock: ManualClock,
    busy_tasks: Arc<BusyTasks>,
    faults: Faults,
    nodes: Mutex<Vec<(Node, Arc<Group>)>>,
    /// Whether a node has died.
    crashed: AtomicBool,
    patience: Duration,
    stops: usize,
    /// The clock of the real world, for things that do not happen on the test's.
    real: Arc<dyn Clock>,
}

/// What an engine is made of before it has a store.
struct Parts {
    clock: ManualClock,
    busy_tasks: Arc<BusyTasks>,
    seams: Seams,
    /// Those of the real world.
    system: Seams,
}

impl Parts {
    fn new(seed: u64) -> Self {
        let system = crate::seams::system(Handle::current());
        let (clock, busy_tasks) = (ManualClock::default(), Arc::<BusyTasks>::default());
        let seams = Seams {
            clock: Arc::new(clock.clone()),
            rng: Arc::new(Seeded(Mutex::new(seed))),
            spawn: Arc::new(Tasks::new(Arc::clone(&system.spawn), Arc::clone(&busy_tasks))),
            threads: Arc::new(NoThreads),
        };
        Parts { clock, busy_tasks, seams, system }
    }

    /// `slow`: whether the store answers from threads of its own.
    fn engine(self, store: Arc<dyn Store>, slow: bool) -> TestEngine {
        let Parts { clock, busy_tasks, seams, system } = self;
        let observed = Arc::new(ObservedStore::new(store, Arc::clone(&seams.clock), slow));
        let store: Arc<dyn Store> = Arc::<ObservedStore>::clone(&observed);
        TestEngine {
            engine: Engine::reading_back(store, seams, PayloadBounds::default()),
            observed,
            #[cfg(any(feature = "sqlite", feature = "postgres"))]
            temporary: None,
            clock,
            busy_tasks,
            faults: Faults::default(),
            nodes: Mutex::default(),
            crashed: AtomicBool::new(false),
            patience: PATIENCE,
            stops: STOPS,
            real: system.clock,
        }
    }
}

impl Deref for TestEngine {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl Default for TestEngine {
    fn default() -> Self {
        TestEngine::new()
    }
}

impl TestEngine {
    /// Makes an engine in memory, without jobs and nodes.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn new() -> Self {
        TestEngine::seeded(0)
    }

    /// Makes an engine with another sequence of random numbers: other ids, other jitter. Otherwise as
    /// [`new`](Self::new).
    pub fn seeded(seed: u64) -> Self {
        TestEngine::on(seed, |seams| Arc::new(Memory::new(Arc::clone(&seams.clock))))
    }

    /// On a store of one's own making, which must answer without waiting for anything outside of the seams: for the
    /// engine's own tests.
    #[doc(hidden)]
    pub fn on(seed: u64, store: impl FnOnce(&Seams) -> Arc<dyn Store>) -> Self {
        let parts = Parts::new(seed);
        let store = store(&parts.seams);
        parts.engine(store, false)
    }

    /// Sets how long [`run_until_idle`](Self::run_until_idle) waits, in real time, for handlers that wait for
    /// something outside, such as a socket. Default: 5 seconds. Handlers that are busy all the time get twelve times
    /// that.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sets how often the clock may stop in one [`advance`](Self::advance). Default: a million times.
    #[must_use]
    pub fn stops(mut self, stops: usize) -> Self {
        self.stops = stops;
        self
    }

    /// Starts a node, set up exactly as in production.
    ///
    /// ```
    /// # use mainspring::testing::TestEngine;
    /// # use mainspring::{Context, Job};
    /// # #[derive(serde::Serialize, serde::Deserialize, Job)]
    /// # struct Welcome {}
    /// # async fn welcome(_ctx: Context, _job: Welcome) -> mainspring::HandlerResult<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let test = TestEngine::new();
    /// test.node(|node| node.handle(welcome).state(String::from("smtp://localhost")).queue("default", 1)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The node runs jobs whenever your test awaits something. Call it several times for several nodes on one store.
    ///
    /// # Errors
    /// As [`NodeBuilder::start`].
    pub async fn node(&self, setup: impl FnOnce(NodeBuilder) -> NodeBuilder) -> Result<Node, EngineError> {
        let group = Arc::<Group>::default();
        let builder = setup(self.engine.node().layer(self.faults.clone()));
        let node = group.scope(builder.start()).await?;
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).push((node.clone(), group));
        Ok(node)
    }

    /// Runs everything that is due now, and does not move the clock.
    ///
    /// That includes jobs that handlers enqueue, and retries that are due. Jobs without a handler, and jobs of a
    /// paused queue, stay where they are.
    ///
    /// A handler that waits only for the [backoff](crate::workflow::Step::backoff) of a step keeps its slot, but
    /// nothing of it is due: it counts as idle. [`advance`](Self::advance) ends the backoff, and
    /// [`outcome`](Self::outcome) names it.
    ///
    /// # Errors
    /// [`Error::StillRunning`] if handlers wait for something that does not happen; [`Error::Endless`] if there is
    /// always more to do. Both name the jobs.
    pub async fn run_until_idle(&self) -> Result<()> {
        let mut patience = self.real.sleep(self.patience);
        loop {
            self.settle().await?;
            let polls = self.busy_tasks.polls();
            if self.is_idle() {
                return Ok(());
            }
            // Handlers wait for something that is not of this engine: it may come.
            tokio::select! {
                biased;
                () = self.busy_tasks.since(polls) => {}
                () = &mut patience => return Err(self.still_running()),
            }
        }
    }

    /// Moves the clock, and runs everything that becomes due on the way, in order.
    ///
    /// That includes due jobs, schedules, deadlines, backoffs and timeouts of steps and jobs, and expiring leases. An hour at
    /// once is the same as sixty times a minute. Where nothing is due, the clock skips housekeeping, except for the
    /// last two minutes.
    ///
    /// Handlers that wait for something outside the test's clock, such as a socket, do not stop the clock. Call
    /// [`run_until_idle`](Self::run_until_idle) to wait for them.
    ///
    /// # Errors
    /// [`Error::Endless`] if there is always more to do; [`Error::TooFar`] if the clock stops too
    /// [often](Self::stops).
    pub async fn advance(&self, by: Duration) -> Result<()> {
        let end = self.clock.monotonic().saturating_add(by);
        self.settle().await?;
        for _ in 0..self.stops {
            let stop = self.next_stop(end)?;
            self.clock.set(stop);
            self.settle().await?;
            if stop >= end {
                return Ok(());
            }
        }
        Err(Error::TooFar { stops: self.stops, at: self.now(), jobs: self.running() })
    }

    /// Moves the clock in one jump, as if the machine had been suspended: everything of the meantime happens late,
    /// and all at once.
    ///
    /// # Errors
    /// [`Error::Endless`] if there is always more to do.
    pub async fn leap(&self, by: Duration) -> Result<()> {
        self.settle().await?;
        self.clock.set(self.clock.monotonic().saturating_add(by));
        self.settle().await
    }

    /// Returns the time by the test's clock. It begins at 2026-01-01T00:00:00Z.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Enqueues a job, [runs until idle](Self::run_until_idle), and returns its result.
    ///
    /// [Retries of steps](crate::workflow::Step::retry) are part of one run: if only their backoffs are left, the
    /// clock moves to the end of the next. It moves for nothing else: not for another attempt of the job, a sleep or
    /// a signal.
    ///
    /// # Errors
    /// [`mainspring::Error::Ended`](crate::Error::Ended) if the job failed or was cancelled; [`Error::NotEnded`] if
    /// it waits, for instance for another attempt; otherwise as [`run_until_idle`](Self::run_until_idle).
    pub async fn run<J: Job>(&self, job: J) -> Result<J::Result> {
        let job = self.engine.enqueue(job).await?;
        for _ in 0..WAITS {
            self.run_until_idle().await?;
            let outcome = self.outcome(&job);
            if !matches!(outcome, Err(Error::NotEnded { .. })) || !self.end_backoff().await? {
                return outcome;
            }
        }
        Err(Error::Endless { jobs: self.running() })
    }

    /// Moves the clock to the end of the next backoff of a step, if a handler waits for one and for nothing else.
    async fn end_backoff(&self) -> Result<bool> {
        let first = self.runs().iter().filter_map(|run| run.backoff()).map(|backoff| backoff.until).min();
        if let Some(until) = first {
            self.advance(until.saturating_sub(self.clock.monotonic())).await?;
        }
        Ok(first.is_some())
    }

    /// Returns the result of a job that has succeeded.
    ///
    /// # Errors
    /// [`mainspring::Error::Ended`](crate::Error::Ended) if the job failed or was cancelled; [`Error::NotEnded`] if
    /// it still runs or waits, for instance for another attempt.
    pub fn outcome<J: Job>(&self, job: &Enqueued<J>) -> Result<J::Result> {
        let Record { summary, result, note, mut errors, .. } = block_on(self.engine.jobs().get(job.id))?;
        let (id, status) = (summary.id, summary.status);
        let error = errors.pop().map(|error| error.message);
        match status.state {
            State::Succeeded => serde_json::from_slice(result.as_deref().unwrap_or(b"null"))
                .map_err(|error| EngineError::Convert { what: "result", source: error.into() }.into()),
            state if state.is_terminal() => {
                Err(EngineError::Ended { id, status, message: note.or(error).unwrap_or_default() }.into())
            }
            _ => Err(Error::NotEnded { id, status, error, backoff: self.backoff_of(id) }),
        }
    }

    /// Returns all jobs of a type that were enqueued, first to last, in any state, even if they have been removed
    /// since.
    ///
    /// # Panics
    /// If an input is not one of this type.
    #[track_caller]
    pub fn enqueued<J: Job>(&self) -> Vec<J> {
        self.enqueued_of::<J>().into_iter().map(|(_, job)| job).collect()
    }

    /// Asserts that a job of this type was enqueued that meets the condition, in any state. Returns the first.
    ///
    /// # Panics
    /// If there is none; lists the jobs there are.
    #[track_caller]
    pub fn assert_enqueued<J: Job>(&self, condition: impl Fn(&J) -> bool) -> Enqueued<J> {
        let jobs = self.enqueued_of::<J>();
        match jobs.iter().find(|(_, job)| condition(job)) {
            Some((kept, _)) => Enqueued::known(expect::id(kept)),
            None => panic!("no job of kind `{}` fits the condition; enqueued: {}", J::KIND, as_json(&jobs)),
        }
    }

    /// Asserts that no job of this type was enqueued that meets the condition.
    ///
    /// # Panics
    /// If there is one; names it.
    #[track_caller]
    pub fn assert_not_enqueued<J: Job>(&self, condition: impl Fn(&J) -> bool) {
        let mut jobs = self.enqueued_of::<J>();
        jobs.retain(|(_, job)| condition(job));
        assert!(jobs.is_empty(), "jobs of kind `{}` fit the condition: {}", J::KIND, as_json(&jobs));
    }

    /// Begins an assertion on enqueued jobs, with conditions on queue, time, tags and options; see [`Expected`].
    pub fn expect_enqueued<J: Job>(&self) -> Expected<'_, J> {
        Expected::new(self)
    }

    /// From now on, fails the first attempt of each job of this type after its handler has succeeded: the job runs
    /// again after its backoff. It shows whether the handler tolerates that, and whether the attempts are enough.
    pub fn fail_once<J: Job>(&self) {
        self.faults.fail_once::<J>();
    }

    /// From now on, loses the outcome of the first run of each job of this type after its handler has succeeded: the
    /// job runs again at once, as after a crash. It shows whether the handler is idempotent.
    pub fn run_twice<J: Job>(&self) {
        self.faults.run_twice::<J>();
    }

    /// Kills all nodes where they stand, as if their process had been killed; they release nothing. Their jobs come
    /// back when another node is there and the lease has expired.
    ///
    /// ```
    /// # use mainspring::testing::TestEngine;
    /// # use mainspring::{Context, Job};
    /// # use std::time::Duration;
    /// # #[derive(serde::Serialize, serde::Deserialize, Job)]
    /// # #[job(result = u32)]
    /// # struct Resize {}
    /// # async fn resize(ctx: Context, _job: Resize) -> mainspring::HandlerResult<u32> {
    /// #     if ctx.info().claim == 1 { std::future::pending::<()>().await; }
    /// #     Ok(ctx.info().claim)
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let test = TestEngine::new();
    /// test.node(|node| node.handle(resize).queue("default", 1)).await?;
    /// let job = test.enqueue(Resize {}).await?;
    /// test.advance(Duration::from_secs(1)).await?; // it runs
    /// test.crash().await?;
    /// test.node(|node| node.handle(resize).queue("default", 1)).await?;
    /// test.advance(Duration::from_secs(17)).await?; // a lease later, the other node takes over
    /// assert_eq!(test.outcome(&job)?, 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Endless`] if the rest always has more to do.
    pub async fn crash(&self) -> Result<()> {
        let nodes = std::mem::take(&mut *self.nodes.lock().unwrap_or_else(PoisonError::into_inner));
        self.kill(nodes).await
    }

    /// Kills one node. Otherwise as [`crash`](Self::crash).
    ///
    /// # Errors
    /// As [`crash`](Self::crash).
    pub async fn crash_node(&self, node: &Node) -> Result<()> {
        let nodes = {
            let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
            nodes.extract_if(.., |(one, _)| one.name() == node.name()).collect()
        };
        self.kill(nodes).await
    }

    async fn kill(&self, nodes: Vec<(Node, Arc<Group>)>) -> Result<()> {
        for (_, group) in &nodes {
            group.kill();
            self.crashed.store(true, Ordering::Relaxed);
        }
        self.settle().await
    }

    /// Waits until nothing of this engine stirs: no task, no call of its store, no transaction of a step.
    async fn settle(&self) -> Result<()> {
        /// Wakes that Tokio puts off (a task that yields) are not seen until it has gone on; a few rounds are enough.
        const ROUNDS: usize = 3;
        let most = self.busy_tasks.polls().saturating_add(POLLS_MAX);
        let mut endless = self.real.sleep(self.patience * ENDLESS);
        let mut round = 0;
        while round < ROUNDS {
            let polls = self.busy_tasks.polls();
            if polls > most {
                return Err(Error::Endless { jobs: self.running() });
            }
            tokio::task::yield_now().await;
            if !self.busy_tasks.is_quiet() {
                tokio::select! {
                    biased;
                    () = self.busy_tasks.quiet() => {}
                    () = &mut endless => return Err(Error::Endless { jobs: self.running() }),
                    () = yields() => {}
                }
            } else if !self.observed.is_quiet() || self.in_transaction() {
                round = 0;
                tokio::select! {
                    biased;
                    () = self.busy_tasks.since(polls) => {}
                    () = self.observed.answered(), if !self.observed.is_quiet() => {}
                    () = &mut endless => return Err(self.still_running()),
                }
                continue;
            }
            let quiet = self.busy_tasks.is_quiet()
                && self.busy_tasks.polls() == polls
                && !self.observed.notify_bypassed();
            round = if quiet { round + 1 } else { 0 };
        }
        Ok(())
    }

    /// Where the clock stops next on its way to `end`.
    ///
    /// What nodes do when nothing is due is skipped. Where a handler or a lease is about to run out of time it is not, for
    /// what comes of that depends on who looks when.
    fn next_stop(&self, end: Duration) -> Result<Duration> {
        let now = self.clock.monotonic();
        let next = self.clock.next().map_or(end, |next| next.min(end));
        if end.saturating_sub(now) <= NEAR {
            return Ok(next);
        }
        // Sweeps of nothing tell when there will be something.
        let (timers, deadlines) = (self.store().promote(0), self.store().expire(0));
        let mut due = self.clock.next_due();
        for swept in [block_on(timers)?, block_on(deadlines)?] {
            let times = swept.next.into_iter().chain(swept.fire).filter(|next| *next > swept.now);
            due = due.into_iter().chain(times.map(|next| now + next.since(swept.now))).min();
        }
        let near = |at: Duration| at.checked_sub(NEAR).unwrap_or(at);
        let due = due.filter(|due| *due < near(end));
        if self.dead_hold_jobs()? {
            return Ok(next);
        }
        Ok(match due {
            None => near(end),
            Some(due) if self.runs().is_empty() => due,
            Some(due) if near(due) > now => near(due),
            Some(_) => next,
        })
    }

    /// Whether jobs wait for the lease of a node that has died.
    fn dead_hold_jobs(&self) -> Result<bool> {
        let living: Vec<NodeNo> = self.nodes().iter().map(|node| node.runs().0).collect();
        if living.is_empty() || !self.crashed.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let nodes = block_on(self.store().nodes())?;
        let mut dead = nodes.iter().filter(|node| !living.contains(&node.no));
        Ok(dead.any(|node| node.state == NodeState::Live && node.claims > 0))
    }

    fn nodes(&self) -> Vec<Node> {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.iter().map(|(node, _)| node.clone()).collect()
    }

    /// What the nodes hold.
    fn runs(&self) -> Vec<Arc<JobRun>> {
        self.nodes().iter().flat_map(|node| node.runs().1).collect()
    }

    /// Whether nothing runs, or only waits for backoffs of steps; the others then wait for a slot.
    fn is_idle(&self) -> bool {
        let now = self.clock.monotonic();
        let runs = self.runs();
        let mut begun = runs.iter().filter(|run| run.running_for(now).is_some()).peekable();
        runs.is_empty() || (begun.peek().is_some() && begun.all(|run| run.backoff().is_some()))
    }

    fn in_transaction(&self) -> bool {
        self.runs().iter().any(|run| run.in_transaction())
    }

    fn backoff_of(&self, id: JobId) -> Option<(Key, Timestamp)> {
        let rest = self.runs().iter().find(|run| run.claim.id == id)?.backoff()?;
        Some((rest.key, self.now().after(rest.until.saturating_sub(self.clock.monotonic()))))
    }

    fn still_running(&self) -> Error {
        Error::StillRunning { patience: self.patience, jobs: self.running() }
    }

    fn running(&self) -> Vec<mainspring_core::job::Summary> {
        let filter = Filter { states: vec![State::Running], ..Filter::default() };
        let page = Page { after: None, limit: bounds::PAGE };
        block_on(self.store().list(filter, page)).map(|listing| listing.jobs).unwrap_or_default()
    }

    #[track_caller]
    fn enqueued_of<J: Job>(&self) -> Vec<(EnqueuedJob, J)> {
        let of_kind = |kind: &str| kind == J::KIND || J::ALIASES.contains(&kind);
        let all = block_on(self.observed.enqueued()).expect("the store of a test can be listed");
        let jobs = all.into_iter().filter(|kept| of_kind(kept.record.summary.kind.as_str()));
        let read = |kept: EnqueuedJob| match serde_json::from_slice(&kept.record.input) {
            Ok(job) => (kept, job),
            Err(error) => panic!("the input of job {} of kind `{}`: {error}", expect::id(&kept), J::KIND),
        };
        jobs.map(read).collect()
    }
}

impl std::fmt::Debug for TestEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestEngine").field("now", &self.now().to_string()).finish_non_exhaustive()
    }
}

/// Lets other tasks run for a while, and comes back even if they never rest.
async fn yields() {
    /// Between two looks at how much has been done.
    const YIELDS: usize = 1_000;
    for _ in 0..YIELDS {
        tokio::task::yield_now().await;
    }
}

/// What a future gives, on this thread, which waits for it: for calls of a store, which others answer.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::task::Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut cx = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut cx) {
            std::task::Poll::Ready(output) => return output,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}

fn as_json<J: Job>(jobs: &[(EnqueuedJob, J)]) -> String {
    let jobs: Vec<_> = jobs.iter().map(|(_, job)| serde_json::to_string(job).unwrap_or_default()).collect();
    if jobs.is_empty() { "none".into() } else { jobs.join(", ") }
}

/// Random numbers that are the same in each run (SplitMix64).
struct Seeded(Mutex<u64>);

impl Rng for Seeded {
    fn next_u64(&self) -> u64 {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// A test runs where it can be watched.
struct NoThreads;

impl Threads for NoThreads {
    fn spawn(&self, _name: &str, _body: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
        Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "a test engine starts no threads"))
    }
}
