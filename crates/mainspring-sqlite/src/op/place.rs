//! Places, and how a job moves between them.
//!
//! A [`Card`] is what a place carries of a job. Moving is taking the card out of one place and putting it into another
//! in the same transaction; hot paths (enqueue, claim, finish) have statements of their own for the places they use.
//!
//! # Invariants
//! - Every function that takes or puts also counts, so counts follow places.
//! - Whoever puts a job into `done` releases its key and its deadline, and tells its family.

use mainspring_core::bounds;
use mainspring_core::job::{Priority, Reason, State, Status, cut};
use mainspring_core::journal::Wait;
use mainspring_core::store::{Class, Level, flags};
use mainspring_core::time::Timestamp;
use rusqlite::types::{FromSql, Value, ValueRef};
use rusqlite::{OptionalExtension, Row, params};

use super::{deadline, family, inbox, unique_key};
use crate::error::{Result, corrupt, is_mistyped};
use crate::writer::Tx;

/// What a place carries of a job.
#[derive(Debug, Clone)]
pub(crate) struct Card {
    pub(crate) no: i64,
    pub(crate) line: i64,
    pub(crate) priority: u8,
    pub(crate) claim: i64,
    pub(crate) failures: i64,
    pub(crate) crashes: i64,
    /// The longest of its claims that ended with the loss of a node, in microseconds.
    pub(crate) crashed: i64,
    pub(crate) flags: i16,
    /// What of it could not be read.
    pub(crate) damage: Option<Box<Damage>>,
}

/// What of a card could not be read. Instead, its columns say what does no harm while the job ends.
#[derive(Debug, Clone)]
pub(crate) struct Damage {
    pub(crate) what: String,
    /// Claim, failures, crashes, crashed and flags as they are stored.
    raw: [Value; 5],
}

/// Where a job is.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    Ready,
    Timers { due: i64 },
    Suspended { reason: Reason, due: Option<i64> },
    Lease { node: i64 },
    Done { seq: i64, status: Status },
}

impl Place {
    /// The status of a job in this place.
    pub(crate) fn status(&self) -> Status {
        match self {
            Place::Ready => Status::plain(State::Ready),
            Place::Timers { .. } => Status::plain(State::Scheduled),
            Place::Suspended { reason, .. } => Status::because(State::Suspended, *reason),
            Place::Lease { .. } => Status::plain(State::Running),
            Place::Done { status, .. } => *status,
        }
    }

    /// The time that the job waits for, or would wait for if it were not held.
    pub(crate) fn due(&self) -> Option<i64> {
        match self {
            Place::Timers { due } => Some(*due),
            Place::Suspended { reason: Reason::Hold, due } => *due,
            Place::Suspended { .. } | Place::Ready | Place::Lease { .. } | Place::Done { .. } => None,
        }
    }
}

/// How a job is set aside.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SuspendedRow<'a> {
    pub(crate) reason: Reason,
    /// When it is woken; of one that is held, when it was scheduled for.
    pub(crate) due: Option<i64>,
    pub(crate) waits: &'a [Wait],
    pub(crate) note: Option<&'a str>,
}

impl SuspendedRow<'_> {
    /// For a reason alone.
    pub(crate) const fn plain(reason: Reason) -> Self {
        SuspendedRow { reason, due: None, waits: &[], note: None }
    }
}

/// The end of a job.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ending<'a> {
    pub(crate) status: Status,
    /// In the words of whoever ended it; empty is none.
    pub(crate) note: &'a str,
    pub(crate) result: Option<&'a [u8]>,
}

/// Primary keys, in the order in which a job that somebody asks about is likely to be there. The last one: index
/// `done_no`.
const IN_READY: &str =
    "SELECT no, line, level, claim, failures, crashes, crashed, flags FROM mainspring_ready WHERE no = ?1";
const IN_TIMERS: &str = "SELECT no, line, priority, claim, failures, crashes, crashed, flags, due
    FROM mainspring_timers WHERE no = ?1";
const IN_SUSPENDED: &str = "SELECT no, line, priority, claim, failures, crashes, crashed, flags, reason, due
    FROM mainspring_suspended WHERE no = ?1";
const IN_LEASE: &str = "SELECT no, line, priority, claim, failures, crashes, crashed, flags, node
    FROM mainspring_lease WHERE no = ?1";
const IN_DONE: &str =
    "SELECT d.no, j.line, d.priority, d.claim, d.failures, d.crashes, 0, d.flags, d.state, d.reason, d.seq
    FROM mainspring_done d JOIN mainspring_jobs j ON j.no = d.no WHERE d.no = ?1 AND d.superseded = 0";

/// Primary key.
const JOB: &str = "SELECT line, priority FROM mainspring_jobs WHERE no = ?1";
/// Primary keys.
const FROM_READY: &str = "DELETE FROM mainspring_ready WHERE no = ?1";
const FROM_TIMERS: &str = "DELETE FROM mainspring_timers WHERE no = ?1";
const FROM_SUSPENDED: &str = "DELETE FROM mainspring_suspended WHERE no = ?1";
const FROM_LEASE: &str = "DELETE FROM mainspring_lease WHERE no = ?1";
/// Primary key. The partial index `done_rare` loses the row by this as well.
const FROM_DONE: &str = "UPDATE mainspring_done SET superseded = 1 WHERE seq = ?1";

/// The primary key refuses a job that is there already.
pub(crate) const INTO_READY: &str = "INSERT INTO mainspring_ready
    (no, line, level, ready_at, claim, failures, crashes, crashed, flags) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
const INTO_TIMERS: &str = "INSERT INTO mainspring_timers
    (no, line, priority, due, claim, failures, crashes, crashed, flags) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
const INTO_SUSPENDED: &str = "INSERT INTO mainspring_suspended
    (no, line, priority, reason, due, claim, failures, crashes, crashed, flags, waits, note)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";
/// An append: the number is the newest.
pub(crate) const INTO_DONE: &str = "INSERT INTO mainspring_done
    (seq, no, claim, state, reason, finished_at, priority, failures, crashes, flags, note, result)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";

/// Primary keys; no index has the flags.
const FLAG_READY: &str = "UPDATE mainspring_ready SET flags = flags | ?2 WHERE no = ?1";
const FLAG_TIMERS: &str = "UPDATE mainspring_timers SET flags = flags | ?2 WHERE no = ?1";
const FLAG_SUSPENDED: &str = "UPDATE mainspring_suspended SET flags = flags | ?2 WHERE no = ?1";
const FLAG_LEASE: &str = "UPDATE mainspring_lease SET flags = flags | ?2 WHERE no = ?1";

/// The card in the first eight columns of a row. Counters are read as what they are elsewhere, so that one that is out of
/// range is found here and not where it is counted up. What cannot be read is the card's damage.
pub(crate) fn read_card(row: &Row<'_>) -> rusqlite::Result<Card> {
    let mut what = None;
    let mut card = Card {
        no: row.get(0)?,
        line: column(row, (1, "line"), &mut what)?.unwrap_or(NO_LINE),
        priority: column(row, (2, "level or priority"), &mut what)?.unwrap_or(u8::MAX),
        claim: column::<u32>(row, (3, "claim"), &mut what)?.unwrap_or_default().into(),
        failures: column::<u16>(row, (4, "failures"), &mut what)?.unwrap_or_default().into(),
        crashes: column::<u16>(row, (5, "crashes"), &mut what)?.unwrap_or_default().into(),
        crashed: column(row, (6, "crashed"), &mut what)?.unwrap_or_default(),
        // Whoever ends the job then looks everywhere for what it may have.
        flags: column(row, (7, "flags"), &mut what)?.unwrap_or(flags::KEY | flags::DEADLINE | flags::LASTING),
        damage: None,
    };
    // How it was claimed is no matter of its next place.
    card.flags &= !flags::AHEAD;
    if let Some(what) = what {
        let raw = [raw(row, 3)?, raw(row, 4)?, raw(row, 5)?, raw(row, 6)?, raw(row, 7)?];
        card.damage = Some(Box::new(Damage { what, raw }));
    }
    Ok(card)
}

/// A line that is none.
const NO_LINE: i64 = -1;

/// A column; `None` and a word about it if it cannot be read.
fn column<T: FromSql>(
    row: &Row<'_>,
    (index, name): (usize, &str),
    damage: &mut Option<String>,
) -> rusqlite::Result<Option<T>> {
    match row.get(index) {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_mistyped(&error) => {
            damage.get_or_insert_with(|| format!("column {name} of its place: {error}"));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// A value as it is; text that is not UTF-8 as its bytes.
pub(crate) fn raw(row: &Row<'_>, index: usize) -> rusqlite::Result<Value> {
    Ok(match row.get_ref(index)? {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => Value::Integer(number),
        ValueRef::Real(number) => Value::Real(number),
        ValueRef::Text(bytes) => match str::from_utf8(bytes) {
            Ok(text) => Value::Text(text.to_owned()),
            Err(_) => Value::Blob(bytes.to_vec()),
        },
        ValueRef::Blob(bytes) => Value::Blob(bytes.to_vec()),
    })
}

/// Takes line and priority from the job itself where its place has none that can be.
pub(crate) fn mend(tx: &Tx<'_>, mut card: Card) -> Result<Card> {
    if tx.state.names.line(card.line).is_ok() && card.priority <= Priority::LOWEST.get() {
        return Ok(card);
    }
    let what = format!("line {} and priority {} of its place", card.line, card.priority);
    let own = |row: &Row<'_>| {
        let line = column(row, (0, "line"), &mut None)?.unwrap_or(NO_LINE);
        Ok((line, column(row, (1, "priority"), &mut None)?.unwrap_or(u8::MAX)))
    };
    let (line, priority) = tx.conn.prepare_cached(JOB)?.query_row([card.no], own)?;
    (card.line, card.priority) = (line, priority.min(Priority::LOWEST.get()));
    if card.damage.is_none() {
        let counts = [card.claim, card.failures, card.crashes, card.crashed, card.flags.into()];
        card.damage = Some(Box::new(Damage { what, raw: counts.map(Value::Integer) }));
    }
    Ok(card)
}

/// Where a job is, with its card. A reason or a state that is none is shown as [`Reason::Unreadable`].
pub(crate) fn locate(tx: &Tx<'_>, no: i64) -> Result<(Card, Place)> {
    let (card, place) = find(tx, no)?;
    Ok((mend(tx, card)?, place))
}

fn find(tx: &Tx<'_>, no: i64) -> Result<(Card, Place)> {
    let conn = tx.conn;
    let ready = conn.prepare_cached(IN_READY)?.query_row([no], read_card).optional()?;
    if let Some(card) = ready {
        // The level is class and priority; the priority is what moves with the card.
        let priority = Level::from_code(card.priority).map_or(u8::MAX, |level| level.priority().get());
        return Ok((Card { priority, ..card }, Place::Ready));
    }
    let lease = |row: &Row<'_>| Ok((read_card(row)?, Place::Lease { node: row.get(8)? }));
    if let Some(found) = conn.prepare_cached(IN_LEASE)?.query_row([no], lease).optional()? {
        return Ok(found);
    }
    let timers = |row: &Row<'_>| Ok((read_card(row)?, Place::Timers { due: row.get(8)? }));
    if let Some(found) = conn.prepare_cached(IN_TIMERS)?.query_row([no], timers).optional()? {
        return Ok(found);
    }
    let suspended = |row: &Row<'_>| {
        let mut bad = None;
        let reason = column(row, (8, "reason"), &mut bad)?.and_then(Reason::from_code);
        let due = column(row, (9, "due"), &mut bad)?.flatten();
        Ok((read_card(row)?, Place::Suspended { reason: reason.unwrap_or(Reason::Unreadable), due }))
    };
    if let Some(found) = conn.prepare_cached(IN_SUSPENDED)?.query_row([no], suspended).optional()? {
        return Ok(found);
    }
    let done = |row: &Row<'_>| {
        Ok((read_card(row)?, row.get::<_, u8>(8)?, row.get::<_, Option<u8>>(9)?, row.get(10)?))
    };
    match conn.prepare_cached(IN_DONE)?.query_row([no], done).optional()? {
        Some((card, state, reason, seq)) => {
            Ok((card, Place::Done { seq, status: read_status(state, reason)? }))
        }
        None => Err(corrupt(format!("job number {no} is in no place"))),
    }
}

/// A status from its two columns.
pub(crate) fn read_status(state: u8, reason: Option<u8>) -> Result<Status> {
    let state = State::from_code(state).ok_or_else(|| corrupt(format!("{state} is no state")))?;
    let reason = match reason {
        None => None,
        Some(code) => Some(Reason::from_code(code).ok_or_else(|| corrupt(format!("{code} is no reason")))?),
    };
    Ok(Status { state, reason })
}

/// Counts a job of a line. Of one whose line is none nobody knows where it was counted; it must stop nobody.
pub(crate) fn count(tx: &mut Tx<'_>, line: i64, state: State, by: i64) {
    if let Some(queue) = tx.state.names.line(line).ok().map(|line| line.queue) {
        tx.count(queue, state, by);
    }
}

/// Takes a job out of where it was found in this transaction.
pub(crate) fn take(tx: &mut Tx<'_>, card: &Card, place: &Place) -> Result<()> {
    let (sql, key) = match place {
        Place::Ready => (FROM_READY, card.no),
        Place::Timers { .. } => (FROM_TIMERS, card.no),
        Place::Suspended { .. } => (FROM_SUSPENDED, card.no),
        Place::Lease { .. } => (FROM_LEASE, card.no),
        Place::Done { seq, .. } => (FROM_DONE, *seq),
    };
    if tx.conn.prepare_cached(sql)?.execute([key])? != 1 {
        return Err(corrupt(format!("job number {} is not where it was a moment ago", card.no)));
    }
    count(tx, card.line, place.status().state, -1);
    Ok(())
}

/// Puts a job into `ready`.
pub(crate) fn put_ready(tx: &mut Tx<'_>, card: &Card, class: Class) -> Result<()> {
    if let Some(damage) = &card.damage {
        return put_unreadable(tx, card, &damage.what);
    }
    let level = Level::new(class, priority(card)?);
    tx.conn.prepare_cached(INTO_READY)?.execute(params![
        card.no,
        card.line,
        level.code(),
        tx.micros(),
        card.claim,
        card.failures,
        card.crashes,
        card.crashed,
        card.flags
    ])?;
    let line = tx.state.names.line(card.line)?;
    tx.hints.ready(&line.queue_name);
    let queue = line.queue;
    tx.count(queue, State::Ready, 1);
    Ok(())
}

/// The class of a job that was claimed before and comes back.
pub(crate) fn returned(card: &Card) -> Class {
    if card.crashes >= i64::from(bounds::SUSPECT_CRASHES) { Class::Suspect } else { Class::Returned }
}

/// The class of a job whose node was lost.
pub(crate) fn lost(card: &Card) -> Class {
    if card.crashes >= i64::from(bounds::SUSPECT_CRASHES) { Class::Suspect } else { Class::Lost }
}

/// Puts a job into `timers`.
pub(crate) fn put_timers(tx: &mut Tx<'_>, card: &Card, due: i64) -> Result<()> {
    if let Some(damage) = &card.damage {
        return put_unreadable(tx, card, &damage.what);
    }
    tx.conn.prepare_cached(INTO_TIMERS)?.execute(params![
        card.no,
        card.line,
        card.priority,
        due,
        card.claim,
        card.failures,
        card.crashes,
        card.crashed,
        card.flags
    ])?;
    tx.hints.due(Timestamp::from_micros(due));
    let queue = tx.state.names.line(card.line)?.queue;
    tx.count(queue, State::Scheduled, 1);
    Ok(())
}

/// Puts a job into `suspended`.
pub(crate) fn put_suspended(tx: &mut Tx<'_>, card: &Card, aside: &SuspendedRow<'_>) -> Result<()> {
    if let Some(damage) = &card.damage {
        return put_unreadable(tx, card, &damage.what);
    }
    tx.conn.prepare_cached(INTO_SUSPENDED)?.execute(params![
        card.no,
        card.line,
        card.priority,
        aside.reason.code(),
        aside.due,
        card.claim,
        card.failures,
        card.crashes,
        card.crashed,
        card.flags,
        inbox::waits_text(aside.waits)?,
        aside.note
    ])?;
    if let Some(due) = aside.due.filter(|_| aside.reason.awaits()) {
        tx.hints.due(Timestamp::from_micros(due));
    }
    let queue = tx.state.names.line(card.line)?.queue;
    tx.count(queue, State::Suspended, 1);
    Ok(())
}

/// Sets a job aside that cannot be read. What is damaged stays as it is, for whoever mends it.
pub(crate) fn put_unreadable(tx: &mut Tx<'_>, card: &Card, what: &str) -> Result<()> {
    let counts = [card.claim, card.failures, card.crashes, card.crashed, card.flags.into()];
    let [claim, failures, crashes, crashed, flags] = match &card.damage {
        Some(damage) => damage.raw.clone(),
        None => counts.map(Value::Integer),
    };
    let note = cut(what.to_owned(), bounds::WHY_BYTES);
    tx.conn.prepare_cached(INTO_SUSPENDED)?.execute(params![
        card.no,
        card.line,
        card.priority,
        Reason::Unreadable.code(),
        None::<i64>,
        claim,
        failures,
        crashes,
        crashed,
        flags,
        None::<&str>,
        note
    ])?;
    // Others may wait behind it.
    if let Ok(line) = tx.state.names.line(card.line) {
        tx.hints.ready(&line.queue_name);
    }
    count(tx, card.line, State::Suspended, 1);
    tracing::error!(row = card.no, %what, "a job cannot be read and is set aside as unreadable");
    Ok(())
}

/// Notes something that a job has from now on, where it is.
pub(crate) fn flag(tx: &Tx<'_>, card: &Card, place: &Place, flag: i16) -> Result<()> {
    let sql = match place {
        _ if card.flags & flag == flag => return Ok(()),
        Place::Ready => FLAG_READY,
        Place::Timers { .. } => FLAG_TIMERS,
        Place::Suspended { .. } => FLAG_SUSPENDED,
        Place::Lease { .. } => FLAG_LEASE,
        // It carries no flags; they are found again when it is run again.
        Place::Done { .. } => return Ok(()),
    };
    tx.conn.prepare_cached(sql)?.execute(params![card.no, flag])?;
    Ok(())
}

/// Puts a job into `done`.
pub(crate) fn put_done(tx: &mut Tx<'_>, card: &Card, ending: Ending<'_>) -> Result<()> {
    into_done(tx, card, ending)?;
    if card.flags & flags::TOLD != 0 {
        family::close(tx, card, ending)?;
    }
    Ok(())
}

/// Puts a job into `done` without a word to its family.
pub(crate) fn into_done(tx: &mut Tx<'_>, card: &Card, ending: Ending<'_>) -> Result<()> {
    let Ending { status, note, result } = ending;
    tx.state.numbers.seq += 1;
    tx.conn.prepare_cached(INTO_DONE)?.execute(params![
        tx.state.numbers.seq,
        card.no,
        card.claim,
        status.state.code(),
        status.reason.map(Reason::code),
        tx.micros(),
        card.priority,
        card.failures,
        card.crashes,
        card.flags & flags::LASTING,
        (!note.is_empty()).then_some(note),
        result
    ])?;
    ended(tx, card)?;
    count(tx, card.line, status.state, 1);
    Ok(())
}

/// Releases what a job holds until its end.
pub(crate) fn ended(tx: &Tx<'_>, card: &Card) -> Result<()> {
    if card.flags & flags::KEY != 0 {
        unique_key::release(tx.conn, card.no, tx.micros())?;
    }
    if card.flags & flags::DEADLINE != 0 {
        deadline::clear(tx.conn, card.no)?;
    }
    Ok(())
}

fn priority(card: &Card) -> Result<Priority> {
    Priority::new(card.priority).map_err(|_| corrupt(format!("{} is no priority", card.priority)))
}
