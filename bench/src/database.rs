//! Where the parts of a benchmark keep their jobs.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use mainspring::Engine;
use mainspring_postgres::tokio_postgres;
use mainspring_sqlite::rusqlite::{Connection, OpenFlags};
use mainspring_testkit::postgres;

/// Settings of a server that is not made for tests: memory for a million jobs, and room in the log between checkpoints.
const SETTINGS: [(&str, &str); 3] =
    [("shared_buffers", "1GB"), ("max_wal_size", "8GB"), ("checkpoint_timeout", "30min")];

/// Where databases are made.
pub(crate) enum Place {
    /// Files in a directory.
    Sqlite(PathBuf),
    /// Files in a directory that goes with it.
    Temporary(tempfile::TempDir),
    /// A server of our own.
    Postgres(postgres::Server),
}

impl Place {
    pub(crate) fn new(store: &str, dir: Option<&Path>) -> Result<Self> {
        if store == "postgres" {
            return Ok(Place::Postgres(postgres::Server::start(&settings())?));
        }
        if let Some(dir) = dir {
            return Ok(Place::Sqlite(dir.to_owned()));
        }
        Ok(Place::Temporary(tempfile::tempdir()?))
    }

    pub(crate) fn server(&self) -> Option<&postgres::Server> {
        match self {
            Place::Sqlite(_) | Place::Temporary(_) => None,
            Place::Postgres(server) => Some(server),
        }
    }

    pub(crate) fn database(&self, name: &str) -> Result<Database> {
        let dir = match self {
            Place::Sqlite(dir) => dir,
            Place::Temporary(dir) => dir.path(),
            Place::Postgres(server) => return Ok(Database::Postgres(server.database()?)),
        };
        Ok(Database::Sqlite(dir.join(format!("bench-{name}-{}.db", std::process::id()))))
    }
}

/// The options of a server that is measured.
pub(crate) fn settings() -> postgres::Options {
    SETTINGS
        .iter()
        .fold(postgres::Options::new().tcp(), |options, (name, value)| options.setting(name, value))
}

/// One database; dropping it removes it.
pub(crate) enum Database {
    Sqlite(PathBuf),
    Postgres(postgres::Database),
}

impl Database {
    pub(crate) async fn open(&self) -> Result<Engine> {
        Ok(Engine::options().migrate().open(&self.address()).await?)
    }

    /// As [`open`](Self::open), but what is acknowledged may be lost by a power cut.
    pub(crate) async fn open_relaxed(&self) -> Result<Engine> {
        let options = Engine::options().migrate().relaxed_durability();
        Ok(options.open(&self.address()).await?)
    }

    /// What other programs are given to find it.
    pub(crate) fn address(&self) -> String {
        match self {
            Database::Sqlite(path) => format!("sqlite:{}", path.display()),
            Database::Postgres(database) => database.url(),
        }
    }

    /// The one number that a statement gives.
    pub(crate) fn number(&self, sql: &str) -> Result<f64> {
        match self {
            Database::Sqlite(path) => {
                let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
                let value = connection.query_row(sql, [], |row| row.get::<_, i64>(0))?;
                Ok(value as f64)
            }
            Database::Postgres(database) => number(database, sql),
        }
    }

    /// Does what the server would do by itself sooner or later, so that it does not do it while something is measured.
    pub(crate) fn settle(&self) -> Result<()> {
        match self {
            Database::Sqlite(path) => {
                let connection = Connection::open(path)?;
                // It answers with a row.
                connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
            }
            Database::Postgres(database) => {
                database.sql("VACUUM (ANALYZE)")?;
                database.sql("CHECKPOINT")?;
            }
        }
        Ok(())
    }

    /// A second one with the same jobs, on Postgres.
    pub(crate) fn copy(&self) -> Result<Option<Database>> {
        match self {
            Database::Sqlite(_) => Ok(None),
            Database::Postgres(database) => Ok(Some(Database::Postgres(database.twin()?))),
        }
    }

    /// A session that holds a snapshot until it is dropped, so that nothing dead can be cleaned up.
    pub(crate) async fn hold(&self) -> Result<tokio_postgres::Client> {
        let (client, connection) = tokio_postgres::connect(&self.address(), tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class").await?;
        Ok(client)
    }

    /// Bytes of the database, with the log of SQLite.
    pub(crate) fn bytes(&self) -> Result<f64> {
        match self {
            Database::Sqlite(path) => {
                let size = |path: PathBuf| std::fs::metadata(path).map_or(0, |meta| meta.len());
                Ok((size(path.clone()) + size(with_suffix(path, "-wal"))) as f64)
            }
            Database::Postgres(database) => number(database, "SELECT pg_database_size(current_database())"),
        }
    }

    /// Commits that write, per second, on a database that nobody uses, as a bystander sees them.
    pub(crate) async fn writes(&self, watch: Duration) -> Result<f64> {
        match self {
            Database::Sqlite(path) => sqlite_writes(path, watch).await,
            Database::Postgres(database) => {
                // Whoever writes takes a transaction's number.
                let sql = "SELECT (pg_snapshot_xmax(pg_current_snapshot())::text)::bigint";
                let before = number(database, sql)?;
                tokio::time::sleep(watch).await;
                Ok((number(database, sql)? - before) / watch.as_secs_f64())
            }
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Database::Sqlite(path) = self {
            for suffix in ["", "-wal", "-shm"] {
                drop(std::fs::remove_file(with_suffix(path, suffix)));
            }
        }
    }
}

/// The one number that a statement gives.
pub(crate) fn number(database: &postgres::Database, sql: &str) -> Result<f64> {
    let rows = database.sql(sql)?;
    let text = rows.first().and_then(|row| row.first()?.clone()).context("no figure")?;
    Ok(text.parse()?)
}

async fn sqlite_writes(path: &Path, watch: Duration) -> Result<f64> {
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let version = || connection.query_row("PRAGMA data_version", [], |row| row.get::<_, i64>(0));
    let (began, mut last, mut commits) = (Instant::now(), version()?, 0_u32);
    while began.elapsed() < watch {
        tokio::time::sleep(Duration::from_millis(2)).await;
        let now = version()?;
        commits += u32::from(now != last);
        last = now;
    }
    Ok(f64::from(commits) / watch.as_secs_f64())
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
