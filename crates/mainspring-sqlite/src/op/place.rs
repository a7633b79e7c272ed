//! Places: where a job is, and what its place carries of it, its [`Card`]. How it moves: [`moves`](super::moves).

use mainspring_core::job::{Priority, Reason, State, Status};
use mainspring_core::store::{Level, flags};
use rusqlite::types::{FromSql, Value, ValueRef};
use rusqlite::{OptionalExtension, Row, params};

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
    /// The claim that holds it, if it is in `lease`.
    pub(crate) began: Option<Began>,
    /// What of it could not be read.
    pub(crate) damage: Option<Box<Damage>>,
}

/// When a claim began, and whose it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Began {
    /// `None` if that cannot be read.
    pub(crate) at: Option<i64>,
    pub(crate) node: i64,
}

/// What of a card could not be read. Instead, its columns say what does no harm while the job ends.
#[derive(Debug, Clone)]
pub(crate) struct Damage {
    pub(crate) what: String,
    /// Claim, failures, crashes, crashed and flags as they are stored.
    pub(super) raw: [Value; 5],
}

/// Where a job is.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    Ready,
    Limited { group: i64 },
    Timers { due: i64 },
    Suspended { reason: Reason, due: Option<i64> },
    Lease { node: i64 },
    Done { seq: i64, status: Status },
}

impl Place {
    /// The status of a job in this place.
    pub(crate) fn status(&self) -> Status {
        match self {
            Place::Ready | Place::Limited { .. } => Status::plain(State::Ready),
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
            Place::Suspended { .. }
            | Place::Ready
            | Place::Limited { .. }
            | Place::Lease { .. }
            | Place::Done { .. } => None,
        }
    }
}

/// Claims, as [`read_leased`] reads them.
macro_rules! leased {
    ($which:literal) => {
        concat!(
            "SELECT no, line, priority, claim, failures, crashes, crashed, flags, claimed_at, node, cancel
    FROM mainspring_lease WHERE ",
            $which
        )
    };
}
pub(crate) use leased;

/// Primary keys, in the order in which a job that somebody asks about is likely to be there; of `done`: index `done_no`. Jobs without
/// limits are found before anybody looks into `limited`.
const IN_READY: &str =
    "SELECT no, line, level, claim, failures, crashes, crashed, flags FROM mainspring_ready WHERE no = ?1";
const IN_TIMERS: &str = "SELECT no, line, priority, claim, failures, crashes, crashed, flags, due
    FROM mainspring_timers WHERE no = ?1";
const IN_SUSPENDED: &str = "SELECT no, line, priority, claim, failures, crashes, crashed, flags, reason, due
    FROM mainspring_suspended WHERE no = ?1";
const IN_LEASE: &str = leased!("no = ?1");
const IN_DONE: &str =
    "SELECT d.no, j.line, d.priority, d.claim, d.failures, d.crashes, 0, d.flags, d.state, d.reason, d.seq
    FROM mainspring_done d JOIN mainspring_jobs j ON j.no = d.no WHERE d.no = ?1 AND d.superseded = 0";
const IN_LIMITED: &str = "SELECT no, line, level, claim, failures, crashes, crashed, flags, limit_group
    FROM mainspring_limited WHERE no = ?1";

/// Primary key.
const JOB: &str = "SELECT line, priority FROM mainspring_jobs WHERE no = ?1";
/// Primary keys; no index has the flags.
const FLAG_READY: &str = "UPDATE mainspring_ready SET flags = flags | ?2 WHERE no = ?1";
const FLAG_LIMITED: &str = "UPDATE mainspring_limited SET flags = flags | ?2 WHERE no = ?1";
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
        flags: column(row, (7, "flags"), &mut what)?.unwrap_or(EVERYTHING),
        began: None,
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

/// The card of a claim, and why it is to be cancelled, if it is. Without the words, if they cannot be read.
pub(crate) fn read_leased(row: &Row<'_>) -> rusqlite::Result<(Card, Option<String>)> {
    let mut card = read_card(row)?;
    card.began = Some(Began { at: column(row, (8, "claimed_at"), &mut None)?, node: row.get(9)? });
    let cancel = match row.get_ref(10)? {
        ValueRef::Null => None,
        value => Some(value.as_str().unwrap_or_default().to_owned()),
    };
    Ok((card, cancel))
}

/// The flags of a job that may have anything.
const EVERYTHING: i16 = flags::HELD_BY_JOB | flags::HELD_BY_CLAIM | flags::LASTING;

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

/// Where a job is, with its card. A reason or an unknown state is shown as [`Reason::Unreadable`].
pub(crate) fn locate(tx: &Tx<'_>, no: i64) -> Result<(Card, Place)> {
    let (card, place) = find(tx, no)?;
    Ok((mend(tx, card)?, place))
}

fn find(tx: &Tx<'_>, no: i64) -> Result<(Card, Place)> {
    let conn = tx.conn;
    let ready = conn.prepare_cached(IN_READY)?.query_row([no], read_card).optional()?;
    // The level is class and priority; the priority is what moves with the card.
    let by_level = |card: Card| {
        let priority = Level::from_code(card.priority).map_or(u8::MAX, |level| level.priority().get());
        Card { priority, ..card }
    };
    if let Some(card) = ready {
        return Ok((by_level(card), Place::Ready));
    }
    let lease = |row: &Row<'_>| Ok((read_leased(row)?.0, Place::Lease { node: row.get(9)? }));
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
    if let Some((mut card, state, reason, seq)) =
        conn.prepare_cached(IN_DONE)?.query_row([no], done).optional()?
    {
        // An end forgets that a job has limits. Whoever runs it again looks whether it has.
        card.flags |= flags::LIMITED;
        return Ok((card, Place::Done { seq, status: read_status(state, reason)? }));
    }
    let limited = |row: &Row<'_>| {
        Ok((
            read_card(row)?,
            Place::Limited { group: column(row, (8, "limit_group"), &mut None)?.unwrap_or(-1) },
        ))
    };
    match conn.prepare_cached(IN_LIMITED)?.query_row([no], limited).optional()? {
        Some((card, place)) => Ok((by_level(card), place)),
        None => Err(corrupt(format!("job number {no} is in no place"))),
    }
}

/// A status from its two columns.
pub(crate) fn read_status(state: u8, reason: Option<u8>) -> Result<Status> {
    let state = State::from_code(state).ok_or_else(|| corrupt(format!("{state} is not a state")))?;
    let reason = match reason {
        None => None,
        Some(code) => {
            Some(Reason::from_code(code).ok_or_else(|| corrupt(format!("{code} is not a reason")))?)
        }
    };
    Ok(Status { state, reason })
}

/// Notes something that a job has from now on, where it is.
pub(crate) fn flag(tx: &Tx<'_>, card: &Card, place: &Place, flag: i16) -> Result<()> {
    let sql = match place {
        _ if card.flags & flag == flag => return Ok(()),
        Place::Ready => FLAG_READY,
        Place::Limited { .. } => FLAG_LIMITED,
        Place::Timers { .. } => FLAG_TIMERS,
        Place::Suspended { .. } => FLAG_SUSPENDED,
        Place::Lease { .. } => FLAG_LEASE,
        // It carries no flags; they are found again when it is run again.
        Place::Done { .. } => return Ok(()),
    };
    tx.conn.prepare_cached(sql)?.execute(params![card.no, flag])?;
    Ok(())
}
