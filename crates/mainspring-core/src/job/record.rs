//! What a store knows of a job.

use serde::{Deserialize, Serialize};

use crate::id::{JobId, NodeNo};
use crate::job::{FaultKind, Options, Priority, State, Status};
use crate::journal::Wait;
use crate::name::{Key, Kind, QueueName};
use crate::time::Timestamp;

/// A job without its payloads: what lists show.
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
    /// What it is.
    #[serde(flatten)]
    pub status: Status,
    /// The number of its latest claim; 0 if it was never claimed.
    pub claim: u32,
    /// How often it has failed.
    pub failures: u16,
    /// How many nodes were lost while running it, since it last made progress.
    pub crashes: u16,
    /// When it was enqueued.
    pub created_at: Timestamp,
    /// When it may run: set while it is scheduled, while it is held if it was scheduled before, and while it is suspended
    /// if time wakes it.
    pub run_at: Option<Timestamp>,
    /// When its latest claim began: set while it is running.
    pub claimed_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// When it fails if it has not ended. None once it has, also if it is run again.
    pub deadline: Option<Timestamp>,
    /// The node that runs it.
    pub node: Option<NodeNo>,
    /// Whether its node has been asked to stop it.
    pub cancelling: bool,
    /// Whether its node says that its handler outlived its time-out and does not yield.
    pub stuck: bool,
    /// Whether its node says that its handler awaits something that is not durable, and so keeps its slot. Never together
    /// with `stuck`.
    pub foreign: bool,
    /// What of it cannot be read, and why not. That is shown as if it had never been set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
    /// What is rarely set.
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
    /// What lists show.
    pub summary: Summary,
    /// What its handler gets, as JSON.
    pub input: Vec<u8>,
    /// What its handler returned, as JSON.
    pub result: Option<Vec<u8>>,
    /// Why it was cancelled, failed or suspended, in the words of whoever did it, if any. A fault is among the errors
    /// instead.
    pub note: Option<String>,
    /// What went wrong, oldest first; bounded by [`ERRORS_KEPT`](crate::bounds::ERRORS_KEPT).
    pub errors: Vec<ErrorEntry>,
    /// What its handler last said of its progress.
    pub progress: Option<Progress>,
    /// What may wake it, while it is suspended.
    pub waits: Vec<Wait>,
    /// What it recorded last, and when; while it is [`foreign`](Summary::foreign).
    pub last: Option<(Key, Timestamp)>,
}

/// What went wrong in one attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ErrorEntry {
    /// The claim in which it happened.
    pub claim: u32,
    /// When.
    pub at: Timestamp,
    /// In which way.
    pub kind: FaultKind,
    /// In words.
    pub message: String,
}

/// How far a handler says that it has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Parts done. Stores keep no more than [`i64::MAX`].
    pub done: u64,
    /// Parts in all; 0 if unknown. Stores keep no more than [`i64::MAX`].
    pub total: u64,
    /// In words; may be empty.
    pub note: String,
}
