//! What jobs have recorded, been sent and started, and how they ended.

use mainspring_core::bounds;
use mainspring_core::id::{Claim, JobId};
use mainspring_core::job::State;
use mainspring_core::journal::{ChildSummary, Inbox, JobEnd, OnClose, Timeline};
use mainspring_core::name::Key;
use rusqlite::{Connection, OptionalExtension, params};

use super::Reader;
use super::summary::status;
use crate::error::{Result, corrupt};
use crate::op::as_i64;
use crate::op::change::FIND;
use crate::op::family::LAST_ERROR;
use crate::op::inbox;
use crate::op::journal::read_entry;
use crate::op::place::read_status;

/// Primary key: whether a claim names a job that is there.
const THERE: &str = "SELECT EXISTS (SELECT 1 FROM mainspring_jobs WHERE no = ?1 AND id = ?2)";
/// Unique index of keys.
pub(crate) const VALUE: &str = "SELECT value FROM mainspring_steps WHERE no = ?1 AND key = ?2";
/// Unique index of keys, then primary keys, and a sort of what is left of the values.
const TIMELINE: &str = "SELECT seq, key, kind, overlapped, claim, at, length(value),
        CASE WHEN length(value) <= ?2 THEN value END, took
    FROM mainspring_steps WHERE no = ?1 ORDER BY seq LIMIT ?3";
/// Index `children_parent`, in the order of the children's numbers, then primary keys.
pub(crate) const CHILDREN: &str = "SELECT c.no, c.on_close, j.id
    FROM mainspring_children c CROSS JOIN mainspring_jobs j ON j.no = c.no WHERE c.parent = ?1 ORDER BY c.no";
/// Index `done_no`.
pub(crate) const ENDING: &str =
    "SELECT state, reason, result, note FROM mainspring_done WHERE no = ?1 AND superseded = 0";

/// Recorded values of a job.
pub(crate) fn values(reader: &Reader, id: JobId, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>> {
    let Some(no) = find(&reader.conn, id)? else { return Ok(vec![None; keys.len()]) };
    let mut statement = reader.conn.prepare_cached(VALUE)?;
    keys.iter()
        .map(|key| {
            let values = params![no, key.as_str()];
            Ok(statement.query_row(values, |row| row.get(0)).optional()?)
        })
        .collect()
}

/// Primary key of `jobs`.
const INPUT: &str = "SELECT input FROM mainspring_jobs WHERE no = ?1 AND id = ?2";

/// Inputs of claimed jobs.
pub(crate) fn inputs(reader: &Reader, claims: &[Claim]) -> Result<Vec<Option<Vec<u8>>>> {
    let mut statement = reader.conn.prepare_cached(INPUT)?;
    let mut input = |claim: &Claim| {
        let values = params![claim.row.0, claim.id.as_bytes()];
        Ok(statement.query_row(values, |row| Ok(row.get_ref(0)?.as_bytes()?.to_vec())).optional()?)
    };
    claims.iter().map(&mut input).collect()
}

/// Unread messages of claimed jobs, each from behind a number on.
pub(crate) fn inboxes(reader: &Reader, claims: &[(Claim, i64)]) -> Result<Vec<Inbox>> {
    claims
        .iter()
        .map(|(claim, after)| {
            if !is_there(&reader.conn, claim)? {
                return Ok(Inbox::default());
            }
            inbox::unread(&reader.conn, claim.row.0, *after, usize::MAX)
        })
        .collect()
}

fn is_there(conn: &Connection, claim: &Claim) -> Result<bool> {
    let values = params![claim.row.0, claim.id.as_bytes()];
    Ok(conn.prepare_cached(THERE)?.query_row(values, |row| row.get(0))?)
}

/// How jobs look to somebody who waits for their end.
pub(crate) fn job_ends(reader: &Reader, ids: &[JobId]) -> Result<Vec<JobEnd>> {
    ids.iter().map(|id| job_end(&reader.conn, *id)).collect()
}

fn job_end(conn: &Connection, id: JobId) -> Result<JobEnd> {
    let Some(no) = find(conn, id)? else { return Ok(JobEnd::Missing) };
    let mut statement = conn.prepare_cached(ENDING)?;
    let mut rows = statement.query([no])?;
    let Some(row) = rows.next()? else { return Ok(JobEnd::Open) };
    let status = read_status(row.get(0)?, row.get(1)?)?;
    let (result, note): (_, Option<String>) = (row.get(2)?, row.get(3)?);
    let message = match note {
        _ if status.state == State::Succeeded => None,
        None => conn.prepare_cached(LAST_ERROR)?.query_row([no], |row| row.get(0)).optional()?,
        note => note,
    };
    Ok(JobEnd::Ended { status, result, message })
}

/// What a job has recorded, been sent and started.
pub(crate) fn timeline(reader: &Reader, id: JobId) -> Result<Option<Timeline>> {
    let conn = &reader.conn;
    let Some(no) = find(conn, id)? else { return Ok(None) };
    // One more than is shown tells whether there is more.
    let mut statement = conn.prepare_cached(TIMELINE)?;
    let mut rows =
        statement.query([no, as_i64(bounds::TIMELINE_VALUE_BYTES), as_i64(bounds::TIMELINE + 1)])?;
    let mut entries = Vec::new();
    while let Some(row) = rows.next()? {
        entries.push(read_entry(row)?);
    }
    let more = entries.len() > bounds::TIMELINE;
    entries.truncate(bounds::TIMELINE);
    let inbox = inbox::unread(conn, no, 0, usize::MAX)?;
    Ok(Some(Timeline { entries, more, inbox, children: children(conn, no)? }))
}

fn children(conn: &Connection, parent: i64) -> Result<Vec<ChildSummary>> {
    let mut statement = conn.prepare_cached(CHILDREN)?;
    let mut rows = statement.query([parent])?;
    let mut children = Vec::new();
    while let Some(row) = rows.next()? {
        let on_close = match row.get::<_, u8>(1)? {
            0 => OnClose::Cancel,
            1 => OnClose::Abandon,
            other => return Err(corrupt(format!("{other} is not a way to leave a child"))),
        };
        let id = JobId::from_bytes(row.get(2)?);
        children.push(ChildSummary { id, status: status(conn, row.get(0)?)?, on_close });
    }
    Ok(children)
}

pub(super) fn find(conn: &Connection, id: JobId) -> Result<Option<i64>> {
    Ok(conn.prepare_cached(FIND)?.query_row([id.as_bytes()], |row| row.get(0)).optional()?)
}
