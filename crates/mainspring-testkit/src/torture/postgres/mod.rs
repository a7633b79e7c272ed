//! Postgres under torture: a primary with a synchronous standby, and a network that breaks at the worst moments.
//!
//! Victims know two addresses and use whichever takes writes. Between them and the servers stand `TwoProxies`,
//! so that connections can be cut around a commit, swallowed, slowed and led elsewhere; the rig has two proxies
//! of its own, which no fault hits. All stores of a world are databases of one `Cluster`.

mod calm_deaths;
mod cluster;
mod damaged_rows;
mod failover;
mod network;
mod partition;
mod server;
mod two_proxies;

use std::sync::Arc;
use std::time::Duration;

use mainspring::Engine;
use mainspring::time::Timestamp;
use mainspring_core::seam::Pending;

use super::faults::damaged_rows::Rows;
use super::inject::SyscallFault;
use super::{Error, Fault, Result, StoreUnderTest, World, WriteCalls};
use crate::history::Fact;
use crate::postgres;
use cluster::Cluster;

/// What the promise of recovery adds to a lease; and what a machine may add whose disk has more to do than this.
const SLACK: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(4)];

/// What happens at system calls on sockets, each on its own.
const HARMS: &[SyscallFault] =
    &[SyscallFault::Kill, SyscallFault::Fail("ECONNRESET", 1), SyscallFault::Fail("EPIPE", 1)];

/// A store on a cluster of its own.
#[derive(Debug)]
pub struct Postgres {
    cluster: Arc<Cluster>,
    database: String,
    /// For how long its outcomes are locked, if not a little longer than a lease.
    locked: Option<Duration>,
}

impl Postgres {
    /// An empty store on a new primary with a standby.
    ///
    /// # Errors
    /// If the servers cannot be started.
    pub fn new() -> Result<Self> {
        let cluster = Arc::new(Cluster::start()?);
        Postgres::on(cluster)
    }

    /// Another one on the same servers.
    fn on(cluster: Arc<Cluster>) -> Result<Self> {
        let database = cluster.database()?;
        Ok(Postgres { cluster, database, locked: None })
    }

    /// Outcomes are locked for this long, when it comes to that.
    #[must_use]
    pub fn locked_for(mut self, time: Duration) -> Self {
        self.locked = Some(time);
        self
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // The last one goes with its servers.
        if Arc::strong_count(&self.cluster) > 1 {
            self.cluster.remove(&self.database);
        }
    }
}

impl StoreUnderTest for Postgres {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn address(&self) -> String {
        self.cluster.victim_proxies.address(&self.database)
    }

    fn open(&self) -> Pending<'_, mainspring_core::Result<Engine>> {
        let address = self.cluster.rig_proxies.address(&self.database);
        Box::pin(async move { Engine::options().migrate().open(&address).await })
    }

    fn crates(&self) -> &'static [&'static str] {
        &["mainspring", "mainspring-postgres"]
    }

    fn sql(&self, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
        self.cluster.primary().sql(&self.database, sql).map_err(failed(sql))
    }

    fn calls(&self) -> WriteCalls {
        WriteCalls { names: &["sendto", "recvfrom"], files: Vec::new(), harms: HARMS }
    }

    fn another(&self) -> Result<Box<dyn StoreUnderTest>> {
        Ok(Box::new(Postgres::on(Arc::clone(&self.cluster))?))
    }

    fn unsettle(&self) {
        self.cluster.victim_proxies.lose_an_answer();
    }

    fn faults(&self) -> Vec<Box<dyn Fault>> {
        let mut faults = network::all(&self.cluster);
        faults.extend(server::all(
            &self.cluster,
            &self.database,
            self.locked.unwrap_or(self.lease() * 3 / 2),
        ));
        faults.extend(failover::all(&self.cluster));
        faults.push(Box::new(partition::Partition::new(&self.cluster, &self.database)));
        let database = self.database.clone();
        faults.push(Box::new(Rows {
            hand: damaged_rows::RowEditor { cluster: Arc::clone(&self.cluster), database },
        }));
        faults.push(Box::new(calm_deaths::CalmDeath));
        faults
    }

    fn slack(&self) -> Duration {
        SLACK[1]
    }

    fn recovery(&self) -> Duration {
        self.lease() + SLACK[0]
    }
}

/// Writes down that something goes wrong for everybody, and for about how long. It is not called a cut: that would excuse
/// whoever is expired, and an outage expires nobody.
fn outage(world: &World, kind: &str, lasts: Duration) {
    world.note(Fact::fault(kind, None, Some(now().after(lasts))));
}

#[expect(clippy::disallowed_methods, reason = "the ledger is written by the clock of the machine")]
fn now() -> Timestamp {
    std::time::SystemTime::now().into()
}

/// Turns what a server says into what ends a run.
fn failed(what: &str) -> impl FnOnce(postgres::Error) -> Error {
    let what = what.to_owned();
    move |error| Error::Unexpected(format!("{what}: {error:?}"))
}
