//! Tests of what is private to SQLite; behaviour that all stores share is the conformance suite's.

mod commit;
mod durable;
mod enlist;
mod files;
mod handles;
mod limits;
mod lines;
mod opening;
mod plans;
mod processes;
pub(crate) mod support;
mod transaction_step;
