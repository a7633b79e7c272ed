//! Cron expressions: which local times they name, and when those come.
//!
//! An expression has five fields (minute, hour, day of month, month, day of week) or six, with seconds in front.
//! [`parse`](mod@parse) turns it into sets of bits; a search walks from set bit to set bit, never from minute to minute. Days are
//! computed month by month ([`days`]), because `L`, `W` and `#` depend on the month.
//!
//! Where clocks change, an expression is one of two things:
//!
//! | | a local time that is skipped | a local time that comes twice |
//! |---|---|---|
//! | **fixed**: no `*` in seconds, minutes and hours | fires at the first instant after the gap | fires the first time |
//! | **interval**: a `*` in one of them | does not fire | fires both times |
//!
//! So a nightly job runs once every night, and a job that runs every ten minutes runs every ten minutes.
//!
//! # Invariants
//! - Times are strictly increasing: each call gives a time after the one that it was asked about.
//! - Every search ends: at the first match, or [`HORIZON_YEARS`] ahead.

mod days;
mod describe;
mod parse;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use jiff::ToSpan as _;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};
use serde::{Deserialize, Serialize};

use self::days::Days;
pub use self::parse::Fault;
use crate::Error;

/// How far ahead a search looks. The rarest times come within 40 years: a 29 February on a given day of the week, across
/// a year 2100 that has none.
pub const HORIZON_YEARS: i16 = 50;

/// A parsed cron expression.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cron {
    text: Arc<str>,
    /// Bit n: second n.
    seconds: u64,
    minutes: u64,
    hours: u64,
    /// Bit n: month n, from 1.
    months: u64,
    days: Days,
    /// Whether it follows elapsed time where clocks change.
    interval: bool,
}

impl Cron {
    /// Parses an expression of five or six fields, or a name such as `@daily`.
    ///
    /// # Errors
    /// A [`Fault`], with the column where it is.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        parse::cron(text)
    }

    /// The expression as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it follows elapsed time where clocks change, because its seconds, minutes or hours have a `*`.
    pub fn is_interval(&self) -> bool {
        self.interval
    }

    /// What it says, in words: "at 09:00, on Monday to Friday".
    pub fn describe(&self) -> String {
        describe::describe(self)
    }

    /// The first time strictly after `after` (in whole seconds since the epoch) within [`HORIZON_YEARS`].
    pub(super) fn after(&self, after: jiff::Timestamp, zone: &TimeZone) -> Option<jiff::Timestamp> {
        if self.interval { self.after_elapsed(after, zone) } else { self.after_fixed(after, zone) }
    }

    /// Between two changes of the clocks, local time moves as elapsed time does: it is searched piece by piece.
    fn after_elapsed(&self, after: jiff::Timestamp, zone: &TimeZone) -> Option<jiff::Timestamp> {
        let mut start = after.checked_add(1.second()).ok()?;
        let horizon = horizon(zone.to_datetime(start));
        loop {
            let offset = zone.to_offset(start);
            let end = zone.following(start).next().map(|change| change.timestamp());
            let at =
                self.next_local(offset.to_datetime(start), horizon).map(|local| offset.to_timestamp(local));
            match (at, end) {
                (Some(Ok(at)), None) => return Some(at),
                (Some(Ok(at)), Some(end)) if at < end => return Some(at),
                (_, Some(end)) if zone.to_datetime(end) < horizon => start = end,
                _ => return None,
            }
        }
    }

    /// Every local time is mapped to one instant. The mapping never decreases, so the first local time whose instant is
    /// late enough is the answer.
    fn after_fixed(&self, after: jiff::Timestamp, zone: &TimeZone) -> Option<jiff::Timestamp> {
        let mut local = zone.to_datetime(after).checked_add(1.second()).ok()?;
        let horizon = horizon(local);
        loop {
            let found = self.next_local(local, horizon)?;
            let at = instant(found, zone)?;
            if at > after {
                return Some(at);
            }
            local = found.checked_add(1.second()).ok()?;
        }
    }

    /// The first local time from `from` on, before the horizon.
    fn next_local(&self, from: DateTime, horizon: DateTime) -> Option<DateTime> {
        let (mut year, mut month) = (from.year(), from.month());
        let mut first_day = from.day();
        let mut time = (from.hour(), from.minute(), from.second());
        while (year, month) <= (horizon.year(), horizon.month()) {
            let days = if has(self.months, month) { self.days.of(year, month) } else { 0 };
            let mut from_day = first_day;
            while let Some(day) = next_bit(days, from_day) {
                if day > first_day {
                    time = (0, 0, 0);
                }
                if let Some((hour, minute, second)) = self.next_time(time) {
                    return DateTime::new(year, month, day, hour, minute, second, 0).ok();
                }
                from_day = day + 1;
            }
            (year, month) = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
            (first_day, time) = (1, (0, 0, 0));
        }
        None
    }

    /// The first time of a day from the given one on.
    fn next_time(&self, (hour, minute, second): (i8, i8, i8)) -> Option<(i8, i8, i8)> {
        let first = |set| next_bit(set, 0).expect("a parsed field names something");
        if has(self.hours, hour) {
            if has(self.minutes, minute)
                && let Some(second) = next_bit(self.seconds, second)
            {
                return Some((hour, minute, second));
            }
            if let Some(minute) = next_bit(self.minutes, minute + 1) {
                return Some((hour, minute, first(self.seconds)));
            }
        }
        let hour = next_bit(self.hours, hour + 1)?;
        Some((hour, first(self.minutes), first(self.seconds)))
    }

    /// If a local time is among those it names: a later one, up to which all are (no further than a day on).
    pub(super) fn named_until(&self, local: DateTime) -> Option<DateTime> {
        let day =
            has(self.months, local.month()) && has(self.days.of(local.year(), local.month()), local.day());
        let time = has(self.hours, local.hour())
            && has(self.minutes, local.minute())
            && has(self.seconds, local.second());
        if !(day && time) {
            return None;
        }
        let (date, hour, minute) = (local.date(), local.hour(), local.minute());
        let (whole_minute, whole_hour, whole_day) =
            (self.seconds == parse::ALL_60, self.minutes == parse::ALL_60, self.hours == parse::ALL_24);
        let until = match (whole_minute, whole_hour, whole_day) {
            (true, true, true) => date.at(0, 0, 0, 0).checked_add(1.day()),
            (true, true, false) => date.at(hour, 0, 0, 0).checked_add(1.hour()),
            (true, false, _) => date.at(hour, minute, 0, 0).checked_add(1.minute()),
            (false, ..) => date.at(hour, minute, local.second(), 0).checked_add(1.second()),
        };
        until.ok()
    }

    /// The same expression, but one of five fields names all seconds of its minutes.
    pub(super) fn of_whole_minutes(mut self) -> Self {
        if !self.has_seconds() {
            self.seconds = parse::ALL_60;
        }
        self
    }

    fn has_seconds(&self) -> bool {
        self.text.split_whitespace().count() == 6
    }
}

/// The instant of a local time: the first one if it comes twice, the end of the gap if it is skipped.
fn instant(local: DateTime, zone: &TimeZone) -> Option<jiff::Timestamp> {
    match zone.to_ambiguous_timestamp(local).offset() {
        AmbiguousOffset::Unambiguous { offset } | AmbiguousOffset::Fold { before: offset, .. } => {
            offset.to_timestamp(local).ok()
        }
        AmbiguousOffset::Gap { after, .. } => {
            // Read with the offset that holds after the gap, a skipped time lies just before it.
            let before = after.to_timestamp(local).ok()?;
            zone.following(before).next().map(|change| change.timestamp())
        }
    }
}

/// Where a search that starts here ends: at the end of the calendar at the latest.
fn horizon(from: DateTime) -> DateTime {
    from.checked_add(HORIZON_YEARS.years()).unwrap_or(DateTime::MAX)
}

fn has(set: u64, bit: i8) -> bool {
    set >> bit & 1 == 1
}

/// The lowest bit that is set, from `from` on.
fn next_bit(set: u64, from: i8) -> Option<i8> {
    let rest = set.checked_shr(u32::try_from(from).ok()?)?;
    (rest != 0).then(|| from + i8::try_from(rest.trailing_zeros()).expect("fewer than 64"))
}

impl PartialEq for Cron {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Cron {}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl FromStr for Cron {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Ok(Cron::parse(text)?)
    }
}

impl TryFrom<String> for Cron {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<Cron> for String {
    fn from(cron: Cron) -> String {
        cron.text.as_ref().into()
    }
}
