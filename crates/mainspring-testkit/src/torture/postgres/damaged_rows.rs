//! Rows of a database that somebody damages with another program.

use std::fmt::Write;
use std::sync::Arc;

use mainspring::JobId;

use super::cluster::Cluster;
use super::failed;
use crate::torture::faults::damaged_rows::{Damaged, Hand};
use crate::torture::{Error, Result};

/// The newest ones, one for each way: they are met last. All rows in `ready` are written, so that no claim that began before
/// takes one. An input is bytes, and none of them can be damaged in a way that the database allows and a claim sees.
const DAMAGE: &str = r#"WITH c AS MATERIALIZED (
        SELECT r.no, r.claim, r.level, r.crashes FROM mainspring.ready r
        JOIN mainspring.lines l ON l.no = r.line JOIN mainspring.kinds k ON k.no = l.kind
        WHERE k.name = 'work' ORDER BY r.no DESC LIMIT 3 FOR UPDATE OF r SKIP LOCKED)
    , n AS MATERIALIZED (SELECT c.*, row_number() OVER (ORDER BY c.no) AS how FROM c)
    , r AS (UPDATE mainspring.ready r
        SET claim = CASE n.how WHEN 2 THEN -7 ELSE r.claim END, level = CASE n.how WHEN 3 THEN 99 ELSE r.level END
        FROM n WHERE r.no = n.no)
    , o AS (UPDATE mainspring.jobs j SET options = '{"max_attempts": "many"}' FROM n WHERE j.no = n.no AND n.how = 1)
    SELECT n.no, j.id, n.claim, n.level, n.crashes, coalesce(quote_literal(j.options), 'NULL'), n.how
    FROM n JOIN mainspring.jobs j ON j.no = n.no"#;
/// Where a job may be by the time when it is mended.
const PLACES: [&str; 6] = ["ready", "timers", "suspended", "lease", "done", "superseded"];

/// Somebody with `psql`.
pub(super) struct RowEditor {
    pub(super) cluster: Arc<Cluster>,
    pub(super) database: String,
}

impl RowEditor {
    fn sql(&self, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
        self.cluster.primary().sql(&self.database, sql).map_err(failed("damaging rows"))
    }
}

impl Hand for RowEditor {
    fn damage(&self) -> Result<Vec<Damaged>> {
        self.sql(DAMAGE)?.into_iter().map(|row| read(&row).ok_or_else(|| strange(&row))).collect()
    }

    fn mend(&self, jobs: &[Damaged]) -> Result<()> {
        let all: String = jobs.iter().map(|job| job.mend.as_str()).collect();
        self.sql(&all).map(drop)
    }
}

fn strange(row: &[Option<String>]) -> Error {
    Error::Unexpected(format!("a damaged row is told as {row:?}"))
}

fn read(row: &[Option<String>]) -> Option<Damaged> {
    let [no, id, claim, level, crashes, options, how] = row else { return None };
    let no: i64 = no.as_ref()?.parse().ok()?;
    let (claim, level): (u32, i64) = (claim.as_ref()?.parse().ok()?, level.as_ref()?.parse().ok()?);
    let mend = match how.as_deref()? {
        "1" => format!("UPDATE mainspring.jobs SET options = {} WHERE no = {no};", options.as_ref()?),
        "2" => PLACES.iter().fold(String::new(), |mut all, place| {
            // Whoever set it aside would have counted one.
            let next = claim + 1;
            let _infallible =
                writeln!(all, "UPDATE mainspring.{place} SET claim = {next} WHERE no = {no} AND claim < 0;");
            all
        }),
        _ => format!("UPDATE mainspring.ready SET level = {level} WHERE no = {no} AND level = 99;"),
    };
    let id: JobId = id.as_ref()?.parse().ok()?;
    Some(Damaged { id, claim, crashes: crashes.as_ref()?.parse().ok()?, mend })
}
