//! Seams for tests: real threads, a clock that is moved by hand, and counting randomness.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use mainspring_core::seam::{Clock, Pending, Rng, Seams, Spawn, Task, Threads};
use mainspring_core::time::Timestamp;

/// A clock that stands still until it is moved.
#[derive(Debug)]
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

struct NoTasks;

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
    let clock = Arc::new(TestClock(AtomicI64::new(1_800_000_000_000_000)));
    static RNG: std::sync::OnceLock<Arc<TestRng>> = std::sync::OnceLock::new();
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
