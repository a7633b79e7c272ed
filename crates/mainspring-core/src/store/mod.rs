//! The seam between engine and database.
//!
//! [`Store`] is the one trait that a backend implements. It is **set-based**: every write takes a batch and is one
//! commit. Its semantics are defined here, by the [`memory`](crate::memory) store and by the conformance suite; no
//! backend has private ones.
//!
//! # Places
//!
//! A job is in exactly one place: `ready`, `timers`, `suspended`, `lease` or `done`. Every move takes the job out of
//! one place and puts it into the next in one transaction; taking it out is the linearization point, and whoever finds
//! nothing to take has lost the race and changes nothing. The place carries the three numbers (claim, failures,
//! crashes) and the priority; the job itself is never updated.
//!
//! # Lines
//!
//! Jobs of one queue, one kind and one set of required labels form a *line*: a node can run all of a line or nothing
//! of it. Stores index `ready` by (line, [`Level`], time of entering), and a claim looks only at the lines that its
//! node can run, so nobody ever walks over jobs that are not for him, however many there are.
//!
//! # Time
//!
//! All times are the store's. Callers hand in durations, or points in time that came from the store. A time has come
//! when the store's present is at or past it: that is how due jobs, deadlines, lapsed leases, periods of keys and
//! retentions are told.
//!
//! # Repeats
//!
//! Any call may end in [`Error::OutcomeUnknown`](crate::Error::OutcomeUnknown) and be repeated with the same
//! arguments: job ids, claim numbers and batch numbers make the repeat harmless.

mod admin;
mod claim;
mod enlist;
pub mod flags;
mod node;
mod schema;
mod transactions;

pub use admin::{
    Changed, CheckPart, Checked, Counts, ErrorText, Filter, Finding, Line, Listing, Page, PagePosition,
    Queue, QueueChange, Retention, Settings,
};
pub use claim::{ClaimRequest, Claimed, ClaimedBatch, Class, Finish, Finished, Level};
pub use enlist::{Enlist, EnlistSync, Ticket, TicketLine};
pub use node::{
    Abilities, Cancellation, Mark, Node, NodeState, Registered, Registration, Renewal, Renewed, Rescue,
    Rescued,
};
pub use schema::fingerprint;
pub use transactions::{Commit, Transactions, Uncommitted, check_outside, inside};

use std::any::Any;
use std::sync::Weak;

use crate::Result;
use crate::id::{Claim, ClaimBatchNo, JobId, NodeNo};
use crate::job::{Differs, New, Progress, Record, Verb};
use crate::journal::{Inbox, JobEnd, Recorded, Recording, Signal, Signalled, Timeline};
use crate::name::{Key, QueueName, SignalName};
use crate::output::{Ask, Output};
use crate::seam::Pending;
use crate::time::Timestamp;

/// What became of one job of an enqueue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receipt {
    /// It is stored, by this call.
    Created,
    /// Its id is that of a job of the same kind, parent, origin and input: it was stored before, and nothing is stored now.
    Repeated,
    /// Its id belongs to another job, which differs in this; nothing was stored.
    Taken(Differs),
    /// Its unique key is held by this job; nothing was stored.
    Existing(JobId),
    /// Its unique key is held by this job and it asked to be refused; nothing was stored.
    Rejected(JobId),
    /// A transaction that is still open may be about to take or release its unique key; nothing was stored. To be asked
    /// again: the other jobs of the batch must not wait for that transaction.
    Contended,
}

/// What a sweep over due rows did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Swept {
    /// The store's time.
    pub now: Timestamp,
    /// Jobs moved.
    pub moved: usize,
    /// When the next one is due, if there is one.
    pub next: Option<Timestamp>,
}

/// What is worth waking up for. Hints may be lost and may be wrong: they save time, nothing depends on them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hint {
    /// Jobs became ready in these queues.
    Ready(Vec<QueueName>),
    /// A job becomes due, or meets its deadline, at this time.
    Due(Timestamp),
    /// A claim of this node was flagged for cancellation.
    Cancel(NodeNo),
    /// A job that is claimed got a message.
    Message(JobId),
    /// Another process has committed: anything may have happened.
    Foreign,
}

/// Who wants to hear hints. Called on the store's own threads: it must not block.
pub trait Listener: Send + Sync {
    /// Takes a hint.
    fn hint(&self, hint: &Hint);
}

/// What a store is, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// `memory`, `sqlite` or `postgres`.
    pub backend: &'static str,
    /// Where it is, without secrets.
    pub location: String,
    /// The version of the database.
    pub version: String,
    /// The version of our schema.
    pub schema: u32,
    /// Whether what is acknowledged is on stable storage.
    pub durable: bool,
    /// Whether this handle has created it: how many tables of others its file has besides.
    pub created: Option<u32>,
}

/// A durable store of jobs. Not to be implemented outside of Mainspring: methods are added in minor versions.
///
/// Every method that writes is one commit and has no effect at all if it returns an error other than
/// [`Error::OutcomeUnknown`](crate::Error::OutcomeUnknown). A method that finds nothing to do writes nothing.
pub trait Store: Send + Sync + 'static {
    /// What this store is.
    fn describe(&self) -> Description;

    // Producers.

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

    /// What a caller's own transaction needs to know to take jobs with it without waiting; see [`EnlistSync`].
    fn ticket(&self) -> Ticket;

    /// What a caller's own transaction needs to know to take these jobs with it; see [`Enlist`].
    ///
    /// Whatever jobs share with others, such as the names of their lines, is stored here and now, so that the caller's
    /// transaction adds rows of its own only and holds up nobody while it is open.
    fn ticket_for<'a>(&'a self, jobs: &'a [New]) -> Pending<'a, Result<Ticket>> {
        let _ = jobs;
        Box::pin(std::future::ready(Ok(self.ticket())))
    }

    /// Wakes whoever waits for a job that a caller's own transaction has committed, in this process and in others. Saves
    /// time; nothing depends on it.
    fn nudge(&self, id: JobId);

    // Nodes.

    /// Makes a node known and gives it its first lease. A repeat of the same node id gives the same number and changes
    /// nothing.
    fn register(&self, node: Registration) -> Pending<'_, Result<Registered>>;

    /// Extends a node's lease and tells which of its claims are to be cancelled.
    ///
    /// `LeaseLost` if the node was expired or retired. A lapsed lease that nobody acted on is extended: expiry decides
    /// when rescue may start, never who wins.
    fn renew(&self, renewal: Renewal) -> Pending<'_, Result<Renewed>>;

    /// Gives back everything that a node still holds, counting nothing, and takes it off the list of the living.
    /// Returns how many claims were released. Retiring twice, or a node that was expired, is no error.
    fn retire(&self, node: NodeNo) -> Pending<'_, Result<usize>>;

    /// Claims jobs for a node: from `ready` to `lease`, each with a claim number one higher than its last.
    ///
    /// Queues are served in the order given, each up to its own limit; levels from low to high; within a level in
    /// order of entering `ready`, as far as one store can tell. Paused queues and lines that the node cannot run give
    /// nothing. Jobs of the class [`Class::Suspect`] are claimed up to `suspects` over all queues, those of [`Class::Lost`] up to
    /// [`ClaimRequest::lost`] per queue; what lies beyond [`ClaimRequest::free`] is marked as claimed ahead. Keys held until
    /// `started` are released. A claim also renews the node's lease once a third of it has passed, and is refused
    /// with `LeaseLost` as [`renew`](Store::renew) is. If the node already holds claims under `batch`, nothing new is claimed and those
    /// are returned: that is how a lost answer is adopted. A number that is not one of a node's is refused likewise.
    ///
    /// A job that the claim takes and cannot read (its options, its counts, its journal) is suspended as
    /// [`Unreadable`](crate::job::Reason::Unreadable), with a note of what is damaged. That counts no crash and no failure.
    /// The claim gives all others; it may give fewer than there are, and hints that it is worth to ask again. If the process
    /// dies in between, the job is rescued as any other, and the next claim finds it again.
    fn claim(&self, request: ClaimRequest) -> Pending<'_, Result<ClaimedBatch>>;

    /// Ends claims: each moves from `lease` to where its outcome says. One answer per finish, in order.
    ///
    /// [`Finished::Applied`] if the lease was held by this node under this claim number, or if this very outcome was
    /// applied before: the job ended in that status and that claim is its last, or for `Retry` that claim's error is
    /// kept. (The job may have ended so by another's hand: its claim was lost, and its deadline passed or an operator
    /// cancelled it. Then nothing is written, and what was said is true.) (A
    /// `Snooze` or `Release` leaves nothing to know it by; its repeat is told that the lease is lost, and that is
    /// harmless.) Otherwise [`Finished::LeaseLost`] and nothing is changed. A job that ends releases its unique key and
    /// its deadline, for good: it has none from then on. Only `Retry` and `Fail` count a failure and keep an error.
    /// `Succeed`, `Retry`, `Fail`, `Snooze` and `Suspend` reset crashes: the job came through. `Release` keeps them.
    ///
    /// `Suspend` writes into the journal as [`record`](Store::record) does. If what it waits for is there already (as
    /// many unread messages of one of its subjects as it needs, or its time has come), the job enters `ready` as
    /// [`Class::Returned`] instead of `suspended`. Whichever of a message and a suspension comes second sees the first.
    /// (A repeat is told that the lease is lost, as with `Snooze`.)
    ///
    /// A job that ends, whoever ends it, tells its parent: one message, the first time it ends. (A parent that has ended
    /// itself may be run again.) Its children that are to be cancelled with it are cancelled with the reason
    /// [`Parent`](crate::job::Reason::Parent): those that wait, with their own children; those that run are flagged. All
    /// that has happened when the call returns. If the process dies before, a sweep makes up for it; children that wait
    /// are cancelled in the same commit as a parent that its handler or an operator ends, unless somebody else is moving
    /// them at that moment.
    ///
    /// Cancellations are never lost: a claim that was flagged and ends in `Retry`, `Snooze` or `Release`, or is
    /// released by [`disown`](Store::disown) or [`retire`](Store::retire), is counted as that says, but the job becomes
    /// `cancelled` by whoever flagged it (`operator`, or `parent`), with the reason that was given.
    fn finish(&self, node: NodeNo, finishes: Vec<Finish>) -> Pending<'_, Result<Vec<Finished>>>;

    /// Releases all claims of a node that came from batches up to `settled` and are not among `keep`.
    ///
    /// For claims that were made by a call whose answer never came. Returns how many were released.
    fn disown(&self, node: NodeNo, settled: ClaimBatchNo, keep: Vec<Claim>) -> Pending<'_, Result<usize>>;

    /// Keeps what handlers say of their progress. Stale claims are ignored.
    fn progress(&self, node: NodeNo, progress: Vec<(Claim, Progress)>) -> Pending<'_, Result<()>>;

    /// Writes into the journals of claimed jobs. One answer per recording, in order.
    ///
    /// [`Recorded::Stored`] if the claim is held by this node; then all of it is stored, its children are enqueued (each
    /// with its parent's id in its options), messages are read, crashes are reset: the job has made progress. An entry
    /// whose key is there already, and a child that was started by the same record, change nothing: that is how a repeat is
    /// harmless. [`Recorded::Taken`] if a child's id belongs to another job, or to a child that another entry of this
    /// journal has started. Otherwise [`Recorded::LeaseLost`]. In both cases nothing of it is stored; other recordings of the
    /// batch are. A child that is in one recording twice is there once.
    ///
    /// What is said gets the next positions of the job's output. Something under a claim and a number that are there already
    /// changes nothing. A recording that is [idle](crate::journal::Writes::idle) resets no crashes.
    ///
    /// Of the signals that have been read, the last [`INBOX_READ`](crate::bounds::INBOX_READ) per job keep their
    /// sender's key.
    fn record(&self, node: NodeNo, recordings: Vec<Recording>) -> Pending<'_, Result<Vec<Recorded>>>;

    /// Recorded values of a job, such as did not come with its claim. `None` for a key that is not there, and for all if
    /// the job is not.
    fn values(&self, id: JobId, keys: Vec<Key>) -> Pending<'_, Result<Vec<Option<Vec<u8>>>>>;

    /// Inputs of claimed jobs, such as did not come with their claims. `None` for a job that is not there. Their sizes are
    /// known: who asks keeps a call within [`BATCH_BYTES`](crate::bounds::BATCH_BYTES).
    fn inputs(&self, claims: Vec<Claim>) -> Pending<'_, Result<Vec<Option<Vec<u8>>>>>;

    /// Unread messages of claimed jobs, each from behind a message number on. At most
    /// [`INBOX_PAGE`](crate::bounds::INBOX_PAGE) for each.
    fn inbox(&self, claims: Vec<(Claim, i64)>) -> Pending<'_, Result<Vec<Inbox>>>;

    // Reconcilers.

    /// Expires dead nodes and gives their jobs back, each with one crash more.
    ///
    /// A node is dead if its process is proven to be gone, or if its lease has lapsed, it holds claims, and the
    /// rescuer, another node, has itself been steady for at least the dead node's lease and was last answered no longer
    /// ago than half of it. The rescuer must be live (`LeaseLost` otherwise). All that are dead are expired at once; that and the move of at most
    /// [`BATCH`](crate::bounds::BATCH) jobs per call are one commit; `more` asks for another call. Jobs enter `ready`
    /// at [`Class::Lost`], or at [`Class::Suspect`] from the second crash on, or are suspended for quarantine at
    /// the third. Jobs whose node was asked to cancel them are cancelled instead, as
    /// [`finish`](Store::finish) says, and count no crash.
    fn rescue(&self, rescue: Rescue) -> Pending<'_, Result<Rescued>>;

    /// Moves jobs whose time has come to `ready`, at most `limit`, the longest due first: from `timers` as
    /// [`Class::Fresh`], from `suspended` those that wait until a time, as [`Class::Returned`]. `next` is when the first
    /// of those left is due, which may be past.
    fn promote(&self, limit: usize) -> Pending<'_, Result<Swept>>;

    /// Fails waiting jobs whose deadline has passed, at most `limit`, in order of their deadlines. Running ones are
    /// their node's business, also for `next`.
    fn expire(&self, limit: usize) -> Pending<'_, Result<Swept>>;

    /// Removes ended jobs whose retention is over, and what is left of nodes and keys long gone: keys whose period has
    /// ended, and retired or expired nodes that hold nothing and last renewed
    /// [`NODE_RETENTION`](crate::bounds::NODE_RETENTION) ago. Returns how many jobs were removed; fewer than `limit`
    /// means that nothing is left to remove for now.
    fn prune(&self, limit: usize) -> Pending<'_, Result<usize>>;

    // Senders of signals, and those who wait for results.

    /// Puts signals, checked and at most [`BATCH`](crate::bounds::BATCH) of them, into the inboxes of their jobs, in
    /// order. One answer per signal, in order. A suspended job that waits for it enters `ready` as [`Class::Returned`];
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

    // Operators.

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
    /// to a repeat ([`Changed::Stale`]), nor to a handler that is still in memory. Retried, rewound and resumed jobs enter `ready` as [`Class::Fresh`]. `Reprioritise` leaves a ready job its class
    /// and its time of entering. A job that cannot be read is refused by every verb that would let it wait or run on, as
    /// `Illegal`; a suspended (unreadable) one may be resumed once it can be read again. Verbs that end or remove a job do not
    /// read what they do not need. `Delete` releases the job's unique key, whatever its period; to its parent and its children, a
    /// job that had not ended is cancelled.
    fn change(&self, ids: Vec<JobId>, verb: Verb, dry_run: bool) -> Pending<'_, Result<Vec<Changed>>>;

    /// What the jobs in `ready` need: each combination of a queue, a kind and required labels that has some, sorted. Costs
    /// the same however many jobs there are.
    fn lines(&self) -> Pending<'_, Result<Vec<Line>>>;

    /// All queues that were ever named by a job, a node's registration or a setting, sorted. (A job that was not stored
    /// may or may not have named its queue.) One that was [deleted](Store::delete_queue) is among them while it has jobs, and
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
    /// All parts of [`check_part`](Store::check_part), however long that takes.
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

    // The rest.

    /// The store's own type, for what only its database can do; `None` if there is no such thing.
    fn native(&self) -> Option<&(dyn Any + Send + Sync)> {
        None
    }

    /// Sends hints to a listener until it is dropped.
    fn subscribe(&self, listener: Weak<dyn Listener>);

    /// Finishes what is under way and refuses all later calls with `Closed`.
    fn close(&self) -> Pending<'_, ()>;
}
