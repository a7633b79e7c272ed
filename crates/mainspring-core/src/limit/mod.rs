//! Limits: how many jobs run at once and how fast they start, over all nodes.
//!
//! A *limit* is a name with a maximum, a [`Rate`], or both. A job says with [`LimitUse`]s which limits it takes part
//! in, under which key, and how many units it takes. A *limit key* is one pair of a limit and a key; it has counters of
//! its own ([`KeyState`]). Everything here is pure: stores keep the rows, and these functions say what a row admits and
//! what it becomes.
//!
//! # Invariants
//! - A limit counts claims and nothing else. What a claim took goes back in the commit that ends the claim.
//! - A claim takes the units of all limit keys of its job, or none.
//! - A limit that does not exist (any more) admits every job that names it.

mod admit;
mod definition;
mod obstacle;
mod rate;

#[cfg(test)]
mod tests;

pub use admit::{Closed, KeyState, closed, room};
pub use definition::{Change, Definition, KeyChange, Limit, LimitSeed, Seed, Total, TotalUse};
pub use obstacle::{KeyHolder, KeyUse, LimitKey, Obstacle};
pub use rate::Rate;

use serde::{Deserialize, Serialize};

use crate::name::LimitName;
use crate::{Error, Result, bounds};

/// What one job takes of one limit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LimitUse {
    /// The limit.
    pub limit: LimitName,
    /// The key: each has a maximum, a rate and counters of its own. Empty if the limit is not divided.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// How many units.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub units: u16,
}

const fn one() -> u16 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
const fn is_one(units: &u16) -> bool {
    *units == 1
}

impl LimitUse {
    /// One unit of a limit that is not divided.
    pub fn new(limit: LimitName) -> Self {
        LimitUse { limit, key: String::new(), units: 1 }
    }

    /// Sets the key.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = key.into();
        self
    }

    /// Sets the units.
    #[must_use]
    pub fn units(mut self, units: u16) -> Self {
        self.units = units;
        self
    }

    /// Whether both take of the same limit key.
    pub fn is_same_key(&self, other: &LimitUse) -> bool {
        self.limit == other.limit && self.key == other.key
    }
}

/// Checks the limits of a job: not too many of them, each limit key once, and in order.
///
/// # Errors
/// [`Error::TooLarge`] or [`Error::Invalid`].
pub fn check_uses(uses: &[LimitUse]) -> Result<()> {
    if uses.len() > bounds::JOB_LIMITS {
        return Err(Error::TooLarge { what: "limits", size: uses.len(), limit: bounds::JOB_LIMITS });
    }
    for one in uses {
        check_key(&one.key)?;
        if one.units == 0 {
            return Err(Error::Invalid { what: "units", why: "zero".into() });
        }
    }
    let units = uses.iter().map(|one| usize::from(one.units)).sum();
    if units > usize::from(bounds::UNITS) {
        return Err(Error::TooLarge { what: "units", size: units, limit: usize::from(bounds::UNITS) });
    }
    if !uses.is_sorted_by(|a, b| (&a.limit, &a.key) < (&b.limit, &b.key)) {
        return Err(Error::Invalid {
            what: "limits",
            why: "not sorted, or a limit key is named twice".into(),
        });
    }
    Ok(())
}

/// Checks the key of a limit: at most 256 bytes without control characters. It may be empty.
///
/// # Errors
/// [`Error::TooLarge`] or [`Error::Invalid`].
pub fn check_key(key: &str) -> Result<()> {
    const WHAT: &str = "limit key";
    if key.len() > bounds::LIMIT_KEY_BYTES {
        return Err(Error::TooLarge { what: WHAT, size: key.len(), limit: bounds::LIMIT_KEY_BYTES });
    }
    match key.chars().find(|c| c.is_control()) {
        None => Ok(()),
        Some(c) => Err(Error::Invalid { what: WHAT, why: format!("control character {c:?} is not allowed") }),
    }
}

/// The error for a limit that a job names and nobody has defined, with the name that was probably meant.
pub fn unknown<'l>(limit: &LimitName, known: impl Iterator<Item = &'l LimitName>) -> Error {
    let distance = |name: &&LimitName| distance(limit.as_str(), name.as_str());
    let similar = known.min_by_key(distance).filter(|name| distance(name) <= 1 + limit.as_str().len() / 4);
    Error::UnknownLimit { limit: limit.clone(), similar: similar.cloned() }
}

/// How many letters have to be put in, left out or replaced to make one name of the other.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, a) in one.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (to, b) in other.bytes().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[to + 1];
            row[to + 1] = replaced.min(row[to] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}
