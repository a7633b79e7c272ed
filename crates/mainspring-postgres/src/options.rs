//! How a store is opened.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mainspring_core::Result;
use mainspring_core::seam::Pending;

use crate::address::Address;

/// When the store acknowledges a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// The commit is on stable storage and survives a power failure. Opening fails on a database that does not promise
    /// this.
    #[default]
    Full,
    /// A crash of the database server may lose the commits of the last seconds. Its tables stay intact.
    Relaxed,
}

/// The clock that gives the store's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Time {
    /// The database server's clock: the same for all nodes.
    #[default]
    Server,
    /// The clock that you open the store with. Only for tests that move it by hand: nodes on several machines would
    /// disagree.
    Clock,
}

/// Where a test holds up each message to the database, to let something happen before it. Not part of the interface.
#[doc(hidden)]
pub trait StatementGate: fmt::Debug + Send + Sync {
    /// Waits until this statement may be sent.
    fn pass<'a>(&'a self, statement: &'a str) -> Pending<'a, ()>;
}

/// The options for opening a store.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// Where the database is.
    pub address: Address,
    /// When the store acknowledges a write. Default: [`Durability::Full`].
    pub durability: Durability,
    /// Whether opening migrates the schema. Default: no, because a migration needs rights that a worker should not have.
    pub migrate: bool,
    /// How long one call may take before it fails as `Unavailable`. Default: 5 s. The store never waits longer than a
    /// third of the shortest lease of its nodes.
    pub timeout: Duration,
    /// The clock that counts. Default: [`Time::Server`].
    pub time: Time,
    /// What holds up each message, in tests. With one, nothing is sent ahead of the answer before.
    pub(crate) gate: Option<Arc<dyn StatementGate>>,
}

impl Options {
    /// Creates the default options for an address: a URL or libpq's `key=value` pairs. `PG*` variables fill in what it
    /// omits.
    ///
    /// # Errors
    /// [`Error::Open`](mainspring_core::Error::Open) if the address is invalid.
    pub fn new(address: &str) -> Result<Self> {
        Ok(Options::at(Address::parse(address, &|name| std::env::var(name).ok())?))
    }

    /// Creates the default options for a parsed address.
    pub fn at(address: Address) -> Self {
        Options {
            address,
            durability: Durability::default(),
            migrate: false,
            timeout: Duration::from_secs(5),
            time: Time::default(),
            gate: None,
        }
    }

    /// Returns the schema that holds the store's tables.
    pub fn schema(&self) -> &str {
        self.address.schema()
    }

    /// Sets when the store acknowledges a write.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets whether opening migrates the schema.
    #[must_use]
    pub fn migrate(mut self, migrate: bool) -> Self {
        self.migrate = migrate;
        self
    }

    /// Sets how long one call may take.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the clock that counts.
    #[must_use]
    pub fn time(mut self, time: Time) -> Self {
        self.time = time;
        self
    }

    /// Sets what holds up each message. For tests of this store only.
    #[doc(hidden)]
    #[must_use]
    pub fn gate(mut self, gate: Arc<dyn StatementGate>) -> Self {
        self.gate = Some(gate);
        self
    }

    pub(crate) fn is_pooled(&self) -> bool {
        self.address.is_pooled()
    }
}
