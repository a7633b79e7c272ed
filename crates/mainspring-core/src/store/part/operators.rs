//! The part of a store for operators: they look at jobs, queues and nodes, change them, and check the store itself.

use crate::Result;
use crate::audit::{AuditEntry, Subject};
use crate::id::JobId;
use crate::job::{Record, Verb};
use crate::journal::Timeline;
use crate::name::QueueName;
use crate::seam::Pending;
use crate::store::{
    Changed, CheckPart, Checked, Counts, Filter, Finding, Line, Listing, Node, Page, Queue, QueueChange,
};

/// The part of a store for operators.
pub trait Operators: Send + Sync + 'static {
    /// Returns everything about a job.
    fn get(&self, id: JobId) -> Pending<'_, Result<Option<Record>>>;

    /// Returns a job's records, messages and children.
    fn timeline(&self, id: JobId) -> Pending<'_, Result<Option<Timeline>>>;

    /// Lists the jobs that match, the last stored first, in pages. [`Error::Invalid`](crate::Error::Invalid) for a
    /// position of another store. A page may be short, or even empty, and still have a next one: one call reads no more
    /// than
    /// [`SCAN`](crate::bounds::SCAN) rows. A job that neither appears, changes nor disappears meanwhile is listed
    /// exactly once over all pages.
    fn list(&self, filter: Filter, page: Page) -> Pending<'_, Result<Listing>>;

    /// Counts the jobs of each queue in each state, without empty queues. Costs the same for any number of jobs.
    fn counts(&self) -> Pending<'_, Result<Counts>>;

    /// Applies a verb to jobs, at most [`BATCH`](crate::bounds::BATCH). One answer per id, in order. With `dry_run`
    /// nothing is changed and the answers say what would be.
    ///
    /// `Cancel` and `Recall` on a running job flag its claim; the reason first given stays. `Retry` clears failures and
    /// crashes (errors are kept) and marks the job's outcome as superseded; its unique key is not taken again. `Resume`
    /// clears crashes. Neither touches the journal: what is recorded is not done again. `Rewind` is a `Retry` that
    /// removes what
    /// [`rewind`](crate::journal::rewind) says of the journal, makes signals unread again and cancels children as if
    /// their parent had ended, unless they are to go on by themselves; and the job's claim number grows by one, so that
    /// it is not the same any more to a repeat ([`Changed::Stale`]), nor to a handler that is still in memory. Retried,
    /// rewound and resumed jobs enter `ready` as [`Class::Fresh`](crate::store::Class::Fresh). `Reprioritise` leaves a
    /// ready job its class and its time of entering. A job that cannot be read is refused by every verb that would let
    /// it wait or run on, as `Illegal`; a suspended (unreadable) one may be resumed once it can be read again. Verbs
    /// that end or remove a job do not read what they do not need. `Delete` releases the job's unique key, whatever its
    /// period; to its parent and its children, a job that had not ended is cancelled.
    fn change(&self, ids: Vec<JobId>, verb: Verb, dry_run: bool) -> Pending<'_, Result<Vec<Changed>>>;

    /// What the jobs in `ready` need: each combination of a queue, a kind and required labels that has some, sorted. Costs
    /// the same however many jobs there are.
    fn lines(&self) -> Pending<'_, Result<Vec<Line>>>;

    /// All queues that were ever named by a job, a node's registration or a setting, sorted. (A job that was not stored
    /// may or may not have named its queue.) One that was [deleted](Operators::delete_queue) is among them while it has
    /// jobs, and once a node that joins or a setting has named it again.
    fn queues(&self) -> Pending<'_, Result<Vec<Queue>>>;

    /// Changes a queue's settings, and creates the queue if needed. Pausing stops claims; running jobs continue.
    fn configure(&self, queue: QueueName, change: QueueChange) -> Pending<'_, Result<Queue>>;

    /// Deletes a queue that has no jobs, with its settings, and returns whether it existed. If a caller names it again,
    /// it has default settings. A job stored at the same moment is never lost: either the deletion fails, or the queue
    /// exists again. Nodes that serve the queue continue to serve it.
    ///
    /// Refused as [`QueueNotEmpty`](crate::Error::QueueNotEmpty) while the queue has jobs in any place, `done` included.
    fn delete_queue(&self, queue: QueueName) -> Pending<'_, Result<bool>>;

    /// Lists changes that somebody made to schedules, limits and totals, the last first, at most `limit`: of one subject,
    /// or of all. Of each subject, the last [`AUDIT`](crate::bounds::AUDIT) are kept, also when it was deleted.
    fn audit(&self, subject: Option<Subject>, limit: usize) -> Pending<'_, Result<Vec<AuditEntry>>>;

    /// Lists all nodes that the store still remembers, newest first.
    fn nodes(&self) -> Pending<'_, Result<Vec<Node>>>;

    /// Looks for damage in the store. Empty if all is well.
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

    /// Runs one part of the self-check. Each part reads one moment and ends soon, so nobody waits for a check of
    /// everything. It decodes every column of every row, and names what it cannot read.
    fn check_part(&self, part: CheckPart) -> Pending<'_, Result<Checked>>;

    /// Tries a write that leaves nothing behind. The error says why the store can store, claim and end no job now.
    fn try_write(&self) -> Pending<'_, Result<()>>;

    /// Looks for trouble around the store: settings, rights and other users of its database. Empty if all is well.
    fn diagnose(&self) -> Pending<'_, Result<Vec<Finding>>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
}
