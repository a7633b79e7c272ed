//! From what a handler did to what a store writes.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::backoff::Backoff;
use crate::bounds;
use crate::failure::{Control, Failure};
use crate::job::{Input, Reason, State, Status, transition};
use crate::journal::Suspension;
use crate::seam::Rng;
use crate::store::Cancellation;
use crate::{Error, Result};

/// How one run of a handler ended, as its node saw it.
#[derive(Debug)]
pub enum Ended {
    /// It returned a result, already written as JSON.
    Ok(Option<Vec<u8>>),
    /// It returned a failure.
    Err(Failure),
    /// It failed in a way that it did not choose.
    Fault(Fault),
    /// The job's deadline passed while it ran.
    Expired,
    /// It was stopped because somebody cancelled the job.
    Stopped(Cancellation),
    /// It was given back before it ended.
    Released,
    /// It waits, and nothing of it is left to run until what it waits for happens.
    Suspended(Box<Suspension>),
}

/// Where the job stands in its attempts, and the backoff that applies to it.
#[derive(Debug, Clone, Copy)]
pub struct Standing {
    /// Failures before this run.
    pub failures: u16,
    /// Failures at which it fails for good.
    pub max_attempts: u16,
    /// How long it waits between attempts.
    pub backoff: Backoff,
}

/// The store's write at the end of a claim.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The job succeeded.
    Succeed {
        /// Its result as JSON; `None` if there is none worth keeping. Shared, so that an outcome that is offered again
        /// is not copied.
        result: Option<Arc<[u8]>>,
    },
    /// The job runs again later; counts one failure.
    Retry {
        /// How long until then.
        after: Duration,
        /// What went wrong.
        fault: Fault,
    },
    /// The job failed for good; counts one failure.
    Fail {
        /// How.
        reason: Reason,
        /// What went wrong.
        fault: Fault,
    },
    /// The job runs again later; counts nothing.
    Snooze {
        /// How long until then.
        after: Duration,
    },
    /// The job goes back to the front of its queue; counts nothing.
    Release,
    /// The job is cancelled.
    Cancel {
        /// By whom.
        reason: Reason,
        /// Why, in their words.
        why: String,
    },
    /// The job is set aside until something happens; counts nothing.
    Suspend(Box<Suspension>),
}

impl Outcome {
    /// Returns the state machine's input for this outcome.
    pub fn input(&self) -> Input {
        match self {
            Outcome::Succeed { .. } => Input::Succeed,
            Outcome::Retry { .. } => Input::Retry,
            Outcome::Fail { reason, .. } => Input::Fail(*reason),
            Outcome::Snooze { .. } => Input::Snooze,
            Outcome::Release => Input::Release,
            Outcome::Cancel { reason, .. } => Input::Stop(*reason),
            Outcome::Suspend(suspension) => Input::Suspend(suspension.reason),
        }
    }

    /// Checks that a claim can end like this.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such edge, or it tells of the loss of the node that says it.
    pub fn check(&self) -> Result<()> {
        let invalid = |why| Error::Invalid { what: "outcome", why };
        transition(Status::plain(State::Running), self.input())
            .map_err(|illegal| invalid(illegal.to_string()))?;
        match self {
            Outcome::Retry { fault, .. } | Outcome::Fail { fault, .. }
                if fault.kind == FaultKind::Crashed =>
            {
                Err(invalid("a node cannot report its own loss".into()))
            }
            _ => Ok(()),
        }
    }

    /// Bytes of payload.
    pub fn bytes(&self) -> usize {
        match self {
            Outcome::Succeed { result } => result.as_ref().map_or(0, |result| result.len()),
            Outcome::Retry { fault, .. } | Outcome::Fail { fault, .. } => fault.message.len(),
            Outcome::Cancel { why, .. } => why.len(),
            Outcome::Suspend(suspension) => {
                suspension.writes.bytes() + suspension.note.as_ref().map_or(0, String::len)
            }
            Outcome::Snooze { .. } | Outcome::Release => 0,
        }
    }
}

/// An error of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// In which way.
    pub kind: FaultKind,
    /// In words, cut to [`bounds::ERROR_BYTES`].
    pub message: String,
}

/// In which way an attempt went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum FaultKind {
    /// The handler returned an error.
    Error = 0,
    /// The handler panicked.
    Panic = 1,
    /// The attempt took longer than its time-out.
    Timeout = 2,
    /// The input could not be decoded, or the result not encoded or stored.
    Convert = 3,
    /// The job's deadline passed.
    Deadline = 4,
    /// The node that ran the job was lost. Stores note it by themselves; it is no failure, and no outcome says it.
    Crashed = 5,
}

impl FaultKind {
    /// All of them, in the order of their codes.
    pub const ALL: &'static [FaultKind] = &[
        FaultKind::Error,
        FaultKind::Panic,
        FaultKind::Timeout,
        FaultKind::Convert,
        FaultKind::Deadline,
        FaultKind::Crashed,
    ];

    /// The number that stands for it in a store. Never changes.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The one that a number stands for.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|one| one.code() == code)
    }

    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            FaultKind::Error => "error",
            FaultKind::Panic => "panic",
            FaultKind::Timeout => "timeout",
            FaultKind::Convert => "convert",
            FaultKind::Deadline => "deadline",
            FaultKind::Crashed => "crashed",
        }
    }
}

/// What a crash is noted with, as a literal: a store may need it within a statement.
#[doc(hidden)]
#[macro_export]
macro_rules! crash_message {
    () => {
        "the node was lost while it ran the job"
    };
}

impl Fault {
    /// Returns the error that a store notes when it takes a job from a lost node.
    pub fn crashed() -> Self {
        Fault::new(FaultKind::Crashed, crate::crash_message!())
    }

    /// A fault whose message is cut to its bound.
    pub fn new(kind: FaultKind, message: impl Into<String>) -> Self {
        Fault { kind, message: cut(message.into(), bounds::ERROR_BYTES) }
    }
}

/// What marks the end of a text that was cut.
const CUT: &str = " … (cut)";

/// Cuts a text to a bound in bytes, on a character boundary, and marks the cut. NUL, which not every store can hold
/// in a text, becomes U+FFFD.
pub fn cut(text: String, bound: usize) -> String {
    let mut text = if text.contains('\0') { text.replace('\0', "\u{FFFD}") } else { text };
    if text.len() > bound {
        text.truncate(text.floor_char_boundary(bound - CUT.len()));
        text.push_str(CUT);
    }
    text
}

/// Decides what is written for a run that ended: the only place where attempts are counted.
pub fn settle(ended: Ended, standing: &Standing, rng: &dyn Rng) -> Outcome {
    match ended {
        Ended::Ok(result) => Outcome::Succeed { result: result.map(Arc::from) },
        Ended::Fault(fault) => attempt(fault, None, standing, rng),
        Ended::Expired => Outcome::Fail {
            reason: Reason::Expired,
            fault: Fault::new(FaultKind::Deadline, "the deadline passed while the job ran"),
        },
        Ended::Stopped(Cancellation { reason, why }) => {
            Outcome::Cancel { reason, why: cut(why, bounds::WHY_BYTES) }
        }
        Ended::Released => Outcome::Release,
        Ended::Suspended(suspension) => Outcome::Suspend(suspension),
        Ended::Err(failure) => match failure.control() {
            None => attempt(Fault::new(FaultKind::Error, failure.message()), None, standing, rng),
            Some(Control::RetryIn(after)) => {
                attempt(Fault::new(FaultKind::Error, failure.message()), Some(*after), standing, rng)
            }
            Some(Control::Snooze(after)) => Outcome::Snooze { after: (*after).min(bounds::DELAY) },
            Some(Control::Throttled(after)) => {
                let after =
                    after.unwrap_or_else(|| standing.backoff.delay(standing.failures.saturating_add(1), rng));
                Outcome::Snooze { after: after.min(bounds::DELAY) }
            }
            Some(Control::Discard(_)) => Outcome::Fail {
                reason: Reason::Discarded,
                fault: Fault::new(FaultKind::Error, failure.message()),
            },
            Some(Control::Cancel(why)) => {
                Outcome::Cancel { reason: Reason::Handler, why: cut(why.clone(), bounds::WHY_BYTES) }
            }
        },
    }
}

/// One failure more: another attempt if one is left.
fn attempt(fault: Fault, after: Option<Duration>, standing: &Standing, rng: &dyn Rng) -> Outcome {
    let failures = standing.failures.saturating_add(1);
    if failures >= standing.max_attempts {
        return Outcome::Fail { reason: Reason::Exhausted, fault };
    }
    let after = after.unwrap_or_else(|| standing.backoff.delay(failures, rng)).min(bounds::DELAY);
    Outcome::Retry { after, fault }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure;

    struct Half;
    impl Rng for Half {
        fn next_u64(&self) -> u64 {
            1 << 63
        }
    }

    fn settled(ended: Ended, failures: u16) -> Outcome {
        let standing =
            Standing { failures, max_attempts: 3, backoff: Backoff::Fixed(Duration::from_secs(8)) };
        settle(ended, &standing, &Half)
    }

    fn returned(error: impl Into<Failure>) -> Ended {
        Ended::Err(error.into())
    }

    #[test]
    fn a_failure_is_retried_with_backoff_until_attempts_run_out() {
        let Outcome::Retry { after, fault } = settled(returned("no route"), 1) else { panic!("not retried") };
        assert_eq!((after, fault.message.as_str()), (Duration::from_secs(8), "no route"));
        assert!(matches!(settled(returned("no route"), 2), Outcome::Fail { reason: Reason::Exhausted, .. }));
    }

    #[test]
    fn controls_do_what_they_say() {
        let second = Duration::from_secs(1);
        assert_eq!(settled(returned(failure::snooze(second)), 2), Outcome::Snooze { after: second });
        assert_eq!(settled(returned(failure::throttled(second)), 2), Outcome::Snooze { after: second });
        let eight = Duration::from_secs(8);
        assert_eq!(settled(returned(failure::throttled(None)), 2), Outcome::Snooze { after: eight });
        let Outcome::Retry { after, .. } = settled(returned(failure::retry_in(second)), 0) else { panic!() };
        assert_eq!(after, second);
        assert!(matches!(settled(returned(failure::retry_in(second)), 2), Outcome::Fail { .. }));
        let discarded = settled(returned(failure::discard("bad")), 0);
        assert!(matches!(discarded, Outcome::Fail { reason: Reason::Discarded, .. }));
        let cancelled = settled(returned(failure::cancel("gone")), 0);
        assert_eq!(cancelled, Outcome::Cancel { reason: Reason::Handler, why: "gone".into() });
    }

    #[test]
    fn kinds_of_faults_are_stored_and_told_as_ever() {
        let known = [
            (0, "error", FaultKind::Error),
            (1, "panic", FaultKind::Panic),
            (2, "timeout", FaultKind::Timeout),
            (3, "convert", FaultKind::Convert),
            (4, "deadline", FaultKind::Deadline),
            (5, "crashed", FaultKind::Crashed),
        ];
        assert_eq!(FaultKind::ALL, known.map(|(_, _, kind)| kind));
        for (code, word, kind) in known {
            assert_eq!((kind.code(), kind.as_str()), (code, word));
            assert_eq!(FaultKind::from_code(code), Some(kind));
            assert_eq!(serde_json::to_string(&kind).expect("json"), format!("\"{word}\""));
        }
        assert_eq!(FaultKind::from_code(6), None);
    }

    #[test]
    fn error_text_is_cut_on_a_character_and_marked() {
        let fault = Fault::new(FaultKind::Error, "ä".repeat(bounds::ERROR_BYTES));
        assert!(fault.message.len() <= bounds::ERROR_BYTES);
        assert!(fault.message.ends_with(CUT));
        let whole = "x".repeat(bounds::ERROR_BYTES);
        assert_eq!(Fault::new(FaultKind::Error, whole.clone()).message, whole);
        let kept = Fault::new(FaultKind::Error, format!("{whole}x")).message;
        assert_eq!(kept.len(), bounds::ERROR_BYTES, "no more is cut than must be");
        assert_eq!(Fault::new(FaultKind::Error, "a\0b").message, "a\u{FFFD}b");
    }
}
