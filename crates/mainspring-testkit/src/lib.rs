//! The proof of Mainspring: rigs that need an engine, a database or processes.
//!
//! [`sim`] runs whole clusters in simulated time, [`exhaustive`] visits every state that two nodes and two jobs can reach,
//! [`torture`] breaks real processes on a real store. Each writes a [`history`], seen through a store that is watched
//! ([`watch`]), and [`checker`] judges it. [`postgres`] is a PostgreSQL that lives as long as a test,
//! [`synchronous_store`] are real stores on a clock that stands still, [`patience`] is waiting for tests.
//!
//! What needs the core alone is in `mainspring-conformance`, and can be reached from here: [`conformance`], [`model`],
//! [`fuzz`], [`harness`], [`clock`], [`rng`], [`seams`] and [`executor`].
//!
//! # Invariants
//! - No test sleeps: it moves the clock, or waits for a condition with a deadline.
//! - A store has no private semantics: what is tested here is tested on every store.

pub use mainspring_conformance::{
    clock, conformance, conformance_tests, executor, fuzz, harness, model, rng, seams,
};

pub mod checker;
pub mod exhaustive;
pub mod history;
pub mod patience;
pub mod postgres;
pub mod sim;
pub mod synchronous_store;
pub mod torture;
pub mod watch;
