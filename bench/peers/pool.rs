//! The database of a queue program, through the version of sqlx that its queue uses.

use std::str::FromStr as _;
use std::time::Duration;

use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};

use crate::queue::Result;

/// Connections to either database.
pub(crate) enum Pool {
    Postgres(PgPool),
    Sqlite(SqlitePool),
}

impl Pool {
    /// Connects to Postgres as a new user would: a pool of ten, unless a number is given.
    pub(crate) async fn postgres(address: &str, connections: Option<u32>) -> Result<PgPool> {
        let options = PgPoolOptions::new();
        let options = connections
            .map_or(options.clone(), |count| options.max_connections(count).min_connections(count));
        Ok(options.connect(address).await?)
    }

    /// Opens a file with a log, and acknowledges nothing that a power cut could take.
    pub(crate) async fn sqlite(address: &str, connections: u32) -> Result<SqlitePool> {
        let options = SqliteConnectOptions::from_str(address)?
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(Duration::from_secs(60));
        Ok(SqlitePoolOptions::new().max_connections(connections).connect_with(options).await?)
    }

    /// The one number that a statement gives.
    pub(crate) async fn number(&self, statement: &'static str) -> Result<usize> {
        let value: i64 = match self {
            Pool::Postgres(pool) => sqlx::query_scalar(statement).fetch_one(pool).await?,
            Pool::Sqlite(pool) => sqlx::query_scalar(statement).fetch_one(pool).await?,
        };
        Ok(usize::try_from(value)?)
    }
}
