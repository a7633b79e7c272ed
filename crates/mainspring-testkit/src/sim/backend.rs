//! The store of a simulation, and the handles that its processes have on it.

use std::sync::Arc;

use mainspring_core::id::JobId;
use mainspring_core::memory::Memory;
use mainspring_core::seam::{Clock, Seams};
use mainspring_core::store::Store;
use mainspring_sqlite::rusqlite;
use tempfile::TempDir;

use super::clock::SkewedClock;
use crate::executor::block_on;
use crate::patience::PATIENCE;
use crate::rng::SeededRng;
use crate::seams::RealThreads;

/// The file of a store.
const FILE: &str = "sim.db";

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
    Sqlite { dir: TempDir, clock: SkewedClock, seed: u64 },
}

impl Backend {
    pub(super) fn new(kind: Kind, clock: &SkewedClock, seed: u64) -> Self {
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
                let options = mainspring_sqlite::Options::new(dir.path().join(FILE));
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

    /// Damages what a job's options are stored as, behind the store's back; what mends it. Nothing, if the job is not there.
    pub(super) fn damage(&self, id: JobId) -> Option<String> {
        match self {
            Backend::Memory(memory) => {
                memory.damage(id, Some("options"));
                Some(String::new())
            }
            Backend::Sqlite { dir, .. } => {
                let file = edited(dir);
                let row = format!("id = x'{}'", id.to_string().replace('-', ""));
                let options = format!("SELECT quote(options) FROM mainspring_jobs WHERE {row}");
                let options: String = file.query_row(&options, (), |row| row.get(0)).ok()?;
                let harm = format!("UPDATE mainspring_jobs SET options = CAST(x'FF' AS TEXT) WHERE {row}");
                file.execute_batch(&harm).expect("damage");
                Some(format!("UPDATE mainspring_jobs SET options = {options} WHERE {row}"))
            }
        }
    }

    /// Mends a job, by what its damage gave.
    pub(super) fn mend(&self, id: JobId, by: &str) {
        match self {
            Backend::Memory(memory) => memory.damage(id, None),
            Backend::Sqlite { dir, .. } => edited(dir).execute_batch(by).expect("a statement"),
        }
    }

    /// Whether hints come when they come: a real store sends them from threads of its own.
    pub(super) fn tells(&self) -> bool {
        matches!(self, Backend::Memory(_))
    }
}

/// The file of a store, as somebody with an editor has it.
fn edited(dir: &TempDir) -> rusqlite::Connection {
    let file = rusqlite::Connection::open(dir.path().join(FILE)).expect("the file");
    file.busy_timeout(PATIENCE).expect("a setting");
    file
}

/// A directory in memory, if there is one: nothing here outlives the process, and syncs would only take time.
pub(crate) fn scratch() -> TempDir {
    let shared = std::path::Path::new("/dev/shm");
    let dir = if shared.is_dir() { tempfile::tempdir_in(shared) } else { tempfile::tempdir() };
    dir.expect("a directory")
}
