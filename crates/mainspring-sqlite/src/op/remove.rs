//! Removing a job with everything known of it, except that a unique key may outlive it.

use mainspring_core::job::{Options, State};
use rusqlite::{OptionalExtension, params};

use crate::error::{Result, corrupt};
use crate::writer::Tx;

/// Primary key.
const JOB: &str = "DELETE FROM mainspring_jobs WHERE no = ?1 RETURNING line, options";
/// Index `done_no`: also the outcomes that were superseded.
const DONE: &str = "DELETE FROM mainspring_done WHERE no = ?1";
/// Primary keys.
const ERRORS: &str = "DELETE FROM mainspring_errors WHERE no = ?1";
const PROGRESS: &str = "DELETE FROM mainspring_progress WHERE no = ?1";
const DEADLINE: &str = "DELETE FROM mainspring_deadlines WHERE no = ?1";
const TAG: &str = "DELETE FROM mainspring_tags WHERE tag = ?1 AND no = ?2";

/// Removes a job that has ended.
pub(crate) fn ended(tx: &mut Tx<'_>, no: i64, state: State) -> Result<()> {
    let line = beside(tx, no)?;
    let queue = tx.state.names.line(line)?.queue;
    tx.count(queue, state, -1);
    Ok(())
}

/// Removes a job that is in no place any more. Returns its line.
pub(crate) fn beside(tx: &Tx<'_>, no: i64) -> Result<i64> {
    let (line, options): (i64, Option<String>) = tx
        .conn
        .prepare_cached(JOB)?
        .query_row([no], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?
        .ok_or_else(|| corrupt(format!("job number {no} is missing")))?;
    tx.conn.prepare_cached(DONE)?.execute([no])?;
    tx.conn.prepare_cached(ERRORS)?.execute([no])?;
    tx.conn.prepare_cached(PROGRESS)?.execute([no])?;
    tx.conn.prepare_cached(DEADLINE)?.execute([no])?;
    if let Some(text) = options {
        let options: Options =
            serde_json::from_str(&text).map_err(|error| corrupt(format!("options: {error}")))?;
        for tag in options.tags {
            tx.conn.prepare_cached(TAG)?.execute(params![tag.as_str(), no])?;
        }
    }
    Ok(line)
}
