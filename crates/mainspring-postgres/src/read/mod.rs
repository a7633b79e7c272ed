//! Reads: what operators see.
//!
//! They run on a connection of their own, whose statements are planned each time, so that they never wait for writers nor hold
//! them up.
//!
//! # Invariants
//! - One call sees one moment of the database: it is one statement, or one transaction with one snapshot.
//! - Names are read outside of that transaction. They only grow, so what is read later covers what was seen before.

pub(crate) mod admin;
pub(crate) mod check;
pub(crate) mod diagnose;
pub(crate) mod get;
pub(crate) mod journal;
pub(crate) mod limits;
pub(crate) mod list;
pub(crate) mod output;
pub(crate) mod schedules;

pub(crate) use admin::{CountsOp, LinesOp, NodesOp, QueuesOp};
pub(crate) use check::Check;
pub(crate) use diagnose::Diagnose;
pub(crate) use get::{Get, state_of, status};
pub(crate) use journal::{Inboxes, Inputs, JobEnds, TimelineOp, Values, journals};
pub(crate) use list::List;
pub(crate) use output::Outputs;
pub(crate) use schedules::{Audit, DueSchedulesOp, FindSchedules, ListSchedules};

/// What is read of columns, for fuzz targets.
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz {
    pub(crate) use super::get::{priority, status};
}

/// A transaction that sees one moment and takes no locks.
const SNAPSHOT: &str = "ISOLATION LEVEL REPEATABLE READ READ ONLY";
