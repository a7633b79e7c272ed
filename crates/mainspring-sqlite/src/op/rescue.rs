//! Rescue: the dead are expired, and their jobs given back.
//!
//! # Invariants
//! - A node is expired only by proof of death, or after its lease and with claims, by a rescuer that was steady for at
//!   least that lease.
//! - Nodes of this handle are judged by their lease alone: its own lock proves nothing.

use mainspring_core::bounds;
use mainspring_core::id::NodeNo;
use mainspring_core::job::{Fault, Input, Reason, State, Status, transition};
use mainspring_core::named;
use mainspring_core::store::{NodeState, Rescue, Rescued, flags};
use mainspring_core::time::micros;
use rusqlite::params;

use super::moves::{self, SuspendedRow};
use super::place::{self, Card, leased, read_leased};
use super::{finish, node};
use crate::error::{Result, corrupt};
use crate::process_lock::{self, Dead};
use crate::writer::Tx;
use std::time::Duration;

/// Partial index `nodes_live`: nodes that live, and dead ones whose claims are still to be moved.
pub(crate) const LIVING: &str = named!(
    "SELECT no, state, lease, lease_until, lock FROM mainspring_nodes
    WHERE state = {node.live} OR drained = 0 ORDER BY no"
);
/// A scan of `lease` up to the first match; only for nodes whose lease has lapsed.
const HOLDS: &str = "SELECT EXISTS (SELECT 1 FROM mainspring_lease WHERE node = ?1)";
/// Primary key.
const EXPIRE: &str = named!("UPDATE mainspring_nodes SET state = {node.expired}, drained = 0 WHERE no = ?1");
const DRAINED: &str = "UPDATE mainspring_nodes SET drained = 1 WHERE no = ?1";
/// A scan of `lease`, whose size is bounded by the slots of all nodes; only for dead nodes.
const ORPHANS: &str = leased!("node = ?1 ORDER BY no LIMIT ?2");

struct Row {
    no: i64,
    live: bool,
    lease: i64,
    until: i64,
    lock: String,
}

/// Expires the dead and moves their jobs.
pub(crate) fn run(tx: &mut Tx<'_>, rescue: Rescue) -> Result<Rescued> {
    node::check_live(tx, rescue.by)?;
    let rows = tx
        .conn
        .prepare_cached(LIVING)?
        .query_map([], |row| {
            let live = row.get::<_, u8>(1)? == NodeState::Live.code();
            Ok(Row { no: row.get(0)?, live, lease: row.get(2)?, until: row.get(3)?, lock: row.get(4)? })
        })?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    let mut rescued = Rescued {
        now: tx.now,
        expired: Vec::new(),
        returned: 0,
        quarantined: 0,
        more: false,
        shortest_lease: bounds::LEASE_MAX,
    };
    let mut left = bounds::BATCH;
    for row in rows {
        if row.live {
            if row.no == rescue.by.0 || !is_dead(tx, rescue, &row)? {
                let lease = Duration::from_micros(u64::try_from(row.lease).unwrap_or(0));
                rescued.shortest_lease = rescued.shortest_lease.min(lease);
                continue;
            }
            tx.conn.prepare_cached(EXPIRE)?.execute([row.no])?;
            tx.state.nodes.remove(&row.no);
            rescued.expired.push(NodeNo(row.no));
        }
        left -= drain(tx, row.no, left, &mut rescued)?;
    }
    Ok(rescued)
}

fn is_dead(tx: &mut Tx<'_>, rescue: Rescue, row: &Row) -> Result<bool> {
    if let Some(proof) = proof(tx, row) {
        tx.dead.push(proof);
        return Ok(true);
    }
    let silence = micros(tx.now.since(rescue.seen));
    if row.until > tx.micros() || micros(rescue.steady) < row.lease || silence > row.lease / 2 {
        return Ok(false);
    }
    Ok(tx.conn.prepare_cached(HOLDS)?.query_row([row.no], |row| row.get(0))?)
}

/// Whether the operating system says that a node's process is gone.
fn proof(tx: &Tx<'_>, row: &Row) -> Option<Dead> {
    let home = tx.state.home.as_ref()?;
    if tx.state.locks.iter().any(|own| own.name() == row.lock) {
        return None;
    }
    // Two nodes of one process: the lock that proved the first one's death is held by us now.
    if let Some(known) = tx.dead.iter().find(|dead| dead.is(&row.lock)) {
        return Some(known.again());
    }
    process_lock::probe(&home.path, &row.lock)
}

/// Moves jobs of a dead node, at most `left`. Returns how many.
fn drain(tx: &mut Tx<'_>, node: i64, left: usize, rescued: &mut Rescued) -> Result<usize> {
    // One more than may be moved tells whether there is more.
    let orphans = tx
        .conn
        .prepare_cached(ORPHANS)?
        .query_map(params![node, i64::try_from(left + 1).unwrap_or(i64::MAX)], |row| {
            // Flags that cannot be read say nothing.
            let ahead = row.get::<_, i16>(7).is_ok_and(|flags| flags & flags::AHEAD != 0);
            Ok((read_leased(row)?, ahead))
        })?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    let moved = orphans.len().min(left);
    let more = orphans.len() > left;
    for ((card, cancel), ahead) in orphans.into_iter().take(left) {
        let mut card = place::mend(tx, card)?;
        let cancel = finish::cancel_now(tx, &mut card, cancel)?;
        moves::leave_lease(tx, &mut card, false)?;
        moves::count(tx, card.line, State::Running, -1);
        match cancel {
            Some(why) => finish::stop(tx, &card, &why)?,
            None => crash(tx, card, ahead, rescued)?,
        }
    }
    if more {
        rescued.more = true;
    } else {
        tx.conn.prepare_cached(DRAINED)?.execute([node])?;
    }
    Ok(moved)
}

/// Counts a crash, unless the job was only claimed ahead, and puts it where that leads.
fn crash(tx: &mut Tx<'_>, mut card: Card, ahead: bool, rescued: &mut Rescued) -> Result<()> {
    if !ahead {
        let now = tx.micros();
        let at = card.began.and_then(|began| began.at).unwrap_or(now);
        card.crashes = (card.crashes + 1).min(i64::from(u16::MAX));
        card.crashed = card.crashed.max(now.saturating_sub(at));
        finish::note(tx, &card, &Fault::crashed())?;
    }
    let quarantine = !ahead && card.crashes >= i64::from(bounds::QUARANTINE_CRASHES);
    let to = transition(Status::plain(State::Running), Input::Crash { quarantine })
        .map_err(|illegal| corrupt(illegal.to_string()))?;
    if to.state == State::Suspended {
        rescued.quarantined += 1;
        moves::enter_suspended(tx, &card, &SuspendedRow::plain(to.reason.unwrap_or(Reason::Quarantine)))
    } else {
        rescued.returned += 1;
        moves::enter_ready(tx, &card, moves::lost(&card))
    }
}
