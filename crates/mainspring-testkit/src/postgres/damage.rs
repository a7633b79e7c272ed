//! Damage to a job's rows, behind the store's back.

use mainspring_core::id::JobId;

use super::{Database, Result};
use crate::harness::{Damage, Repair};

impl Database {
    /// Damages a job's rows, or mends them.
    ///
    /// # Errors
    /// If the server refuses the statement.
    pub fn damage(&self, id: JobId, damage: Damage, mend: Repair) -> Result<()> {
        let job = format!("(SELECT no FROM mainspring.jobs WHERE id = '{id}')");
        let (options, claim, kind) = match mend {
            Repair::No => (r#"'{"max_attempts": "many"}'"#, -7, 99),
            Repair::Yes => ("NULL", 1, 0),
        };
        let sql = match damage {
            Damage::Options => format!("UPDATE mainspring.jobs SET options = {options} WHERE no = {job}"),
            Damage::Claim => format!(
                "UPDATE mainspring.ready SET claim = {claim} WHERE no = {job};
                 UPDATE mainspring.limited SET claim = {claim} WHERE no = {job};
                 UPDATE mainspring.suspended SET claim = {claim} WHERE no = {job}"
            ),
            Damage::Journal => format!("UPDATE mainspring.steps SET kind = {kind} WHERE no = {job}"),
        };
        self.sql(&sql).map(drop)
    }
}
