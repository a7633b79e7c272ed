//! The engine under thousands of interleavings: shuttle runs its tasks as coroutines on one thread and decides at each lock
//! and await who goes on.
//!
//! `cargo xtask test --only interleavings` runs these tests, and only them: without shuttle around them, its locks do not
//! work. An interleaving that fails is printed; with its text in [`REPLAY`], the test runs that one alone.
//! `SHUTTLE_RANDOM_SEED` chooses others than the usual.
//!
//! # Invariants
//! - The same seed gives the same interleavings: time, chance and failures are all drawn from the interleaving.
//! - A test ends only when every task that it started has ended; a task that waits for nothing is a deadlock.

mod batch;
mod rig;
mod store;

pub(crate) use rig::{Rig, Tasks};
pub(crate) use store::{CallOutcome, FailingStore};

use shuttle::rand::Rng;
use shuttle::rand::rngs::ThreadRng;
use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Schedule, Scheduler, Task, TaskId};
use shuttle::{Config, MaxSteps, Runner};

/// Names the environment variable with an interleaving to run.
const REPLAY: &str = "MAINSPRING_INTERLEAVING";
/// Interleavings of each kind that the main test of a part runs.
pub(crate) const INTERLEAVINGS: usize = 5_000;
/// Tasks that a PCT interleaving holds up in the middle, and one: most races need one or two.
const DEPTH: usize = 3;
/// The number that the usual interleavings grow from.
const SEED: u64 = 1;
/// What an unoptimised build of a node's tasks needs, with room.
const STACK: usize = 256 << 10;
/// No interleaving comes near this: one that does runs in circles.
const STEPS: usize = 200_000;

/// Runs a test under so many random interleavings, and as many PCT ones. The test's own task, which moves the clock, goes on
/// only when no other can: time passes when nothing else happens.
pub(crate) fn explore(interleavings: usize, test: impl Fn() + Clone + Send + Sync + 'static) {
    if let Ok(interleaving) = std::env::var(REPLAY) {
        run(ReplayScheduler::new_from_encoded(&interleaving), test);
        return;
    }
    let random = run(Patient(RandomScheduler::new_from_seed(SEED, interleavings)), test.clone());
    let pct = run(Patient(PctScheduler::new_from_seed(SEED, DEPTH, interleavings)), test);
    assert_eq!((random, pct), (interleavings, interleavings), "interleavings were left out");
}

fn run(scheduler: impl Scheduler + 'static, test: impl Fn() + Send + Sync + 'static) -> usize {
    let mut config = Config::new();
    config.stack_size = STACK;
    config.max_steps = MaxSteps::FailAfter(STEPS);
    // It warns that it takes all atomics as sequentially consistent. No order weaker than that matters here.
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(test)
}

/// A scheduler that keeps the first task, which is the test's own, for when no other can run.
struct Patient<S>(S);

impl<S: Scheduler> Scheduler for Patient<S> {
    fn new_execution(&mut self) -> Option<Schedule> {
        self.0.new_execution()
    }

    fn next_task(&mut self, runnable: &[&Task], current: Option<TaskId>, yielding: bool) -> Option<TaskId> {
        let others: Vec<_> = runnable.iter().copied().filter(|task| usize::from(task.id()) != 0).collect();
        self.0.next_task(if others.is_empty() { runnable } else { &others }, current, yielding)
    }

    fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }
}

/// A number below `bound`, drawn from the interleaving.
pub(crate) fn random_below(bound: usize) -> usize {
    ThreadRng::default().gen_range(0..bound)
}

/// A point at which another task may go on.
pub(crate) fn yield_point() {
    shuttle::sync::atomic::AtomicBool::new(false).load(std::sync::atomic::Ordering::SeqCst);
}
