//! Jobs inside a caller's own transaction.

use std::future::Future;

use crate::id::NodeNo;
use crate::job::{New, OnConflict};
use crate::journal::{Recorded, Recording};
use crate::store::Receipt;
use crate::time::Timestamp;
use crate::{Error, Result};

/// The facts about a store that a caller's transaction needs to store jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    /// The id of the store. A transaction on another database refuses the ticket.
    pub store: [u8; 16],
    /// The store's time; `None` if the transaction's database has it.
    pub now: Option<Timestamp>,
    /// The schema that holds the store's tables; empty where there are none.
    pub schema: String,
    /// The lines of the jobs that the ticket is for, in their order; empty where the transaction makes them itself.
    pub lines: Vec<TicketLine>,
}

/// A store's numbers for one job's line, queue and kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TicketLine {
    /// Its line.
    pub line: i32,
    /// Its queue.
    pub queue: i32,
    /// Its kind.
    pub kind: i32,
    /// The number of the job's limit group, if it has limits.
    pub group: Option<i32>,
}

/// Refuses jobs that need more than plain inserts, because a caller's transaction cannot store those.
///
/// # Errors
/// [`Error::NotInTransaction`].
pub fn check_enlisted(jobs: &[New]) -> Result<()> {
    let replaces = |job: &New| {
        job.options.unique.as_ref().is_some_and(|unique| unique.on_conflict == OnConflict::Replace)
    };
    if jobs.iter().any(replaces) {
        return Err(Error::NotInTransaction { what: "replacing a job" });
    }
    if jobs.iter().any(|job| !job.journal.is_empty()) {
        return Err(Error::NotInTransaction { what: "forking a job" });
    }
    Ok(())
}

/// A caller's open transaction that can store jobs. The jobs exist if and only if it commits.
///
/// Implemented by each store crate for the transactions of its own database clients. It makes only plain inserts, so an
/// open transaction never blocks other jobs.
///
/// `S` is that crate's store: neither this trait nor a client's transaction is the store crate's own, so naming a type
/// of its own is what lets it write the implementation. Callers never need to spell it out.
pub trait Enlist<S> {
    /// Stores checked jobs as part of this transaction. One receipt per job, in order.
    ///
    /// # Errors
    /// [`Error::ForeignTransaction`](crate::Error::ForeignTransaction) if it is not on the ticket's store,
    /// [`Error::NotInTransaction`](crate::Error::NotInTransaction) for a job that wants to replace another.
    fn enlist(&mut self, ticket: &Ticket, jobs: Vec<New>) -> impl Future<Output = Result<Vec<Receipt>>>;

    /// Writes into the journal of a claimed job as part of this transaction: what it says is recorded if and only if the
    /// transaction commits. To be called last, right before that: until then the claim cannot end.
    ///
    /// If the claim is not the node's any more, nothing is written, and the transaction must not be committed. An entry
    /// whose key is there already is an error and not a repeat: the transaction that wrote it has committed.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if it is not the transaction that
    /// [`Transactions::begin`](super::Transactions::begin) has begun: that one has ended.
    /// [`Error::ForeignTransaction`](crate::Error::ForeignTransaction) if it is not on the ticket's store,
    /// [`Error::NotInTransaction`](crate::Error::NotInTransaction) for a recording that starts children or has read
    /// messages, and where the store's transactions cannot record.
    fn enlist_recording(
        &mut self,
        ticket: &Ticket,
        node: NodeNo,
        recording: Recording,
    ) -> impl Future<Output = Result<Recorded>> {
        let _ = (ticket, node, recording);
        std::future::ready(Err(Error::NotInTransaction { what: "recording a step" }))
    }
}

/// An [`Enlist`] whose client does not wait asynchronously: jobs can be stored without an `await` in the middle of the
/// transaction, which such a client's transactions rarely survive.
pub trait EnlistSync<S>: Enlist<S> {
    /// As [`Enlist::enlist`], at once.
    ///
    /// # Errors
    /// As [`Enlist::enlist`].
    fn enlist_sync(&mut self, ticket: &Ticket, jobs: Vec<New>) -> Result<Vec<Receipt>>;
}
