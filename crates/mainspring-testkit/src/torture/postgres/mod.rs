//! Postgres under torture: a primary with a synchronous standby, and a network that breaks at the worst moments.
//!
//! Victims know two addresses and use whichever takes writes. Between them and the servers stands a [`Road`](road::Road) of
//! proxies, so that connections can be cut around a commit, swallowed, slowed and led elsewhere; the rig itself has a road
//! of its own, which nobody touches. All stores of a world are databases of one [`Cluster`](cluster::Cluster).

mod apart;
mod cluster;
mod failover;
mod network;
mod road;
mod server;

use std::sync::Arc;
use std::time::Duration;

use mainspring::Engine;
use mainspring_core::seam::Pending;

use super::inject::Harm;
use super::{Blow, Calls, Error, Result, Stage};
use crate::postgres;
use cluster::Cluster;

/// What the promise of recovery adds to a lease.
const SLACK: Duration = Duration::from_secs(1);

/// What happens at system calls on sockets, each on its own.
const HARMS: &[Harm] = &[Harm::Kill, Harm::Fail("ECONNRESET", 1), Harm::Fail("EPIPE", 1)];

/// A store on a cluster of its own.
#[derive(Debug)]
pub struct Postgres {
    cluster: Arc<Cluster>,
    database: String,
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
        Ok(Postgres { cluster, database })
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

impl Stage for Postgres {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn address(&self) -> String {
        self.cluster.road.address(&self.database)
    }

    fn open(&self) -> Pending<'_, mainspring_core::Result<Engine>> {
        let address = self.cluster.own.address(&self.database);
        Box::pin(async move { Engine::options().migrate().open(&address).await })
    }

    fn crates(&self) -> &'static [&'static str] {
        &["mainspring", "mainspring-postgres"]
    }

    fn calls(&self) -> Calls {
        Calls { names: &["sendto", "recvfrom"], files: Vec::new(), harms: HARMS }
    }

    fn another(&self) -> Result<Box<dyn Stage>> {
        Ok(Box::new(Postgres::on(Arc::clone(&self.cluster))?))
    }

    fn unsettle(&self) {
        self.cluster.road.lose_an_answer();
    }

    fn blows(&self) -> Vec<Box<dyn Blow>> {
        let mut blows = network::all(&self.cluster);
        blows.extend(server::all(&self.cluster, &self.database));
        blows.extend(failover::all(&self.cluster));
        blows.push(Box::new(apart::Apart::new(&self.cluster, &self.database)));
        blows
    }

    fn recovery(&self) -> Duration {
        self.lease() + SLACK
    }
}

/// Turns what a server says into what ends a run.
fn failed(what: &str) -> impl FnOnce(postgres::Error) -> Error {
    let what = what.to_owned();
    move |error| Error::Unexpected(format!("{what}: {error:?}"))
}
