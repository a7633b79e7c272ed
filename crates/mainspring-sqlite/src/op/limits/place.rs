//! Limited jobs between their places: the group that they wait in, and what claims and jobs hold.
//!
//! # Invariants
//! - A row of `limit_holders` and the units that it stands for come and go in one transaction.
//! - The group of a job follows from its line and its options alone, wherever it comes from.

use mainspring_core::limit::LimitUse;
use mainspring_core::store::flags;
use mainspring_core::tables::options::read_options;
use rusqlite::OptionalExtension;

use super::counters;
use crate::error::{Result, legible};
use crate::op::place::Card;
use crate::writer::Tx;

/// Primary key.
const OPTIONS: &str = "SELECT options FROM mainspring_jobs WHERE no = ?1";
/// Primary key.
pub(crate) const HELD: &str = "SELECT limit_group FROM mainspring_limit_holders WHERE no = ?1";
pub(crate) const RELEASE: &str = "DELETE FROM mainspring_limit_holders WHERE no = ?1";

/// Where a job waits that is ready.
pub(crate) enum Waits {
    /// In `ready`, with these flags.
    Plain(i16),
    /// In `limited`, in this group.
    Limited(i64),
    /// Nowhere: what it says of limits cannot be read, for this reason.
    Unreadable(String),
}

/// Where a job with the flag of limits waits.
pub(crate) fn waits(tx: &mut Tx<'_>, card: &Card) -> Result<Waits> {
    // It holds what it needs already.
    if card.flags & flags::KEEPS != 0 {
        return Ok(Waits::Plain(card.flags));
    }
    let uses = match legible(uses(tx, card.no))? {
        Ok(uses) => uses,
        Err(why) => return Ok(Waits::Unreadable(why)),
    };
    let group = tx.state.limits.group_of(tx.conn, card.line, &uses)?;
    Ok(group.map_or(Waits::Plain(card.flags & !flags::LIMITED), Waits::Limited))
}

/// What a job takes of limits.
fn uses(tx: &Tx<'_>, no: i64) -> Result<Vec<LimitUse>> {
    let bytes = |row: &rusqlite::Row<'_>| Ok(row.get_ref(0)?.as_bytes_or_null()?.map(<[u8]>::to_vec));
    let text = tx.conn.prepare_cached(OPTIONS)?.query_row([no], bytes)?;
    Ok(read_options(text.as_deref())?.limits)
}

/// Gives back what the claim of a job held that has just left `lease`; `keeps`: not the units of its limits, which the job has from now on.
pub(crate) fn leave_lease(tx: &mut Tx<'_>, card: &mut Card, keeps: bool) -> Result<()> {
    if let Ok(line) = tx.state.names.line(card.line) {
        for key in tx.state.limits.totals(line) {
            counters::give_back(tx, key, 1)?;
        }
    }
    let held = tx.conn.prepare_cached(HELD)?.query_row([card.no], |row| row.get(0)).optional()?;
    match held {
        // A plain job, counted in a total alone.
        None if legible(uses(tx, card.no))?.is_ok_and(|uses| uses.is_empty()) => {
            card.flags &= !flags::LIMITED;
        }
        None => {}
        Some(_) if keeps => card.flags |= flags::KEEPS,
        Some(group) => release(tx, card.no, group)?,
    }
    Ok(())
}

/// Gives back what a job holds that ends or is removed while it waits.
pub(crate) fn give_back_kept(tx: &mut Tx<'_>, no: i64) -> Result<()> {
    match tx.conn.prepare_cached(HELD)?.query_row([no], |row| row.get(0)).optional()? {
        Some(group) => release(tx, no, group),
        None => Ok(()),
    }
}

fn release(tx: &mut Tx<'_>, no: i64, group: i64) -> Result<()> {
    tx.conn.prepare_cached(RELEASE)?.execute([no])?;
    let Some(group) = tx.state.limits.group(tx.conn, group)? else { return Ok(()) };
    for (key, units) in &group.uses {
        counters::give_back(tx, *key, u32::from(*units))?;
    }
    Ok(())
}
