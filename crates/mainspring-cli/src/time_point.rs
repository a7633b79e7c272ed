//! Points in time as people write them: a duration from now, or a date and time.

use std::str::FromStr;
use std::time::Duration;

use mainspring::enqueue::When;
use mainspring::time::{Span, Timestamp};

/// A point in time on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimePoint {
    /// This far from now; in which direction depends on the option.
    Away(Duration),
    /// At this time.
    At(Timestamp),
}

impl TimePoint {
    /// For an option that looks ahead.
    pub(crate) fn ahead(self) -> When {
        match self {
            TimePoint::Away(delay) => When::After(delay),
            TimePoint::At(at) => When::At(at),
        }
    }

    /// For an option that looks back.
    pub(crate) fn back(self, now: Timestamp) -> Timestamp {
        match self {
            TimePoint::Away(delay) => now.before(delay),
            TimePoint::At(at) => at,
        }
    }
}

impl FromStr for TimePoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(span) = text.parse::<Span>() {
            return Ok(TimePoint::Away(span.0));
        }
        let at = |time: jiff::Timestamp| TimePoint::At(Timestamp::from_micros(time.as_microsecond()));
        if let Ok(time) = text.parse::<jiff::Timestamp>() {
            return Ok(at(time));
        }
        // Without a zone it is the user's own.
        let local = text
            .parse::<jiff::civil::DateTime>()
            .and_then(|time| time.to_zoned(jiff::tz::TimeZone::system()));
        local.map(|time| at(time.timestamp())).map_err(|_| {
            format!("`{text}` is neither a duration like 90s or 2h nor a time like 2026-11-15T08:30:00Z")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_times_are_read() {
        assert_eq!("90s".parse(), Ok(TimePoint::Away(Duration::from_secs(90))));
        let at = TimePoint::At(Timestamp::from_micros(951_782_400_000_000));
        assert_eq!("2000-02-29T00:00:00Z".parse(), Ok(at));
        assert_eq!("2000-02-29T01:00:00+01:00".parse(), Ok(at));
        assert!("2000-02-29T00:00".parse::<TimePoint>().is_ok());
        for bad in ["", "tomorrow", "2000-02-30T00:00:00Z", "-5s"] {
            assert!(bad.parse::<TimePoint>().is_err(), "{bad}");
        }
    }
}
