//! Retry from a step: what a job has recorded from there on is taken back.
//!
//! A journal is looked at twice: first to know which children are concerned, because leases are locked before places; and
//! again when the job has left its place, which is what keeps everybody else from recording. If it is another one then, the
//! whole call begins anew.

use mainspring_core::journal::{EntryKind, Line, Rewind, Subject, rewind};
use mainspring_core::name::Key;
use uuid::Uuid;

use crate::connection::Conn;
use crate::error::{Result, corrupt};
use crate::sql::{Present, Query, statement};

statement! {
    /// Primary key of `steps`, by the job's number. Values of children and of signals alone.
    pub(crate) Lines<'a> = "rewind.lines", by ["steps_pkey"],
    (no: i64) -> JournalLine { key: String, kind: i16, value: Option<Vec<u8>> };
    "SELECT s.key, s.kind, CASE WHEN s.kind IN ({entry.child}, {entry.received}) THEN s.value END
    FROM mainspring.steps s WHERE s.no = $1 ORDER BY s.seq"
}
statement! {
    /// Primary key of `steps`. The job is in no place, or in one of this transaction: nobody else records.
    pub(crate) Forget<'a> = "rewind.forget", by ["steps_pkey"], (no: i64, keys: Vec<&'a str>);
    "DELETE FROM mainspring.steps s WHERE s.no = $1 AND s.key = ANY($2::text[])"
}
statement! {
    /// Primary key of `inbox`. What has been read is touched by nobody but whoever holds the job. Of what was read long ago the
    /// sender is not known any more, and what it has sent since stays.
    pub(crate) Unread<'a> = "rewind.unread", by ["inbox_pkey"],
    (no: i64, subjects: Vec<String>, senders: Vec<&'a str>, bodies: Vec<&'a [u8]>, at: Present);
    "INSERT INTO mainspring.inbox AS m (no, subject, sender, at, body)
    SELECT $1, u.subject, u.sender, coalesce($5::timestamptz, clock_timestamp()), u.body
    FROM unnest($2::text[], $3::text[], $4::bytea[]) AS u(subject, sender, body)
    ON CONFLICT (no, subject, sender) DO UPDATE SET read = false, body = excluded.body WHERE m.read"
}
statement! {
    /// Unique index of ids, then primary keys: children that are cancelled with their parent and have not ended.
    pub(crate) Children<'a> = "rewind.children", by ["jobs_id_key", "children_parent", "done_pkey"],
    (parent: i64, ids: Vec<Uuid>) -> ChildNo { no: i64 };
    "SELECT c.no FROM unnest($2::uuid[]) AS u(id)
    CROSS JOIN LATERAL (SELECT no FROM mainspring.jobs WHERE id = u.id OFFSET 0) j
    CROSS JOIN LATERAL (SELECT no FROM mainspring.children
        WHERE no = j.no AND parent = $1 AND on_close = {on_close.cancel} OFFSET 0) c
    WHERE NOT EXISTS (SELECT 1 FROM mainspring.done d WHERE d.no = c.no) ORDER BY c.no"
}

/// A job that is about to be taken back.
pub(super) struct Back {
    pub(super) no: i64,
    rewind: Rewind,
    /// The numbers of children that are cancelled by it.
    pub(super) children: Vec<i64>,
}

/// What would be taken back of a job; `None` if it has recorded nothing of that step.
pub(super) async fn look(conn: &mut Conn, no: i64, from: &Key) -> Result<Option<Back>> {
    let Some(rewind) = read(conn, no, from).await? else { return Ok(None) };
    let mut children = Vec::new();
    if !rewind.children.is_empty() {
        let ids: Vec<Uuid> = rewind.children.iter().map(|id| Uuid::from_bytes(*id.as_bytes())).collect();
        let rows = conn.step(&[Children { parent: &no, ids: &ids }.call()]).await?.pop().unwrap_or_default();
        children = Children::rows(&rows)?.into_iter().map(|child| child.no).collect();
    }
    Ok(Some(Back { no, rewind, children }))
}

async fn read(conn: &mut Conn, no: i64, from: &Key) -> Result<Option<Rewind>> {
    let rows = Lines::rows(&conn.step(&[Lines { no: &no }.call()]).await?.pop().unwrap_or_default())?;
    let mut lines: Vec<Line> = Vec::with_capacity(rows.len());
    for JournalLine { key, kind, value } in rows {
        let kind = u8::try_from(kind).ok().and_then(EntryKind::from_code);
        lines.push((
            Key::new(key).map_err(|error| corrupt(error.to_string()))?,
            kind.ok_or_else(|| corrupt("an unknown kind of entry"))?,
            value,
        ));
    }
    Ok(rewind(&lines, from))
}

/// Takes it back, when the job has left its place. False if it is not what it was.
pub(super) async fn run(conn: &mut Conn, at: &Present, from: &Key, back: &Back) -> Result<bool> {
    let Back { no, rewind, .. } = back;
    if read(conn, *no, from).await?.as_ref() != Some(rewind) {
        return Ok(false);
    }
    let forget: Vec<&str> = rewind.forget.iter().map(Key::as_str).collect();
    let subjects: Vec<String> =
        rewind.unread.iter().map(|unread| Subject::Signal(unread.name.clone()).to_string()).collect();
    let senders: Vec<&str> = rewind.unread.iter().map(|unread| unread.sender.as_str()).collect();
    let bodies: Vec<&[u8]> = rewind.unread.iter().map(|unread| unread.body.as_slice()).collect();
    let mut calls = vec![Forget { no, keys: &forget }.call()];
    if !subjects.is_empty() {
        calls.push(Unread { no, subjects: &subjects, senders: &senders, bodies: &bodies, at }.call());
    }
    conn.step(&calls).await?;
    Ok(true)
}
