//! What producers ask of a store: to store jobs, to send signals to them, and to wait for what becomes of them.

use crate::Result;
use crate::id::JobId;
use crate::job::New;
use crate::journal::{JobEnd, Signal, Signalled};
use crate::name::SignalName;
use crate::output::{Ask, Output};
use crate::seam::Pending;
use crate::store::{Receipt, Ticket};

/// What producers ask of a store.
pub trait Producers: Send + Sync + 'static {
    /// Stores jobs, checked and at most [`BATCH`](crate::bounds::BATCH) of them. One receipt per job, in order.
    ///
    /// An id that is there already is looked at first: the job that has it is either [the same](New::differs)
    /// ([`Receipt::Repeated`]) or another one ([`Receipt::Taken`]), whatever has become of it. The id of a job that was
    /// removed is free again. So is compared within a batch: the first job of an id is stored.
    ///
    /// Jobs due now enter `ready`, others `timers`. Unique keys are taken in order of the batch; a key whose period
    /// has ended is free. Replacing cancels a waiting holder (its status becomes `cancelled (replaced)`) and takes its
    /// key; a running or ended holder is kept, and so is one that was pruned within the period of its key. A batch that
    /// would make more than [`LINES`](crate::bounds::LINES) lines is refused whole, as `TooLarge`. The journal of a job that
    /// has one is recorded with it, under claim 0.
    fn enqueue(&self, jobs: Vec<New>) -> Pending<'_, Result<Vec<Receipt>>>;

    /// What a caller's own transaction needs to know to take jobs with it without waiting; see [`EnlistSync`](crate::store::EnlistSync).
    fn ticket(&self) -> Ticket;

    /// What a caller's own transaction needs to know to take these jobs with it; see [`Enlist`](crate::store::Enlist).
    ///
    /// Whatever jobs share with others, such as the names of their lines, is stored here and now, so that the caller's
    /// transaction adds rows of its own only and holds up nobody while it is open.
    fn ticket_for(&self, jobs: Vec<New>) -> Pending<'_, Result<Ticket>> {
        drop(jobs);
        Box::pin(std::future::ready(Ok(self.ticket())))
    }

    /// Wakes whoever waits for a job that a caller's own transaction has committed, in this process and in others. Saves
    /// time; nothing depends on it.
    fn nudge(&self, id: JobId);

    /// Puts signals, checked and at most [`BATCH`](crate::bounds::BATCH) of them, into the inboxes of their jobs, in
    /// order. One answer per signal, in order. A suspended job that waits for it enters `ready` as [`Class::Returned`](crate::store::Class::Returned);
    /// one that is held does not.
    fn signal(&self, signals: Vec<Signal>) -> Pending<'_, Result<Vec<Signalled>>>;

    /// Drops unread signals of a name, all or those of one sender, from the inbox of a job in whatever place, and tells how many;
    /// `None` if there is no such job.
    ///
    /// A dropped signal counts as read: no claim gets it, no wait is over because of it, and its sender's key is kept as that of
    /// one that was read, so a repeat is [`Signalled::Repeated`]. The job stays where it is. One that the signal has woken finds
    /// nothing, and suspends again. A claim that was given the signal before may still read it. A repeat of this call finds
    /// nothing left to drop.
    fn drop_signals(
        &self,
        id: JobId,
        name: SignalName,
        sender: Option<String>,
    ) -> Pending<'_, Result<Option<usize>>>;

    /// How jobs look to somebody who waits for their end; at most [`BATCH`](crate::bounds::BATCH). In order.
    fn job_ends(&self, ids: Vec<JobId>) -> Pending<'_, Result<Vec<JobEnd>>>;

    /// What jobs have said, each from behind a position on, with how they look at the same moment; at most
    /// [`BATCH`](crate::bounds::BATCH). In order. `None` for a job that is not there (any more).
    fn output(&self, asks: Vec<Ask>) -> Pending<'_, Result<Vec<Option<Output>>>>;
}
