//! What a commit costs at all on this machine, without Mainspring: an append to a file that is forced to disk, one row in a
//! transaction of its own, and many rows in one transaction.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use mainspring_postgres::tokio_postgres::{self, NoTls};
use mainspring_sqlite::rusqlite;
use mainspring_testkit::postgres;
use tokio::sync::oneshot;

use crate::database::{Database, Place};
use crate::report::{Report, percentile};

/// What a commit costs without us; the middle of the latencies of one.
pub(crate) async fn run(place: &Place, report: &Report) -> Result<Duration> {
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
            report.latencies("raw: to a thread and back", &mut hops(COMMITS).await?);
        }
        Database::Postgres(database) => {
            let client = connect(database).await?;
            client.batch_execute(TABLE).await?;
            let insert = client.prepare("INSERT INTO raw VALUES ($1, $2, $3)").await?;
            for n in 0..COMMITS {
                let began = Instant::now();
                client.execute(&insert, &[&0_i64, &n.to_string(), &vec![b'x'; 200]]).await?;
                latencies.push(began.elapsed());
            }
            report.latencies("raw: one row inserted and committed", &mut latencies);
        }
    }
    for rows in [64, 256, 1_000] {
        let rate = match &database {
            Database::Sqlite(path) => raw_sqlite(&path.with_extension("raw"), rows)?,
            Database::Postgres(database) => raw_postgres(database, rows).await?,
        };
        report.figure_of("raw", &format!("{rows} rows per commit"), rate, "rows/s");
    }
    Ok(percentile(&mut latencies, 0.5))
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
    let insert =
        client.prepare("INSERT INTO raw SELECT * FROM unnest($1::bigint[], $2::text[], $3::bytea[])").await?;
    let jobs: Vec<i64> = (0..i64::try_from(rows)?).collect();
    let values = vec![vec![b'x'; 200]; rows];
    let began = Instant::now();
    for n in 0..ROWS / rows {
        let keys = vec![n.to_string(); rows];
        client.execute(&insert, &[&jobs, &keys, &values]).await?;
    }
    Ok((ROWS / rows * rows) as f64 / began.elapsed().as_secs_f64())
}

/// One row at a time.
fn single_sqlite(path: &Path, commits: usize) -> Result<Vec<Duration>> {
    let path = path.with_extension("single");
    let conn = raw_table(&path)?;
    let mut latencies = Vec::with_capacity(commits);
    {
        let mut insert = conn.prepare(RAW_INSERT)?;
        for n in 0..commits {
            let began = Instant::now();
            insert.execute((0, n.to_string(), [b'x'; 200].as_slice()))?;
            latencies.push(began.elapsed());
        }
    }
    drop(conn);
    remove(&path);
    Ok(latencies)
}

/// How long it takes a task to hand something to a sleeping thread, and to have its answer.
async fn hops(times: usize) -> Result<Vec<Duration>> {
    let (ask, asked) = std::sync::mpsc::channel::<oneshot::Sender<()>>();
    let thread = std::thread::spawn(move || {
        for answer in asked {
            // Whoever asked waits for it.
            let _ = answer.send(());
        }
    });
    let asking = tokio::spawn(async move {
        let mut latencies = Vec::with_capacity(times);
        for _ in 0..times {
            let (answer, answered) = oneshot::channel();
            let began = Instant::now();
            ask.send(answer)?;
            answered.await?;
            latencies.push(began.elapsed());
        }
        anyhow::Ok(latencies)
    });
    let latencies = asking.await??;
    ensure!(thread.join().is_ok(), "the thread has panicked");
    Ok(latencies)
}

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
            let key = n.to_string();
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
