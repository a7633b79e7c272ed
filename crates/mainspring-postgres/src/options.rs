//! How a store is opened.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mainspring_core::Result;
use mainspring_core::seam::Pending;

use crate::address::Address;

/// What an acknowledgement means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// It is on stable storage: it survives the loss of power. A database that does not promise that is refused.
    #[default]
    Full,
    /// What was acknowledged in the last moments may not survive a crash of the database server. Its tables stay intact.
    Relaxed,
}

/// Whose time is the store's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Time {
    /// The database server's: the same for all nodes.
    #[default]
    Server,
    /// That of the clock that the store is opened with. For tests that move it by hand: nodes on several machines would
    /// not agree on it.
    Clock,
}

/// Where a test holds up each message to the database, to let something happen before it. Not part of the interface.
#[doc(hidden)]
pub trait StatementGate: fmt::Debug + Send + Sync {
    /// Waits until this statement may be sent.
    fn pass<'a>(&'a self, statement: &'a str) -> Pending<'a, ()>;
}

/// How to open a store.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// Where the database is.
    pub address: Address,
    /// What an acknowledgement means. Default: [`Durability::Full`].
    pub durability: Durability,
    /// Whether opening brings the schema up to date. Default: no; it takes rights that a worker need not have.
    pub migrate: bool,
    /// How long one call may take before it is given up. Default: 5 s; never longer than a third of the shortest lease of
    /// the nodes that use the store.
    pub timeout: Duration,
    /// Whose time counts. Default: [`Time::Server`].
    pub time: Time,
    /// What holds up each message, in tests. With one, nothing is sent ahead of the answer before.
    pub(crate) gate: Option<Arc<dyn StatementGate>>,
}

impl Options {
    /// The defaults for an address: a URL or `key=value` pairs as libpq has them; `PG*` variables say what it leaves out.
    ///
    /// # Errors
    /// [`Error::Open`](mainspring_core::Error::Open) if the address is not understood.
    pub fn new(address: &str) -> Result<Self> {
        Ok(Options::at(Address::parse(address, &|name| std::env::var(name).ok())?))
    }

    /// The defaults for a parsed address.
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

    /// The schema that holds the store's tables.
    pub fn schema(&self) -> &str {
        self.address.schema()
    }

    /// Sets what an acknowledgement means.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets whether opening brings the schema up to date.
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

    /// Sets whose time counts.
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
