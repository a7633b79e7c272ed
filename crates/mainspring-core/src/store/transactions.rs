//! Where a transaction step gets its transactions from: an application's own pool.

use std::cell::Cell;
use std::future::Future;

use crate::error::BoxError;
use crate::store::Enlist;
use crate::{Error, Result as CoreResult};

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

    /// Begins a transaction, which is rolled back if it is dropped. It is marked, so that
    /// [`enlist_recording`](Enlist::enlist_recording) notices if somebody has ended it since.
    ///
    /// # Errors
    /// What the database says.
    fn begin(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<Self::Transaction<'_>, BoxError>> + Send;
}

/// Why a commit was not acknowledged.
#[derive(Debug)]
pub enum Uncommitted {
    /// The database has refused it and rolled the transaction back.
    RolledBack(BoxError),
    /// The answer was lost: nobody knows whether it was committed.
    Unknown(BoxError),
}

/// A transaction that can be committed.
pub trait Commit<S>: Sized {
    /// Commits it.
    ///
    /// # Errors
    /// [`Uncommitted`].
    fn commit(self) -> impl Future<Output = Result<(), Uncommitted>> + Send;

    /// Whether an error of [`enlist_recording`](Enlist::enlist_recording) is the database's refusal of a statement:
    /// the transaction can only be rolled back, and nobody else has committed its record.
    fn is_refusal(error: &Error) -> bool;

    /// Rolls it back.
    fn roll_back(self) -> impl Future<Output = ()> + Send;
}

thread_local! {
    /// Whether this thread runs an application's code in the middle of a store's own transaction.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs an application's code inside a store's own transaction. A store with one writing thread cannot write anything
/// else before the code returns. The code must not unwind.
pub fn inside<T>(body: impl FnOnce() -> T) -> T {
    let before = INSIDE.replace(true);
    let answer = body();
    INSIDE.set(before);
    answer
}

/// Refuses a write from code that is [`inside`] a transaction, because it would wait for itself.
///
/// # Errors
/// [`Error::Invalid`].
pub fn check_outside() -> CoreResult<()> {
    if !INSIDE.get() {
        return Ok(());
    }
    let why = "its closure uses the engine, which cannot write before the closure returns; enqueue with \
               `within_sync`, or do it before or after the step";
    Err(Error::Invalid { what: "transaction", why: why.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_inside_of_a_transaction_is_known_until_the_outermost_returns() {
        assert!(check_outside().is_ok());
        let answer = inside(|| {
            assert!(check_outside().is_err());
            let inner = inside(|| check_outside().is_err());
            (inner, check_outside().is_err())
        });
        assert_eq!(answer, (true, true));
        assert!(check_outside().is_ok());
    }
}
