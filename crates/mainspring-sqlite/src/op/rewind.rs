//! Retry from a step: what a job has recorded from there on is taken back.

use mainspring_core::journal::{EntryKind, Line, OnClose, Rewind, Subject, Unread, rewind};
use mainspring_core::name::Key;
use mainspring_core::store::Class;
use rusqlite::{OptionalExtension, params};

use super::family;
use super::journal::FORGET;
use super::moves;
use super::place::{Card, Place};
use crate::error::{Result, corrupt};
use crate::writer::Tx;

/// Unique index of keys, then primary keys, and a sort. Values of children and of signals alone.
const LINES: &str = "SELECT key, kind, CASE WHEN kind IN (?2, ?3) THEN value END
    FROM mainspring_steps WHERE no = ?1 ORDER BY seq";
/// Unique index of senders. Of what was read long ago the sender is not known any more, and what it has sent since stays.
const UNREAD: &str =
    "INSERT INTO mainspring_inbox (no, subject, sender, at, body) VALUES (?1, ?2, ?3, ?5, ?4)
    ON CONFLICT (no, subject, sender) DO UPDATE SET read = 0, body = excluded.body WHERE read = 1";
/// Unique index of ids, then the primary key.
const CHILD: &str = "SELECT c.no FROM mainspring_jobs j CROSS JOIN mainspring_children c ON c.no = j.no
    WHERE j.id = ?1 AND c.parent = ?2 AND c.on_close = ?3";

/// What would be taken back of a job; `None` if it has recorded nothing of that step.
pub(super) fn look(tx: &Tx<'_>, no: i64, from: &Key) -> Result<Option<Rewind>> {
    let mut statement = tx.conn.prepare_cached(LINES)?;
    let mut rows = statement.query(params![no, EntryKind::Child.code(), EntryKind::Received.code()])?;
    let mut lines: Vec<Line> = Vec::new();
    while let Some(row) = rows.next()? {
        let key = Key::new(row.get::<_, String>(0)?).map_err(|error| corrupt(error.to_string()))?;
        let kind = EntryKind::from_code(row.get(1)?).ok_or_else(|| corrupt("an unknown kind of entry"))?;
        lines.push((key, kind, row.get(2)?));
    }
    Ok(rewind(&lines, from))
}

/// Takes it back, and runs the job again.
pub(super) fn run(tx: &mut Tx<'_>, mut card: Card, found: &Place, back: &Rewind) -> Result<()> {
    moves::leave(tx, &card, found)?;
    card.claim += 1;
    (card.failures, card.crashes, card.crashed) = (0, 0, 0);
    moves::enter_ready(tx, &card, Class::Fresh)?;
    for key in &back.forget {
        tx.conn.prepare_cached(FORGET)?.execute(params![card.no, key.as_str()])?;
    }
    for Unread { name, sender, body } in &back.unread {
        let subject = Subject::Signal(name.clone()).to_string();
        tx.conn.prepare_cached(UNREAD)?.execute(params![card.no, subject, sender, body, tx.micros()])?;
    }
    let mut lost = Vec::new();
    for id in &back.children {
        let values = params![id.as_bytes(), card.no, OnClose::Cancel as u8];
        let no: Option<i64> =
            tx.conn.prepare_cached(CHILD)?.query_row(values, |row| row.get(0)).optional()?;
        lost.extend(no);
    }
    family::cancel_all(tx, lost)
}
