//! One job as people see it.

use mainspring_core::id::{JobId, NodeNo};
use mainspring_core::job::{
    ErrorEntry, FaultKind, Options, Priority, Progress, Reason, Record, State, Status, Summary, Unreadable,
};
use mainspring_core::name::{Key, Kind, QueueName};
use mainspring_core::store::{Level, flags};
use mainspring_core::time::Timestamp;
use rusqlite::types::FromSql;
use rusqlite::{Connection, OptionalExtension, Row};

use super::Reader;
use crate::error::{Result, corrupt, legible};
use crate::names::Names;
use crate::op::inbox::read_waits;
use crate::op::place::read_status;

/// Unique index of ids.
const BY_ID: &str = "SELECT no, input FROM mainspring_jobs WHERE id = ?1";
/// Primary key.
const JOB: &str = "SELECT id, line, created_at, deadline, options FROM mainspring_jobs WHERE no = ?1";
/// Primary keys of the places; the last one: index `done_no`. Columns are those of [`Standing`].
const READY: &str = "SELECT level, claim, failures, crashes, flags FROM mainspring_ready WHERE no = ?1";
const LIMITED: &str = "SELECT level, claim, failures, crashes, flags FROM mainspring_limited WHERE no = ?1";
const TIMERS: &str =
    "SELECT priority, claim, failures, crashes, flags, due FROM mainspring_timers WHERE no = ?1";
const SUSPENDED: &str =
    "SELECT priority, claim, failures, crashes, flags, due, reason FROM mainspring_suspended WHERE no = ?1";
const LEASE: &str =
    "SELECT priority, claim, failures, crashes, flags, claimed_at, node, cancel IS NOT NULL, stuck
    FROM mainspring_lease WHERE no = ?1";
const DONE: &str =
    "SELECT priority, claim, failures, crashes, 0, finished_at, state, reason, claimed_at, node
    FROM mainspring_done WHERE no = ?1 AND superseded = 0";
/// Index `done_no`.
const ENDING: &str = "SELECT result, note FROM mainspring_done WHERE no = ?1 AND superseded = 0";
/// Primary key.
const ASIDE: &str = "SELECT waits, note FROM mainspring_suspended WHERE no = ?1";
/// Primary keys.
const ERRORS: &str = "SELECT claim, at, kind, message, claimed_at, node
    FROM mainspring_errors WHERE no = ?1 ORDER BY claim";
/// The index of keys, over all entries of the job: asked for by people alone.
const LAST: &str = "SELECT key, at FROM mainspring_steps WHERE no = ?1 ORDER BY seq DESC LIMIT 1";
const PROGRESS: &str = "SELECT done, total, note FROM mainspring_progress WHERE no = ?1";

/// What a place tells of a job.
struct Standing {
    status: Status,
    priority: Priority,
    claim: u32,
    failures: u16,
    crashes: u16,
    flags: i16,
    run_at: Option<Timestamp>,
    claimed_at: Option<Timestamp>,
    finished_at: Option<Timestamp>,
    node: Option<NodeNo>,
    cancelling: bool,
    /// 1 stuck, 2 foreign.
    stuck: i64,
    damage: Damage,
}

/// What of a job cannot be read: the first of it, in words.
#[derive(Default)]
struct Damage(Unreadable);

impl Damage {
    /// What was read; or nothing, and a note of it.
    fn note<T>(&mut self, what: &str, read: Result<T>) -> Result<Option<T>> {
        Ok(self.0.note(what, legible(read)?))
    }

    /// A column, or what it would be if it had never been set.
    fn column<T: FromSql + Default>(&mut self, row: &Row<'_>, (index, name): (usize, &str)) -> Result<T> {
        Ok(self.note(name, row.get(index).map_err(Into::into))?.unwrap_or_default())
    }

    fn time(&mut self, row: &Row<'_>, column: (usize, &str)) -> Result<Option<Timestamp>> {
        Ok(self.column::<Option<i64>>(row, column)?.map(Timestamp::from_micros))
    }
}

impl Standing {
    /// From the columns that all places have.
    fn read(row: &Row<'_>, status: Status) -> Result<Self> {
        let mut damage = Damage::default();
        let code = row.get::<_, u8>(0).map_err(Into::into);
        let read = code.and_then(|code| match status.state {
            State::Ready => Ok(Level::from_code(code)
                .ok_or_else(|| corrupt(format!("{code} is not a level")))?
                .priority()),
            _ => Priority::new(code).map_err(|_| corrupt(format!("{code} is not a priority"))),
        });
        let name = if status.state == State::Ready { "level" } else { "priority" };
        Ok(Standing {
            status,
            priority: damage.note(name, read)?.unwrap_or_default(),
            claim: damage.column(row, (1, "claim"))?,
            failures: damage.column(row, (2, "failures"))?,
            crashes: damage.column(row, (3, "crashes"))?,
            flags: damage.column(row, (4, "flags"))?,
            run_at: None,
            claimed_at: None,
            finished_at: None,
            node: None,
            cancelling: false,
            stuck: 0,
            damage,
        })
    }
}

/// Everything known of a job.
pub(crate) fn get(reader: &mut Reader, id: JobId) -> Result<Option<Record>> {
    let conn = &reader.conn;
    let mut damage = Damage::default();
    let job = row_of(conn, BY_ID, id.as_bytes(), |row| {
        Ok((row.get::<_, i64>(0)?, damage.column(row, (1, "input"))?))
    })?;
    let Some((no, input)) = job else { return Ok(None) };
    let mut summary = summary(conn, &reader.names, no)?;
    let ending = row_of(conn, ENDING, no, |row| {
        Ok((damage.column(row, (0, "result"))?, damage.column(row, (1, "note"))?))
    })?;
    let (result, note): (Option<Vec<u8>>, Option<String>) = ending.unwrap_or_default();
    let aside = row_of(conn, ASIDE, no, |row| {
        let text = row.get::<_, Option<String>>(0).map_err(Into::into);
        let waits = damage.note("waits", text.and_then(|text| read_waits(text.as_deref())))?;
        Ok((waits.unwrap_or_default(), damage.column(row, (1, "note"))?))
    })?;
    let (waits, note) = aside.unwrap_or((Vec::new(), note));
    let progress = damage.note("progress", progress(conn, no))?.flatten();
    let errors = damage.note("errors", errors(conn, no))?.unwrap_or_default();
    let last = if summary.foreign { damage.note("steps", last(conn, no))?.flatten() } else { None };
    summary.unreadable = summary.unreadable.or(damage.0.what);
    Ok(Some(Record { summary, input, result, note, errors, progress, waits, last }))
}

/// What is in a row, if there is one.
fn row_of<T>(
    conn: &Connection,
    sql: &str,
    key: impl rusqlite::ToSql,
    read: impl FnOnce(&Row<'_>) -> Result<T>,
) -> Result<Option<T>> {
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query([key])?;
    rows.next()?.map(read).transpose()
}

/// What a handler last said of its progress.
pub(super) fn progress(conn: &Connection, no: i64) -> Result<Option<Progress>> {
    let progress = |row: &Row<'_>| {
        let count = |n: i64| u64::try_from(n).unwrap_or(0);
        Ok(Progress { done: count(row.get(0)?), total: count(row.get(1)?), note: row.get(2)? })
    };
    Ok(conn.prepare_cached(PROGRESS)?.query_row([no], progress).optional()?)
}

/// What a job recorded last, and when.
fn last(conn: &Connection, no: i64) -> Result<Option<(Key, Timestamp)>> {
    let last: Option<(String, i64)> =
        conn.prepare_cached(LAST)?.query_row([no], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    let named = |(key, at): (String, i64)| Ok((Key::new(key)?, Timestamp::from_micros(at)));
    last.map(named).transpose().map_err(|error: mainspring_core::Error| corrupt(error.to_string()))
}

fn errors(conn: &Connection, no: i64) -> Result<Vec<ErrorEntry>> {
    let mut statement = conn.prepare_cached(ERRORS)?;
    let mut rows = statement.query([no])?;
    let mut errors = Vec::new();
    while let Some(row) = rows.next()? {
        let kind = FaultKind::from_code(row.get(2)?).ok_or_else(|| corrupt("an unknown kind of fault"))?;
        let at = Timestamp::from_micros(row.get(1)?);
        let claimed_at = Timestamp::from_micros(row.get(4)?);
        let (claim, message, node) = (row.get(0)?, row.get(3)?, NodeNo(row.get(5)?));
        errors.push(ErrorEntry { claim, claimed_at, node, at, kind, message });
    }
    Ok(errors)
}

/// What a job is, by its number, which must exist.
pub(super) fn status(conn: &Connection, no: i64) -> Result<Status> {
    Ok(standing(conn, no)?.status)
}

/// A job by its number, which must exist. What of it cannot be read is shown as if it had never been set.
pub(super) fn summary(conn: &Connection, names: &Names, no: i64) -> Result<Summary> {
    let standing = standing(conn, no)?;
    let mut damage = standing.damage;
    let mut statement = conn.prepare_cached(JOB)?;
    let mut rows = statement.query([no])?;
    let row = rows.next()?.ok_or_else(|| corrupt(format!("job number {no} is missing")))?;
    let id = damage.note(&format!("id of job number {no}"), row.get(0).map_err(Into::into))?;
    let number = row.get(1).map_err(Into::into);
    let line = damage.note("line", number.and_then(|number| names.line(number)))?;
    let (kind, queue) = match line {
        Some(line) => (line.kind_name.clone(), line.queue_name.clone()),
        None => (unknown(Kind::new)?, unknown(QueueName::new)?),
    };
    let deadline = damage.time(row, (3, "deadline"))?;
    let text = row.get::<_, Option<String>>(4).map_err(Into::into);
    let options = text.and_then(|text| match text {
        None => Ok(Options::default()),
        Some(text) => serde_json::from_str(&text).map_err(|error| corrupt(error.to_string())),
    });
    Ok(Summary {
        id: JobId::from_bytes(id.unwrap_or_default()),
        kind,
        queue,
        priority: standing.priority,
        status: standing.status,
        claim: standing.claim,
        failures: standing.failures,
        crashes: standing.crashes,
        created_at: damage.time(row, (2, "created_at"))?.unwrap_or(Timestamp::EPOCH),
        run_at: standing.run_at,
        claimed_at: standing.claimed_at,
        finished_at: standing.finished_at,
        deadline: deadline.filter(|_| standing.flags & flags::DEADLINE != 0),
        node: standing.node,
        cancelling: standing.cancelling,
        stuck: standing.stuck == 1,
        foreign: standing.stuck == 2,
        options: damage.note("options", options)?.unwrap_or_default(),
        unreadable: damage.0.what,
    })
}

/// What stands for a name that cannot be read.
fn unknown<T>(name: impl FnOnce(&'static str) -> Result<T, mainspring_core::Error>) -> Result<T> {
    name("unreadable").map_err(Into::into)
}

/// A status from its two columns; of one that is none, that it cannot be read.
fn read_standing(row: &Row<'_>, state: Result<Status>) -> Result<Standing> {
    let mut damage = Damage::default();
    let status = damage.note("state or reason", state)?;
    let mut standing =
        Standing::read(row, status.unwrap_or(Status::because(State::Suspended, Reason::Unreadable)))?;
    standing.damage.0.what = damage.0.what.or(standing.damage.0.what);
    Ok(standing)
}

fn standing(conn: &Connection, no: i64) -> Result<Standing> {
    if let Some(found) = row_of(conn, DONE, no, |row| {
        let codes = row.get(6).and_then(|state| Ok((state, row.get(7)?))).map_err(Into::into);
        let mut standing = read_standing(row, codes.and_then(|(state, reason)| read_status(state, reason)))?;
        standing.finished_at = standing.damage.time(row, (5, "finished_at"))?;
        standing.claimed_at = standing.damage.time(row, (8, "claimed_at"))?;
        standing.node = standing.damage.column::<Option<i64>>(row, (9, "node"))?.map(NodeNo);
        Ok(standing)
    })? {
        return Ok(found);
    }
    if let Some(found) = row_of(conn, READY, no, |row| Standing::read(row, Status::plain(State::Ready)))? {
        return Ok(found);
    }
    if let Some(found) = row_of(conn, LEASE, no, |row| {
        let mut standing = Standing::read(row, Status::plain(State::Running))?;
        standing.claimed_at = standing.damage.time(row, (5, "claimed_at"))?;
        standing.node = standing.damage.column::<Option<i64>>(row, (6, "node"))?.map(NodeNo);
        standing.cancelling = standing.damage.column(row, (7, "cancel"))?;
        standing.stuck = standing.damage.column(row, (8, "stuck"))?;
        Ok(standing)
    })? {
        return Ok(found);
    }
    if let Some(found) = row_of(conn, TIMERS, no, |row| {
        let mut standing = Standing::read(row, Status::plain(State::Scheduled))?;
        standing.run_at = standing.damage.time(row, (5, "due"))?;
        Ok(standing)
    })? {
        return Ok(found);
    }
    if let Some(found) = row_of(conn, SUSPENDED, no, |row| {
        let code = row.get::<_, u8>(6).map_err(Into::into);
        let reason = code.and_then(|code| {
            Reason::from_code(code).ok_or_else(|| corrupt(format!("{code} is not a reason of a suspension")))
        });
        let mut standing =
            read_standing(row, reason.map(|reason| Status::because(State::Suspended, reason)))?;
        let timed = standing.status.reason.is_some_and(|reason| reason.awaits() || reason == Reason::Hold);
        standing.run_at = standing.damage.time(row, (5, "due"))?.filter(|_| timed);
        Ok(standing)
    })? {
        return Ok(found);
    }
    row_of(conn, LIMITED, no, |row| Standing::read(row, Status::plain(State::Ready)))?
        .ok_or_else(|| corrupt(format!("job number {no} is in no place")))
}
