//! A rule: when a schedule fires.
//!
//! A rule is one or several [`Times`], a zone, and what narrows them down: [`Except`]ions, a first and a last time, a number
//! of fires. A fire is known by its **nominal** time, the one that the rule names; *jitter* moves all fires of one
//! schedule by the same amount, which follows from the schedule's name, so their order and distance stay what they are.
//!
//! # Invariants
//! - The order of fires is that of their nominal times, and each has another one.
//! - The same rule gives the same fires on every node: no clock, no randomness, no zones of the machine.

use std::fmt::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Except, Times, Zone};
use crate::time::{Span, Timestamp, micros};
use crate::{Error, Result, bounds};

/// When a schedule fires.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// It fires whenever one of these does; at least one.
    pub times: Vec<Times>,
    /// But not at these local times.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<Except>,
    /// Where the local times are; UTC unless it is named.
    #[serde(default)]
    pub zone: Zone,
    /// No fire is before this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Timestamp>,
    /// No fire is after this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// How many jobs it enqueues in all; then the schedule has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Each schedule fires by some amount below this later, always the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Span>,
}

impl Rule {
    /// A rule that fires at these times, in UTC.
    pub fn new(times: impl Into<Times>) -> Self {
        Rule {
            times: vec![times.into()],
            except: Vec::new(),
            zone: Zone::default(),
            from: None,
            until: None,
            count: None,
            jitter: None,
        }
    }

    /// Checks every bound, and that it fires at all after `now`.
    ///
    /// # Errors
    /// [`Error::TooLarge`] or [`Error::Invalid`], naming what is wrong.
    pub fn check(&self, now: Timestamp) -> Result<()> {
        let invalid = |why: &str| Err(Error::Invalid { what: "schedule", why: why.into() });
        if self.times.is_empty() {
            return invalid("it names no times");
        }
        at_most("times of a schedule", self.times.len(), bounds::SCHEDULE_TIMES)?;
        at_most("exceptions of a schedule", self.except.len(), bounds::SCHEDULE_EXCEPTIONS)?;
        if self.jitter.is_some_and(|jitter| jitter.0 > bounds::JITTER) {
            return invalid("its jitter is longer than a day");
        }
        if self.count == Some(0) {
            return invalid("it fires no times at all");
        }
        if let (Some(from), Some(until)) = (self.from, self.until)
            && until < from
        {
            return invalid("it ends before it begins");
        }
        match self.after(now) {
            Some(_) => Ok(()),
            None if self.until.is_some_and(|until| until <= now) => invalid("it never fires: it has ended"),
            None => invalid(
                "it never fires: its exceptions, its end or its zone leave nothing in the next 50 years",
            ),
        }
    }

    /// The first fire with a nominal time after `after`; `None` if there is none within
    /// [`HORIZON_YEARS`](super::HORIZON_YEARS), or behind as many excepted times as
    /// [`EXCEPTED`](crate::bounds::EXCEPTED).
    pub fn after(&self, after: Timestamp) -> Option<Timestamp> {
        let zone = self.zone.inner();
        let mut after = match self.from {
            Some(from) => after.max(Timestamp::from_micros(from.as_micros().saturating_sub(1))),
            None => after,
        };
        for _ in 0..bounds::EXCEPTED {
            let found = self.times.iter().filter_map(|times| times.after(after, zone)).min()?;
            if self.until.is_some_and(|until| found > until) {
                return None;
            }
            match self.excepted_until(found) {
                None => return Some(found),
                Some(until) => after = Timestamp::from_micros(until.as_micros() - 1).max(found),
            }
        }
        None
    }

    /// The last fire with a nominal time after `after`, up to and including `until`.
    ///
    /// [`after`](Rule::after) alone knows when a rule fires. Up to the last fire it gives a time up to `until`, from that on a
    /// later one: the place where that turns is searched by halves.
    pub fn last(&self, after: Timestamp, until: Timestamp) -> Option<Timestamp> {
        let fires = |from: i64| self.after(Timestamp::from_micros(from)).filter(|at| *at <= until);
        // Steps back from the end that double, so that only as much is searched as lies between two fires.
        let (end, start) = (until.as_micros(), after.as_micros());
        let mut step = 1_000_000;
        let mut low = end.saturating_sub(step).max(start);
        let mut high = end;
        let mut found = fires(low);
        while found.is_none() {
            if low <= start {
                return None;
            }
            high = low;
            step *= 2;
            low = end.saturating_sub(step).max(start);
            found = fires(low);
        }
        while let Some(at) = found {
            // Nothing is left to find between the last one that is known and `high`, which has none after it.
            let middle = at.as_micros() + (high - at.as_micros()).max(0) / 2;
            match fires(middle) {
                Some(later) => found = Some(later),
                None if middle <= at.as_micros() => return Some(at),
                None => high = middle,
            }
        }
        None
    }

    /// The last fires after `after`, up to and including `until`: at most `most`, in order.
    pub fn last_many(&self, after: Timestamp, until: Timestamp, most: usize) -> Vec<Timestamp> {
        let mut fires = Vec::new();
        let mut until = until;
        while fires.len() < most
            && let Some(at) = self.last(after, until)
        {
            fires.push(at);
            until = Timestamp::from_micros(at.as_micros() - 1);
        }
        fires.reverse();
        fires
    }

    /// If a time is excepted: a later instant, up to which all are.
    fn excepted_until(&self, at: Timestamp) -> Option<Timestamp> {
        if self.except.is_empty() {
            return None;
        }
        let zone = self.zone.inner();
        let instant = jiff::Timestamp::from_microsecond(at.as_micros()).ok()?;
        let local = zone.to_datetime(instant);
        let until = self.except.iter().filter_map(|except| except.until(local)).max()?;
        // Elapsed time is local time up to the next change of clocks, and no further.
        let elapsed = until.duration_since(local);
        let until = instant.checked_add(elapsed).ok()?;
        let change = zone.following(instant).next().map(|change| change.timestamp());
        let until = change.map_or(until, |change| change.min(until));
        Some(Timestamp::from_micros(until.as_microsecond()))
    }

    /// By how much the fires of a schedule of this name are later than their nominal times.
    pub fn shift(&self, name: &str) -> Duration {
        let Some(jitter) = self.jitter else { return Duration::ZERO };
        let jitter = micros(jitter.0).unsigned_abs();
        Duration::from_micros(if jitter == 0 { 0 } else { super::hash(&[name.as_bytes()]) % jitter })
    }

    /// What it says, in words: "at 09:00, on Monday to Friday (Europe/Berlin), except on 2026-12-25".
    pub fn describe(&self) -> String {
        let times: Vec<_> = self.times.iter().map(Times::describe).collect();
        let mut text = times.join("; ");
        if self.times.iter().any(|times| matches!(times, Times::Cron(_))) {
            let _ = write!(text, " ({})", self.zone);
        }
        if !self.except.is_empty() {
            let except: Vec<_> = self.except.iter().map(Except::describe).collect();
            let _ = write!(text, ", except {}", except.join("; "));
        }
        if let Some(from) = self.from {
            let _ = write!(text, ", from {}", super::times::exact(from));
        }
        if let Some(until) = self.until {
            let _ = write!(text, ", until {}", super::times::exact(until));
        }
        match self.count {
            None => {}
            Some(1) => text.push_str(", once"),
            Some(count) => {
                let _ = write!(text, ", {count} times");
            }
        }
        if let Some(jitter) = self.jitter {
            let _ = write!(text, ", up to {jitter} later");
        }
        text
    }
}

fn at_most(what: &'static str, size: usize, limit: usize) -> Result<()> {
    if size > limit { Err(Error::TooLarge { what, size, limit }) } else { Ok(()) }
}
