//! Operations: what one call of the store does, in one transaction each.
//!
//! # Locks
//! Whoever takes several locks takes them in this order: node → settings → mailboxes → outbox of endings (stepping over rows
//! that others hold) → lease → schedules → cursors → keys and streams → places → graphs → limits → budgets → queues; within one
//! of them by number. Keys are advisory locks by their hash. What runs in the background skips rows that others hold.

pub(crate) mod append;
pub(crate) mod change;
pub(crate) mod claim;
pub(crate) mod contended_ids;
pub(crate) mod counts;
pub(crate) mod drop_signals;
mod ending;
pub(crate) mod enqueue;
pub(crate) mod family;
pub(crate) mod finish;
pub(crate) mod key;
pub(crate) mod limits;
pub(crate) mod mailbox;
pub(crate) mod node;
pub(crate) mod output;
pub(crate) mod places;
pub(crate) mod prune;
pub(crate) mod record;
pub(crate) mod release;
pub(crate) mod rescue;
pub(crate) mod rewind;
pub(crate) mod same_id;
pub(crate) mod schedules;
pub(crate) mod settings;
pub(crate) mod share;
pub(crate) mod signal;
pub(crate) mod sweep;
pub(crate) mod unreadable;

use std::future::Future;
use std::time::Duration;

use crate::connection::Conn;
use crate::error::Result;
use crate::shared::Shared;
use crate::sql::statement;

/// One call of the store.
pub(crate) trait Op: Send + Sync + 'static {
    /// What the caller gets.
    type Answer: Send + 'static;

    /// Whether a lost connection leaves the outcome open.
    const WRITES: bool = true;

    /// Whether it moves jobs, so that counts are to be folded.
    const MOVES: bool = false;

    /// How long it may take, if that is longer than other calls.
    const PATIENCE: Duration = Duration::ZERO;

    /// Does it. Called again, on a fresh transaction, if it met a deadlock.
    fn run(&self, conn: &mut Conn, shared: &Shared) -> impl Future<Output = Result<Self::Answer>> + Send;
}

/// The store's time, as a common table expression that every statement begins with. `$1` is the time in tests.
macro_rules! now {
    () => {
        "t AS MATERIALIZED (SELECT coalesce($1::timestamptz, clock_timestamp()) AS now)"
    };
}
pub(crate) use now;

statement! {
    /// Touches no table. It writes to the log, so that its commit waits as any write's does, for whatever was written before.
    ///
    /// What a repeat finds stored was visible to it, and normally that is enough: a commit is seen only after it was safe. But a
    /// server that is restarted shows what was still waiting for its standby as well. To acknowledge that without waiting again
    /// would be to promise what the standby may not have.
    pub(crate) Confirm = "confirm", whole ("it touches no table"), ();
    "SELECT pg_logical_emit_message(true, 'mainspring', '')"
}
