//! The test engine on a file and on a database: rows, record and the test's clock together.

use mainspring::testing::{Error, TestEngine, Trial};
use mainspring::{Backoff, Context, Error as EngineError, Job, NodeBuilder, State, rusqlite};
use serde::{Deserialize, Serialize};

use crate::support::{HOUR, SECOND, status};

/// An order: goods are reserved, and released when nobody approves within two days.
#[derive(Debug, Clone, Serialize, Deserialize, Job)]
#[job(kind = "order", result = String)]
struct Order {
    item: String,
}

#[derive(Debug, Serialize, Deserialize, Job)]
#[job(kind = "mail")]
struct Mail {
    to: String,
}

async fn order(ctx: Context, job: Order) -> mainspring::HandlerResult<String> {
    let (item, engine) = (job.item.clone(), ctx.engine().clone());
    ctx.sqlite_transaction("reserve", move |sql| {
        sql.execute("UPDATE stock SET free = free - 1 WHERE item = ?1", [&item])?;
        engine.enqueue(Mail { to: item }).within_sync(sql)?;
        Ok(())
    })
    .await?;
    let tries =
        ctx.step_with("ask", async |step| if step.attempt() < 3 { Err("503".into()) } else { Ok(()) });
    tries.retry(5).backoff(Backoff::Fixed(SECOND)).await?;
    let approved: Option<bool> = ctx.signal("approved").timeout(48 * HOUR).await?;
    if approved == Some(true) {
        return Ok("approved".into());
    }
    let item = job.item.clone();
    ctx.sqlite_transaction("release", move |sql| {
        sql.execute("UPDATE stock SET free = free + 1 WHERE item = ?1", [&item])?;
        Ok(())
    })
    .await?;
    Ok("released".into())
}

async fn mail(_ctx: Context, _job: Mail) -> mainspring::HandlerResult<()> {
    Ok(())
}

fn setup(node: NodeBuilder) -> NodeBuilder {
    node.handle(order).handle(mail).queue("default", 2)
}

fn open(test: &TestEngine) -> rusqlite::Connection {
    rusqlite::Connection::open(test.path().expect("a file")).expect("opened")
}

fn shop() -> mainspring::testing::Result<TestEngine> {
    let test = TestEngine::sqlite()?;
    let sql = "CREATE TABLE stock (item TEXT, free INTEGER); INSERT INTO stock VALUES ('tea', 10)";
    open(&test).execute_batch(sql).expect("a table");
    Ok(test)
}

fn free(test: &TestEngine) -> i64 {
    open(test).query_row("SELECT free FROM stock", [], |row| row.get(0)).expect("a row")
}

fn tea() -> Order {
    Order { item: "tea".into() }
}

#[tokio::test]
async fn two_days_pass_on_a_file() {
    let test = shop().expect("a file").patience(HOUR);
    test.node(setup).await.expect("a node");
    let error = test.run(tea()).await.expect_err("it waits");
    assert!(matches!(&error, Error::NotEnded { status, .. } if status.state == State::Suspended), "{error}");
    assert_eq!(free(&test), 9);
    let sent = test.assert_enqueued::<Mail>(|mail| mail.to == "tea");
    test.run_until_idle().await.expect("idle");
    test.outcome(&sent).expect("what a transaction enqueued has run");

    let job = test.expect_enqueued::<Order>().queue("default").assert();
    test.advance(47 * HOUR).await.expect("time passes");
    assert_eq!((status(&test, job.id).await.state, free(&test)), (State::Suspended, 9));
    test.advance(HOUR).await.expect("time passes");
    // It has run to its end: the clock waits for transactions.
    assert_eq!(test.outcome(&job).expect("it ended"), "released");
    assert_eq!(free(&test), 10);
}

#[tokio::test]
async fn a_workflow_with_transactions_bears_everything() {
    let trial = Trial::new(tea(), setup).on(async || shop());
    assert_eq!(trial.crash_after_every_step().await.expect("it bears it"), "released");
    assert_eq!(trial.fail_every_step_once().await.expect("it bears it"), "released");
    assert_eq!(trial.run_every_step_twice().await.expect("it bears it"), "released");
    let approved = Trial::new(tea(), setup).on(async || shop()).on_wait(|test, job| {
        Box::pin(async move {
            assert_eq!(free(test), 9, "once, whatever happened");
            test.signal(job, "approved", &true).await.expect("sent");
        })
    });
    assert_eq!(approved.crash_after_every_step().await.expect("it bears it"), "approved");
    assert_eq!(approved.fail_every_step_once().await.expect("it bears it"), "approved");
}

#[tokio::test]
async fn a_file_is_removed_with_its_engine() {
    let test = shop().expect("a file");
    test.node(setup).await.expect("a node");
    let path = test.path().expect("a file").to_owned();
    assert!(path.exists());
    drop(test);
    assert!(!path.exists() && !path.parent().expect("a directory").exists());
    assert!(TestEngine::new().path().is_none());
}

#[tokio::test]
async fn what_a_file_is_asked_for_by_hand_is_refused_as_ever() {
    let test = TestEngine::new();
    test.node(setup).await.expect("a node");
    let job = test.enqueue(tea()).max_attempts(1).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    let error = test.outcome(&job).expect_err("there is no file");
    assert!(
        matches!(&error, Error::Engine(EngineError::Ended { message, .. }) if message.contains("not SQLite")),
        "{error}"
    );
}

/// Leases lapse, jobs are rescued, retried and timed out on the file as they are in memory.
#[tokio::test]
async fn a_file_keeps_the_time_of_the_test() {
    let test = TestEngine::sqlite().expect("a file");
    let handler = async |ctx: Context, _job: Order| -> mainspring::HandlerResult<String> {
        if ctx.info().claim == 1 {
            std::future::pending::<()>().await;
        }
        if ctx.attempt() < 3 {
            Err("not yet")?;
        }
        Ok(ctx.info().claim.to_string())
    };
    let setup = |node: NodeBuilder| node.handle(handler).queue("default", 1);
    test.node(setup).await.expect("a node");
    let job = test.enqueue(tea()).delay(HOUR).backoff(Backoff::Fixed(HOUR)).await.expect("enqueued");
    test.advance(HOUR + SECOND).await.expect("time passes");
    assert_eq!(status(&test, job.id).await.state, State::Running);
    test.crash().await.expect("it dies");
    test.node(setup).await.expect("a node");
    test.advance(17 * SECOND).await.expect("time passes");
    let summary = test.jobs().get(job.id).await.expect("there").summary;
    assert_eq!((summary.claim, summary.failures), (2, 1), "{summary:?}");
    test.advance(4 * HOUR).await.expect("time passes");
    assert_eq!(test.outcome(&job).expect("it ended"), "4");
}

#[cfg(feature = "postgres")]
mod postgres {
    use std::sync::Arc;

    use mainspring::tokio_postgres::{Client, NoTls};
    use mainspring_testkit::postgres::Server;
    use tokio::sync::Mutex;

    use super::*;

    async fn order(ctx: Context, job: Order) -> mainspring::HandlerResult<String> {
        let pool = ctx.state::<Arc<Mutex<Client>>>()?;
        ctx.transaction(pool, "reserve", async |tx| {
            tx.execute("UPDATE stock SET free = free - 1 WHERE item = $1", &[&job.item]).await?;
            ctx.engine().enqueue(Mail { to: job.item.clone() }).within(tx).await?;
            Ok(())
        })
        .await?;
        let approved: Option<bool> = ctx.signal("approved").timeout(48 * HOUR).await?;
        if approved == Some(true) {
            return Ok("approved".into());
        }
        ctx.transaction(pool, "release", async |tx| {
            tx.execute("UPDATE stock SET free = free + 1 WHERE item = $1", &[&job.item]).await?;
            Ok(())
        })
        .await?;
        Ok("released".into())
    }

    #[expect(clippy::disallowed_methods, reason = "the application's own task")]
    async fn connect(address: &str) -> Arc<Mutex<Client>> {
        let (client, connection) =
            mainspring::tokio_postgres::connect(address, NoTls).await.expect("connected");
        tokio::spawn(connection);
        Arc::new(Mutex::new(client))
    }

    async fn count(pool: &Mutex<Client>, sql: &str) -> i64 {
        pool.lock().await.query_one(sql, &[]).await.expect("a row").get(0)
    }

    #[tokio::test]
    async fn two_days_pass_on_a_database() {
        let database = Server::shared().expect("a server").database().expect("a database");
        let address = database.url();
        let pool = connect(&address).await;
        let sql = "CREATE TABLE stock (item TEXT, free BIGINT); INSERT INTO stock VALUES ('tea', 10)";
        pool.lock().await.batch_execute(sql).await.expect("a table");
        let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'mainspring%'";

        let test = TestEngine::postgres(&address).await.expect("a schema").patience(HOUR);
        let setup = {
            let pool = Arc::clone(&pool);
            move |node: NodeBuilder| {
                node.handle(order).handle(mail).state(Arc::clone(&pool)).queue("default", 2)
            }
        };
        test.node(setup).await.expect("a node");
        let job = test.enqueue(tea()).await.expect("enqueued");
        test.run_until_idle().await.expect("idle");
        assert_eq!(count(&pool, "SELECT free FROM stock").await, 9);
        let sent = test.assert_enqueued::<Mail>(|mail| mail.to == "tea");
        test.outcome(&sent).expect("what a transaction enqueued has run");
        test.advance(48 * HOUR).await.expect("time passes");
        assert_eq!(test.outcome(&job).expect("it ended"), "released");
        assert_eq!(count(&pool, "SELECT free FROM stock").await, 10);
        assert_eq!(count(&pool, schemas).await, 1);
        drop(test);
        assert_eq!(count(&pool, schemas).await, 0, "the schema is dropped with its engine");
    }

    #[tokio::test]
    async fn a_workflow_with_transactions_bears_everything_on_a_database() {
        let database = Server::shared().expect("a server").database().expect("a database");
        let address = database.url();
        let pool = connect(&address).await;
        pool.lock()
            .await
            .batch_execute("CREATE TABLE stock (item TEXT, free BIGINT)")
            .await
            .expect("a table");
        let setup = {
            let pool = Arc::clone(&pool);
            move |node: NodeBuilder| {
                node.handle(order).handle(mail).state(Arc::clone(&pool)).queue("default", 2)
            }
        };
        let engine = {
            let pool = Arc::clone(&pool);
            move || {
                let (address, pool) = (address.clone(), Arc::clone(&pool));
                async move {
                    let sql = "TRUNCATE stock; INSERT INTO stock VALUES ('tea', 10)";
                    pool.lock().await.batch_execute(sql).await.expect("ten packets");
                    Ok(TestEngine::postgres(&address).await?)
                }
            }
        };
        let trial = Trial::new(tea(), setup.clone()).on(engine.clone());
        assert_eq!(trial.crash_after_every_step().await.expect("it bears it"), "released");
        assert_eq!(count(&pool, "SELECT free FROM stock").await, 10);
        assert_eq!(trial.fail_every_step_once().await.expect("it bears it"), "released");
        assert_eq!(trial.run_every_step_twice().await.expect("it bears it"), "released");
        let approved = Trial::new(tea(), setup).on(engine).on_wait(move |test, job| {
            let pool = Arc::clone(&pool);
            Box::pin(async move {
                assert_eq!(count(&pool, "SELECT free FROM stock").await, 9, "once, whatever happened");
                test.signal(job, "approved", &true).await.expect("sent");
            })
        });
        assert_eq!(approved.crash_after_every_step().await.expect("it bears it"), "approved");
        assert_eq!(approved.fail_every_step_once().await.expect("it bears it"), "approved");
    }
}
