//! A file that a process keeps locked while it lives: a free lock proves its death.
//!
//! The operating system releases the lock when the process ends, however it ends, so other processes on the same file
//! system learn of a death at once, without waiting for a lease. The file is locked under a temporary name before it
//! gets the one that rows refer to; whoever sees that name therefore sees a lock.
//!
//! # Invariants
//! - A file has its final name only while it is locked, or after its owner has died.
//! - It is removed by its owner, or by whoever has acquired its lock.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use mainspring_core::fault;
use mainspring_core::seam::Rng;

/// The lock of this store handle.
#[derive(Debug)]
pub(crate) struct Lock {
    path: PathBuf,
    name: String,
    /// Holds the lock until it is closed.
    _file: File,
}

impl Lock {
    /// Makes and takes a fresh lock beside the database.
    pub(crate) fn take(database: &Path, rng: &dyn Rng) -> io::Result<Lock> {
        let name = format!("{}-node-{:016x}{:016x}.lock", stem(database), rng.next_u64(), rng.next_u64());
        let path = database.with_file_name(&name);
        let draft = database.with_file_name(format!("{name}.new"));
        let file = OpenOptions::new().write(true).create_new(true).open(&draft)?;
        file.try_lock().map_err(io::Error::from)?;
        fault::point!("sqlite.join.drafted");
        std::fs::rename(&draft, &path)?;
        fault::point!("sqlite.join.named");
        Ok(Lock { path, name, _file: file })
    }

    /// The file's name, as rows keep it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A file that stays behind is free once this process ends, and proves the same.
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "lock file stays behind");
        }
    }
}

/// Proof that a process is gone. While it is kept, nobody else can take the same proof.
#[derive(Debug)]
pub(crate) struct Dead {
    path: PathBuf,
    _file: Option<File>,
}

impl Dead {
    /// Whether this is the lock of that name.
    pub(crate) fn is(&self, name: &str) -> bool {
        self.path.file_name().is_some_and(|own| own == name)
    }

    /// The same death once more, for another node of the same process.
    pub(crate) fn again(&self) -> Dead {
        Dead { path: self.path.clone(), _file: None }
    }

    /// Removes the file, once the death is on record.
    pub(crate) fn bury(self) {
        // It may be gone already; nothing depends on it.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Whether the process that owns a lock file is gone. `None` if it lives, or if that cannot be told.
pub(crate) fn probe(database: &Path, name: &str) -> Option<Dead> {
    // Names come from rows: one that is not of our making is not looked at.
    if !name.starts_with(&format!("{}-node-", stem(database)))
        || !name.strip_suffix("lock").is_some_and(|rest| rest.ends_with('.'))
        || name.contains('/')
    {
        return None;
    }
    let path = database.with_file_name(name);
    match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Some(Dead { path, _file: None }),
        Err(_) => None,
        Ok(file) => match file.try_lock() {
            Ok(()) => Some(Dead { path, _file: Some(file) }),
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => None,
        },
    }
}

fn stem(database: &Path) -> std::borrow::Cow<'_, str> {
    database.file_name().map_or("mainspring".into(), |name| name.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::support::TestRng;

    #[test]
    fn free_or_missing_lock_proves_death_and_a_held_one_does_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let database = dir.path().join("app.db");
        let lock = Lock::take(&database, &TestRng::default()).expect("a lock");
        let name = lock.name().to_owned();
        assert!(probe(&database, &name).is_none());
        drop(lock);
        assert!(probe(&database, &name).is_some(), "missing");
        File::create(database.with_file_name(&name)).expect("a file");
        let dead = probe(&database, &name).expect("free");
        assert!(probe(&database, &name).is_none(), "proof is exclusive");
        dead.bury();
        assert!(!database.with_file_name(&name).exists());
    }

    #[test]
    fn names_that_are_not_ours_are_not_looked_at() {
        let dir = tempfile::tempdir().expect("a directory");
        let database = dir.path().join("app.db");
        for name in ["", "/etc/passwd", "app.db", "other.db-node-1.lock", "app.db-node-../x.lock"] {
            assert!(probe(&database, name).is_none(), "{name}");
        }
    }
}
