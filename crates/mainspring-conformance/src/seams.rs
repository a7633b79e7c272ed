//! The seams for tests: a clock moved by hand, seeded randomness, real threads.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use mainspring_core::seam::{Clock, Pending, Seams, Spawn, Task, Threads};

use crate::clock::ManualClock;
use crate::executor::block_on;
use crate::rng::SeededRng;

/// All seams, for what runs in the background of a store: time is the given clock's, threads are real.
pub fn seams(clock: &ManualClock, seed: u64) -> Seams {
    let clock: Arc<dyn Clock> = Arc::new(clock.clone());
    Seams {
        clock,
        rng: Arc::new(SeededRng::new(seed)),
        spawn: Arc::new(RealThreads),
        threads: Arc::new(RealThreads),
    }
}

/// Threads of the operating system; a task is a thread that runs one future.
#[derive(Debug, Clone, Copy)]
pub struct RealThreads;

impl Threads for RealThreads {
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        std::thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
    }
}

impl Spawn for RealThreads {
    fn spawn(&self, task: Pending<'static, ()>) -> Task {
        self.spawn_dedicated("task", task)
    }

    fn spawn_dedicated(&self, name: &str, mut task: Pending<'static, ()>) -> Task {
        let aborted = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&aborted);
        let body = move || {
            block_on(std::future::poll_fn(|context| {
                // Noticed when the task is next woken: no test depends on how soon.
                if seen.load(Ordering::Acquire) { Poll::Ready(()) } else { task.as_mut().poll(context) }
            }));
        };
        Threads::spawn(self, name, Box::new(body)).expect("the machine has a thread for a test");
        Task::new(move || aborted.store(true, Ordering::Release))
    }
}
