//! Schedules and what was changed about them.

use mainspring_core::Uuid;
use mainspring_core::audit::{AuditEntry, Subject};
use mainspring_core::name::ScheduleName;
use mainspring_core::schedule::Schedule;
use mainspring_core::store::DueSchedules;
use mainspring_core::time::Timestamp;
use rusqlite::{OptionalExtension, Row, params};

use super::Reader;
use crate::error::{Result, corrupt, legible};
use crate::op::as_i64;

/// Partial index `schedules_next`, from its first entry on.
pub(crate) const DUE: &str = "SELECT name, version, next_at, definition, state FROM mainspring_schedules
    WHERE next_at IS NOT NULL AND next_at <= ?1 ORDER BY next_at, name LIMIT ?2";
/// Partial index `schedules_next`, behind those.
const NEXT: &str = "SELECT next_at FROM mainspring_schedules WHERE next_at IS NOT NULL ORDER BY next_at, name LIMIT 1 OFFSET ?1";
/// Primary key.
pub(crate) const FIND: &str =
    "SELECT name, version, next_at, definition, state FROM mainspring_schedules WHERE name = ?1";
/// Primary key, from a name on.
pub(crate) const LIST: &str = "SELECT name, version, next_at, definition, state FROM mainspring_schedules
    WHERE name > ?1 ORDER BY name LIMIT ?2";
/// The whole table, for people.
const ALL: &str = "SELECT name, version, next_at, definition, state FROM mainspring_schedules ORDER BY name";
/// The whole table, for people.
const ALL_CHANGES: &str =
    "SELECT no, at, who, subject, verb, request, old, new FROM mainspring_audit ORDER BY no";
/// Primary key, from its end.
const AUDIT: &str =
    "SELECT no, at, who, subject, verb, request, old, new FROM mainspring_audit ORDER BY no DESC LIMIT ?1";
/// Index `audit_subject`, from its end.
pub(crate) const AUDIT_OF: &str = "SELECT no, at, who, subject, verb, request, old, new FROM mainspring_audit
    WHERE subject = ?2 ORDER BY no DESC LIMIT ?1";

/// Schedules to be looked at by now. One that cannot be read does not keep the others from firing.
pub(crate) fn due_schedules(reader: &mut Reader, limit: usize) -> Result<DueSchedules> {
    let now = reader.clock.now();
    let mut statement = reader.conn.prepare_cached(DUE)?;
    let mut rows = statement.query(params![now.as_micros(), as_i64(limit)])?;
    let (mut schedules, mut found) = (Vec::new(), 0);
    while let Some(row) = rows.next()? {
        found += 1;
        match legible(schedule(row))? {
            Ok(schedule) => schedules.push(schedule),
            Err(why) => tracing::warn!(%why, "unreadable schedule does not fire"),
        }
    }
    let next = reader.conn.prepare_cached(NEXT)?.query_row([as_i64(found)], |row| row.get(0)).optional()?;
    Ok(DueSchedules { now, schedules, next: next.map(Timestamp::from_micros) })
}

/// Schedules by their names.
pub(crate) fn find_schedules(reader: &mut Reader, names: &[ScheduleName]) -> Result<Vec<Option<Schedule>>> {
    let mut statement = reader.conn.prepare_cached(FIND)?;
    let find = |name: &ScheduleName| {
        let mut rows = statement.query([name.as_str()])?;
        rows.next()?.map(schedule).transpose()
    };
    names.iter().map(find).collect()
}

/// Schedules behind a name.
pub(crate) fn list_schedules(
    reader: &mut Reader,
    after: Option<&ScheduleName>,
    limit: usize,
) -> Result<Vec<Schedule>> {
    let mut statement = reader.conn.prepare_cached(LIST)?;
    let mut rows = statement.query(params![after.map_or("", ScheduleName::as_str), as_i64(limit)])?;
    let mut schedules = Vec::new();
    while let Some(row) = rows.next()? {
        schedules.push(schedule(row)?);
    }
    Ok(schedules)
}

/// Changes, the last first.
pub(crate) fn audit(reader: &mut Reader, subject: Option<&Subject>, limit: usize) -> Result<Vec<AuditEntry>> {
    let mut statement = reader.conn.prepare_cached(if subject.is_some() { AUDIT_OF } else { AUDIT })?;
    let limit = as_i64(limit);
    let mut rows = match subject {
        Some(subject) => statement.query(params![limit, subject.to_string()])?,
        None => statement.query([limit])?,
    };
    let mut entries = Vec::new();
    while let Some(row) = rows.next()? {
        entries.push(entry(row)?);
    }
    Ok(entries)
}

fn entry(row: &Row<'_>) -> Result<AuditEntry> {
    let json = |column| -> Result<Option<serde_json::Value>> {
        let text: Option<String> = row.get(column)?;
        text.map(|text| serde_json::from_str(&text).map_err(|error| corrupt(format!("audit: {error}"))))
            .transpose()
    };
    Ok(AuditEntry {
        no: row.get(0)?,
        at: Timestamp::from_micros(row.get(1)?),
        who: row.get(2)?,
        subject: row
            .get::<_, String>(3)?
            .parse()
            .map_err(|error: mainspring_core::Error| corrupt(error.to_string()))?,
        verb: row.get(4)?,
        request: row.get::<_, Option<[u8; 16]>>(5)?.map(Uuid::from_bytes),
        old: json(6)?,
        new: json(7)?,
    })
}

/// What to do about a row that [`illegible`] tells of.
pub(crate) const ILLEGIBLE: &str =
    "a schedule that cannot be read does not fire: correct its row, or delete it and set the schedule again";

/// What is wrong with rows of schedules and of their changes, of each at most so many.
pub(crate) fn illegible(reader: &Reader, most: usize) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut statement = reader.conn.prepare_cached(ALL)?;
    let mut rows = statement.query(())?;
    while let Some(row) = rows.next()? {
        if let Err(why) = legible(schedule(row))? {
            let name: String = row.get_ref(0)?.as_str().map(str::to_owned).unwrap_or_default();
            found.push(format!("schedule `{name}` cannot be read: {why}"));
        }
        if found.len() == most {
            break;
        }
    }
    let mut statement = reader.conn.prepare_cached(ALL_CHANGES)?;
    let mut rows = statement.query(())?;
    let schedules = found.len();
    while let Some(row) = rows.next()? {
        if let Err(why) = legible(entry(row))? {
            found.push(format!("change {} cannot be read: {why}", row.get::<_, i64>(0)?));
        }
        if found.len() == schedules + most {
            break;
        }
    }
    Ok(found)
}

fn name_of(row: &Row<'_>, column: usize) -> Result<ScheduleName> {
    ScheduleName::new(row.get::<_, String>(column)?).map_err(|error| corrupt(error.to_string()))
}

fn schedule(row: &Row<'_>) -> Result<Schedule> {
    let name = name_of(row, 0)?;
    let next_at: Option<i64> = row.get(2)?;
    let (definition, state): (String, String) = (row.get(3)?, row.get(4)?);
    let unreadable = |error: serde_json::Error| corrupt(format!("schedule `{name}`: {error}"));
    Ok(Schedule {
        version: row.get(1)?,
        next_at: next_at.map(Timestamp::from_micros),
        definition: serde_json::from_str(&definition).map_err(unreadable)?,
        state: serde_json::from_str(&state).map_err(unreadable)?,
        name,
    })
}
