//! How a store is opened.

use std::path::PathBuf;
use std::time::Duration;

/// What an acknowledgement means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// It is on stable storage: it survives the loss of power.
    #[default]
    Full,
    /// It survives the loss of the process, but what was acknowledged in the last moments may not survive the loss of
    /// power. The database stays intact.
    Relaxed,
}

/// How to open a store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The database file. `-wal`, `-shm`, `-turnstile.lock` and `-node-….lock` files appear beside it.
    pub path: PathBuf,
    /// What an acknowledgement means. Default: [`Durability::Full`].
    pub durability: Durability,
    /// Whether the store is created where there is none: a file that does not exist, or tables in one that has none of a
    /// store's. Default: yes. The directory must exist. Without it, a file that is no store is left as it is.
    pub create: bool,
    /// How long a write waits for another process that is writing. Default: 5 s.
    pub busy_timeout: Duration,
    /// How long one read may take before it is given up as `Unavailable`. Default: 5 s.
    pub read_timeout: Duration,
}

impl Options {
    /// The defaults for a file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Options {
            path: path.into(),
            durability: Durability::Full,
            create: true,
            busy_timeout: Duration::from_secs(5),
            read_timeout: Duration::from_secs(5),
        }
    }

    /// Sets what an acknowledgement means.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets whether a missing store is created.
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
