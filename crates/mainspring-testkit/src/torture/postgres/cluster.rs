//! Two servers: the primary and its synchronous standby.
//!
//! # Invariants
//! - A primary that was given up is gone before the standby takes writes, and never comes back.
//! - When a fault is over, every commit waits for a standby again.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::failed;
use super::two_proxies::TwoProxies;
use crate::postgres::{Options, Server, Stop};
use crate::torture::Result;

/// Both servers, and the proxies in front of them.
#[derive(Debug)]
pub(super) struct Cluster {
    /// The proxies of the victims: every fault may hit them.
    pub(super) victim_proxies: TwoProxies,
    /// The proxies of the rig: no fault hits them.
    pub(super) rig_proxies: TwoProxies,
    pair: Mutex<Pair>,
    databases: AtomicU32,
}

/// The servers, at their places behind the proxies, and which of them takes writes.
#[derive(Debug, Clone)]
pub(super) struct Pair {
    servers: [Server; 2],
    primary: usize,
}

impl Pair {
    pub(super) fn primary(&self) -> &Server {
        &self.servers[self.primary]
    }

    pub(super) fn standby(&self) -> &Server {
        &self.servers[1 - self.primary]
    }
}

impl Cluster {
    pub(super) fn start() -> Result<Self> {
        let options = Options::new().with_standby().setting("max_connections", "100");
        let primary = Server::start(&options).map_err(failed("starting a primary"))?;
        let standby = primary.standby(&Options::new()).map_err(failed("starting a standby"))?;
        primary.wait_for_standby().map_err(failed("waiting for a standby"))?;
        let servers = [primary, standby];
        let (victim_proxies, rig_proxies) = (TwoProxies::new(&servers)?, TwoProxies::new(&servers)?);
        let pair = Mutex::new(Pair { servers, primary: 0 });
        Ok(Cluster { victim_proxies, rig_proxies, pair, databases: AtomicU32::new(0) })
    }

    fn lock(&self) -> MutexGuard<'_, Pair> {
        self.pair.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Both servers, as they are now.
    pub(super) fn pair(&self) -> Pair {
        self.lock().clone()
    }

    /// The server that takes writes.
    pub(super) fn primary(&self) -> Server {
        self.lock().primary().clone()
    }

    /// Which proxy of two is in front of it.
    pub(super) fn primary_place(&self) -> usize {
        self.lock().primary
    }

    /// Two more proxies, for one victim alone.
    pub(super) fn start_proxies(&self) -> Result<TwoProxies> {
        TwoProxies::new(&self.lock().servers)
    }

    /// Makes an empty database.
    pub(super) fn database(&self) -> Result<String> {
        let name = format!("store_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        let made = self.primary().sql("postgres", &format!("CREATE DATABASE {name} TEMPLATE template0"));
        made.map_err(failed("making a database"))?;
        Ok(name)
    }

    /// Removes a database, whoever is connected to it.
    pub(super) fn remove(&self, name: &str) {
        let sql = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
        // What is left goes with the server.
        let _dropped = self.primary().sql("postgres", &sql);
    }

    /// The primary is lost, with or without a last word to its clients, and the standby takes its place.
    pub(super) fn fail_over(&self, how: Option<Stop>) -> Result<()> {
        let mut pair = self.lock();
        let lost = pair.primary().clone();
        match how {
            Some(stop) => lost.stop(stop),
            None => lost.crash(),
        }
        .map_err(failed("losing a primary"))?;
        pair.standby().promote().map_err(failed("promoting a standby"))?;
        pair.primary = 1 - pair.primary;
        Ok(())
    }

    /// Makes a new standby in place of the server that was lost, and lets all commits wait for it.
    pub(super) fn replace_standby(&self) -> Result<()> {
        let primary = self.primary();
        let standby = primary.standby(&Options::new()).map_err(failed("starting a standby"))?;
        let mut pair = self.lock();
        let place = 1 - pair.primary;
        for proxies in [&self.victim_proxies, &self.rig_proxies] {
            proxies.by_server[place].lead_to(&standby);
        }
        pair.servers[place] = standby;
        primary.wait_for_standby().map_err(failed("waiting for a standby"))
    }
}
