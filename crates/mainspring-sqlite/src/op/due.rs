//! Sweeps: what time alone does to jobs.

use mainspring_core::job::{Input, Reason, State, transition};
use mainspring_core::named;
use mainspring_core::planted::{self, Defect};
use mainspring_core::store::{Class, Swept};
use mainspring_core::time::Timestamp;
use rusqlite::{OptionalExtension, params};

use super::as_i64;
use super::limits::counters;
use super::moves::{self, Ending};
use super::place::{self, Card, Place, read_card};
use crate::error::{Result, corrupt};
use crate::writer::Tx;

/// Index `timers_due`.
pub(crate) const DUE: &str = "SELECT no, line, priority, claim, failures, crashes, crashed, flags, due
    FROM mainspring_timers WHERE due <= ?1 ORDER BY due, no LIMIT ?2";
/// Index `timers_due`, its first entry.
pub(crate) const NEXT_DUE: &str = "SELECT due FROM mainspring_timers ORDER BY due LIMIT 1";
/// Partial index `suspended_due`: jobs that wait until a time, for whatever else.
pub(crate) const WAKING: &str = named!(
    "SELECT no, line, priority, claim, failures, crashes, crashed, flags, due, reason
    FROM mainspring_suspended WHERE due <= ?1 AND due IS NOT NULL AND reason <= {reasons.last_awaiting}
    ORDER BY due, no LIMIT ?2"
);
/// Partial index `suspended_due`, its first entry.
pub(crate) const NEXT_WAKING: &str = named!(
    "SELECT due FROM mainspring_suspended WHERE due IS NOT NULL AND reason <= {reasons.last_awaiting}
    ORDER BY due LIMIT 1"
);
/// Partial index `schedules_next`, its first entry.
pub(crate) const NEXT_FIRE: &str =
    "SELECT next_at FROM mainspring_schedules WHERE next_at IS NOT NULL ORDER BY next_at, name LIMIT 1";
/// Index `deadlines_at`, stepping over running jobs by the primary key of `lease`.
pub(crate) const PASSED: &str = "SELECT no FROM mainspring_deadlines d WHERE at <= ?1
    AND NOT EXISTS (SELECT 1 FROM mainspring_lease l WHERE l.no = d.no) ORDER BY at, no LIMIT ?2";
pub(crate) const NEXT_DEADLINE: &str = "SELECT at FROM mainspring_deadlines d
    WHERE NOT EXISTS (SELECT 1 FROM mainspring_lease l WHERE l.no = d.no) ORDER BY at LIMIT 1";

/// Moves jobs whose time has come to `ready`.
pub(crate) fn promote(tx: &mut Tx<'_>, limit: usize) -> Result<Swept> {
    let mut due = timers(tx, limit)?;
    due.extend(waking(tx, limit)?);
    due.sort_by_key(|(due, card, _)| (*due, card.no));
    due.truncate(limit);
    for (_, card, found) in &mut due {
        *card = place::mend(tx, card.clone())?;
        let timer = matches!(found, Place::Timers { .. });
        if !(timer && planted::is(Defect::TimerKept)) {
            moves::leave(tx, card, found)?;
        }
        moves::enter_ready(tx, card, if timer { Class::Fresh } else { moves::returned(card) })?;
    }
    counters::wake(tx, limit)?;
    let next = [next(tx, NEXT_DUE)?, next(tx, NEXT_WAKING)?, counters::next_due(tx)?];
    let next = next.into_iter().flatten().min();
    Ok(Swept { now: tx.now, moved: due.len(), next, fire: self::next(tx, NEXT_FIRE)? })
}

fn timers(tx: &Tx<'_>, limit: usize) -> Result<Vec<(i64, Card, Place)>> {
    let mut statement = tx.conn.prepare_cached(DUE)?;
    let rows = statement.query_map(params![tx.micros(), as_i64(limit)], |row| {
        let due = row.get(8)?;
        Ok((due, read_card(row)?, Place::Timers { due }))
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

fn waking(tx: &Tx<'_>, limit: usize) -> Result<Vec<(i64, Card, Place)>> {
    let mut statement = tx.conn.prepare_cached(WAKING)?;
    let mut rows = statement.query(params![tx.micros(), as_i64(limit)])?;
    let mut waking = Vec::new();
    while let Some(row) = rows.next()? {
        let due = row.get(8)?;
        let reason = Reason::from_code(row.get(9)?).ok_or_else(|| corrupt("an unknown reason"))?;
        waking.push((due, read_card(row)?, Place::Suspended { reason, due: Some(due) }));
    }
    Ok(waking)
}

/// Fails waiting jobs whose deadline has passed.
pub(crate) fn expire(tx: &mut Tx<'_>, limit: usize) -> Result<Swept> {
    let passed = tx
        .conn
        .prepare_cached(PASSED)?
        .query_map(params![tx.micros(), as_i64(limit)], |row| row.get(0))?
        .collect::<rusqlite::Result<Vec<i64>>>()?;
    let mut moved = 0;
    for no in &passed {
        let (card, found) = place::locate(tx, *no)?;
        // Cancelled a moment ago, with its parent.
        if let Place::Done { .. } = found {
            continue;
        }
        let status = transition(found.status(), Input::Fail(Reason::Expired))
            .map_err(|illegal| corrupt(illegal.to_string()))?;
        debug_assert_eq!(status.state, State::Failed, "an expired job has failed");
        moves::leave(tx, &card, &found)?;
        moves::end(tx, &card, Ending { status, note: "", result: None })?;
        moved += 1;
    }
    Ok(Swept { now: tx.now, moved, next: next(tx, NEXT_DEADLINE)?, fire: None })
}

fn next(tx: &Tx<'_>, sql: &str) -> Result<Option<Timestamp>> {
    Ok(tx.conn.prepare_cached(sql)?.query_row([], |row| row.get(0)).optional()?.map(Timestamp::from_micros))
}
