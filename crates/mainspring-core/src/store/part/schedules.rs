//! The part of a store for schedules: it keeps their rows, and enqueues jobs in the commit that changes a row.

use crate::Result;
use crate::name::ScheduleName;
use crate::schedule::Schedule;
use crate::seam::Pending;
use crate::store::{DueSchedules, ScheduleWrite, Written};

/// The part of a store for schedules. It knows no rules: those are pure functions over its rows.
pub trait Schedules: Send + Sync + 'static {
    /// Returns the schedules that are due, at most `limit`, the longest due first, and when the next one is due.
    fn due_schedules(&self, limit: usize) -> Pending<'_, Result<DueSchedules>>;

    /// Returns schedules by name, at most [`BATCH`](crate::bounds::BATCH), in order; `None` for a missing one.
    fn find_schedules(&self, names: Vec<ScheduleName>) -> Pending<'_, Result<Vec<Option<Schedule>>>>;

    /// Lists schedules in the order of their names, those after `after`, at most `limit`.
    fn list_schedules(&self, after: Option<ScheduleName>, limit: usize)
    -> Pending<'_, Result<Vec<Schedule>>>;

    /// Writes rows of schedules, at most [`BATCH`](crate::bounds::BATCH), no name twice, with at most as many jobs. One
    /// answer per write, in order.
    ///
    /// A write whose [`expected`](ScheduleWrite::expected) version is the row's is [`Written::Stored`]: row, jobs and
    /// audit entry, all in one commit. Its jobs are enqueued as [`enqueue`](crate::store::Producers::enqueue) says,
    /// with one receipt each; a job that is refused by a receipt does not keep the row from being written. Otherwise it
    /// is [`Written::Stale`] and changes nothing, and neither does it hold up the others. A row that somebody else is
    /// writing at that moment may be told as stale as well.
    ///
    /// [`Written::Contended`]: a unique key of one of its jobs is in the hands of an open transaction. Nothing of this
    /// call is stored then, and all that are not stale are told so.
    fn write_schedules(&self, writes: Vec<ScheduleWrite>) -> Pending<'_, Result<Vec<Written>>>;
}
