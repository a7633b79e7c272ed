//! When something happens again and again: by a cron expression, or every so often.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use super::Cron;
use crate::time::{Span, Timestamp, micros};
use crate::{Error, Result, bounds};

/// One of the ways in which a [`Rule`](super::Rule) names times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Times {
    /// At the local times of a cron expression.
    Cron(Cron),
    /// Every so often, by elapsed time: no zone and no change of clocks matters.
    Every {
        /// The time between two fires, in whole microseconds.
        period: Duration,
        /// When the first fire is; `None`: at the Unix epoch, so that `every 1h` fires on the hour (UTC).
        from: Option<Timestamp>,
    },
}

impl Times {
    /// Every so often, counted from the Unix epoch.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the period is shorter than a second or longer than ten years.
    pub fn every(period: Duration) -> Result<Self> {
        if period < bounds::PERIOD_MIN || period > bounds::DELAY {
            let why = format!("every {} is not between every 1s and every ten years", Span(period));
            return Err(Error::Invalid { what: "schedule", why });
        }
        Ok(Times::Every { period, from: None })
    }

    /// The first time after `after`.
    pub(super) fn after(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        match self {
            Times::Cron(cron) => {
                // Rounded down to a second, which names whole seconds alone.
                let seconds = after.as_micros().div_euclid(1_000_000);
                let found = cron.after(jiff::Timestamp::from_second(seconds).ok()?, zone)?;
                Some(Timestamp::from_micros(found.as_microsecond()))
            }
            Times::Every { period, from } => {
                let (period, from) = (micros(*period), from.unwrap_or(Timestamp::EPOCH).as_micros());
                let periods = after.as_micros().checked_sub(from)?.div_euclid(period) + 1;
                from.checked_add(periods.max(0).checked_mul(period)?).map(Timestamp::from_micros)
            }
        }
    }

    /// What it says, in words.
    pub fn describe(&self) -> String {
        match self {
            Times::Cron(cron) => cron.describe(),
            Times::Every { .. } => self.to_string(),
        }
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Times::Cron(cron) => cron.fmt(f),
            Times::Every { period, from: None } => write!(f, "every {}", Span(*period)),
            Times::Every { period, from: Some(from) } => {
                write!(f, "every {} from {}", Span(*period), exact(*from))
            }
        }
    }
}

/// A point in time with all its microseconds, as [`point`] reads it.
pub(super) fn exact(at: Timestamp) -> String {
    jiff::Timestamp::from_microsecond(at.as_micros()).map_or_else(|_| at.to_string(), |at| at.to_string())
}

/// A point in time, written as RFC 3339 has it.
pub(super) fn point(text: &str) -> Result<Timestamp> {
    let bad =
        || Error::Invalid { what: "time", why: format!("`{text}` is not a time like 2027-01-31T09:00:00Z") };
    let at: jiff::Timestamp = text.parse().map_err(|_| bad())?;
    Ok(Timestamp::from_micros(at.as_microsecond()))
}

impl FromStr for Times {
    type Err = Error;

    /// `every 5m`, `every 90m from 2027-01-31T09:00:00Z`, `@every 5m`, or a cron expression.
    fn from_str(text: &str) -> Result<Self> {
        let mut words = text.split_whitespace();
        if !matches!(words.next(), Some("every" | "@every")) {
            return Ok(Times::Cron(text.parse()?));
        }
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some(period), None, ..) => Times::every(period.parse::<Span>()?.0),
            (Some(period), Some("from"), Some(from), None) => {
                let Times::Every { period, .. } = Times::every(period.parse::<Span>()?.0)? else {
                    unreachable!("every makes no cron expression");
                };
                Ok(Times::Every { period, from: Some(point(from)?) })
            }
            _ => Err(Error::Invalid {
                what: "schedule",
                why: format!(
                    "`{text}` is not of the form `every 5m` or `every 5m from 2027-01-31T09:00:00Z`"
                ),
            }),
        }
    }
}

impl From<Cron> for Times {
    fn from(cron: Cron) -> Self {
        Times::Cron(cron)
    }
}

impl TryFrom<String> for Times {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Times> for String {
    fn from(times: Times) -> String {
        times.to_string()
    }
}
