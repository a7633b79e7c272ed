//! What a place says of a job's side tables.

use mainspring_core::job::{Options, Until};

/// It has a unique key.
pub(crate) const KEY: i16 = 1;
/// It has a deadline.
pub(crate) const DEADLINE: i16 = 2;
/// Its key is released at its first claim.
pub(crate) const KEY_UNTIL_STARTED: i16 = 4;

/// The flags of a new job.
pub(crate) fn of(options: &Options, deadline: bool) -> i16 {
    let key = match &options.unique {
        None => 0,
        Some(unique) if unique.until == Until::Started => KEY | KEY_UNTIL_STARTED,
        Some(_) => KEY,
    };
    if deadline { key | DEADLINE } else { key }
}
