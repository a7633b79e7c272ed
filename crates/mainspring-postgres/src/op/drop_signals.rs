//! Drops unread signals, for operators.
//!
//! # Invariants
//! - The mailbox lock is held: a suspension comes before and is woken by a later signal only, or after and finds what is left.
//! - The claim's row is locked after it, as by whoever marks messages as read: both mark rows of one inbox one after the other.

use mainspring_core::bounds;
use mainspring_core::id::JobId;
use mainspring_core::journal::Subject;
use mainspring_core::name::SignalName;
use uuid::Uuid;

use super::record::Trim;
use super::signal::Lock;
use super::{Confirm, Op};
use crate::connection::Conn;
use crate::error::{Result, corrupt};
use crate::shared::Shared;
use crate::sql::{Query, bound, statement};

statement! {
    /// Unique index of ids.
    pub(crate) Find<'a> = "drop_signals.find", by ["jobs_id_key"], (id: Uuid) -> Numbered { no: i64 };
    "SELECT no FROM mainspring.jobs WHERE id = $1"
}
statement! {
    /// Primary key.
    pub(crate) LockClaim<'a> = "drop_signals.lock", by ["lease_pkey"], (no: i64);
    "SELECT 1 FROM mainspring.lease WHERE no = $1 FOR NO KEY UPDATE"
}
statement! {
    /// Partial index `inbox_unread`, all unread ones of the job, which are bounded.
    pub(crate) DropUnread<'a> = "drop_signals.drop", by ["inbox_unread"], (no: i64, subject: String, sender: Option<String>);
    "UPDATE mainspring.inbox m SET read = true
    WHERE m.no = $1 AND m.subject = $2 AND ($3::text IS NULL OR m.sender = $3) AND NOT m.read RETURNING 1"
}
/// Read signals that are kept.
const KEPT: i64 = bound(bounds::INBOX_READ);

/// Drops unread signals of a name: they count as read.
pub(crate) struct DropSignals {
    pub(crate) id: JobId,
    pub(crate) name: SignalName,
    pub(crate) sender: Option<String>,
}

impl Op for DropSignals {
    type Answer = Option<usize>;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Option<usize>> {
        let (mailbox, id) = (shared.mailbox(), Uuid::from_bytes(*self.id.as_bytes()));
        let ids = [id].to_vec();
        let calls = [Lock { mailbox: &mailbox, ids: &ids }.call(), Find { id: &id }.call()];
        let found = conn.begin(shared, "", &calls).await?.pop().unwrap_or_default();
        let Some(no) = Find::first(&found)?.map(|row| row.no) else {
            conn.end(&[]).await?;
            return Ok(None);
        };
        let (subject, nos) = (Subject::Signal(self.name.clone()).to_string(), [no].to_vec());
        let rows = conn
            .end(&[
                LockClaim { no: &no }.call(),
                DropUnread { no: &no, subject: &subject, sender: &self.sender }.call(),
                Trim { nos: &nos, kept: &KEPT }.call(),
                // A repeat that finds nothing acknowledges what an earlier call has done.
                Confirm.call(),
            ])
            .await?;
        let [_, dropped, ..] = rows.as_slice() else { return Err(corrupt("a drop without an answer")) };
        Ok(Some(dropped.len()))
    }
}
