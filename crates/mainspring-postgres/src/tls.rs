//! Connecting, with TLS as libpq's `sslmode` means it.
//!
//! The hosts of an address are tried in their order, each at all of its network addresses, each of those within the
//! connect timeout. What an attempt does about TLS depends on the mode:
//!
//! | mode | first | then | the server's certificate |
//! |---|---|---|---|
//! | `disable` | plain | | |
//! | `allow` | plain | TLS, if the server turned the plain one away | not looked at |
//! | `prefer` | TLS, or plain if the server has none | plain, if TLS failed | not looked at |
//! | `require` | TLS | | must be signed by a root, if there is a file of roots |
//! | `verify-ca` | TLS | | must be signed by a root |
//! | `verify-full` | TLS | | must be signed by a root and bear the host's name |
//!
//! A Unix socket is always plain: the bytes do not leave the machine. `allow` and `prefer` never look at the certificate,
//! where libpq does if it finds a file of roots: all it does about a bad one is to go on without TLS, which is worse.
//!
//! # Invariants
//! - From `require` on, nothing but the request for TLS is sent in the clear.
//! - No error shows a password.

mod files;
mod verify;

use std::future::Future;
use std::net::IpAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use mainspring_core::error::BoxError;
use tokio_postgres::config::SslMode;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::{MakeTlsConnect, NoTlsStream};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::address::{Address, Host, Place, TlsMode};

/// What kind of problem kept a client from connecting, from the least telling to the most: of the hosts of an address,
/// the one with the most telling problem is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ConnectProblem {
    /// Nobody answers, or the server cannot take a client now. Try again later.
    Unreachable,
    /// Something else, told by the cause.
    Other,
    /// TLS was demanded and cannot be had, or the certificate is not trusted.
    Tls,
    /// The server does not let this client in: password, permission, no such database.
    Refused,
}

/// Why a client could not connect.
#[derive(Debug)]
pub(crate) struct ConnectError {
    /// What kind of problem it is.
    pub(crate) problem: ConnectProblem,
    /// Which host it was, and the cause.
    pub(crate) source: Option<BoxError>,
}

/// At which host something went wrong.
#[derive(Debug, thiserror::Error)]
#[error("no connection to {host}")]
struct At {
    host: String,
    source: BoxError,
}

impl ConnectError {
    fn new(problem: ConnectProblem, host: &Host, source: impl Into<BoxError>) -> ConnectError {
        let at = At { host: host.to_string(), source: source.into() };
        ConnectError { problem, source: Some(at.into()) }
    }

    /// What the server or the client library said.
    fn cause(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().and_then(std::error::Error::source)
    }

    /// The database's own code for it, if it was it.
    pub(crate) fn code(&self) -> Option<&SqlState> {
        self.client()?.code()
    }

    /// What the client library said, if it was it.
    fn client(&self) -> Option<&tokio_postgres::Error> {
        self.cause()?.downcast_ref()
    }
}

type TlsStream = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;

/// The half of a connection that does the work: it must be polled for the client to get answers.
pub(crate) enum BoxedConnection {
    /// Without TLS.
    Plain(Box<Connection<Socket, NoTlsStream>>),
    /// Made by a connector that can do TLS; `prefer` may still have ended up without.
    Tls(Box<Connection<Socket, TlsStream>>),
}

impl BoxedConnection {
    /// Works until there is a notification or a notice to hand out; `None` once the connection is closed.
    pub(crate) fn poll_message(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<AsyncMessage, tokio_postgres::Error>>> {
        match self {
            BoxedConnection::Plain(connection) => connection.poll_message(cx),
            BoxedConnection::Tls(connection) => connection.poll_message(cx),
        }
    }
}

/// Connects to the first host that takes this client. Of a limit each host has its part, and the last one what is left: one
/// that says nothing must not keep the next from being asked.
pub(crate) async fn connect(
    address: &Address,
    limit: Option<Duration>,
) -> Result<(Client, BoxedConnection), ConnectError> {
    let hosts = address.hosts();
    let mut worst: Option<ConnectError> = None;
    for (index, host) in hosts.iter().enumerate() {
        let is_last = index + 1 == hosts.len();
        let part =
            limit.filter(|_| !is_last).map(|limit| limit / u32::try_from(hosts.len()).unwrap_or(u32::MAX));
        match within(part, host, Box::pin(connect_host(address, host))).await {
            Ok(connected) => return Ok(connected),
            Err(error) => {
                worst = Some(match worst {
                    Some(before) if before.problem >= error.problem => before,
                    _ => error,
                });
            }
        }
    }
    Err(worst.expect("an address has at least one host"))
}

/// Tries all network addresses of a host.
async fn connect_host(address: &Address, host: &Host) -> Result<(Client, BoxedConnection), ConnectError> {
    let limit = address.connect_timeout();
    let mut last = None;
    for addr in within(limit, host, lookup(host)).await? {
        match within(limit, host, attempt(address, host, addr)).await {
            Ok(connected) => return Ok(connected),
            // The same server behind another address would say the same.
            Err(error) if error.problem > ConnectProblem::Unreachable => return Err(error),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| {
        ConnectError::new(ConnectProblem::Unreachable, host, "its name has no network address")
    }))
}

async fn within<T>(
    limit: Option<Duration>,
    host: &Host,
    work: impl Future<Output = Result<T, ConnectError>>,
) -> Result<T, ConnectError> {
    let Some(limit) = limit else { return work.await };
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
        let why = format!("no answer within {limit:?}");
        Err(ConnectError::new(ConnectProblem::Unreachable, host, why))
    })
}

/// The network addresses of a host; `None` for a Unix socket.
async fn lookup(host: &Host) -> Result<Vec<Option<IpAddr>>, ConnectError> {
    match &host.place {
        Place::Socket(_) => Ok(vec![None]),
        Place::Machine { addr: Some(addr), .. } => Ok(vec![Some(*addr)]),
        Place::Machine { name, addr: None } => {
            let found = tokio::net::lookup_host((name.as_str(), host.port))
                .await
                .map_err(|error| ConnectError::new(ConnectProblem::Unreachable, host, error))?;
            Ok(found.map(|found| Some(found.ip())).collect())
        }
    }
}

/// Connects to one network address, with or without TLS as the mode says.
async fn attempt(
    address: &Address,
    host: &Host,
    addr: Option<IpAddr>,
) -> Result<(Client, BoxedConnection), ConnectError> {
    let config = address.config(host, addr);
    let mode = match host.place {
        Place::Socket(_) => TlsMode::Disable,
        Place::Machine { .. } => address.tls().mode,
    };
    match mode {
        TlsMode::Disable => plain(config, host).await,
        TlsMode::Allow => match plain(config.clone(), host).await {
            Err(error) if turned_away(&error) => encrypted(config, SslMode::Require, address, host).await,
            done => done,
        },
        TlsMode::Prefer => match encrypted(config.clone(), SslMode::Prefer, address, host).await {
            Err(error) if error.problem == ConnectProblem::Tls || cut_off(&error) || turned_away(&error) => {
                tracing::warn!(%host, why = %words(&error), "TLS failed; connecting without it, as sslmode=prefer allows");
                plain(config, host).await
            }
            done => done,
        },
        TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull => {
            encrypted(config, SslMode::Require, address, host).await
        }
    }
}

async fn plain(mut config: Config, host: &Host) -> Result<(Client, BoxedConnection), ConnectError> {
    config.ssl_mode(SslMode::Disable);
    let (client, connection) = config.connect(NoTls).await.map_err(|error| explain(host, error))?;
    Ok((client, BoxedConnection::Plain(Box::new(connection))))
}

async fn encrypted(
    mut config: Config,
    mode: SslMode,
    address: &Address,
    host: &Host,
) -> Result<(Client, BoxedConnection), ConnectError> {
    let setup =
        verify::setup(address.tls()).map_err(|fault| ConnectError::new(ConnectProblem::Tls, host, fault))?;
    config.ssl_mode(mode);
    let connector = MakeRustlsConnect::new(setup);
    let (client, connection) = config.connect(connector).await.map_err(|error| explain(host, error))?;
    Ok((client, BoxedConnection::Tls(Box::new(connection))))
}

/// Whether the connection ended in the middle of the handshake. Some networks do that to all that is encrypted.
fn cut_off(error: &ConnectError) -> bool {
    error.client().is_some_and(in_handshake)
}

/// The client does not say what kind an error is, other than in its text and its cause.
fn in_handshake(error: &tokio_postgres::Error) -> bool {
    error.to_string().starts_with("error performing TLS handshake")
}

/// Whether the server has a rule that forbids this client to connect in this way; the other way may be allowed. A wrong
/// password is another code: it would be wrong both ways, and must not be sent in the clear for nothing.
fn turned_away(error: &ConnectError) -> bool {
    error.client().is_some_and(|cause| cause.code() == Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION))
}

/// Finds out what kind of problem it is.
fn explain(host: &Host, error: tokio_postgres::Error) -> ConnectError {
    let problem = match error.code() {
        Some(code) => by_code(code),
        None => by_cause(&error),
    };
    ConnectError::new(problem, host, error)
}

fn by_code(code: &SqlState) -> ConnectProblem {
    match code.code().get(..2) {
        // Authorisation; no such database; no privilege to connect.
        Some("28" | "3D" | "42") => ConnectProblem::Refused,
        // The connection or its pooler; no more room for clients; starting up or shutting down.
        Some("08" | "53" | "57") => ConnectProblem::Unreachable,
        _ => ConnectProblem::Other,
    }
}

/// Whether a statement failed because the connection or the server went away, rather than because of what it says.
pub(crate) fn is_passing(error: &tokio_postgres::Error) -> bool {
    error.code().map_or(ConnectProblem::Unreachable, by_code) == ConnectProblem::Unreachable
}

fn by_cause(error: &tokio_postgres::Error) -> ConnectProblem {
    use std::error::Error;
    let text = error.to_string();
    // The server asks for a password and there is none, or the exchange of proofs failed.
    if text.starts_with("authentication error") || text.starts_with("invalid configuration") {
        return ConnectProblem::Refused;
    }
    match error.source().and_then(|cause| cause.downcast_ref::<std::io::Error>()) {
        // In the handshake, or after it: with TLS 1.3 a server refuses a client's certificate later.
        Some(io) if io.get_ref().is_some_and(<dyn Error + Send + Sync>::is::<rustls::Error>) => {
            ConnectProblem::Tls
        }
        // A socket that this user may not open; without a number it is the client that found the wrong kind of session.
        Some(io) if io.kind() == std::io::ErrorKind::PermissionDenied && io.raw_os_error().is_some() => {
            ConnectProblem::Refused
        }
        // A server that goes away in the middle of a handshake is not to be distrusted for it.
        Some(_) => ConnectProblem::Unreachable,
        None if in_handshake(error) => ConnectProblem::Tls,
        None if error.is_closed() => ConnectProblem::Unreachable,
        None => ConnectProblem::Other,
    }
}

/// All that is known about a problem, on one line.
fn words(error: &ConnectError) -> String {
    let causes = error.cause().into_iter().flat_map(mainspring_core::error::chain);
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
