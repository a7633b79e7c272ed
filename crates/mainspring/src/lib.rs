//! One durable work engine for Rust: jobs that survive crashes, on SQLite by default and on Postgres with the feature
//! `postgres`.
//!
//! ```
//! use mainspring::{Context, Engine, Job};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize, Job)]
//! #[job(kind = "welcome", result = String)]
//! struct Welcome {
//!     user: u64,
//! }
//!
//! async fn welcome(_ctx: Context, job: Welcome) -> mainspring::HandlerResult<String> {
//!     Ok(format!("welcome, user {}", job.user))
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = Engine::open("memory:").await?; // or sqlite:app.db, or postgres://…
//! let node = engine.node().handle(welcome).queue("default", 10).start().await?;
//! let job = engine.enqueue(Welcome { user: 7 }).priority(1).await?;
//! let text: String = engine.result(&job).await?;
//! assert_eq!(text, "welcome, user 7");
//! node.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! When `enqueue(…).await` returns, the job is on stable storage. Any node that serves its queue runs it. The engine retries it with
//! backoff, times it out, cancels it, and rescues it when its process dies. There is no broker and no server: the state is
//! plain tables in a SQLite file or a Postgres database.
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
//! | enqueue jobs again and again, at times of a rule | [`Engine::schedules`], [`schedule`] |
//! | pause queues, set backoff and retention | [`Engine::queues`] |
//! | test handlers on a clock that you move | [`testing`] |
//!
//! # Workflows
//!
//! A handler can record its progress. After a crash it resumes from the last recorded step, on any node. Waiting holds no
//! slot, no task and no connection:
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
//! Besides [`Context::step`], [`Context::sleep`] and [`Context::signal`] there are children ([`Context::spawn`]), branches, races,
//! maps and loops, steps that commit together with your own rows, and output that you read live ([`Engine::tail`]).
//!
//! # Features
//!
//! | feature | |
//! |---|---|
//! | `sqlite` (default) | the store on SQLite; the build includes SQLite |
//! | `postgres` | the store on Postgres |
//! | `deadpool`, `sqlx` | jobs and steps inside transactions of these, on Postgres |
//!
//! # What is promised
//!
//! - When a call returns `Ok`, its data is on stable storage.
//! - A job has one owner at a time, and the store refuses late writes of an old one.
//! - A handler runs at least once, and the job gets exactly one outcome.
//! - If a process dies, its jobs run again within seconds.
//! - A workflow that waits costs nothing.
//!
//! The README of the repository lists what is *not* promised, and `docs/proof.md` shows how tests attack all of this. Guides are in
//! `docs/guides`; `ARCHITECTURE.md` explains how it works. To see the engine's warnings, install a `tracing` subscriber.

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
mod layer;
mod node;
mod open;
mod panic;
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
