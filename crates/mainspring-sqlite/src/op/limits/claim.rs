//! Claims of limited jobs: turn by turn, each group as far as there is room.
//!
//! A visit of a turn reads the first jobs of its group, moves as many as all keys let in, and ends the turn: a group that has
//! more jobs gets another one behind the others, or is blocked at the key that has no room for the next. Either way the keys that it
//! leaves with room let others in, which this claim meets then.
//!
//! # Invariants
//! - A visit that takes no job removes its turn, and the group comes back by room at a key without any alone: so a claim ends.
//! - A claim that could take a job takes one, unless ten thousand turns before it come to nothing; then it asks to be repeated.

use mainspring_core::bounds;
use mainspring_core::store::{Claimed, Level};
use rusqlite::params;

use super::counters::{self, Turn};
use super::prune;
use crate::error::Result;
use crate::op::as_i64;
use crate::op::claim::{self, Takers};
use crate::op::moves::{HOLD_LIMITED, INTO_HOLDERS, TAKE_LIMITED};
use crate::writer::Tx;

/// Turns that one claim visits at a level once it has a job: some ten milliseconds.
const VISITS: usize = 1_000;
/// Turns that it visits if none comes to anything. Each leaves its group blocked, so the next claims have the fewer.
const VAIN_VISITS: usize = 10_000;
/// Jobs that a group may give at one visit, even if others have turns: fewer statements than one by one.
const QUANTUM: usize = 8;

/// Primary key of `group_turns`: the first turns of a line and level.
pub(crate) const TURNS: &str = "SELECT at, limit_group FROM mainspring_group_turns
    WHERE line = ?1 AND level = ?2 ORDER BY at, limit_group LIMIT ?3";
/// Index `limited_claim`: jobs of a group that is none, or cannot be read.
const LOST: &str = "SELECT no FROM mainspring_limited
    WHERE line = ?1 AND limit_group = ?2 AND level = ?3 LIMIT ?4";

/// How many jobs are wanted, and how many of them are for free slots.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) jobs: usize,
    pub(crate) free: usize,
}

/// Takes from groups of these lines that have turns at a level, in order of their turns.
pub(crate) fn take(
    tx: &mut Tx<'_>,
    takers: &Takers<'_>,
    lines: &[i64],
    level: Level,
    wanted: Wanted,
    jobs: &mut Vec<Claimed>,
) -> Result<()> {
    let before = jobs.len();
    let mut visits = 0;
    loop {
        let left = wanted.jobs - (jobs.len() - before);
        if left == 0 {
            break;
        }
        let mut turns = Vec::new();
        for line in lines {
            let mut statement = tx.conn.prepare_cached(TURNS)?;
            let rows = statement.query_map(params![line, level.code(), as_i64(left)], |row| {
                Ok(Turn { line: *line, level: level.code(), at: row.get(0)?, group: row.get(1)? })
            })?;
            turns.extend(rows.collect::<rusqlite::Result<Vec<_>>>()?);
        }
        if turns.is_empty() {
            break;
        }
        turns.sort_unstable_by_key(|turn| (turn.at, turn.group));
        let quota = left.div_ceil(turns.len()).max(QUANTUM);
        for turn in turns {
            let taken = jobs.len() - before;
            let free = wanted.free.saturating_sub(taken);
            // All that a visit takes is for free slots, or none of it.
            let most = quota.min(wanted.jobs - taken).min(if free == 0 { usize::MAX } else { free });
            if most == 0 {
                return Ok(());
            }
            if visits >= if taken > 0 { VISITS } else { VAIN_VISITS } {
                // The next claim goes on.
                if let Ok(line) = tx.state.names.line(turn.line) {
                    tx.hints.ready(&line.queue_name);
                }
                return Ok(());
            }
            visits += 1;
            visit(tx, takers, turn, (most, free == 0), jobs)?;
        }
    }
    Ok(())
}

/// Takes what a group may have now, and ends its turn.
fn visit(
    tx: &mut Tx<'_>,
    takers: &Takers<'_>,
    turn: Turn,
    (wanted, ahead): (usize, bool),
    jobs: &mut Vec<Claimed>,
) -> Result<()> {
    let Turn { line, level, at: _, group: no } = turn;
    counters::end_turn(tx, level, no)?;
    let Some(group) = tx.state.limits.group(tx.conn, no)?.filter(|group| group.line == line) else {
        return set_aside(tx, turn);
    };
    let mut keys = group.uses.clone();
    let totals = tx.state.limits.totals(tx.state.names.line(line)?);
    keys.extend(totals.map(|key| (key, 1)));
    // One more than may be taken tells whether there are more.
    let (room, full) = room(tx, &keys, wanted)?;
    let read = claim::first_limited(tx, (line, no, level), room + 1)?;
    if read.is_empty() {
        prune::look_at_levels(tx, line, no)?;
    }
    let more = read.len() > room;
    let mut met_unreadable = false;
    let before = jobs.len();
    for (number, read) in read.into_iter().take(room) {
        match read {
            Ok((claimed, flags)) => {
                claim::started(tx, number, flags)?;
                jobs.push(Claimed { ahead, ..claimed });
            }
            Err(why) => {
                claim::claim_unreadable(tx, number, &why)?;
                met_unreadable = true;
            }
        }
    }
    let count = jobs.len() - before;
    if count > 0 {
        hold(tx, takers, turn, count, ahead)?;
        for (key, units) in &keys {
            let units = u32::from(*units).saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
            counters::take(tx, *key, units)?;
        }
    }
    if more || met_unreadable {
        match full.filter(|_| count == room && !met_unreadable) {
            // One that got nothing has not been served: it waits since before.
            Some(key) if count == 0 => counters::block(tx, key, turn)?,
            Some(key) => {
                let at = counters::now(tx);
                counters::block(tx, key, Turn { at, ..turn })?;
            }
            None => counters::give_turn(tx, line, level, no)?,
        }
    }
    // What a visit takes it had its turn for. One that takes nothing passes that on.
    if count == 0 {
        for (key, _) in &keys {
            counters::look(tx, *key)?;
        }
    }
    Ok(())
}

/// How many jobs all of these keys let in, at most so many; and a key that lets in no more than that.
fn room(tx: &mut Tx<'_>, keys: &[(i64, u16)], wanted: usize) -> Result<(usize, Option<(i64, u16)>)> {
    let (mut room, mut full) = (wanted, None);
    for (key, units) in keys {
        let there = usize::try_from(counters::room_at(tx, *key, *units)?).unwrap_or(usize::MAX);
        if there < room || there == room && full.is_none() {
            (room, full) = (there, Some((*key, *units)));
        }
    }
    Ok((room, full))
}

/// Moves the first jobs of a group.
fn hold(tx: &Tx<'_>, takers: &Takers<'_>, turn: Turn, count: usize, ahead: bool) -> Result<()> {
    let Turn { line, level, at: _, group } = turn;
    let count_no = as_i64(count);
    let values = params![takers.node, takers.batch, tx.micros(), line, group, level, count_no, ahead];
    let held = tx.conn.prepare_cached(HOLD_LIMITED)?.execute(values)?;
    let which = params![line, group, level, count_no];
    let holders = tx.conn.prepare_cached(INTO_HOLDERS)?.execute(which)?;
    let taken = tx.conn.prepare_cached(TAKE_LIMITED)?.execute(which)?;
    // Not an error to return: the transaction must not commit.
    assert!(
        held == count && holders == count && taken == count,
        "a claim moves what it read: {count}, {held}, {holders}, {taken}"
    );
    Ok(())
}

/// Sets jobs aside whose group is none: resuming them gives them the one that they should have.
fn set_aside(tx: &mut Tx<'_>, turn: Turn) -> Result<()> {
    let Turn { line, level, at: _, group } = turn;
    let values = params![line, group, level, as_i64(bounds::BATCH)];
    let mut statement = tx.conn.prepare_cached(LOST)?;
    let lost = statement.query_map(values, |row| row.get(0))?.collect::<rusqlite::Result<Vec<i64>>>()?;
    for no in &lost {
        claim::claim_unreadable(tx, *no, "its group in `limited` is none; resuming it gives it its own")?;
    }
    if lost.len() == bounds::BATCH {
        counters::give_turn(tx, line, level, group)?;
    }
    Ok(())
}
