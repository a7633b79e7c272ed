//! Schedules: rules that enqueue jobs in time.
//!
//! A [`Rule`] says when; [`Missed`] and [`Overlap`] say what becomes of fires that were missed and of jobs that are not done
//! when the next is due. All of this is pure: given a rule and two points in time, every node computes the same fires.
//!
//! # Invariants
//! - No fire is early, and none happens twice: each has a nominal time, and they are dealt with in that order.
//! - Zones come from a database that is compiled in, never from the machine.

mod cron;
mod definition;
mod except;
mod fire;
mod policy;
mod rule;
mod times;
mod why;
mod zone;

#[cfg(test)]
mod tests;

pub use cron::{Cron, Fault, HORIZON_YEARS};
pub use definition::{
    Definition, HEADER_FIRE, HEADER_SCHEDULE, Note, Pause, Schedule, ScheduleState, Seed, Template, Trouble,
    fire_of, tag,
};
pub use except::Except;
pub use fire::{Cause, Step, backfill, step};
pub use policy::{Due, Hold, Missed, Overlap, due};
pub use rule::Rule;
pub use times::Times;
pub use why::ScheduleWhy;
pub use zone::Zone;

/// FNV-1a, 64 bits, finished so that names that differ in one letter are far apart. The same on every node and in every version:
/// ids of jobs and the shift of a schedule follow from it.
fn hash(parts: &[&[u8]]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for part in parts {
        // The length comes first, so that no two lists of parts run together.
        for byte in (part.len() as u64).to_le_bytes().iter().chain(*part) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    hash = (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ hash >> 29
}
