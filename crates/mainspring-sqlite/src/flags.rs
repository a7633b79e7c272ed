//! The `flags` column of places: what else a job has.
//!
//! # Invariants
//! - A job without flags has no row in `keys` or `deadlines` that its moves would have to touch.

use mainspring_core::job::{Options, Until};

/// The job holds, or held, a unique key.
pub(crate) const KEY: i64 = 1;
/// The job has a deadline.
pub(crate) const DEADLINE: i64 = 2;
/// Its key is released at its first claim.
pub(crate) const KEY_UNTIL_STARTED: i64 = 4;

/// The flags of a new job.
pub(crate) fn of(options: &Options, deadline: bool) -> i64 {
    let key = match options.unique.as_ref().map(|unique| unique.until) {
        None => 0,
        Some(Until::Started) => KEY | KEY_UNTIL_STARTED,
        Some(Until::Finished | Until::After(_)) => KEY,
    };
    key | if deadline { DEADLINE } else { 0 }
}
