//! A standby: a copy of a server that follows it, and takes its place.
//!
//! It is made by `pg_basebackup`, reads the primary's log through its socket, and lets clients read. Once
//! [`Server::wait_for_standby`] was called, the primary acknowledges no commit that the standby has not on its disk.
//!
//! # Invariants
//! - A standby that is promoted waits for nobody: what its primary was told about standbys is not copied.
//! - A primary keeps what a standby that was away for a while needs to catch up.

use super::endpoint::{Endpoint, SocketKind};
use super::guarded_directory::GuardedDirectory;
use super::server::Server;
use super::{Error, Options, Result, wait};
use crate::patience::PATIENCE;

/// The name by which a primary knows its standby.
const NAME: &str = "standby";

/// What a standby may be behind after it was away: more than a test writes.
const KEPT: &str = "1GB";

impl Server {
    /// Makes a standby of this server, which must have been started here, and waits until it lets clients in.
    ///
    /// Of the options it takes the settings, besides those of the primary, which it has all the same.
    pub fn standby(&self, options: &Options) -> Result<Server> {
        let programs = self.own()?.programs.clone();
        let home = GuardedDirectory::new()?;
        let Endpoint { host: SocketKind::Socket(socket), port, user, .. } = self.endpoint() else {
            return Err(Error::NotOurs);
        };
        let (socket, port) = (socket.to_string_lossy(), port.to_string());
        let args = ["-D", "data", "-h", &socket, "-p", &port, "-U", user, "-X", "stream", "-c", "fast", "-N"];
        home.run(&programs.bin.join("pg_basebackup"), &args)?;
        // What was set in the primary while it ran is about its own standbys.
        home.write("data/postgresql.auto.conf", b"")?;
        home.write("data/standby.signal", b"")?;
        let primary = format!("host={socket} port={port} user={user} application_name={NAME}");
        let own = options
            .clone()
            .setting("primary_conninfo", &primary)
            // It is asked to wait for nobody; and looks for its primary at once when that is back.
            .setting("synchronous_standby_names", "")
            .setting("wal_retrieve_retry_interval", "100ms");
        let conf = home.path().join("data/postgresql.conf");
        let copied =
            std::fs::read_to_string(&conf).map_err(Error::io(format!("reading {}", conf.display())))?;
        home.write("data/postgresql.conf", (copied + &own.conf()).as_bytes())?;
        Server::launch(home, programs, options)
    }

    /// Lets every commit of this server wait for its standby, once that follows.
    pub fn wait_for_standby(&self) -> Result<()> {
        self.sql("postgres", &format!("ALTER SYSTEM SET synchronous_standby_names = '{NAME}'"))?;
        self.sql("postgres", "SELECT pg_reload_conf()")?;
        let follows = wait::until(PATIENCE, || Ok(self.has_standby()?.then_some(())))?;
        follows.ok_or_else(|| self.late("was not followed by its standby"))
    }

    /// Whether a standby follows closely enough for commits to be acknowledged.
    pub fn has_standby(&self) -> Result<bool> {
        let sql = "SELECT 1 FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')";
        Ok(!self.sql("postgres", sql)?.is_empty())
    }

    /// Makes a primary of this standby. There must not be another one any more.
    pub fn promote(&self) -> Result<()> {
        let promoted = self.sql("postgres", "SELECT pg_promote(true, 60)")?;
        let done =
            promoted.first().and_then(|row| row.first()).is_some_and(|told| told.as_deref() == Some("t"));
        if done { Ok(()) } else { Err(self.late("was not promoted")) }
    }

    fn late(&self, what: &str) -> Error {
        let log = self.log().unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(30).collect();
        let output = lines.into_iter().rev().collect::<Vec<_>>().join("\n");
        Error::Program { program: "postgres".to_owned(), what: what.to_owned(), output }
    }
}

impl Options {
    /// For a server that will have a standby.
    #[must_use]
    pub fn with_standby(self) -> Self {
        self.setting("wal_keep_size", KEPT)
    }
}
