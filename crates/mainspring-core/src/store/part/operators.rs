//! What operators ask of a store: to look at jobs, queues and nodes, to change them, and to judge the store itself.

use crate::Result;
use crate::id::JobId;
use crate::job::{Record, Verb};
use crate::journal::Timeline;
use crate::name::QueueName;
use crate::seam::Pending;
use crate::store::{
    Changed, CheckPart, Checked, Counts, Filter, Finding, Line, Listing, Node, Page, Queue, QueueChange,
};

/// What operators ask of a store.
pub trait Operators: Send + Sync + 'static {
    /// Everything known of a job.
    fn get(&self, id: JobId) -> Pending<'_, Result<Option<Record>>>;

    /// What a job has recorded, been sent and started.
    fn timeline(&self, id: JobId) -> Pending<'_, Result<Option<Timeline>>>;

    /// Jobs that match, the last stored first, in pages. [`Error::Invalid`](crate::Error::Invalid) for a cursor that is
    /// none of this store's.
    ///
    /// A page may be short, or even empty, and still have a cursor: one call looks at no more than
    /// [`SCAN`](crate::bounds::SCAN) rows. A job that neither appears, changes nor disappears meanwhile is listed
    /// exactly once over all pages.
    fn list(&self, filter: Filter, page: Page) -> Pending<'_, Result<Listing>>;

    /// How many jobs each queue has in each state; queues without jobs are left out. Costs the same however many there
    /// are.
    fn counts(&self) -> Pending<'_, Result<Counts>>;

    /// Applies a verb to jobs, at most [`BATCH`](crate::bounds::BATCH). One answer per id, in order. With `dry_run`
    /// nothing is changed and the answers say what would be.
    ///
    /// `Cancel` and `Recall` on a running job flag its claim; the reason first given stays. `Retry` clears failures and crashes
    /// (errors are kept) and marks the job's outcome as superseded; its unique key is not taken again. `Resume` clears
    /// crashes. Neither touches the journal: what is recorded is not done again. `Rewind` is a `Retry` that removes what
    /// [`rewind`](crate::journal::rewind) says of the journal, makes signals unread again and cancels children as if their parent
    /// had ended, unless they are to go on by themselves; and the job's claim number grows by one, so that it is not the same any more
    /// to a repeat ([`Changed::Stale`]), nor to a handler that is still in memory. Retried, rewound and resumed jobs enter `ready` as [`Class::Fresh`](crate::store::Class::Fresh). `Reprioritise` leaves a ready job its class
    /// and its time of entering. A job that cannot be read is refused by every verb that would let it wait or run on, as
    /// `Illegal`; a suspended (unreadable) one may be resumed once it can be read again. Verbs that end or remove a job do not
    /// read what they do not need. `Delete` releases the job's unique key, whatever its period; to its parent and its children, a
    /// job that had not ended is cancelled.
    fn change(&self, ids: Vec<JobId>, verb: Verb, dry_run: bool) -> Pending<'_, Result<Vec<Changed>>>;

    /// What the jobs in `ready` need: each combination of a queue, a kind and required labels that has some, sorted. Costs
    /// the same however many jobs there are.
    fn lines(&self) -> Pending<'_, Result<Vec<Line>>>;

    /// All queues that were ever named by a job, a node's registration or a setting, sorted. (A job that was not stored
    /// may or may not have named its queue.) One that was [deleted](Operators::delete_queue) is among them while it has jobs, and
    /// once a node that joins or a setting has named it again.
    fn queues(&self) -> Pending<'_, Result<Vec<Queue>>>;

    /// Changes a queue's settings, creating it if need be. Pausing stops claims; running jobs go on.
    fn configure(&self, queue: QueueName, change: QueueChange) -> Pending<'_, Result<Queue>>;

    /// Forgets a queue that has no jobs, and its settings; tells whether there was one. Whoever names it again gets one with
    /// default settings. A job that is stored at the same moment is never lost: either it refuses the deletion, or it comes
    /// after it and its queue is there again. Nodes that serve the queue go on doing so.
    ///
    /// Refused as [`QueueNotEmpty`](crate::Error::QueueNotEmpty) while the queue has jobs in any place, `done` included.
    fn delete_queue(&self, queue: QueueName) -> Pending<'_, Result<bool>>;

    /// All nodes that the store still remembers, newest first.
    fn nodes(&self) -> Pending<'_, Result<Vec<Node>>>;

    /// Looks for what must not be there. Empty if all is well.
    ///
    /// All parts of [`check_part`](Operators::check_part), however long that takes.
    fn check(&self) -> Pending<'_, Result<Vec<Finding>>> {
        Box::pin(async move {
            let (mut next, mut findings) = (Some(CheckPart::default()), Vec::new());
            while let Some(part) = next {
                let checked = self.check_part(part).await?;
                findings.extend(checked.findings);
                next = checked.next;
            }
            Ok(findings)
        })
    }

    /// One part of the self-check. Each part sees one moment of its own and ends soon: nobody waits for a look at everything.
    /// Every column of every row is decoded, and what cannot be read is named.
    fn check_part(&self, part: CheckPart) -> Pending<'_, Result<Checked>>;

    /// Tries a write that leaves nothing behind, and tells why no job could be stored, claimed or ended now.
    fn try_write(&self) -> Pending<'_, Result<()>>;

    /// Looks at what surrounds the store: settings, rights and other users of its database that may hurt it. Empty if
    /// all is well.
    fn diagnose(&self) -> Pending<'_, Result<Vec<Finding>>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
}
