//! Counters of limit keys, within one transaction; and groups that are blocked at a key or get a turn.
//!
//! A key is read when it is first needed and written when the transaction ends, however many claims take and give back meanwhile.
//!
//! # Invariants
//! - Who makes or leaves room at a key lets in who is blocked there, by [`look`] or at the latest by [`settle`].
//! - A key that could not let in all that it has room for, or that lets in more when time passes, is `due`.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainspring_core::bounds;
use mainspring_core::limit::{Closed, KeyState, Limit, closed, room};
use mainspring_core::time::Timestamp;
use rusqlite::{OptionalExtension, params};

use super::cache::Known;
use super::change::read_state;
use crate::error::Result;
use crate::op::as_i64;
use crate::writer::Tx;

/// Primary key.
pub(crate) const LOAD: &str =
    "SELECT limit_no, in_use, max, paused, next_free, due FROM mainspring_limit_keys WHERE no = ?1";
/// Primary key, and the partial index of those that are due.
pub(crate) const SAVE: &str =
    "UPDATE mainspring_limit_keys SET in_use = ?2, next_free = ?3, due = ?4 WHERE no = ?1";
/// Partial index `limit_keys_due`.
pub(crate) const DUE: &str =
    "SELECT no FROM mainspring_limit_keys WHERE due <= ?1 AND due IS NOT NULL ORDER BY due LIMIT ?2";
/// Partial index `limit_keys_due`, its first entry.
pub(crate) const NEXT_DUE: &str =
    "SELECT due FROM mainspring_limit_keys WHERE due IS NOT NULL ORDER BY due LIMIT 1";

/// Primary key of `group_turns`; unique index of groups and levels in both tables. A group that has a turn, or is blocked, at this
/// level gets none.
pub(crate) const TURN: &str = "INSERT OR IGNORE INTO mainspring_group_turns (line, level, at, limit_group)
    SELECT ?1, ?2, ?3, ?4
    WHERE NOT EXISTS (SELECT 1 FROM mainspring_blocked_groups WHERE limit_group = ?4 AND level = ?2)";
/// Unique index of groups and levels.
pub(crate) const END_TURN: &str = "DELETE FROM mainspring_group_turns WHERE limit_group = ?1 AND level = ?2";
/// Primary key of `blocked_groups`; unique index of groups and levels.
pub(crate) const BLOCK: &str = "INSERT OR IGNORE INTO mainspring_blocked_groups
    (limit_key, line, level, units, at, limit_group) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
/// Unique index of groups and levels.
pub(crate) const UNBLOCK: &str =
    "DELETE FROM mainspring_blocked_groups WHERE limit_group = ?1 AND level = ?2";
/// Primary key of `blocked_groups`: the next line, level and units of which groups are blocked at a key. One seek for each
/// part of the union, and none behind the first that finds something.
pub(crate) const NEXT_BLOCKED: &str = "SELECT * FROM (
        SELECT line, level, units FROM mainspring_blocked_groups
        WHERE limit_key = ?1 AND line = ?2 AND level = ?3 AND units > ?4 ORDER BY units LIMIT 1)
    UNION ALL SELECT * FROM (
        SELECT line, level, units FROM mainspring_blocked_groups
        WHERE limit_key = ?1 AND line = ?2 AND level > ?3 ORDER BY level, units LIMIT 1)
    UNION ALL SELECT * FROM (
        SELECT line, level, units FROM mainspring_blocked_groups
        WHERE limit_key = ?1 AND line > ?2 ORDER BY line, level, units LIMIT 1)
    LIMIT 1";
/// Primary key of `blocked_groups`: the first groups of a line, a level and units.
pub(crate) const BLOCKED: &str = "SELECT limit_group, at FROM mainspring_blocked_groups
    WHERE limit_key = ?1 AND line = ?2 AND level = ?3 AND units = ?4
    ORDER BY at, limit_group LIMIT ?5";

/// A key in this transaction.
struct Counter {
    limit: Option<Arc<Known>>,
    state: KeyState,
    due: Option<i64>,
    /// Whether its row is to be written.
    changed: bool,
    /// Whether groups that are blocked there are to be let in, if there is room.
    look: bool,
    /// Whether nobody is blocked there, as far as this transaction knows for certain.
    idle: bool,
}

impl Counter {
    fn limit(&self) -> Option<&Limit> {
        self.limit.as_deref().and_then(|known| known.limit.as_ref())
    }
}

/// Keys that this transaction has read.
#[derive(Default)]
pub(crate) struct Counters(BTreeMap<i64, Option<Counter>>);

/// Reads a key, unless it is read; `None` if there is none of this number.
fn counter<'t>(tx: &'t mut Tx<'_>, key: i64) -> Result<Option<&'t mut Counter>> {
    if !tx.counters.0.contains_key(&key) {
        let loaded = load(tx, key)?;
        tx.counters.0.insert(key, loaded);
    }
    Ok(tx.counters.0.get_mut(&key).and_then(Option::as_mut))
}

fn load(tx: &mut Tx<'_>, key: i64) -> Result<Option<Counter>> {
    let row = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, read_state(row, 1)?, row.get(5)?));
    let found = tx.conn.prepare_cached(LOAD)?.query_row([key], row).optional()?;
    let Some((limit, state, due)) = found else { return Ok(None) };
    let limit = tx.state.limits.limit(tx.conn, limit)?;
    Ok(Some(Counter { limit, state, due, changed: false, look: false, idle: false }))
}

/// How many jobs of so many units each a key lets in now. One that is missing holds nobody back.
pub(crate) fn room_at(tx: &mut Tx<'_>, key: i64, units: u16) -> Result<u32> {
    let now = tx.now;
    let Some(counter) = counter(tx, key)? else { return Ok(u32::MAX) };
    Ok(room(counter.limit(), &counter.state, units, now))
}

/// Takes units.
pub(crate) fn take(tx: &mut Tx<'_>, key: i64, units: u32) -> Result<()> {
    let now = tx.now;
    if let Some(counter) = counter(tx, key)? {
        counter.state = counter.state.take(counter.limit(), units, now);
        counter.changed = true;
        // Whoever has a turn for what room is left keeps it. When the next token comes has changed.
        counter.look |= counter.limit().is_some_and(|limit| limit.definition.rate.is_some());
    }
    Ok(())
}

/// Gives units back.
pub(crate) fn give_back(tx: &mut Tx<'_>, key: i64, units: u32) -> Result<()> {
    if let Some(counter) = counter(tx, key)? {
        counter.state = counter.state.give_back(units);
        (counter.changed, counter.look) = (true, true);
    }
    Ok(())
}

/// Has a key looked at when this transaction ends, or before the next claim.
pub(crate) fn look_later(tx: &mut Tx<'_>, key: i64) -> Result<()> {
    if let Some(counter) = counter(tx, key)? {
        counter.look = true;
    }
    Ok(())
}

/// Since when a group waits that begins to wait now: behind all that began before, as far as this process knows.
pub(crate) fn now(tx: &mut Tx<'_>) -> i64 {
    tx.state.last_turn = tx.micros().max(tx.state.last_turn + 1);
    tx.state.last_turn
}

/// Gives a turn to a group of a line, at a level, unless it has one or is blocked.
pub(crate) fn give_turn(tx: &mut Tx<'_>, line: i64, level: u8, group: i64) -> Result<()> {
    let at = now(tx);
    tx.conn.prepare_cached(TURN)?.execute(params![line, level, at, group])?;
    Ok(())
}

/// Ends a turn.
pub(crate) fn end_turn(tx: &Tx<'_>, level: u8, group: i64) -> Result<()> {
    tx.conn.prepare_cached(END_TURN)?.execute(params![group, level])?;
    Ok(())
}

/// A group at a level, and since when it waits.
#[derive(Clone, Copy)]
pub(crate) struct Turn {
    pub(crate) line: i64,
    pub(crate) level: u8,
    pub(crate) at: i64,
    pub(crate) group: i64,
}

/// Blocks a group, whose turn has ended, at a key that has no room for so many units.
pub(crate) fn block(tx: &mut Tx<'_>, (key, units): (i64, u16), turn: Turn) -> Result<()> {
    let Turn { line, level, at, group } = turn;
    tx.conn.prepare_cached(BLOCK)?.execute(params![key, line, level, units, at, group])?;
    if let Some(counter) = counter(tx, key)? {
        (counter.idle, counter.look) = (false, true);
    }
    Ok(())
}

/// Gives turns to groups that are blocked at a key, as many of each line and level as there is room for. Notes when to look again.
pub(crate) fn look(tx: &mut Tx<'_>, key: i64) -> Result<()> {
    let now = tx.now;
    let Some(counter) = counter(tx, key)? else { return Ok(()) };
    counter.look = false;
    if counter.idle {
        return Ok(());
    }
    let (known, before) = (counter.limit.clone(), counter.state);
    let limit = known.as_deref().and_then(|known| known.limit.as_ref());
    let state = before.waited_for(limit, now);
    let mut after = (i64::MIN, 0, 0);
    let mut due: Option<i64> = None;
    let mut idle = true;
    while let Some(next) = next_blocked(tx, key, after)? {
        after = next;
        let units = next.2;
        let free = room(limit, &state, units, now);
        let wanted = usize::try_from(free).unwrap_or(usize::MAX).min(bounds::BATCH);
        let let_in = unblock(tx, key, next, wanted)?;
        if let_in < wanted {
            // All of them have a turn now.
            continue;
        }
        idle = false;
        let again = match closed(limit, &state, units, now) {
            Some(Closed::Rate { until }) => Some(until.as_micros()),
            // More have room than one transaction lets in.
            None if let_in == bounds::BATCH => Some(now.as_micros()),
            // Whoever has its turn now may use up a bucket of tokens; this is looked at again when it ends.
            None | Some(Closed::Paused | Closed::Full { .. }) => None,
        };
        due = [due, again].into_iter().flatten().min();
    }
    if let Some(due) = due {
        tx.hints.due(Timestamp::from_micros(due));
    }
    if let Some(counter) = self::counter(tx, key)? {
        counter.idle = idle;
        counter.changed |= counter.due != due;
        counter.due = due;
        // Whoever waits there waits for a time that comes, whatever the clock or the rate was before.
        if !idle && state != before {
            (counter.state, counter.changed) = (state, true);
        }
    }
    Ok(())
}

fn next_blocked(
    tx: &Tx<'_>,
    key: i64,
    (line, level, units): (i64, u8, u16),
) -> Result<Option<(i64, u8, u16)>> {
    let values = params![key, line, level, units];
    let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    Ok(tx.conn.prepare_cached(NEXT_BLOCKED)?.query_row(values, row).optional()?)
}

/// Gives turns to the first groups of a line, a level and units. Returns to how many.
fn unblock(tx: &mut Tx<'_>, key: i64, (line, level, units): (i64, u8, u16), wanted: usize) -> Result<usize> {
    if wanted == 0 {
        return Ok(0);
    }
    let groups = tx
        .conn
        .prepare_cached(BLOCKED)?
        .query_map(params![key, line, level, units, as_i64(wanted)], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<Vec<(i64, i64)>>>()?;
    for (group, at) in &groups {
        tx.conn.prepare_cached(UNBLOCK)?.execute(params![group, level])?;
        tx.conn.prepare_cached(TURN)?.execute(params![line, level, at, group])?;
    }
    if let Ok(line) = tx.state.names.line(line)
        && !groups.is_empty()
    {
        tx.hints.ready(&line.queue_name);
    }
    Ok(groups.len())
}

/// Lets in whoever has room at keys that were touched.
pub(crate) fn settle(tx: &mut Tx<'_>) -> Result<()> {
    let touched: Vec<i64> = tx
        .counters
        .0
        .iter()
        .filter(|(_, counter)| counter.as_ref().is_some_and(|counter| counter.look))
        .map(|(key, _)| *key)
        .collect();
    touched.into_iter().try_for_each(|key| look(tx, key))
}

/// Writes what has changed, and forgets all: the next one reads anew.
pub(crate) fn save(tx: &mut Tx<'_>) -> Result<()> {
    if tx.counters.0.is_empty() {
        return Ok(());
    }
    settle(tx)?;
    for (key, counter) in std::mem::take(&mut tx.counters.0) {
        if let Some(Counter { state, due, changed: true, .. }) = counter {
            let next_free = state.next_free.map(Timestamp::as_micros);
            tx.conn.prepare_cached(SAVE)?.execute(params![key, state.in_use, next_free, due])?;
        }
    }
    Ok(())
}

/// Looks at keys whose time has come, at most so many. Returns how many there were.
pub(crate) fn wake(tx: &mut Tx<'_>, limit: usize) -> Result<usize> {
    save(tx)?;
    let keys = tx
        .conn
        .prepare_cached(DUE)?
        .query_map(params![tx.micros(), as_i64(limit)], |row| row.get(0))?
        .collect::<rusqlite::Result<Vec<i64>>>()?;
    for key in &keys {
        if let Some(counter) = counter(tx, *key)? {
            (counter.due, counter.changed, counter.look) = (None, true, true);
        }
    }
    save(tx)?;
    Ok(keys.len())
}

/// When the next key is to be looked at.
pub(crate) fn next_due(tx: &Tx<'_>) -> Result<Option<Timestamp>> {
    let next = tx.conn.prepare_cached(NEXT_DUE)?.query_row([], |row| row.get(0)).optional()?;
    Ok(next.map(Timestamp::from_micros))
}
