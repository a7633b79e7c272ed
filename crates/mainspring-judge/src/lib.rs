//! The suites of the testkit that judge the core alone: conformance and random lives of the memory store, and the core's
//! fuzz targets.
//!
//! The sources are the testkit's. They are built here a second time because the testkit brings an engine, two databases
//! and their clients: after a change to the core this crate is rebuilt and run in three seconds, the testkit in ten.
//! `cargo xtask mutants` changes the core some nine hundred times.
//!
//! # Invariants
//! - Nothing is written here: a suite that needs more than the core does not compile.

#[path = "../../mainspring-testkit/src/clock.rs"]
pub mod clock;
#[path = "../../mainspring-testkit/src/conformance/mod.rs"]
pub mod conformance;
#[path = "../../mainspring-testkit/src/executor.rs"]
pub mod executor;
#[path = "../../mainspring-testkit/src/fuzz/mod.rs"]
pub mod fuzz;
#[path = "../../mainspring-testkit/src/harness.rs"]
pub mod harness;
#[path = "../../mainspring-testkit/src/model/mod.rs"]
pub mod model;
#[path = "../../mainspring-testkit/src/rng.rs"]
pub mod rng;
