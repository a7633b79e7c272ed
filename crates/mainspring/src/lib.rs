//! Durable jobs and workflows inside your Rust application, on SQLite or Postgres.
//!
//! You enqueue a job. When the call returns, the job is on stable storage. A node runs it, retries it, times it out, cancels it,
//! and another node rescues it when its process dies. A handler can record its progress, wait for months, and resume after a
//! crash. There is no broker and no extra server: the state is plain tables in a SQLite file or a Postgres database.
//!
//! ```toml
//! [dependencies]
//! mainspring = "0.1" # on Postgres: { version = "0.1", features = ["postgres"] }
//! serde = { version = "1", features = ["derive"] }
//! tokio = { version = "1", features = ["macros", "rt-multi-thread"] }
//! ```
//!
//! # A job
//!
//! A job is a type that serde can write and read. A handler is an async function that takes it. A node runs handlers in your own
//! process:
//!
//! ```
//! use mainspring::{Context, Engine, Job, discard};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize, Job)]
//! #[job(kind = "welcome", result = String)]
//! struct Welcome {
//!     user: u64,
//! }
//!
//! async fn welcome(_ctx: Context, job: Welcome) -> mainspring::HandlerResult<String> {
//!     if job.user == 0 {
//!         return Err(discard("no such user").into()); // any other error is retried with backoff
//!     }
//!     Ok(format!("welcome, user {}", job.user))
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = Engine::open("memory:").await?; // or sqlite:app.db, or postgres://…
//! let node = engine.node().handle(welcome).queue("default", 10).start().await?;
//!
//! let job = engine.enqueue(Welcome { user: 7 }).priority(1).await?; // from here on it is stored
//! let text: String = engine.result(&job).await?;
//! assert_eq!(text, "welcome, user 7");
//!
//! node.shutdown().await; // running jobs end; the node gives the others back
//! # Ok(())
//! # }
//! ```
//!
//! # A workflow
//!
//! A workflow is a job whose handler records its progress. After a crash it resumes from the last recorded step, on any node.
//! While it waits, it holds no slot, no task and no connection. There is no second type and nothing else to register:
//!
//! ```
//! # use mainspring::{Context, Job};
//! # use serde::{Deserialize, Serialize};
//! # use std::time::Duration;
//! # #[derive(Serialize, Deserialize, Job)]
//! # #[job(signals(approved = bool))]
//! # struct Order { total: u64 }
//! # async fn charge(total: u64) -> mainspring::HandlerResult<u64> { Ok(total) }
//! # async fn ship(payment: u64) -> mainspring::HandlerResult<()> { drop(payment); Ok(()) }
//! async fn order(ctx: Context, job: Order) -> mainspring::HandlerResult<()> {
//!     let payment = ctx.step("charge", || charge(job.total)).await?; // recorded: does not run again
//!     ctx.sleep("cool-off", Duration::from_hours(24)).await?;
//!     if ctx.signal(Order::APPROVED).timeout(Duration::from_hours(72)).await? == Some(true) {
//!         ctx.step("ship", || ship(payment)).retry(3).await?;
//!     }
//!     Ok(())
//! }
//! ```
//!
//! | in a handler | |
//! |---|---|
//! | [`step`](Context::step), [`once`](Context::once) | runs a body and records its result; `once` never runs it twice |
//! | [`sleep`](Context::sleep), [`signal`](Context::signal) | waits for a time, or for a message that [`Engine::signal`] sends |
//! | [`spawn`](Context::spawn) | starts a child job, and waits for its result |
//! | [`branch`](Context::branch), [`map`](Context::map), [`race`](Context::race), [`iterate`](Context::iterate) | runs steps side by side, for many items, against each other, in a loop |
//! | [`emit`](Context::emit) | streams output that [`Engine::tail`] reads live |
//! | [`now`](Context::now), [`random`](Context::random), [`uuid`](Context::uuid) | draws a value and records it, so every run sees the same |
//!
//! # Where to begin
//!
//! | you want to | see |
//! |---|---|
//! | open a store, with options | [`Engine::open`], [`Engine::options`] |
//! | declare a kind of job | [`Job`], by hand or derived |
//! | enqueue: delays, priorities, unique keys, tags, inside your own transaction | [`Engine::enqueue`], [`enqueue::Enqueue`], [`Engine::enqueue_many`] |
//! | run jobs | [`Engine::node`], [`NodeBuilder`], [`Node::run_until`] with [`shutdown_signal`] |
//! | decide how an attempt ends | any error, or [`retry_in`], [`snooze`], [`throttled`], [`discard`], [`cancel`] |
//! | wait for a result, from any process | [`Engine::result`], [`Engine::result_of`], [`Engine::result_json`] |
//! | see and change jobs, one or all that match | [`Engine::jobs`], [`admin::Jobs`], [`admin::Filter`] |
//! | know why a job is not running, and what is wrong with a store | [`admin::Jobs::why`], [`Engine::diagnose`] |
//! | enqueue jobs at times of a rule | [`Engine::schedules`], [`schedule`] |
//! | pause queues, set backoff and retention | [`Engine::queues`] |
//! | write handlers in other languages, or run commands | `process`, with the feature of that name |
//! | test handlers on a clock that you move | [`testing`] |
//! | handle an error, or show a hint to a person | [`Error`], [`Error::is_retryable`], [`Error::hint`] |
//! | know every bound | [`bounds`] |
//!
//! # Tests
//!
//! [`testing::TestEngine`] runs your handlers on a clock that you move, so a test of a week takes milliseconds. A
//! [`testing::Trial`] crashes a workflow after every step and compares the results.
//!
//! ```
//! use mainspring::testing::TestEngine;
//! use mainspring::{Context, Job};
//! use serde::{Deserialize, Serialize};
//! use std::time::Duration;
//!
//! #[derive(Serialize, Deserialize, Job)]
//! #[job(result = u64)]
//! struct Remind {
//!     user: u64,
//! }
//!
//! async fn remind(ctx: Context, job: Remind) -> mainspring::HandlerResult<u64> {
//!     ctx.sleep("a week", Duration::from_hours(7 * 24)).await?;
//!     Ok(job.user)
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let test = TestEngine::new();
//! test.node(|node| node.handle(remind).queue("default", 1)).await?;
//! let job = test.enqueue(Remind { user: 7 }).await?;
//! test.advance(Duration::from_hours(7 * 24)).await?;
//! assert_eq!(test.outcome(&job)?, 7);
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! | feature | |
//! |---|---|
//! | `sqlite` (default) | the store on SQLite; the build includes SQLite |
//! | `postgres` | the store on Postgres |
//! | `deadpool`, `sqlx` | jobs and steps inside transactions of these, on Postgres |
//! | `process` | handlers in other languages, as child processes that end with their worker; on Unix |
//!
//! # What is promised
//!
//! - When a call returns `Ok`, its data is on stable storage.
//! - A job has one owner at a time, and the store refuses late writes of an old one.
//! - A handler runs at least once, and the job gets exactly one outcome.
//! - If a process dies, its jobs run again within seconds.
//! - A workflow that waits costs nothing.
//!
//! *Not* promised: exactly-once effects outside of transaction steps, a global order across nodes, and that a handler which lost
//! its job stops executing at once. It only cannot write.
//!
//! The repository has guides in `docs/guides`, the explanation in `ARCHITECTURE.md`, and the tests behind each promise in
//! `docs/proof.md`. To see the engine's warnings, install a `tracing` subscriber.

// Lets `#[derive(Job)]` name `::mainspring` inside of this crate too.
extern crate self as mainspring;

pub mod admin;
mod batch;
mod context;
mod diagnose;
mod durable;
mod engine;
pub mod enqueue;
mod fork;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
pub mod handler;
#[cfg(all(test, feature = "shuttle"))]
mod interleavings;
mod job;
mod job_run;
mod jobs;
mod json;
mod kinds;
mod layer;
pub mod limit;
mod node;
mod open;
mod panic;
#[cfg(all(unix, feature = "process"))]
pub mod process;
mod queues;
mod rewind;
pub mod schedule;
mod seams;
pub mod store;
mod sync;
pub mod tail;
pub mod testing;
mod waiters;
pub mod workflow;

pub use context::Context;
pub use durable::join_all::join_all;
pub use durable::signal::SignalType;
pub use durable::step::StepContext;
pub use durable::token::Token;
pub use engine::Engine;
pub use enqueue::Enqueued;
pub use job::{Job, JobOptions};
pub use node::{Node, NodeBuilder, shutdown_signal};
pub use open::OpenOptions;

pub use mainspring_core::backoff::Backoff;
pub use mainspring_core::failure::{Failure, cancel, discard, retry_in, snooze, throttled};
pub use mainspring_core::id::JobId;
pub use mainspring_core::job::{OnConflict, Priority, Reason, State, Status, Unique, Until};
pub use mainspring_core::{Error, Uuid, bounds, error, name, seam, time};
pub use mainspring_macros::Job;
/// `deadpool-postgres` in the version of this crate: steps share transactions with its pool.
#[cfg(feature = "deadpool")]
pub use mainspring_postgres::deadpool_postgres;
/// `tokio-postgres` in the version of this crate: [`Enqueue::within`](enqueue::Enqueue::within) takes its
/// transactions, on Postgres.
#[cfg(feature = "postgres")]
pub use mainspring_postgres::tokio_postgres;
/// `rusqlite` in the version of this crate: [`Enqueue::within`](enqueue::Enqueue::within) takes its transactions, on
/// SQLite.
#[cfg(feature = "sqlite")]
pub use mainspring_sqlite::rusqlite;

/// The result of the engine's own calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The result of handlers and of steps' bodies: a value or a [`Failure`], which `?` makes from any error.
pub type HandlerResult<T> = std::result::Result<T, Failure>;
