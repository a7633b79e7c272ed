//! What a caller enqueues.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::backoff::Backoff;
use crate::bounds;
use crate::id::JobId;
use crate::job::Unique;
use crate::journal::Entry;
use crate::limit::{self, LimitUse};
use crate::name::{Key, Kind, Label, QueueName, Tag};
use crate::time::{Span, Timestamp};
use crate::{Error, Result};

/// A job to be stored.
#[derive(Debug, Clone, PartialEq)]
pub struct New {
    /// Its id, minted by the caller: the same id twice is the same enqueue.
    pub id: JobId,
    /// The kind of work, which decides the handler.
    pub kind: Kind,
    /// The queue of the job.
    pub queue: QueueName,
    /// Its priority in that queue.
    pub priority: Priority,
    /// The handler's input, as JSON.
    pub input: Vec<u8>,
    /// When it may run; `None`: now.
    pub run: Option<When>,
    /// When it fails if it has not ended; `None`: never.
    pub deadline: Option<When>,
    /// Settings that few jobs change.
    pub options: Options,
    /// The records that a fork shares with its original, under claim 0. Empty for other jobs.
    pub journal: Vec<Entry>,
}

/// The origin of a fork.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The other job.
    pub job: JobId,
    /// The step from which the fork differs; `None`: the fork shares all records.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub step: Option<Key>,
}

/// A point in time, absolute or counted from the store's present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// This long after the store's present.
    After(Duration),
    /// At this time.
    At(Timestamp),
}

impl When {
    /// The point in time, given the store's present.
    pub fn resolve(self, now: Timestamp) -> Timestamp {
        match self {
            When::After(delay) => now.after(delay),
            When::At(at) => at,
        }
    }

    fn check(self, what: &'static str, now: Timestamp) -> Result<()> {
        if self.resolve(now) > now.after(bounds::DELAY) {
            return Err(Error::Invalid { what, why: "more than ten years ahead".into() });
        }
        Ok(())
    }
}

impl From<Duration> for When {
    fn from(delay: Duration) -> Self {
        When::After(delay)
    }
}

impl From<Timestamp> for When {
    fn from(at: Timestamp) -> Self {
        When::At(at)
    }
}

impl From<SystemTime> for When {
    fn from(at: SystemTime) -> Self {
        When::At(at.into())
    }
}

/// The priority of a job in its queue: 0 is claimed first, 9 last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Priority(u8);

impl Priority {
    /// Claimed before all others.
    pub const HIGHEST: Priority = Priority(0);
    /// Claimed after all others.
    pub const LOWEST: Priority = Priority(bounds::PRIORITY_MAX);

    /// Checks and takes a priority.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is above 9.
    pub fn new(priority: u8) -> Result<Self> {
        if priority > bounds::PRIORITY_MAX {
            return Err(Error::Invalid {
                what: "priority",
                why: format!("{priority} is not between 0 (first) and {} (last)", bounds::PRIORITY_MAX),
            });
        }
        Ok(Priority(priority))
    }

    /// The number.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl Default for Priority {
    /// 5.
    fn default() -> Self {
        Priority(5)
    }
}

impl TryFrom<u8> for Priority {
    type Error = Error;

    fn try_from(priority: u8) -> Result<Self> {
        Priority::new(priority)
    }
}

impl From<Priority> for u8 {
    fn from(priority: Priority) -> u8 {
        priority.0
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Settings that few jobs change. Stores keep them as one JSON value, and nothing for the defaults.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Options {
    /// How many attempts the job has before it fails.
    #[serde(skip_serializing_if = "is_default_attempts")]
    pub max_attempts: u16,
    /// How long it waits after a failure; `None`: the queue's backoff.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,
    /// How long one attempt may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
    /// Its unique key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique: Option<Unique>,
    /// Its tags.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<Tag>,
    /// Labels that a node must have to run it, sorted and without repeats.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<Label>,
    /// Its limits, sorted and without repeats: a claim takes the units of all of them or none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<LimitUse>,
    /// Its headers, such as a trace context.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The job whose handler started it; set by that handler's record and by nothing else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<JobId>,
    /// The origin, if it is a fork.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forked: Option<Origin>,
}

/// Attempts of a job that does not say otherwise: with the default backoff, between eight and nine minutes.
const DEFAULT_ATTEMPTS: u16 = 10;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_default_attempts(attempts: &u16) -> bool {
    *attempts == DEFAULT_ATTEMPTS
}

impl Default for Options {
    fn default() -> Self {
        Options {
            max_attempts: DEFAULT_ATTEMPTS,
            backoff: None,
            timeout: None,
            unique: None,
            tags: Vec::new(),
            labels: Vec::new(),
            limits: Vec::new(),
            headers: BTreeMap::new(),
            parent: None,
            forked: None,
        }
    }
}

impl Options {
    fn check(&self) -> Result<()> {
        if self.max_attempts == 0 || self.max_attempts > bounds::ATTEMPTS_MAX {
            return Err(Error::Invalid {
                what: "max_attempts",
                why: format!("{} is not between 1 and {}", self.max_attempts, bounds::ATTEMPTS_MAX),
            });
        }
        if let Some(backoff) = self.backoff {
            backoff.check()?;
        }
        // Stores keep whole microseconds: less than one would come back as zero.
        if self.timeout.is_some_and(|timeout| timeout.0.as_micros() == 0) {
            return Err(Error::Invalid { what: "timeout", why: "zero".into() });
        }
        if let Some(unique) = &self.unique {
            unique.check()?;
        }
        at_most("tags", self.tags.len(), bounds::TAGS)?;
        at_most("labels", self.labels.len(), bounds::LABELS)?;
        if !self.labels.is_sorted_by(|a, b| a < b) {
            return Err(Error::Invalid { what: "labels", why: "not sorted or not distinct".into() });
        }
        limit::check_uses(&self.limits)?;
        at_most("headers", self.headers.len(), bounds::HEADERS)?;
        let bytes = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        at_most("headers", bytes, bounds::HEADER_BYTES)?;
        if self
            .headers
            .iter()
            .any(|(name, value)| name.is_empty() || name.contains('\0') || value.contains('\0'))
        {
            return Err(Error::Invalid {
                what: "header",
                why: "an empty name or a NUL is not allowed".into(),
            });
        }
        Ok(())
    }
}

/// Bounds that a user can configure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PayloadBounds {
    /// Bytes of one input.
    pub input: usize,
    /// Bytes of one result.
    pub result: usize,
    /// Bytes of one recorded result.
    pub step: usize,
}

impl Default for PayloadBounds {
    fn default() -> Self {
        PayloadBounds { input: bounds::INPUT_BYTES, result: bounds::RESULT_BYTES, step: bounds::STEP_BYTES }
    }
}

impl PayloadBounds {
    /// Checks that the bounds themselves are within what stores can hold.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn check(&self) -> Result<()> {
        at_most("input bound", self.input, bounds::PAYLOAD_BYTES_MAX)?;
        at_most("result bound", self.result, bounds::PAYLOAD_BYTES_MAX)?;
        at_most("step bound", self.step, bounds::PAYLOAD_BYTES_MAX)
    }

    /// Checks an input.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn check_input(&self, input: &[u8]) -> Result<()> {
        at_most("input", input.len(), self.input)
    }
}

impl New {
    /// Checks every bound. Called before a job reaches a store.
    ///
    /// # Errors
    /// [`Error::TooLarge`] or [`Error::Invalid`], naming what is wrong.
    pub fn check(&self, bounds: &PayloadBounds, now: Timestamp) -> Result<()> {
        bounds.check_input(&self.input)?;
        if let Some(run) = self.run {
            run.check("run_at", now)?;
        }
        if let Some(deadline) = self.deadline {
            deadline.check("deadline", now)?;
        }
        if !self.journal.is_empty() {
            self.check_journal(bounds)?;
        }
        self.options.check()
    }

    fn check_journal(&self, bounds: &PayloadBounds) -> Result<()> {
        at_most("shared journal", self.journal.len(), bounds::SHARED)?;
        at_most("bytes of the shared journal", self.bytes() - self.input.len(), bounds::SHARED_BYTES)?;
        let mut keys = BTreeSet::new();
        for entry in &self.journal {
            at_most("recorded value", entry.value.len(), bounds.step)?;
            if !keys.insert(&entry.key) {
                return Err(Error::Invalid {
                    what: "journal",
                    why: format!("`{}` is in it twice", entry.key),
                });
            }
        }
        Ok(())
    }

    /// Bytes of payload.
    pub fn bytes(&self) -> usize {
        self.input.len() + self.journal.iter().map(|entry| entry.value.len()).sum::<usize>()
    }
}

fn at_most(what: &'static str, size: usize, limit: usize) -> Result<()> {
    if size > limit { Err(Error::TooLarge { what, size, limit }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Until;
    use crate::journal::EntryKind;
    use crate::name::LimitName;

    fn new() -> New {
        New {
            id: JobId::from_bytes([7; 16]),
            kind: Kind::new("k").expect("a kind"),
            queue: QueueName::new("q").expect("a queue"),
            priority: Priority::default(),
            input: b"{}".to_vec(),
            run: None,
            deadline: None,
            options: Options::default(),
            journal: Vec::new(),
        }
    }

    fn check(change: impl FnOnce(&mut New)) -> Result<()> {
        let mut job = new();
        change(&mut job);
        job.check(&PayloadBounds::default(), Timestamp::EPOCH)
    }

    #[test]
    fn every_bound_holds_at_n_and_refuses_n_plus_one() {
        assert!(check(|j| j.input = vec![b' '; bounds::INPUT_BYTES]).is_ok());
        assert!(check(|j| j.input = vec![b' '; bounds::INPUT_BYTES + 1]).is_err());
        let tags = |n: usize| (0..n).map(|i| Tag::new(format!("t{i}")).expect("a tag")).collect::<Vec<_>>();
        assert!(check(|j| j.options.tags = tags(bounds::TAGS)).is_ok());
        assert!(check(|j| j.options.tags = tags(bounds::TAGS + 1)).is_err());
        assert!(check(|j| j.options.max_attempts = bounds::ATTEMPTS_MAX).is_ok());
        assert!(check(|j| j.options.max_attempts = bounds::ATTEMPTS_MAX + 1).is_err());
        assert!(check(|j| j.options.max_attempts = 0).is_err());
        assert!(check(|j| j.run = Some(When::After(bounds::DELAY))).is_ok());
        assert!(check(|j| j.run = Some(When::After(bounds::DELAY + Duration::from_micros(1)))).is_err());
        assert!(check(|j| j.deadline = Some(When::After(Duration::MAX))).is_err());
        assert!(check(|j| j.options.unique = Some(Unique::new("k".repeat(bounds::KEY_BYTES)))).is_ok());
        assert!(check(|j| j.options.unique = Some(Unique::new("k".repeat(bounds::KEY_BYTES + 1)))).is_err());
        assert!(check(|j| j.options.unique = Some(Unique::new(""))).is_err());
        let second = Duration::from_secs(1);
        let falling = Backoff::Linear { step: second * 2, max: second };
        assert!(check(|j| j.options.backoff = Some(Backoff::Fixed(second))).is_ok());
        assert!(check(|j| j.options.backoff = Some(falling)).is_err());
        assert!(check(|j| j.options.timeout = Some(Span(Duration::from_micros(1)))).is_ok());
        assert!(check(|j| j.options.timeout = Some(Span(Duration::from_nanos(999)))).is_err());
        let headers = |bytes: usize| BTreeMap::from([("h".to_owned(), "v".repeat(bytes - 1))]);
        assert!(check(|j| j.options.headers = headers(bounds::HEADER_BYTES)).is_ok());
        assert!(check(|j| j.options.headers = headers(bounds::HEADER_BYTES + 1)).is_err());
        let headers = |n: usize| (0..n).map(|i| (format!("h{i}"), String::new())).collect::<BTreeMap<_, _>>();
        assert!(check(|j| j.options.headers = headers(bounds::HEADERS)).is_ok());
        assert!(check(|j| j.options.headers = headers(bounds::HEADERS + 1)).is_err());
        assert!(check(|j| j.options.labels = labels(bounds::LABELS)).is_ok());
        assert!(check(|j| j.options.labels = labels(bounds::LABELS + 1)).is_err());
        let period = |period: Duration| Unique::new("k").until(Until::after(period));
        assert!(check(|j| j.options.unique = Some(period(bounds::DELAY))).is_ok());
        let longer = bounds::DELAY + Duration::from_micros(1);
        assert!(check(|j| j.options.unique = Some(period(longer))).is_err());
        assert!(Priority::new(9).is_ok());
        assert!(Priority::new(10).is_err());
    }

    #[test]
    fn a_shared_journal_is_bounded_and_has_each_key_once() {
        let entries = |count: usize, bytes: usize| -> Vec<Entry> {
            let entry = |at| Entry {
                key: Key::new(format!("k{at}")).expect("a key"),
                kind: EntryKind::Value,
                overlapped: false,
                value: vec![b' '; bytes],
                took: None,
            };
            (0..count).map(entry).collect()
        };
        let step = bounds::STEP_BYTES;
        assert!(check(|j| j.journal = entries(bounds::SHARED, 1)).is_ok());
        assert!(check(|j| j.journal = entries(bounds::SHARED + 1, 1)).is_err());
        assert!(check(|j| j.journal = entries(bounds::SHARED_BYTES / step, step)).is_ok());
        assert!(check(|j| j.journal = entries(bounds::SHARED_BYTES / step + 1, step)).is_err());
        assert!(check(|j| j.journal = entries(1, step + 1)).is_err());
        assert!(check(|j| j.journal = vec![entries(1, 1).remove(0); 2]).is_err());
    }

    /// Labels that are sorted and distinct.
    fn labels(count: usize) -> Vec<Label> {
        (0..count).map(|i| Label::new(format!("l{i:02}")).expect("a label")).collect()
    }

    #[test]
    fn configured_bounds_are_those_that_hold_and_stay_within_what_stores_can_hold() {
        let most = bounds::PAYLOAD_BYTES_MAX;
        let bounds = |input, result| PayloadBounds { input, result, ..PayloadBounds::default() };
        assert!(bounds(most, most).check().is_ok());
        assert!(bounds(most + 1, most).check().is_err());
        assert!(bounds(most, most + 1).check().is_err());
        let mut job = new();
        job.input = vec![b' '; 5];
        assert!(job.check(&bounds(5, 0), Timestamp::EPOCH).is_ok());
        assert!(job.check(&bounds(4, 9), Timestamp::EPOCH).is_err());
    }

    #[test]
    fn labels_are_sorted_and_distinct() {
        let mut reversed = labels(2);
        reversed.reverse();
        assert!(check(|j| j.options.labels = reversed).is_err());
        let twice = vec![Label::new("gpu").expect("a label"); 2];
        assert!(check(|j| j.options.labels = twice).is_err());
    }

    #[test]
    fn texts_that_a_store_cannot_hold_are_refused() {
        let header = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
        assert!(check(|j| j.options.headers = header("h", "")).is_ok());
        assert!(check(|j| j.options.headers = header("", "v")).is_err());
        assert!(check(|j| j.options.headers = header("h\0", "v")).is_err());
        assert!(check(|j| j.options.headers = header("h", "v\0")).is_err());
        assert!(check(|j| j.options.unique = Some(Unique::new("k\0"))).is_err());
    }

    #[test]
    fn priorities_are_their_numbers_in_words_and_in_json() {
        for number in 0..=bounds::PRIORITY_MAX {
            let priority = Priority::new(number).expect("a priority");
            assert_eq!(priority.to_string(), number.to_string());
            let json = serde_json::to_string(&priority).expect("json");
            assert_eq!(json, number.to_string());
            assert_eq!(serde_json::from_str::<Priority>(&json).expect("a priority"), priority);
        }
        assert!(serde_json::from_str::<Priority>("10").is_err());
    }

    #[test]
    fn a_point_in_time_is_counted_from_the_stores_present_or_is_itself() {
        let (now, second) = (Timestamp::from_micros(5), Duration::from_secs(1));
        assert_eq!(When::from(second).resolve(now), now.after(second));
        assert_eq!(When::from(Timestamp::EPOCH).resolve(now), Timestamp::EPOCH);
        assert_eq!(When::from(SystemTime::UNIX_EPOCH + second).resolve(now), Timestamp::EPOCH.after(second));
    }

    #[test]
    fn default_options_are_an_empty_object() {
        assert_eq!(serde_json::to_string(&Options::default()).expect("json"), "{}");
        let read: Options = serde_json::from_str("{}").expect("options");
        assert_eq!(read, Options::default());
    }

    #[test]
    fn options_round_trip_through_json() {
        let options = Options {
            max_attempts: 3,
            backoff: Some(Backoff::Fixed(Duration::from_secs(5))),
            timeout: Some(Span(Duration::from_millis(1_500))),
            unique: Some(Unique::new("'; --").replace()),
            tags: vec![Tag::new("eu").expect("a tag")],
            labels: vec![Label::new("gpu").expect("a label")],
            limits: vec![LimitUse::new(LimitName::new("gpu").expect("a name")).key("a").units(2)],
            headers: BTreeMap::from([("traceparent".into(), "00-\"x\"".into())]),
            parent: Some(JobId::from_bytes([9; 16])),
            forked: Some(Origin {
                job: JobId::from_bytes([8; 16]),
                step: Some(Key::new("goods/pack#2").expect("a key")),
            }),
        };
        let text = serde_json::to_string(&options).expect("json");
        assert_eq!(serde_json::from_str::<Options>(&text).expect("options"), options);
    }
}
