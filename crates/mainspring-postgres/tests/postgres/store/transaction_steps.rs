//! Transaction steps on an application's own pool: its rows and the record of the step are one commit. So they are behind a pooler.

use std::sync::Arc;

use mainspring::tokio_postgres::{self, NoTls};
use mainspring::{Context, Engine, Error, Job};
use mainspring_core::journal::EntryKind;
use mainspring_testkit::patience::PATIENCE;
use mainspring_testkit::postgres::{Bouncer, Database};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use super::pooler::bouncer;
use crate::support::{database, with};

#[derive(Debug, Serialize, Deserialize, Job)]
#[job(kind = "order", result = i64, max_attempts = 4, backoff = "fixed:1ms")]
struct Order {
    id: i64,
    pool: Pool,
    fails: Fails,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
enum Pool {
    Client,
    Deadpool,
    Sqlx,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
enum Fails {
    Never,
    InBodyOnce,
    AfterwardsTwice,
    AtCommit,
}

/// A statement that a body runs beside its insert.
#[derive(Debug, Serialize, Deserialize, Job)]
#[job(kind = "odd", result = String, max_attempts = 1)]
struct Odd {
    pool: Pool,
    /// Before the insert, and after it. An error of the second is swallowed.
    sql: (String, String),
    id: i64,
}

/// How engine and application reach the database.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Straight,
    Pooled,
}

const WAYS: [Way; 2] = [Way::Straight, Way::Pooled];

/// All pools of an application on one database.
#[derive(Clone)]
struct Pools {
    /// Between them and the database.
    _bouncer: Option<Arc<Bouncer>>,
    client: Arc<Mutex<tokio_postgres::Client>>,
    deadpool: deadpool_postgres::Pool,
    sqlx: sqlx::PgPool,
}

impl Pools {
    async fn open(url: &str, bouncer: Option<Arc<Bouncer>>) -> Self {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a connection");
        #[expect(clippy::disallowed_methods, reason = "the application's own task")]
        tokio::spawn(connection);
        let manager = deadpool_postgres::Manager::new(url.parse().expect("an address"), NoTls);
        // Sqlx gives its statements names unless it is told not to.
        let nameless = with(url, "statement-cache-capacity=0");
        Pools {
            client: Arc::new(Mutex::new(client)),
            deadpool: deadpool_postgres::Pool::builder(manager).max_size(4).build().expect("a pool"),
            sqlx: sqlx::PgPool::connect(&nameless).await.expect("a pool"),
            _bouncer: bouncer,
        }
    }
}

/// A saga: what the database refuses for certain is undone.
async fn odd(ctx: Context, job: Odd) -> mainspring::HandlerResult<String> {
    let pools = ctx.state::<Pools>()?;
    let (before, after) = (job.sql.0.as_str(), job.sql.1.as_str());
    let done = match job.pool {
        Pool::Client => {
            ctx.transaction(&pools.client, "insert", async |tx| {
                tx.batch_execute(before).await?;
                tx.batch_execute(&insert(job.id)).await?;
                drop(tx.batch_execute(after).await);
                Ok(())
            })
            .await
        }
        Pool::Deadpool => {
            ctx.transaction(&pools.deadpool, "insert", async |tx| {
                tx.batch_execute(before).await?;
                tx.batch_execute(&insert(job.id)).await?;
                drop(tx.batch_execute(after).await);
                Ok(())
            })
            .await
        }
        Pool::Sqlx => {
            ctx.transaction(&pools.sqlx, "insert", async |tx| {
                sqlx::raw_sql(sqlx::AssertSqlSafe(before)).execute(&mut **tx).await?;
                sqlx::raw_sql(sqlx::AssertSqlSafe(insert(job.id))).execute(&mut **tx).await?;
                drop(sqlx::raw_sql(sqlx::AssertSqlSafe(after)).execute(&mut **tx).await);
                Ok(())
            })
            .await
        }
    };
    match done {
        Ok(()) => Ok("done".into()),
        Err(error) => {
            let why = mainspring::Failure::from(error).message();
            ctx.step("undo", async || Ok(why.clone())).await.map_err(Into::into)
        }
    }
}

/// Without a prepared statement, which would have to be there in each session of a pooler.
fn insert(id: i64) -> String {
    format!("INSERT INTO orders (id) VALUES ({id})")
}

/// Breaks a constraint that is looked at when the transaction commits.
const BREAK: &str = "INSERT INTO late (id) VALUES (1), (1)";

/// A table that kills the session that commits to it.
const DEADLY: &str = "
    CREATE TABLE deadly (id bigint);
    CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(60); RETURN NULL; END';
    CREATE CONSTRAINT TRIGGER deadly AFTER INSERT ON deadly DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION die()";

async fn order(ctx: Context, job: Order) -> mainspring::HandlerResult<i64> {
    let pools = ctx.state::<Pools>()?;
    let broken = job.fails == Fails::InBodyOnce && ctx.attempt() == 1;
    let late = job.fails == Fails::AtCommit;
    let done = match job.pool {
        Pool::Client => {
            ctx.transaction(&pools.client, "insert", async |tx| {
                tx.batch_execute(&insert(job.id)).await?;
                if late {
                    tx.batch_execute(BREAK).await?;
                }
                if broken { Err("not this time")? } else { Ok(job.id * 10) }
            })
            .await?
        }
        Pool::Deadpool => {
            ctx.transaction(&pools.deadpool, "insert", async |tx| {
                tx.batch_execute(&insert(job.id)).await?;
                if late {
                    tx.batch_execute(BREAK).await?;
                }
                if broken { Err("not this time")? } else { Ok(job.id * 10) }
            })
            .await?
        }
        Pool::Sqlx => {
            ctx.transaction(&pools.sqlx, "insert", async |tx| {
                sqlx::raw_sql(sqlx::AssertSqlSafe(insert(job.id))).execute(&mut **tx).await?;
                if late {
                    sqlx::query(BREAK).execute(&mut **tx).await?;
                }
                if broken { Err("not this time")? } else { Ok(job.id * 10) }
            })
            .await?
        }
    };
    if job.fails == Fails::AfterwardsTwice && ctx.attempt() < 3 {
        Err("the row and the record are there")?;
    }
    Ok(done)
}

async fn rig() -> (Database, Engine, Pools) {
    rig_on(Way::Straight).await
}

async fn rig_on(way: Way) -> (Database, Engine, Pools) {
    let database = database();
    database.sql("CREATE TABLE orders (id bigint)").expect("a table");
    database.sql("CREATE TABLE late (id bigint UNIQUE DEFERRABLE INITIALLY DEFERRED)").expect("a table");
    database.sql(DEADLY).expect("triggers");
    let bouncer = (way == Way::Pooled).then(|| Arc::new(bouncer(&database)));
    let (url, address) = match &bouncer {
        Some(bouncer) => {
            let url = bouncer.url(database.name());
            (url.clone(), with(&url, "pooler=transaction"))
        }
        None => (database.url(), database.url()),
    };
    let engine = Engine::options().migrate().open(&address).await.expect("a store");
    let pools = Pools::open(&url, bouncer).await;
    (database, engine, pools)
}

fn rows(database: &Database, id: i64) -> usize {
    database.sql(&format!("SELECT 1 FROM orders WHERE id = {id}")).expect("rows").len()
}

#[tokio::test]
async fn rows_are_there_exactly_once_however_often_the_handler_runs() {
    for way in WAYS {
        let (database, engine, pools) = rig_on(way).await;
        let node =
            engine.node().handle(order).state(pools).queue("default", 4).start().await.expect("a node");
        let mut id = 0;
        for pool in [Pool::Client, Pool::Deadpool, Pool::Sqlx] {
            for fails in [Fails::Never, Fails::InBodyOnce, Fails::AfterwardsTwice] {
                id += 1;
                let job = engine.enqueue(Order { id, pool, fails }).await.expect("enqueued");
                assert_eq!(
                    engine.result(&job).await.expect("it ended"),
                    id * 10,
                    "{way:?} {pool:?} {fails:?}"
                );
                assert_eq!(rows(&database, id), 1, "{way:?} {pool:?} {fails:?}");
            }
        }
        node.shutdown().await;
        engine.close().await;
    }
}

#[tokio::test]
async fn a_commit_that_fails_leaves_neither_rows_nor_record() {
    let (database, engine, pools) = rig().await;
    let node = engine.node().handle(order).state(pools).queue("default", 4).start().await.expect("a node");
    for (id, pool) in (1..).zip([Pool::Client, Pool::Deadpool, Pool::Sqlx]) {
        let job = engine.enqueue(Order { id, pool, fails: Fails::AtCommit }).await.expect("enqueued");
        let error = engine.result(&job).await.expect_err("every commit fails");
        assert!(error.to_string().contains("step `insert` failed"), "{error}");
        assert!(error.to_string().contains("duplicate key value"), "{error}");
        assert_eq!(rows(&database, id), 0);
        assert!(engine.jobs().timeline(job.id).await.expect("a timeline").entries.is_empty());
    }
    node.shutdown().await;
    engine.close().await;
}

/// What a job said when it ended, the rows that it left, and its records.
type Ended = (String, usize, Vec<(String, EntryKind)>);

/// Runs a handler that survives its transaction's error, with each kind of pool: what it says, how many rows there are, and what
/// is recorded.
async fn odd_ends(way: Way, before: &str, after: &str) -> Vec<Ended> {
    let (database, engine, pools) = rig_on(way).await;
    let node = engine.node().handle(odd).state(pools).queue("default", 4).start().await.expect("a node");
    let mut ends = Vec::new();
    for (id, pool) in (1..).zip([Pool::Client, Pool::Deadpool, Pool::Sqlx]) {
        let sql = (before.to_owned(), after.to_owned());
        let job = engine.enqueue(Odd { pool, sql, id }).await.expect("enqueued");
        let said = engine.result(&job).await.expect("it ended");
        let timeline = engine.jobs().timeline(job.id).await.expect("a timeline");
        let entries = timeline.entries.iter().map(|entry| (entry.key.to_string(), entry.kind)).collect();
        ends.push((said, rows(&database, id), entries));
    }
    node.shutdown().await;
    engine.close().await;
    ends
}

/// Asserts that the step failed for certain, and that the handler undid it.
fn assert_undone(ends: &[Ended], says: &str, rows: usize) {
    let recorded = [("insert".to_owned(), EntryKind::Error), ("undo".to_owned(), EntryKind::Value)];
    assert_eq!(ends.len(), 3);
    for (said, found, entries) in ends {
        assert!(said.starts_with("step `insert` failed") && said.contains(says), "{said}");
        assert_eq!(*found, rows, "{said}");
        assert_eq!(entries[..], recorded, "{said}");
    }
}

#[tokio::test]
async fn a_body_that_ends_its_transaction_is_never_recorded() {
    never_recorded(Way::Straight).await;
}

#[tokio::test]
async fn a_body_that_ends_its_transaction_is_never_recorded_behind_a_pooler() {
    never_recorded(Way::Pooled).await;
}

async fn never_recorded(way: Way) {
    let says = "its body has ended it";
    for (after, rows) in [
        ("ROLLBACK", 0),
        ("ROLLBACK; BEGIN", 0),
        ("COMMIT", 1),
        ("COMMIT; BEGIN", 1),
        ("COMMIT AND CHAIN", 1),
        ("ROLLBACK AND CHAIN", 0),
        // It looks the same: the mark is gone.
        ("RESET ALL", 0),
    ] {
        assert_undone(&odd_ends(way, "SELECT 1", after).await, says, rows);
    }
}

#[tokio::test]
async fn a_body_may_use_savepoints_and_settings_of_its_own() {
    recorded_all_the_same(Way::Straight).await;
}

#[tokio::test]
async fn a_body_may_use_savepoints_and_settings_of_its_own_behind_a_pooler() {
    recorded_all_the_same(Way::Pooled).await;
}

async fn recorded_all_the_same(way: Way) {
    for (before, after) in [
        ("SAVEPOINT a; SELECT 1; RELEASE a", "SAVEPOINT b; ROLLBACK TO b"),
        ("SAVEPOINT a; ROLLBACK TO a", "SAVEPOINT b; RELEASE b"),
        ("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", "SET LOCAL statement_timeout = '1min'"),
    ] {
        for (said, rows, entries) in odd_ends(way, before, after).await {
            assert_eq!((said.as_str(), rows), ("done", 1), "{before}; {after}");
            assert_eq!(entries, [("insert".to_owned(), EntryKind::Value)]);
        }
    }
}

#[tokio::test]
async fn what_the_database_refuses_is_undone() {
    undone(Way::Straight).await;
}

#[tokio::test]
async fn what_the_database_refuses_is_undone_behind_a_pooler() {
    undone(Way::Pooled).await;
}

async fn undone(way: Way) {
    for (before, after, says) in [
        // At the commit.
        (BREAK, "SELECT 1", "duplicate key value"),
        // The body has swallowed an error.
        ("SELECT 1", "SELECT * FROM nowhere", "(25P02)"),
        // At the record.
        ("SELECT 1", "SET TRANSACTION READ ONLY", "(25006)"),
        ("SELECT 1", "SET LOCAL statement_timeout = '1ms'; SELECT pg_sleep(10)", "(25P02)"),
    ] {
        assert_undone(&odd_ends(way, before, after).await, says, 0);
    }
}

#[tokio::test]
async fn after_a_lost_answer_no_other_operation_is_done() {
    let (database, engine, pools) = rig().await;
    let survives = async |ctx: Context, _job: Order| {
        let pools = ctx.state::<Pools>()?;
        let lost = ctx.transaction(&pools.sqlx, "insert", async |tx| {
            sqlx::query("INSERT INTO deadly (id) VALUES (1)").execute(&mut **tx).await?;
            Ok(())
        });
        assert!(matches!(lost.await, Err(Error::OutcomeUnknown { .. })));
        let next = ctx.step("next", async || Ok(1)).await;
        assert!(matches!(next, Err(Error::OutcomeUnknown { .. })), "{next:?}");
        mainspring::HandlerResult::Ok(7)
    };
    let node = engine.node().handle(survives).state(pools).queue("default", 1).start().await.expect("a node");
    let job = engine.enqueue(Order { id: 1, pool: Pool::Sqlx, fails: Fails::Never }).await.expect("enqueued");
    assert_eq!(engine.result(&job).await.expect("it ended"), 7);
    assert!(engine.jobs().timeline(job.id).await.expect("a timeline").entries.is_empty());
    assert_eq!(rows(&database, 1), 0);
    node.shutdown().await;
    engine.close().await;
}

#[tokio::test]
async fn a_pool_on_another_database_is_refused() {
    // One without a store, and one that is a copy of the engine's.
    for (drop, why) in [(true, "no store in its database"), (false, "it does not know the claim")] {
        let (_database, engine, _) = rig().await;
        let (other, another, pools) = rig().await;
        another.close().await;
        if drop {
            other.sql("DROP SCHEMA mainspring CASCADE").expect("no store");
        }
        let node =
            engine.node().handle(order).state(pools).queue("default", 1).start().await.expect("a node");
        let job = Order { id: 1, pool: Pool::Deadpool, fails: Fails::Never };
        let job = engine.enqueue(job).max_attempts(1).await.expect("enqueued");
        let refused = tokio::time::timeout(PATIENCE, engine.result(&job)).await.expect("in time");
        let error = refused.expect_err("refused").to_string();
        assert!(error.contains("the transaction is not on this engine's store"), "{error}");
        assert!(error.contains(why), "{error}");
        assert_eq!(rows(&other, 1), 0);
        node.shutdown().await;
        engine.close().await;
    }
}
