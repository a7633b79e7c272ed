//! How a store is opened.

use std::path::PathBuf;
use std::time::Duration;

/// When the store acknowledges a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// It is on stable storage: it survives the loss of power.
    #[default]
    Full,
    /// It survives the loss of the process, but what was acknowledged in the last moments may not survive the loss of
    /// power. The database stays intact.
    Relaxed,
}

/// The options for opening a store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The database file. `-wal`, `-shm`, `-turnstile.lock` and `-node-….lock` files appear beside it.
    pub path: PathBuf,
    /// When the store acknowledges a write. Default: [`Durability::Full`].
    pub durability: Durability,
    /// Whether opening creates a missing store: the file, or the tables in a file without them. Default: yes. The
    /// directory must exist. If you turn this off, opening fails and leaves the file as it is.
    pub create: bool,
    /// How long a write waits for another process that is writing. Default: 5 s.
    pub busy_timeout: Duration,
    /// How long one read may take before it fails as `Unavailable`. Default: 5 s.
    pub read_timeout: Duration,
}

impl Options {
    /// Creates the default options for a file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Options {
            path: path.into(),
            durability: Durability::Full,
            create: true,
            busy_timeout: Duration::from_secs(5),
            read_timeout: Duration::from_secs(5),
        }
    }

    /// Sets when the store acknowledges a write.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets whether opening creates a missing store.
    #[must_use]
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Sets how long a write waits for another process that is writing.
    #[must_use]
    pub fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.busy_timeout = timeout;
        self
    }

    /// Sets how long one read may take.
    #[must_use]
    pub fn read_timeout(mut self, timeout: Duration) -> Self {
        self.read_timeout = timeout;
        self
    }
}
