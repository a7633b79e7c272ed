//! The files of an open store: whether their paths still lead to them.
//!
//! A file can be removed or replaced while it is open, by a restored backup for example. What is committed then goes to a file
//! that nobody finds again. So the writer looks after each commit and before anybody is answered: the paths of the database,
//! its log and the log's index must lead to the files that it opened. SQLite creates them once and keeps them for as long as
//! anybody has the database open.
//!
//! # Invariants
//! - Nothing here opens a file: closing one that SQLite has open would give up SQLite's locks.

use std::path::{Path, PathBuf};

use crate::identity::Identity;

/// What belongs to a database, by the ends of their names.
const PARTS: [&str; 3] = ["", "-wal", "-shm"];

/// The files that a store has open. Empty for one that has none, and where the operating system does not tell files apart.
#[derive(Debug, Default)]
pub(crate) struct Files(Vec<(PathBuf, Identity)>);

impl Files {
    /// The files of a database that was opened and read a moment ago.
    pub(crate) fn of(database: &Path) -> Self {
        let part = |ending: &&str| {
            let mut path = database.as_os_str().to_owned();
            path.push(ending);
            let path = PathBuf::from(path);
            let identity = Identity::at(&path).ok().flatten()?;
            Some((path, identity))
        };
        Files(PARTS.iter().filter_map(part).collect())
    }

    /// What has happened to one of them, in words; `None` if all are in place.
    pub(crate) fn misplaced(&self) -> Option<String> {
        self.0.iter().find_map(|(path, open)| {
            let what = match Identity::at(path) {
                Ok(Some(found)) if found == *open => return None,
                Ok(Some(_)) => "replaced",
                Ok(None) => "removed or renamed",
                // Nobody can tell.
                Err(error) => {
                    tracing::debug!(path = %path.display(), %error, "the file could not be looked at");
                    return None;
                }
            };
            Some(format!(
                "the file `{}` was {what} while it was open; restart with the right file",
                path.display()
            ))
        })
    }
}

/// How many names a file has; one, where that cannot be told.
pub(crate) fn names(path: &Path) -> u64 {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(path).map_or(1, |metadata| metadata.nlink())
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        1
    }
}
