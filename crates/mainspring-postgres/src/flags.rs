//! What a place says of a job's side tables.

use mainspring_core::job::{Options, Reason, Until};

/// It has a unique key.
pub(crate) const KEY: i16 = 1;
/// It has a deadline.
pub(crate) const DEADLINE: i16 = 2;
/// Its key is released at its first claim.
pub(crate) const KEY_UNTIL_STARTED: i16 = 4;

/// It has recorded something, or been sent something.
pub(crate) const JOURNAL: i16 = 8;
/// It has children.
pub(crate) const CHILDREN: i16 = 16;
/// It has a parent.
pub(crate) const PARENT: i16 = 32;
/// It is to be cancelled because its parent has ended or does without it; in `lease` alone.
pub(crate) const ORPHAN: i16 = 64;

/// It was claimed for a slot that was not free, so its node's death is no crash of the job; it counts
/// in `lease` alone.
pub(crate) const AHEAD: i16 = 16_384;
/// It belongs to a family: somebody is to be told of its end.
pub(crate) const FAMILY: i16 = CHILDREN | PARENT;

/// Who asked a claim to cancel.
pub(crate) fn canceller(flags: i16) -> Reason {
    if flags & ORPHAN == 0 { Reason::Operator } else { Reason::Parent }
}

/// The flags of a new job.
pub(crate) fn of(options: &Options, deadline: bool) -> i16 {
    let key = match &options.unique {
        None => 0,
        Some(unique) if unique.until == Until::Started => KEY | KEY_UNTIL_STARTED,
        Some(_) => KEY,
    };
    let parent = if options.parent.is_some() { PARENT } else { 0 };
    let deadline = if deadline { DEADLINE } else { 0 };
    key | parent | deadline
}
