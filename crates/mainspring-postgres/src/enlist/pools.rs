//! Pools of applications, on which transaction steps begin their transactions.

use std::sync::Arc;

use mainspring_core::Error;
use mainspring_core::error::BoxError;
use mainspring_core::store::{Commit, Transactions, Uncommitted};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio_postgres::{Client, Transaction};

use crate::Postgres;
use crate::error;

use super::MARK;

/// Marks a transaction that was just begun, at no cost: the statement is sent ahead of the first one of the body, and its
/// answer is not waited for. If it fails, so does everything that follows in the transaction.
async fn mark(transaction: &Transaction<'_>) {
    let mut sent = std::pin::pin!(transaction.batch_execute(MARK));
    std::future::poll_fn(|context| {
        drop(sent.as_mut().poll(context));
        std::task::Poll::Ready(())
    })
    .await;
}

fn uncommitted(error: tokio_postgres::Error) -> Uncommitted {
    let refused = error::answered(&error) && error.code().is_some_and(|code| !error::is_loss(code.code()));
    if refused { Uncommitted::RolledBack(error.into()) } else { Uncommitted::Unknown(error.into()) }
}

/// One client of tokio-postgres, shared: its transactions take turns.
impl Transactions<Postgres> for Arc<Mutex<Client>> {
    type Connection = OwnedMutexGuard<Client>;
    type Transaction<'c> = Transaction<'c>;

    async fn connect(&self) -> Result<Self::Connection, BoxError> {
        Ok(Arc::clone(self).lock_owned().await)
    }

    async fn begin(connection: &mut Self::Connection) -> Result<Transaction<'_>, BoxError> {
        let transaction = connection.transaction().await?;
        mark(&transaction).await;
        Ok(transaction)
    }
}

impl Commit<Postgres> for Transaction<'_> {
    async fn commit(self) -> Result<(), Uncommitted> {
        Transaction::commit(self).await.map_err(uncommitted)
    }

    fn is_refusal(error: &Error) -> bool {
        error::is_refusal(error)
    }

    async fn roll_back(self) {
        // Dropping it does the same, later; a lost connection has done it already.
        drop(self.rollback().await);
    }
}

#[cfg(feature = "deadpool")]
impl Transactions<Postgres> for deadpool_postgres::Pool {
    type Connection = deadpool_postgres::Client;
    type Transaction<'c> = deadpool_postgres::Transaction<'c>;

    async fn connect(&self) -> Result<Self::Connection, BoxError> {
        Ok(self.get().await?)
    }

    async fn begin(
        connection: &mut Self::Connection,
    ) -> Result<deadpool_postgres::Transaction<'_>, BoxError> {
        let transaction = connection.transaction().await?;
        mark(&transaction).await;
        Ok(transaction)
    }
}

#[cfg(feature = "deadpool")]
impl Commit<Postgres> for deadpool_postgres::Transaction<'_> {
    async fn commit(self) -> Result<(), Uncommitted> {
        deadpool_postgres::Transaction::commit(self).await.map_err(uncommitted)
    }

    fn is_refusal(error: &Error) -> bool {
        error::is_refusal(error)
    }

    async fn roll_back(self) {
        drop(self.rollback().await);
    }
}

#[cfg(feature = "sqlx")]
impl Transactions<Postgres> for sqlx::PgPool {
    type Connection = sqlx::pool::PoolConnection<sqlx::Postgres>;
    type Transaction<'c> = sqlx::Transaction<'c, sqlx::Postgres>;

    async fn connect(&self) -> Result<Self::Connection, BoxError> {
        Ok(self.acquire().await?)
    }

    async fn begin(
        connection: &mut Self::Connection,
    ) -> Result<sqlx::Transaction<'_, sqlx::Postgres>, BoxError> {
        Ok(sqlx::Connection::begin_with(&mut **connection, concat!("BEGIN; ", super::mark!())).await?)
    }
}

#[cfg(feature = "sqlx")]
impl Commit<Postgres> for sqlx::Transaction<'_, sqlx::Postgres> {
    async fn commit(self) -> Result<(), Uncommitted> {
        use sqlx::postgres::{PgDatabaseError, PgSeverity};
        sqlx::Transaction::commit(self).await.map_err(|error| {
            let answer = error.as_database_error().and_then(|db| db.try_downcast_ref::<PgDatabaseError>());
            let refused = answer.is_some_and(|db| {
                !matches!(db.severity(), PgSeverity::Fatal | PgSeverity::Panic) && !error::is_loss(db.code())
            });
            if refused { Uncommitted::RolledBack(error.into()) } else { Uncommitted::Unknown(error.into()) }
        })
    }

    fn is_refusal(error: &Error) -> bool {
        error::is_refusal(error)
    }

    async fn roll_back(self) {
        drop(self.rollback().await);
    }
}
