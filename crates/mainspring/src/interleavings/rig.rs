//! Seams whose every part belongs to the interleaving, and jobs that leave a trace.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mainspring_core::id::JobId;
use mainspring_core::job::{PayloadBounds, Summary};
use mainspring_core::memory::Memory;
use mainspring_core::seam::{Clock, Pending, Rng, Seams, Spawn, Task, Threads};
use mainspring_core::store::{self, Filter, Operators, Page};
use mainspring_core::time::Timestamp;
use mainspring_testkit::clock::ManualClock;
use serde::{Deserialize, Serialize};
use shuttle::future::{JoinHandle, block_on};
use shuttle::rand::RngCore;
use shuttle::rand::rngs::ThreadRng;

use super::{CallOutcome, FailingStore, yield_point};
use crate::context::Context;
use crate::engine::Engine;
use crate::node::NodeBuilder;

/// When an interleaving has gone on for longer than any wait of the engine adds up to.
const FOR_EVER: Duration = Duration::from_mins(2);

/// An engine on the memory store, and everything around it.
pub(crate) struct Rig {
    pub(crate) clock: ManualClock,
    /// Those of the engine.
    pub(crate) tasks: Arc<Tasks>,
    /// Those of the test.
    pub(crate) callers: Arc<Tasks>,
    pub(crate) memory: Memory,
    pub(crate) engine: Engine,
    pub(crate) log: Arc<Log>,
}

impl Rig {
    /// A rig whose store does at each call what `outcome` returns.
    pub(crate) fn new(outcome: impl Fn(&'static str) -> CallOutcome + Send + Sync + 'static) -> Self {
        let clock = ManualClock::new();
        let tasks = Arc::<Tasks>::default();
        let seams = Seams {
            clock: Arc::new(Time(clock.clone())),
            rng: Arc::new(Lots),
            spawn: Arc::<Tasks>::clone(&tasks),
            threads: Arc::new(NoThreads),
        };
        let memory = Memory::new(Arc::new(clock.clone()));
        let store = FailingStore::new(memory.clone(), clock.clone(), outcome);
        let engine = Engine::with(Arc::new(store), seams, PayloadBounds::default());
        Rig { clock, tasks, callers: Arc::default(), memory, engine, log: Arc::default() }
    }

    /// A node that runs [`Job`]s, two at a time.
    pub(crate) fn node(&self, lease: Duration) -> NodeBuilder {
        let log = Arc::clone(&self.log);
        let handler = move |ctx: Context, job: Job| {
            let trace = Trace::new(&log, ctx.id());
            async move {
                for second in 0..job.seconds {
                    ctx.progress(second, job.seconds, "");
                    ctx.engine().seams().clock.sleep(Duration::from_secs(1)).await;
                }
                trace.ended();
                Ok::<_, std::convert::Infallible>(())
            }
        };
        self.engine.node().queue("default", 2).lease(lease).handle(handler)
    }

    /// Enqueues a job that takes so many seconds.
    pub(crate) async fn enqueue(engine: &Engine, seconds: u64) -> JobId {
        engine.enqueue(Job { seconds }).await.expect("stored").id
    }

    /// Starts a task of the test.
    pub(crate) fn task(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.callers.spawn(Box::pin(task));
    }

    /// Lets time pass until all tasks have ended. `look` is called before each move of the clock, when nothing else can
    /// happen.
    pub(crate) fn live(&self, mut look: impl FnMut()) {
        shuttle::thread::yield_now();
        loop {
            look();
            if self.tasks.all_ended() && self.callers.all_ended() {
                return;
            }
            let now = self.clock.monotonic();
            let Some(next) = self.clock.next_wake().filter(|next| *next <= FOR_EVER) else {
                panic!("tasks wait for nothing, or for ever; it is {now:?}")
            };
            self.clock.advance(next.saturating_sub(now));
            shuttle::thread::yield_now();
        }
    }

    /// What the store knows of all jobs, and that it finds nothing wrong.
    pub(crate) fn jobs(&self) -> Vec<Summary> {
        assert_eq!(block_on(self.memory.check()).expect("a check"), []);
        let page = Page { after: None, limit: 100 };
        block_on(self.memory.list(Filter::default(), page)).expect("a list").jobs
    }

    /// All memberships, the newest first.
    pub(crate) fn members(&self) -> Vec<store::Node> {
        block_on(self.memory.nodes()).expect("a list")
    }
}

/// A job that takes so many seconds.
#[derive(Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) seconds: u64,
}

impl crate::Job for Job {
    type Result = ();
    const KIND: &'static str = "job";
}

/// What became of handlers.
#[derive(Default)]
pub(crate) struct Log(Mutex<BTreeMap<JobId, Entry>>);

#[derive(Default)]
struct Entry {
    live: usize,
    ends: usize,
    starts: usize,
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<JobId, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many handlers have started and are not dropped.
    pub(crate) fn live(&self) -> usize {
        self.lock().values().map(|entry| entry.live).sum()
    }

    /// How often handlers have started.
    pub(crate) fn starts(&self) -> usize {
        self.lock().values().map(|entry| entry.starts).sum()
    }

    /// How often the handler of a job has come to its end.
    pub(crate) fn ends(&self, id: JobId) -> usize {
        self.lock().get(&id).map_or(0, |entry| entry.ends)
    }
}

/// One run of a handler.
struct Trace {
    log: Arc<Log>,
    id: JobId,
}

impl Trace {
    fn new(log: &Arc<Log>, id: JobId) -> Self {
        let mut entries = log.lock();
        let entry = entries.entry(id).or_default();
        entry.live += 1;
        entry.starts += 1;
        Trace { log: Arc::clone(log), id }
    }

    fn ended(&self) {
        self.log.lock().entry(self.id).or_default().ends += 1;
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.log.lock().entry(self.id).or_default().live -= 1;
    }
}

/// The manual clock, whose every reading is a point at which another task may go on. The store reads it without that: it
/// does so under a lock that shuttle does not know.
struct Time(ManualClock);

impl Clock for Time {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn monotonic(&self) -> Duration {
        yield_point();
        self.0.monotonic()
    }

    fn sleep(&self, duration: Duration) -> Pending<'static, ()> {
        self.0.sleep(duration)
    }
}

/// Chance, as the interleaving has it.
struct Lots;

impl Rng for Lots {
    fn next_u64(&self) -> u64 {
        ThreadRng::default().next_u64()
    }
}

/// Tasks of shuttle that can be waited for, and die together.
#[derive(Default)]
pub(crate) struct Tasks {
    ordinary: Mutex<Vec<JoinHandle<()>>>,
    dedicated: Mutex<Vec<JoinHandle<()>>>,
}

impl Tasks {
    /// Drops all ordinary tasks, as an executor does that is dropped.
    pub(crate) fn kill(&self) {
        let tasks: Vec<_> = lock(&self.ordinary).iter().map(JoinHandle::abort_handle).collect();
        tasks.iter().for_each(shuttle::future::AbortHandle::abort);
    }

    pub(crate) fn all_ended(&self) -> bool {
        [&self.ordinary, &self.dedicated].iter().all(|tasks| lock(tasks).iter().all(JoinHandle::is_finished))
    }
}

impl Spawn for Tasks {
    fn spawn(&self, task: Pending<'static, ()>) -> Task {
        start(&self.ordinary, task)
    }

    fn spawn_dedicated(&self, _: &str, task: Pending<'static, ()>) -> Task {
        start(&self.dedicated, task)
    }
}

fn start(tasks: &Mutex<Vec<JoinHandle<()>>>, task: Pending<'static, ()>) -> Task {
    let started = shuttle::future::spawn(task);
    let handle = started.abort_handle();
    lock(tasks).push(started);
    Task::new(move || handle.abort())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The memory store needs none.
struct NoThreads;

impl Threads for NoThreads {
    fn spawn(&self, _: &str, _: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}
