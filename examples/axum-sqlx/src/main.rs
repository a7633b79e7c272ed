//! A web service whose rows and jobs are written in one Postgres transaction.
//!
//! `POST /users` stores a user and enqueues a welcome mail: both exist, or neither does. `GET /jobs/{id}` tells what became
//! of the job. The node that runs jobs lives in the same process; server and node shut down together. More processes of
//! the same program share the work.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

mod api;

use mainspring::{Context, Engine, Job, discard, shutdown_signal};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tokio::net::TcpListener;

/// A mail to a new user.
#[derive(Serialize, Deserialize, Job)]
#[job(kind = "welcome", result = String)]
struct Welcome {
    user: i64,
}

/// Sends the mail. It may run more than once: a real mailer would be handed `ctx.id()` to tell a repeat by.
async fn welcome(ctx: Context, job: Welcome) -> mainspring::HandlerResult<String> {
    let db = ctx.state::<PgPool>()?;
    let name: Option<String> =
        sqlx::query_scalar("SELECT name FROM users WHERE id = $1").bind(job.user).fetch_optional(db).await?;
    // Any other error is tried again; a user who has left does not come back by himself.
    let name = name.ok_or_else(|| discard("the user has left"))?;
    Ok(format!("welcome, {name}"))
}

/// Everything that requests need.
#[derive(Clone)]
struct App {
    engine: Engine,
    db: PgPool,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("set DATABASE_URL, for example to postgres://app@localhost/app")]
    NoAddress,
    #[error(transparent)]
    Engine(#[from] mainspring::Error),
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    Server(#[from] std::io::Error),
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let address = std::env::var("DATABASE_URL").map_err(|_| Error::NoAddress)?;
    let listen = std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".into());

    // In production `mainspring migrate` does this, as a role with more rights than the service has.
    let engine = Engine::options().migrate().open(&address).await?;
    let db = PgPool::connect(&address).await?;
    // Checked when a transaction commits, so that a name that is taken shows what happens to a job then.
    let users = "CREATE TABLE IF NOT EXISTS users (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        name text NOT NULL UNIQUE DEFERRABLE INITIALLY DEFERRED)";
    sqlx::query(users).execute(&db).await?;

    let node = engine.node().handle(welcome).state(db.clone()).queue("default", 10).start().await?;
    let listener = TcpListener::bind(&listen).await?;
    println!("listening on http://{}", listener.local_addr()?);

    // The signal reaches the node; the server stops as soon as the node does, and the other way round. Requests and jobs
    // that are under way are finished, each within their time.
    let app = App { engine: engine.clone(), db: db.clone() };
    let stopping = node.clone();
    let server = axum::serve(listener, api::routes(app))
        .with_graceful_shutdown(async move { stopping.shutting_down().await });
    let (served, ()) = tokio::join!(
        async {
            let served = server.await;
            node.shutdown().await;
            served
        },
        node.run_until(shutdown_signal()),
    );

    db.close().await;
    engine.close().await;
    println!("stopped");
    Ok(served?)
}
