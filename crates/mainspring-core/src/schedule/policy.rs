//! What to do with fires that were missed, and with a job that is not done when the next is due.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Rule;
use crate::job::{State, Status};
use crate::planted::{self, Defect};
use crate::time::Timestamp;
use crate::{Error, Result, bounds};

/// What becomes of fires that no node was there for.
///
/// A fire is missed if it is late by more than the schedule's grace, or if later ones are due already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Missed {
    /// Missed fires enqueue nothing.
    Skip,
    /// All that were missed enqueue one job, for the latest of them.
    #[default]
    Once,
    /// The latest of them enqueue a job each, up to this many.
    All(u16),
}

impl Missed {
    /// Checks that it can be stored.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn check(self) -> Result<()> {
        match self {
            Missed::All(most) if most == 0 || most > bounds::CATCH_UP => Err(Error::Invalid {
                what: "missed fires",
                why: format!("all:{most} is not between all:1 and all:{}", bounds::CATCH_UP),
            }),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Missed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missed::Skip => f.pad("skip"),
            Missed::Once => f.pad("once"),
            Missed::All(most) => f.pad(&format!("all:{most}")),
        }
    }
}

impl FromStr for Missed {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let missed = match text {
            "skip" => Missed::Skip,
            "once" => Missed::Once,
            "all" => Missed::All(bounds::CATCH_UP),
            _ => text.strip_prefix("all:").and_then(|most| most.parse().ok()).map(Missed::All).ok_or_else(
                || {
                    let why = format!("`{text}` is not skip, once, all or all:50");
                    Error::Invalid { what: "missed fires", why }
                },
            )?,
        };
        missed.check()?;
        Ok(missed)
    }
}

impl TryFrom<String> for Missed {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Missed> for String {
    fn from(missed: Missed) -> String {
        missed.to_string()
    }
}

/// What happens when a fire is due and the job of the one before has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// The next job is enqueued beside it.
    #[default]
    Allow,
    /// The fire enqueues nothing.
    Skip,
    /// The job before is cancelled, and the next is enqueued as soon as that has ended.
    Cancel,
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Overlap::Allow => "allow",
            Overlap::Skip => "skip",
            Overlap::Cancel => "cancel",
        })
    }
}

impl FromStr for Overlap {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "allow" => Ok(Overlap::Allow),
            "skip" => Ok(Overlap::Skip),
            "cancel" => Ok(Overlap::Cancel),
            _ => {
                Err(Error::Invalid { what: "overlap", why: format!("`{text}` is not allow, skip or cancel") })
            }
        }
    }
}

/// What a fire does, given the job of the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// It enqueues its job.
    Fire,
    /// It enqueues nothing, because the job before has not ended.
    Skip,
    /// The job before is to be cancelled; the fire stays due until that has ended.
    Cancel,
    /// The schedule is paused, because the job before has failed.
    Pause,
}

impl Overlap {
    /// Decides by what the job before is now; `None`: there is none (any more).
    pub fn hold(self, pause_on_failure: bool, before: Option<Status>) -> Hold {
        match (self, before) {
            (_, Some(status)) if pause_on_failure && status.state == State::Failed => Hold::Pause,
            (Overlap::Allow, _) | (_, None) => Hold::Fire,
            (_, Some(status)) if status.state.is_terminal() => Hold::Fire,
            (Overlap::Skip, Some(_)) => Hold::Skip,
            (Overlap::Cancel, Some(_)) => Hold::Cancel,
        }
    }
}

/// What is due of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// Fires that enqueue a job, by their nominal times, in order.
    pub fires: Vec<Timestamp>,
    /// The first and the last fire that enqueue none, because they were missed.
    pub missed: Option<(Timestamp, Timestamp)>,
    /// The last fire that is dealt with by this; before any: what was given.
    pub last: Timestamp,
    /// The nominal time of the next one; `None`: the rule has ended.
    pub next: Option<Timestamp>,
}

/// Which fires of a rule are due, after the nominal time `last` up to `now`.
///
/// `now` is the present less the [shift](Rule::shift) of the schedule. However far it is ahead, no more than
/// [`CATCH_UP`](crate::bounds::CATCH_UP) fires come of it; if it is behind `last`, none do.
pub fn due(rule: &Rule, missed: Missed, grace: Duration, last: Timestamp, now: Timestamp) -> Due {
    let Some(first) = rule.after(last).filter(|first| *first <= now) else {
        return Due { fires: Vec::new(), missed: None, last, next: rule.after(last) };
    };
    let missed = if planted::is(Defect::MissedIgnored) { Missed::Once } else { missed };
    let most = match missed {
        Missed::Skip | Missed::Once => 1,
        Missed::All(most) => usize::from(most.min(bounds::CATCH_UP)),
    };
    let mut fires = rule.last_many(last, now, most);
    let latest = fires.last().copied().unwrap_or(first);
    if missed == Missed::Skip {
        fires.retain(|at| now.since(*at) <= grace);
    }
    let missed = match fires.first() {
        Some(at) if *at <= first => None,
        Some(at) => rule.last(last, Timestamp::from_micros(at.as_micros() - 1)).map(|end| (first, end)),
        None => Some((first, latest)),
    };
    Due { fires, missed, last: latest, next: rule.after(latest) }
}
