//! Unique keys: taken at the enqueue, released once.

use mainspring_core::id::JobId;
use mainspring_core::job::Unique;
use mainspring_core::named;
use mainspring_core::time::micros;
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::Result;

/// Unique index (kind, key).
const FIND: &str = "SELECT no, id, expires_at FROM mainspring_keys WHERE kind = ?1 AND key = ?2";
/// Unique index (kind, key): a key whose period has ended makes room for its next holder.
const FREE: &str = "DELETE FROM mainspring_keys WHERE kind = ?1 AND key = ?2";
/// The holder was looked up in the same transaction, so the unique index cannot be violated.
const TAKE: &str =
    "INSERT INTO mainspring_keys (kind, key, no, id, until, period) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
/// Index `keys_no`. What was released is gone or has an expiry, so a second end of the job changes nothing.
const RELEASE: &str = named!("DELETE FROM mainspring_keys WHERE no = ?1 AND until <> {until.after}");
const EXPIRE: &str = named!(
    "UPDATE mainspring_keys SET expires_at = ?2 + period
    WHERE no = ?1 AND until = {until.after} AND expires_at IS NULL"
);
/// Index `keys_no`.
const FORGET: &str = "DELETE FROM mainspring_keys WHERE no = ?1";
/// Partial index `keys_expiry`.
const PRUNE: &str = "DELETE FROM mainspring_keys WHERE rowid IN
    (SELECT rowid FROM mainspring_keys WHERE expires_at IS NOT NULL AND expires_at <= ?1 LIMIT ?2)";

/// Who holds a key.
#[derive(Debug)]
pub(crate) struct Holder {
    pub(crate) no: i64,
    pub(crate) id: JobId,
}

/// Who holds a key at this time. A key whose period has ended is freed.
pub(crate) fn holder(conn: &Connection, kind: i64, key: &str, now: i64) -> Result<Option<Holder>> {
    let found = conn
        .prepare_cached(FIND)?
        .query_row(params![kind, key], |row| {
            let holder = Holder { no: row.get(0)?, id: JobId::from_bytes(row.get(1)?) };
            Ok((holder, row.get::<_, Option<i64>>(2)?))
        })
        .optional()?;
    match found {
        Some((_, Some(expires_at))) if expires_at <= now => {
            conn.prepare_cached(FREE)?.execute(params![kind, key])?;
            Ok(None)
        }
        Some((holder, _)) => Ok(Some(holder)),
        None => Ok(None),
    }
}

/// Gives a key that nobody holds to a job.
pub(crate) fn take(conn: &Connection, kind: i64, unique: &Unique, no: i64, id: JobId) -> Result<()> {
    let (until, period) = unique.until.code();
    conn.prepare_cached(TAKE)?.execute(params![
        kind,
        unique.key,
        no,
        id.as_bytes(),
        until,
        micros(period)
    ])?;
    Ok(())
}

/// The job has ended, or a key that is held until its start has come to that.
pub(crate) fn release(conn: &Connection, no: i64, now: i64) -> Result<()> {
    if conn.prepare_cached(RELEASE)?.execute([no])? == 0 {
        conn.prepare_cached(EXPIRE)?.execute([no, now])?;
    }
    Ok(())
}

/// Forgets the key of a job that an operator deletes.
pub(crate) fn forget(conn: &Connection, no: i64) -> Result<()> {
    conn.prepare_cached(FORGET)?.execute([no])?;
    Ok(())
}

/// Removes keys whose period has ended.
pub(crate) fn prune(conn: &Connection, now: i64, limit: i64) -> Result<usize> {
    Ok(conn.prepare_cached(PRUNE)?.execute([now, limit])?)
}
