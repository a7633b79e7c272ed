//! A PostgreSQL that lives as long as a test: no daemon, no fixed port, nothing left behind.
//!
//! [`Server::start`] makes a data directory under `/tmp`, runs the server on it and takes both away when the last handle
//! is dropped. [`Server::shared`] is the server of the whole test run: the one that `cargo xtask test` started, or, with
//! a bare `cargo test`, one of this process. [`Server::database`] and [`Template::database`] give each test a database of
//! its own. [`Bouncer`] and [`Proxy`] stand between a client and the server. [`Server::standby`] makes a second one that
//! follows the first, and takes its place.
//!
//! Nothing here needs an async runtime, and everything works inside of one.
//!
//! ```no_run
//! use mainspring_testkit::postgres::{Options, Server, Stop};
//!
//! # fn main() -> Result<(), mainspring_testkit::postgres::Error> {
//! // A database of the run's server, with a schema that is made once and copied for each test.
//! let server = Server::shared()?;
//! let template = server.template("orders_v1", |url| {
//!     // Runs once per server, on a thread of its own: connect to `url` and migrate it.
//!     # let _ = url;
//!     Ok::<(), std::io::Error>(())
//! })?;
//! let database = template.database()?;
//! assert!(database.url().starts_with("postgresql://"));
//!
//! // A server of the test's own, to be stopped and started again.
//! let server = Server::start(&Options::new().tcp().setting("wal_level", "logical"))?;
//! server.stop(Stop::Immediate)?;
//! server.start_again()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Invariants
//! - What is started here ends with its handle, after a panic too. If the process dies without dropping it, a watchdog
//!   ends it: a shell that waits for the end of a pipe which only this process holds.
//! - No handle waits for ever: whatever does not end in time is killed.
//! - A server runs with `fsync` and `synchronous_commit` on, unless a test says otherwise: what it tests is durable.

mod bouncer;
mod busy_sessions;
mod client;
mod crashes;
mod damage;
mod database;
mod endpoint;
mod error;
mod guarded_directory;
mod options;
mod programs;
mod proxy;
mod server;
mod standby;
mod user;
mod wait;

pub use bouncer::Bouncer;
pub use busy_sessions::{AllSessions, IdleTransaction};
pub use database::{Database, Template};
pub use error::{Error, Result};
pub use options::Options;
pub use programs::{BIN_VARIABLE, OLDEST, available};
pub use proxy::{Counts, Cut, Proxy};
pub use rustix::process::Signal;
pub use server::{SERVER_VARIABLE, Server, Stop};
