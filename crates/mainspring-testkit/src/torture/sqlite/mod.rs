//! SQLite under torture: one file, several processes, and a disk that fails them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use mainspring::Engine;
use mainspring_core::seam::Pending;
use tempfile::TempDir;

use super::{Blow, Calls, Error, Result, Stage};

/// A store in a directory of its own.
#[derive(Debug)]
pub struct Sqlite {
    dir: TempDir,
}

impl Sqlite {
    /// An empty store.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn new() -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("mainspring-store-").tempdir();
        Ok(Sqlite { dir: dir.map_err(Error::io("making a directory"))? })
    }

    /// The file.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("store.db")
    }
}

/// The file of SQLite that has this ending.
pub(super) fn beside(database: &Path, ending: &str) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

impl Stage for Sqlite {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn address(&self) -> String {
        format!("sqlite:{}", self.path().display())
    }

    fn open(&self) -> Pending<'_, mainspring_core::Result<Engine>> {
        Box::pin(async { Engine::open(&self.address()).await })
    }

    fn crates(&self) -> &'static [&'static str] {
        &["mainspring", "mainspring-sqlite"]
    }

    fn calls(&self) -> Calls {
        let files = ["", "-wal", "-shm"].map(|ending| beside(&self.path(), ending));
        Calls { names: &["pwrite64", "fsync"], files: files.to_vec() }
    }

    fn another(&self) -> Result<Box<dyn Stage>> {
        Ok(Box::new(Sqlite::new()?))
    }

    fn blows(&self) -> Vec<Box<dyn Blow>> {
        Vec::new()
    }

    /// A free lock proves a death at once.
    fn recovery(&self) -> Duration {
        Duration::from_secs(1)
    }
}
