//! Ids: who a job is, who a node is, and how a store names them inside.
//!
//! Ids of jobs and nodes are `UUIDv7`s minted by the client, so that a repeated call is recognised. Numbers
//! ([`NodeNo`], [`Row`], [`ClaimBatchNo`]) are small and cheap to index; they never leave the engine.
//!
//! # Invariants
//! - Ids minted by one engine sort by time, to the quarter microsecond.
//! - A store never gives out a [`NodeNo`] or a [`Row`] twice.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::seam::Rng;
use crate::time::Timestamp;

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// Mints a fresh id from a time and randomness.
            pub fn mint(now: Timestamp, rng: &dyn Rng) -> Self {
                $name(mint(now, rng))
            }

            /// From the sixteen bytes that [`Self::as_bytes`] gave.
            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                $name(Uuid::from_bytes(bytes))
            }

            /// Creates an id from a UUID of your own.
            pub const fn from_uuid(uuid: Uuid) -> Self {
                $name(uuid)
            }

            /// The id as a UUID.
            pub const fn uuid(&self) -> Uuid {
                self.0
            }

            /// The sixteen bytes of the id, in the order in which ids sort.
            pub const fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = crate::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Uuid::try_parse(text).map($name).map_err(|_| crate::Error::Invalid {
                    what: $what,
                    why: "not a UUID".into(),
                })
            }
        }
    };
}

uuid_id!(
    /// The id of a job.
    JobId,
    "job id"
);
uuid_id!(
    /// The id of a node: fresh at each start.
    NodeId,
    "node id"
);

/// A `UUIDv7` whose twelve bits after the milliseconds hold their fraction, so that ids sort finely.
fn mint(now: Timestamp, rng: &dyn Rng) -> Uuid {
    let micros = u64::try_from(now.as_micros()).unwrap_or(0);
    let fraction = u16::try_from((micros % 1_000) * 4_096 / 1_000).unwrap_or(0);
    let mut random = [0_u8; 10];
    random[..2].copy_from_slice(&fraction.to_be_bytes());
    random[2..].copy_from_slice(&rng.next_u64().to_be_bytes());
    uuid::Builder::from_unix_timestamp_millis(micros / 1_000, &random).into_uuid()
}

/// A store's number for a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeNo(pub i64);

impl fmt::Display for NodeNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A store's own handle of a job, given with a claim and carried back with every write of that claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Row(pub i64);

/// The number of one claim batch of one node: grows by one for each claim call that the node begins.
///
/// A claim call that is repeated because its answer was lost carries the same number, and the store answers with
/// what it already claimed under it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimBatchNo(pub u64);

/// One numbered ownership of a job. Together with the node it is the fence of every write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Claim {
    /// The job.
    pub id: JobId,
    /// The store's handle of the job.
    pub row: Row,
    /// The number of this claim: grows each time the job is claimed.
    pub number: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Ones;
    impl Rng for Ones {
        fn next_u64(&self) -> u64 {
            u64::MAX
        }
    }

    #[test]
    fn ids_are_version_7_and_sort_by_microsecond() {
        let ids: Vec<_> = (0..3_000)
            .map(|i| JobId::mint(Timestamp::from_micros(1_700_000_000_000_000 + i), &Ones))
            .collect();
        assert!(ids.is_sorted());
        assert_eq!(ids[0].0.get_version_num(), 7);
        assert!(ids[0] < ids[1]);
    }

    #[test]
    fn an_id_holds_its_time_to_the_quarter_microsecond() {
        // 0x018bcfe56800 milliseconds, and 750 microseconds of the next: three quarters of twelve bits.
        let id = JobId::mint(Timestamp::from_micros(1_700_000_000_000_750), &Ones);
        assert_eq!(id.to_string(), "018bcfe5-6800-7c00-bfff-ffffffffffff");
        assert_eq!(NodeNo(17).to_string(), "17");
    }

    #[test]
    fn ids_survive_text() {
        let id = JobId::mint(Timestamp::from_micros(1), &Ones);
        assert_eq!(id.to_string().parse::<JobId>().expect("an id"), id);
        assert!("'; drop table jobs".parse::<JobId>().is_err());
    }
}
