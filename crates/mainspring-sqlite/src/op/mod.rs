//! What requests do inside a transaction: one file per concern.

pub(crate) mod change;
pub(crate) mod claim;
pub(crate) mod counts;
pub(crate) mod deadline;
pub(crate) mod due;
pub(crate) mod enqueue;
pub(crate) mod family;
pub(crate) mod finish;
pub(crate) mod inbox;
pub(crate) mod journal;
pub(crate) mod limits;
pub(crate) mod moves;
pub(crate) mod node;
pub(crate) mod output;
pub(crate) mod place;
pub(crate) mod prune;
pub(crate) mod remove;
pub(crate) mod rescue;
mod rewind;
pub(crate) mod row_numbers;
pub(crate) mod schedules;
pub(crate) mod settings;
pub(crate) mod unique_key;

/// A count or a size as SQLite's integers are: signed.
pub(crate) fn as_i64(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
