//! The store of a simulation, and the handles that its processes have on it.

use std::sync::Arc;

use mainspring_core::memory::Memory;
use mainspring_core::seam::{Clock, Seams};
use mainspring_core::store::Store;
use tempfile::TempDir;

use super::clock::Skewed;
use crate::executor::block_on;
use crate::rng::SeededRng;
use crate::seams::RealThreads;

/// Which store is simulated on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The reference model, reached over a network.
    Memory,
    /// A real file, opened by every process.
    Sqlite,
}

impl Kind {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Memory => "memory",
            Kind::Sqlite => "sqlite",
        }
    }

    /// The one with this name.
    pub fn named(name: &str) -> Option<Kind> {
        [Kind::Memory, Kind::Sqlite].into_iter().find(|kind| kind.name() == name)
    }
}

pub(super) enum Backend {
    Memory(Memory),
    Sqlite { dir: TempDir, clock: Skewed, seed: u64 },
}

impl Backend {
    pub(super) fn new(kind: Kind, clock: &Skewed, seed: u64) -> Self {
        match kind {
            Kind::Memory => Backend::Memory(Memory::new(Arc::new(clock.clone()))),
            Kind::Sqlite => Backend::Sqlite { dir: scratch(), clock: clock.clone(), seed },
        }
    }

    /// A handle for one process.
    pub(super) fn connect(&self) -> Arc<dyn Store> {
        match self {
            Backend::Memory(memory) => Arc::new(memory.another()),
            Backend::Sqlite { dir, clock, seed } => {
                let clock: Arc<dyn Clock> = Arc::new(clock.clone());
                let rng = Arc::new(SeededRng::new(*seed));
                let threads = Arc::new(RealThreads);
                let seams = Seams { clock, rng, spawn: threads.clone(), threads };
                let options = mainspring_sqlite::Options::new(dir.path().join("sim.db"));
                Arc::new(mainspring_sqlite::Sqlite::open(options, seams).expect("a store opens"))
            }
        }
    }

    /// What the death of a process does to its handle. Nothing of it is under way any more when this returns.
    pub(super) fn disconnect(&self, store: &dyn Store) {
        if matches!(self, Backend::Sqlite { .. }) {
            block_on(store.close());
        }
    }

    /// Whether hints come when they come: a real store sends them from threads of its own.
    pub(super) fn tells(&self) -> bool {
        matches!(self, Backend::Memory(_))
    }
}

/// A directory in memory, if there is one: nothing here outlives the process, and syncs would only take time.
pub(crate) fn scratch() -> TempDir {
    let shared = std::path::Path::new("/dev/shm");
    let dir = if shared.is_dir() { tempfile::tempdir_in(shared) } else { tempfile::tempdir() };
    dir.expect("a directory")
}
