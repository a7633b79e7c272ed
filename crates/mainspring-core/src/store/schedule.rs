//! Schedules: what goes over the seam.

use crate::job::New;
use crate::name::ScheduleName;
use crate::schedule::{AuditEntry, Schedule};
use crate::store::Receipt;
use crate::time::Timestamp;

/// Schedules to be looked at.
#[derive(Debug, Clone, PartialEq)]
pub struct DueSchedules {
    /// The store's time.
    pub now: Timestamp,
    /// Those that are due.
    pub schedules: Vec<Schedule>,
    /// When the first of those left is due, which may be past.
    pub next: Option<Timestamp>,
}

/// A change of one schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduleWrite {
    /// Which.
    pub name: ScheduleName,
    /// The version of the row that this was decided on; `None`: there must be none.
    pub expected: Option<i64>,
    /// The row, whose version the store gives; `None`: it is deleted.
    pub row: Option<Schedule>,
    /// Jobs that are enqueued with it.
    pub jobs: Vec<New>,
    /// What is remembered of it.
    pub audit: Option<AuditEntry>,
}

impl ScheduleWrite {
    /// The version that the row has afterwards.
    pub fn version(&self) -> i64 {
        self.expected.unwrap_or(0) + 1
    }
}

/// What became of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// It is stored, with what became of each of its jobs.
    Stored(Vec<Receipt>),
    /// The row is another one by now: nothing of it is stored.
    Stale,
    /// A unique key is in the hands of an open transaction: nothing of it is stored. To be tried again.
    Contended,
}
