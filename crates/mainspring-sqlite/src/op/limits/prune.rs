//! What nobody needs of limits any more, and groups that have lost their turn.
//!
//! Each call looks at a bounded number of groups, of keys and of limited jobs, from where the last one stopped, round and round.
//!
//! # Invariants
//! - A group or a key is removed only if no row names it, so its number may be given out again.
//! - A call that finds nothing writes nothing.

use mainspring_core::store::Level;
use rusqlite::types::Value;
use rusqlite::{OptionalExtension, params};

use super::counters;
use crate::error::Result;
use crate::op::{as_i64, claim, place, settings};
use crate::writer::Tx;

/// Groups, and keys, that one call looks at.
const LOOKED_AT: usize = 1_000;
/// Groups of limited jobs that one call looks at: a seek or two for each.
const WALKED: usize = 1_000;

/// Primary keys and indexes, from a number on: groups without jobs, turns, or blocks.
pub(crate) const GROUPS: &str = "SELECT g.no, NOT EXISTS (
        SELECT 1 FROM mainspring_limited p WHERE p.line = g.line AND p.limit_group = g.no)
    AND NOT EXISTS (SELECT 1 FROM mainspring_group_turns t WHERE t.limit_group = g.no)
    AND NOT EXISTS (SELECT 1 FROM mainspring_blocked_groups b WHERE b.limit_group = g.no)
    FROM mainspring_limit_groups g WHERE g.no > ?1 ORDER BY g.no LIMIT ?2";
/// Primary key: whoever holds the units of a group has them counted at each of its keys.
const IN_USE: &str = "SELECT EXISTS (SELECT 1 FROM mainspring_limit_keys WHERE no = ?1 AND in_use > 0)";
/// Primary keys.
const FORGET_GROUP: &str = "DELETE FROM mainspring_limit_groups WHERE no = ?1";
const FORGET_KEY_GROUP: &str =
    "DELETE FROM mainspring_limit_key_groups WHERE limit_key = ?1 AND limit_group = ?2";
/// Primary keys, from a number on: keys that no group names, of which nothing was set or is held, and whose tokens are back.
pub(crate) const KEYS: &str = "SELECT k.no, k.in_use = 0 AND k.max IS NULL AND k.paused = 0
        AND coalesce(k.next_free, ?3) <= ?3 AND k.due IS NULL
        AND NOT EXISTS (SELECT 1 FROM mainspring_limit_key_groups g WHERE g.limit_key = k.no)
        AND NOT EXISTS (SELECT 1 FROM mainspring_blocked_groups b WHERE b.limit_key = k.no)
        AND EXISTS (SELECT 1 FROM mainspring_limits l WHERE l.no = k.limit_no AND l.scope = ?4)
    FROM mainspring_limit_keys k WHERE k.no > ?1 ORDER BY k.no LIMIT ?2";
/// Primary key.
const FORGET_KEY: &str = "DELETE FROM mainspring_limit_keys WHERE no = ?1";

/// Index `limited_claim`: the next group and level that has limited jobs. One seek for each part of the union, and none behind the
/// first that finds something.
pub(crate) const NEXT_GROUP: &str = "SELECT * FROM (
        SELECT line, limit_group, level FROM mainspring_limited
        WHERE line = ?1 AND limit_group = ?2 AND level > ?3 ORDER BY level LIMIT 1)
    UNION ALL SELECT * FROM (
        SELECT line, limit_group, level FROM mainspring_limited
        WHERE line = ?1 AND limit_group > ?2 ORDER BY limit_group, level LIMIT 1)
    UNION ALL SELECT * FROM (
        SELECT line, limit_group, level FROM mainspring_limited
        WHERE line > ?1 ORDER BY line, limit_group, level LIMIT 1)
    LIMIT 1";
/// Unique indexes of groups and levels.
pub(crate) const STANDS: &str = "SELECT EXISTS (
        SELECT 1 FROM mainspring_group_turns WHERE limit_group = ?1 AND level = ?2 AND line = ?3)
    OR EXISTS (
        SELECT 1 FROM mainspring_blocked_groups WHERE limit_group = ?1 AND level = ?2 AND line = ?3)";
/// Unique indexes of groups and levels: what stands in the way of a turn, in another line.
const CLEAR_TURN: &str = "DELETE FROM mainspring_group_turns WHERE limit_group = ?1 AND level = ?2";
const CLEAR_BLOCK: &str = "DELETE FROM mainspring_blocked_groups WHERE limit_group = ?1 AND level = ?2";
/// Index `limited_claim`.
const JOBS: &str = "SELECT no FROM mainspring_limited
    WHERE line = ?1 AND limit_group = ?2 AND level = ?3 LIMIT ?4";

/// Index `limited_claim`: the next level of a group that has jobs.
pub(crate) const NEXT_LEVEL: &str = "SELECT level FROM mainspring_limited
    WHERE line = ?1 AND limit_group = ?2 AND level > ?3 ORDER BY level LIMIT 1";

/// How far groups, keys and limited jobs have been looked through.
#[derive(Debug, Clone)]
pub(crate) struct Positions {
    group: i64,
    key: i64,
    walk: [Value; 3],
}

impl Default for Positions {
    fn default() -> Self {
        Positions { group: i64::MIN, key: i64::MIN, walk: [const { Value::Integer(i64::MIN) }; 3] }
    }
}

/// Removes groups and keys that nobody needs, and gives turns to groups that have lost theirs.
pub(crate) fn run(tx: &mut Tx<'_>) -> Result<()> {
    counters::save(tx)?;
    let mut at = std::mem::take(&mut tx.state.limits_pruned);
    let done = walk(tx, &mut at).and_then(|()| remove(tx, &mut at));
    tx.state.limits_pruned = at;
    done
}

fn remove(tx: &mut Tx<'_>, at: &mut Positions) -> Result<()> {
    let limit = as_i64(LOOKED_AT);
    let flagged = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, bool>(1)?));
    let groups = tx
        .conn
        .prepare_cached(GROUPS)?
        .query_map([at.group, limit], flagged)?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    at.group = next(&groups);
    let mut removed = false;
    for (no, _) in groups.into_iter().filter(|(_, unused)| *unused) {
        // One that cannot be read stays for whoever mends it.
        let Some(group) = tx.state.limits.group(tx.conn, no)? else { continue };
        let mut in_use = tx.conn.prepare_cached(IN_USE)?;
        let held = |key: i64| in_use.query_row([key], |row| row.get::<_, bool>(0));
        if group
            .uses
            .iter()
            .map(|(key, _)| *key)
            .map(held)
            .collect::<rusqlite::Result<Vec<_>>>()?
            .contains(&true)
        {
            continue;
        }
        for (key, _) in &group.uses {
            tx.conn.prepare_cached(FORGET_KEY_GROUP)?.execute([*key, no])?;
        }
        tx.conn.prepare_cached(FORGET_GROUP)?.execute([no])?;
        removed = true;
    }
    let keys = tx
        .conn
        .prepare_cached(KEYS)?
        .query_map(params![at.key, limit, tx.micros(), super::scope::NAMED], flagged)?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    at.key = next(&keys);
    for (no, _) in keys.into_iter().filter(|(_, unused)| *unused) {
        tx.conn.prepare_cached(FORGET_KEY)?.execute([no])?;
        removed = true;
    }
    // Others remember numbers that are free now.
    if removed { settings::changed(tx) } else { Ok(()) }
}

/// Where the next look begins: behind these, or at the first again.
fn next(seen: &[(i64, bool)]) -> i64 {
    seen.last().filter(|_| seen.len() == LOOKED_AT).map_or(i64::MIN, |(no, _)| *no)
}

/// Looks whether groups with jobs have a turn or are blocked. Only a damaged file has some that do not.
fn walk(tx: &mut Tx<'_>, at: &mut Positions) -> Result<()> {
    for _ in 0..WALKED {
        let [line, group, level] = &at.walk;
        let row =
            |row: &rusqlite::Row<'_>| Ok([place::raw(row, 0)?, place::raw(row, 1)?, place::raw(row, 2)?]);
        let found =
            tx.conn.prepare_cached(NEXT_GROUP)?.query_row(params![line, group, level], row).optional()?;
        let Some(found) = found else {
            at.walk = Positions::default().walk;
            return Ok(());
        };
        stand(tx, &found)?;
        at.walk = found;
    }
    Ok(())
}

/// Looks at the levels of a group that has no job where it had a turn. Of a damaged row the level may be none.
pub(crate) fn look_at_levels(tx: &mut Tx<'_>, line: i64, group: i64) -> Result<()> {
    let mut found = [Value::Integer(line), Value::Integer(group), Value::Integer(i64::MIN)];
    loop {
        let next = tx
            .conn
            .prepare_cached(NEXT_LEVEL)?
            .query_row(params![line, group, found[2]], |row| place::raw(row, 0))
            .optional()?;
        let Some(level) = next else { return Ok(()) };
        found[2] = level;
        stand(tx, &found)?;
    }
}

/// Sees to it that jobs of a line, a group and a level are met by a claim.
fn stand(tx: &mut Tx<'_>, found: &[Value; 3]) -> Result<()> {
    if let [Value::Integer(line), Value::Integer(group), Value::Integer(level)] = found
        && let Some(level) = u8::try_from(*level).ok().and_then(Level::from_code)
        && tx.state.names.line(*line).is_ok()
        && tx.state.limits.group(tx.conn, *group)?.is_some_and(|known| known.line == *line)
    {
        let key = params![group, level.code(), line];
        if !tx.conn.prepare_cached(STANDS)?.query_row(key, |row| row.get(0))? {
            tracing::error!(group, "a group of limited jobs had no turn and gets one");
            tx.conn.prepare_cached(CLEAR_TURN)?.execute(params![group, level.code()])?;
            tx.conn.prepare_cached(CLEAR_BLOCK)?.execute(params![group, level.code()])?;
            counters::give_turn(tx, *line, level.code(), *group)?;
        }
        return Ok(());
    }
    let [line, group, level] = found;
    let lost = tx
        .conn
        .prepare_cached(JOBS)?
        .query_map(params![line, group, level, as_i64(LOOKED_AT)], |row| row.get(0))?
        .collect::<rusqlite::Result<Vec<i64>>>()?;
    for no in lost {
        claim::claim_unreadable(
            tx,
            no,
            "its line, its level or its group in `limited` is none; resuming it gives it those that it had",
        )?;
    }
    Ok(())
}
