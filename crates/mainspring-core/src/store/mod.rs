//! The seam between engine and database.
//!
//! A backend implements [`Store`] and its parts, one for each client: [`Producers`], [`Nodes`], [`Journals`],
//! [`Operators`], [`Schedules`] and [`Limits`]. They are **set-based**: every write takes a batch and is one commit. These docs, the
//! [`memory`](crate::memory) store and the conformance suite define the semantics. No backend has semantics of its own.
//!
//! # Places
//!
//! A job is in exactly one place: `ready`, `limited`, `timers`, `suspended`, `lease` or `done`. Every move takes the job out of
//! one place and puts it into the next in one transaction. Taking it out is the linearization point: a caller that
//! finds nothing to take has lost the race and changes nothing. The place carries the three numbers (claim, failures,
//! crashes) and the priority; the job itself is never updated.
//!
//! # Lines
//!
//! Jobs of one queue, one kind and one set of required labels form a *line*: a node can run all of a line or nothing
//! of it. Stores index `ready` by (line, [`Level`], time of entering), and a claim looks only at the lines that its
//! node can run. So no claim reads jobs that its node cannot run, however many there are.
//!
//! # Time
//!
//! All times are the store's. Callers hand in durations, or points in time that came from the store. A time has come
//! when the store's clock is at or past it. This holds for due jobs, deadlines, leases, periods of keys and retentions.
//!
//! # Repeats
//!
//! Any call may end in [`Error::OutcomeUnknown`](crate::Error::OutcomeUnknown) and be repeated with the same
//! arguments: job ids, claim numbers and batch numbers make the repeat harmless.

mod activity;
mod admin;
mod claim;
pub mod decorator;
mod enlist;
pub mod flags;
mod listeners;
mod node;
mod part;
mod schedule;
mod schema;
mod transactions;

pub use activity::{ActivityReport, LastClaim, QueueActivity};
pub use admin::{
    Changed, CheckPart, Checked, Counts, ErrorText, Filter, Finding, Line, Listing, Page, PagePosition,
    Queue, QueueChange, Retention, Settings,
};
pub use claim::{ClaimRequest, Claimed, ClaimedBatch, Class, Finish, Finished, Level};
pub use enlist::{Enlist, EnlistSync, Ticket, TicketLine, check_enlisted};
pub use listeners::{Listeners, LiveListeners};
pub use node::{
    Abilities, Cancellation, Mark, Node, NodeState, Registered, Registration, Renewal, Renewed, Rescue,
    Rescued,
};
pub use part::{Journals, Limits, Nodes, Operators, Producers, Schedules};
pub use schedule::{DueSchedules, ScheduleWrite, Written};
pub use schema::fingerprint;
pub use transactions::{Commit, Transactions, Uncommitted, check_outside, inside};

use std::any::Any;
use std::sync::Weak;

use crate::id::{JobId, NodeNo};
use crate::job::Differs;
use crate::name::QueueName;
use crate::seam::Pending;
use crate::time::Timestamp;

/// The answer of a store for one enqueued job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receipt {
    /// This call stored the job.
    Created,
    /// An earlier call stored the same job: its id, kind, parent, origin and input are equal. Nothing is stored now.
    Repeated,
    /// Another job has the id and differs in this. Nothing was stored.
    Taken(Differs),
    /// This job holds the unique key. Nothing was stored.
    Existing(JobId),
    /// This job holds the unique key, and the new job asked for a refusal. Nothing was stored.
    Rejected(JobId),
    /// An open transaction may be about to take or release the unique key. Nothing was stored; ask again later. The
    /// other jobs of the batch must not wait for that transaction.
    Contended,
}

/// The result of a sweep over due rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Swept {
    /// The store's time.
    pub now: Timestamp,
    /// Jobs moved.
    pub moved: usize,
    /// When the next one is due, if there is one.
    pub next: Option<Timestamp>,
    /// When the next schedule is due. Only a promotion sets it.
    pub fire: Option<Timestamp>,
}

/// A reason to look at the store now. Hints may be lost and may be wrong: they save time, and nothing depends on them.
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
    /// Another process has committed, so anything may have changed.
    Foreign,
}

/// A receiver of hints. The store calls it on its own threads, so it must not block.
pub trait Listener: Send + Sync {
    /// Takes a hint.
    fn hint(&self, hint: &Hint);
}

/// The description of a store, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// `memory`, `sqlite` or `postgres`.
    pub backend: &'static str,
    /// Where it is, without secrets.
    pub location: String,
    /// The version of the database.
    pub version: String,
    /// The version of the store's schema.
    pub schema: u32,
    /// Whether acknowledged data is on stable storage.
    pub durable: bool,
    /// Set if this handle created the store: how many other tables its file has.
    pub created: Option<u32>,
}

/// A durable store of jobs, with all its parts. Do not implement it outside of Mainspring: minor versions add methods.
///
/// Every method that writes is one commit and has no effect at all if it returns an error other than
/// [`Error::OutcomeUnknown`](crate::Error::OutcomeUnknown). A method that finds nothing to do writes nothing.
pub trait Store: Producers + Nodes + Journals + Operators + Schedules + Limits {
    /// What this store is.
    fn describe(&self) -> Description;

    /// The store's own type, for what only its database can do; `None` if there is no such thing.
    fn native(&self) -> Option<&(dyn Any + Send + Sync)> {
        None
    }

    /// Sends hints to a listener until it is dropped.
    fn subscribe(&self, listener: Weak<dyn Listener>);

    /// Finishes what is under way and refuses all later calls with `Closed`.
    fn close(&self) -> Pending<'_, ()>;
}
