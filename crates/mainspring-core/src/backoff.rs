//! Backoff: how long a failed job waits before its next attempt.
//!
//! The delay depends on how often the job has failed, and is then spread by a quarter up or down, so that jobs that
//! failed together do not come back together.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::bounds;
use crate::seam::Rng;
use crate::time::Span;
use crate::{Error, Result};

/// The growth of the delay between attempts. Every delay is spread by up to a quarter in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Backoff {
    /// `base`, twice that, four times that, … up to `max`.
    Exponential {
        /// The first delay.
        base: Duration,
        /// The longest delay.
        max: Duration,
    },
    /// `step`, twice that, three times that, … up to `max`.
    Linear {
        /// The first delay, and what is added each time.
        step: Duration,
        /// The longest delay.
        max: Duration,
    },
    /// Always the same delay.
    Fixed(Duration),
}

impl Default for Backoff {
    /// From one second to one hour, doubling.
    fn default() -> Self {
        Backoff::Exponential { base: Duration::from_secs(1), max: Duration::from_hours(1) }
    }
}

impl Backoff {
    /// Checks that a store can keep it: its first delay is not above its longest.
    ///
    /// # Errors
    /// [`Error::Invalid`] otherwise.
    pub fn check(self) -> Result<()> {
        let (first, longest) = match self {
            Backoff::Exponential { base, max } => (base, max),
            Backoff::Linear { step, max } => (step, max),
            Backoff::Fixed(delay) => (delay, delay),
        };
        if first > longest {
            let (first, longest) = (Span(first), Span(longest));
            let why = format!("its first delay, {first}, is above its longest, {longest}");
            return Err(Error::Invalid { what: "backoff", why });
        }
        Ok(())
    }

    /// Returns the delay after the given number of failures (1 for the first), spread by ±25 %.
    pub fn delay(self, failures: u16, rng: &dyn Rng) -> Duration {
        let plain = self.plain(failures).min(bounds::DELAY);
        plain.mul_f64(0.75 + rng.next_unit() / 2.0).min(bounds::DELAY)
    }

    /// The delay before it is spread.
    fn plain(self, failures: u16) -> Duration {
        let failures = u32::from(failures.max(1));
        match self {
            Backoff::Exponential { base, max } => {
                let factor = 1_u32.checked_shl(failures - 1).unwrap_or(u32::MAX);
                base.saturating_mul(factor).min(max)
            }
            Backoff::Linear { step, max } => step.saturating_mul(failures).min(max),
            Backoff::Fixed(delay) => delay,
        }
    }
}

impl fmt::Display for Backoff {
    /// `exponential:1s..1h`, `linear:10s..5m` or `fixed:30s`: what [`FromStr`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Backoff::Exponential { base, max } => write!(f, "exponential:{}..{}", Span(*base), Span(*max)),
            Backoff::Linear { step, max } => write!(f, "linear:{}..{}", Span(*step), Span(*max)),
            Backoff::Fixed(delay) => write!(f, "fixed:{}", Span(*delay)),
        }
    }
}

impl FromStr for Backoff {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || Error::Invalid {
            what: "backoff",
            why: format!("`{text}` is not of the form exponential:1s..1h, linear:10s..5m or fixed:30s"),
        };
        let (shape, rest) = text.split_once(':').ok_or_else(bad)?;
        let range = || -> Result<(Duration, Duration)> {
            let (from, to) = rest.split_once("..").ok_or_else(bad)?;
            let (from, to) = (from.parse::<Span>()?.0, to.parse::<Span>()?.0);
            if from > to { Err(bad()) } else { Ok((from, to)) }
        };
        match shape {
            "exponential" => range().map(|(base, max)| Backoff::Exponential { base, max }),
            "linear" => range().map(|(step, max)| Backoff::Linear { step, max }),
            "fixed" => Ok(Backoff::Fixed(rest.parse::<Span>()?.0)),
            _ => Err(bad()),
        }
    }
}

impl TryFrom<String> for Backoff {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Backoff> for String {
    fn from(backoff: Backoff) -> String {
        backoff.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(u64);
    impl Rng for Fixed {
        fn next_u64(&self) -> u64 {
            self.0
        }
    }

    #[test]
    fn exponential_doubles_up_to_its_maximum() {
        let backoff = Backoff::default();
        let plain: Vec<_> = (1..=5).map(|n| backoff.plain(n).as_secs()).collect();
        assert_eq!(plain, [1, 2, 4, 8, 16]);
        assert_eq!(backoff.plain(40), Duration::from_hours(1));
        assert_eq!(backoff.plain(u16::MAX), Duration::from_hours(1));
    }

    #[test]
    fn linear_grows_by_its_step_up_to_its_maximum() {
        let backoff = Backoff::Linear { step: Duration::from_secs(10), max: Duration::from_secs(35) };
        let plain: Vec<_> = [0, 1, 2, 3, 4, u16::MAX].map(|n| backoff.plain(n).as_secs()).to_vec();
        assert_eq!(plain, [10, 10, 20, 30, 35, 35]);
    }

    #[test]
    fn it_is_stored_as_its_text() {
        let backoff = Backoff::Fixed(Duration::from_secs(30));
        let json = serde_json::to_string(&backoff).expect("json");
        assert_eq!(json, "\"fixed:30s\"");
        assert_eq!(serde_json::from_str::<Backoff>(&json).expect("a backoff"), backoff);
        assert!(serde_json::from_str::<Backoff>("\"fixed\"").is_err());
    }

    #[test]
    fn delay_is_spread_by_a_quarter_and_never_zero() {
        let backoff = Backoff::Fixed(Duration::from_secs(4));
        assert_eq!(backoff.delay(1, &Fixed(0)), Duration::from_secs(3));
        assert!(backoff.delay(1, &Fixed(u64::MAX)) <= Duration::from_secs(5));
        assert!(backoff.delay(1, &Fixed(u64::MAX)) > Duration::from_millis(4_999));
    }

    #[test]
    fn first_delay_is_at_most_the_longest() {
        let (short, long) = (Duration::from_secs(1), Duration::from_secs(2));
        assert!(Backoff::Exponential { base: short, max: short }.check().is_ok());
        assert!(Backoff::Linear { step: short, max: long }.check().is_ok());
        assert!(Backoff::Fixed(long).check().is_ok());
        let error = Backoff::Exponential { base: long, max: short }.check().expect_err("refused").to_string();
        assert_eq!(error, "invalid backoff: its first delay, 2s, is above its longest, 1s");
        assert!(Backoff::Linear { step: long, max: short }.check().is_err());
    }

    #[test]
    fn text_form_round_trips() {
        for text in ["exponential:1s..1h", "linear:10s..5m", "linear:5s..5s", "fixed:1h30m", "fixed:250ms"] {
            assert_eq!(text.parse::<Backoff>().expect("a backoff").to_string(), text);
        }
        for bad in
            ["", "fixed", "fixed:", "fixed:5", "exponential:5s", "linear:1h..1s", "cubic:1s", "fixed:1y"]
        {
            assert!(bad.parse::<Backoff>().is_err(), "{bad}");
        }
    }
}
