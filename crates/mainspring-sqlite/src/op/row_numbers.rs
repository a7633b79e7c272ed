//! Row numbers that are never reused.
//!
//! Numbers of jobs and of outcomes count up from the highest that is stored. When the highest row is removed, its
//! number is noted in `meta`, so that it is not given out again. This is what `AUTOINCREMENT` does, without writing a
//! row for every job.
//!
//! # Invariants
//! - A number is used for one job, ever; likewise for outcomes.

use rusqlite::{Connection, params};

use crate::error::{Result, corrupt};

/// The end of each primary key, and two primary key look-ups in `meta`.
const LAST: &str = "SELECT
    max(coalesce((SELECT max(no) FROM mainspring_jobs), 0),
        coalesce((SELECT value FROM mainspring_meta WHERE key = 'last_no'), 0)),
    max(coalesce((SELECT max(seq) FROM mainspring_done), 0),
        coalesce((SELECT value FROM mainspring_meta WHERE key = 'last_seq'), 0))";
/// The end of each primary key.
const HIGHEST: &str = "SELECT
    coalesce((SELECT max(no) FROM mainspring_jobs), 0), coalesce((SELECT max(seq) FROM mainspring_done), 0)";
/// Primary key of `meta`.
const NOTE: &str = "INSERT INTO mainspring_meta (key, value) VALUES (?1, ?2)
    ON CONFLICT (key) DO UPDATE SET value = excluded.value";

/// Half of what a number can be: no store gets there in a thousand years, and what is counted on from here does not
/// overflow.
const HIGHEST_SOUND: i64 = i64::MAX / 2;

/// The numbers last given out.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Numbers {
    /// Of a job.
    pub(crate) no: i64,
    /// Of an outcome.
    pub(crate) seq: i64,
}

impl Numbers {
    /// Reads them.
    pub(crate) fn load(conn: &Connection) -> Result<Self> {
        let row = |row: &rusqlite::Row<'_>| Ok(Numbers { no: row.get(0)?, seq: row.get(1)? });
        let last: Numbers = conn.prepare_cached(LAST)?.query_row([], row)?;
        if last.no.max(last.seq) > HIGHEST_SOUND {
            return Err(corrupt("numbers of jobs or outcomes that nobody has counted up to"));
        }
        Ok(last)
    }

    /// Notes them if rows with the highest numbers were removed.
    pub(crate) fn keep(&self, conn: &Connection) -> Result<()> {
        let (no, seq): (i64, i64) =
            conn.prepare_cached(HIGHEST)?.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let mut note = conn.prepare_cached(NOTE)?;
        if no < self.no {
            note.execute(params!["last_no", self.no])?;
        }
        if seq < self.seq {
            note.execute(params!["last_seq", self.seq])?;
        }
        Ok(())
    }
}
