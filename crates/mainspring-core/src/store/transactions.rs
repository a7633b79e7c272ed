//! Where a transaction step gets its transactions from: an application's own pool.

use std::future::Future;

use crate::error::BoxError;
use crate::store::Enlist;

/// An application's pool of connections, on which a step can begin a transaction of its own.
///
/// Implemented by each store crate for the pools of its own database clients; `S` is that crate's store, as in
/// [`Enlist`].
pub trait Transactions<S>: Send + Sync + 'static {
    /// A connection of the pool.
    type Connection: Send;
    /// A transaction on it.
    type Transaction<'c>: Enlist<S> + Commit<S> + Send;

    /// Takes a connection.
    ///
    /// # Errors
    /// What the pool says.
    fn connect(&self) -> impl Future<Output = Result<Self::Connection, BoxError>> + Send;

    /// Begins a transaction, which is rolled back if it is dropped.
    ///
    /// # Errors
    /// What the database says.
    fn begin(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<Self::Transaction<'_>, BoxError>> + Send;
}

/// A transaction that can be committed.
pub trait Commit<S>: Sized {
    /// Commits it.
    ///
    /// # Errors
    /// What the database says; then nobody knows whether it was committed.
    fn commit(self) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Rolls it back.
    fn roll_back(self) -> impl Future<Output = ()> + Send;
}
