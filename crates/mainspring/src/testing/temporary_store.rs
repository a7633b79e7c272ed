//! What the store of an engine under test lives in: a file or a schema of its own, removed when the engine is dropped.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mainspring_core::seam::{Pending, Rng, Seams, Spawn, Task};
use mainspring_core::store::Store;
use mainspring_core::{Error, Result};

use super::{Parts, TestEngine, block_on};

/// A place that is removed with the engine.
pub(super) enum TemporaryStore {
    /// A directory, and the file in it.
    #[cfg(feature = "sqlite")]
    Directory(PathBuf, PathBuf),
    /// A schema, by the address that names it.
    #[cfg(feature = "postgres")]
    Schema(String, Box<mainspring_postgres::Options>, Seams),
}

/// Seams for a store: the time is the test's, threads and randomness are real, and its tasks run on threads of their own, so
/// that they go on while the test waits.
fn seams(parts: &Parts) -> Seams {
    let clock = Arc::clone(&parts.seams.clock);
    Seams { clock, spawn: Arc::new(ThreadPerTask(Arc::clone(&parts.system.spawn))), ..parts.system.clone() }
}

struct ThreadPerTask(Arc<dyn Spawn>);

impl Spawn for ThreadPerTask {
    fn spawn(&self, task: Pending<'static, ()>) -> Task {
        self.0.spawn_dedicated("mainspring-test", task)
    }

    fn spawn_dedicated(&self, name: &str, task: Pending<'static, ()>) -> Task {
        self.0.spawn_dedicated(name, task)
    }
}

/// A name that nobody else has.
fn unique(rng: &dyn Rng) -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    format!("mainspring_test_{}_{number}_{:08x}", std::process::id(), rng.next_u64() >> 32)
}

impl TestEngine {
    /// Makes an engine on a SQLite file in a temporary directory: for jobs whose rows are part of the test, as those
    /// of [`sqlite_transaction`](crate::Context::sqlite_transaction).
    ///
    /// The clock is the test's. Open the [file](Self::path) with a connection of your own to make tables and to look
    /// at rows. The engine removes the directory when you drop it.
    ///
    /// # Errors
    /// [`Error::Open`] if the file cannot be made.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    #[cfg(feature = "sqlite")]
    pub fn sqlite() -> Result<Self> {
        use mainspring_sqlite::{Durability, Options, Sqlite};

        let parts = Parts::new(0);
        let directory = std::env::temp_dir().join(unique(&*parts.system.rng));
        let file = directory.join("test.db");
        std::fs::create_dir(&directory).map_err(|error| Error::Open {
            location: directory.display().to_string(),
            problem: mainspring_core::error::OpenProblem::Other,
            source: Some(error.into()),
        })?;
        let temporary = TemporaryStore::Directory(directory, file.clone());
        let opened = Sqlite::open(Options::new(file).durability(Durability::Relaxed), seams(&parts));
        Self::on_temporary(parts, temporary, opened)
    }

    /// Makes an engine on a Postgres server, in a schema of its own: for jobs whose rows are part of the test, as
    /// those of [`transaction`](crate::Context::transaction).
    ///
    /// `address` names a database in which its role may make schemas. The clock is the test's. The engine drops the
    /// schema when you drop it.
    ///
    /// # Errors
    /// [`Error::Open`] if the database is unreachable or refuses.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    #[cfg(feature = "postgres")]
    pub async fn postgres(address: &str) -> Result<Self> {
        use mainspring_postgres::{Options, Postgres, Time};

        let parts = Parts::new(0);
        let mark = match (address.contains("://"), address.contains('?')) {
            (true, true) => '&',
            (true, false) => '?',
            (false, _) => ' ',
        };
        let address = format!("{address}{mark}schema={}", unique(&*parts.system.rng));
        let options = Options::new(&address)?.migrate(true).time(Time::Clock);
        let seams = seams(&parts);
        let temporary = TemporaryStore::Schema(address, Box::new(options.clone()), seams.clone());
        Self::on_temporary(parts, temporary, Postgres::open(options, seams).await)
    }

    /// An engine on a temporary store, which is removed again if it could not be opened.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    fn on_temporary(
        parts: Parts,
        temporary: TemporaryStore,
        opened: Result<impl Store + 'static>,
    ) -> Result<Self> {
        match opened {
            Ok(store) => {
                let mut test = parts.engine(Arc::new(store), true);
                test.temporary = Some(temporary);
                Ok(test)
            }
            Err(error) => {
                temporary.remove();
                Err(error)
            }
        }
    }

    /// Returns the file of an engine on [SQLite](Self::sqlite), or `None`.
    pub fn path(&self) -> Option<&Path> {
        match &self.temporary {
            #[cfg(feature = "sqlite")]
            Some(TemporaryStore::Directory(_, file)) => Some(file),
            _ => None,
        }
    }
}

#[cfg(feature = "postgres")]
impl TestEngine {
    /// Returns the address of an engine on [Postgres](Self::postgres), with its schema, or `None`. Another program
    /// can open the store by it.
    pub fn address(&self) -> Option<&str> {
        match &self.temporary {
            Some(TemporaryStore::Schema(address, ..)) => Some(address),
            _ => None,
        }
    }
}

impl TemporaryStore {
    fn remove(&self) {
        // There is nobody to report to: the rest is in a temporary directory, or has a name that says what it is.
        match self {
            #[cfg(feature = "sqlite")]
            TemporaryStore::Directory(directory, _) => drop(std::fs::remove_dir_all(directory)),
            #[cfg(feature = "postgres")]
            TemporaryStore::Schema(_, options, seams) => {
                drop(block_on(mainspring_postgres::Postgres::remove(options, seams)));
            }
        }
    }
}

impl Drop for TestEngine {
    fn drop(&mut self) {
        let Some(temporary) = self.temporary.take() else { return };
        let store: &Arc<dyn Store> = self.engine.store();
        block_on(store.close());
        temporary.remove();
    }
}
