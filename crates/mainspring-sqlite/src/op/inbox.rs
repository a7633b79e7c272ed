//! Inboxes: signals and ends of children, until their job has read them, and what they wake.
//!
//! # Invariants
//! - A message is stored once per subject and sender: the unique index says so, also of those that were read.
//! - A job that is set aside looks into its inbox, and a message looks whether its job is set aside: the writer is one
//!   thread, so whichever comes second sees the first.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use mainspring_core::bounds;
use mainspring_core::id::JobId;
use mainspring_core::job::{Reason, Status};
use mainspring_core::journal::{Inbox, Message, MessageBody, Signal, Signalled, Subject, Wait};
use mainspring_core::name::SignalName;
use mainspring_core::store::flags;
use mainspring_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::as_i64;
use super::change::FIND;
use super::moves;
use super::place::{self, Card, Place, read_status};
use crate::error::{Result, corrupt, legible};
use crate::writer::Tx;

/// Unique index of subjects.
pub(crate) const KNOWN: &str =
    "SELECT EXISTS (SELECT 1 FROM mainspring_inbox WHERE no = ?1 AND subject = ?2 AND sender = ?3)";
/// An append, and the unique index of subjects: what is there already stays as it is.
pub(crate) const POST: &str =
    "INSERT INTO mainspring_inbox (no, subject, sender, at, state, reason, note, body)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT (no, subject, sender) DO NOTHING";
/// Index `inbox_read`, covering.
pub(crate) const UNREAD: &str = "SELECT count(*) FROM mainspring_inbox WHERE no = ?1 AND read = 0";
/// An index of inboxes; only for those that may be full. `s` is above every subject of a child.
const UNREAD_SIGNALS: &str =
    "SELECT count(*) FROM mainspring_inbox WHERE no = ?1 AND read = 0 AND subject > 's'";
/// Index `inbox_read`, covering.
pub(crate) const ANY: &str = "SELECT EXISTS (SELECT 1 FROM mainspring_inbox WHERE no = ?1 AND read = 0)";
/// Unique index of subjects, up to the last one that is needed, with read ones among them, which are bounded. (The plus
/// keeps SQLite from the other index, which knows nothing of subjects.)
pub(crate) const CAME: &str =
    "SELECT 1 FROM mainspring_inbox WHERE no = ?1 AND subject = ?2 AND +read = 0 LIMIT 1 OFFSET ?3";
/// Index `inbox_read`, in the order of the numbers; a body that is longer than the last parameter is left where it is.
pub(crate) const AFTER: &str = "SELECT seq, subject, sender, at, state, reason, note,
        CASE WHEN length(body) <= ?4 THEN body END, coalesce(length(body), 0) + coalesce(length(CAST(note AS BLOB)), 0)
    FROM mainspring_inbox WHERE no = ?1 AND read = 0 AND seq > ?2 ORDER BY seq LIMIT ?3";
/// Primary key, and index `inbox_read`. The body was read, and nobody asks for it again.
pub(crate) const READ: &str = "UPDATE mainspring_inbox
    SET read = 1 + (state IS NOT NULL), body = NULL, note = NULL
    WHERE seq = ?1 AND no = ?2 AND read = 0";
/// Unique index of subjects, with read ones among them, which are bounded.
const MATCHING: &str = "SELECT seq FROM mainspring_inbox
    WHERE no = ?1 AND subject = ?2 AND (?3 IS NULL OR sender = ?3) AND +read = 0";
/// Index `inbox_read`, from its end: all but the last signals that were read.
pub(crate) const TRIM: &str = "DELETE FROM mainspring_inbox WHERE seq IN (
    SELECT seq FROM mainspring_inbox WHERE no = ?1 AND read = 1 ORDER BY seq DESC LIMIT -1 OFFSET ?2)";
/// Primary key.
const WAITS: &str = "SELECT waits FROM mainspring_suspended WHERE no = ?1";
/// Primary key.
const ID: &str = "SELECT id FROM mainspring_jobs WHERE no = ?1";

/// Stores signals.
pub(crate) fn signal(tx: &mut Tx<'_>, signals: &[Signal]) -> Result<Vec<Signalled>> {
    // How much is unread, of jobs that were looked at: many signals of a batch may be for one job.
    let mut unread = BTreeMap::new();
    signals.iter().map(|signal| one(tx, signal, &mut unread)).collect()
}

fn one(tx: &mut Tx<'_>, signal: &Signal, unread: &mut BTreeMap<i64, Unread>) -> Result<Signalled> {
    let no = tx.conn.prepare_cached(FIND)?.query_row([signal.job.as_bytes()], |row| row.get(0)).optional()?;
    let Some(no) = no else { return Ok(Signalled::NotFound) };
    let subject = Subject::Signal(signal.name.clone());
    let known = params![no, subject.to_string(), signal.sender];
    if tx.conn.prepare_cached(KNOWN)?.query_row(known, |row| row.get(0))? {
        return Ok(Signalled::Repeated);
    }
    let (card, found) = place::locate(tx, no)?;
    if let Place::Done { status, .. } = found {
        return Ok(Signalled::Ended(status));
    }
    let unread = match unread.entry(no) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(new) => new.insert(Unread { count: count(tx, no, UNREAD)?, exact: false }),
    };
    if unread.count >= bounds::INBOX && !unread.exact {
        *unread = Unread { count: count(tx, no, UNREAD_SIGNALS)?, exact: true };
    }
    if unread.count >= bounds::INBOX {
        return Ok(Signalled::Full);
    }
    unread.count += 1;
    let parts = Parts { sender: &signal.sender, body: Some(&signal.body), ..Parts::default() };
    post(tx, card, &found, &subject, &parts)?;
    Ok(Signalled::Stored)
}

/// How much is unread of a job.
struct Unread {
    count: usize,
    /// Whether these are signals alone; otherwise ends of children may be among them.
    exact: bool,
}

fn count(tx: &Tx<'_>, no: i64, sql: &str) -> Result<usize> {
    let count: i64 = tx.conn.prepare_cached(sql)?.query_row([no], |row| row.get(0))?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// What a message consists of, beside its subject.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Parts<'a> {
    pub(crate) sender: &'a str,
    pub(crate) status: Option<Status>,
    pub(crate) note: Option<&'a str>,
    pub(crate) body: Option<&'a [u8]>,
}

/// Puts a message into the inbox of a job that has not ended, unless it is there, and wakes the job if it waits for that.
pub(crate) fn post(
    tx: &mut Tx<'_>,
    mut card: Card,
    found: &Place,
    subject: &Subject,
    parts: &Parts<'_>,
) -> Result<()> {
    let text = subject.to_string();
    let posted = tx.conn.prepare_cached(POST)?.execute(params![
        card.no,
        text,
        parts.sender,
        tx.micros(),
        parts.status.map(|status| status.state.code()),
        parts.status.and_then(|status| status.reason).map(Reason::code),
        parts.note,
        parts.body
    ])?;
    if posted == 0 {
        return Ok(());
    }
    match found {
        Place::Suspended { reason, .. } if reason.awaits() && wakes(tx, card.no, subject, &text)? => {
            moves::leave(tx, &card, found)?;
            card.flags |= flags::JOURNAL;
            return moves::enter_ready(tx, &card, moves::returned(&card));
        }
        Place::Lease { .. } => {
            let id = tx.conn.prepare_cached(ID)?.query_row([card.no], |row| row.get(0))?;
            tx.hints.message(JobId::from_bytes(id));
        }
        Place::Ready
        | Place::Limited { .. }
        | Place::Timers { .. }
        | Place::Suspended { .. }
        | Place::Done { .. } => {}
    }
    place::flag(tx, &card, found, flags::JOURNAL)
}

/// Whether a job that is set aside waited for a message of this subject, which has just come. No other wait can have ended
/// by it, and none was over before.
fn wakes(tx: &Tx<'_>, no: i64, subject: &Subject, text: &str) -> Result<bool> {
    let waits: Option<String> =
        tx.conn.prepare_cached(WAITS)?.query_row([no], |row| row.get(0)).optional()?.flatten();
    // One whose waits cannot be read looks for itself what it waits for.
    let Ok(waits) = legible(read_waits(waits.as_deref()))? else { return Ok(true) };
    let mut waits = waits.into_iter().filter(|wait| wait.subject == *subject);
    waits.try_fold(false, |over, wait| Ok(over || wait.need <= 1 || came(tx, no, text, wait.need)?))
}

fn came(tx: &Tx<'_>, no: i64, subject: &str, need: u32) -> Result<bool> {
    let Some(before) = need.checked_sub(1) else { return Ok(true) };
    Ok(tx.conn.prepare_cached(CAME)?.exists(params![no, subject, before])?)
}

/// Whether one of the waits of a job is over.
pub(crate) fn answers(tx: &Tx<'_>, no: i64, waits: &[Wait]) -> Result<bool> {
    if waits.is_empty() || !tx.conn.prepare_cached(ANY)?.query_row([no], |row| row.get(0))? {
        // A wait for nothing is over at once.
        return Ok(waits.iter().any(|wait| wait.need == 0));
    }
    waits.iter().try_fold(false, |over, wait| Ok(over || came(tx, no, &wait.subject.to_string(), wait.need)?))
}

/// Drops unread signals of a name: they count as read.
pub(crate) fn drop_signals(
    tx: &Tx<'_>,
    id: JobId,
    name: &SignalName,
    sender: Option<&str>,
) -> Result<Option<usize>> {
    let no = tx.conn.prepare_cached(FIND)?.query_row([id.as_bytes()], |row| row.get(0)).optional()?;
    let Some(no) = no else { return Ok(None) };
    let subject = Subject::Signal(name.clone()).to_string();
    let mut matching = tx.conn.prepare_cached(MATCHING)?;
    let numbers: Vec<i64> = matching
        .query_map(params![no, subject, sender], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    mark_read(tx, no, &numbers)?;
    Ok(Some(numbers.len()))
}

/// Marks messages as read, and forgets the oldest signals that were read.
pub(crate) fn mark_read(tx: &Tx<'_>, no: i64, numbers: &[i64]) -> Result<()> {
    let mut read = tx.conn.prepare_cached(READ)?;
    let mut marked = 0;
    for seq in numbers {
        marked += read.execute([*seq, no])?;
    }
    if marked > 0 {
        let kept = as_i64(bounds::INBOX_READ);
        tx.conn.prepare_cached(TRIM)?.execute([no, kept])?;
    }
    Ok(())
}

/// The first unread messages behind a number: no more than fit, and the first also if it is larger, up to `first`.
pub(crate) fn unread(conn: &Connection, no: i64, after: i64, first: usize) -> Result<Inbox> {
    let mut statement = conn.prepare_cached(AFTER)?;
    // One more than may be given tells whether there is more.
    let limit = as_i64(bounds::INBOX_PAGE + 1);
    let mut rows = statement.query([no, after, limit, as_i64(first)])?;
    let mut inbox = Inbox::default();
    let mut bytes = 0_usize;
    while let Some(row) = rows.next()? {
        bytes += usize::try_from(row.get::<_, i64>(8)?).unwrap_or_default();
        let room = if inbox.messages.is_empty() { first } else { first.min(bounds::PREFETCH_BYTES) };
        inbox.more = inbox.messages.len() == bounds::INBOX_PAGE || bytes > room;
        if inbox.more {
            break;
        }
        inbox.messages.push(read_message(row)?);
    }
    Ok(inbox)
}

pub(crate) fn read_message(row: &rusqlite::Row<'_>) -> Result<Message> {
    let subject: String = row.get(1)?;
    let subject = subject.parse().map_err(|_| corrupt(format!("{subject:?} is not a subject")))?;
    let mail = match subject {
        Subject::Signal(name) => MessageBody::Signal {
            name,
            sender: row.get(2)?,
            body: row.get::<_, Option<Vec<u8>>>(7)?.ok_or_else(|| corrupt("a signal without a body"))?,
        },
        Subject::Child(child) => {
            let state = row.get::<_, Option<u8>>(4)?.ok_or_else(|| corrupt("an end without a state"))?;
            let status = read_status(state, row.get(5)?)?;
            MessageBody::Ended { child, status, result: row.get(7)?, message: row.get(6)? }
        }
    };
    Ok(Message { no: row.get(0)?, at: Timestamp::from_micros(row.get(3)?), body: mail })
}

/// Waits as they are stored; `None` if there are none.
pub(crate) fn waits_text(waits: &[Wait]) -> Result<Option<String>> {
    if waits.is_empty() {
        return Ok(None);
    }
    let pairs: Vec<(String, u32)> = waits.iter().map(|wait| (wait.subject.to_string(), wait.need)).collect();
    serde_json::to_string(&pairs).map(Some).map_err(|error| corrupt(format!("waits: {error}")))
}

/// Waits from their column.
pub(crate) fn read_waits(text: Option<&str>) -> Result<Vec<Wait>> {
    let Some(text) = text else { return Ok(Vec::new()) };
    let pairs: Vec<(String, u32)> =
        serde_json::from_str(text).map_err(|error| corrupt(format!("waits: {error}")))?;
    let wait = |(subject, need): (String, u32)| {
        let subject = subject.parse().map_err(|_| corrupt(format!("{subject:?} is not a subject")))?;
        Ok(Wait { subject, need })
    };
    pairs.into_iter().map(wait).collect()
}
