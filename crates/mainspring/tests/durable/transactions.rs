//! Transaction steps on SQLite: rows and record in one commit.

use std::time::Duration;

use mainspring::{Context, Engine, Error as EngineError, Job, rusqlite};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize, Job)]
#[job(kind = "debit", result = i64)]
struct Debit {
    cents: i64,
    how: How,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
enum How {
    Well,
    FailsFirst,
    Panics,
    TooLong,
}

async fn debit(ctx: Context, job: Debit) -> mainspring::HandlerResult<i64> {
    let attempt = ctx.attempt();
    let left = ctx
        .sqlite_transaction("debit", move |sql| {
            sql.execute("UPDATE account SET cents = cents - ?1", [job.cents])?;
            let left: i64 = sql.query_row("SELECT cents FROM account", [], |row| row.get(0))?;
            match job.how {
                How::FailsFirst if attempt == 1 => Err("not this time")?,
                How::Panics => panic!("ouch"),
                How::TooLong => {
                    let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT sum(i) FROM n";
                    sql.query_row(endless, [], |_| Ok(()))?;
                }
                How::Well | How::FailsFirst => {}
            }
            Ok(left)
        })
        .timeout(Duration::from_millis(200))
        .await?;
    if attempt < 3 && job.how == How::Well {
        // The record is there, and the rows are: neither is made again.
        return Err(mainspring::retry_in(Duration::ZERO).into());
    }
    Ok(left)
}

async fn bank(cents: i64) -> (tempfile::TempDir, Engine, rusqlite::Connection) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("bank.db");
    let engine = Engine::open(&format!("sqlite:{}", file.display())).await.expect("open");
    let conn = rusqlite::Connection::open(&file).expect("open");
    conn.busy_timeout(Duration::from_secs(30)).expect("set");
    conn.execute_batch("CREATE TABLE account (cents INTEGER)").expect("a table");
    conn.execute("INSERT INTO account VALUES (?1)", [cents]).expect("a row");
    (directory, engine, conn)
}

fn cents(conn: &rusqlite::Connection) -> i64 {
    conn.query_row("SELECT cents FROM account", [], |row| row.get(0)).expect("a row")
}

#[tokio::test]
async fn rows_are_there_exactly_once_however_often_the_handler_runs() {
    let (_directory, engine, conn) = bank(1_000).await;
    let node = engine.node().handle(debit).queue("default", 4).start().await.expect("a node");
    let job = engine.enqueue(Debit { cents: 100, how: How::Well }).await.expect("enqueued");
    assert_eq!(engine.result(&job).await.expect("it ended"), 900);
    assert_eq!(engine.jobs().get(job.id).await.expect("there").summary.failures, 2);
    assert_eq!(cents(&conn), 900);
    node.shutdown().await;
}

#[tokio::test]
async fn what_fails_panics_or_takes_too_long_leaves_nothing_behind() {
    let (_directory, engine, conn) = bank(1_000).await;
    let node = engine.node().handle(debit).queue("default", 4).start().await.expect("a node");
    let failing = Debit { cents: 100, how: How::FailsFirst };
    let fails =
        engine.enqueue(failing).backoff(mainspring::Backoff::Fixed(Duration::ZERO)).await.expect("enqueued");
    assert_eq!(engine.result(&fails).await.expect("the second time"), 900);
    for (how, word) in [(How::Panics, "panicked: ouch"), (How::TooLong, "took longer than 200ms")] {
        let job = engine.enqueue(Debit { cents: 1, how }).max_attempts(1).await.expect("enqueued");
        let error = engine.result(&job).await.expect_err("it failed").to_string();
        assert!(error.contains(word), "{error}");
    }
    assert_eq!(cents(&conn), 900);
    node.shutdown().await;
}

#[tokio::test]
async fn another_store_than_sqlite_is_told_apart() {
    let engine = Engine::open("memory:").await.expect("open");
    let handler = async |ctx: Context, _job: Debit| {
        let refused = ctx.sqlite_transaction("debit", |_| Ok(1)).await;
        assert!(matches!(refused, Err(EngineError::Invalid { .. })), "{refused:?}");
        mainspring::HandlerResult::Ok(7)
    };
    let node = engine.node().handle(handler).queue("default", 1).start().await.expect("a node");
    let job = engine.enqueue(Debit { cents: 1, how: How::Well }).await.expect("enqueued");
    assert_eq!(engine.result(&job).await.expect("it ended"), 7);
    node.shutdown().await;
}

/// A closure that waits for the engine would wait for itself: the writer's thread runs it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closure_that_uses_the_engine_is_refused() {
    let (_directory, engine, conn) = bank(1_000).await;
    let handler = async |ctx: Context, job: Debit| {
        let (engine, runtime) = (ctx.engine().clone(), tokio::runtime::Handle::current());
        let refused = ctx.sqlite_transaction("debit", move |sql| {
            sql.execute("UPDATE account SET cents = cents - ?1", [job.cents])?;
            let more = Debit { cents: 1, how: How::Well };
            let words = match job.how {
                How::Well => runtime.block_on(async { engine.enqueue(more).await }).map(drop),
                _ => runtime.block_on(async { engine.queues().pause("default").await }).map(drop),
            };
            Err::<(), _>(words.expect_err("it is refused").to_string().into())
        });
        let words = mainspring::Failure::from(refused.await.expect_err("it was refused")).message();
        assert!(words.contains("its closure uses the engine"), "{words}");
        mainspring::HandlerResult::Ok(1)
    };
    let node = engine.node().handle(handler).queue("default", 4).start().await.expect("a node");
    for how in [How::Well, How::Panics] {
        let job = engine.enqueue(Debit { cents: 100, how }).await.expect("enqueued");
        assert_eq!(engine.result(&job).await.expect("it ended"), 1);
    }
    assert_eq!(cents(&conn), 1_000);
    node.shutdown().await;
}
