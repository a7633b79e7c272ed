//! Seams for tests: real threads, a clock that is moved by hand, and counting randomness.

use std::future::Future;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use mainspring_core::id::{ClaimBatchNo, JobId, NodeId, NodeNo};
use mainspring_core::job::{New, Options as JobOptions, Priority};
use mainspring_core::name::{Kind, QueueName};
use mainspring_core::seam::{Clock, Pending, Rng, Seams, Spawn, Task, Threads};
use mainspring_core::store::{Abilities, ClaimRequest, Operators, Registration};
use mainspring_core::time::Timestamp;
use rusqlite::Connection;
use tempfile::TempDir;

use crate::{Options, Sqlite};

/// A clock that stands still until it is moved.
#[derive(Debug, Default)]
pub(crate) struct TestClock(AtomicI64);

impl TestClock {
    pub(crate) fn advance(&self, duration: Duration) {
        self.0.fetch_add(i64::try_from(duration.as_micros()).expect("a short time"), Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::SeqCst).unsigned_abs())
    }

    fn sleep(&self, _: Duration) -> Pending<'static, ()> {
        Box::pin(std::future::pending())
    }
}

/// Numbers that differ between processes and never repeat within one.
#[derive(Debug)]
pub(crate) struct TestRng(AtomicU64);

impl Default for TestRng {
    fn default() -> Self {
        TestRng(AtomicU64::new(u64::from(std::process::id()) << 32))
    }
}

impl Rng for TestRng {
    fn next_u64(&self) -> u64 {
        // Golden ratio: spreads consecutive numbers over all bits.
        self.0.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }
}

pub(crate) struct NoTasks;

impl Spawn for NoTasks {
    fn spawn(&self, _: Pending<'static, ()>) -> Task {
        Task::new(|| {})
    }

    fn spawn_dedicated(&self, _: &str, _: Pending<'static, ()>) -> Task {
        Task::new(|| {})
    }
}

struct StdThreads;

impl Threads for StdThreads {
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
        std::thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
    }
}

/// Seams, and the clock among them.
pub(crate) fn seams() -> (Seams, Arc<TestClock>) {
    static RNG: std::sync::OnceLock<Arc<TestRng>> = std::sync::OnceLock::new();
    let clock = Arc::new(TestClock(AtomicI64::new(1_800_000_000_000_000)));
    let rng = Arc::clone(RNG.get_or_init(Arc::default));
    (Seams { clock: clock.clone(), rng, spawn: Arc::new(NoTasks), threads: Arc::new(StdThreads) }, clock)
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future on this thread.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// A store in a directory of its own.
pub(crate) struct Fixture {
    pub(crate) store: Sqlite,
    pub(crate) clock: Arc<TestClock>,
    pub(crate) seams: Seams,
    pub(crate) path: PathBuf,
    _directory: TempDir,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("app.db");
        let (seams, clock) = seams();
        let store = Sqlite::open(Options::new(&path), seams.clone()).expect("a store");
        Fixture { store, clock, seams, path, _directory: directory }
    }

    /// Another handle on the same file.
    pub(crate) fn other(&self) -> Sqlite {
        Sqlite::open(Options::new(&self.path), self.seams.clone()).expect("another handle")
    }

    /// A connection of the application's own.
    pub(crate) fn raw(&self) -> Connection {
        let conn = Connection::open(&self.path).expect("a connection");
        conn.busy_timeout(Duration::from_secs(10)).expect("a time-out");
        conn
    }

    /// Asserts that the store finds nothing wrong with itself.
    pub(crate) fn assert_sound(&self) {
        assert_eq!(block_on(self.store.check()).expect("a check"), []);
    }
}

/// A plain job.
pub(crate) fn job(seams: &Seams) -> New {
    New {
        id: JobId::mint(seams.clock.now(), &*seams.rng),
        kind: Kind::new("k").expect("a kind"),
        queue: QueueName::new("q").expect("a queue"),
        priority: Priority::default(),
        input: b"{}".to_vec(),
        run: None,
        deadline: None,
        options: JobOptions::default(),
        journal: Vec::new(),
    }
}

/// A node that runs plain jobs.
pub(crate) fn registration(seams: &Seams) -> Registration {
    Registration {
        id: NodeId::mint(seams.clock.now(), &*seams.rng),
        name: "node".into(),
        version: "1".into(),
        pid: std::process::id(),
        queues: vec![(QueueName::new("q").expect("a queue"), 10)],
        abilities: Abilities { kinds: vec![Kind::new("k").expect("a kind")], ..Abilities::default() },
        lease: Duration::from_secs(15),
    }
}

/// A claim of up to ten plain jobs.
pub(crate) fn claim(node: NodeNo, batch: u64) -> ClaimRequest {
    let queues = vec![(QueueName::new("q").expect("a queue"), 10)];
    ClaimRequest { ahead: Vec::new(), node, batch: ClaimBatchNo(batch), queues, suspects: 1 }
}
