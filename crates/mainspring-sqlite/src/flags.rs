//! The `flags` column of places: what else a job has.
//!
//! # Invariants
//! - A job without flags has no row in `keys`, `deadlines`, `steps`, `inbox` or `children` that its moves would have to touch.

use mainspring_core::job::{Options, Until};

/// The job holds, or held, a unique key.
pub(crate) const KEY: i64 = 1;
/// The job has a deadline.
pub(crate) const DEADLINE: i64 = 2;
/// Its key is released at its first claim.
pub(crate) const KEY_UNTIL_STARTED: i64 = 4;
/// The job has recorded something, or was sent something.
pub(crate) const JOURNAL: i64 = 8;
/// The job has started children.
pub(crate) const CHILDREN: i64 = 16;
/// Another job started it.
pub(crate) const PARENT: i64 = 32;

/// It is to be cancelled because its parent has ended or does without it; in `lease` alone.
pub(crate) const ORPHAN: i64 = 64;

/// It was claimed for a slot that was not free, so its node's death is no crash of the job; in `lease` alone.
pub(crate) const AHEAD: i64 = 16_384;

/// Somebody is to be told of the job's end.
pub(crate) const FAMILY: i64 = CHILDREN | PARENT;
/// What a job still has after its end.
pub(crate) const LASTING: i64 = JOURNAL | FAMILY;

/// The flags of a new job.
pub(crate) fn of(options: &Options, deadline: bool) -> i64 {
    let key = match options.unique.as_ref().map(|unique| unique.until) {
        None => 0,
        Some(Until::Started) => KEY | KEY_UNTIL_STARTED,
        Some(Until::Finished | Until::After(_)) => KEY,
    };
    key | if deadline { DEADLINE } else { 0 }
}
