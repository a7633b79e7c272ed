//! What is seen of schedules: changes of their rows, and the jobs that were enqueued with them.

use mainspring_core::id::JobId;
use mainspring_core::name::ScheduleName;
use mainspring_core::schedule::{Schedule, fire_of};
use mainspring_core::store::{Receipt, ScheduleWrite};
use mainspring_core::time::Timestamp;
use serde::{Deserialize, Serialize};

/// A change of a schedule that the store has accepted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScheduleChange {
    /// The schedule.
    pub name: ScheduleName,
    /// The version that it was decided on; nothing: there was to be none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expected: Option<i64>,
    /// The row, with the version that it has since; nothing: it was deleted.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub row: Option<Box<Schedule>>,
    /// What a person or code did; nothing: a node has changed it by itself.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub verb: Option<String>,
    /// Jobs that were enqueued with it.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub jobs: Vec<ScheduledJob>,
}

/// A job of a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduledJob {
    /// Its id.
    pub id: JobId,
    /// The nominal time of its fire.
    pub fire: Timestamp,
    /// Whether it was enqueued by this; or else it was there, or was refused.
    pub created: bool,
}

/// What a schedule was when somebody looked at it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LookedSchedule {
    /// The store's time.
    pub now: Timestamp,
    /// Whether its last job has not ended.
    pub open: bool,
    /// Its row.
    pub row: Box<Schedule>,
}

impl ScheduleChange {
    /// A change that was accepted, with what became of its jobs.
    pub fn of(write: &ScheduleWrite, receipts: &[Receipt]) -> Self {
        let version = write.version();
        let job = |(job, receipt): (&mainspring_core::job::New, &Receipt)| ScheduledJob {
            id: job.id,
            fire: fire_of(&job.options).unwrap_or_default(),
            created: *receipt == Receipt::Created,
        };
        ScheduleChange {
            name: write.name.clone(),
            expected: write.expected,
            row: write.row.clone().map(|row| Box::new(Schedule { version, ..row })),
            verb: write.audit.as_ref().map(|entry| entry.verb.clone()),
            jobs: write.jobs.iter().zip(receipts).map(job).collect(),
        }
    }
}
