//! Moves: every statement that takes a job out of a place or puts it into one.
//!
//! A move leaves one place and enters another in the same transaction. A job by itself goes through [`leave`] and one of the
//! `enter_…` functions, or [`end`]; jobs that are enqueued, claimed or ended by the hundred have statements for many, made of
//! the same fragments. What a job or its claim holds is released here alone: what the job holds by [`append`], which every
//! end goes through, and what its claim holds by [`leave_lease`].
//!
//! # Invariants
//! - Functions that move one job also count it, so counts follow places; what moves many says that its caller counts.
//! - A row leaves `lease` by [`leave_lease`] or, if its claim can hold nothing, by [`leave_lease_plain`].
//! - Whoever puts a job into `done` releases its key and its deadline, and tells its family.

use mainspring_core::bounds;
use mainspring_core::job::{Priority, Reason, State, Status, cut};
use mainspring_core::journal::Wait;
use mainspring_core::named;
use mainspring_core::store::{Class, Level, flags};
use mainspring_core::time::Timestamp;
use rusqlite::params;
use rusqlite::types::Value;

use super::limits::place::Waits;
use super::place::{Card, Place};
use super::{deadline, family, inbox, limits, unique_key};
use crate::error::{Result, corrupt};
use crate::writer::Tx;

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

/// Primary keys.
pub(crate) const FROM_READY: &str = "DELETE FROM mainspring_ready WHERE no = ?1";
const FROM_LIMITED: &str = "DELETE FROM mainspring_limited WHERE no = ?1";
const FROM_TIMERS: &str = "DELETE FROM mainspring_timers WHERE no = ?1";
const FROM_SUSPENDED: &str = "DELETE FROM mainspring_suspended WHERE no = ?1";
pub(crate) const FROM_LEASE: &str = "DELETE FROM mainspring_lease WHERE no = ?1";
/// Primary key. The partial index `done_rare` loses the row by this as well.
const FROM_DONE: &str = "UPDATE mainspring_done SET superseded = 1 WHERE seq = ?1";

/// The primary key refuses a job that is there already.
pub(crate) const INTO_READY: &str = "INSERT INTO mainspring_ready
    (no, line, level, ready_at, claim, failures, crashes, crashed, flags) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
pub(crate) const INTO_LIMITED: &str = "INSERT INTO mainspring_limited
    (no, limit_group, line, level, ready_at, claim, failures, crashes, crashed, flags)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
pub(crate) const INTO_TIMERS: &str = "INSERT INTO mainspring_timers
    (no, line, priority, due, claim, failures, crashes, crashed, flags) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
const INTO_SUSPENDED: &str = "INSERT INTO mainspring_suspended
    (no, line, priority, reason, due, claim, failures, crashes, crashed, flags, waits, note)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";
/// An append: the number is the newest.
pub(crate) const INTO_DONE: &str = "INSERT INTO mainspring_done
    (seq, no, claim, state, reason, finished_at, priority, failures, crashes, flags, claimed_at, node, note, result)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)";

/// From a place to `lease`, under a claim number that is one higher. Node, batch and time: ?1 to ?3; then which flags the claim
/// has besides, which are claimed ahead, and which are claimed. What a job kept while it waited is its claim's from then on. An append to `lease`, mostly;
/// its primary key refuses a job that is claimed already.
macro_rules! into_lease {
    ($place:literal, $flags:literal, $ahead:literal, $which:literal) => {
        named!(concat!(
            "INSERT INTO mainspring_lease
        (no, claim, node, batch, claimed_at, line, priority, failures, crashes, crashed, flags)
    SELECT no, claim + 1, ?1, ?2, ?3, line, level & {level.priority_bits}, failures, crashes, crashed,
        (flags & ~({flag.ahead} | {flag.keeps}))",
            $flags,
            " | CASE WHEN ",
            $ahead,
            " THEN {flag.ahead} ELSE 0 END
    FROM mainspring_",
            $place,
            " WHERE ",
            $which
        ))
    };
}
/// Index `ready_claim`: the first jobs of a line and level. The transaction excludes other writers, so this and the delete
/// meet the rows that were read before. What lies behind ?7 and ?8 is claimed ahead.
pub(crate) const HOLD_FIRST: &str = into_lease!(
    "ready",
    "",
    "(ready_at, no) > (?7, ?8)",
    "line = ?4 AND level = ?5 ORDER BY ready_at, no LIMIT ?6"
);
/// The same of a line that counts in totals.
pub(crate) const HOLD_FIRST_COUNTED: &str = into_lease!(
    "ready",
    " | {flag.limited}",
    "(ready_at, no) > (?7, ?8)",
    "line = ?4 AND level = ?5 ORDER BY ready_at, no LIMIT ?6"
);
pub(crate) const TAKE_FIRST: &str = "DELETE FROM mainspring_ready WHERE no IN (
    SELECT no FROM mainspring_ready WHERE line = ?1 AND level = ?2 ORDER BY ready_at, no LIMIT ?3)";
/// Primary key: one job.
pub(crate) const HOLD_ONE: &str = into_lease!("ready", "", "?5", "no = ?4");

/// Index `limited_claim`: the first jobs of a group and level. All of them are claimed ahead, or none.
pub(crate) const HOLD_LIMITED: &str = into_lease!(
    "limited",
    " | {flag.limited}",
    "?8",
    "line = ?4 AND limit_group = ?5 AND level = ?6 ORDER BY ready_at, no LIMIT ?7"
);
/// The same: these claims hold the units of their group.
pub(crate) const INTO_HOLDERS: &str = "INSERT INTO mainspring_limit_holders (no, limit_group)
    SELECT no, limit_group FROM mainspring_limited
    WHERE line = ?1 AND limit_group = ?2 AND level = ?3 ORDER BY ready_at, no LIMIT ?4";
pub(crate) const TAKE_LIMITED: &str = "DELETE FROM mainspring_limited WHERE no IN (
    SELECT no FROM mainspring_limited
    WHERE line = ?1 AND limit_group = ?2 AND level = ?3 ORDER BY ready_at, no LIMIT ?4)";

/// Primary key, a range; appends, with sequence numbers that follow each other as the jobs' numbers do.
pub(crate) const PLAIN_INTO_DONE: &str = named!(
    "INSERT INTO mainspring_done
        (seq, no, claim, state, finished_at, priority, failures, crashes, claimed_at, node)
    SELECT no + ?3, no, claim, {state.succeeded}, ?4, priority, failures, 0, claimed_at, node
    FROM mainspring_lease WHERE no BETWEEN ?1 AND ?2 ORDER BY no"
);
pub(crate) const PLAIN_FROM_LEASE: &str = "DELETE FROM mainspring_lease WHERE no BETWEEN ?1 AND ?2";

/// Counts a job of a line. Of one whose line is none nobody knows where it was counted; it must stop nobody.
pub(crate) fn count(tx: &mut Tx<'_>, line: i64, state: State, by: i64) {
    if let Some(queue) = tx.state.names.line(line).ok().map(|line| line.queue) {
        tx.count(queue, state, by);
    }
}

/// Takes a job out of where it was found in this transaction.
pub(crate) fn leave(tx: &mut Tx<'_>, card: &Card, place: &Place) -> Result<()> {
    match place {
        Place::Ready => remove(tx, FROM_READY, card, card.no)?,
        Place::Limited { .. } => remove(tx, FROM_LIMITED, card, card.no)?,
        Place::Timers { .. } => remove(tx, FROM_TIMERS, card, card.no)?,
        Place::Suspended { .. } => remove(tx, FROM_SUSPENDED, card, card.no)?,
        Place::Lease { .. } => leave_lease(tx, &mut card.clone(), false)?,
        Place::Done { seq, .. } => remove(tx, FROM_DONE, card, *seq)?,
    }
    count(tx, card.line, place.status().state, -1);
    Ok(())
}

// What a claim holds is released by whatever deletes its row from `lease`: here.
const _: () = assert!(flags::HELD_BY_CLAIM == flags::LIMITED, "`leave_lease` releases what a claim holds");

/// Takes a job out of `lease`, where it was found in this transaction, and releases what its claim holds; `keeps`: but the units of
/// its limits. The caller counts.
pub(crate) fn leave_lease(tx: &mut Tx<'_>, card: &mut Card, keeps: bool) -> Result<()> {
    remove(tx, FROM_LEASE, card, card.no)?;
    if card.flags & flags::LIMITED != 0 {
        limits::place::leave_lease(tx, card, keeps)?;
    }
    Ok(())
}

fn remove(tx: &Tx<'_>, sql: &str, card: &Card, key: i64) -> Result<()> {
    if tx.conn.prepare_cached(sql)?.execute([key])? != 1 {
        return Err(corrupt(format!("job number {} is not where it was a moment ago", card.no)));
    }
    Ok(())
}

/// Ends a stretch of claimed jobs that have no flags, and so hold nothing, as succeeded. The caller counts.
pub(crate) fn end_plain(tx: &mut Tx<'_>, from: i64, to: i64) -> Result<()> {
    let offset = tx.state.numbers.seq + 1 - from;
    tx.state.numbers.seq += to + 1 - from;
    tx.conn.prepare_cached(PLAIN_INTO_DONE)?.execute([from, to, offset, tx.micros()])?;
    tx.conn.prepare_cached(PLAIN_FROM_LEASE)?.execute([from, to])?;
    Ok(())
}

/// Puts a job into `ready`, or into `limited` if it takes room at limits.
pub(crate) fn enter_ready(tx: &mut Tx<'_>, card: &Card, class: Class) -> Result<()> {
    if let Some(damage) = &card.damage {
        return set_aside(tx, card, &damage.what);
    }
    let level = Level::new(class, priority(card)?).code();
    let waits = if card.flags & flags::LIMITED == 0 {
        Waits::Plain(card.flags)
    } else {
        limits::place::waits(tx, card)?
    };
    match waits {
        Waits::Unreadable(why) => return set_aside(tx, card, &why),
        Waits::Plain(flags) => tx.conn.prepare_cached(INTO_READY)?.execute(params![
            card.no,
            card.line,
            level,
            tx.micros(),
            card.claim,
            card.failures,
            card.crashes,
            card.crashed,
            flags
        ])?,
        Waits::Limited(group) => {
            limits::counters::give_turn(tx, card.line, level, group)?;
            tx.conn.prepare_cached(INTO_LIMITED)?.execute(params![
                card.no,
                group,
                card.line,
                level,
                tx.micros(),
                card.claim,
                card.failures,
                card.crashes,
                card.crashed,
                card.flags
            ])?
        }
    };
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
pub(crate) fn enter_timers(tx: &mut Tx<'_>, card: &Card, due: i64) -> Result<()> {
    if let Some(damage) = &card.damage {
        return set_aside(tx, card, &damage.what);
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
pub(crate) fn enter_suspended(tx: &mut Tx<'_>, card: &Card, aside: &SuspendedRow<'_>) -> Result<()> {
    if let Some(damage) = &card.damage {
        return set_aside(tx, card, &damage.what);
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
pub(crate) fn set_aside(tx: &mut Tx<'_>, card: &Card, what: &str) -> Result<()> {
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
    tracing::error!(job_number = card.no, %what, "unreadable job set aside");
    Ok(())
}

/// Ends a job that was taken out of its place, and tells its family.
pub(crate) fn end(tx: &mut Tx<'_>, card: &Card, ending: Ending<'_>) -> Result<()> {
    end_quietly(tx, card, ending)?;
    if card.flags & flags::TOLD != 0 {
        family::close(tx, card, ending)?;
    }
    Ok(())
}

/// Ends a job that was taken out of its place, without a word to its family.
pub(crate) fn end_quietly(tx: &mut Tx<'_>, card: &Card, ending: Ending<'_>) -> Result<()> {
    append(tx, card, ending)?;
    count(tx, card.line, ending.status.state, 1);
    Ok(())
}

// What a job holds is released by its end: here. Each flag of what it holds has its branch below.
const _: () = assert!(
    flags::HELD_BY_JOB == flags::KEY | flags::DEADLINE | flags::KEEPS,
    "`append` releases what a job holds"
);

/// Puts a job into `done`, and releases what it held until its end. The caller counts.
pub(crate) fn append(tx: &mut Tx<'_>, card: &Card, ending: Ending<'_>) -> Result<()> {
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
        card.began.and_then(|began| began.at),
        card.began.map(|began| began.node),
        (!note.is_empty()).then_some(note),
        result
    ])?;
    if card.flags & flags::KEY != 0 {
        unique_key::release(tx.conn, card.no, tx.micros())?;
    }
    if card.flags & flags::DEADLINE != 0 {
        deadline::clear(tx.conn, card.no)?;
    }
    if card.flags & flags::KEEPS != 0 {
        limits::place::give_back_kept(tx, card.no)?;
    }
    Ok(())
}

fn priority(card: &Card) -> Result<Priority> {
    Priority::new(card.priority).map_err(|_| corrupt(format!("{} is not a priority", card.priority)))
}
