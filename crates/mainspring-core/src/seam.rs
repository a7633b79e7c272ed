//! The seams to the outside: time, randomness, tasks and threads.
//!
//! The engine and the stores take these as arguments, so that a simulation can own every one of them and a run can
//! be repeated bit for bit. Production implementations live where a process starts, never here.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::time::Timestamp;

/// A boxed future that may move between threads.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Tells the time, and waits for it to pass.
pub trait Clock: Send + Sync + 'static {
    /// The wall clock. It may jump, also backwards.
    fn now(&self) -> Timestamp;
    /// Time since some fixed point; never goes back.
    fn monotonic(&self) -> Duration;
    /// Waits until this much monotonic time has passed.
    fn sleep(&self, duration: Duration) -> Pending<'static, ()>;

    /// Waits before looking again whether there is something to do. As [`sleep`](Self::sleep), but a clock that is moved by
    /// hand may skip it while nothing else is due: no job notices how often such a look is taken.
    fn idle(&self, duration: Duration) -> Pending<'static, ()> {
        self.sleep(duration)
    }
}

/// Draws random numbers. Takes `&self`, so callers can share one source.
pub trait Rng: Send + Sync + 'static {
    /// The next 64 random bits.
    fn next_u64(&self) -> u64;

    /// 256 bits that nobody can guess, if the system has any. A source that can be repeated, as in tests, has no secrets:
    /// there they are as random as the rest.
    fn secret(&self) -> Option<[u8; 32]> {
        let mut secret = [0; 32];
        for part in secret.chunks_exact_mut(8) {
            part.copy_from_slice(&self.next_u64().to_le_bytes());
        }
        Some(secret)
    }

    /// A number in `[0, 1)`.
    fn next_unit(&self) -> f64 {
        // 53 bits are what an f64 holds exactly.
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit an f64 exactly")]
        let numerator = (self.next_u64() >> 11) as f64;
        numerator / 9_007_199_254_740_992.0
    }
}

/// Starts tasks.
pub trait Spawn: Send + Sync + 'static {
    /// Starts a task on the ordinary executor.
    fn spawn(&self, task: Pending<'static, ()>) -> Task;
    /// Starts a task that no busy executor can starve: a thread of its own in production.
    fn spawn_dedicated(&self, name: &str, task: Pending<'static, ()>) -> Task;
}

/// A started task. Dropping it does not stop the task.
pub struct Task {
    abort: Box<dyn Fn() + Send + Sync>,
}

impl Task {
    /// Creates the handle of a task that `abort` stops at its next await.
    pub fn new(abort: impl Fn() + Send + Sync + 'static) -> Self {
        Task { abort: Box::new(abort) }
    }

    /// Stops the task at its next await.
    pub fn abort(&self) {
        (self.abort)();
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").finish_non_exhaustive()
    }
}

/// Starts threads, for work that blocks.
pub trait Threads: Send + Sync + 'static {
    /// Starts a thread. It ends when `body` returns; nobody joins it.
    ///
    /// # Errors
    /// What the operating system says when it has no thread to give.
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> std::io::Result<()>;
}

/// All seams together, cheap to clone.
#[derive(Clone)]
pub struct Seams {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub rng: Arc<dyn Rng>,
    /// Tasks.
    pub spawn: Arc<dyn Spawn>,
    /// Threads.
    pub threads: Arc<dyn Threads>,
}

impl fmt::Debug for Seams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seams").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    struct Fixed(u64);
    impl Rng for Fixed {
        fn next_u64(&self) -> u64 {
            self.0
        }
    }

    #[test]
    fn numbers_of_the_unit_are_below_one() {
        let near = |bits, expected: f64| (Fixed(bits).next_unit() - expected).abs() < 1e-9;
        assert!(near(0, 0.0) && near(1 << 62, 0.25) && near(1 << 63, 0.5) && near(u64::MAX, 1.0));
        assert!(Fixed(u64::MAX).next_unit() < 1.0);
    }

    impl Clock for Fixed {
        fn now(&self) -> Timestamp {
            Timestamp::EPOCH
        }

        fn monotonic(&self) -> Duration {
            Duration::ZERO
        }

        fn sleep(&self, _: Duration) -> Pending<'static, ()> {
            Box::pin(std::future::pending())
        }
    }

    impl Spawn for Fixed {
        fn spawn(&self, _: Pending<'static, ()>) -> Task {
            Task::new(|| {})
        }

        fn spawn_dedicated(&self, _: &str, task: Pending<'static, ()>) -> Task {
            Spawn::spawn(self, task)
        }
    }

    impl Threads for Fixed {
        fn spawn(&self, _: &str, _: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn seams_can_be_shown() {
        let it = Arc::new(Fixed(0));
        let seams = Seams { clock: it.clone(), rng: it.clone(), spawn: it.clone(), threads: it };
        assert_eq!(format!("{seams:?}"), "Seams { .. }");
    }

    #[test]
    fn a_secret_is_random_throughout() {
        let secret = Fixed(0x0102_0304_0506_0708).secret().expect("a secret");
        assert!(secret.chunks(8).all(|part| part == [8, 7, 6, 5, 4, 3, 2, 1]));
    }

    #[test]
    fn a_task_is_aborted_when_it_is_told_to_be() {
        let aborted = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&aborted);
        let task = Task::new(move || told.store(true, Ordering::Relaxed));
        assert_eq!(format!("{task:?}"), "Task { .. }");
        assert!(!aborted.load(Ordering::Relaxed));
        task.abort();
        assert!(aborted.load(Ordering::Relaxed));
    }
}
