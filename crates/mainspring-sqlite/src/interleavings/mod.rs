//! The store under thousands of interleavings: shuttle runs its threads and callers as coroutines on one thread and decides
//! at each lock who goes on.
//!
//! Each interleaving opens a store of its own, with real SQLite, on a copy of one migrated file. `cargo xtask test --only
//! interleavings` runs them, and only them: without shuttle around them, its locks do not work. An interleaving that fails is
//! printed; with its text in [`REPLAY`], the test runs that one alone. `SHUTTLE_RANDOM_SEED` chooses others than the usual.
//!
//! # Invariants
//! - The same seed gives the same interleavings: nothing in here depends on time, and every test can be repeated.

mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use mainspring_core::seam::{Seams, Threads};
use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::thread::JoinHandle;
use shuttle::{Config, MaxSteps, Runner};
use tempfile::TempDir;

use crate::options::Durability;
use crate::tests::support::{NoTasks, TestClock, TestRng};
use crate::{Options, Sqlite};

/// Names the environment variable with an interleaving to run.
const REPLAY: &str = "MAINSPRING_INTERLEAVING";
/// Interleavings of each kind that the main test of a part runs.
const INTERLEAVINGS: usize = 5_000;
/// Threads that a PCT interleaving holds up in the middle, and one: most races need one or two.
const DEPTH: usize = 3;
/// The number that the usual interleavings grow from.
const SEED: u64 = 1;
/// What SQLite's parser and an unoptimised build need, with room.
const STACK: usize = 1 << 20;
/// No interleaving comes near this: one that does runs in circles.
const STEPS: usize = 100_000;

/// Runs a test under so many random interleavings, and as many PCT ones.
fn explore(interleavings: usize, test: impl Fn() + Clone + Send + Sync + 'static) {
    if let Ok(interleaving) = std::env::var(REPLAY) {
        run(ReplayScheduler::new_from_encoded(&interleaving), test);
        return;
    }
    let random = run(RandomScheduler::new_from_seed(SEED, interleavings), test.clone());
    let pct = run(PctScheduler::new_from_seed(SEED, DEPTH, interleavings), test);
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

/// A migrated file without jobs, made once per test.
#[derive(Clone)]
struct Template(Arc<Vec<u8>>);

impl Template {
    fn new() -> Self {
        let directory = directory();
        let path = directory.path().join("app.db");
        Sqlite::migrate(&Options::new(&path), &seams(&Arc::default())).expect("a migrated file");
        Template(Arc::new(std::fs::read(path).expect("a file")))
    }
}

/// In memory where there is such a place: ten thousand files are opened.
fn directory() -> TempDir {
    let memory = Path::new("/dev/shm");
    let directory = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    directory.expect("a directory")
}

/// The store of one interleaving.
struct Rig {
    seams: Seams,
    threads: Arc<Joined>,
    path: PathBuf,
    _directory: TempDir,
}

impl Rig {
    fn new(template: &Template) -> Self {
        let directory = directory();
        let path = directory.path().join("app.db");
        std::fs::write(&path, &*template.0).expect("a copy");
        let threads = Arc::default();
        Rig { seams: seams(&threads), threads, path, _directory: directory }
    }

    fn open(&self) -> Arc<Sqlite> {
        let options = Options::new(&self.path).durability(Durability::Relaxed);
        Arc::new(Sqlite::open(options, self.seams.clone()).expect("a store"))
    }

    /// A connection of somebody else's.
    fn raw(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(&self.path).expect("a connection")
    }

    /// Waits until all threads of stores have ended.
    fn join(&self) {
        loop {
            let thread = self.threads.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(thread) = thread else { return };
            thread.join().expect("a thread that did not panic");
        }
    }
}

/// Seams whose threads can be waited for: one that never ends is a deadlock, and shuttle says so.
fn seams(threads: &Arc<Joined>) -> Seams {
    Seams {
        clock: Arc::new(TestClock::default()),
        rng: Arc::new(TestRng::default()),
        spawn: Arc::new(NoTasks),
        threads: Arc::<Joined>::clone(threads),
    }
}

#[derive(Default)]
struct Joined(Mutex<Vec<JoinHandle<()>>>);

impl Threads for Joined {
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
        let thread = shuttle::thread::Builder::new().name(name.to_owned()).spawn(body)?;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(())
    }
}
