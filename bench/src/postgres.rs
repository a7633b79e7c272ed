//! What only Postgres is measured for: the ceiling of plain SQL, a snapshot that somebody holds, cost per job and when idle.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use mainspring::{Context, Engine};
use mainspring_postgres::tokio_postgres::types::Type;
use mainspring_postgres::tokio_postgres::{Client, NoTls};
use mainspring_testkit::postgres::{Database, Server};

use crate::database::{number, settings};
use crate::queue::{Noop, Options, drain, fill, stop};
use crate::report::Report;

pub(crate) async fn run(server: &Server, options: &Options, report: &Report) -> Result<()> {
    ceiling(server, options, report).await?;
    held_snapshot(server, options, report).await?;
    cost(options, report).await
}

/// Tables as bare as they can be and still be a queue: jobs that are never updated, and narrow places.
const TABLES: &str = "
    CREATE TABLE jobs (no bigint PRIMARY KEY, kind int, created_at timestamptz, input bytea);
    CREATE TABLE ready (no bigint PRIMARY KEY, line int, level smallint, ready_at timestamptz, claim int);
    CREATE INDEX ready_claim ON ready (line, level, ready_at, no);
    CREATE TABLE lease (no bigint PRIMARY KEY, claim int, node int, line int);
    CREATE TABLE done (no bigint PRIMARY KEY, claim int, state smallint, finished_at timestamptz, result bytea);";
const CLAIM: &str = "WITH d AS (DELETE FROM ready WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM ready WHERE line = 1 AND level = 1 AND (ready_at, no) > (timestamptz 'epoch', $1)
        ORDER BY ready_at, no LIMIT $2 FOR UPDATE SKIP LOCKED)) RETURNING no, claim + 1 AS claim, line)
    , l AS (INSERT INTO lease (no, claim, node, line) SELECT no, claim, 1, line FROM d)
    SELECT d.no, d.claim, j.input FROM d CROSS JOIN LATERAL (SELECT input FROM jobs WHERE no = d.no OFFSET 0) j";
const FINISH: &str = "WITH d AS (DELETE FROM lease l USING unnest($1::bigint[], $2::int[]) AS f(no, claim)
        WHERE l.no = f.no AND l.claim = f.claim AND l.node = 1 RETURNING l.no, l.claim)
    , i AS (INSERT INTO done (no, claim, state, finished_at) SELECT no, claim, 5, now() FROM d) SELECT count(*) FROM d";
const PINNED: &str =
    "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_hashjoin = off;
    SET enable_mergejoin = off; SET enable_bitmapscan = off; SET jit = off";

async fn connect(database: &Database) -> Result<Client> {
    let (client, connection) = mainspring_postgres::tokio_postgres::connect(&database.url(), NoTls).await?;
    tokio::spawn(connection);
    client.batch_execute(PINNED).await?;
    Ok(client)
}

/// The same work in plain SQL, with nothing around it: no fence, no counts, no keys, nobody to tell.
async fn ceiling(server: &Server, options: &Options, report: &Report) -> Result<()> {
    for batch in [1_000, 100] {
        let database = server.database()?;
        let client = connect(&database).await?;
        client.batch_execute(TABLES).await?;
        let fill = format!(
            "INSERT INTO jobs SELECT n, 1, now(), convert_to(repeat('x', 100), 'UTF8') FROM generate_series(1, {0}) n;
            INSERT INTO ready SELECT n, 1, 1, timestamptz 'epoch', 0 FROM generate_series(1, {0}) n;",
            options.jobs
        );
        client.batch_execute(&fill).await?;
        client.batch_execute("VACUUM ANALYZE").await?;
        let began = Instant::now();
        let workers = [1, 2, 3, 4].map(|_| work_off(&database, batch));
        let mut done = 0;
        for worker in futures_util::future::join_all(workers).await {
            done += worker?;
        }
        let rate = done as f64 / began.elapsed().as_secs_f64();
        report.figure_of("plain SQL", &format!("drain, 4 connections, batches of {batch}"), rate, "jobs/s");
    }
    Ok(())
}

async fn work_off(database: &Database, batch: i64) -> Result<usize> {
    let client = connect(database).await?;
    let claim = client.prepare_typed(CLAIM, &[Type::INT8, Type::INT8]).await?;
    let finish = client.prepare_typed(FINISH, &[Type::INT8_ARRAY, Type::INT4_ARRAY]).await?;
    let (mut bound, mut done) = (0_i64, 0);
    loop {
        let rows = client.query(&claim, &[&bound, &batch]).await?;
        if rows.is_empty() {
            return Ok(done);
        }
        let nos: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        let claims: Vec<i32> = rows.iter().map(|row| row.get(1)).collect();
        bound = nos.iter().copied().max().unwrap_or(bound);
        client.query(&finish, &[&nos, &claims]).await?;
        done += nos.len();
    }
}

/// A drain while another session holds an old snapshot, so that nothing dead can be cleaned up.
async fn held_snapshot(server: &Server, options: &Options, report: &Report) -> Result<()> {
    let mut rates = Vec::new();
    for held in [false, true] {
        let database = server.database()?;
        let engine = Engine::options().migrate().open(&database.url()).await?;
        fill(&engine, options.jobs).await?;
        let holder = connect(&database).await?;
        if held {
            holder
                .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM mainspring.meta")
                .await?;
        }
        let (rate, points) = drain(&engine, options).await?;
        let name = if held { "drain under a held snapshot" } else { "drain, again" };
        report.figure(name, rate, "jobs/s");
        for (at, point) in points.iter().enumerate().filter(|_| held) {
            report.figure(&format!("{name}, fifth {} of 5", at + 1), *point, "jobs/s");
        }
        rates.push(rate);
        engine.close().await;
    }
    report.figure(
        "drain under a held snapshot, share of the drain without",
        100.0 * rates[1] / rates[0],
        "%",
    );
    Ok(())
}

/// Jobs whose cost is counted.
const COUNTED: usize = 100_000;

/// Bytes of log and statements per job, on a server that counts them.
async fn cost(options: &Options, report: &Report) -> Result<()> {
    let server = Server::start(&settings().setting("shared_preload_libraries", "pg_stat_statements"))?;
    let database = server.database()?;
    database.sql("CREATE EXTENSION pg_stat_statements")?;
    let engine = Engine::options().migrate().open(&database.url()).await?;
    let wal = || number(&database, "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn");
    let calls = || number(&database, "SELECT coalesce(sum(calls), 0) FROM pg_stat_statements");
    let jobs = COUNTED as f64;
    let (bytes, statements) = (wal()?, calls()?);
    fill(&engine, COUNTED).await?;
    let (filled_bytes, filled) = (wal()?, calls()?);
    report.figure("bytes of log per job, bulk enqueue", (filled_bytes - bytes) / jobs, "bytes");
    report.figure("statements per job, bulk enqueue", (filled - statements) / jobs, "statements");
    let mut counted = options.clone();
    counted.jobs = COUNTED;
    drain(&engine, &counted).await?;
    report.figure("bytes of log per job, drain", (wal()? - filled_bytes) / jobs, "bytes");
    report.figure("statements per job, drain", (calls()? - filled) / jobs, "statements");
    let node = idle_node(&engine).await?;
    tokio::time::sleep(WARM).await;
    // All that an idle node asks is asked in transactions of several statements, each sent at once: one round trip.
    let sql = "SELECT coalesce(sum(calls), 0) FROM pg_stat_statements WHERE query = 'COMMIT'";
    let (before, trips) = (calls()?, number(&database, sql)?);
    tokio::time::sleep(WATCH).await;
    let trips = number(&database, sql)? - trips;
    report.figure("idle: round trips per second", trips / WATCH.as_secs_f64(), "1/s");
    // The counts themselves are three of them.
    let statements = calls()? - before - 3.0;
    report.figure("idle: statements per second", statements / WATCH.as_secs_f64(), "statements/s");
    stop(node, engine).await;
    Ok(())
}

/// What a node does once, when it starts, is not idle.
const WARM: Duration = Duration::from_secs(3);
/// How long an idle node is watched.
const WATCH: Duration = Duration::from_secs(30);

async fn idle_node(engine: &Engine) -> Result<mainspring::Node> {
    let done = Arc::new(AtomicUsize::new(0));
    let node = engine
        .node()
        .handle(|_: Context, _: Noop| async { mainspring::HandlerResult::Ok(()) })
        .queue("default", 10)
        .on_outcome(move |_, _| {
            done.fetch_add(1, Ordering::Relaxed);
        })
        .start()
        .await
        .context("a node")?;
    Ok(node)
}
