//! Why is this schedule not firing? One reason, for any schedule.

use std::fmt;

use serde::Serialize;

use super::Schedule;
use crate::store::{Node, NodeState};
use crate::time::Timestamp;

/// The one reason that a schedule is not firing now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "why", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ScheduleWhy {
    /// Somebody has paused it.
    Paused {
        /// Who.
        by: String,
        /// Since when.
        since: Timestamp,
        /// What was said about it.
        note: String,
    },
    /// Its rule names no later time.
    Ended {
        /// How many jobs it has enqueued.
        fired: u64,
    },
    /// Its last fire could not be stored; it is tried again.
    Failing {
        /// What was in the way.
        error: String,
        /// How often in a row.
        times: u32,
        /// When it is tried again.
        next: Timestamp,
    },
    /// It is due, and no node is live that could fire it.
    NoNode {
        /// Since when.
        since: Timestamp,
    },
    /// It is due: a node fires it in a moment, or waits for the job of the fire before to stop.
    Due {
        /// Since when.
        since: Timestamp,
    },
    /// It waits for its time.
    Waiting {
        /// When that is.
        next: Timestamp,
        /// What happened last that is worth knowing.
        note: Option<String>,
    },
}

impl Schedule {
    /// Why it is not firing now.
    pub fn why(&self, nodes: &[Node], now: Timestamp) -> ScheduleWhy {
        if let Some(pause) = &self.state.paused {
            let (by, note) = (pause.by.clone(), pause.note.clone());
            return ScheduleWhy::Paused { by, since: pause.at, note };
        }
        let Some(next) = self.next_at else { return ScheduleWhy::Ended { fired: self.state.fired } };
        if let Some(error) = &self.state.error {
            return ScheduleWhy::Failing { error: error.text.clone(), times: error.times, next };
        }
        if next > now {
            let note = self.state.note.as_ref().map(|note| format!("{}: {}", note.at, note.text));
            return ScheduleWhy::Waiting { next, note };
        }
        let live = nodes.iter().any(|node| node.state == NodeState::Live);
        if live { ScheduleWhy::Due { since: next } } else { ScheduleWhy::NoNode { since: next } }
    }

    /// Whether code named it once and no live node does any more: all of them were started after the last one that did.
    pub fn is_orphan(&self, nodes: &[Node]) -> bool {
        let live = || nodes.iter().filter(|node| node.state == NodeState::Live);
        let named = |seen: Timestamp| live().any(|node| node.started_at <= seen);
        live().next().is_some() && self.state.seed.as_ref().is_some_and(|seed| !named(seed.seen))
    }
}

impl fmt::Display for ScheduleWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScheduleWhy::Paused { by, since, note } if note.is_empty() => {
                write!(f, "{by} paused it at {since}")
            }
            ScheduleWhy::Paused { by, since, note } => write!(f, "{by} paused it at {since}: {note}"),
            ScheduleWhy::Ended { fired } => write!(f, "it has ended, after {fired} jobs"),
            ScheduleWhy::Failing { error, times, next } => {
                write!(f, "its fire failed {times} times; a node tries it again at {next}: {error}")
            }
            ScheduleWhy::NoNode { since } => write!(f, "it has been due since {since}, and no node is live"),
            ScheduleWhy::Due { since } => {
                write!(
                    f,
                    "it has been due since {since}: a node will fire it in a moment, or waits for the previous job to stop"
                )
            }
            ScheduleWhy::Waiting { next, note: None } => write!(f, "it fires next at {next}"),
            ScheduleWhy::Waiting { next, note: Some(note) } => write!(f, "it fires next at {next} ({note})"),
        }
    }
}
