//! Two proxies, one in front of each server of a cluster.

use crate::postgres::{Cut, Proxy, Server};
use crate::torture::Result;

use super::failed;

/// How some victims reach both servers. The server behind a proxy may change; its address does not.
#[derive(Debug)]
pub(super) struct TwoProxies {
    pub(super) by_server: [Proxy; 2],
}

impl TwoProxies {
    pub(super) fn new(servers: &[Server; 2]) -> Result<Self> {
        let way = |server: &Server| Proxy::start(server).map_err(failed("starting a proxy"));
        Ok(TwoProxies { by_server: [way(&servers[0])?, way(&servers[1])?] })
    }

    /// The address of a database on whichever server takes writes.
    pub(super) fn address(&self, database: &str) -> String {
        let [a, b] = self.by_server.each_ref().map(Proxy::port);
        format!(
            "host=127.0.0.1,127.0.0.1 port={a},{b} user=postgres dbname={database} sslmode=disable \
            target_session_attrs=read-write"
        )
    }

    /// The answer of the next commit is lost.
    pub(super) fn lose_an_answer(&self) {
        for way in &self.by_server {
            way.on_commit(Cut::After, 1);
        }
    }

    /// Messages so far that met a cut which was laid out for them.
    pub(super) fn hits(&self) -> u64 {
        self.by_server.iter().map(|way| way.counts().hits).sum()
    }

    /// Bytes that were swallowed so far.
    pub(super) fn swallowed(&self) -> u64 {
        self.by_server.iter().map(|way| way.counts().swallowed).sum()
    }

    /// Becomes a black hole, or stops being one.
    pub(super) fn swallow(&self, swallows: bool) {
        for way in &self.by_server {
            way.swallow(swallows);
        }
    }
}
