//! What a store does for limits: it keeps definitions and counters, and shows who holds what.

use crate::Result;
use crate::id::JobId;
use crate::limit::{Change, KeyChange, KeyUse, Limit, LimitKey, LimitSeed, Obstacle, Total, TotalUse};
use crate::name::LimitName;
use crate::seam::Pending;

/// What a store does for limits. What a definition, a change or a counter means is said by pure functions in
/// [`limit`](crate::limit); stores keep what these return.
///
/// # Where limited jobs wait
///
/// A ready job that names limits (flag `LIMITED`) waits in the place `limited`. Its state is `ready`, and so are its
/// level and its time of entering. Jobs of one line with the same list of [uses](crate::limit::LimitUse) form a *limit
/// group*: all of them can go on, or none. A job with the flag `KEEPS` holds its units already, so it waits in the
/// place `ready` beside plain jobs. In `timers`, `suspended` and `done` limited jobs are like others.
///
/// # What a claim takes
///
/// A claim takes all units of a job's limit keys, and a token for each unit, in the commit that moves the job to
/// `lease`; or it leaves the job. A key admits a job exactly if [`room`](crate::limit::room) is above zero for its
/// units, after all that was taken before. A job with the flag `KEEPS` takes no units and no tokens again; the flag
/// goes, and the claim holds the units from then on. Every job that is claimed, limited or not, counts in the totals of
/// its queue and its kind, and is left if one of them is reached.
///
/// Within a group, jobs are claimed in order of level and time of entering. Groups take turns in any order, but levels
/// come first. Within a level of one queue both plain and limited jobs get some, over several claims. Of a queue's
/// limited jobs a claim gives at most [`ClaimRequest::limited`](crate::store::ClaimRequest::limited), so none of them
/// waits for a slot with units in its hands. Suspects and lost jobs are bounded as plain ones are.
///
/// # What is given back
///
/// Whatever deletes a job from `lease` gives back its units and its places in totals in that commit: every outcome,
/// release, disowning, retirement, rescue, and a claim that cannot read the job. Tokens are not given back. A
/// suspension with [`keep`](crate::journal::Suspension::keep) gives back the places in totals alone and leaves the flag
/// `KEEPS`: then the job holds the units, in whatever place it waits, until it is claimed again, ends or is removed.
/// (If the suspension ends the job, because it is to be cancelled, nothing is kept.)
///
/// # What must be let in
///
/// If a node asks for jobs of a queue and one could be claimed, the answer has a job of that queue. (Not if another
/// transaction has locked it.) So asking until nothing comes leaves no job that could be claimed. A group that meets a
/// key without room is *blocked* there, and costs nothing until that key has room again: by what is given back, by a
/// change of the limit or the key, or because time has brought a token. Whoever makes or leaves room passes it on: for
/// each line with groups blocked at that key, as many of these get a *turn* as there is room for, in the order in which
/// they were blocked among those with the same units. **For each line**, because a line may be one that nobody can
/// claim from now: its queue is paused, a total is reached, or no node can run it; that must not hold up groups of
/// another line at the same key. A visit that finds less than it could take (no job left, another key without room,
/// suspects that are not asked for) passes the room on as well.
///
/// A key at which a group is blocked keeps a time that can be waited for
/// ([`waited_for`](crate::limit::KeyState::waited_for)), also when its limit changes.
/// [`promote`](crate::store::Nodes::promote) gives turns to groups that are blocked only by time, and
/// [`Swept::next`](crate::store::Swept::next) includes when that is next.
///
/// # What a change does
///
/// A change of a definition, a key or a total holds for every claim that begins after it. It ends no claim. A total
/// that is introduced while jobs run counts them all, from that commit on.
pub trait Limits: Send + Sync + 'static {
    /// Applies what code says, as [`LimitSeed::apply`] tells; at most [`LIMITS`](crate::bounds::LIMITS) seeds, checked,
    /// no name twice. Answers with the limits as they are then, in order. Changes are remembered in the audit, with the
    /// verb `create` or `seed`.
    ///
    /// [`Error::TooLarge`](crate::Error::TooLarge) if there would be more than [`LIMITS`](crate::bounds::LIMITS)
    /// limits; nothing is changed then.
    fn seed_limits(&self, seeds: Vec<LimitSeed>) -> Pending<'_, Result<Vec<Limit>>>;

    /// Applies a person's change, as [`Change::apply`] tells, and creates the limit if it is not there. A change that
    /// changes nothing is not remembered; others are, as `create`, `pause`, `resume` or `set`.
    ///
    /// [`Error::TooLarge`](crate::Error::TooLarge) beyond [`LIMITS`](crate::bounds::LIMITS).
    fn set_limit(&self, name: LimitName, change: Change, who: String) -> Pending<'_, Result<Limit>>;

    /// Takes a person's edit back, as [`Limit::reset`] tells: the verb `reset`.
    /// [`Error::UnknownLimit`](crate::Error::UnknownLimit) if the limit is not there.
    fn reset_limit(&self, name: LimitName, who: String) -> Pending<'_, Result<Limit>>;

    /// Forgets a limit: jobs that name it are not held back by it any more, and new jobs cannot name it. Tells whether
    /// there was one: the verb `delete`. Units that are held stay counted, and what was set for its keys stays, in case
    /// it is defined again.
    fn delete_limit(&self, name: LimitName, who: String) -> Pending<'_, Result<bool>>;

    /// All limits, in order of their names.
    fn limits(&self) -> Pending<'_, Result<Vec<Limit>>>;

    /// Changes one key of a limit: the verbs `set`, `pause` and `resume`, under the limit's name. A key that no job has
    /// named is created.
    ///
    /// [`Error::UnknownLimit`](crate::Error::UnknownLimit) if the limit is not there.
    fn set_limit_key(
        &self,
        limit: LimitName,
        key: String,
        change: KeyChange,
        who: String,
    ) -> Pending<'_, Result<LimitKey>>;

    /// The keys of a limit behind `after`, in order of their bytes, at most `limit` and at most
    /// [`LIMIT_KEYS_PAGE`](crate::bounds::LIMIT_KEYS_PAGE). A key that nobody holds, and of which nothing was set, may
    /// be left out.
    fn limit_keys(
        &self,
        name: LimitName,
        after: Option<String>,
        limit: usize,
    ) -> Pending<'_, Result<Vec<LimitKey>>>;

    /// Who holds one key and who waits for it. A key that no job has named has neither.
    fn limit_key(&self, limit: LimitName, key: String) -> Pending<'_, Result<KeyUse>>;

    /// What keeps a ready job from being claimed: first a total, of its queue and then of its kind; then the first of
    /// its limits, in their order, that does not admit it; then the first job of its group, if that is another one.
    /// `None` if nothing of that does, or the job is not ready.
    fn obstacle(&self, id: JobId) -> Pending<'_, Result<Option<Obstacle>>>;

    /// Sets the total of a queue or a kind, checked, and names the queue; `None` removes it. A change that changes
    /// nothing is not remembered; others are, as `set`. A queue that is
    /// [deleted](crate::store::Operators::delete_queue) has no total any more.
    fn set_total(&self, total: Total, max: Option<u32>, who: String) -> Pending<'_, Result<()>>;

    /// All totals, in order: queues, then kinds, by name.
    fn totals(&self) -> Pending<'_, Result<Vec<TotalUse>>>;
}
