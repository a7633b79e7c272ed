//! What jobs say: frames, appended in the order of their numbers.
//!
//! The last row of a job tells its next position, and what was said before under the same claim; it is never removed while
//! the job is there. Older rows than are kept are removed from time to time, some hundred at once. No reader sees them
//! meanwhile.
//!
//! # Invariants
//! - Rows are written under the fence of journals, in the same transaction.
//! - A position is given once: the writer is one thread, and the unique index says so.

use mainspring_core::output::{OutputExtent, Push};
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::Result;
use crate::writer::Tx;

/// Index `output_position`, from its end. The length of a body is in its row's header.
pub(crate) const LAST: &str = "SELECT position, claim, number, before + coalesce(length(body), 0)
    FROM mainspring_output WHERE no = ?1 ORDER BY position DESC LIMIT 1";
/// An append, and index `output_position`.
pub(crate) const SAY: &str = "INSERT INTO mainspring_output
        (no, position, claim, number, at, before, void_from, step, body)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
/// Index `output_position`: all that is kept of a job, up to the first of that step. Only for resets.
pub(crate) const FIRST_OF: &str = "SELECT position FROM mainspring_output
    WHERE no = ?1 AND position > ?2 AND before >= ?3 AND step IS ?4 AND body IS NOT NULL
    ORDER BY position LIMIT 1";
/// Index `output_position`, from the first that may be kept: no more than one sweep leaves behind, and one.
pub(crate) const FIRST: &str = "SELECT position FROM mainspring_output
    WHERE no = ?1 AND position > ?2 AND before >= ?3 ORDER BY position LIMIT 1";
/// Index `output_position`.
pub(crate) const SWEEP: &str = "DELETE FROM mainspring_output WHERE no = ?1 AND position < ?2";

/// The end of an output.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Last {
    pub(crate) kept: OutputExtent,
    claim: u32,
    number: u32,
}

/// How far the output of a job goes.
pub(crate) fn last(conn: &Connection, no: i64) -> Result<Last> {
    let row = |row: &rusqlite::Row<'_>| {
        let kept = OutputExtent { last: unsigned(row.get(0)?), total: unsigned(row.get(3)?) };
        Ok(Last { kept, claim: row.get(1)?, number: row.get(2)? })
    };
    Ok(conn.prepare_cached(LAST)?.query_row([no], row).optional()?.unwrap_or_default())
}

/// The first position that is kept; 0 if there is none.
pub(crate) fn first(conn: &Connection, no: i64, kept: OutputExtent) -> Result<u64> {
    let edge = params![no, signed(kept.gone()), signed(kept.gone_bytes())];
    let first = conn.prepare_cached(FIRST)?.query_row(edge, |row| row.get(0)).optional()?;
    Ok(first.map_or(0, unsigned))
}

/// Stores what a job says under its claim. Whoever calls this has met the claim, and sees to the flag of journals.
pub(crate) fn say(tx: &Tx<'_>, no: i64, claim: u32, pushes: &[Push]) -> Result<()> {
    let Last { kept: before, claim: last_claim, number } = last(tx.conn, no)?;
    let mut known = if last_claim == claim { number } else { 0 };
    let mut kept = before;
    let now = tx.micros();
    for push in pushes {
        if push.number <= known {
            continue;
        }
        known = push.number;
        let step = push.step.as_ref().map(mainspring_core::name::Key::as_str);
        let position = signed(kept.last + 1);
        let void_from = if push.body.is_some() {
            None
        } else {
            let of = params![no, signed(kept.gone()), signed(kept.gone_bytes()), step];
            let first = tx.conn.prepare_cached(FIRST_OF)?.query_row(of, |row| row.get(0)).optional()?;
            Some(first.unwrap_or(position))
        };
        tx.conn.prepare_cached(SAY)?.execute(params![
            no,
            position,
            claim,
            push.number,
            now,
            signed(kept.total),
            void_from,
            step,
            push.body
        ])?;
        kept = OutputExtent { last: kept.last + 1, total: kept.total + push.bytes() as u64 };
    }
    if before.is_time(kept) {
        let first = first(tx.conn, no, kept)?;
        tx.conn.prepare_cached(SWEEP)?.execute([no, signed(first)])?;
    }
    Ok(())
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(crate) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
