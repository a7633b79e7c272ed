//! The part of a store for workflows: it writes their journals, and reads what did not come with a claim.

use crate::Result;
use crate::id::{Claim, JobId, NodeNo};
use crate::journal::{Inbox, Recorded, Recording};
use crate::name::Key;
use crate::seam::Pending;

/// The part of a store for workflows.
pub trait Journals: Send + Sync + 'static {
    /// Writes into the journals of claimed jobs. One answer per recording, in order.
    ///
    /// [`Recorded::Stored`] if the claim is held by this node; then all of it is stored, its children are enqueued (each
    /// with its parent's id in its options), messages are read, crashes are reset: the job has made progress. An entry
    /// whose key is there already, and a child that was started by the same record, change nothing: that is how a repeat is
    /// harmless. [`Recorded::Taken`] if a child's id belongs to another job, or to a child that another entry of this
    /// journal has started. Otherwise [`Recorded::LeaseLost`]. In both cases nothing of it is stored; other recordings
    /// of the batch are. A child that is in one recording twice is there once.
    ///
    /// What is said gets the next positions of the job's output. Something under a claim and a number that are there
    /// already changes nothing. A recording that is [idle](crate::journal::Writes::idle) resets no crashes.
    ///
    /// Of the signals that have been read, the last [`INBOX_READ`](crate::bounds::INBOX_READ) per job keep their
    /// sender's key.
    fn record(&self, node: NodeNo, recordings: Vec<Recording>) -> Pending<'_, Result<Vec<Recorded>>>;

    /// Returns recorded values of a job that did not come with its claim. `None` for a missing key, and for all keys of
    /// a missing job.
    fn values(&self, id: JobId, keys: Vec<Key>) -> Pending<'_, Result<Vec<Option<Vec<u8>>>>>;

    /// Returns unread messages of claimed jobs, each after a message number. At most
    /// [`INBOX_PAGE`](crate::bounds::INBOX_PAGE) for each.
    fn inbox(&self, claims: Vec<(Claim, i64)>) -> Pending<'_, Result<Vec<Inbox>>>;
}
