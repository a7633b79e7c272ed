//! Deadlines of jobs that have not ended.

use rusqlite::Connection;

use crate::error::Result;

/// An append, mostly: the number is the newest.
const SET: &str = "INSERT INTO mainspring_deadlines (no, at) VALUES (?1, ?2)";
/// Primary key.
const CLEAR: &str = "DELETE FROM mainspring_deadlines WHERE no = ?1";

/// Notes the deadline of a new job.
pub(crate) fn set(conn: &Connection, no: i64, at: i64) -> Result<()> {
    conn.prepare_cached(SET)?.execute([no, at])?;
    Ok(())
}

/// The job has ended.
pub(crate) fn clear(conn: &Connection, no: i64) -> Result<()> {
    conn.prepare_cached(CLEAR)?.execute([no])?;
    Ok(())
}
