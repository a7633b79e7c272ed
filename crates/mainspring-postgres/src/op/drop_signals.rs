//! Drops unread signals, for operators.
//!
//! # Invariants
//! - The mailbox lock is held: a suspension comes before and is woken by a later signal only, or after and finds what is left.
//! - The claim's row is locked after it, as by whoever marks messages as read: both mark rows of one inbox one after the other.

use mainspring_core::bounds;
use mainspring_core::id::JobId;
use mainspring_core::journal::Subject;
use mainspring_core::name::SignalName;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::record::TRIM;
use super::signal::LOCK;
use super::{CONFIRM, Op};
use crate::connection::Conn;
use crate::error::{Result, corrupt};
use crate::shared::Shared;
use crate::sql::{Call, bound};

/// Unique index of ids.
const FIND: &str = "SELECT no FROM mainspring.jobs WHERE id = $1";
/// Primary key.
const CLAIM: &str = "SELECT 1 FROM mainspring.lease WHERE no = $1 FOR NO KEY UPDATE";
/// Primary key, with read ones among them, which are bounded.
const DROP: &str = "UPDATE mainspring.inbox m SET read = true
    WHERE m.no = $1 AND m.subject = $2 AND ($3::text IS NULL OR m.sender = $3) AND NOT m.read RETURNING 1";
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
        let calls = [
            Call::new(LOCK, vec![(&mailbox, Type::INT8), (&ids, Type::UUID_ARRAY)]),
            Call::new(FIND, vec![(&id, Type::UUID)]),
        ];
        let found = conn.begin(shared, "", &calls).await?.pop().unwrap_or_default();
        let Some(no) = found.first().map(|row| row.get::<_, i64>(0)) else {
            conn.end(&[]).await?;
            return Ok(None);
        };
        let (subject, nos) = (Subject::Signal(self.name.clone()).to_string(), [no].to_vec());
        let dropped =
            vec![(&no as _, Type::INT8), (&subject as _, Type::TEXT), (&self.sender as _, Type::TEXT)];
        let rows = conn
            .end(&[
                Call::new(CLAIM, vec![(&no, Type::INT8)]),
                Call::new(DROP, dropped),
                Call::new(TRIM, vec![(&nos, Type::INT8_ARRAY), (&KEPT, Type::INT8)]),
                // A repeat that finds nothing acknowledges what an earlier call has done.
                Call::new(CONFIRM, Vec::new()),
            ])
            .await?;
        let [_, dropped, ..] = rows.as_slice() else { return Err(corrupt("a drop without an answer")) };
        Ok(Some(dropped.len()))
    }
}
