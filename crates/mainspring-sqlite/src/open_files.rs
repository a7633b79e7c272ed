//! The files of an open store: whether their paths still lead to them.
//!
//! A file can be removed or replaced while it is open, by a restored backup for example. What is committed then goes to a file
//! that nobody finds again. So the writer looks after each commit and before anybody is answered: the paths of the database,
//! its log and the log's index must lead to the files that it opened. SQLite creates them once and keeps them for as long as
//! anybody has the database open.
//!
//! The same look tells how many names the database has. A second one (a hard link) does no harm by itself, so it is only warned
//! about: whoever opens the store by it has a log of his own, and neither sees what the other stores.
//!
//! # Invariants
//! - Nothing here opens a file: closing one that SQLite has open would give up SQLite's locks.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use mainspring_core::store::Finding;

use crate::file_identity::{self, Identity, names};

/// What belongs to a database, by the ends of their names.
const PARTS: [&str; 3] = ["", "-wal", "-shm"];

/// The files that a store has open. Empty for one that has none, and where the operating system does not tell files apart.
#[derive(Debug, Default)]
pub(crate) struct Files {
    /// The database first.
    parts: Vec<(PathBuf, Identity)>,
    /// Whether the database had several names at the last look: each time that it gets a second one, one warning says so.
    linked: AtomicBool,
}

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
        Files { parts: PARTS.iter().filter_map(part).collect(), linked: AtomicBool::default() }
    }

    /// What has happened to one of them, in words; `None` if all are in place.
    pub(crate) fn misplaced(&self) -> Option<String> {
        for (index, (path, open)) in self.parts.iter().enumerate() {
            let what = match std::fs::metadata(path) {
                Ok(metadata) if Identity::of(&metadata) == Some(*open) => {
                    if index == 0 {
                        self.named(path, names(&metadata));
                    }
                    continue;
                }
                Ok(_) => "replaced",
                Err(error) if file_identity::is_missing(&error) => "removed or renamed",
                // Nobody can tell.
                Err(error) => {
                    tracing::debug!(path = %path.display(), %error, "cannot inspect the file");
                    continue;
                }
            };
            return Some(format!(
                "the file `{}` was {what} while it was open; restart with the right file",
                path.display()
            ));
        }
        None
    }

    /// Warns when the database has got a second name.
    fn named(&self, path: &Path, names: u64) {
        // Relaxed: a look guards nothing, and two at once can at worst warn twice.
        if self.linked.swap(names > 1, Ordering::Relaxed) || names <= 1 {
            return;
        }
        tracing::warn!(path = %path.display(), names, "database file has several names (hard links); open it by one name only");
    }

    /// What an operator should know of the files as they are now.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        let database = self.parts.first().and_then(|(path, _)| Some((path, std::fs::metadata(path).ok()?)));
        let linked = database.filter(|(_, metadata)| names(metadata) > 1);
        let finding = linked.map(|(path, _)| Finding {
            what: format!("the file `{}` {LINKED}", path.display()),
            hint: format!(
                "remove the other names when no program has them open; `find DIR -samefile {}` lists them",
                path.display()
            ),
        });
        finding.into_iter().collect()
    }
}

/// What is wrong with a second name.
const LINKED: &str = "has several names (hard links); open it by one name only: each name has its own log, so data stored by one name is lost to the others";
