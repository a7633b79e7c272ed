//! Addresses: where the database is, and how to get in.
//!
//! An address is a URL or a list of `key=value` words, both as libpq reads them, so that what works for `psql` works
//! here. What it leaves open comes from a service file, then from the `PG…` environment, then from defaults: [`parse`]
//! turns all of it into one [`Address`], and nothing looks at the environment later. The two forms are taken apart in
//! `url` and `words` into pairs of a name and a value; `settings` gives the pairs their meaning; `passfile` finds a
//! password when a connection is made, so that a password changed on disk is taken without a restart.
//!
//! Parameters of Mainspring's own:
//!
//! - `schema=<name>`: the schema that holds the tables. Default: `mainspring`.
//! - `pooler=transaction`: the address leads to a pooler that gives each transaction another session.
//! - `listen=<host>[:<port>][,…]`: hosts that lead past the pooler, for `LISTEN`. User, database and the rest are those of
//!   the address.
//!
//! # Invariants
//! - No password is in any output: not in `Debug`, not in `Display`, not in an error.
//! - A parameter that is not known is refused: a misspelt `sslmode` must not mean a connection without TLS.
//!
//! [`parse`]: Address::parse

mod fault;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod passfile;
mod service;
mod settings;
mod url;
mod words;

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use mainspring_core::{Error, Result};
use tokio_postgres::Config;
use tokio_postgres::config::{ChannelBinding, TargetSessionAttrs};

use self::settings::check_schema;

/// The schema that holds the tables unless the address names another.
const DEFAULT_SCHEMA: &str = "mainspring";

/// The address of a Postgres database, with user and password.
///
/// `Display` and [`location`](Address::location) show it without secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    /// In the order in which they are tried; never empty.
    hosts: Vec<Host>,
    /// Where `LISTEN` works, if the address says so; may be empty.
    listen: Vec<Host>,
    /// `None` means the name of the operating system's user.
    user: Option<String>,
    password: Option<Secret>,
    passfile: Option<PathBuf>,
    /// `None` means the database that is called like the user.
    database: Option<String>,
    schema: String,
    /// Whether each transaction may run in another session.
    pooled: bool,
    tls: TlsOptions,
    channel_binding: ChannelBinding,
    session: TargetSessionAttrs,
    connect_timeout: Option<Duration>,
    keepalive: Option<Keepalive>,
    tcp_user_timeout: Option<Duration>,
    application_name: String,
    options: Option<String>,
}

/// One host of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) place: Place,
    pub(crate) port: u16,
}

/// What kind of host it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// The directory of a Unix socket.
    Socket(String),
    /// A machine: the name that its certificate must bear, and its address if it was given.
    Machine { name: String, addr: Option<IpAddr> },
}

/// How the connection is protected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TlsOptions {
    pub(crate) mode: TlsMode,
    pub(crate) roots: Roots,
    /// The client's certificate; `None` where there is no place to look for one.
    pub(crate) certificate: Option<File>,
    /// The key that belongs to it.
    pub(crate) key: Option<File>,
}

/// libpq's `sslmode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TlsMode {
    Disable,
    Allow,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

/// Whose signature on a server's certificate is trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Roots {
    /// There is no place to look.
    Unknown,
    /// What the operating system trusts.
    System,
    /// The certificates in a file.
    File(File),
}

/// A file, and whether somebody named it: one that was named must exist, a default may be absent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) path: PathBuf,
    pub(crate) named: bool,
}

/// When a silent connection is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Keepalive {
    idle: Duration,
    interval: Duration,
    retries: u32,
}

/// A value that is never shown.
#[derive(Clone, PartialEq, Eq)]
struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("_")
    }
}

impl Address {
    /// Parses an address. `env` looks up a variable of the environment.
    ///
    /// Fails with [`Error::Open`] and a cause that names the parameter in question, never its value.
    pub fn parse(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Address> {
        settings::read(text, env).map_err(Error::from)
    }

    /// Returns the schema that holds the tables.
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// Returns the same address with the tables in another schema.
    pub fn with_schema(mut self, name: &str) -> Result<Address> {
        check_schema(name)?;
        name.clone_into(&mut self.schema);
        Ok(self)
    }

    /// Returns whether the address leads to a pooler that gives each transaction another session, so nothing may
    /// outlive a transaction.
    pub fn is_pooled(&self) -> bool {
        self.pooled
    }

    /// Returns the address at which `LISTEN` works: the hosts of `listen=…`, else this address unless it leads to a
    /// transaction pooler. `None` means that there are no notifications.
    pub fn for_listening(&self) -> Option<Address> {
        if !self.listen.is_empty() {
            let hosts = self.listen.clone();
            return Some(Address { hosts, listen: Vec::new(), pooled: false, ..self.clone() });
        }
        (!self.pooled).then(|| self.clone())
    }

    /// Returns how long one attempt to connect may take, for each network address of a host. `None` means forever.
    pub fn connect_timeout(&self) -> Option<Duration> {
        self.connect_timeout
    }

    /// Returns the address without secrets, such as `postgres://app@db:5432/shop`, with the schema unless it is the
    /// default.
    pub fn location(&self) -> String {
        self.to_string()
    }

    /// In the order in which they are tried; never empty.
    pub(crate) fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    pub(crate) fn tls(&self) -> &TlsOptions {
        &self.tls
    }

    /// What the client needs to know to connect to one host, at one of its addresses. Whether it asks for TLS is left
    /// to the caller.
    pub(crate) fn config(&self, host: &Host, addr: Option<IpAddr>) -> Config {
        let mut config = Config::new();
        match &host.place {
            Place::Socket(dir) => config.host(dir),
            Place::Machine { name, .. } => config.host(name),
        };
        if let Some(addr) = addr {
            config.hostaddr(addr);
        }
        config.port(host.port);
        if let Some(user) = &self.user {
            config.user(user);
        }
        if let Some(Secret(password)) = self.password_for(host) {
            config.password(password);
        }
        if let Some(database) = &self.database {
            config.dbname(database);
        }
        if let Some(options) = &self.options {
            config.options(options);
        }
        if let Some(limit) = self.connect_timeout {
            config.connect_timeout(limit);
        }
        if let Some(limit) = self.tcp_user_timeout {
            config.tcp_user_timeout(limit);
        }
        config.keepalives(self.keepalive.is_some());
        if let Some(keepalive) = self.keepalive {
            config
                .keepalives_idle(keepalive.idle)
                .keepalives_interval(keepalive.interval)
                .keepalives_retries(keepalive.retries);
        }
        config
            .application_name(&self.application_name)
            .channel_binding(self.channel_binding)
            .target_session_attrs(self.session);
        config
    }

    /// The password for one host: the one that was given, else what the password file says now.
    fn password_for(&self, host: &Host) -> Option<Secret> {
        self.password.clone().or_else(|| {
            let user = self.user.as_deref();
            let database = self.database.as_deref().or(user);
            passfile::find(self.passfile.as_deref()?, host, database, user)
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("postgres://")?;
        if let Some(user) = &self.user {
            write!(f, "{}@", url::Encoded(user))?;
        }
        // The directory of a socket would have to be encoded as a host; as a parameter it can be read.
        let parameters = self.hosts.iter().any(|host| matches!(host.place, Place::Socket(_)));
        if !parameters {
            list(f, &self.hosts, |f, host| host.fmt(f))?;
        }
        match self.database.as_deref().or(self.user.as_deref()) {
            Some(database) => write!(f, "/{}", url::Encoded(database))?,
            None if parameters => f.write_str("/")?,
            None => {}
        }
        if parameters {
            f.write_str("?host=")?;
            list(f, &self.hosts, |f, host| url::path(f, host.name()))?;
            f.write_str("&port=")?;
            list(f, &self.hosts, |f, host| host.port.fmt(f))?;
        }
        if self.schema != DEFAULT_SCHEMA {
            let mark = if parameters { '&' } else { '?' };
            write!(f, "{mark}schema={}", self.schema)?;
        }
        Ok(())
    }
}

/// Hosts, or something about each, with commas between them.
fn list(
    f: &mut fmt::Formatter<'_>,
    hosts: &[Host],
    show: impl Fn(&mut fmt::Formatter<'_>, &Host) -> fmt::Result,
) -> fmt::Result {
    for (index, host) in hosts.iter().enumerate() {
        if index > 0 {
            f.write_str(",")?;
        }
        show(f, host)?;
    }
    Ok(())
}

impl Host {
    /// The name of the machine, or the directory of the socket.
    fn name(&self) -> &str {
        match &self.place {
            Place::Machine { name, .. } | Place::Socket(name) => name,
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Host { place, port } = self;
        match place {
            Place::Machine { name, .. } if name.contains(':') => write!(f, "[{}]:{port}", url::Encoded(name)),
            Place::Machine { name, .. } | Place::Socket(name) => write!(f, "{}:{port}", url::Encoded(name)),
        }
    }
}

impl fmt::Debug for Address {
    /// The location is what a log needs; the rest would be a long way to say the same.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Address").field(&self.location()).finish()
    }
}
