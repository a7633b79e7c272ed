//! Limits, their keys and totals as people see them, and what of them is in a job's way.

use mainspring_core::bounds;
use mainspring_core::id::JobId;
use mainspring_core::limit::{
    self, Closed, KeyHolder, KeyState, KeyUse, Limit, LimitKey, LimitUse, Obstacle, Total, TotalUse,
};
use mainspring_core::name::{Kind, LimitName, QueueName};
use mainspring_core::tables::options::read_options;
use mainspring_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::Reader;
use crate::error::{Result, corrupt};
use crate::op::as_i64;
use crate::op::change::FIND;
use crate::op::limits::cache::{BY_NAME, names, read_limit, read_uses};
use crate::op::limits::change::read_state;
use crate::op::limits::scope;

/// Unique index of scopes and names, in its order: as many as there may be.
const ALL: &str = "SELECT no, scope, definition FROM mainspring_limits
    WHERE scope = ?1 AND definition IS NOT NULL ORDER BY name";
/// Unique index of limits and keys, in its order: keys of a limit from one on, which is left out if the last parameter says so.
pub(crate) const KEYS: &str = "SELECT in_use, max, paused, next_free, key FROM mainspring_limit_keys
    WHERE limit_no = ?1 AND key >= ?2 AND (key <> ?2 OR ?4) ORDER BY key LIMIT ?3";
/// Unique index of limits and keys.
pub(crate) const KEY: &str = "SELECT in_use, max, paused, next_free, no FROM mainspring_limit_keys
    WHERE limit_no = ?1 AND key = ?2";
/// The jobs that hold anything, by the primary key: as many as nodes have slots, and jobs that keep what they hold; for each a look at
/// the primary keys of the others.
pub(crate) const HOLDERS: &str = "SELECT j.id, g.uses,
        NOT EXISTS (SELECT 1 FROM mainspring_lease l WHERE l.no = h.no)
    FROM mainspring_limit_holders h
    CROSS JOIN mainspring_limit_key_groups k ON k.limit_key = ?1 AND k.limit_group = h.limit_group
    CROSS JOIN mainspring_limit_groups g ON g.no = h.limit_group
    CROSS JOIN mainspring_jobs j ON j.no = h.no ORDER BY h.no LIMIT ?2";
/// Primary keys, then index `limited_claim`: jobs of the groups that name a key.
pub(crate) const WAITING: &str = "SELECT p.no FROM mainspring_limit_key_groups k
    CROSS JOIN mainspring_limit_groups g ON g.no = k.limit_group
    CROSS JOIN mainspring_limited p ON p.line = g.line AND p.limit_group = g.no WHERE k.limit_key = ?1 LIMIT ?2";
/// Primary key.
const ID: &str = "SELECT id FROM mainspring_jobs WHERE no = ?1";
const OPTIONS: &str = "SELECT options FROM mainspring_jobs WHERE no = ?1";
const IN_READY: &str = "SELECT line FROM mainspring_ready WHERE no = ?1";
const IN_LIMITED: &str = "SELECT line, limit_group FROM mainspring_limited WHERE no = ?1";
/// Index `limited_claim`, its levels one after the other: the first job of a group.
pub(crate) const FIRST: &str = "SELECT no FROM mainspring_limited
    WHERE line = ?1 AND limit_group = ?2 ORDER BY level, ready_at, no LIMIT 1";
/// Unique index of scopes and names, then of limits and keys: as few as queues and kinds that have a total.
const TOTALS: &str =
    "SELECT l.no, l.scope, l.definition, l.name, coalesce(k.in_use, 0) FROM mainspring_limits l
    LEFT JOIN mainspring_limit_keys k ON k.limit_no = l.no AND k.key = ''
    WHERE l.scope > ?1 AND l.definition IS NOT NULL ORDER BY l.scope, l.name";

/// All limits, in order of their names.
pub(crate) fn limits(reader: &mut Reader) -> Result<Vec<Limit>> {
    let mut statement = reader.conn.prepare_cached(ALL)?;
    let mut rows = statement.query([scope::NAMED])?;
    let mut limits = Vec::new();
    while let Some(row) = rows.next()? {
        limits.extend(read_limit(row.get(0)?, row.get(1)?, row.get::<_, Option<String>>(2)?.as_deref())?);
    }
    Ok(limits)
}

/// A limit with its number, whether somebody defines it or not.
fn find(conn: &Connection, scope: i64, name: &str) -> Result<Option<(i64, Option<Limit>)>> {
    let columns = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get::<_, Option<String>>(2)?));
    let found = conn.prepare_cached(BY_NAME)?.query_row(params![scope, name], columns).optional()?;
    let limit =
        |(no, scope, text): (i64, i64, Option<String>)| Ok((no, read_limit(no, scope, text.as_deref())?));
    found.map(limit).transpose()
}

/// Keys of a limit behind one, in order.
pub(crate) fn limit_keys(
    reader: &mut Reader,
    name: &LimitName,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<LimitKey>> {
    let now = reader.clock.now();
    let Some((no, _)) = find(&reader.conn, scope::NAMED, name.as_str())? else { return Ok(Vec::new()) };
    let limit = as_i64(limit.min(bounds::LIMIT_KEYS_PAGE));
    let mut statement = reader.conn.prepare_cached(KEYS)?;
    let mut rows = statement.query(params![no, after.unwrap_or_default(), limit, after.is_none()])?;
    let mut keys = Vec::new();
    while let Some(row) = rows.next()? {
        let key: String = row.get(4)?;
        keys.push(LimitKey::new(name, &key, &rested(read_state(row, 0)?, now)));
    }
    Ok(keys)
}

/// As people see it: a bucket that is full again is not worth telling.
fn rested(state: KeyState, now: Timestamp) -> KeyState {
    KeyState { next_free: state.next_free.filter(|at| *at > now), ..state }
}

/// Who holds one key and who waits for it.
pub(crate) fn limit_key(reader: &mut Reader, name: &LimitName, key: &str) -> Result<KeyUse> {
    let now = reader.clock.now();
    let conn = &reader.conn;
    let found = find(conn, scope::NAMED, name.as_str())?;
    let Some((limit, Some(_))) = found else {
        return Err(limit::unknown(name, names(conn)?.iter()).into());
    };
    let (state, no) = key_of(conn, limit, key)?;
    let mut found = KeyUse {
        key: LimitKey::new(name, key, &rested(state, now)),
        holders: Vec::new(),
        waiting: 0,
        waiters: Vec::new(),
    };
    let Some(no) = no else { return Ok(found) };
    found.holders = holders(conn, no, bounds::LIMIT_JOBS)?;
    let mut statement = conn.prepare_cached(WAITING)?;
    let mut rows = statement.query([no, as_i64(bounds::LIMIT_WAITING)])?;
    while let Some(row) = rows.next()? {
        found.waiting += 1;
        if found.waiters.len() < bounds::LIMIT_JOBS {
            found.waiters.push(id(conn, row.get(0)?)?);
        }
    }
    Ok(found)
}

fn id(conn: &Connection, no: i64) -> Result<JobId> {
    Ok(JobId::from_bytes(conn.prepare_cached(ID)?.query_row([no], |row| row.get(0))?))
}

/// The state of a key, and its number if it has one.
fn key_of(conn: &Connection, limit: i64, key: &str) -> Result<(KeyState, Option<i64>)> {
    let row = |row: &Row<'_>| Ok((read_state(row, 0)?, row.get(4)?));
    let found = conn.prepare_cached(KEY)?.query_row(params![limit, key], row).optional()?;
    Ok(found.unwrap_or_default())
}

fn holders(conn: &Connection, key: i64, most: usize) -> Result<Vec<KeyHolder>> {
    let mut statement = conn.prepare_cached(HOLDERS)?;
    let mut rows = statement.query([key, as_i64(most)])?;
    let mut holders = Vec::new();
    while let Some(row) = rows.next()? {
        let uses = read_uses(&row.get::<_, String>(1)?)?;
        let units = uses.iter().filter(|(no, _)| *no == key).map(|(_, units)| *units).sum();
        holders.push(KeyHolder { job: JobId::from_bytes(row.get(0)?), units, keeps: row.get(2)? });
    }
    Ok(holders)
}

/// What keeps a ready job from being claimed.
pub(crate) fn obstacle(reader: &mut Reader, id: JobId) -> Result<Option<Obstacle>> {
    let now = reader.clock.now();
    let conn = &reader.conn;
    let no = conn.prepare_cached(FIND)?.query_row([id.as_bytes()], |row| row.get::<_, i64>(0)).optional()?;
    let Some(no) = no else { return Ok(None) };
    let plain = conn.prepare_cached(IN_READY)?.query_row([no], |row| row.get(0)).optional()?;
    let limited = |row: &Row<'_>| Ok((row.get(0)?, row.get::<_, i64>(1)?));
    let (line, group): (i64, Option<i64>) = match plain {
        Some(line) => (line, None),
        None => match conn.prepare_cached(IN_LIMITED)?.query_row([no], limited).optional()? {
            Some((line, group)) => (line, Some(group)),
            None => return Ok(None),
        },
    };
    let names = reader.names.line(line)?;
    for total in [Total::Queue(names.queue_name.clone()), Total::Kind(names.kind_name.clone())] {
        let reached = reached(conn, total)?;
        if reached.is_some() {
            return Ok(reached);
        }
    }
    let Some(group) = group else { return Ok(None) };
    let text = conn.prepare_cached(OPTIONS)?.query_row([no], |row| row.get::<_, Option<String>>(0))?;
    for one in read_options(text.as_deref().map(str::as_bytes))?.limits {
        let closed = closed(conn, one, now)?;
        if closed.is_some() {
            return Ok(closed);
        }
    }
    let first: Option<i64> =
        conn.prepare_cached(FIRST)?.query_row([line, group], |row| row.get(0)).optional()?;
    let behind = first.filter(|first| *first != no).map(|first| self::id(conn, first)).transpose()?;
    Ok(behind.map(|job| Obstacle::Behind { job }))
}

/// Whether as many jobs run as a total allows.
fn reached(conn: &Connection, total: Total) -> Result<Option<Obstacle>> {
    let (scope, name) = match &total {
        Total::Queue(queue) => (scope::QUEUE, queue.as_str()),
        Total::Kind(kind) => (scope::KIND, kind.as_str()),
    };
    let found = find(conn, scope, name)?;
    let Some((no, max)) = found.and_then(|(no, limit)| Some((no, limit?.definition.max?))) else {
        return Ok(None);
    };
    let in_use = key_of(conn, no, "")?.0.in_use;
    Ok((in_use >= max).then_some(Obstacle::Total { total, in_use, max }))
}

/// Why a limit key does not let a job in.
fn closed(conn: &Connection, one: LimitUse, now: Timestamp) -> Result<Option<Obstacle>> {
    let LimitUse { limit, key, units } = one;
    let Some((no, found)) = find(conn, scope::NAMED, limit.as_str())? else { return Ok(None) };
    let (state, number) = key_of(conn, no, &key)?;
    Ok(match limit::closed(found.as_ref(), &state, units, now) {
        None => None,
        Some(Closed::Paused) => {
            let whole = found.is_some_and(|limit| limit.paused);
            let key = (!whole && !key.is_empty()).then_some(key);
            Some(Obstacle::Paused { limit, key })
        }
        Some(Closed::Full { max }) => {
            let holders = number.map(|number| holders(conn, number, Obstacle::HOLDERS)).transpose()?;
            let holders = holders.unwrap_or_default().into_iter().map(|holder| holder.job).collect();
            Some(Obstacle::Limit { limit, key, units, in_use: state.in_use, max, holders })
        }
        Some(Closed::Rate { until }) => Some(Obstacle::Rate { limit, key, until }),
    })
}

/// All totals: queues, then kinds, by name.
pub(crate) fn totals(reader: &mut Reader) -> Result<Vec<TotalUse>> {
    let mut statement = reader.conn.prepare_cached(TOTALS)?;
    let mut rows = statement.query([scope::NAMED])?;
    let mut totals = Vec::new();
    while let Some(row) = rows.next()? {
        let (no, scope, name): (i64, i64, String) = (row.get(0)?, row.get(1)?, row.get(3)?);
        let limit = read_limit(no, scope, row.get::<_, Option<String>>(2)?.as_deref())?;
        let Some(max) = limit.and_then(|limit| limit.definition.max) else { continue };
        let named = |error: mainspring_core::Error| corrupt(error.to_string());
        let total = if scope == scope::QUEUE {
            Total::Queue(QueueName::new(name).map_err(named)?)
        } else {
            Total::Kind(Kind::new(name).map_err(named)?)
        };
        let in_use = u32::try_from(row.get::<_, i64>(4)?.max(0)).unwrap_or(u32::MAX);
        totals.push(TotalUse { total, max, in_use });
    }
    Ok(totals)
}
