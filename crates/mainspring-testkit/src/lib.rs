//! The proof of Mainspring: rigs that need an engine, a database or processes.
//!
//! [`sim`] runs whole clusters in simulated time, [`exhaustive`] visits every state that two nodes and two jobs can reach,
//! [`torture`] breaks real processes on a real store. Each writes a [`history`], seen through a store that is watched
//! ([`watch`]), and [`checker`] judges it. [`postgres`] is a PostgreSQL that lives as long as a test,
//! [`synchronous_store`] are real stores on a clock that stands still, [`patience`] is waiting for tests.
//!
//! # Where is what
//!
//! `cargo xtask test` runs everything below at the size of a normal run. `docs/proof.md` names the rules behind each promise.
//!
//! | promise | rig | files | alone |
//! |---|---|---|---|
//! | a store does what the trait says | conformance suite, on three stores | `mainspring-conformance/src/conformance`; runs: `mainspring-conformance/tests`, `mainspring-sqlite/tests`, `mainspring-postgres/tests/postgres/conformance.rs` | `cargo nextest run -E 'test(/^conformance/)'` |
//! | stores agree in any order of calls | random lives beside the model | `mainspring-conformance/src/model` | `cargo nextest run model` |
//! | two nodes never both own a job, in any state | exhaustive model | [`exhaustive`] | `cargo nextest run exhaustive` |
//! | whole clusters keep every promise under faults | simulator | [`sim`], judged by [`checker`] | `cargo xtask sim --seeds 0..2000` |
//! | real processes do, too | torture and marathon | [`torture`], judged by [`checker`] | `cargo xtask torture --store sqlite` |
//! | the rigs find bugs | planted bugs | `tests/planted`, `mainspring_core::planted` | `cargo xtask test --only planted` |
//! | two calls on Postgres meet in any order of their statements | pairs | `mainspring-postgres/tests/postgres/pairs` | `cargo nextest run pairs` |
//! | no call walks over a table | plans with a million jobs | `mainspring-postgres/tests/postgres/plans`, `mainspring-sqlite/src/tests/plans.rs` | `cargo nextest run plans` |
//! | an outage of Postgres loses nothing and expires nobody | outages | `mainspring-postgres/tests/postgres/outage`, [`postgres`] | `cargo nextest run outage` |
//! | threads and tasks meet in any order | shuttle | `interleavings` of `mainspring` and `mainspring-sqlite` | `cargo xtask test --only interleavings` |
//! | workflows resume where they were | random programs, operations one by one | `mainspring/tests/durable` | `cargo nextest run -p mainspring --test durable` |
//! | any bytes from outside are refused or read | fuzz targets | [`fuzz`], `fuzz` of each crate | `cargo xtask fuzz` |
//! | every line of the core matters | mutants | `xtask/src/mutants.rs` | `cargo xtask mutants` |
//!
//! //! What needs the core alone is in `mainspring-conformance`, and can be reached from here: [`conformance`], [`model`],
//! [`fuzz`], [`harness`], [`clock`], [`rng`], [`seams`] and [`executor`].
//!
//! # Invariants
//! - No test sleeps: it moves the clock, or waits for a condition with a deadline.
//! - A store has no private semantics: what is tested here is tested on every store.

pub use mainspring_conformance::{
    clock, conformance, conformance_tests, executor, fuzz, harness, limit_conformance_tests, model, rng,
    seams,
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
