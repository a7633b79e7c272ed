//! What every store must do, in a crate that needs the core alone.
//!
//! [`conformance`] holds every behaviour that a [`Store`](mainspring_core::store::Store) must show, one function per fact;
//! `conformance_tests!` runs them all against a store. [`model`] applies random sequences of operations to a store and to
//! the memory store side by side. [`fuzz`] holds the core's fuzz targets. [`harness`] is one store under test;
//! [`clock`], [`rng`], [`seams`] and [`executor`] are its time, randomness, threads and tasks.
//!
//! The tests of this crate judge the memory store. The other stores run the same suite from their own `tests/`.
//! After a change to the core this crate builds and runs in a few seconds; `cargo xtask mutants` needs that.
//! The rigs that need an engine or a database are in `mainspring-testkit`.
//!
//! # Invariants
//! - No engine and no database: a suite that needs one does not compile here.
//! - No test sleeps: it moves the clock, or waits for a condition.
//! - A store has no private semantics: what is tested here is tested on every store.

pub mod clock;
pub mod conformance;
pub mod executor;
pub mod fuzz;
pub mod harness;
pub mod model;
pub mod rng;
pub mod seams;
