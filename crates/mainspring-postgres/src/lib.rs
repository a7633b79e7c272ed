//! Mainspring's store on PostgreSQL: any number of nodes on any number of machines share one set of queues.
//!
//! [`Postgres`] implements [`Store`](mainspring_core::store::Store). Its tables live in a schema of their own. Each kind of
//! work has a connection of its own, driven by a thread of the store; every call is one transaction and, on the paths that
//! matter, one round trip.
//!
//! Jobs can be enqueued inside an application's own transaction on the same database, because
//! [`tokio_postgres::Transaction`] implements [`Enlist`](mainspring_core::store::Enlist); so do the transactions of
//! deadpool-postgres (feature `deadpool`) and of sqlx (feature `sqlx`).
//!
//! # Invariants
//! - A caller is answered only after the commit that holds its change; with [`Durability::Full`] that is on stable storage.
//! - Nothing is claimed for a node, and nothing taken from it, but under its lock.
//! - A job is in exactly one place; numbers of jobs are never reused.
//! - What finds nothing to do writes nothing.
//! - No row is updated by every call: places are appended to and deleted from, counts are appended and folded.

mod address;
mod connect;
mod connection;
mod enlist;
mod error;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod hint;
mod idle_poll;
mod limits;
mod listen;
mod migrate;
mod names;
mod op;
mod options;
mod read;
mod scan_bounds;
mod shared;
mod sql;
mod store;
mod tls;

pub use address::Address;
#[cfg(feature = "deadpool")]
pub use deadpool_postgres;
pub use migrate::{SCHEMA_VERSION, script};
#[doc(hidden)]
pub use options::StatementGate;
pub use options::{Durability, Options, Time};
pub use sql::registry::{StatementText, statements};
pub use store::Postgres;
pub use tokio_postgres;
