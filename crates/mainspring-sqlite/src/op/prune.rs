//! Prune: ended jobs whose retention is over, and what is left of nodes and keys.
//!
//! `done` is appended in the order of ending, so there is no index on the time: for each distinct retention a position
//! moves along it, and each row is looked at once per retention. Positions are stored with the first removal, and
//! dropped when a queue's settings change.
//!
//! # Invariants
//! - A job is removed only by its row that is not superseded, so never while it is in another place.
//! - A prune that removes nothing writes nothing.

use std::time::Duration;

use mainspring_core::bounds;
use mainspring_core::job::State;
use mainspring_core::named;
use mainspring_core::time::micros;
use rusqlite::params;

use super::{counts, limits, remove, unique_key};
use crate::error::{Result, corrupt};
use crate::writer::Tx;

/// Rows that one call looks at: some tens of milliseconds.
const LOOKED_AT: usize = 100_000;
/// Rows of journals and inboxes after which a call is over: some hundred milliseconds.
pub(crate) const ROWS: usize = 50_000;

/// Primary key of `done`, from a position on.
pub(crate) const AFTER: &str = "SELECT d.seq, d.no, d.state, d.finished_at, d.superseded, j.line, d.flags
    FROM mainspring_done d LEFT JOIN mainspring_jobs j ON j.no = d.no WHERE d.seq > ?1 ORDER BY d.seq";
/// The whole of a small table.
const POSITIONS: &str = "SELECT period, position FROM mainspring_retention";
/// Primary key.
const STORE: &str = "INSERT INTO mainspring_retention (period, position) VALUES (?1, ?2)
    ON CONFLICT (period) DO UPDATE SET position = excluded.position";
/// The whole of a small table: nodes are few, and this is their broom.
const NODES: &str =
    named!("DELETE FROM mainspring_nodes WHERE state <> {node.live} AND drained = 1 AND renewed_at <= ?1");

/// A job whose retention is over.
struct Over {
    seq: i64,
    no: i64,
    state: State,
    flags: i16,
}

/// What one call has done.
pub(crate) struct Pruned {
    /// Jobs removed.
    pub(crate) removed: usize,
    /// Whether it stopped before its limit, because long journals went with them.
    pub(crate) more: bool,
}

/// Removes what is over.
pub(crate) fn run(tx: &mut Tx<'_>, limit: usize) -> Result<Pruned> {
    load(tx)?;
    let before = tx.state.pruned.clone();
    let (mut removed, mut looked_at, mut rows) = (0, 0, 0);
    let periods = tx.state.retentions.clone();
    for period in periods {
        if removed >= limit || looked_at >= LOOKED_AT || rows >= ROWS {
            break;
        }
        let over = look(tx, period, limit - removed, &mut looked_at)?;
        for Over { seq, no, state, flags } in over {
            if rows >= ROWS {
                // The next call goes on here.
                tx.state.pruned.insert(period, seq - 1);
                break;
            }
            rows += remove::ended(tx, no, state, flags)?;
            removed += 1;
        }
    }
    if removed > 0 {
        let moved = tx.state.pruned.iter().filter(|(period, position)| before.get(period) != Some(position));
        for (period, position) in moved {
            tx.conn.prepare_cached(STORE)?.execute(params![period, position])?;
        }
        tx.state.numbers.keep(tx.conn)?;
    }
    let now = tx.micros();
    unique_key::prune(tx.conn, now, i64::try_from(bounds::BATCH).unwrap_or(i64::MAX))?;
    tx.conn.prepare_cached(NODES)?.execute([now.saturating_sub(micros(bounds::NODE_RETENTION))])?;
    counts::fold(tx.conn)?;
    limits::prune::run(tx)?;
    Ok(Pruned { removed, more: rows >= ROWS && removed < limit })
}

/// Brings the positions in line with the settings of the queues.
fn load(tx: &mut Tx<'_>) -> Result<()> {
    let mut periods: Vec<i64> = tx
        .state
        .names
        .queues()
        .flat_map(|(_, queue)| [queue.settings.retention.succeeded, queue.settings.retention.failed])
        .map(|span| micros(span.0))
        .collect();
    periods.sort_unstable();
    periods.dedup();
    if periods != tx.state.retentions {
        tx.state.pruned.clear();
        tx.state.retentions = periods;
    }
    if tx.state.pruned.is_empty() {
        let mut statement = tx.conn.prepare_cached(POSITIONS)?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        tx.state.pruned = rows.collect::<rusqlite::Result<_>>()?;
    }
    Ok(())
}

/// Moves the position of one retention along, and returns the jobs on the way that are over.
fn look(tx: &mut Tx<'_>, period: i64, limit: usize, looked_at: &mut usize) -> Result<Vec<Over>> {
    let names = &tx.state.names;
    let end = tx.micros().saturating_sub(period);
    let mut position = tx.state.pruned.get(&period).copied().unwrap_or(0);
    let mut over = Vec::new();
    let mut statement = tx.conn.prepare_cached(AFTER)?;
    let mut rows = statement.query([position])?;
    while over.len() < limit && *looked_at < LOOKED_AT {
        let Some(row) = rows.next()? else { break };
        if row.get::<_, i64>(3)? > end {
            break;
        }
        *looked_at += 1;
        position = row.get(0)?;
        // A superseded row goes with its job.
        let line: Option<i64> = row.get(5)?;
        let (Some(line), false) = (line, row.get(4)?) else { continue };
        let state = State::from_code(row.get(2)?).ok_or_else(|| corrupt("an unknown state"))?;
        // Of one whose line is none nobody knows how long it is kept: it stays until somebody deletes it.
        let Ok(line) = names.line(line) else { continue };
        let kept: Duration = names.queue(line.queue)?.settings.retention.of(state);
        if micros(kept) <= period {
            over.push(Over { seq: position, no: row.get(1)?, state, flags: row.get(6)? });
        }
    }
    drop(rows);
    drop(statement);
    tx.state.pruned.insert(period, position);
    Ok(over)
}
