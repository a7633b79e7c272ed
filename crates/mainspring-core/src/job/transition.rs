//! The state machine: one pure function that knows every edge.
//!
//! Stores persist what [`transition`] returns and nothing else; an edge that is not here does not exist.

use std::fmt;

use crate::bounds;
use crate::job::{Priority, Reason, State, Status};
use crate::name::Key;
use crate::{Error, Result};

/// An event in the life of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// All that it waited for is done; `later` if its time has not come yet.
    Unblock {
        /// Whether it now waits for a time.
        later: bool,
    },
    /// What it waited for can never be.
    Skip,
    /// Its time has come.
    Due,
    /// A node takes it.
    Claim,
    /// Its handler succeeded.
    Succeed,
    /// Its handler, its deadline or an operator ended it.
    Fail(Reason),
    /// Its handler failed and there is another attempt.
    Retry,
    /// Its handler asked to run again later.
    Snooze,
    /// Its node gave it back.
    Release,
    /// Its node was lost; `quarantine` if that happened too often.
    Crash {
        /// Whether this crash was one too many.
        quarantine: bool,
    },
    /// Its handler waits for something outside.
    Suspend(Reason),
    /// The claim that took it cannot read it.
    Unreadable,
    /// What it was suspended for has happened.
    Wake,
    /// Somebody wants it cancelled. A running job goes on until its node confirms ([`Input::Stop`]).
    Cancel(Reason),
    /// Its node confirms that the handler was stopped, or the handler cancelled itself.
    Stop(Reason),
    /// An operator sets it aside.
    Hold,
    /// An operator lets it go on; `later` if its time has not come yet.
    Resume {
        /// Whether it now waits for a time.
        later: bool,
    },
    /// An operator runs an ended job again, or a scheduled one now.
    Revive,
    /// An operator runs a job again from a step on.
    Rewind,
}

/// An edge that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a {from} job does not accept {input:?}")]
pub struct Illegal {
    /// The job's status.
    pub from: Status,
    /// The event that does not apply to it.
    pub input: Input,
}

/// Returns the status of a job after an event.
///
/// # Errors
/// [`Illegal`] if there is no such edge; the caller decides whether that is a stale request or a broken invariant.
#[expect(clippy::match_same_arms, reason = "one arm per edge, grouped by the state it leaves")]
pub fn transition(from: Status, input: Input) -> Result<Status, Illegal> {
    use Reason as R;
    use State as S;
    let illegal = Err(Illegal { from, input });
    let to = match (from.state, input) {
        (S::Blocked, Input::Unblock { later: false }) => Status::plain(S::Ready),
        (S::Blocked, Input::Unblock { later: true }) => Status::plain(S::Scheduled),
        (S::Blocked, Input::Skip) => Status::plain(S::Skipped),
        (S::Scheduled, Input::Due | Input::Revive) => Status::plain(S::Ready),
        (S::Ready, Input::Claim) => Status::plain(S::Running),

        (S::Running, Input::Succeed) => Status::plain(S::Succeeded),
        (S::Running, Input::Fail(reason @ (R::Exhausted | R::Discarded | R::Expired))) => {
            Status::because(S::Failed, reason)
        }
        (S::Running, Input::Retry | Input::Snooze) => Status::plain(S::Scheduled),
        (S::Running, Input::Release | Input::Crash { quarantine: false }) => Status::plain(S::Ready),
        (S::Running, Input::Crash { quarantine: true }) => Status::because(S::Suspended, R::Quarantine),
        (S::Running, Input::Suspend(reason)) if reason.awaits() || reason == R::Drift => {
            Status::because(S::Suspended, reason)
        }
        (S::Running, Input::Unreadable) => Status::because(S::Suspended, R::Unreadable),
        (S::Running, Input::Cancel(_)) => Status::plain(S::Running),
        (S::Running, Input::Stop(reason)) if reason.fits(S::Cancelled) => {
            Status::because(S::Cancelled, reason)
        }

        (S::Suspended, Input::Wake) if from.reason.is_some_and(R::awaits) => Status::plain(S::Ready),
        // A job that was held before its time came waits for it again. Any other looks for itself what it waits for.
        (S::Suspended, Input::Resume { later }) => {
            Status::plain(if later && from.reason == Some(R::Hold) { S::Scheduled } else { S::Ready })
        }
        (S::Suspended, Input::Fail(R::Operator)) => Status::because(S::Failed, R::Operator),

        (S::Blocked | S::Scheduled | S::Ready | S::Suspended, Input::Cancel(reason))
            if reason.fits(S::Cancelled) =>
        {
            Status::because(S::Cancelled, reason)
        }
        (S::Blocked | S::Scheduled | S::Ready | S::Suspended, Input::Fail(R::Expired)) => {
            Status::because(S::Failed, R::Expired)
        }
        (S::Scheduled | S::Ready, Input::Hold) => Status::because(S::Suspended, R::Hold),
        (S::Suspended, Input::Hold) if from.reason.is_some_and(R::awaits) => {
            Status::because(S::Suspended, R::Hold)
        }
        (S::Failed | S::Cancelled | S::Skipped, Input::Revive) => Status::plain(S::Ready),
        // One that succeeded has told its result to others.
        (S::Scheduled | S::Ready | S::Suspended | S::Failed | S::Cancelled, Input::Rewind) => {
            Status::plain(S::Ready)
        }
        _ => return illegal,
    };
    Ok(to)
}

/// A change that an operator can make to a job.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verb {
    /// End a waiting job as cancelled, or ask a running one to stop.
    Cancel {
        /// Why, for the record. May be empty.
        why: String,
    },
    /// The same for a child, by its parent: what it was started for goes on without it. The engine's own.
    Recall {
        /// Why, for the record.
        why: String,
    },
    /// Run a failed, cancelled or skipped job again with fresh counts, or a scheduled one now.
    Retry,
    /// Take back what a job has recorded from a step on, and run it again with fresh counts. For one that is not
    /// running and has not succeeded.
    Rewind {
        /// The step, by its key.
        from: Key,
        /// The number of the job's last claim, as whoever asks has seen it: a job that has run since is left alone.
        claim: u32,
    },
    /// Set a waiting job aside.
    Hold {
        /// Why, for as long as it is held. May be empty.
        why: String,
    },
    /// Let a suspended job go on. One that waits for something looks for it again.
    Resume,
    /// End a suspended job as failed.
    Fail {
        /// Why, for the record. May be empty.
        why: String,
    },
    /// Remove a job that is not running, with everything known of it.
    Delete,
    /// Give a waiting job another priority.
    SetPriority(Priority),
}

impl Verb {
    /// The word for it.
    pub const fn name(&self) -> &'static str {
        match self {
            Verb::Cancel { .. } => "cancel",
            Verb::Recall { .. } => "recall",
            Verb::Retry => "retry",
            Verb::Rewind { .. } => "rewind",
            Verb::Hold { .. } => "hold",
            Verb::Resume => "resume",
            Verb::Fail { .. } => "fail",
            Verb::Delete => "delete",
            Verb::SetPriority(_) => "set-priority",
        }
    }

    /// What this verb makes of a job, or [`Illegal`]. `Ok(None)`: the job is removed. `later` says whether the job's
    /// own time is still to come.
    ///
    /// # Errors
    /// [`Illegal`] if the verb does not apply to a job in this state.
    pub fn apply(&self, from: Status, later: bool) -> Result<Option<Status>, Illegal> {
        let input = match self {
            Verb::Cancel { .. } => Input::Cancel(Reason::Operator),
            Verb::Recall { .. } => Input::Cancel(Reason::Parent),
            Verb::Retry => Input::Revive,
            Verb::Rewind { .. } => Input::Rewind,
            Verb::Hold { .. } => Input::Hold,
            Verb::Resume => Input::Resume { later },
            Verb::Fail { .. } => Input::Fail(Reason::Operator),
            Verb::Delete if from.state == State::Running => {
                return Err(Illegal { from, input: Input::Cancel(Reason::Operator) });
            }
            Verb::Delete => return Ok(None),
            Verb::SetPriority(_) if from.state.is_terminal() || from.state == State::Running => {
                return Err(Illegal { from, input: Input::Hold });
            }
            Verb::SetPriority(_) => return Ok(Some(from)),
        };
        transition(from, input).map(Some)
    }

    /// The answer to this verb for a job that it would let wait or run on, but that cannot be read.
    pub fn refused(&self, from: Status) -> Illegal {
        let input = match self {
            Verb::Retry => Input::Revive,
            Verb::Rewind { .. } => Input::Rewind,
            Verb::Resume => Input::Resume { later: false },
            _ => Input::Hold,
        };
        Illegal { from, input }
    }

    /// Checks the bounds of the texts in it.
    ///
    /// # Errors
    /// [`Error::TooLarge`] or [`Error::Invalid`].
    pub fn check(&self) -> Result<()> {
        match self {
            Verb::Cancel { why } | Verb::Recall { why } | Verb::Hold { why } | Verb::Fail { why } => {
                check_why(why)
            }
            Verb::Retry | Verb::Rewind { .. } | Verb::Resume | Verb::Delete | Verb::SetPriority(_) => Ok(()),
        }
    }
}

fn check_why(why: &str) -> Result<()> {
    if why.len() > bounds::WHY_BYTES {
        return Err(Error::TooLarge { what: "why", size: why.len(), limit: bounds::WHY_BYTES });
    }
    if why.contains('\0') {
        return Err(Error::Invalid { what: "why", why: "NUL is not allowed".into() });
    }
    Ok(())
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests;
