//! The part of a store for nodes: leases, claims, outcomes, and the sweeps that each node runs.

use crate::Result;
use crate::id::{Claim, ClaimBatchNo, NodeNo};
use crate::job::Progress;
use crate::seam::Pending;
use crate::store::{
    ClaimRequest, ClaimedBatch, Finish, Finished, Registered, Registration, Renewal, Renewed, Rescue,
    Rescued, Swept,
};

/// The part of a store for nodes.
pub trait Nodes: Send + Sync + 'static {
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
    /// nothing. Jobs of the class [`Class::Suspect`](crate::store::Class::Suspect) are claimed up to `suspects` over
    /// all queues, those of [`Class::Lost`](crate::store::Class::Lost) up to
    /// [`ClaimRequest::lost`] per queue; what lies beyond [`ClaimRequest::free`] is marked as claimed ahead. Keys held
    /// until `started` are released. A claim also renews the node's lease once a third of it has passed, and is refused
    /// with `LeaseLost` as [`renew`](Nodes::renew) is. If the node already holds claims under `batch`, nothing new is
    /// claimed and those are returned: that is how a lost answer is adopted. A number that is not one of a node's is
    /// refused likewise.
    ///
    /// Jobs with limits come from the place `limited`; [`Limits`](crate::store::Limits) says which of them, what a claim
    /// takes for them, and what its end gives back.
    ///
    /// A job that the claim takes and cannot read (its options, its counts, its journal) is suspended as
    /// [`Unreadable`](crate::job::Reason::Unreadable), with a note of what is damaged. That counts no crash and no failure.
    /// The claim gives all others; it may give fewer than there are, and hints that it is worth to ask again. If the
    /// process dies in between, the job is rescued as any other, and the next claim finds it again.
    fn claim(&self, request: ClaimRequest) -> Pending<'_, Result<ClaimedBatch>>;

    /// Inputs of claimed jobs, such as did not come with their claims. `None` for a job that is not there. Their sizes are
    /// known: who asks keeps a call within [`BATCH_BYTES`](crate::bounds::BATCH_BYTES).
    fn inputs(&self, claims: Vec<Claim>) -> Pending<'_, Result<Vec<Option<Vec<u8>>>>>;

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
    /// `Suspend` writes into the journal as [`record`](crate::store::Journals::record) does. If what it waits for is
    /// there already (as many unread messages of one of its subjects as it needs, or its time has come), the job enters
    /// `ready` as
    /// [`Class::Returned`](crate::store::Class::Returned) instead of `suspended`. Whichever of a message and a
    /// suspension comes second sees the first. (A repeat is told that the lease is lost, as with `Snooze`.)
    ///
    /// A job that ends, whoever ends it, tells its parent: one message, the first time it ends. (A parent that has ended
    /// itself may be run again.) Its children that are to be cancelled with it are cancelled with the reason
    /// [`Parent`](crate::job::Reason::Parent): those that wait, with their own children; those that run are flagged. All
    /// that has happened when the call returns. If the process dies before, a sweep makes up for it; children that wait
    /// are cancelled in the same commit as a parent that its handler or an operator ends, unless somebody else is moving
    /// them at that moment.
    ///
    /// Whatever ends a claim gives back what it took of limits and totals, in the same commit, and lets the next jobs in, as
    /// [`Limits`](crate::store::Limits) says. That holds for [`disown`](Nodes::disown), [`retire`](Nodes::retire) and
    /// [`rescue`](Nodes::rescue) as well.
    ///
    /// Cancellations are never lost: a claim that was flagged and ends in `Retry`, `Snooze` or `Release`, or is
    /// released by [`disown`](Nodes::disown) or [`retire`](Nodes::retire), is counted as that says, but the job becomes
    /// `cancelled` by whoever flagged it (`operator`, or `parent`), with the reason that was given.
    fn finish(&self, node: NodeNo, finishes: Vec<Finish>) -> Pending<'_, Result<Vec<Finished>>>;

    /// Releases all claims of a node that came from batches up to `settled` and are not among `keep`.
    /// For claims of a call whose answer was lost. Returns how many it released.
    fn disown(&self, node: NodeNo, settled: ClaimBatchNo, keep: Vec<Claim>) -> Pending<'_, Result<usize>>;

    /// Stores the progress of handlers. Ignores stale claims.
    fn progress(&self, node: NodeNo, progress: Vec<(Claim, Progress)>) -> Pending<'_, Result<()>>;

    /// Expires dead nodes and gives their jobs back, each with one crash more.
    ///
    /// A node is dead if its process is proven to be gone, or if its lease has lapsed, it holds claims, and the
    /// rescuer, another node, has itself been steady for at least the dead node's lease and was last answered no longer
    /// ago than half of it. The rescuer must be live (`LeaseLost` otherwise). All that are dead are expired at once;
    /// that and the move of at most
    /// [`BATCH`](crate::bounds::BATCH) jobs per call are one commit; `more` asks for another call. Jobs enter `ready`
    /// at [`Class::Lost`](crate::store::Class::Lost), or at [`Class::Suspect`](crate::store::Class::Suspect) from the
    /// second crash on, or are suspended for quarantine at the third. Jobs whose node was asked to cancel them are
    /// cancelled instead, as
    /// [`finish`](Nodes::finish) says, and count no crash.
    fn rescue(&self, rescue: Rescue) -> Pending<'_, Result<Rescued>>;

    /// Moves jobs whose time has come to `ready`, at most `limit`, the longest due first: from `timers` as
    /// [`Class::Fresh`](crate::store::Class::Fresh), from `suspended` those that wait until a time, as
    /// [`Class::Returned`](crate::store::Class::Returned). Also gives turns to groups whose limit keys have a token by
    /// now, for at most `limit` keys. `next` is when the first job or key of those left is due, which may be past.
    fn promote(&self, limit: usize) -> Pending<'_, Result<Swept>>;

    /// Fails waiting jobs whose deadline has passed, at most `limit`, in order of their deadlines. Running ones are
    /// their node's business, also for `next`.
    fn expire(&self, limit: usize) -> Pending<'_, Result<Swept>>;

    /// Removes ended jobs whose retention is over, and what is left of nodes and keys long gone: keys whose period has
    /// ended, and retired or expired nodes that hold nothing and last renewed
    /// [`NODE_RETENTION`](crate::bounds::NODE_RETENTION) ago; limit groups without jobs, and limit keys that nobody holds or has set
    /// and whose tokens are back. Returns how many jobs were removed; fewer than `limit`
    /// means that nothing is left to remove for now.
    fn prune(&self, limit: usize) -> Pending<'_, Result<usize>>;
}
