//! Limits: what a claim takes, what its end gives back, and who is let in then.
//!
//! Limited jobs wait in `limited`, in groups. A group has, for each level at which it may have a job, a *turn*, or it is *blocked* at
//! one key. A claim visits turns and nothing else, so groups without room cost it nothing; what makes room at a key gives turns to as
//! many groups as there is room for, of each line and level that has some blocked there.
//!
//! Counters of keys are read once per transaction and written at its end: [`counters`].
//!
//! # Invariants
//! - A group with jobs of a level has a turn or is blocked, at that level.
//! - If a key has room for a group that is blocked there, another group of the same line and level that names the key has a turn.
//! - Turns and blocked groups are inserted and deleted, never updated; an enqueue only inserts.

pub(crate) mod cache;
pub(crate) mod change;
pub(crate) mod claim;
pub(crate) mod counters;
pub(crate) mod place;
pub(crate) mod prune;

pub(crate) use cache::Cache;
pub(crate) use counters::Counters;

/// What a limit is of.
pub(crate) mod scope {
    /// Of jobs that name it.
    pub(crate) const NAMED: i64 = 0;
    /// The total of a queue.
    pub(crate) const QUEUE: i64 = 1;
    /// The total of a kind.
    pub(crate) const KIND: i64 = 2;
}
