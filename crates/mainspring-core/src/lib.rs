//! Nouns and rules of Mainspring: what a job is, which moves are legal, and what a store must do.
//!
//! This crate does no I/O. It defines the [`job`] and its nine states, the one pure function
//! [`job::transition`] that knows every edge between them, the [`store::Store`] trait that every backend
//! implements, and the [`memory`] store, which is the reference model that the others are tested against.
//!
//! # Invariants
//! - Nothing here reads a clock, draws randomness, starts a task or a thread: those are arguments ([`seam`]).
//! - Every size and count that a caller can choose is checked against [`bounds`] before it reaches a store.
//! - A job's state changes only as [`job::transition`] says.

pub mod audit;
pub mod backoff;
pub mod bounds;
pub mod codes;
pub mod error;
pub mod failure;
pub mod fault;
pub mod id;
pub mod job;
pub mod journal;
pub mod limit;
pub mod memory;
pub mod name;
pub mod output;
pub mod planted;
pub mod schedule;
pub mod seam;
pub mod store;
pub mod tables;
pub mod time;

pub use error::{Error, Result};
pub use uuid::Uuid;
