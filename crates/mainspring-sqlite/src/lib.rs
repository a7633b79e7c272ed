//! Mainspring's store on SQLite: one file, one writer thread, group commit.
//!
//! [`Sqlite`] implements [`Store`](mainspring_core::store::Store). All writes go to one thread that owns the only
//! writing connection: it takes every request that waits, runs them in one transaction, and answers after the commit
//! is on stable storage. Reads run on threads and connections of their own. Several processes may share the file.
//!
//! Jobs can be enqueued inside an application's own transaction on the same file, because
//! [`rusqlite::Transaction`] implements [`Enlist`](mainspring_core::store::Enlist); the crate re-exports the
//! [`rusqlite`] that it was built with.
//!
//! A step of a workflow can change an application's tables in the same file, together with its record: see [`transaction_step`].
//!
//! # Invariants
//! - A caller is answered only after the commit that holds its change; with [`Durability::Full`] that is an fsync.
//! - One request never fails because of its neighbours in a transaction, except by what befalls the database itself.
//! - After a failed write to stable storage nothing is acknowledged any more: the store is poisoned until reopened. The same
//!   when its file, or the log, was removed or replaced.
//! - A job is in exactly one place; numbers of jobs and outcomes are never reused.
//! - What finds nothing to do writes nothing.

mod enlist;
mod error;
mod file_identity;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod hint;
mod migrate;
mod names;
mod oneshot;
mod op;
mod open;
mod open_files;
mod options;
mod process_lock;
mod read;
mod store;
mod sync;
pub mod transaction_step;
mod turnstile;
mod writer;

pub use migrate::SCHEMA_VERSION;
pub use options::{Durability, Options};
pub use rusqlite;
pub use store::Sqlite;

#[cfg(all(test, feature = "shuttle"))]
mod interleavings;
#[cfg(test)]
mod tests;
