//! A file that a process keeps locked while it lives: a free lock proves its death.
//!
//! The operating system releases the lock when the process ends, however it ends, so other processes on the same file
//! system learn of a death at once, without waiting for a lease. The file is locked under a temporary name before it
//! gets the one that rows refer to; whoever sees that name therefore sees a lock.
//!
//! Anybody can remove a file, and put another one in its place. So its name carries its device and inode, and only the lock
//! of that very file proves anything. Its owner holds it open for as long as it lives, so no other file can be given the same
//! two numbers meanwhile.
//!
//! # Invariants
//! - A file has its final name only while it is locked, or after its owner has died.
//! - Only a free lock on the very file that its owner made proves death. A file that is missing, or is another one, proves
//!   nothing: its owner is judged by the lease.
//! - Only its owner, once no live node refers to it, and whoever has acquired its lock remove it on purpose.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use mainspring_core::fault;
use mainspring_core::seam::Rng;

use crate::file_identity::Identity;

/// The lock of this store handle.
#[derive(Debug)]
pub(crate) struct Lock {
    path: PathBuf,
    name: String,
    /// Holds the lock, and the file's inode, until it is closed.
    file: File,
}

impl Lock {
    /// Makes and takes a fresh lock beside the database.
    pub(crate) fn take(database: &Path, rng: &dyn Rng) -> io::Result<Lock> {
        let stem = format!("{}-node-{:016x}{:016x}", stem(database), rng.next_u64(), rng.next_u64());
        let draft = database.with_file_name(format!("{stem}.lock.new"));
        let file = OpenOptions::new().write(true).create_new(true).open(&draft)?;
        file.try_lock().map_err(io::Error::from)?;
        let name = match Identity::of(&file.metadata()?) {
            Some(Identity { device, inode }) => format!("{stem}-{device:x}-{inode:x}.lock"),
            None => format!("{stem}.lock"),
        };
        let path = database.with_file_name(&name);
        fault::point!("sqlite.join.drafted");
        std::fs::rename(&draft, &path)?;
        fault::point!("sqlite.join.named");
        Ok(Lock { path, name, file })
    }

    /// The file's name, as rows keep it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether others still find the file under its name.
    pub(crate) fn is_in_place(&self) -> bool {
        leads_to(&self.path, &self.file)
    }

    /// Removes the file. No live node may refer to it any more.
    pub(crate) fn remove(self) {
        remove(&self.path, &self.file);
    }
}

/// Proof that a process is gone. While it is kept, nobody else can take the same proof.
#[derive(Debug)]
pub(crate) struct Dead {
    path: PathBuf,
    file: Option<File>,
}

impl Dead {
    /// Whether this is the lock of that name.
    pub(crate) fn is(&self, name: &str) -> bool {
        self.path.file_name().is_some_and(|own| own == name)
    }

    /// The same death once more, for another node of the same process.
    pub(crate) fn again(&self) -> Dead {
        Dead { path: self.path.clone(), file: None }
    }

    /// Removes the file, once the death is on record.
    pub(crate) fn bury(self) {
        if let Some(file) = &self.file {
            remove(&self.path, file);
        }
    }
}

/// Whether the process that owns a lock file is gone. `None` if it lives, or if that cannot be told.
pub(crate) fn probe(database: &Path, name: &str) -> Option<Dead> {
    let made = identity(database, name)?;
    let path = database.with_file_name(name);
    let file = File::open(&path).ok()?;
    if Identity::of(&file.metadata().ok()?) != Some(made) {
        return None;
    }
    match file.try_lock() {
        Ok(()) => Some(Dead { path, file: Some(file) }),
        Err(TryLockError::WouldBlock | TryLockError::Error(_)) => None,
    }
}

/// The file that got a name, as the name says. Names come from rows: one that is not of our making is not looked at.
fn identity(database: &Path, name: &str) -> Option<Identity> {
    let rest = name.strip_prefix(&format!("{}-node-", stem(database)))?.strip_suffix(".lock")?;
    let mut parts = rest.split('-');
    let (_random, device, inode) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || name.contains('/') {
        return None;
    }
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some(Identity { device: number(device)?, inode: number(inode)? })
}

/// Removes a file if its path still leads to it.
fn remove(path: &Path, file: &File) {
    if leads_to(path, file)
        && let Err(error) = std::fs::remove_file(path)
    {
        // A file that stays behind is free once its owner has ended, and proves the same.
        tracing::debug!(path = %path.display(), %error, "cannot remove the lock file");
    }
}

fn leads_to(path: &Path, file: &File) -> bool {
    let made = file.metadata().ok().and_then(|metadata| Identity::of(&metadata));
    match (made, Identity::at(path)) {
        (Some(made), Ok(found)) => found == Some(made),
        // Nobody can tell files apart here.
        (None, _) => path.exists(),
        (Some(_), Err(_)) => false,
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
    fn only_the_free_lock_of_the_very_file_proves_death() {
        let dir = tempfile::tempdir().expect("a directory");
        let database = dir.path().join("app.db");
        let lock = Lock::take(&database, &TestRng::default()).expect("a lock");
        let name = lock.name().to_owned();
        assert!(probe(&database, &name).is_none(), "it is held");
        let (path, aside) = (database.with_file_name(&name), dir.path().join("aside"));
        std::fs::rename(&path, &aside).expect("renamed");
        assert!(probe(&database, &name).is_none(), "missing");
        assert!(!lock.is_in_place());
        File::create(&path).expect("a file");
        assert!(probe(&database, &name).is_none(), "another file");
        assert!(!lock.is_in_place());
        drop(lock);
        assert!(probe(&database, &name).is_none(), "still another file");
        std::fs::rename(&aside, &path).expect("renamed back");
        let dead = probe(&database, &name).expect("free");
        assert!(probe(&database, &name).is_none(), "proof is exclusive");
        dead.bury();
        assert!(!path.exists());
    }

    #[test]
    fn a_lock_removes_its_own_file_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let database = dir.path().join("app.db");
        let take = || Lock::take(&database, &TestRng::default()).expect("a lock");
        let lock = take();
        let path = database.with_file_name(lock.name());
        assert!(lock.is_in_place());
        lock.remove();
        assert!(!path.exists());
        let lock = take();
        let path = database.with_file_name(lock.name());
        std::fs::remove_file(&path).expect("removed");
        File::create(&path).expect("a file");
        lock.remove();
        assert!(path.exists());
    }

    #[test]
    fn names_that_are_not_ours_are_not_looked_at() {
        let dir = tempfile::tempdir().expect("a directory");
        let database = dir.path().join("app.db");
        let names = [
            "",
            "/etc/passwd",
            "app.db",
            "other.db-node-1-1-1.lock",
            "app.db-node-../x.lock",
            "app.db-node-1.lock",
        ];
        for name in names {
            assert_eq!(identity(&database, name), None, "{name}");
        }
        assert!(identity(&database, "app.db-node-1-1-1/../1.lock").is_none());
        assert_eq!(identity(&database, "app.db-node-1-a-b.lock"), Some(Identity { device: 10, inode: 11 }));
    }
}
