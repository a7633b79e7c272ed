//! One job as people see it.

use mainspring_core::id::{JobId, NodeNo};
use mainspring_core::job::{
    ErrorEntry, FaultKind, Options, Priority, Progress, Reason, Record, State, Status, Summary,
};
use mainspring_core::name::Key;
use mainspring_core::store::Level;
use mainspring_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row};

use super::Reader;
use crate::error::{Result, corrupt};
use crate::flags;
use crate::names::Names;
use crate::op::inbox::read_waits;
use crate::op::place::read_status;

/// Unique index of ids.
const BY_ID: &str = "SELECT no, input FROM mainspring_jobs WHERE id = ?1";
/// Primary key.
const JOB: &str = "SELECT id, line, created_at, deadline, options FROM mainspring_jobs WHERE no = ?1";
/// Primary keys of the places; the last one: index `done_no`. Columns are those of [`Standing`].
const READY: &str = "SELECT level, claim, failures, crashes, flags FROM mainspring_ready WHERE no = ?1";
const TIMERS: &str =
    "SELECT priority, claim, failures, crashes, flags, due FROM mainspring_timers WHERE no = ?1";
const SUSPENDED: &str =
    "SELECT priority, claim, failures, crashes, flags, due, reason FROM mainspring_suspended WHERE no = ?1";
const LEASE: &str =
    "SELECT priority, claim, failures, crashes, flags, claimed_at, node, cancel IS NOT NULL, stuck
    FROM mainspring_lease WHERE no = ?1";
const DONE: &str = "SELECT priority, claim, failures, crashes, 0, finished_at, state, reason
    FROM mainspring_done WHERE no = ?1 AND superseded = 0";
/// Index `done_no`.
const ENDING: &str = "SELECT output, note FROM mainspring_done WHERE no = ?1 AND superseded = 0";
/// Primary key.
const ASIDE: &str = "SELECT waits, note FROM mainspring_suspended WHERE no = ?1";
/// Primary keys.
const ERRORS: &str = "SELECT claim, at, kind, message FROM mainspring_errors WHERE no = ?1 ORDER BY claim";
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
    flags: i64,
    run_at: Option<Timestamp>,
    claimed_at: Option<Timestamp>,
    finished_at: Option<Timestamp>,
    node: Option<NodeNo>,
    cancelling: bool,
    /// 1 stuck, 2 foreign.
    stuck: i64,
}

impl Standing {
    /// From the columns that all places have.
    fn read(row: &Row<'_>, status: Status, priority: Priority) -> rusqlite::Result<Self> {
        Ok(Standing {
            status,
            priority,
            claim: row.get(1)?,
            failures: row.get(2)?,
            crashes: row.get(3)?,
            flags: row.get(4)?,
            run_at: None,
            claimed_at: None,
            finished_at: None,
            node: None,
            cancelling: false,
            stuck: 0,
        })
    }
}

/// Everything known of a job.
pub(crate) fn get(reader: &mut Reader, id: JobId) -> Result<Option<Record>> {
    let conn = &reader.conn;
    let found: Option<(i64, Vec<u8>)> = conn
        .prepare_cached(BY_ID)?
        .query_row([id.as_bytes()], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((no, input)) = found else { return Ok(None) };
    let summary = summary(conn, &reader.names, no)?;
    let (output, note) = conn
        .prepare_cached(ENDING)?
        .query_row([no], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?
        .unwrap_or((None, None));
    let aside: Option<(Option<String>, Option<String>)> =
        conn.prepare_cached(ASIDE)?.query_row([no], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    let (waits, note) = match aside {
        None => (Vec::new(), note),
        Some((waits, note)) => (read_waits(waits.as_deref())?, note),
    };
    let progress = progress(conn, no)?;
    let last = if summary.foreign { last(conn, no)? } else { None };
    Ok(Some(Record { summary, input, output, note, errors: errors(conn, no)?, progress, waits, last }))
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
        let kind =
            FaultKind::from_code(row.get(2)?).ok_or_else(|| corrupt("a kind of fault that is none"))?;
        let at = Timestamp::from_micros(row.get(1)?);
        errors.push(ErrorEntry { claim: row.get(0)?, at, kind, message: row.get(3)? });
    }
    Ok(errors)
}

/// What a job is, by its number, which must exist.
pub(super) fn status(conn: &Connection, no: i64) -> Result<Status> {
    Ok(standing(conn, no)?.status)
}

/// A job by its number, which must exist.
pub(super) fn summary(conn: &Connection, names: &Names, no: i64) -> Result<Summary> {
    let standing = standing(conn, no)?;
    let mut statement = conn.prepare_cached(JOB)?;
    let mut rows = statement.query([no])?;
    let row = rows.next()?.ok_or_else(|| corrupt(format!("job number {no} is missing")))?;
    let line = names.line(row.get(1)?)?;
    let options: Option<String> = row.get(4)?;
    let deadline: Option<i64> = row.get(3)?;
    Ok(Summary {
        id: JobId::from_bytes(row.get(0)?),
        kind: line.kind_name.clone(),
        queue: line.queue_name.clone(),
        priority: standing.priority,
        status: standing.status,
        claim: standing.claim,
        failures: standing.failures,
        crashes: standing.crashes,
        created_at: Timestamp::from_micros(row.get(2)?),
        run_at: standing.run_at,
        claimed_at: standing.claimed_at,
        finished_at: standing.finished_at,
        deadline: deadline.filter(|_| standing.flags & flags::DEADLINE != 0).map(Timestamp::from_micros),
        node: standing.node,
        cancelling: standing.cancelling,
        stuck: standing.stuck == 1,
        foreign: standing.stuck == 2,
        options: match options {
            None => Options::default(),
            Some(text) => {
                serde_json::from_str(&text).map_err(|error| corrupt(format!("options: {error}")))?
            }
        },
    })
}

fn standing(conn: &Connection, no: i64) -> Result<Standing> {
    if let Some(found) = look(conn, DONE, no, |row| {
        let status = read_status(row.get(6)?, row.get(7)?)?;
        let standing = Standing::read(row, status, priority(row.get(0)?)?)?;
        Ok(Standing { finished_at: time(row, 5)?, ..standing })
    })? {
        return Ok(found);
    }
    if let Some(found) = look(conn, READY, no, |row| {
        let level = Level::from_code(row.get(0)?).ok_or_else(|| corrupt("a level that is none"))?;
        Ok(Standing::read(row, Status::plain(State::Ready), level.priority())?)
    })? {
        return Ok(found);
    }
    if let Some(found) = look(conn, LEASE, no, |row| {
        let standing = Standing::read(row, Status::plain(State::Running), priority(row.get(0)?)?)?;
        let (node, cancelling, stuck) = (Some(NodeNo(row.get(6)?)), row.get(7)?, row.get(8)?);
        Ok(Standing { claimed_at: time(row, 5)?, node, cancelling, stuck, ..standing })
    })? {
        return Ok(found);
    }
    if let Some(found) = look(conn, TIMERS, no, |row| {
        let standing = Standing::read(row, Status::plain(State::Scheduled), priority(row.get(0)?)?)?;
        Ok(Standing { run_at: time(row, 5)?, ..standing })
    })? {
        return Ok(found);
    }
    look(conn, SUSPENDED, no, |row| {
        let reason = Reason::from_code(row.get(6)?).ok_or_else(|| corrupt("a reason that is none"))?;
        let status = Status::because(State::Suspended, reason);
        let standing = Standing::read(row, status, priority(row.get(0)?)?)?;
        let timed = reason.awaits() || reason == Reason::Hold;
        Ok(Standing { run_at: time(row, 5)?.filter(|_| timed), ..standing })
    })?
    .ok_or_else(|| corrupt(format!("job number {no} is in no place")))
}

fn look(
    conn: &Connection,
    sql: &str,
    no: i64,
    read: impl FnOnce(&Row<'_>) -> Result<Standing>,
) -> Result<Option<Standing>> {
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query([no])?;
    rows.next()?.map(read).transpose()
}

fn time(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Timestamp>> {
    Ok(row.get::<_, Option<i64>>(column)?.map(Timestamp::from_micros))
}

fn priority(code: u8) -> Result<Priority> {
    Priority::new(code).map_err(|_| corrupt(format!("{code} is no priority")))
}
