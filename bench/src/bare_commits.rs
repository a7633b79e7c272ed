//! What a commit costs at all on this machine, without Mainspring: an append to a file that is forced to disk, one row in a
//! transaction of its own, many rows in one transaction, and the rows of many callers who each wait for theirs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use mainspring_postgres::tokio_postgres::{self, NoTls};
use mainspring_sqlite::rusqlite;
use mainspring_testkit::postgres;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::database::{Database, Place};
use crate::report::{Report, percentile};

/// What commits cost without us.
pub(crate) struct Raw {
    /// The middle of the latencies of one row by itself.
    pub(crate) commit: Duration,
    /// Rows per second of so many callers, each of whom waits for his row.
    pub(crate) callers: BTreeMap<usize, f64>,
}

/// Measures what commits cost without us.
pub(crate) async fn run(place: &Place, report: &Report) -> Result<Raw> {
    const COMMITS: usize = 1_000;
    let mut latencies = Vec::new();
    let database = place.database("raw")?;
    match &database {
        Database::Sqlite(path) => {
            let mut file = File::create(path.with_extension("append"))?;
            for _ in 0..COMMITS {
                let began = Instant::now();
                file.write_all(&[b'x'; 200])?;
                file.sync_data()?;
                latencies.push(began.elapsed());
            }
            std::fs::remove_file(path.with_extension("append"))?;
            report.latencies("raw: append and fdatasync", &mut latencies);
            // What a store on SQLite cannot do without: its commit, and a thread of its own to wait for the disk.
            report.latencies("raw: one row committed by SQLite", &mut single_sqlite(path, COMMITS)?);
            let mut latencies = threaded_sqlite(path, COMMITS).await?;
            report.latencies("raw: the same on a thread, for a task that waits", &mut latencies);
        }
        Database::Postgres(database) => {
            let client = connect(database).await?;
            client.batch_execute(TABLE).await?;
            let insert = client.prepare("INSERT INTO raw VALUES ($1, $2, $3)").await?;
            for n in 0..COMMITS {
                let began = Instant::now();
                client.execute(&insert, &[&0_i64, &key(n), &vec![b'x'; 200]]).await?;
                latencies.push(began.elapsed());
            }
            report.latencies("raw: one row inserted and committed", &mut latencies);
        }
    }
    let mut callers = BTreeMap::new();
    for rows in [64, 256, 1_000] {
        let rate = match &database {
            Database::Sqlite(path) => raw_sqlite(&path.with_extension("raw"), rows)?,
            Database::Postgres(database) => raw_postgres(database, rows).await?,
        };
        report.figure_of("raw", &format!("{rows} rows per commit"), rate, "rows/s");
        let rate = match &database {
            Database::Sqlite(path) => call_sqlite(&path.with_extension("called"), rows).await?,
            Database::Postgres(database) => call_postgres(database, rows).await?,
        };
        report.figure_of("raw", &format!("{rows} callers, a row each"), rate, "rows/s");
        callers.insert(rows, rate);
    }
    Ok(Raw { commit: percentile(&mut latencies, 0.5), callers })
}

/// A row that a caller waits for.
struct Called {
    job: i64,
    key: String,
    value: Vec<u8>,
    stored: oneshot::Sender<()>,
}

/// Callers that store one row after the other until there are [`ROWS`].
async fn call(callers: usize, ask: mpsc::UnboundedSender<Called>) -> Result<f64> {
    let began = Instant::now();
    let mut calling = JoinSet::new();
    for job in 0..i64::try_from(callers)? {
        let ask = ask.clone();
        calling.spawn(async move {
            for n in 0..ROWS / callers {
                let (stored, answer) = oneshot::channel();
                ask.send(Called { job, key: key(n), value: vec![b'x'; 200], stored })?;
                answer.await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = calling.join_next().await {
        ended??;
    }
    Ok((ROWS / callers * callers) as f64 / began.elapsed().as_secs_f64())
}

/// All that is there: what comes while a batch is stored is the next one.
fn gather(first: Called, asked: &mut mpsc::UnboundedReceiver<Called>) -> Vec<Called> {
    let mut batch = vec![first];
    batch.extend(std::iter::from_fn(|| asked.try_recv().ok()));
    batch
}

/// Tells all who wait for a row of this batch.
fn tell(batch: Vec<Called>) -> Result<()> {
    for called in batch {
        called.stored.send(()).map_err(|()| anyhow!("a caller has gone"))?;
    }
    Ok(())
}

/// One connection stores what callers ask for.
async fn call_postgres(database: &postgres::Database, callers: usize) -> Result<f64> {
    let client = connect(database).await?;
    client.batch_execute("TRUNCATE raw").await?;
    let insert = client.prepare(RAW_INSERT_MANY).await?;
    let (ask, mut asked) = mpsc::unbounded_channel::<Called>();
    let storing = tokio::spawn(async move {
        while let Some(first) = asked.recv().await {
            let batch = gather(first, &mut asked);
            let jobs: Vec<i64> = batch.iter().map(|called| called.job).collect();
            let keys: Vec<&str> = batch.iter().map(|called| called.key.as_str()).collect();
            let values: Vec<&[u8]> = batch.iter().map(|called| called.value.as_slice()).collect();
            client.execute(&insert, &[&jobs, &keys, &values]).await?;
            tell(batch)?;
        }
        anyhow::Ok(())
    });
    let rate = call(callers, ask).await?;
    storing.await??;
    Ok(rate)
}

/// One thread stores what callers ask for.
async fn call_sqlite(path: &Path, callers: usize) -> Result<f64> {
    let mut conn = raw_table(path)?;
    let (ask, mut asked) = mpsc::unbounded_channel::<Called>();
    let storing = std::thread::spawn(move || {
        while let Some(first) = asked.blocking_recv() {
            let batch = gather(first, &mut asked);
            let transaction = conn.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
            {
                let mut insert = transaction.prepare_cached(RAW_INSERT)?;
                for called in &batch {
                    insert.execute((called.job, &called.key, called.value.as_slice()))?;
                }
            }
            transaction.commit()?;
            tell(batch)?;
        }
        anyhow::Ok(())
    });
    let rate = call(callers, ask).await?;
    storing.join().map_err(|_| anyhow!("the thread has panicked"))??;
    remove(path);
    Ok(rate)
}

/// The key of a row: what the steps of the benchmark are called.
fn key(n: usize) -> String {
    format!("step#{n}")
}

/// Rows of each measurement in batches.
const ROWS: usize = 100_000;

const TABLE: &str =
    "CREATE TABLE raw (job bigint, key text COLLATE \"C\", value bytea, PRIMARY KEY (job, key))";

async fn connect(database: &postgres::Database) -> Result<tokio_postgres::Client> {
    let (client, connection) = tokio_postgres::connect(&database.url(), NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn raw_postgres(database: &postgres::Database, rows: usize) -> Result<f64> {
    let client = connect(database).await?;
    client.batch_execute("TRUNCATE raw").await?;
    let insert = client.prepare(RAW_INSERT_MANY).await?;
    let jobs: Vec<i64> = (0..i64::try_from(rows)?).collect();
    let values = vec![vec![b'x'; 200]; rows];
    let began = Instant::now();
    for n in 0..ROWS / rows {
        let keys = vec![key(n); rows];
        client.execute(&insert, &[&jobs, &keys, &values]).await?;
    }
    Ok((ROWS / rows * rows) as f64 / began.elapsed().as_secs_f64())
}

/// One row at a time.
fn single_sqlite(path: &Path, commits: usize) -> Result<Vec<Duration>> {
    let path = path.with_extension("single");
    let conn = raw_table(&path)?;
    let mut latencies = Vec::with_capacity(commits);
    for n in 0..commits {
        let began = Instant::now();
        insert(&conn, n)?;
        latencies.push(began.elapsed());
    }
    drop(conn);
    remove(&path);
    Ok(latencies)
}

/// The same by a thread that sleeps until a task asks it to; the task waits for its answer.
async fn threaded_sqlite(path: &Path, commits: usize) -> Result<Vec<Duration>> {
    let path = path.with_extension("threaded");
    let conn = raw_table(&path)?;
    let (ask, asked) = std::sync::mpsc::channel::<(usize, oneshot::Sender<()>)>();
    let storing = std::thread::spawn(move || {
        for (n, stored) in asked {
            insert(&conn, n)?;
            stored.send(()).map_err(|()| anyhow!("the caller has gone"))?;
        }
        anyhow::Ok(())
    });
    let asking = tokio::spawn(async move {
        let mut latencies = Vec::with_capacity(commits);
        for n in 0..commits {
            let (stored, answer) = oneshot::channel();
            let began = Instant::now();
            ask.send((n, stored))?;
            answer.await?;
            latencies.push(began.elapsed());
        }
        anyhow::Ok(latencies)
    });
    let latencies = asking.await??;
    storing.join().map_err(|_| anyhow!("the thread has panicked"))??;
    remove(&path);
    Ok(latencies)
}

/// A row in a transaction of its own.
fn insert(conn: &rusqlite::Connection, n: usize) -> Result<()> {
    conn.prepare_cached(RAW_INSERT)?.execute((0, key(n), [b'x'; 200].as_slice()))?;
    Ok(())
}

const RAW_INSERT_MANY: &str = "INSERT INTO raw SELECT * FROM unnest($1::bigint[], $2::text[], $3::bytea[])";
const RAW_INSERT: &str = "INSERT INTO raw (job, key, value) VALUES (?1, ?2, ?3)";

fn raw_table(path: &Path) -> Result<rusqlite::Connection> {
    let conn = rusqlite::Connection::open(path)?;
    conn.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
        CREATE TABLE raw (seq INTEGER PRIMARY KEY, job INTEGER, key TEXT, value BLOB);
        CREATE UNIQUE INDEX raw_key ON raw (job, key);",
    )?;
    Ok(conn)
}

/// Removes a SQLite file and what belongs to it.
fn remove(path: &Path) {
    for suffix in ["", "-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        drop(std::fs::remove_file(PathBuf::from(name)));
    }
}

fn raw_sqlite(path: &Path, rows: usize) -> Result<f64> {
    let mut conn = raw_table(path)?;
    let began = Instant::now();
    for n in 0..ROWS / rows {
        let transaction = conn.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        {
            let mut insert = transaction.prepare_cached(RAW_INSERT)?;
            let key = key(n);
            for job in 0..i64::try_from(rows)? {
                insert.execute((job, &key, [b'x'; 200].as_slice()))?;
            }
        }
        transaction.commit()?;
    }
    let rate = (ROWS / rows * rows) as f64 / began.elapsed().as_secs_f64();
    drop(conn);
    remove(path);
    Ok(rate)
}
