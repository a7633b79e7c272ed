//! Schedules: rows that are compared, written, and enqueue jobs in the same transaction.

use mainspring_core::audit::AuditEntry;
use mainspring_core::bounds;
use mainspring_core::schedule::Schedule;
use mainspring_core::store::{ScheduleWrite, Written};
use rusqlite::{OptionalExtension, params};

use super::{as_i64, enqueue, limits};
use crate::error::{Result, corrupt};
use crate::writer::Tx;

/// Primary key.
const VERSION: &str = "SELECT version FROM mainspring_schedules WHERE name = ?1";
/// Primary key; the partial index of those that are to be looked at.
const PUT: &str =
    "INSERT INTO mainspring_schedules (name, version, next_at, definition, state) VALUES (?1, ?2, ?3, ?4, ?5)
    ON CONFLICT (name) DO UPDATE SET version = excluded.version, next_at = excluded.next_at,
        definition = excluded.definition, state = excluded.state";
/// Primary key.
const DELETE: &str = "DELETE FROM mainspring_schedules WHERE name = ?1";
/// An append to the primary key.
const REMEMBER: &str = "INSERT INTO mainspring_audit (at, who, subject, verb, request, old, new) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
/// Index `audit_subject`: those beyond the bound.
pub(crate) const FORGET: &str = "DELETE FROM mainspring_audit WHERE subject = ?1 AND no <= (
    SELECT no FROM mainspring_audit WHERE subject = ?1 ORDER BY no DESC LIMIT 1 OFFSET ?2)";

/// Writes rows whose version is the expected one.
pub(crate) fn write(tx: &mut Tx<'_>, writes: &[ScheduleWrite]) -> Result<Vec<Written>> {
    // All before any: a call that is refused has no effect.
    let jobs = || writes.iter().flat_map(|write| &write.jobs);
    limits::cache::check(&mut tx.state.limits, tx.conn, jobs())?;
    tx.state.names.lines_of(tx.conn, jobs())?;
    let mut answers = Vec::with_capacity(writes.len());
    for write in writes {
        let found =
            tx.conn.prepare_cached(VERSION)?.query_row([write.name.as_str()], |row| row.get(0)).optional()?;
        if found != write.expected {
            answers.push(Written::Stale);
            continue;
        }
        match &write.row {
            Some(row) => put(tx, row, write.version())?,
            None => drop(tx.conn.prepare_cached(DELETE)?.execute([write.name.as_str()])?),
        }
        if let Some(entry) = &write.audit {
            remember(tx, entry)?;
        }
        answers.push(Written::Stored(enqueue::run(tx, &write.jobs)?));
    }
    Ok(answers)
}

fn put(tx: &mut Tx<'_>, row: &Schedule, version: i64) -> Result<()> {
    let text = |json: serde_json::Result<String>| json.map_err(|error| corrupt(format!("schedule: {error}")));
    let next_at = row.next_at.map(mainspring_core::time::Timestamp::as_micros);
    tx.conn.prepare_cached(PUT)?.execute(params![
        row.name.as_str(),
        version,
        next_at,
        text(serde_json::to_string(&row.definition))?,
        text(serde_json::to_string(&row.state))?
    ])?;
    if let Some(at) = row.next_at {
        tx.hints.due(at);
    }
    Ok(())
}

pub(crate) fn remember(tx: &Tx<'_>, entry: &AuditEntry) -> Result<()> {
    let text = |value: &Option<serde_json::Value>| value.as_ref().map(ToString::to_string);
    let (old, new) = (text(&entry.old), text(&entry.new));
    let subject = entry.subject.to_string();
    let request = entry.request.as_ref().map(|request| request.as_bytes().as_slice());
    tx.conn.prepare_cached(REMEMBER)?.execute(params![
        tx.micros(),
        entry.who,
        subject,
        entry.verb,
        request,
        old,
        new
    ])?;
    tx.conn.prepare_cached(FORGET)?.execute(params![subject, as_i64(bounds::AUDIT)])?;
    Ok(())
}
