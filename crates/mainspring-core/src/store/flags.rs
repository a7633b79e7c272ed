//! Flags: what a job has besides its row, as bits of the column `flags` of every place.
//!
//! One table says of each bit who holds what it stands for, and how long the bit stays with the job. All masks are
//! computed from it, and statements name bits and masks by [`codes`](crate::codes): `{flag.key}`, `{flags.told}`. A new
//! bit is a line of the table; what is held needs its release, in the one place of each store that releases what its
//! holder holds.
//!
//! # Invariants
//! - A plain job has no flag, and its moves touch no side table.
//! - Reserved bits are never set, and no mask has them.

use crate::job::{New, Reason, Until};

/// Who holds the thing of a flag, and releases it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// Nobody: there is nothing to release.
    Nobody,
    /// The job, through all its claims and waits. Released by whatever ends or removes the job.
    Job,
    /// A claim. Taken when the job is claimed, released by whatever deletes its row from `lease`.
    Claim,
}

/// How long a flag stays with its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lasts {
    /// It says something of a claim, and stands in `lease` alone.
    Claim,
    /// Until the job ends.
    Job,
    /// Beyond the end.
    Always,
    /// Beyond the end, and somebody is to be told of the end.
    Told,
}

/// A flag: one bit of a job's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flag {
    /// Its name in statements.
    pub name: &'static str,
    /// The bit. Never changes.
    pub bit: i16,
    /// Who holds its thing.
    pub holder: Holder,
    /// How long it stays.
    pub lasts: Lasts,
}

macro_rules! flags {
    ($($(#[$doc:meta])+ $NAME:ident = $bit:literal $name:literal $holder:ident $lasts:ident,)+) => {
        $($(#[$doc])+ pub const $NAME: i16 = $bit;)+

        /// All flags, in the order of their bits.
        pub const ALL: &[Flag] =
            &[$(Flag { name: $name, bit: $NAME, holder: Holder::$holder, lasts: Lasts::$lasts }),+];
    };
}

flags! {
    /// The job has, or had, a unique key.
    KEY = 1 "key" Job Job,
    /// It has a deadline.
    DEADLINE = 2 "deadline" Job Job,
    /// Its key is released at its first claim.
    KEY_UNTIL_STARTED = 4 "key_until_started" Nobody Job,
    /// It has recorded something, or was sent something.
    JOURNAL = 8 "journal" Nobody Always,
    /// It has started children.
    CHILDREN = 16 "children" Nobody Told,
    /// Another job started it.
    PARENT = 32 "parent" Nobody Told,
    /// It is to be cancelled because its parent has ended, or goes on without it.
    ORPHAN = 64 "orphan" Nobody Claim,
    /// It has limits. In `lease`, its claim holds units of limits or counts in a total, and gives them back. A plain
    /// job has the flag there, and there alone, while its claim counts in a total.
    LIMITED = 128 "limited" Claim Job,
    /// It waits and keeps the units that its last claim took; its next claim does not take them again. The job holds
    /// them.
    KEEPS = 256 "keeps" Job Job,
    /// It was claimed for a slot that was not free, so its node's death is no crash of the job.
    AHEAD = 16_384 "ahead" Nobody Claim,
}

/// Bits that later capabilities will use, each with its meaning.
pub const RESERVED: &[(i16, &str)] = &[
    (512, "other jobs depend on it and are told of its end"),
    (1024, "member of a graph"),
    (2048, "its claim takes an allowance from a budget"),
    (4096, "surplus: to be cancelled, because its graph needs it no more; in `lease` alone"),
    (8192, "to be cancelled, because its graph is; in `lease` alone"),
];

/// The flags of things that the job holds and releases when it ends.
pub const HELD_BY_JOB: i16 = held_by(Holder::Job);
/// The flags of things that a claim holds and releases with its row in `lease`.
pub const HELD_BY_CLAIM: i16 = held_by(Holder::Claim);
/// The flags that only a row in `lease` has.
pub const OF_CLAIM: i16 = lasting(Lasts::Claim);
/// The flags of jobs whose end somebody waits for.
pub const TOLD: i16 = lasting(Lasts::Told);
/// The flags that a job keeps after its end.
pub const LASTING: i16 = lasting(Lasts::Always) | TOLD;

const fn held_by(holder: Holder) -> i16 {
    let (mut mask, mut at) = (0, 0);
    while at < ALL.len() {
        if ALL[at].holder as u8 == holder as u8 {
            mask |= ALL[at].bit;
        }
        at += 1;
    }
    mask
}

const fn lasting(lasts: Lasts) -> i16 {
    let (mut mask, mut at) = (0, 0);
    while at < ALL.len() {
        if ALL[at].lasts as u8 == lasts as u8 {
            mask |= ALL[at].bit;
        }
        at += 1;
    }
    mask
}

/// Returns the flags of a new job.
pub fn of(job: &New) -> i16 {
    let key = match job.options.unique.as_ref().map(|unique| unique.until) {
        None => 0,
        Some(Until::Started) => KEY | KEY_UNTIL_STARTED,
        Some(Until::Finished | Until::After(_)) => KEY,
    };
    key | given(DEADLINE, job.deadline.is_some())
        | given(JOURNAL, !job.journal.is_empty())
        | given(PARENT, job.options.parent.is_some())
        | given(LIMITED, !job.options.limits.is_empty())
}

const fn given(flag: i16, it_has: bool) -> i16 {
    if it_has { flag } else { 0 }
}

/// Returns who asked a claim with these flags to cancel.
pub const fn canceller(flags: i16) -> Reason {
    if flags & ORPHAN == 0 { Reason::Operator } else { Reason::Parent }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bit_is_given_out_once() {
        let mut taken = 0;
        for bit in ALL.iter().map(|flag| flag.bit).chain(RESERVED.iter().map(|(bit, _)| *bit)) {
            assert_eq!(bit.count_ones(), 1, "{bit} is one bit");
            assert_eq!(taken & bit, 0, "{bit} is given out twice");
            taken |= bit;
        }
        assert_eq!(taken, i16::MAX, "all that a smallint has room for");
    }

    #[test]
    fn masks_follow_the_table() {
        assert_eq!(HELD_BY_JOB, KEY | DEADLINE | KEEPS);
        assert_eq!(HELD_BY_CLAIM, LIMITED);
        assert_eq!(OF_CLAIM, ORPHAN | AHEAD);
        assert_eq!(TOLD, CHILDREN | PARENT);
        assert_eq!(LASTING, JOURNAL | CHILDREN | PARENT);
    }

    #[test]
    fn claim_holds_nothing_beyond_its_row() {
        for flag in ALL {
            assert!(flag.lasts != Lasts::Claim || flag.holder != Holder::Job, "{}", flag.name);
        }
    }
}
