//! Sweeps: what time alone does to jobs.

use mainspring_core::job::{Input, Reason, State, Status, transition};
use mainspring_core::planted::{self, Defect};
use mainspring_core::store::{Class, Swept};
use mainspring_core::time::Timestamp;
use rusqlite::{OptionalExtension, params};

use super::place::{self, Place, read_card};
use crate::error::{Result, corrupt};
use crate::writer::Tx;

/// Index `timers_due`.
pub(crate) const DUE: &str = "SELECT no, line, priority, claim, failures, crashes, crashed, flags, due
    FROM mainspring_timers WHERE due <= ?1 ORDER BY due, no LIMIT ?2";
/// Index `timers_due`, its first entry.
pub(crate) const NEXT_DUE: &str = "SELECT due FROM mainspring_timers ORDER BY due LIMIT 1";
/// Index `deadlines_at`, stepping over running jobs by the primary key of `lease`.
pub(crate) const PASSED: &str = "SELECT no FROM mainspring_deadlines d WHERE at <= ?1
    AND NOT EXISTS (SELECT 1 FROM mainspring_lease l WHERE l.no = d.no) ORDER BY at, no LIMIT ?2";
pub(crate) const NEXT_DEADLINE: &str = "SELECT at FROM mainspring_deadlines d
    WHERE NOT EXISTS (SELECT 1 FROM mainspring_lease l WHERE l.no = d.no) ORDER BY at LIMIT 1";

/// Moves jobs whose time has come to `ready`.
pub(crate) fn promote(tx: &mut Tx<'_>, limit: usize) -> Result<Swept> {
    let due = tx
        .conn
        .prepare_cached(DUE)?
        .query_map(params![tx.micros(), as_i64(limit)], |row| Ok((read_card(row)?, row.get(8)?)))?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    for (card, due) in &due {
        if !planted::is(Defect::TimerKept) {
            place::take(tx, card, &Place::Timers { due: *due })?;
        }
        place::put_ready(tx, card, Class::Fresh)?;
    }
    Ok(Swept { now: tx.now, moved: due.len(), next: next(tx, NEXT_DUE)? })
}

/// Fails waiting jobs whose deadline has passed.
pub(crate) fn expire(tx: &mut Tx<'_>, limit: usize) -> Result<Swept> {
    let passed = tx
        .conn
        .prepare_cached(PASSED)?
        .query_map(params![tx.micros(), as_i64(limit)], |row| row.get(0))?
        .collect::<rusqlite::Result<Vec<i64>>>()?;
    for no in &passed {
        let (card, found) = place::locate(tx, *no)?;
        let to: Status = transition(found.status(), Input::Fail(Reason::Expired))
            .map_err(|illegal| corrupt(illegal.to_string()))?;
        debug_assert_eq!(to.state, State::Failed, "an expired job has failed");
        place::take(tx, &card, &found)?;
        place::put_done(tx, &card, to, "", None)?;
    }
    Ok(Swept { now: tx.now, moved: passed.len(), next: next(tx, NEXT_DEADLINE)? })
}

fn next(tx: &Tx<'_>, sql: &str) -> Result<Option<Timestamp>> {
    Ok(tx.conn.prepare_cached(sql)?.query_row([], |row| row.get(0)).optional()?.map(Timestamp::from_micros))
}

fn as_i64(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
