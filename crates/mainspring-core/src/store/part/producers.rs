//! The part of a store for producers: they store jobs, send signals to them, and wait for their ends.

use crate::Result;
use crate::id::JobId;
use crate::job::New;
use crate::journal::{JobEnd, Signal, Signalled};
use crate::name::SignalName;
use crate::output::{Ask, Output};
use crate::seam::Pending;
use crate::store::{Receipt, Ticket};

/// The part of a store for producers.
pub trait Producers: Send + Sync + 'static {
    /// Stores jobs, checked and at most [`BATCH`](crate::bounds::BATCH) of them. One receipt per job, in order.
    /// The store checks ids first. If a job has the id already, it is either [the same](New::differs)
    /// ([`Receipt::Repeated`]) or another one ([`Receipt::Taken`]), in whatever state. The id of a removed job is free
    /// again. Within a batch, the store takes the first job of an id.
    ///
    /// Jobs due now enter `ready`, others `timers`. Unique keys are taken in order of the batch; a key whose period
    /// has ended is free. Replacing cancels a waiting holder (its status becomes `cancelled (replaced)`) and takes its
    /// key; a running or ended holder is kept, and so is one that was pruned within the period of its key. A batch that
    /// would make more than [`LINES`](crate::bounds::LINES) lines is refused whole, as `TooLarge`. So is one with a job
    /// that names a limit that nobody has defined, as [`UnknownLimit`](crate::Error::UnknownLimit); that holds for
    /// children, jobs of schedules and jobs in a caller's transaction as well. The journal of a job that has one is
    /// recorded with it, under claim 0.
    fn enqueue(&self, jobs: Vec<New>) -> Pending<'_, Result<Vec<Receipt>>>;

    /// Returns a ticket for a caller's own transaction that stores jobs without waiting; see
    /// [`EnlistSync`](crate::store::EnlistSync).
    fn ticket(&self) -> Ticket;

    /// Returns a ticket for a caller's own transaction that stores these jobs; see [`Enlist`](crate::store::Enlist).
    /// This call stores what the jobs share with others, such as the names of their lines. So the caller's transaction
    /// adds only rows of its own, and blocks nobody while it is open.
    fn ticket_for(&self, jobs: Vec<New>) -> Pending<'_, Result<Ticket>> {
        drop(jobs);
        Box::pin(std::future::ready(Ok(self.ticket())))
    }

    /// Wakes the callers and nodes that wait for a job of a caller's committed transaction, in all processes. Saves
    /// time; nothing depends on it.
    fn nudge(&self, id: JobId);

    /// Puts signals, checked and at most [`BATCH`](crate::bounds::BATCH) of them, into the inboxes of their jobs, in
    /// order. One answer per signal, in order. A suspended job that waits for it enters `ready` as
    /// [`Class::Returned`](crate::store::Class::Returned); one that is held does not.
    fn signal(&self, signals: Vec<Signal>) -> Pending<'_, Result<Vec<Signalled>>>;

    /// Drops unread signals of a name, all or those of one sender, from the inbox of a job in whatever place, and tells
    /// how many; `None` if there is no such job. A dropped signal counts as read: no claim gets it, it ends no wait,
    /// and the store keeps its sender's key, so a repeat is [`Signalled::Repeated`]. The job stays where it is. One
    /// that the signal has woken finds nothing, and suspends again. A claim that was given the signal before may still
    /// read it. A repeat of this call finds nothing left to drop.
    fn drop_signals(
        &self,
        id: JobId,
        name: SignalName,
        sender: Option<String>,
    ) -> Pending<'_, Result<Option<usize>>>;

    /// Returns how far jobs are from their end, for callers that wait; at most [`BATCH`](crate::bounds::BATCH). In order.
    fn job_ends(&self, ids: Vec<JobId>) -> Pending<'_, Result<Vec<JobEnd>>>;

    /// Returns the output of jobs, each after a position, with their states at the same moment; at most
    /// [`BATCH`](crate::bounds::BATCH). In order. `None` for a job that is not there (any more).
    fn output(&self, asks: Vec<Ask>) -> Pending<'_, Result<Vec<Option<Output>>>>;
}
