//! A real PgBouncer in front of a server.
//!
//! In transaction mode each transaction may run on another connection of the server, so nothing that belongs to a
//! session survives: prepared statements (before version 1.21), `LISTEN`, advisory locks of a session, `SET`. What works
//! here works behind the poolers of the usual providers.

use std::os::unix::net::UnixStream;

use super::endpoint::{Endpoint, SocketKind};
use super::guarded_directory::{GuardedDirectory, Running};
use super::server::Server;
use super::{Result, programs};
use crate::patience::PATIENCE;

/// The port that names the socket. The directory is private, so it is free.
const PORT: u16 = 6432;

/// Whoever connects becomes the server's user: the socket is in a private directory. No file for the log means that it
/// goes to standard error, where the errors of a failed start are looked for.
const DEFAULTS: &str = "\
pool_mode = transaction
auth_type = any
listen_addr =
max_client_conn = 300
default_pool_size = 20
";

/// A PgBouncer that ends when it is dropped. It keeps its server alive.
#[derive(Debug)]
pub struct Bouncer {
    /// Before its directory and its server: fields are dropped in order.
    _process: Running,
    _home: GuardedDirectory,
    _server: Server,
    endpoint: Endpoint,
}

impl Bouncer {
    /// Starts a PgBouncer in transaction mode, on a Unix socket, and waits until it answers.
    pub fn start(server: &Server) -> Result<Bouncer> {
        Bouncer::start_with(server, &[])
    }

    /// The same with settings of its own, which win over the defaults: `("default_pool_size", "1")`.
    pub fn start_with(server: &Server, settings: &[(&str, &str)]) -> Result<Bouncer> {
        let program = programs::bouncer()?;
        let home = GuardedDirectory::new()?;
        home.write("pgbouncer.ini", config(server.endpoint(), &home, settings).as_bytes())?;
        let mut process = home.start("pgbouncer", &program, &["pgbouncer.ini".into()])?;
        let endpoint = Endpoint::superuser(SocketKind::Socket(home.path().to_owned()), PORT);
        let socket = endpoint.socket_file(home.path());
        process.ready(PATIENCE, || UnixStream::connect(&socket).is_ok())?;
        Ok(Bouncer { _process: process, _home: home, _server: server.clone(), endpoint })
    }

    /// The address of a database through it.
    pub fn url(&self, database: &str) -> String {
        self.endpoint.url(database)
    }
}

/// The file `pgbouncer.ini`: the last line about a setting counts.
fn config(server: &Endpoint, home: &GuardedDirectory, settings: &[(&str, &str)]) -> String {
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
    let host = match &server.host {
        SocketKind::Socket(path) => quoted(&path.to_string_lossy()),
        SocketKind::Tcp(name) => quoted(name),
    };
    let (port, user) = (server.port, quoted(&server.user));
    let password = server.password.as_ref().map(|password| format!(" password={}", quoted(password)));
    let password = password.unwrap_or_default();
    let dir = home.path().display();
    let settings: String = settings.iter().flat_map(|(name, value)| [name, " = ", value, "\n"]).collect();
    format!(
        "[databases]\n* = host={host} port={port} user={user}{password}\n\
        [pgbouncer]\nunix_socket_dir = {dir}\nlisten_port = {PORT}\n{DEFAULTS}{settings}"
    )
}
