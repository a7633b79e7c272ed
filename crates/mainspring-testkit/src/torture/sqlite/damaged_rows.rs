//! Rows of a file that somebody damages with another program.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use mainspring::{JobId, rusqlite};
use rusqlite::TransactionBehavior::Immediate;

use crate::torture::faults::damaged_rows::{Damaged, Hand};
use crate::torture::{Error, Result};

/// How long he waits for the file.
const PATIENCE: Duration = Duration::from_secs(30);
/// The newest ones, one for each way: they are met last.
const CHOSEN: &str = "SELECT r.no, j.id, r.claim, r.level, r.crashes, quote(j.options), quote(j.input)
    FROM (SELECT no, line, claim, level, crashes FROM mainspring_ready
        UNION ALL SELECT no, line, claim, level, crashes FROM mainspring_limited) r
    JOIN mainspring_jobs j ON j.no = r.no
    JOIN mainspring_lines l ON l.no = r.line
    JOIN mainspring_kinds k ON k.no = l.kind
    WHERE k.name = 'work' ORDER BY r.no DESC LIMIT 4";
/// Where a job may be by the time when it is mended.
const PLACES: [&str; 6] = ["ready", "limited", "timers", "suspended", "lease", "done"];

/// Somebody with an editor for SQLite files.
pub(super) struct RowEditor {
    pub(super) database: PathBuf,
}

impl RowEditor {
    fn open(&self) -> rusqlite::Result<rusqlite::Connection> {
        let file = rusqlite::Connection::open(&self.database)?;
        file.busy_timeout(PATIENCE)?;
        Ok(file)
    }

    fn harm(&self) -> rusqlite::Result<Vec<Damaged>> {
        let mut file = self.open()?;
        let tx = file.transaction_with_behavior(Immediate)?;
        let mut statement = tx.prepare(CHOSEN)?;
        let mut rows = statement.query(())?;
        let (mut jobs, mut harm) = (Vec::new(), String::new());
        while let Some(row) = rows.next()? {
            let (no, claim, level): (i64, u32, i64) = (row.get(0)?, row.get(2)?, row.get(3)?);
            let (options, input): (String, String) = (row.get(5)?, row.get(6)?);
            let (damage, mend) = match jobs.len() {
                0 => (
                    format!("UPDATE mainspring_jobs SET options = CAST(x'FF' AS TEXT) WHERE no = {no};"),
                    format!("UPDATE mainspring_jobs SET options = {options} WHERE no = {no};"),
                ),
                1 => (
                    format!("UPDATE mainspring_jobs SET input = 7 WHERE no = {no};"),
                    format!("UPDATE mainspring_jobs SET input = {input} WHERE no = {no};"),
                ),
                2 => (
                    format!(
                        "UPDATE mainspring_ready SET claim = 'many' WHERE no = {no};
                         UPDATE mainspring_limited SET claim = 'many' WHERE no = {no};"
                    ),
                    // Whoever set it aside would have counted one.
                    PLACES.iter().fold(String::new(), |mut all, place| {
                        let next = claim + 1;
                        let _infallible = writeln!(
                            all,
                            "UPDATE mainspring_{place} SET claim = {next} WHERE no = {no} AND typeof(claim) = 'text';"
                        );
                        all
                    }),
                ),
                _ => (
                    format!(
                        "UPDATE mainspring_ready SET level = 99 WHERE no = {no};
                         UPDATE mainspring_limited SET level = 99 WHERE no = {no};"
                    ),
                    format!(
                        "UPDATE mainspring_ready SET level = {level} WHERE no = {no} AND level = 99;
                         UPDATE mainspring_limited SET level = {level} WHERE no = {no} AND level = 99;"
                    ),
                ),
            };
            harm.push_str(&damage);
            jobs.push(Damaged { id: JobId::from_bytes(row.get(1)?), claim, crashes: row.get(4)?, mend });
        }
        drop(rows);
        drop(statement);
        tx.execute_batch(&harm)?;
        tx.commit()?;
        Ok(jobs)
    }

    fn repair(&self, jobs: &[Damaged]) -> rusqlite::Result<()> {
        let mut file = self.open()?;
        let tx = file.transaction_with_behavior(Immediate)?;
        for job in jobs {
            tx.execute_batch(&job.mend)?;
        }
        tx.commit()
    }
}

fn failed(error: &rusqlite::Error) -> Error {
    Error::Unexpected(format!("damaging rows: {error}"))
}

impl Hand for RowEditor {
    fn damage(&self) -> Result<Vec<Damaged>> {
        self.harm().map_err(|error| failed(&error))
    }

    fn mend(&self, jobs: &[Damaged]) -> Result<()> {
        self.repair(jobs).map_err(|error| failed(&error))
    }

    /// All of it is in the main file then: no cut of the log takes it back.
    fn settled(&self) -> Result<bool> {
        let file = self.open().map_err(|error| failed(&error))?;
        let busy = file.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |row| row.get::<_, i64>(0));
        Ok(busy.map_err(|error| failed(&error))? == 0)
    }
}
