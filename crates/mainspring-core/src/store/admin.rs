//! What operators see and change: what goes over the seam.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::backoff::Backoff;
use crate::bounds;
use crate::job::{Illegal, Reason, State, Status, Summary};
use crate::name::{Kind, Label, QueueName, Tag};
use crate::time::{Span, Timestamp};
use crate::{Error, Result};

/// Selects jobs. All conditions that you set must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only jobs in this queue.
    pub queue: Option<QueueName>,
    /// Only jobs of this kind.
    pub kind: Option<Kind>,
    /// Only jobs in one of these states; empty: in any.
    pub states: Vec<State>,
    /// Only jobs with this reason.
    pub reason: Option<Reason>,
    /// Only jobs with this tag.
    pub tag: Option<Tag>,
    /// Only jobs whose last error contains this text. No index serves this condition: a store goes through failed
    /// jobs, as many in one call as [`SCAN`](bounds::SCAN) allows.
    pub error: Option<ErrorText>,
    /// Only jobs enqueued at this time or later.
    pub created_from: Option<Timestamp>,
    /// Only jobs enqueued before this time.
    pub created_before: Option<Timestamp>,
}

impl Filter {
    /// Returns whether a job matches, by its summary alone; [`ErrorText::is_in`] checks the last error. Stores may find
    /// rows in other ways, but must agree with this function.
    pub fn matches(&self, job: &Summary) -> bool {
        self.queue.as_ref().is_none_or(|queue| *queue == job.queue)
            && self.kind.as_ref().is_none_or(|kind| *kind == job.kind)
            && (self.states.is_empty() || self.states.contains(&job.status.state))
            && self.reason.is_none_or(|reason| job.status.reason == Some(reason))
            && self.tag.as_ref().is_none_or(|tag| job.options.tags.contains(tag))
            && self.created_from.is_none_or(|from| job.created_at >= from)
            && self.created_before.is_none_or(|before| job.created_at < before)
    }
}

/// A part of an error's text. Upper and lower case of ASCII letters are the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorText(String);

impl ErrorText {
    /// Creates a text to find in errors.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is empty or has a NUL, which no stored text has; [`Error::TooLarge`] beyond
    /// [`WHY_BYTES`](bounds::WHY_BYTES).
    pub fn new(text: &str) -> Result<Self> {
        let what = "error text";
        if text.is_empty() || text.contains('\0') {
            return Err(Error::Invalid { what, why: "it must not be empty or contain NUL".into() });
        }
        if text.len() > bounds::WHY_BYTES {
            return Err(Error::TooLarge { what, size: text.len(), limit: bounds::WHY_BYTES });
        }
        Ok(ErrorText(text.to_ascii_lowercase()))
    }

    /// Returns whether an error contains the text. `None` stands for a job without errors.
    pub fn is_in(&self, message: Option<&str>) -> bool {
        message.is_some_and(|message| message.to_ascii_lowercase().contains(&self.0))
    }

    /// Returns the text in lower case.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A part of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Where the previous page ended; `None`: begin with the newest job.
    pub after: Option<PagePosition>,
    /// How many jobs at most; capped at [`bounds::PAGE`].
    pub limit: usize,
}

/// A position in a listing. Opaque; belongs to one filter of one store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PagePosition(pub String);

impl PagePosition {
    /// Creates the position after the job of this number.
    pub fn behind(no: i64) -> Self {
        PagePosition(no.to_string())
    }

    /// Returns the number of the job that ended the page.
    ///
    /// # Errors
    /// [`Error::Invalid`] if [`behind`](Self::behind) did not make it: it has a sign or leading zeros.
    pub fn no(&self) -> Result<i64> {
        let no = self.0.parse().ok().filter(|no: &i64| *no > 0 && no.to_string() == self.0);
        no.ok_or_else(|| Error::Invalid { what: "cursor", why: "it is not from this store".into() })
    }
}

/// A part of a listing.
#[derive(Debug, Clone, PartialEq)]
pub struct Listing {
    /// The jobs, without payloads.
    pub jobs: Vec<Summary>,
    /// Where the next page begins; `None`: this was the last.
    pub next: Option<PagePosition>,
}

/// How many jobs are in each state, per queue. States without jobs are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts(pub BTreeMap<QueueName, BTreeMap<State, u64>>);

impl Counts {
    /// Returns how many jobs of a queue are in a state.
    pub fn of(&self, queue: &QueueName, state: State) -> u64 {
        self.0.get(queue).and_then(|states| states.get(&state)).copied().unwrap_or(0)
    }

    /// Checks that a queue has no jobs, so that it may be deleted.
    ///
    /// # Errors
    /// [`Error::QueueNotEmpty`] if it has jobs.
    pub fn check_empty(&self, queue: &QueueName) -> Result<()> {
        let (mut waiting, mut running, mut ended) = (0_u64, 0, 0);
        for (state, n) in self.0.get(queue).into_iter().flatten() {
            let sum = match state {
                State::Running => &mut running,
                state if state.is_terminal() => &mut ended,
                _ => &mut waiting,
            };
            // Counts of a damaged store may be any.
            *sum = sum.saturating_add(*n);
        }
        if (waiting, running, ended) == (0, 0, 0) {
            return Ok(());
        }
        Err(Error::QueueNotEmpty { queue: queue.clone(), waiting, running, ended })
    }

    /// Returns how many jobs of all queues are in a state.
    pub fn total(&self, state: State) -> u64 {
        self.0.values().filter_map(|states| states.get(&state)).sum()
    }
}

/// The effect of a verb on one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    /// The job went from one status to another. Or it stayed, with a flag for cancellation or another priority.
    Applied {
        /// Its status before.
        from: Status,
        /// Its status now; `None`: it was removed.
        to: Option<Status>,
    },
    /// The verb does not apply to a job in this state; nothing was changed.
    Illegal(Illegal),
    /// The job has run since the caller read it, or no longer has a record of that step. Nothing was changed.
    Stale,
    /// There is no such job.
    NotFound,
}

/// A queue as operators see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Queue {
    /// Its name.
    pub name: QueueName,
    /// Its settings.
    #[serde(flatten)]
    pub settings: Settings,
}

/// The settings of a queue.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Whether claims from it are stopped.
    pub paused: bool,
    /// The backoff of jobs that have none of their own; `None`: the default.
    pub backoff: Option<Backoff>,
    /// How long its ended jobs stay.
    pub retention: Retention,
}

/// How long ended jobs stay in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    /// For jobs that succeeded or were skipped.
    pub succeeded: Span,
    /// For jobs that failed or were cancelled.
    pub failed: Span,
}

impl Default for Retention {
    /// A day for what went well, two weeks for what did not.
    fn default() -> Self {
        const DAY: u64 = 86_400;
        Retention { succeeded: Span(Duration::from_secs(DAY)), failed: Span(Duration::from_secs(14 * DAY)) }
    }
}

impl Retention {
    /// Returns how long the store keeps a job that ended in this state.
    pub fn of(&self, state: State) -> Duration {
        match state {
            State::Failed | State::Cancelled => self.failed.0,
            State::Succeeded
            | State::Skipped
            | State::Blocked
            | State::Scheduled
            | State::Ready
            | State::Running
            | State::Suspended => self.succeeded.0,
        }
    }
}

/// A change to a queue's settings. `None` leaves a setting as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueChange {
    /// Pauses or resumes it.
    pub paused: Option<bool>,
    /// Sets its backoff; `Some(None)` restores the default.
    pub backoff: Option<Option<Backoff>>,
    /// Sets how long succeeded jobs stay.
    pub retain_succeeded: Option<Duration>,
    /// Sets how long failed and cancelled jobs stay.
    pub retain_failed: Option<Duration>,
}

impl QueueChange {
    /// Checks every bound.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn check(&self) -> Result<()> {
        for retention in [self.retain_succeeded, self.retain_failed].into_iter().flatten() {
            if retention < bounds::RETENTION_MIN || retention > bounds::DELAY {
                return Err(Error::Invalid {
                    what: "retention",
                    why: format!(
                        "{} is not between {} and ten years",
                        Span(retention),
                        Span(bounds::RETENTION_MIN)
                    ),
                });
            }
        }
        self.backoff.flatten().map_or(Ok(()), Backoff::check)
    }

    /// Applies this change to settings.
    pub fn apply(&self, settings: &mut Settings) {
        if let Some(paused) = self.paused {
            settings.paused = paused;
        }
        if let Some(backoff) = self.backoff {
            settings.backoff = backoff;
        }
        if let Some(retention) = self.retain_succeeded {
            settings.retention.succeeded = Span(retention);
        }
        if let Some(retention) = self.retain_failed {
            settings.retention.failed = Span(retention);
        }
    }
}

/// Jobs of one queue, one kind and one set of required labels: a node can run all of them or none.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Line {
    /// Their queue.
    pub queue: QueueName,
    /// Their kind.
    pub kind: Kind,
    /// The labels they require.
    pub labels: Vec<Label>,
}

/// Where a self-check continues. The default is its beginning; the store returns all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CheckPart {
    /// The number of the question.
    pub part: usize,
    /// The position within the question, which only the store understands.
    pub after: i64,
}

/// The result of one part of a self-check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// The damage that it found.
    pub findings: Vec<Finding>,
    /// Where to continue; `None` at the end.
    pub next: Option<CheckPart>,
    /// How much of the store the check has read, in the store's own units.
    pub done: u64,
    /// How much there is to read, in the same units.
    pub total: u64,
}

/// Damage in a store, as its self-check finds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The damage.
    pub what: String,
    /// How a person can fix it.
    pub hint: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::JobId;
    use crate::job::{Options, Priority};

    fn queue(name: &str) -> QueueName {
        QueueName::new(name).expect("a queue")
    }

    fn kind(name: &str) -> Kind {
        Kind::new(name).expect("a kind")
    }

    fn tag(name: &str) -> Tag {
        Tag::new(name).expect("a tag")
    }

    const CREATED: Timestamp = Timestamp::from_micros(100);

    /// A job of kind `k` in queue `q` with the tags `a` and `b`, held by an operator.
    fn held() -> Summary {
        Summary {
            id: JobId::from_bytes([7; 16]),
            kind: kind("k"),
            queue: queue("q"),
            priority: Priority::default(),
            status: Status::because(State::Suspended, Reason::Hold),
            claim: 0,
            failures: 0,
            crashes: 0,
            created_at: CREATED,
            run_at: None,
            claimed_at: None,
            finished_at: None,
            deadline: None,
            node: None,
            cancelling: false,
            stuck: false,
            foreign: false,
            unreadable: None,
            options: Options { tags: vec![tag("a"), tag("b")], ..Options::default() },
        }
    }

    #[test]
    fn only_page_positions_that_were_given_out_are_read() {
        let read = |text: &str| PagePosition(text.to_owned()).no().ok();
        assert_eq!(read("1"), Some(1));
        assert_eq!(read(&PagePosition::behind(i64::MAX).0), Some(i64::MAX));
        for text in ["", "0", "-1", "+1", "01", " 1", "1 ", "x", "9223372036854775808"] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_job_matches_if_every_condition_holds() {
        type Change = fn(&mut Filter);
        let tick = Duration::from_micros(1);
        let all = || Filter {
            queue: Some(queue("q")),
            kind: Some(kind("k")),
            states: vec![State::Ready, State::Suspended],
            reason: Some(Reason::Hold),
            tag: Some(tag("b")),
            created_from: Some(CREATED),
            created_before: Some(CREATED.after(tick)),
            ..Filter::default()
        };
        assert!(Filter::default().matches(&held()) && all().matches(&held()));
        let wrong: [Change; 8] = [
            |filter| filter.queue = Some(queue("q2")),
            |filter| filter.kind = Some(kind("k2")),
            |filter| filter.states = vec![State::Ready],
            |filter| filter.reason = Some(Reason::Quarantine),
            |filter| filter.tag = Some(tag("c")),
            |filter| filter.created_from = Some(CREATED.after(Duration::from_micros(1))),
            |filter| filter.created_before = Some(CREATED),
            |filter| filter.created_before = Some(CREATED.before(Duration::from_micros(1))),
        ];
        for change in wrong {
            // One condition by itself, and beside all others, which hold.
            for mut filter in [Filter::default(), all()] {
                change(&mut filter);
                assert!(!filter.matches(&held()), "{filter:?}");
            }
        }
        let later = Filter { created_before: Some(CREATED.after(tick * 2)), ..Filter::default() };
        assert!(later.matches(&held()));
    }

    #[test]
    fn jobs_are_counted_by_queue_and_in_all() {
        let one = |ready, failed| BTreeMap::from([(State::Ready, ready), (State::Failed, failed)]);
        let counts = Counts(BTreeMap::from([(queue("a"), one(3, 5)), (queue("b"), one(7, 11))]));
        assert_eq!((counts.of(&queue("a"), State::Ready), counts.of(&queue("b"), State::Failed)), (3, 11));
        assert_eq!((counts.of(&queue("c"), State::Ready), counts.of(&queue("a"), State::Running)), (0, 0));
        assert_eq!((counts.total(State::Ready), counts.total(State::Failed)), (10, 16));
        assert_eq!(counts.total(State::Running), 0);
    }

    #[test]
    fn queue_is_empty_if_it_has_no_job_in_any_state() {
        let of = |states: &[(State, u64)]| {
            Counts(BTreeMap::from([(queue("a"), states.iter().copied().collect::<BTreeMap<_, _>>())]))
        };
        assert!(Counts::default().check_empty(&queue("a")).is_ok());
        assert!(of(&[(State::Ready, 0)]).check_empty(&queue("a")).is_ok());
        assert!(of(&[(State::Ready, 1)]).check_empty(&queue("b")).is_ok());
        let all: Vec<_> = State::ALL.iter().map(|state| (*state, 1)).collect();
        let full = of(&all).check_empty(&queue("a"));
        assert!(
            matches!(full, Err(Error::QueueNotEmpty { waiting: 4, running: 1, ended: 4, .. })),
            "{full:?}"
        );
        let damaged = of(&[(State::Ready, u64::MAX), (State::Scheduled, 1)]).check_empty(&queue("a"));
        assert!(matches!(damaged, Err(Error::QueueNotEmpty { waiting: u64::MAX, .. })), "{damaged:?}");
    }

    #[test]
    fn what_a_change_does_not_name_stays() {
        let hours = Duration::from_hours;
        let mut settings = Settings::default();
        let backoff = Backoff::Fixed(hours(1));
        let change = QueueChange {
            paused: Some(true),
            backoff: Some(Some(backoff)),
            retain_succeeded: Some(hours(2)),
            retain_failed: Some(hours(3)),
        };
        change.apply(&mut settings);
        let retention = Retention { succeeded: Span(hours(2)), failed: Span(hours(3)) };
        assert_eq!(settings, Settings { paused: true, backoff: Some(backoff), retention });
        let before = settings.clone();
        QueueChange::default().apply(&mut settings);
        assert_eq!(settings, before);
        QueueChange { backoff: Some(None), ..QueueChange::default() }.apply(&mut settings);
        assert_eq!(settings, Settings { backoff: None, ..before });
    }

    #[test]
    fn a_backoff_that_cannot_be_stored_is_refused() {
        let with = |backoff| QueueChange { backoff, ..QueueChange::default() }.check().is_ok();
        let (short, long) = (Duration::from_secs(1), Duration::from_secs(2));
        assert!(with(None) && with(Some(None)));
        assert!(with(Some(Some(Backoff::Linear { step: short, max: long }))));
        assert!(!with(Some(Some(Backoff::Linear { step: long, max: short }))));
    }

    #[test]
    fn retention_holds_at_its_bounds_and_is_refused_beyond() {
        const TICK: Duration = Duration::from_nanos(1);
        let check = |retention: Duration| {
            let good = QueueChange { retain_succeeded: Some(retention), ..QueueChange::default() };
            let bad = QueueChange { retain_failed: Some(retention), ..QueueChange::default() };
            (good.check().is_ok(), bad.check().is_ok())
        };
        assert_eq!(check(bounds::RETENTION_MIN), (true, true));
        assert_eq!(check(bounds::RETENTION_MIN.saturating_sub(TICK)), (false, false));
        assert_eq!(check(bounds::DELAY), (true, true));
        assert_eq!(check(bounds::DELAY + TICK), (false, false));
    }

    #[test]
    fn error_text_is_found_whatever_its_case_and_holds_at_its_bound() {
        let text = ErrorText::new("Refused: Ä").expect("a text");
        assert!(text.is_in(Some("connection REFUSED: Ä")) && !text.is_in(Some("refused: ä")));
        assert!(!text.is_in(None));
        assert_eq!(text.as_str(), "refused: Ä");
        assert!(ErrorText::new("").is_err() && ErrorText::new("a\0").is_err());
        assert!(ErrorText::new(&"x".repeat(bounds::WHY_BYTES)).is_ok());
        assert!(ErrorText::new(&"x".repeat(bounds::WHY_BYTES + 1)).is_err());
    }

    #[test]
    fn what_went_well_is_kept_for_a_day_and_what_did_not_for_two_weeks() {
        let kept = |state| Retention::default().of(state);
        for state in [State::Succeeded, State::Skipped] {
            assert_eq!(kept(state), Duration::from_hours(24), "{state}");
        }
        for state in [State::Failed, State::Cancelled] {
            assert_eq!(kept(state), Duration::from_hours(14 * 24), "{state}");
        }
    }
}
