//! Points in time as stores keep them, whole microseconds since the Unix epoch, and durations as people write them.

use std::fmt;
use std::fmt::Write as _;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// A point in time, in microseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The Unix epoch.
    pub const EPOCH: Timestamp = Timestamp(0);
    /// The last point in time that there is.
    pub const MAX: Timestamp = Timestamp(i64::MAX);

    /// From microseconds since the Unix epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Timestamp(micros)
    }

    /// Microseconds since the Unix epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// This point plus a duration; the largest representable point if that does not fit.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Timestamp(self.0.saturating_add(micros(duration)))
    }

    /// This point minus a duration.
    #[must_use]
    pub fn before(self, duration: Duration) -> Self {
        Timestamp(self.0.saturating_sub(micros(duration)))
    }

    /// The time that has passed since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

/// A duration as whole milliseconds, capped to what four bytes can hold: 24 days. How stores keep what is only looked at.
pub fn millis(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}

/// A duration as whole microseconds, capped to what a [`Timestamp`] can hold.
pub fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => Timestamp(micros(since)),
            Err(before) => Timestamp(micros(before.duration()).saturating_neg()),
        }
    }
}

impl fmt::Display for Timestamp {
    /// ISO 8601 in UTC with milliseconds, e.g. `2026-11-15T08:43:03.120Z`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.div_euclid(1_000);
        let (days, of_day) = (millis.div_euclid(86_400_000), millis.rem_euclid(86_400_000));
        let (year, month, day) = civil(days);
        let (hours, minutes) = (of_day / 3_600_000, of_day / 60_000 % 60);
        let (seconds, millis) = (of_day / 1_000 % 60, of_day % 1_000);
        write!(f, "{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}.{millis:03}Z")
    }
}

/// Year, month and day of a count of days since the Unix epoch, in the proleptic Gregorian calendar.
///
/// Years are counted from March, so that the leap day is the last of its year; an era is 400 such years.
fn civil(days: i64) -> (i64, i64, i64) {
    const DAYS_PER_ERA: i64 = 146_097;
    let from_march_0000 = days + 719_468;
    let era = from_march_0000.div_euclid(DAYS_PER_ERA);
    let of_era = from_march_0000.rem_euclid(DAYS_PER_ERA);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    (year, month, day)
}

/// A duration as people write it: `250ms`, `30s`, `5m`, `2h`, `7d`, or several of these together (`1h30m`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Span(pub Duration);

/// Units from large to small, in microseconds.
const UNITS: [(&str, u64); 6] = [
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = u64::try_from(self.0.as_micros()).unwrap_or(u64::MAX);
        if rest == 0 {
            return f.pad("0s");
        }
        let mut text = String::new();
        for (unit, size) in UNITS {
            if rest >= size {
                write!(text, "{}{unit}", rest / size)?;
                rest %= size;
            }
        }
        f.pad(&text)
    }
}

impl FromStr for Span {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || Error::Invalid {
            what: "duration",
            why: format!("`{text}` is not a duration like 250ms, 30s, 5m, 2h, 7d or 1h30m"),
        };
        let mut total = 0_u64;
        let mut rest = text;
        if rest.is_empty() {
            return Err(bad());
        }
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
            let number: u64 = rest[..digits].parse().map_err(|_| bad())?;
            rest = &rest[digits..];
            let letters = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
            let (_, size) = UNITS.iter().find(|(unit, _)| *unit == &rest[..letters]).ok_or_else(bad)?;
            total = number.checked_mul(*size).and_then(|n| total.checked_add(n)).ok_or_else(bad)?;
            rest = &rest[letters..];
        }
        Ok(Span(Duration::from_micros(total)))
    }
}

impl TryFrom<String> for Span {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Span> for String {
    fn from(span: Span) -> String {
        span.to_string()
    }
}

/// Keeps a [`Duration`] as a [`Span`]: for `#[serde(with = …)]`.
pub(crate) mod as_span {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Span;

    pub(crate) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        Span(*duration).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        Span::deserialize(deserializer).map(|span| span.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displays_as_iso_8601() {
        assert_eq!(Timestamp::EPOCH.to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(Timestamp::from_micros(951_782_400_000_000).to_string(), "2000-02-29T00:00:00.000Z");
        assert_eq!(Timestamp::from_micros(1_794_732_183_120_999).to_string(), "2026-11-15T08:43:03.120Z");
        assert_eq!(Timestamp::from_micros(-1).to_string(), "1969-12-31T23:59:59.999Z");
    }

    #[test]
    fn leap_days_are_where_the_calendar_has_them() {
        let day = |days: i64| Timestamp::from_micros(days * 86_400_000_000).to_string()[..10].to_owned();
        let (february, march) = ([-25_509, 10_956, 11_015, 47_540], [-25_508, 10_957, 11_017, 47_541]);
        assert_eq!(february.map(day), ["1900-02-28", "1999-12-31", "2000-02-28", "2100-02-28"]);
        assert_eq!(march.map(day), ["1900-03-01", "2000-01-01", "2000-03-01", "2100-03-01"]);
    }

    #[test]
    fn points_and_durations_add_up() {
        let (start, second) = (Timestamp::from_micros(5), Duration::from_secs(1));
        assert_eq!(start.after(second), Timestamp::from_micros(1_000_005));
        assert_eq!(start.before(second), Timestamp::from_micros(-999_995));
        assert_eq!(start.after(second).since(start), second);
    }

    #[test]
    fn a_system_time_is_the_same_point() {
        let second = Duration::from_secs(1);
        let epoch = SystemTime::UNIX_EPOCH;
        assert_eq!(Timestamp::from(epoch + second), Timestamp::from_micros(1_000_000));
        let earlier = epoch.checked_sub(second).expect("a time before the epoch");
        assert_eq!(Timestamp::from(earlier), Timestamp::from_micros(-1_000_000));
    }

    #[test]
    fn spans_are_written_as_people_write_them() {
        let spans = [
            (0, "0s"),
            (1, "1us"),
            (250_000, "250ms"),
            (5_400_000_000, "1h30m"),
            (86_400_000_000, "1d"),
            (86_399_999_999, "23h59m59s999ms999us"),
        ];
        for (micros, text) in spans {
            let span = Span(Duration::from_micros(micros));
            assert_eq!((span.to_string().as_str(), text.parse::<Span>().ok()), (text, Some(span)));
            assert_eq!(serde_json::to_string(&span).expect("json"), format!("\"{text}\""));
        }
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Timestamp::from_micros(i64::MAX).after(Duration::MAX), Timestamp::from_micros(i64::MAX));
        assert_eq!(Timestamp::EPOCH.since(Timestamp::from_micros(5)), Duration::ZERO);
    }

    #[test]
    fn spans_refuse_overflow_and_nonsense() {
        assert_eq!("1d2h".parse::<Span>().expect("a span").0, Duration::from_hours(26));
        for bad in ["", "s", "-1s", "1.5s", "99999999999999999999d", "213503983d1"] {
            assert!(bad.parse::<Span>().is_err(), "{bad}");
        }
    }
}
