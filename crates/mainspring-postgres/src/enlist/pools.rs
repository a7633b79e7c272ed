//! Pools of applications, on which transaction steps begin their transactions.

use std::sync::Arc;

use mainspring_core::error::BoxError;
use mainspring_core::store::{Commit, Transactions};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio_postgres::{Client, Transaction};

use crate::Postgres;

/// One client of tokio-postgres, shared: its transactions take turns.
impl Transactions<Postgres> for Arc<Mutex<Client>> {
    type Connection = OwnedMutexGuard<Client>;
    type Transaction<'c> = Transaction<'c>;

    async fn connect(&self) -> Result<Self::Connection, BoxError> {
        Ok(Arc::clone(self).lock_owned().await)
    }

    async fn begin(connection: &mut Self::Connection) -> Result<Transaction<'_>, BoxError> {
        Ok(connection.transaction().await?)
    }
}

impl Commit<Postgres> for Transaction<'_> {
    async fn commit(self) -> Result<(), BoxError> {
        Ok(Transaction::commit(self).await?)
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
        Ok(connection.transaction().await?)
    }
}

#[cfg(feature = "deadpool")]
impl Commit<Postgres> for deadpool_postgres::Transaction<'_> {
    async fn commit(self) -> Result<(), BoxError> {
        Ok(deadpool_postgres::Transaction::commit(self).await?)
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
        Ok(sqlx::Acquire::begin(connection).await?)
    }
}

#[cfg(feature = "sqlx")]
impl Commit<Postgres> for sqlx::Transaction<'_, sqlx::Postgres> {
    async fn commit(self) -> Result<(), BoxError> {
        Ok(sqlx::Transaction::commit(self).await?)
    }

    async fn roll_back(self) {
        drop(self.rollback().await);
    }
}
