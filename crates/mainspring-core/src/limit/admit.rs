//! Admission: what a limit key lets in now.

use super::{Definition, Limit};
use crate::time::Timestamp;

/// What a store keeps of a limit key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyState {
    /// Units that claims hold, and jobs that keep theirs while they wait.
    pub in_use: u32,
    /// A maximum of its own, instead of the limit's.
    pub max: Option<u32>,
    /// Whether it lets nobody in.
    pub paused: bool,
    /// When its bucket of tokens is full again, if the limit has a rate; see [`Rate`](super::Rate).
    pub next_free: Option<Timestamp>,
}

impl KeyState {
    /// How many units it has at most; `None`: any number.
    pub fn max(&self, limit: Option<&Limit>) -> Option<u32> {
        let of_limit = |limit: &Limit| self.max.or(limit.definition.max);
        limit.and_then(of_limit)
    }

    /// The state after so many units were taken.
    #[must_use]
    pub fn take(mut self, limit: Option<&Limit>, units: u32, now: Timestamp) -> Self {
        self.in_use = self.in_use.saturating_add(units);
        if let Some(Limit { definition: Definition { rate: Some(rate), .. }, .. }) = limit {
            self.next_free = Some(rate.take(self.next_free, units, now));
        }
        self
    }

    /// The state that is kept when a job waits at the key: with a time that can be waited for, see
    /// [`Rate::furthest`](super::Rate::furthest).
    #[must_use]
    pub fn waited_for(mut self, limit: Option<&Limit>, now: Timestamp) -> Self {
        if let Some(Limit { definition: Definition { rate: Some(rate), .. }, .. }) = limit {
            self.next_free = self.next_free.map(|next_free| next_free.min(rate.furthest(now)));
        }
        self
    }

    /// The state after so many units were given back. Tokens are not: a start is a start.
    #[must_use]
    pub fn give_back(mut self, units: u32) -> Self {
        self.in_use = self.in_use.saturating_sub(units);
        self
    }
}

/// Why a limit key does not let a job in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// The limit or the key is paused.
    Paused,
    /// There is no room for the job's units.
    Full {
        /// The maximum.
        max: u32,
    },
    /// Only time is missing: a job may start then.
    Rate {
        /// When.
        until: Timestamp,
    },
}

/// How many jobs of so many units each a limit key lets in now. `limit` is `None` if nobody defines the limit.
pub fn room(limit: Option<&Limit>, key: &KeyState, units: u16, now: Timestamp) -> u32 {
    let Some(limit) = limit else { return u32::MAX };
    if limit.paused || key.paused {
        return 0;
    }
    let max = key.max(Some(limit));
    let free = max.map_or(u32::MAX, |max| max.saturating_sub(key.in_use) / u32::from(units.max(1)));
    let tokens = limit.definition.rate.map_or(u32::MAX, |rate| rate.room(key.next_free, units, now));
    free.min(tokens)
}

/// Why a limit key does not let a job of so many units in now; `None` if it does. It does exactly if [`room`] is above
/// zero.
pub fn closed(limit: Option<&Limit>, key: &KeyState, units: u16, now: Timestamp) -> Option<Closed> {
    if room(limit, key, units, now) > 0 {
        return None;
    }
    let limit = limit?;
    if limit.paused || key.paused {
        return Some(Closed::Paused);
    }
    let full = key.max(Some(limit)).filter(|max| max.saturating_sub(key.in_use) < u32::from(units));
    let rate = || limit.definition.rate.map(|rate| rate.due(key.next_free, units, now));
    full.map(|max| Closed::Full { max }).or_else(|| rate().map(|until| Closed::Rate { until }))
}
