//! A row of the application and a job in one transaction: both exist, or neither does.
//!
//! The application's own table lives in the same file as the jobs. A user who signs up gets a row and a welcome mail; if
//! the transaction is rolled back, there is no row and no mail, whatever happened in between.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use mainspring::{Context, Engine, Enqueued, Job};
use rusqlite::{Connection, TransactionBehavior};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Job)]
#[job(kind = "welcome", result = String)]
struct Welcome {
    user: i64,
}

async fn welcome(_ctx: Context, job: Welcome) -> mainspring::HandlerResult<String> {
    Ok(format!("mail to user {} sent", job.user))
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Database(#[from] rusqlite::Error),
    #[error(transparent)]
    Engine(#[from] mainspring::Error),
    #[error(transparent)]
    Task(#[from] tokio::task::JoinError),
}

/// Opens the application's own connection to the same file.
fn connect() -> rusqlite::Result<Connection> {
    let db = Connection::open("outbox.db")?;
    // The engine writes to the same file: wait for it instead of failing.
    db.busy_timeout(Duration::from_secs(5))?;
    // The job is as durable as this transaction: SQLite's default here is FULL, and this says that it is meant.
    db.pragma_update(None, "synchronous", "FULL")?;
    db.execute_batch("CREATE TABLE IF NOT EXISTS users (id INTEGER PRIMARY KEY, name TEXT NOT NULL)")?;
    Ok(db)
}

/// Stores a user and a job in one transaction. With `taken`, the application changes its mind at the last moment.
fn sign_up(engine: &Engine, name: &str, taken: bool) -> Result<Enqueued<Welcome>, Error> {
    let mut db = connect()?;
    let mut tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    tx.execute("INSERT INTO users (name) VALUES (?1)", [name])?;
    let user = tx.last_insert_rowid();
    let job = engine.enqueue(Welcome { user }).within_sync(&mut tx)?;
    if taken {
        tx.rollback()?;
    } else {
        tx.commit()?;
        engine.nudge(&job); // wakes the nodes of this process; others notice by themselves
    }
    Ok(job)
}

/// SQLite blocks and its transactions stay on one thread, so the whole of one runs on a thread for such work.
#[expect(
    clippy::disallowed_methods,
    reason = "an application without the engine's seams has threads of its own"
)]
async fn sign_up_on_a_thread(
    engine: &Engine,
    name: &'static str,
    taken: bool,
) -> Result<Enqueued<Welcome>, Error> {
    let engine = engine.clone();
    tokio::task::spawn_blocking(move || sign_up(&engine, name, taken)).await?
}

fn users(name: &str) -> rusqlite::Result<i64> {
    connect()?.query_row("SELECT count(*) FROM users WHERE name = ?1", [name], |row| row.get(0))
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let engine = Engine::open("sqlite:outbox.db").await?;
    let node = engine.node().handle(welcome).queue("default", 1).start().await?;

    let ada = sign_up_on_a_thread(&engine, "ada", false).await?;
    println!("ada: {} row, {}", users("ada")?, engine.result(&ada).await?);

    let bob = sign_up_on_a_thread(&engine, "bob", true).await?;
    let job = match engine.jobs().get(bob.id).await {
        Ok(_) => "a job",
        Err(mainspring::Error::NotFound(_)) => "no job",
        Err(error) => return Err(error.into()),
    };
    println!("bob: {} rows, {job}", users("bob")?);

    node.shutdown().await;
    engine.close().await;
    Ok(())
}
