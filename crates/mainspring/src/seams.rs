//! The seams of a real process: the one place where the engine meets the global clock, randomness, executor and
//! threads.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use mainspring_core::seam::{Clock, Pending, Rng, Seams, Spawn, Task, Threads};
use mainspring_core::time::Timestamp;
use tokio::runtime::Handle;

/// Seams on the system's clock and randomness, the given Tokio runtime, and ordinary threads.
pub(crate) fn system(runtime: Handle) -> Seams {
    Seams {
        clock: Arc::new(SystemClock { start: start() }),
        rng: Arc::new(SystemRng::seeded()),
        spawn: Arc::new(TokioSpawn(runtime)),
        threads: Arc::new(SystemThreads),
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place that reads the system's clock")]
fn start() -> Instant {
    Instant::now()
}

/// The system's clock.
struct SystemClock {
    start: Instant,
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the system's clock")]
    fn now(&self) -> Timestamp {
        Timestamp::from(SystemTime::now())
    }

    #[expect(clippy::disallowed_methods, reason = "the one place that reads the system's clock")]
    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }

    #[expect(clippy::disallowed_methods, reason = "the one place that waits on the system's clock")]
    fn sleep(&self, duration: Duration) -> Pending<'static, ()> {
        // Tokio rounds up to its millisecond; what is longer than a year might as well be for ever.
        Box::pin(tokio::time::sleep(duration.min(Duration::from_hours(24 * 365))))
    }
}

/// A counter run through a mixing function: fast, shared without a lock, and seeded by the operating system. It spreads
/// ids and jitter. Secrets come from the operating system itself.
struct SystemRng(AtomicU64);

impl SystemRng {
    fn seeded() -> Self {
        // Without the operating system's randomness, the address of a fresh allocation and the process id still differ
        // between the processes that could meet.
        let seed = getrandom::u64().unwrap_or_else(|_| {
            let fresh = Box::new(0_u8);
            std::ptr::from_ref(&*fresh).addr() as u64 ^ (u64::from(std::process::id()) << 32)
        });
        SystemRng(AtomicU64::new(seed))
    }
}

impl Rng for SystemRng {
    fn next_u64(&self) -> u64 {
        // The increment is odd, so the counter visits every value; the mixing is a bijection (SplitMix64).
        let mut z = self.0.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn secret(&self) -> Option<[u8; 32]> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).ok().map(|()| secret)
    }
}

/// Tasks on a Tokio runtime.
struct TokioSpawn(Handle);

impl Spawn for TokioSpawn {
    fn spawn(&self, task: Pending<'static, ()>) -> Task {
        let handle = self.0.spawn(task).abort_handle();
        Task::new(move || handle.abort())
    }

    fn spawn_dedicated(&self, name: &str, task: Pending<'static, ()>) -> Task {
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let body = move || {
            // Without a runtime of its own there is nothing to run on; the ordinary executor is the next best.
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_time().build() else {
                return;
            };
            runtime.block_on(until_stopped(task, stopped));
        };
        if let Err(error) = SystemThreads.spawn(name, Box::new(body)) {
            tracing::error!(%error, name, "cannot start a thread");
        }
        let stop = std::sync::Mutex::new(Some(stop));
        Task::new(move || {
            let stop = stop.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
            // Nobody listens when the task has ended by itself.
            stop.map(|stop| stop.send(()));
        })
    }
}

/// Runs a task until it ends or the other end of the channel asks it to stop.
async fn until_stopped(task: impl Future<Output = ()>, stopped: tokio::sync::oneshot::Receiver<()>) {
    let mut stopped = std::pin::pin!(stopped);
    let mut task = std::pin::pin!(task);
    tokio::select! {
        biased;
        // An error means that the handle was dropped, which lets the task go on.
        Ok(()) = &mut stopped => {}
        () = &mut task => {}
    }
}

/// Ordinary threads.
struct SystemThreads;

/// The threads of a guard, which is a process without an engine.
#[cfg(all(unix, feature = "process"))]
pub(crate) fn threads() -> impl Threads {
    SystemThreads
}

impl Threads for SystemThreads {
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
        std::thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_dedicated_task_outlives_its_handle_and_ends_when_aborted() {
        let spawn = TokioSpawn(Handle::current());
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let (go, went) = tokio::sync::oneshot::channel::<()>();
        let task = async move {
            drop(went.await);
            sender.send(()).expect("somebody listens");
        };
        drop(spawn.spawn_dedicated("outlives", Box::pin(task)));
        go.send(()).expect("the task still waits");
        receiver.await.expect("the task went on");

        let (alive, gone) = tokio::sync::oneshot::channel::<()>();
        let task = async move {
            std::future::pending::<()>().await;
            drop(alive);
        };
        spawn.spawn_dedicated("aborted", Box::pin(task)).abort();
        assert!(gone.await.is_err(), "dropped with its task");
    }
}
