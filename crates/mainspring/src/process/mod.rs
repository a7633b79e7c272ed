//! Handlers in other languages, and commands: child processes that end with their job and with this process.
//!
//! A [`Pool`] runs jobs in warm children that speak lines of JSON. A [`Command`] runs once, inside any handler. Both are behind a
//! *guard*, a small process that ends the child and all that it started, also when this process is killed.
//!
//! The guard is your own program again. So `main` calls [`guard`] first:
//!
//! ```no_run
//! use mainspring::process::{self, Pool};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), mainspring::Error> {
//!     process::guard();
//!     let engine = mainspring::Engine::open("sqlite:app.db").await?;
//!     let resize = Pool::new(["python3", "resize.py"]).kind("resize").children(4);
//!     let node = engine.node().pool(resize).queue("default", 4).start().await?;
//!     node.run_until(mainspring::shutdown_signal()).await;
//!     Ok(())
//! }
//! ```
//!
//! `docs/guides/other-languages.md` has the protocol. The runtime needs Tokio's I/O driver (`enable_all`).
//!
//! # Invariants
//! - No process outlives its guard's end, nor the guard the worker; on Linux that holds for processes that left their group, too.
//! - A child that broke the protocol gets no further job.

mod command;
mod guard;
mod guarded;
mod pool;
mod tail;

pub use command::{Command, Output};
pub use guard::{guard, guard_program};
pub use pool::Pool;
pub(crate) use pool::{PoolHandler, Pools};
