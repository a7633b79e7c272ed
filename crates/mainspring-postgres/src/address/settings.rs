//! What the parameters of an address mean.
//!
//! Each parameter is looked up where it may stand, first in the address itself, then in the service that the address
//! names, then in the environment; what is found nowhere has a default. Values are checked here, once, so that the rest
//! of the crate works with an [`Address`] that makes sense.
//!
//! # Invariants
//! - A value given explicitly wins over the environment, also an empty one, which then means the default.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use tokio_postgres::config::{ChannelBinding, TargetSessionAttrs};

use super::fault::Fault;
use super::words::Parameter;
use super::{
    Address, DEFAULT_SCHEMA, File, Host, Keepalive, Place, Roots, Secret, TlsMode, TlsOptions, service, url,
    words,
};

/// The longest text that is read as an address.
const MAX_BYTES: usize = 8 << 10;
/// The most hosts of one address: each one that is down costs a reconnect its timeout.
const MAX_HOSTS: usize = 16;
/// The longest name of a schema, which is Postgres's own bound on names.
const MAX_SCHEMA_BYTES: usize = 63;
/// Where distributions and Postgres itself put the socket.
pub(super) const SOCKET_DIRS: [&str; 3] = ["/var/run/postgresql", "/run/postgresql", "/tmp"];
const DEFAULT_PORT: u16 = 5432;
/// Long enough for a loaded server, short enough to try the next host within a lease.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A silent peer is noticed after a minute: 30 s, and then three questions 10 s apart.
const KEEPALIVE: Keepalive =
    Keepalive { idle: Duration::from_secs(30), interval: Duration::from_secs(10), retries: 3 };
/// How long sent data may stay without an answer from the peer's kernel before the connection is given up.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(30);
const APPLICATION_NAME: &str = "mainspring";

/// Every parameter, and the variable of the environment that stands in for it.
const PARAMETERS: [(&str, Option<&str>); 30] = [
    ("application_name", Some("PGAPPNAME")),
    ("channel_binding", Some("PGCHANNELBINDING")),
    ("client_encoding", None),
    ("connect_timeout", Some("PGCONNECT_TIMEOUT")),
    ("dbname", Some("PGDATABASE")),
    ("fallback_application_name", None),
    ("gssencmode", None),
    ("host", Some("PGHOST")),
    ("hostaddr", Some("PGHOSTADDR")),
    ("keepalives", None),
    ("keepalives_count", None),
    ("keepalives_idle", None),
    ("keepalives_interval", None),
    ("listen", None),
    ("options", Some("PGOPTIONS")),
    ("passfile", Some("PGPASSFILE")),
    ("password", Some("PGPASSWORD")),
    ("pooler", None),
    ("port", Some("PGPORT")),
    ("schema", None),
    ("service", Some("PGSERVICE")),
    ("sslcert", Some("PGSSLCERT")),
    ("sslkey", Some("PGSSLKEY")),
    ("sslmode", Some("PGSSLMODE")),
    ("sslnegotiation", None),
    ("sslrootcert", Some("PGSSLROOTCERT")),
    ("sslsni", None),
    ("target_session_attrs", Some("PGTARGETSESSIONATTRS")),
    ("tcp_user_timeout", None),
    ("user", Some("PGUSER")),
];

/// Looks up a variable of the environment.
type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Reads an address.
pub(super) fn read(text: &str, env: Env<'_>) -> Result<Address, Fault> {
    if text.len() > MAX_BYTES {
        return Err(Fault::Form("it is longer than 8192 bytes"));
    }
    let pairs = match url::body(text) {
        Some(body) => url::pairs(body)?,
        None => words::pairs(text)?,
    };
    Settings::collect(pairs, env)?.address(env)
}

/// Checks the name of a schema. It goes into statements without quotes, so it must be a plain lower-case name.
pub(super) fn check_schema(name: &str) -> Result<(), Fault> {
    let wrong = |why| Err(Fault::value("schema", why));
    if name.is_empty() || name.len() > MAX_SCHEMA_BYTES {
        return wrong("must have 1 to 63 characters");
    }
    if !name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_')) {
        return wrong("may only contain `a` to `z`, `0` to `9` and `_`");
    }
    if name.starts_with(|first: char| first.is_ascii_digit()) {
        return wrong("must not begin with a digit");
    }
    if name.starts_with("pg_") {
        return wrong("must not begin with `pg_`, which Postgres keeps for itself");
    }
    Ok(())
}

/// The values that were found, by parameter.
struct Settings(BTreeMap<&'static str, String>);

impl Settings {
    fn collect(pairs: Vec<Parameter>, env: Env<'_>) -> Result<Settings, Fault> {
        let mut found = named(pairs)?;
        if let Some(service) = found.get("service").cloned().or_else(|| env("PGSERVICE")) {
            for (name, value) in named(service::pairs(&service, env)?)? {
                found.entry(name).or_insert(value);
            }
        }
        for (name, variable) in PARAMETERS {
            if let Some(value) = variable.filter(|_| !found.contains_key(name)).and_then(env) {
                found.insert(name, value);
            }
        }
        match found.iter().find(|(_, value)| value.contains('\0')) {
            Some((name, _)) => Err(Fault::value(name, "contains a NUL")),
            None => Ok(Settings(found)),
        }
    }

    fn address(mut self, env: Env<'_>) -> Result<Address, Fault> {
        let home = env("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
        self.check_fixed()?;
        let hosts = self.hosts()?;
        let listen = self.listen()?;
        let schema = self.take("schema").unwrap_or_else(|| DEFAULT_SCHEMA.to_owned());
        check_schema(&schema)?;
        let fallback_name = self.take("fallback_application_name");
        Ok(Address {
            session: self.session(hosts.len())?,
            hosts,
            listen,
            // libpq asks the system, as the client does if this is not set; a shell has asked already.
            user: self.take("user").or_else(|| env("USER").filter(|user| !user.is_empty())),
            password: self.take("password").map(Secret),
            passfile: self
                .take("passfile")
                .map(PathBuf::from)
                .or_else(|| home.as_ref().map(|home| home.join(".pgpass"))),
            database: self.take("dbname"),
            schema,
            pooled: self.pooled()?,
            tls: self.tls(home.as_deref())?,
            channel_binding: self.channel_binding()?,
            connect_timeout: match self.number("connect_timeout")? {
                None => Some(CONNECT_TIMEOUT),
                Some(0) => None,
                Some(seconds) => Some(Duration::from_secs(seconds)),
            },
            keepalive: self.keepalive()?,
            tcp_user_timeout: match self.number("tcp_user_timeout")? {
                None => Some(TCP_USER_TIMEOUT),
                Some(0) => None,
                Some(millis) => Some(Duration::from_millis(millis)),
            },
            application_name: self
                .take("application_name")
                .or(fallback_name)
                .unwrap_or_else(|| APPLICATION_NAME.to_owned()),
            options: self.take("options"),
        })
    }

    /// A value that was found and is not empty.
    fn take(&mut self, name: &'static str) -> Option<String> {
        self.0.remove(name).filter(|value| !value.is_empty())
    }

    fn number(&mut self, name: &'static str) -> Result<Option<u64>, Fault> {
        // Bounded, because libpq's are, and a duration of centuries overflows somewhere else.
        let number = |text: String| u32::from_str(text.trim()).map(u64::from);
        self.take(name).map(number).transpose().map_err(|_| Fault::value(name, "must be a whole number"))
    }

    /// Parameters of libpq that are accepted with the values that describe what happens anyway.
    fn check_fixed(&mut self) -> Result<(), Fault> {
        let fixed: [(&'static str, &[&str], &'static str); 4] = [
            ("client_encoding", &["UTF8", "UTF-8", "utf8", "utf-8", "auto"], "must be `UTF8`"),
            ("gssencmode", &["disable", "prefer"], "must not be `require`: there is no GSSAPI here"),
            ("sslnegotiation", &["postgres"], "must be `postgres`"),
            ("sslsni", &["1"], "must be `1`"),
        ];
        for (name, accepted, why) in fixed {
            if self.take(name).is_some_and(|value| !accepted.contains(&value.as_str())) {
                return Err(Fault::value(name, why));
            }
        }
        Ok(())
    }

    fn hosts(&mut self) -> Result<Vec<Host>, Fault> {
        let [names, addrs, ports] =
            ["host", "hostaddr", "port"].map(|name| self.take(name).unwrap_or_default());
        let addrs = addrs.split(',').map(addr).collect::<Result<Vec<_>, _>>()?;
        pair_up(&names, &addrs, &ports, "port")
    }

    fn listen(&mut self) -> Result<Vec<Host>, Fault> {
        let Some(text) = self.take("listen") else { return Ok(Vec::new()) };
        let (names, ports) = url::split_hosts(&text)?;
        if names.split(',').any(str::is_empty) {
            return Err(Fault::value("listen", "must name a host"));
        }
        pair_up(&names, &[None], &ports, "listen")
    }

    /// With several hosts the default is one that takes writes: a store on a standby is of no use.
    fn session(&mut self, hosts: usize) -> Result<TargetSessionAttrs, Fault> {
        match self.take("target_session_attrs").as_deref() {
            None if hosts > 1 => Ok(TargetSessionAttrs::ReadWrite),
            None | Some("any") => Ok(TargetSessionAttrs::Any),
            // `primary` would also allow one that is set to refuse writes.
            Some("read-write" | "primary") => Ok(TargetSessionAttrs::ReadWrite),
            Some("read-only") => Ok(TargetSessionAttrs::ReadOnly),
            Some(_) => Err(Fault::value(
                "target_session_attrs",
                "must be `any`, `read-write`, `primary` or `read-only`",
            )),
        }
    }

    fn pooled(&mut self) -> Result<bool, Fault> {
        match self.take("pooler").as_deref() {
            None | Some("none") => Ok(false),
            Some("transaction") => Ok(true),
            Some(_) => Err(Fault::value("pooler", "must be `none` or `transaction`")),
        }
    }

    fn channel_binding(&mut self) -> Result<ChannelBinding, Fault> {
        match self.take("channel_binding").as_deref() {
            Some("disable") => Ok(ChannelBinding::Disable),
            None | Some("prefer") => Ok(ChannelBinding::Prefer),
            Some("require") => Ok(ChannelBinding::Require),
            Some(_) => Err(Fault::value("channel_binding", "must be `disable`, `prefer` or `require`")),
        }
    }

    fn keepalive(&mut self) -> Result<Option<Keepalive>, Fault> {
        let seconds = |found: Option<u64>, default| match found {
            None | Some(0) => default,
            Some(seconds) => Duration::from_secs(seconds),
        };
        let idle = seconds(self.number("keepalives_idle")?, KEEPALIVE.idle);
        let interval = seconds(self.number("keepalives_interval")?, KEEPALIVE.interval);
        let retries = match self.number("keepalives_count")? {
            None | Some(0) => KEEPALIVE.retries,
            Some(count) => {
                u32::try_from(count).map_err(|_| Fault::value("keepalives_count", "is too large"))?
            }
        };
        let on = self.number("keepalives")? != Some(0);
        Ok(on.then_some(Keepalive { idle, interval, retries }))
    }

    fn tls(&mut self, home: Option<&Path>) -> Result<TlsOptions, Fault> {
        let file = |given: Option<String>, default: &str| match (given, home) {
            (Some(path), _) => Some(File { path: path.into(), named: true }),
            (None, Some(home)) => Some(File { path: home.join(".postgresql").join(default), named: false }),
            (None, None) => None,
        };
        let mode = self.take("sslmode");
        let roots = match self.take("sslrootcert") {
            Some(system) if system == "system" => Roots::System,
            given => file(given, "root.crt").map_or(Roots::Unknown, Roots::File),
        };
        let mode = match (mode.as_deref(), &roots) {
            (None | Some("verify-full"), Roots::System) | (Some("verify-full"), _) => TlsMode::VerifyFull,
            // Anybody can get a certificate from one of those: without the name it proves nothing.
            (Some(_), Roots::System) => {
                return Err(Fault::value("sslmode", "must be `verify-full` with `sslrootcert=system`"));
            }
            (None | Some("prefer"), _) => TlsMode::Prefer,
            (Some("disable"), _) => TlsMode::Disable,
            (Some("allow"), _) => TlsMode::Allow,
            (Some("require"), _) => TlsMode::Require,
            (Some("verify-ca"), _) => TlsMode::VerifyCa,
            (Some(_), _) => {
                return Err(Fault::value(
                    "sslmode",
                    "must be `disable`, `allow`, `prefer`, `require`, `verify-ca` or `verify-full`",
                ));
            }
        };
        let certificate = file(self.take("sslcert"), "postgresql.crt");
        let key = file(self.take("sslkey"), "postgresql.key");
        Ok(TlsOptions { mode, roots, certificate, key })
    }
}

/// The pairs by parameter; of two with the same name the later one counts.
fn named(pairs: Vec<Parameter>) -> Result<BTreeMap<&'static str, String>, Fault> {
    let mut found = BTreeMap::new();
    for Parameter { name, value, may_be_secret } in pairs {
        let (known, _) = PARAMETERS
            .iter()
            .find(|(known, _)| *known == name)
            .ok_or_else(|| Fault::unknown(&name, may_be_secret))?;
        found.insert(*known, value);
    }
    Ok(found)
}

/// Puts names, addresses and ports of hosts together: as many of each, or one port for all.
fn pair_up(
    names: &str,
    addrs: &[Option<IpAddr>],
    ports: &str,
    parameter: &'static str,
) -> Result<Vec<Host>, Fault> {
    let names: Vec<&str> = names.split(',').collect();
    let ports = ports.split(',').map(|text| port(text, parameter)).collect::<Result<Vec<_>, _>>()?;
    let count = names.len().max(addrs.len());
    if count > MAX_HOSTS {
        return Err(Fault::Form("more than 16 hosts"));
    }
    let fits = |len: usize, items_given: bool| len == count || (len == 1 && !items_given);
    if !fits(names.len(), names != [""]) || !fits(addrs.len(), addrs != [None]) {
        return Err(Fault::Form("`host` and `hostaddr` do not have the same number of entries"));
    }
    if ports.len() != 1 && ports.len() != count {
        return Err(Fault::Form("neither one port for all hosts nor one for each"));
    }
    let host = |index: usize| {
        let name = names.get(index).copied().unwrap_or("");
        let addr = addrs.get(index).copied().flatten();
        let port = *ports.get(index).unwrap_or(&ports[0]);
        Host { place: place(name, addr, port), port }
    };
    Ok((0..count).map(host).collect())
}

fn place(name: &str, addr: Option<IpAddr>, port: u16) -> Place {
    if name.starts_with('/') && addr.is_none() {
        return Place::Socket(name.to_owned());
    }
    match (name, addr) {
        ("", Some(addr)) => Place::Machine { name: addr.to_string(), addr: Some(addr) },
        // libpq was told at its build where the socket is; this looks.
        ("", None) => {
            let here = |dir: &&&str| Path::new(dir).join(format!(".s.PGSQL.{port}")).exists();
            match SOCKET_DIRS.iter().find(here) {
                Some(dir) => Place::Socket((*dir).to_owned()),
                None => Place::Machine { name: "localhost".to_owned(), addr: None },
            }
        }
        (name, addr) => Place::Machine { name: name.to_owned(), addr },
    }
}

fn addr(text: &str) -> Result<Option<IpAddr>, Fault> {
    let parse =
        |text| IpAddr::from_str(text).map_err(|_| Fault::value("hostaddr", "must be a network address"));
    Some(text.trim()).filter(|text| !text.is_empty()).map(parse).transpose()
}

fn port(text: &str, parameter: &'static str) -> Result<u16, Fault> {
    match text.trim() {
        "" => Ok(DEFAULT_PORT),
        text => match u16::from_str(text) {
            Ok(port) if port > 0 => Ok(port),
            _ => Err(Fault::value(parameter, "must have a port between 1 and 65535")),
        },
    }
}
