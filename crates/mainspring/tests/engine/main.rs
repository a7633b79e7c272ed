//! The promises of the engine, each a test through its public surface.
//!
//! Where time matters, tests run on [`mainspring::testing`], in memory on a clock moved by hand; where the store matters,
//! on every store alike, in real time. None sleeps: they move the clock or wait for a condition with a deadline.

mod faulty_store;
mod support;

mod activity;
mod backlog;
mod blocking;
mod bounds;
mod cancel;
mod contended;
mod enqueue;
mod faults;
mod forks;
mod limits;
mod many_nodes;
#[cfg(target_os = "linux")]
mod memory_bound;
mod operators;
mod outage;
mod outcomes;
mod panics;
mod records;
mod recovery;
mod routing;
mod schedules;
mod setup;
mod shutdown;
mod slots;
mod start_by_key;
mod testing_module;
mod time;
#[cfg(feature = "postgres")]
mod transaction;
