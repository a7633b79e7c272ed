//! What a store does for schedules: it keeps their rows, and enqueues jobs in the commit that changes one.

use crate::Result;
use crate::name::ScheduleName;
use crate::schedule::{AuditEntry, Schedule};
use crate::seam::Pending;
use crate::store::{DueSchedules, ScheduleWrite, Written};

/// What a store does for schedules. It knows nothing of rules: those are pure functions over its rows.
pub trait Schedules: Send + Sync + 'static {
    /// Schedules to be looked at by now, at most `limit`, the longest due first; and when the next one is.
    fn due_schedules(&self, limit: usize) -> Pending<'_, Result<DueSchedules>>;

    /// Schedules by their names, at most [`BATCH`](crate::bounds::BATCH). In order; `None` for one that is not there.
    fn find_schedules(&self, names: Vec<ScheduleName>) -> Pending<'_, Result<Vec<Option<Schedule>>>>;

    /// Schedules in order of their names, those behind `after`, at most `limit`.
    fn list_schedules(&self, after: Option<ScheduleName>, limit: usize)
    -> Pending<'_, Result<Vec<Schedule>>>;

    /// Writes rows of schedules, at most [`BATCH`](crate::bounds::BATCH), no name twice, with at most as many jobs. One answer per
    /// write, in order.
    ///
    /// A write whose [`expected`](ScheduleWrite::expected) version is the row's is [`Written::Stored`]: row, jobs and audit entry, all in
    /// one commit. Its jobs are enqueued as [`enqueue`](crate::store::Producers::enqueue) says, with one receipt each; a job that is refused by a
    /// receipt does not keep the row from being written. Otherwise it is [`Written::Stale`] and changes nothing, and neither does it hold up
    /// the others. A row that somebody else is writing at that moment may be told as stale as well.
    ///
    /// [`Written::Contended`]: a unique key of one of its jobs is in the hands of an open transaction. Nothing of this call is
    /// stored then, and all that are not stale are told so.
    fn write_schedules(&self, writes: Vec<ScheduleWrite>) -> Pending<'_, Result<Vec<Written>>>;

    /// Changes that somebody made, the last first, at most `limit`: of one schedule, or of all. Of each, the last
    /// [`AUDIT`](crate::bounds::AUDIT) are kept, also when it was deleted.
    fn audit(&self, name: Option<ScheduleName>, limit: usize) -> Pending<'_, Result<Vec<AuditEntry>>>;
}
