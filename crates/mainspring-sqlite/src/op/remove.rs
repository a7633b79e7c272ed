//! Removing a job with everything known of it, except that a unique key may outlive it.

use mainspring_core::job::{Options, State};
use mainspring_core::store::flags;
use rusqlite::types::ValueRef;
use rusqlite::{OptionalExtension, params};

use super::{limits, moves};
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
/// The whole table; only for jobs whose options are damaged.
const ALL_TAGS: &str = "DELETE FROM mainspring_tags WHERE no = ?1";
/// Unique indexes of keys, of subjects and of positions.
pub(crate) const STEPS: &str = "DELETE FROM mainspring_steps WHERE no = ?1";
pub(crate) const INBOX: &str = "DELETE FROM mainspring_inbox WHERE no = ?1";
pub(crate) const OUTPUT: &str = "DELETE FROM mainspring_output WHERE no = ?1";
/// Index `children_parent`, and primary key.
pub(crate) const CHILDREN: &str = "DELETE FROM mainspring_children WHERE parent = ?1";
const CHILD: &str = "DELETE FROM mainspring_children WHERE no = ?1";

/// Removes a job that has ended. Returns how many rows of its journal, inbox and output went with it.
pub(crate) fn ended(tx: &mut Tx<'_>, no: i64, state: State, flags: i16) -> Result<usize> {
    let (line, rows) = side_rows(tx, no, flags)?;
    moves::count(tx, line, state, -1);
    Ok(rows)
}

/// Removes a job that is in no place any more. Returns its line, and how many rows of its journal, inbox and output went with
/// it.
pub(crate) fn side_rows(tx: &mut Tx<'_>, no: i64, flags: i16) -> Result<(i64, usize)> {
    // Options that are no text are there, and cannot be read.
    let text = |value: ValueRef<'_>| match value {
        ValueRef::Null => None,
        value => Some(value.as_str().ok().map(str::to_owned)),
    };
    let (line, options): (i64, Option<Option<String>>) = tx
        .conn
        .prepare_cached(JOB)?
        .query_row([no], |row| Ok((row.get(0).unwrap_or(-1), text(row.get_ref(1)?))))
        .optional()?
        .ok_or_else(|| corrupt(format!("job number {no} is missing")))?;
    tx.conn.prepare_cached(DONE)?.execute([no])?;
    tx.conn.prepare_cached(ERRORS)?.execute([no])?;
    tx.conn.prepare_cached(PROGRESS)?.execute([no])?;
    tx.conn.prepare_cached(DEADLINE)?.execute([no])?;
    if flags & flags::KEEPS != 0 {
        limits::place::give_back_kept(tx, no)?;
    }
    let mut rows = 0;
    for (flag, sql) in [
        (flags::JOURNAL, STEPS),
        (flags::JOURNAL, INBOX),
        (flags::JOURNAL, OUTPUT),
        (flags::CHILDREN, CHILDREN),
        (flags::PARENT, CHILD),
    ] {
        if flags & flag != 0 {
            rows += tx.conn.prepare_cached(sql)?.execute([no])?;
        }
    }
    match options.map(|text| text.and_then(|text| serde_json::from_str::<Options>(&text).ok())) {
        None => {}
        Some(Some(options)) => {
            for tag in options.tags {
                tx.conn.prepare_cached(TAG)?.execute(params![tag.as_str(), no])?;
            }
        }
        // Nobody knows its tags.
        Some(None) => {
            tx.conn.prepare_cached(ALL_TAGS)?.execute([no])?;
        }
    }
    Ok((line, rows))
}
