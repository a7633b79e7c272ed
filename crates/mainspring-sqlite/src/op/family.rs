//! Families: children start with a record of their parent, and each learns of the other's end.
//!
//! # Invariants
//! - [`close`] is called wherever a job that has a family enters `done` or is deleted before its end, in that transaction.
//! - A parent is told of a child's end once, also after its own: it may be run again.
//! - A child that is to be cancelled with its parent does not wait any more when the parent's end is committed, nor do its
//!   own children; those that run are flagged. However deep a family is, this takes no stack.

use mainspring_core::id::JobId;
use mainspring_core::job::{Differs, Input, Reason, State, transition};
use mainspring_core::journal::{Child, OnClose, Recorded, Recording, Subject};
use mainspring_core::named;
use mainspring_core::store::{Cancellation, Receipt, flags};
use rusqlite::{OptionalExtension, params};

use super::inbox::{self, Parts};
use super::moves::{self, Ending};
use super::place::{self, Card, Place};
use super::{change, enqueue, journal};
use crate::error::{Result, corrupt};
use crate::writer::Tx;

/// Primary key: a job has one parent.
const ADD: &str = "INSERT INTO mainspring_children (no, parent, on_close) VALUES (?1, ?2, ?3)";
/// Primary keys: who a job's parent is, and the job's own id.
pub(crate) const PARENT: &str = "SELECT c.parent, j.id FROM mainspring_children c
    JOIN mainspring_jobs j ON j.no = c.no WHERE c.no = ?1";
/// Index `children_parent`.
pub(crate) const TO_CANCEL: &str =
    "SELECT no FROM mainspring_children WHERE parent = ?1 AND on_close = ?2 ORDER BY no";
/// Primary key, from its end. The loss of a node is not meant.
pub(crate) const LAST_ERROR: &str = named!(
    "SELECT message FROM mainspring_errors WHERE no = ?1 AND kind <> {fault.crashed} ORDER BY claim DESC LIMIT 1"
);

/// What became of the children of a recording.
pub(crate) enum Started {
    /// They are there. Whether one was started now.
    All(bool),
    /// The id of one belongs to another job. None was started.
    Taken(Recorded),
}

/// Starts the children of a recording, before anything else of it is written: those that were started by it before are left
/// alone.
pub(crate) fn start(tx: &mut Tx<'_>, parent: i64, recording: &Recording) -> Result<Started> {
    let children = &recording.children;
    // Of several, none is to be started if one is refused.
    if children.len() > 1 {
        for child in children {
            if let Some(taken) = taken(tx, parent, recording, child)? {
                return Ok(Started::Taken(taken));
            }
        }
    }
    let mut any = false;
    for child in children {
        if let Some(no) = enqueue::child(tx, &child.job)? {
            tx.conn.prepare_cached(ADD)?.execute(params![no, parent, child.on_close as u8])?;
            any = true;
        } else if children.len() == 1
            && let Some(taken) = taken(tx, parent, recording, child)?
        {
            return Ok(Started::Taken(taken));
        }
    }
    Ok(Started::All(any))
}

/// What is said of a recording whose child has the id of another job, or of a child of another entry.
fn taken(tx: &Tx<'_>, parent: i64, recording: &Recording, child: &Child) -> Result<Option<Recorded>> {
    let Some(known) = enqueue::known(tx, &child.job)? else { return Ok(None) };
    let differs = match (known, recording.start_of(child.job.id)) {
        (Receipt::Taken(differs), _) => differs,
        (_, Some(key)) if !journal::has(tx, parent, key)? => Differs::Step,
        _ => return Ok(None),
    };
    Ok(Some(Recorded::Taken { child: child.job.id, differs }))
}

/// Tells the family of a job that it has ended, or that it is deleted, which is to be taken as this end.
pub(crate) fn close(tx: &mut Tx<'_>, card: &Card, ending: Ending<'_>) -> Result<()> {
    if card.flags & flags::PARENT != 0 {
        tell_parent(tx, card, ending)?;
    }
    let orphaned = if card.flags & flags::CHILDREN == 0 { Vec::new() } else { to_cancel(tx, card.no)? };
    cancel_all(tx, orphaned)
}

/// Cancels children, and theirs.
pub(crate) fn cancel_all(tx: &mut Tx<'_>, mut orphaned: Vec<i64>) -> Result<()> {
    while let Some(no) = orphaned.pop() {
        if let Some(ended) = cancel(tx, no)? {
            orphaned.extend(to_cancel(tx, ended)?);
        }
    }
    Ok(())
}

fn to_cancel(tx: &Tx<'_>, parent: i64) -> Result<Vec<i64>> {
    let mut statement = tx.conn.prepare_cached(TO_CANCEL)?;
    let rows = statement.query_map(params![parent, OnClose::Cancel as u8], |row| row.get(0))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// Cancels a child whose parent has ended. Returns its number if it has ended by this and
/// has children of its own.
fn cancel(tx: &mut Tx<'_>, no: i64) -> Result<Option<i64>> {
    let (card, found) = place::locate(tx, no)?;
    match found {
        Place::Done { .. } => return Ok(None),
        Place::Lease { .. } => {
            change::flag(tx, &card, &found, &Cancellation::orphan())?;
            return Ok(None);
        }
        Place::Ready | Place::Limited { .. } | Place::Timers { .. } | Place::Suspended { .. } => {}
    }
    let status = transition(found.status(), Input::Cancel(Reason::Parent))
        .map_err(|illegal| corrupt(illegal.to_string()))?;
    moves::leave(tx, &card, &found)?;
    let ending = Ending { status, note: "", result: None };
    moves::end_quietly(tx, &card, ending)?;
    tell_parent(tx, &card, ending)?;
    Ok((card.flags & flags::CHILDREN != 0).then_some(no))
}

fn tell_parent(tx: &mut Tx<'_>, card: &Card, ending: Ending<'_>) -> Result<()> {
    let row = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, JobId::from_bytes(row.get(1)?)));
    let found = tx.conn.prepare_cached(PARENT)?.query_row([card.no], row).optional()?;
    // A parent that was removed has taken its part of the family with it.
    let Some((parent, child)) = found else { return Ok(()) };
    let (parent, place) = place::locate(tx, parent)?;
    let message = message(tx, card.no, ending)?;
    let parts =
        Parts { sender: "", status: Some(ending.status), note: message.as_deref(), body: ending.result };
    inbox::post(tx, parent, &place, &Subject::Child(child), &parts)
}

/// What there is to say to the end of a job that did not succeed: the reason that was given, or the last error.
fn message(tx: &Tx<'_>, no: i64, ending: Ending<'_>) -> Result<Option<String>> {
    if ending.status.state == State::Succeeded {
        return Ok(None);
    }
    if !ending.note.is_empty() {
        return Ok(Some(ending.note.to_owned()));
    }
    Ok(tx.conn.prepare_cached(LAST_ERROR)?.query_row([no], |row| row.get(0)).optional()?)
}
