//! SQLite under torture: one file, several processes, and a disk that fails them.
//!
//! Where that is possible (it takes root), the store is on a small file system of its own, which a fault can fill.

mod damaged_rows;
mod flipped_bytes;
mod full_disk;
mod lost_wal_tail;
mod readonly;
mod removed_locks;
mod replaced_file;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use mainspring::{Engine, rusqlite};
use mainspring_core::seam::Pending;
use tempfile::TempDir;

use super::faults::damaged_rows::Rows;
use super::inject::SyscallFault;
use super::points::Point;
use super::{Error, Fault, Result, StoreUnderTest, WriteCalls};

/// The size of the store's own file system: enough for some hundred thousand jobs, and quickly filled.
const SIZE: &str = "size=256m";

/// What happens at system calls, each on its own. A disk that is full or read-only stays so for a while.
const HARMS: &[SyscallFault] = &[
    SyscallFault::Kill,
    SyscallFault::Fail("EIO", 1),
    SyscallFault::Fail("ENOSPC", 5),
    SyscallFault::Fail("EROFS", 5),
];

/// A store in a directory of its own.
#[derive(Debug)]
pub struct Sqlite {
    dir: TempDir,
    mounted: bool,
}

impl Sqlite {
    /// An empty store.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn new() -> Result<Self> {
        let mut under_test = Sqlite::plain()?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", SIZE, "mainspring-torture"]).arg(under_test.dir.path());
        under_test.mounted = quiet(&mut mount);
        Ok(under_test)
    }

    /// An empty store beside all that is on the disk.
    fn plain() -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("mainspring-store-").tempdir();
        Ok(Sqlite { dir: dir.map_err(Error::io("making a directory"))?, mounted: false })
    }

    /// The file.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("store.db")
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        if self.mounted {
            // Lazily: whoever still has a file open there loses nothing by it.
            let _unmounted = quiet(Command::new("umount").arg("-l").arg(self.dir.path()));
        }
    }
}

fn quiet(command: &mut Command) -> bool {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The file of SQLite that has this ending.
fn beside(database: &Path, ending: &str) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Copies a store that nobody has open into a fresh folder: the file and its log.
fn copy(database: &Path, folder: &Path) -> Result<PathBuf> {
    let failed = |error| Error::io("copying a store")(error);
    std::fs::create_dir(folder).map_err(failed)?;
    let target = folder.join("store.db");
    std::fs::copy(database, &target).map_err(failed)?;
    let log = beside(database, "-wal");
    if log.exists() {
        std::fs::copy(log, beside(&target, "-wal")).map_err(failed)?;
    }
    Ok(target)
}

/// Runs a statement. What it changed is in the main file then: no cut of the log takes it back.
fn run(database: &Path, sql: &str) -> rusqlite::Result<Vec<Vec<Option<String>>>> {
    let file = rusqlite::Connection::open(database)?;
    let mut statement = file.prepare(sql)?;
    let columns = statement.column_count();
    let text = |value: rusqlite::types::Value| match value {
        rusqlite::types::Value::Integer(number) => Some(number.to_string()),
        rusqlite::types::Value::Text(text) => Some(text),
        _ => None,
    };
    let row = |row: &rusqlite::Row<'_>| (0..columns).map(|column| row.get(column).map(text)).collect();
    let rows = statement.query_map((), row)?.collect::<rusqlite::Result<_>>()?;
    file.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |_| Ok(()))?;
    Ok(rows)
}

impl StoreUnderTest for Sqlite {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn address(&self) -> String {
        format!("sqlite:{}", self.path().display())
    }

    fn open(&self) -> Pending<'_, mainspring_core::Result<Engine>> {
        Box::pin(async { Engine::open(&self.address()).await })
    }

    fn sql(&self, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
        run(&self.path(), sql).map_err(|error| Error::Unexpected(format!("`{sql}`: {error}")))
    }

    fn crates(&self) -> &'static [&'static str] {
        &["mainspring", "mainspring-sqlite"]
    }

    /// Transactions of its own file pass the points of its writer; those named so are of an application's pool.
    fn reaches(&self, point: &Point) -> bool {
        self.crates().contains(&point.of) && !point.name.starts_with("transaction.")
    }

    /// All that writes takes the same way.
    fn is_passed_by_producers(&self, point: &Point) -> bool {
        point.of == "mainspring-sqlite"
    }

    fn calls(&self) -> WriteCalls {
        let files = ["", "-wal", "-shm"].map(|ending| beside(&self.path(), ending));
        WriteCalls { names: &["pwrite64", "fdatasync"], files: files.to_vec(), harms: HARMS }
    }

    fn another(&self) -> Result<Box<dyn StoreUnderTest>> {
        Ok(Box::new(Sqlite::plain()?))
    }

    fn faults(&self) -> Vec<Box<dyn Fault>> {
        let mut faults: Vec<Box<dyn Fault>> = vec![
            Box::new(lost_wal_tail::LostWalTail { database: self.path() }),
            Box::new(flipped_bytes::FlippedBytes { database: self.path(), noticed: 0 }),
            Box::new(readonly::ReadOnly { database: self.path() }),
            Box::new(removed_locks::RemovedLocks { database: self.path() }),
            Box::new(Rows { hand: damaged_rows::RowEditor { database: self.path() } }),
            Box::new(replaced_file::ReplacedFile { database: self.path() }),
        ];
        if self.mounted {
            faults.push(Box::new(full_disk::FullDisk { folder: self.dir.path().into() }));
        }
        faults
    }

    /// A free lock proves a death at once.
    fn recovery(&self) -> Duration {
        Duration::from_secs(1)
    }
}
