//! Jobs in an application's own transaction on Postgres: they come with it, and hold up nobody while it is open.

use std::time::Duration;

use mainspring::tokio_postgres::{Client, NoTls};
use mainspring::{Context, Engine, Error, State, Unique};
use mainspring_testkit::postgres::Database;

use crate::support::{Work, assert_sound, ended, eventually, postgres, soon, total, work};

async fn quick(_ctx: Context, job: Work) -> mainspring::HandlerResult<u64> {
    Ok(job.n)
}

/// An engine, and the application's own connection to the same database.
async fn rig(database: &Database) -> (Engine, Client) {
    let engine = Engine::options().relaxed_durability().open(&database.url()).await.expect("a store");
    (engine, connect(database).await)
}

async fn connect(database: &Database) -> Client {
    let (client, connection) =
        mainspring::tokio_postgres::connect(&database.url(), NoTls).await.expect("a connection");
    #[expect(clippy::disallowed_methods, reason = "the application's own task")]
    tokio::spawn(connection);
    client
}

#[tokio::test]
async fn a_job_exists_if_and_only_if_its_transaction_commits() {
    let database = postgres();
    let (engine, mut db) = rig(&database).await;
    db.batch_execute("CREATE TABLE orders (id bigint)").await.expect("a table");
    let node = engine.node().handle(quick).queue("default", 1).start().await.expect("a node");

    let mut tx = db.transaction().await.expect("begun");
    tx.execute("INSERT INTO orders VALUES (1)", &[]).await.expect("a row");
    let job = engine.enqueue(work(1)).unique("k").tag("a").within(&mut tx).await.expect("enlisted");
    assert!(matches!(engine.jobs().get(job.id).await, Err(Error::NotFound(_))), "nobody sees it yet");
    tx.commit().await.expect("committed");
    engine.nudge(&job);
    assert_eq!(soon("its end", engine.result(&job)).await.expect("it succeeded"), 1);

    let mut tx = db.transaction().await.expect("begun");
    tx.execute("INSERT INTO orders VALUES (2)", &[]).await.expect("a row");
    let gone = engine.enqueue(work(2)).unique("k").within(&mut tx).await.expect("enlisted");
    tx.rollback().await.expect("rolled back");
    assert!(matches!(engine.jobs().get(gone.id).await, Err(Error::NotFound(_))));
    assert!(!engine.enqueue(work(3)).unique("k").await.expect("enqueued").existing, "its key is free");

    let mut tx = db.transaction().await.expect("begun");
    let key = Unique::new("r").replace();
    let error = engine.enqueue(work(4)).unique(key).within(&mut tx).await.expect_err("not in a transaction");
    assert!(matches!(error, Error::NotInTransaction { .. }), "{error}");
    drop(tx);
    node.shutdown().await;
    assert_sound(&engine).await;
    engine.close().await;
}

#[tokio::test]
async fn an_id_that_another_job_has_is_refused_and_spares_the_transaction() {
    let database = postgres();
    let (engine, mut db) = rig(&database).await;
    let [taken, own] = [7, 8].map(|byte| mainspring::JobId::from_bytes([byte; 16]));
    engine.enqueue(work(1)).id(taken).await.expect("enqueued");
    let mut tx = db.transaction().await.expect("begun");
    for keyed in [false, true] {
        let named = |n| if keyed { engine.enqueue(work(n)).unique("k") } else { engine.enqueue(work(n)) };
        let error = named(2).id(taken).within(&mut tx).await.expect_err("another job has it");
        assert!(matches!(error, Error::IdTaken { id, .. } if id == taken), "{error}");
        assert!(named(1).id(taken).within(&mut tx).await.expect("the same").existing);
    }
    assert!(!engine.enqueue(work(3)).id(own).within(&mut tx).await.expect("enlisted").existing);
    assert!(engine.enqueue(work(3)).id(own).within(&mut tx).await.expect("the same").existing);
    let error =
        engine.enqueue(work(4)).id(own).within(&mut tx).await.expect_err("one of this transaction has it");
    assert!(matches!(error, Error::IdTaken { id, .. } if id == own), "{error}");
    tx.commit().await.expect("committed");
    assert_eq!(total(&engine, State::Ready).await, 2);
    assert_sound(&engine).await;
    engine.close().await;
}

#[tokio::test]
async fn an_open_transaction_holds_up_nobody_but_its_own_key() {
    let database = postgres();
    let (engine, mut db) = rig(&database).await;
    let mut tx = db.transaction().await.expect("begun");
    let first = engine.enqueue(work(1)).unique("k").within(&mut tx).await.expect("enlisted");

    // All of one batch or of several: only the one with the key waits.
    let others = async {
        for n in 2..50 {
            engine.enqueue(work(n)).unique(format!("k{n}")).await.expect("enqueued");
        }
        engine.enqueue_many((50..100).map(work)).await.expect("enqueued");
        eventually("all others are in", async || total(&engine, State::Ready).await == 98).await;
        tx.commit().await.expect("committed");
    };
    let (same, ()) = tokio::join!(async { engine.enqueue(work(0)).unique("k").await }, others);
    let same = same.expect("the transaction has ended");
    assert_eq!((same.existing, same.id), (true, first.id));
    assert_eq!(total(&engine, State::Ready).await, 99);
    assert_sound(&engine).await;
    engine.close().await;
}

#[tokio::test]
async fn a_key_that_an_open_transaction_gives_up_is_taken_by_who_waits() {
    let database = postgres();
    let (engine, mut db) = rig(&database).await;
    let mut tx = db.transaction().await.expect("begun");
    engine.enqueue(work(1)).unique("k").within(&mut tx).await.expect("enlisted");
    let roll_back = async {
        engine.enqueue(work(2)).await.expect("enqueued");
        tx.rollback().await.expect("rolled back");
    };
    let (waited, ()) = tokio::join!(async { engine.enqueue(work(0)).unique("k").await }, roll_back);
    assert!(!waited.expect("the key is free").existing);
    engine.close().await;
}

#[tokio::test]
async fn a_transaction_on_another_database_is_refused() {
    let (database, other) = (postgres(), postgres());
    let (engine, _) = rig(&database).await;
    let mut db = connect(&other).await;
    other.sql("DROP SCHEMA mainspring CASCADE").expect("no store");
    let mut tx = db.transaction().await.expect("begun");
    let error = engine.enqueue(work(1)).within(&mut tx).await.expect_err("another database");
    assert!(matches!(error, Error::ForeignTransaction { .. }), "{error}");
    engine.close().await;
}

#[tokio::test]
async fn a_nudge_reaches_the_nodes_of_other_processes() {
    let database = postgres();
    let (engine, mut db) = rig(&database).await;
    let other = Engine::options().relaxed_durability().open(&database.url()).await.expect("a store");
    let node = other.node().handle(quick).queue("default", 1).start().await.expect("a node");
    let mut waits = Vec::new();
    for n in 0..5 {
        let mut tx = db.transaction().await.expect("begun");
        let job = engine.enqueue(work(n)).within(&mut tx).await.expect("enlisted");
        tx.commit().await.expect("committed");
        engine.nudge(&job);
        let job = ended(&engine, job.id).await.summary;
        assert_eq!(job.status.state, State::Succeeded);
        waits.push(job.finished_at.expect("it has ended").since(job.created_at));
    }
    // Without it they are found once a second; the best of five, because the machine may be busy.
    let shortest = waits.iter().min().expect("five jobs");
    assert!(*shortest < Duration::from_millis(300), "{waits:?}");
    node.shutdown().await;
    other.close().await;
    engine.close().await;
}

/// Web frameworks and handlers move their futures between threads.
#[tokio::test]
async fn a_transaction_can_be_used_in_a_task_that_moves_between_threads() {
    let database = postgres();
    let (engine, mut db) = rig(&database).await;
    let enqueuing = engine.clone();
    let task = async move {
        let mut tx = db.transaction().await.expect("begun");
        let job = enqueuing.enqueue(work(1)).unique("k").within(&mut tx).await.expect("enlisted");
        tx.commit().await.expect("committed");
        job.id
    };
    #[expect(clippy::disallowed_methods, reason = "the application's own task")]
    let id = tokio::spawn(task).await.expect("it ended");
    assert_eq!(crate::support::state(&engine, id).await, State::Ready);
    engine.close().await;
}
