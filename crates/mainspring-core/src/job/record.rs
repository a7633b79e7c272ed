//! What a store knows of a job.

use serde::{Deserialize, Serialize};

use crate::id::{JobId, NodeNo};
use crate::job::{FaultKind, Options, Priority, State, Status};
use crate::journal::Wait;
use crate::name::{Key, Kind, QueueName};
use crate::time::Timestamp;

/// A job without its input and result, as lists show it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Its id.
    pub id: JobId,
    /// Its kind.
    pub kind: Kind,
    /// Its queue.
    pub queue: QueueName,
    /// Its priority, as it is now.
    pub priority: Priority,
    /// Its state, with the reason if there is one.
    #[serde(flatten)]
    pub status: Status,
    /// The number of its latest claim; 0 if it was never claimed.
    pub claim: u32,
    /// How many attempts have failed.
    pub failures: u16,
    /// How many nodes were lost while they ran it, since it last made progress.
    pub crashes: u16,
    /// When it was enqueued.
    pub created_at: Timestamp,
    /// When it may run. Set while it is scheduled, while it is held if it was scheduled before, and while it is
    /// suspended if time wakes it.
    pub run_at: Option<Timestamp>,
    /// When its latest claim began: set while it is running, and once it has ended if a claim ended it.
    pub claimed_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// When it fails for good if it has not ended. `None` once it has ended, even if it runs again.
    pub deadline: Option<Timestamp>,
    /// The node that runs it, or whose claim ended it.
    pub node: Option<NodeNo>,
    /// Whether its node has a request to stop it.
    pub cancelling: bool,
    /// Whether its handler has exceeded its timeout and does not yield, as its node reports.
    pub stuck: bool,
    /// Whether its handler awaits something that is not durable, and so keeps its slot, as its node reports. Never
    /// together with `stuck`.
    pub foreign: bool,
    /// Its damaged parts, and the damage. They appear as if they had never been set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
    /// Its other options.
    pub options: Options,
}

impl Summary {
    /// Which attempt the job is at, or ended with.
    pub fn attempt(&self) -> u16 {
        // A job that failed for good has no attempt ahead of it.
        let failed = self.status.state == State::Failed && self.failures > 0;
        let number = if failed { self.failures } else { self.failures.saturating_add(1) };
        number.min(self.options.max_attempts)
    }
}

/// What of a job cannot be read, as a store finds it while it reads one: the first of it, in words. It goes into
/// [`Summary::unreadable`].
#[derive(Debug, Default)]
pub struct Unreadable {
    /// That, if there is anything.
    pub what: Option<String>,
}

impl Unreadable {
    /// What was read; or nothing, and a note of it.
    pub fn note<T>(&mut self, what: &str, read: Result<T, String>) -> Option<T> {
        match read {
            Ok(value) => Some(value),
            Err(why) => {
                self.what.get_or_insert_with(|| format!("{what}: {why}"));
                None
            }
        }
    }
}

/// Everything that a store knows of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Its state and options, as lists show them.
    pub summary: Summary,
    /// Its input, as JSON.
    pub input: Vec<u8>,
    /// Its result, as JSON, once it has succeeded.
    pub result: Option<Vec<u8>>,
    /// Why a person or program cancelled, failed or suspended it, in their words. `errors` has the handler's errors.
    pub note: Option<String>,
    /// Its failures and the losses of its nodes, oldest first; at most [`ERRORS_KEPT`](crate::bounds::ERRORS_KEPT).
    pub errors: Vec<ErrorEntry>,
    /// The latest progress that its handler has reported.
    pub progress: Option<Progress>,
    /// The messages that wake it, while it is suspended.
    pub waits: Vec<Wait>,
    /// Its latest record and the time of it, while it is [`foreign`](Summary::foreign).
    pub last: Option<(Key, Timestamp)>,
}

/// The error, or the crash, of one attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ErrorEntry {
    /// The claim of the attempt.
    pub claim: u32,
    /// When that claim began.
    pub claimed_at: Timestamp,
    /// The node that held it.
    pub node: NodeNo,
    /// The time of the error.
    pub at: Timestamp,
    /// The kind of error.
    pub kind: FaultKind,
    /// The text of the error.
    pub message: String,
}

/// The progress of a job, as its handler reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Finished parts; at most [`i64::MAX`].
    pub done: u64,
    /// All parts; 0 if unknown. At most [`i64::MAX`].
    pub total: u64,
    /// A text for people; may be empty.
    pub note: String,
}
