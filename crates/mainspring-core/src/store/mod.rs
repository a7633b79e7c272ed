//! The seam between engine and database.
//!
//! A backend implements [`Store`] and its parts, one for each client: [`Producers`], [`Nodes`], [`Journals`] and
//! [`Operators`]. They are **set-based**: every write takes a batch and is one commit. Its semantics are defined here, by the [`memory`](crate::memory) store and by the conformance suite; no
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
pub use part::{Journals, Nodes, Operators, Producers, Schedules};
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
    /// When the next schedule is to be looked at. A promotion alone says that: it looks at what is due anyhow.
    pub fire: Option<Timestamp>,
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

/// A durable store of jobs: all of its parts. Not to be implemented outside of Mainspring: methods are added in minor
/// versions.
///
/// Every method that writes is one commit and has no effect at all if it returns an error other than
/// [`Error::OutcomeUnknown`](crate::Error::OutcomeUnknown). A method that finds nothing to do writes nothing.
pub trait Store: Producers + Nodes + Journals + Operators + Schedules {
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
