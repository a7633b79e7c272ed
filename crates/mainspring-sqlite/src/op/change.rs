//! What operators do to jobs.

use mainspring_core::id::{JobId, NodeNo};
use mainspring_core::job::{Priority, Reason, State, Status, Verb};
use mainspring_core::named;
use mainspring_core::store::{Cancellation, Changed, Class, flags};
use rusqlite::{OptionalExtension, params};

use super::moves::{self, Ending, SuspendedRow};
use super::place::{self, Card, Place};
use super::{claim, family, limits, remove, rewind, unique_key};
use crate::error::{Result, corrupt};
use crate::writer::Tx;

/// Unique index of ids.
pub(crate) const FIND: &str = "SELECT no FROM mainspring_jobs WHERE id = ?1";
/// Primary key, and the partial index `lease_cancel`. The reason first given stays.
const FLAG: &str =
    "UPDATE mainspring_lease SET cancel = ?2, flags = flags | ?3 WHERE no = ?1 AND cancel IS NULL";
/// Primary key, and index `ready_claim`. The class stays: it is the high bits of the level.
const READY_PRIORITY: &str = named!(
    "UPDATE mainspring_ready SET level = (level & ~{level.priority_bits}) | ?2
    WHERE no = ?1 AND level & {level.priority_bits} <> ?2"
);
/// The same in `limited`.
const LIMITED_PRIORITY: &str = named!(
    "UPDATE mainspring_limited SET level = (level & ~{level.priority_bits}) | ?2
    WHERE no = ?1 AND level & {level.priority_bits} <> ?2"
);
/// Primary key.
const LIMITED_LEVEL: &str = "SELECT level FROM mainspring_limited WHERE no = ?1";
/// Primary keys.
const TIMERS_PRIORITY: &str = "UPDATE mainspring_timers SET priority = ?2 WHERE no = ?1 AND priority <> ?2";
const SUSPENDED_PRIORITY: &str =
    "UPDATE mainspring_suspended SET priority = ?2 WHERE no = ?1 AND priority <> ?2";

/// Applies a verb to jobs, one after the other.
pub(crate) fn run(tx: &mut Tx<'_>, ids: &[JobId], verb: &Verb, dry_run: bool) -> Result<Vec<Changed>> {
    verb.check()?;
    ids.iter().map(|id| one(tx, *id, verb, dry_run)).collect()
}

fn one(tx: &mut Tx<'_>, id: JobId, verb: &Verb, dry_run: bool) -> Result<Changed> {
    let no = tx.conn.prepare_cached(FIND)?.query_row([id.as_bytes()], |row| row.get(0)).optional()?;
    let Some(no) = no else { return Ok(Changed::NotFound) };
    let (card, found) = place::locate(tx, no)?;
    let from = found.status();
    let later = found.due().is_some_and(|due| due > tx.micros());
    let to = match verb.apply(from, later) {
        Ok(to) => to,
        Err(illegal) => return Ok(Changed::Illegal(illegal)),
    };
    let goes_on = to.is_some_and(|to| !to.state.is_terminal() && to.state != State::Running);
    let decodes = matches!(verb, Verb::Resume) || from.reason == Some(Reason::Unreadable);
    if goes_on && (card.damage.is_some() || decodes && claim::illegible(tx, no)?.is_some()) {
        return Ok(Changed::Illegal(verb.refused(from)));
    }
    if let Verb::Rewind { from: step, claim } = verb {
        let seen = card.claim == i64::from(*claim);
        let Some(back) = (if seen { rewind::look(tx, no, step)? } else { None }) else {
            return Ok(Changed::Stale);
        };
        if !dry_run {
            rewind::run(tx, card, &found, &back)?;
        }
    } else if !dry_run {
        apply(tx, card, &found, verb, to)?;
    }
    Ok(Changed::Applied { from, to })
}

/// Does what a verb says; `to` is the status that the state machine gave.
fn apply(tx: &mut Tx<'_>, mut card: Card, found: &Place, verb: &Verb, to: Option<Status>) -> Result<()> {
    match (verb, to) {
        (_, None) => delete(tx, &card, found),
        (Verb::Cancel { why }, Some(to)) if to.state == State::Running => {
            flag(tx, &card, found, &Cancellation::operator(why))
        }
        (Verb::Recall { why }, Some(to)) if to.state == State::Running => {
            flag(tx, &card, found, &Cancellation::parent(why))
        }
        (Verb::Cancel { why } | Verb::Recall { why } | Verb::Fail { why }, Some(to)) => {
            moves::leave(tx, &card, found)?;
            moves::end(tx, &card, Ending { status: to, note: why, result: None })
        }
        (Verb::SetPriority(priority), Some(_)) => set_priority(tx, &card, found, *priority),
        (verb, Some(to)) => {
            moves::leave(tx, &card, found)?;
            if matches!(verb, Verb::Retry) {
                card.failures = 0;
            }
            if matches!(verb, Verb::Retry | Verb::Resume) {
                (card.crashes, card.crashed) = (0, 0);
            }
            let note = match verb {
                Verb::Hold { why } if !why.is_empty() => Some(why.as_str()),
                _ => None,
            };
            wait(tx, &card, to, found.due(), note)
        }
    }
}

/// Puts a job where an operator lets it wait. `due` is the time that it was to wait for, `note` why it is held.
fn wait(tx: &mut Tx<'_>, card: &Card, to: Status, due: Option<i64>, note: Option<&str>) -> Result<()> {
    match (to.state, to.reason, due) {
        (State::Suspended, Some(reason), due) => {
            moves::enter_suspended(tx, card, &SuspendedRow { due, note, ..SuspendedRow::plain(reason) })
        }
        (State::Scheduled, _, Some(due)) => moves::enter_timers(tx, card, due),
        (State::Ready, ..) => moves::enter_ready(tx, card, Class::Fresh),
        _ => Err(corrupt(format!("an operator's verb led to {to}"))),
    }
}

/// Asks the node of a running job to stop it.
pub(crate) fn flag(tx: &mut Tx<'_>, card: &Card, found: &Place, cancel: &Cancellation) -> Result<()> {
    let orphan = if cancel.reason == Reason::Parent { flags::ORPHAN } else { 0 };
    tx.conn.prepare_cached(FLAG)?.execute(params![card.no, cancel.why, orphan])?;
    if let Place::Lease { node } = found {
        tx.hints.cancel(NodeNo(*node));
    }
    Ok(())
}

fn set_priority(tx: &mut Tx<'_>, card: &Card, found: &Place, priority: Priority) -> Result<()> {
    let sql = match found {
        Place::Ready => READY_PRIORITY,
        Place::Limited { .. } => LIMITED_PRIORITY,
        Place::Timers { .. } => TIMERS_PRIORITY,
        Place::Suspended { .. } => SUSPENDED_PRIORITY,
        Place::Lease { .. } | Place::Done { .. } => {
            return Err(corrupt("a priority of a job that does not wait"));
        }
    };
    tx.conn.prepare_cached(sql)?.execute(params![card.no, priority.get()])?;
    if let Place::Limited { group } = found {
        let level = tx.conn.prepare_cached(LIMITED_LEVEL)?.query_row([card.no], |row| row.get(0))?;
        limits::counters::give_turn(tx, card.line, level, *group)?;
    }
    if matches!(found, Place::Ready | Place::Limited { .. }) {
        let line = tx.state.names.line(card.line)?;
        tx.hints.ready(&line.queue_name);
    }
    Ok(())
}

/// Removes a job that is not running, with its unique key.
fn delete(tx: &mut Tx<'_>, card: &Card, found: &Place) -> Result<()> {
    if let Place::Done { status, .. } = found {
        remove::ended(tx, card.no, status.state, card.flags)?;
    } else {
        if card.flags & flags::TOLD != 0 {
            let status = Status::because(State::Cancelled, Reason::Operator);
            family::close(tx, card, Ending { status, note: "", result: None })?;
            // The end of a child may have woken it.
            let (card, found) = place::locate(tx, card.no)?;
            moves::leave(tx, &card, &found)?;
        } else {
            moves::leave(tx, card, found)?;
        }
        remove::side_rows(tx, card.no, card.flags)?;
    }
    unique_key::forget(tx.conn, card.no)?;
    tx.state.numbers.keep(tx.conn)
}
