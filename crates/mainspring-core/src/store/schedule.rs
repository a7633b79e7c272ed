//! Schedules: what goes over the seam.

use crate::audit::AuditEntry;
use crate::job::New;
use crate::name::ScheduleName;
use crate::schedule::Schedule;
use crate::store::Receipt;
use crate::time::Timestamp;

/// Schedules that are due.
#[derive(Debug, Clone, PartialEq)]
pub struct DueSchedules {
    /// The store's time.
    pub now: Timestamp,
    /// Those that are due.
    pub schedules: Vec<Schedule>,
    /// When the first of the others is due, which may be in the past.
    pub next: Option<Timestamp>,
}

/// A change of one schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduleWrite {
    /// Which.
    pub name: ScheduleName,
    /// The version of the row that the decision is based on; `None`: the row must not exist.
    pub expected: Option<i64>,
    /// The new row, whose version the store sets; `None` deletes the row.
    pub row: Option<Schedule>,
    /// The jobs to enqueue in the same commit.
    pub jobs: Vec<New>,
    /// The entry for the audit.
    pub audit: Option<AuditEntry>,
}

impl ScheduleWrite {
    /// Returns the version of the row after this write.
    pub fn version(&self) -> i64 {
        self.expected.unwrap_or(0) + 1
    }
}

/// The answer of a store to a [`ScheduleWrite`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// It is stored, with what became of each of its jobs.
    Stored(Vec<Receipt>),
    /// The row is another one by now: nothing of it is stored.
    Stale,
    /// A unique key is in the hands of an open transaction: nothing of it is stored. To be tried again.
    Contended,
}
