//! Nodes: join, renew, retire.

use std::sync::Arc;

use mainspring_core::Error;
use mainspring_core::id::{Claim, JobId, NodeNo, Row};
use mainspring_core::named;
use mainspring_core::store::{
    Cancellation, Mark, NodeState, Registered, Registration, Renewal, Renewed, flags,
};
use mainspring_core::time::micros;
use rusqlite::{Connection, OptionalExtension, params};
use serde_json::{from_str, to_string};

use super::finish;
use super::place::{self, leased, read_leased};
use crate::error::{Result, corrupt};
use crate::process_lock::Lock;
use crate::writer::{Local, Tx};

/// Unique index of ids.
const FIND: &str = "SELECT no FROM mainspring_nodes WHERE id = ?1";
/// `AUTOINCREMENT` gives numbers that were never given before.
const ADD: &str = "INSERT INTO mainspring_nodes
    (id, name, version, pid, lock, abilities, queues, lease, started_at, renewed_at, lease_until, state)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?9, ?10, 0)";
/// Primary key.
const LOOK: &str = "SELECT state, lease, lease_until FROM mainspring_nodes WHERE no = ?1";
/// Primary key.
const DETAILS: &str = "SELECT abilities FROM mainspring_nodes WHERE no = ?1";
/// Primary key; none of the columns is indexed.
const RENEW: &str = "UPDATE mainspring_nodes SET renewed_at = ?2, lease_until = ?3, backed_up = ?4, reported_at = ?2, activity = ?5
    WHERE no = ?1";
/// The same for a claim, which says nothing of its node.
const EXTEND: &str = "UPDATE mainspring_nodes SET renewed_at = ?2, lease_until = ?3 WHERE no = ?1";
/// Primary key, and the partial index of the living.
const RETIRE: &str =
    named!("UPDATE mainspring_nodes SET state = {node.retired} WHERE no = ?1 AND state = {node.live}");
/// Partial index `lease_cancel`, then the primary key of `jobs`.
pub(crate) const FLAGGED: &str = "SELECT j.id, l.no, l.claim, l.cancel, l.flags
    FROM mainspring_lease l JOIN mainspring_jobs j ON j.no = l.no
    WHERE l.node = ?1 AND l.cancel IS NOT NULL ORDER BY l.no";
/// Primary key; a stale claim meets no row.
const STUCK: &str = named!(
    "UPDATE mainspring_lease SET stuck = {stuck.blocked}
    WHERE no = ?1 AND claim = ?2 AND node = ?3 AND stuck <> {stuck.blocked}"
);
const FOREIGN: &str = named!(
    "UPDATE mainspring_lease SET stuck = {stuck.foreign}
    WHERE no = ?1 AND claim = ?2 AND node = ?3 AND stuck NOT IN ({stuck.blocked}, {stuck.foreign})"
);
const GOES_ON: &str = named!(
    "UPDATE mainspring_lease SET stuck = {stuck.none}
    WHERE no = ?1 AND claim = ?2 AND node = ?3 AND stuck = {stuck.foreign}"
);
const CLEARED: &str = "UPDATE mainspring_lease SET crashes = 1
    WHERE no = ?1 AND claim = ?2 AND node = ?3 AND crashes > 1";
/// A scan of `lease`, whose size is bounded by the slots of all nodes; once in a node's life.
const HELD: &str = leased!("node = ?1 ORDER BY no");

/// Partial index `nodes_live`.
const REFERS: &str =
    named!("SELECT EXISTS (SELECT 1 FROM mainspring_nodes WHERE state = {node.live} AND lock = ?1)");

/// Whether a node that is not known to be gone has this lock.
pub(crate) fn refers_to(conn: &Connection, lock: &str) -> rusqlite::Result<bool> {
    conn.prepare_cached(REFERS)?.query_row([lock], |row| row.get(0))
}

/// Makes a node known.
pub(crate) fn register(tx: &mut Tx<'_>, node: &Registration) -> Result<Registered> {
    let found: Option<i64> =
        tx.conn.prepare_cached(FIND)?.query_row([node.id.as_bytes()], |row| row.get(0)).optional()?;
    if let Some(no) = found {
        return Ok(Registered { no: NodeNo(no), now: tx.now });
    }
    // Before the row: whoever sees the row must find the lock held.
    let lock = lock_name(tx)?;
    for (queue, _) in &node.queues {
        super::settings::name(tx, queue)?;
    }
    let json = |error: serde_json::Error| corrupt(format!("registration: {error}"));
    let (now, lease) = (tx.micros(), micros(node.lease));
    tx.conn.prepare_cached(ADD)?.execute(params![
        node.id.as_bytes(),
        node.name,
        node.version,
        node.pid,
        lock,
        to_string(&node.abilities).map_err(json)?,
        to_string(&node.queues).map_err(json)?,
        lease,
        now,
        now.saturating_add(lease)
    ])?;
    let no = tx.conn.last_insert_rowid();
    tx.state.nodes.insert(no, Local { abilities: node.abilities.clone(), fresh: true, ..Local::default() });
    Ok(Registered { no: NodeNo(no), now: tx.now })
}

/// The name of the lock that this handle holds; taken at the first need, and again where its file was removed. What is held
/// under the old name stays held: older nodes may live on, judged by their leases.
fn lock_name(tx: &mut Tx<'_>) -> Result<String> {
    if let Some(lock) = tx.state.locks.last()
        && lock.is_in_place()
    {
        return Ok(lock.name().to_owned());
    }
    let home = tx.state.home.as_ref().map(Arc::clone).ok_or_else(|| corrupt("no home to register in"))?;
    let lock = Lock::take(&home.path, &*home.rng).map_err(|error| Error::Unavailable {
        why: "cannot create the lock file that proves this process alive".into(),
        source: Some(error.into()),
    })?;
    let name = lock.name().to_owned();
    tx.state.locks.push(lock);
    Ok(name)
}

/// Checks that a node lives, and renews its lease if a third of it has passed: claims are frequent, and a write of
/// the node's row with each would be wasted.
pub(crate) fn touch(tx: &Tx<'_>, node: NodeNo) -> Result<()> {
    let now = tx.micros();
    let (lease, until) = live(tx, node)?;
    let left = until.saturating_sub(now);
    if left < lease - lease / 3 || left > lease {
        tx.conn.prepare_cached(EXTEND)?.execute([node.0, now, now.saturating_add(lease)])?;
    }
    Ok(())
}

/// Lease and its end of a node that lives.
fn live(tx: &Tx<'_>, node: NodeNo) -> Result<(i64, i64)> {
    let row = tx
        .conn
        .prepare_cached(LOOK)?
        .query_row([node.0], |row| Ok((row.get::<_, u8>(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    match row {
        Some((state, lease, until)) if state == NodeState::Live.code() => Ok((lease, until)),
        _ => Err(Error::LeaseLost.into()),
    }
}

/// Whether a node lives.
pub(crate) fn check_live(tx: &Tx<'_>, node: NodeNo) -> Result<()> {
    live(tx, node).map(drop)
}

/// Renews a node's lease and tells which claims are to be cancelled.
pub(crate) fn renew(tx: &mut Tx<'_>, renewal: &Renewal) -> Result<Renewed> {
    let (lease, _) = live(tx, renewal.node)?;
    let activity =
        to_string(&renewal.queues).map_err(|error| corrupt(format!("a report of queues: {error}")))?;
    let (now, node) = (tx.micros(), renewal.node.0);
    let until = now.saturating_add(lease);
    tx.conn.prepare_cached(RENEW)?.execute(params![node, now, until, renewal.backed_up, activity])?;
    for (claim, mark) in &renewal.marks {
        let sql = match mark {
            Mark::Stuck => STUCK,
            Mark::Cleared => CLEARED,
            Mark::Foreign => FOREIGN,
            Mark::GoesOn => GOES_ON,
        };
        tx.conn.prepare_cached(sql)?.execute(params![claim.row.0, claim.number, renewal.node.0])?;
    }
    let mut flagged = tx.conn.prepare_cached(FLAGGED)?;
    let rows = flagged.query_map([renewal.node.0], |row| {
        let id = JobId::from_bytes(row.get(0)?);
        let cancel = Cancellation { reason: flags::canceller(row.get(4)?), why: row.get(3)? };
        Ok((Claim { id, row: Row(row.get(1)?), number: row.get(2)? }, cancel))
    })?;
    Ok(Renewed { now: tx.now, cancel: rows.collect::<rusqlite::Result<_>>()? })
}

/// Gives back all that a node holds and takes it off the list of the living.
pub(crate) fn retire(tx: &mut Tx<'_>, node: NodeNo) -> Result<usize> {
    if tx.conn.prepare_cached(RETIRE)?.execute([node.0])? == 0 {
        return Ok(0);
    }
    let held = tx
        .conn
        .prepare_cached(HELD)?
        .query_map([node.0], read_leased)?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    let released = held.len();
    for (card, cancel) in held {
        let card = place::mend(tx, card)?;
        finish::give_back(tx, &card, cancel)?;
    }
    tx.state.nodes.remove(&node.0);
    Ok(released)
}

/// What a claim must know of its node.
pub(crate) fn local<'t>(tx: &'t mut Tx<'_>, node: NodeNo) -> Result<&'t mut Local> {
    if !tx.state.nodes.contains_key(&node.0) {
        let abilities: String = tx.conn.prepare_cached(DETAILS)?.query_row([node.0], |row| row.get(0))?;
        let abilities = from_str(&abilities).map_err(|error| corrupt(format!("node {node}: {error}")))?;
        tx.state.nodes.insert(node.0, Local { abilities, ..Local::default() });
    }
    tx.state.nodes.get_mut(&node.0).ok_or_else(|| Error::LeaseLost.into())
}

/// Decides for lines that were added since the last time whether the node can run them; for all, if it can do more since.
pub(crate) fn learn_lines(tx: &mut Tx<'_>, node: NodeNo) -> Result<()> {
    let now = tx.now;
    let names = std::mem::take(&mut tx.state.names);
    let local = local(tx, node);
    let result = local.map(|local| {
        if local.grows.is_some_and(|from| from <= now) {
            local.runs.clear();
        }
        let known = local.runs.len();
        if known < names.lines_end() {
            let mut runs = std::mem::take(&mut local.runs);
            runs.resize(names.lines_end(), false);
            for (no, line) in names.lines() {
                let Ok(index) = usize::try_from(no) else { continue };
                if index >= known {
                    runs[index] = local.abilities.runs(&line.kind_name, &line.labels, now);
                }
            }
            local.runs = runs;
            local.grows = local.abilities.grows(now);
        }
    });
    tx.state.names = names;
    result
}
