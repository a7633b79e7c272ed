//! The proof of Mainspring's stores: one suite for all of them.
//!
//! [`conformance`] holds every behaviour that a [`Store`](mainspring_core::store::Store) must show, one function per
//! fact; `conformance_tests!` runs them all against a store. [`model`] applies random sequences of operations to a
//! store and to the memory store side by side; [`exhaustive`] visits every state that two nodes and two jobs can reach.
//! [`torture`] breaks real processes on a real store, and [`checker`] judges what they wrote down. [`clock`], [`rng`],
//! [`seams`] and [`patience`] are time, randomness, threads and waiting for tests. [`postgres`] is a PostgreSQL that lives
//! as long as a test, [`synchronous_store`] are real stores on a clock that stands still.
//!
//! # Invariants
//! - No test sleeps: it moves the clock, or waits for a condition with a deadline.
//! - A store has no private semantics: what is tested here is tested on every store.

pub mod checker;
pub mod clock;
pub mod conformance;
pub mod executor;
pub mod exhaustive;
pub mod fuzz;
pub mod harness;
pub mod history;
pub mod model;
pub mod patience;
pub mod postgres;
pub mod rng;
pub mod seams;
pub mod sim;
pub mod synchronous_store;
pub mod torture;
pub mod watch;
