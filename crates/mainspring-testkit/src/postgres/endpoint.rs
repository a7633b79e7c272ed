//! Where a server listens, and the addresses made from it.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use ::postgres::config::{Config, Host};

use super::{Error, Result};

/// A test that cannot connect says so before anybody takes it for hung.
const CONNECT: Duration = Duration::from_secs(10);

/// One way to one server, and whom to be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) host: SocketKind,
    pub(super) port: u16,
    pub(super) user: String,
    pub(super) password: Option<String>,
}

/// Which door of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SocketKind {
    /// The directory of a Unix socket.
    Socket(PathBuf),
    /// A name or an address.
    Tcp(String),
}

impl Endpoint {
    /// The superuser that `initdb` made, who needs no password.
    pub(super) fn superuser(host: SocketKind, port: u16) -> Endpoint {
        Endpoint { host, port, user: "postgres".to_owned(), password: None }
    }

    /// Reads a URL or a string of `key=value`.
    pub(super) fn parse(address: &str) -> Result<Endpoint> {
        let wrong = || Error::Address { address: address.to_owned() };
        let config = Config::from_str(address).map_err(|_| wrong())?;
        let [host] = config.get_hosts() else { return Err(wrong()) };
        let host = match host {
            Host::Tcp(name) => SocketKind::Tcp(name.clone()),
            Host::Unix(path) => SocketKind::Socket(path.clone()),
        };
        let password = config.get_password().map(|password| String::from_utf8_lossy(password).into_owned());
        Ok(Endpoint {
            host,
            port: config.get_ports().first().copied().unwrap_or(5432),
            user: config.get_user().unwrap_or("postgres").to_owned(),
            password,
        })
    }

    /// The address of a database, as every client understands it.
    pub(super) fn url(&self, database: &str) -> String {
        let user = encode(&self.user);
        let password = self.password.as_ref().map(|password| format!(":{}", encode(password)));
        let host = match &self.host {
            SocketKind::Socket(path) => encode(&path.to_string_lossy()),
            SocketKind::Tcp(name) => name.clone(),
        };
        let password = password.unwrap_or_default();
        format!("postgresql://{user}{password}@{host}:{}/{}", self.port, encode(database))
    }

    /// The settings of our own client.
    pub(super) fn config(&self, database: &str) -> Config {
        let mut config = Config::new();
        config.user(&self.user).port(self.port).dbname(database).connect_timeout(CONNECT);
        config.application_name("mainspring-testkit");
        match &self.host {
            SocketKind::Socket(path) => config.host_path(path),
            SocketKind::Tcp(name) => config.host(name),
        };
        if let Some(password) = &self.password {
            config.password(password);
        }
        config
    }

    /// The file of the Unix socket in a directory.
    pub(super) fn socket_file(&self, dir: &Path) -> PathBuf {
        dir.join(format!(".s.PGSQL.{}", self.port))
    }
}

/// Percent-encodes all that could mean something in a URL.
fn encode(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
    let encoded = |byte: u8| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(encoded).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_survives_being_written_and_read() {
        for host in
            [SocketKind::Socket(PathBuf::from("/tmp/ms pg/x")), SocketKind::Tcp("127.0.0.1".to_owned())]
        {
            let password = Some("p@ss/w:rd?".to_owned());
            let endpoint = Endpoint { host, port: 6543, user: "a b".to_owned(), password };
            assert_eq!(Endpoint::parse(&endpoint.url("some/db")).expect("an address"), endpoint);
        }
    }

    #[test]
    fn conninfo_string_is_an_address_too() {
        let endpoint = Endpoint::parse("host=/tmp/x port=7 user=me").expect("an address");
        assert_eq!(endpoint.url("db"), "postgresql://me@%2Ftmp%2Fx:7/db");
        for wrong in ["", "host=a,b", "nonsense"] {
            assert!(Endpoint::parse(wrong).is_err(), "{wrong}");
        }
    }
}
