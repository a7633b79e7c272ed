//! Transaction steps on an application's own pool: its rows and the record of the step are one commit.

use std::sync::Arc;
use std::time::Duration;

use mainspring::tokio_postgres::{self, NoTls};
use mainspring::{Context, Engine, Error, Job};
use mainspring_testkit::postgres::Database;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use crate::support::database;

#[derive(Debug, Serialize, Deserialize, Job)]
#[job(kind = "order", output = i64, max_attempts = 4, backoff = "fixed:1ms")]
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

/// All pools of an application on one database.
#[derive(Clone)]
struct Pools {
    client: Arc<Mutex<tokio_postgres::Client>>,
    deadpool: deadpool_postgres::Pool,
    sqlx: sqlx::PgPool,
}

impl Pools {
    async fn open(database: &Database) -> Self {
        let url = database.url();
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("a connection");
        #[expect(clippy::disallowed_methods, reason = "the application's own task")]
        tokio::spawn(connection);
        let manager = deadpool_postgres::Manager::new(url.parse().expect("an address"), NoTls);
        Pools {
            client: Arc::new(Mutex::new(client)),
            deadpool: deadpool_postgres::Pool::builder(manager).max_size(4).build().expect("a pool"),
            sqlx: sqlx::PgPool::connect(&url).await.expect("a pool"),
        }
    }
}

const INSERT: &str = "INSERT INTO orders (id) VALUES ($1)";
/// Breaks a constraint that is looked at when the transaction commits.
const BREAK: &str = "INSERT INTO late (id) VALUES (1), (1)";

async fn order(ctx: Context, job: Order) -> mainspring::Result<i64> {
    let pools = ctx.state::<Pools>()?;
    let broken = job.fails == Fails::InBodyOnce && ctx.attempt() == 1;
    let late = job.fails == Fails::AtCommit;
    let done = match job.pool {
        Pool::Client => {
            ctx.transaction(&pools.client, "insert", async |tx| {
                tx.execute(INSERT, &[&job.id]).await?;
                if late {
                    tx.batch_execute(BREAK).await?;
                }
                if broken { Err("not this time")? } else { Ok(job.id * 10) }
            })
            .await?
        }
        Pool::Deadpool => {
            ctx.transaction(&pools.deadpool, "insert", async |tx| {
                tx.execute(INSERT, &[&job.id]).await?;
                if late {
                    tx.batch_execute(BREAK).await?;
                }
                if broken { Err("not this time")? } else { Ok(job.id * 10) }
            })
            .await?
        }
        Pool::Sqlx => {
            ctx.transaction(&pools.sqlx, "insert", async |tx| {
                sqlx::query(INSERT).bind(job.id).execute(&mut **tx).await?;
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
    let database = database();
    database.sql("CREATE TABLE orders (id bigint)").expect("a table");
    database.sql("CREATE TABLE late (id bigint UNIQUE DEFERRABLE INITIALLY DEFERRED)").expect("a table");
    let engine = Engine::options().migrate().open(&database.url()).await.expect("a store");
    let pools = Pools::open(&database).await;
    (database, engine, pools)
}

fn rows(database: &Database, id: i64) -> usize {
    database.sql(&format!("SELECT 1 FROM orders WHERE id = {id}")).expect("rows").len()
}

#[tokio::test]
async fn rows_are_there_exactly_once_however_often_the_handler_runs() {
    let (database, engine, pools) = rig().await;
    let node = engine.node().handle(order).state(pools).queue("default", 4).start().await.expect("a node");
    let mut id = 0;
    for pool in [Pool::Client, Pool::Deadpool, Pool::Sqlx] {
        for fails in [Fails::Never, Fails::InBodyOnce, Fails::AfterwardsTwice] {
            id += 1;
            let job = engine.enqueue(Order { id, pool, fails }).await.expect("enqueued");
            assert_eq!(engine.result(&job).await.expect("it ended"), id * 10, "{pool:?} {fails:?}");
            assert_eq!(rows(&database, id), 1, "{pool:?} {fails:?}");
        }
    }
    node.shutdown().await;
    engine.close().await;
}

#[tokio::test]
async fn a_commit_that_fails_leaves_neither_rows_nor_record() {
    let (database, engine, pools) = rig().await;
    let node = engine.node().handle(order).state(pools).queue("default", 4).start().await.expect("a node");
    for (id, pool) in (1..).zip([Pool::Client, Pool::Deadpool, Pool::Sqlx]) {
        let job = engine.enqueue(Order { id, pool, fails: Fails::AtCommit }).await.expect("enqueued");
        let error = engine.result(&job).await.expect_err("every commit fails");
        assert!(error.to_string().contains("outcome unknown"), "{error}");
        assert_eq!(rows(&database, id), 0);
        assert!(engine.jobs().story(job.id).await.expect("a story").entries.is_empty());
    }
    node.shutdown().await;
    engine.close().await;
}

#[tokio::test]
async fn after_a_lost_answer_no_other_operation_is_done() {
    let (database, engine, pools) = rig().await;
    let survives = async |ctx: Context, _job: Order| {
        let pools = ctx.state::<Pools>()?;
        let lost = ctx.transaction(&pools.sqlx, "insert", async |tx| {
            sqlx::query(BREAK).execute(&mut **tx).await?;
            Ok(())
        });
        assert!(matches!(lost.await, Err(Error::OutcomeUnknown { .. })));
        let next = ctx.step("next", async || Ok(1)).await;
        assert!(matches!(next, Err(Error::OutcomeUnknown { .. })), "{next:?}");
        mainspring::Result::Ok(7)
    };
    let node = engine.node().handle(survives).state(pools).queue("default", 1).start().await.expect("a node");
    let job = engine.enqueue(Order { id: 1, pool: Pool::Sqlx, fails: Fails::Never }).await.expect("enqueued");
    assert_eq!(engine.result(&job).await.expect("it ended"), 7);
    assert!(engine.jobs().story(job.id).await.expect("a story").entries.is_empty());
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
        let refused =
            tokio::time::timeout(Duration::from_mins(1), engine.result(&job)).await.expect("in time");
        let error = refused.expect_err("refused").to_string();
        assert!(error.contains("the transaction is not on this engine's store"), "{error}");
        assert!(error.contains(why), "{error}");
        assert_eq!(rows(&other, 1), 0);
        node.shutdown().await;
        engine.close().await;
    }
}
