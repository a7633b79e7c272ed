//! Rates: a token bucket, kept as one point in time (GCRA).
//!
//! A limit key with a rate has a time `next_free`: the time at which its bucket is full again. A token costs one
//! *interval*, and the bucket holds `burst` of them. So a key that has rested admits `burst` jobs at once, and then one
//! per interval. All arithmetic is in whole microseconds of the store's time.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::{Span, Timestamp, micros};
use crate::{Error, Result, bounds};

/// So many jobs in so much time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// How many units.
    pub count: u32,
    /// In how much time.
    pub per: Span,
    /// How many at once, after a rest.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub burst: u32,
}

const fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
const fn is_one(burst: &u32) -> bool {
    *burst == 1
}

impl Rate {
    /// So many in so much time, one at a time.
    pub const fn new(count: u32, per: Duration) -> Self {
        Rate { count, per: Span(per), burst: 1 }
    }

    /// Sets how many may start at once after a rest.
    #[must_use]
    pub const fn burst(mut self, burst: u32) -> Self {
        self.burst = burst;
        self
    }

    /// Checks the bounds.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn check(&self) -> Result<()> {
        const WHAT: &str = "rate";
        let bad = |why: String| Err(Error::Invalid { what: WHAT, why });
        for (what, number) in [("count", self.count), ("burst", self.burst)] {
            if number == 0 || number > bounds::LIMIT_MAX {
                return bad(format!("the {what} {number} is not between 1 and {}", bounds::LIMIT_MAX));
            }
        }
        if self.per.0.as_micros() == 0 || self.per.0 > bounds::DELAY {
            return bad(format!("{} is not between a microsecond and ten years", self.per));
        }
        if self.full().saturating_add(self.interval()) > micros(bounds::DELAY) {
            return bad("its burst takes more than ten years to come back".into());
        }
        Ok(())
    }

    /// Microseconds per token, rounded up, so that no window ever has too many.
    pub fn interval(&self) -> i64 {
        let count = i64::from(self.count.max(1));
        let per = micros(self.per.0).max(1);
        per / count + i64::from(per % count != 0)
    }

    /// Microseconds that an empty bucket takes to be full.
    fn full(&self) -> i64 {
        self.interval().saturating_mul(i64::from(self.burst))
    }

    /// When the bucket is full again, as of `now`: not before now, and not further ahead than the last jobs can have
    /// put it.
    fn full_at(&self, next_free: Option<Timestamp>, now: Timestamp) -> i64 {
        let now_micros = now.as_micros();
        next_free.map_or(now_micros, Timestamp::as_micros).clamp(now_micros, self.furthest(now).as_micros())
    }

    /// The furthest that `next_free` can be ahead: what a full burst and one more job take. It is further ahead after
    /// the clock went back, or the rate was raised. Stores then keep this instead, when a job meets the key, so that
    /// nobody waits for longer.
    pub fn furthest(&self, now: Timestamp) -> Timestamp {
        let tokens = i64::from(self.burst) + i64::from(bounds::UNITS);
        Timestamp::from_micros(now.as_micros().saturating_add(self.interval().saturating_mul(tokens)))
    }

    /// Tokens that a job of so many units waits for. One that takes more than the bucket holds waits for a full one;
    /// the next job waits the longer for it.
    fn needed(&self, units: u16) -> i64 {
        i64::from(units).min(i64::from(self.burst))
    }

    /// How many tokens there are.
    pub fn tokens(&self, next_free: Option<Timestamp>, now: Timestamp) -> u32 {
        let free = self.full() - (self.full_at(next_free, now) - now.as_micros());
        u32::try_from((free / self.interval()).max(0)).unwrap_or(u32::MAX)
    }

    /// How many jobs of so many units each may start now.
    pub fn room(&self, next_free: Option<Timestamp>, units: u16, now: Timestamp) -> u32 {
        let spare = i64::from(self.tokens(next_free, now)) - self.needed(units);
        if spare < 0 {
            return 0;
        }
        u32::try_from(spare / i64::from(units.max(1)) + 1).unwrap_or(u32::MAX)
    }

    /// When a job of so many units may start: not before now.
    pub fn due(&self, next_free: Option<Timestamp>, units: u16, now: Timestamp) -> Timestamp {
        let missing = self.full() - self.needed(units) * self.interval();
        let at = self.full_at(next_free, now).saturating_sub(missing);
        Timestamp::from_micros(at.max(now.as_micros()))
    }

    /// `next_free` after so many units were taken.
    #[must_use]
    pub fn take(&self, next_free: Option<Timestamp>, units: u32, now: Timestamp) -> Timestamp {
        let taken = self.interval().saturating_mul(i64::from(units));
        Timestamp::from_micros(self.full_at(next_free, now).saturating_add(taken))
    }
}

impl fmt::Display for Rate {
    /// `100/1m`, or `100/1m burst 10`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.count, self.per)?;
        if self.burst == 1 { Ok(()) } else { write!(f, " burst {}", self.burst) }
    }
}

impl FromStr for Rate {
    type Err = Error;

    /// Reads `100/1m`, `5/s` and `100/1m burst 10`.
    fn from_str(text: &str) -> Result<Self> {
        let bad = || Error::Invalid {
            what: "rate",
            why: format!("`{text}` is not a rate like `100/1m`, `5/s` or `100/1m burst 10`"),
        };
        let (rate, burst) = match text.split_once(" burst ") {
            Some((rate, burst)) => (rate, burst.trim().parse().map_err(|_| bad())?),
            None => (text, 1),
        };
        let (count, per) = rate.split_once('/').ok_or_else(bad)?;
        let count = count.trim().parse().map_err(|_| bad())?;
        let per = per.trim();
        let per: Span = if per.starts_with(|c: char| c.is_ascii_digit()) {
            per.parse()
        } else {
            format!("1{per}").parse()
        }
        .map_err(|_| bad())?;
        let rate = Rate { count, per, burst };
        rate.check().map(|()| rate)
    }
}
