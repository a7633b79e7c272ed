//! Settings of queues, and their deletion.

use std::collections::BTreeMap;

use mainspring_core::job::State;
use mainspring_core::limit::Total;
use mainspring_core::name::QueueName;
use mainspring_core::store::{Counts, Queue, QueueChange, Settings};
use mainspring_core::time::micros;
use rusqlite::params;

use super::limits;
use crate::error::{Result, corrupt};
use crate::writer::Tx;

/// Primary key.
const SET: &str =
    "UPDATE mainspring_queues SET paused = ?2, backoff = ?3, retain_succeeded = ?4, retain_failed = ?5,
        deleted = ?6
    WHERE no = ?1";
/// Primary key.
const DELETED: &str = "SELECT deleted FROM mainspring_queues WHERE no = ?1";
/// Primary key.
const NAMED: &str = "UPDATE mainspring_queues SET deleted = 0 WHERE no = ?1 AND deleted = 1";
/// Primary key of `counts` from the queue on, and the whole of a small table. The writer's transaction excludes others: no job
/// enters the queue between this and the commit.
const COUNTS: &str = "SELECT state, sum(n) FROM (
    SELECT state, n FROM mainspring_counts WHERE queue = ?1
    UNION ALL SELECT state, n FROM mainspring_count_deltas WHERE queue = ?1) GROUP BY state HAVING sum(n) > 0";
/// Primary key: tells other processes to read the settings again.
const CHANGED: &str = "INSERT INTO mainspring_meta (key, value) VALUES ('settings', 1)
    ON CONFLICT (key) DO UPDATE SET value = value + 1";
/// The whole of a small table: rows that were passed by may be over by the new settings.
const LOOK_AGAIN: &str = "DELETE FROM mainspring_retention";

/// Changes a queue's settings, creating it if need be.
pub(crate) fn configure(tx: &mut Tx<'_>, name: &QueueName, change: &QueueChange) -> Result<Queue> {
    change.check()?;
    let no = tx.state.names.intern_queue(tx.conn, name)?;
    let mut queue = tx.state.names.queue(no)?.clone();
    let before = queue.settings.clone();
    change.apply(&mut queue.settings);
    if queue.settings == before && !is_deleted(tx, no)? {
        return Ok(queue);
    }
    set(tx, no, &queue, &before, false)?;
    Ok(queue)
}

/// Forgets a queue that has no jobs. Tells whether there was one.
pub(crate) fn delete(tx: &mut Tx<'_>, name: &QueueName) -> Result<bool> {
    let Some(no) = tx.state.names.find_queue(tx.conn, name)? else { return Ok(false) };
    count(tx, no, name)?.check_empty(name)?;
    if is_deleted(tx, no)? {
        return Ok(false);
    }
    let before = tx.state.names.queue(no)?.settings.clone();
    let queue = Queue { name: name.clone(), settings: Settings::default() };
    set(tx, no, &queue, &before, true)?;
    limits::change::remove_total(tx, &Total::Queue(name.clone()))?;
    Ok(true)
}

/// Makes a queue known that a node serves.
pub(crate) fn name(tx: &mut Tx<'_>, queue: &QueueName) -> Result<()> {
    let no = tx.state.names.intern_queue(tx.conn, queue)?;
    tx.conn.prepare_cached(NAMED)?.execute([no])?;
    Ok(())
}

fn is_deleted(tx: &Tx<'_>, no: i64) -> Result<bool> {
    Ok(tx.conn.prepare_cached(DELETED)?.query_row([no], |row| row.get(0))?)
}

/// How many jobs a queue has in each state.
fn count(tx: &Tx<'_>, no: i64, name: &QueueName) -> Result<Counts> {
    let mut statement = tx.conn.prepare_cached(COUNTS)?;
    let mut rows = statement.query([no])?;
    let mut states = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let (state, n): (u8, i64) = (row.get(0)?, row.get(1)?);
        let state = State::from_code(state).ok_or_else(|| corrupt(format!("{state} is not a state")))?;
        states.insert(state, u64::try_from(n).unwrap_or(0));
    }
    Ok(Counts(BTreeMap::from([(name.clone(), states)])))
}

/// Writes a queue's settings, and whether it is deleted.
fn set(tx: &mut Tx<'_>, no: i64, queue: &Queue, before: &Settings, deleted: bool) -> Result<()> {
    let settings = &queue.settings;
    tx.conn.prepare_cached(SET)?.execute(params![
        no,
        settings.paused,
        settings.backoff.map(|backoff| backoff.to_string()),
        micros(settings.retention.succeeded.0),
        micros(settings.retention.failed.0),
        deleted
    ])?;
    if settings.retention != before.retention {
        tx.conn.prepare_cached(LOOK_AGAIN)?.execute([])?;
        tx.state.pruned.clear();
    }
    changed(tx)?;
    if before.paused && !settings.paused {
        tx.hints.ready(&queue.name);
    }
    Ok(())
}

/// Tells everybody, this process too, that settings have changed.
pub(crate) fn changed(tx: &mut Tx<'_>) -> Result<()> {
    tx.conn.prepare_cached(CHANGED)?.execute([])?;
    tx.settings_changed()
}

/// Primary key of `meta`: a row that no other transaction sees, so that the commit has a page to write.
const TRY: &str = "INSERT INTO mainspring_meta (key, value) VALUES ('doctor', 0)";
const FORGET: &str = "DELETE FROM mainspring_meta WHERE key = 'doctor'";

/// Writes, and takes it back in the same transaction.
pub(crate) fn try_write(tx: &mut Tx<'_>) -> Result<()> {
    tx.conn.prepare_cached(TRY)?.execute([])?;
    tx.conn.prepare_cached(FORGET)?.execute([])?;
    Ok(())
}
