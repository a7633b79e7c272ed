//! Rows of an application, in a table of its own beside the store's: each is written by a step, in one commit with the
//! step's record.
//!
//! Nothing keeps a row from being there twice but that commit: the table has no key.

use std::collections::BTreeMap;

use mainspring::{Job, JobId, State};

use super::victim::WorkflowJob;
use super::wait::insist;
use super::world::World;
use super::{Error, Result, StoreUnderTest};

const TABLE: &str = "CREATE TABLE app_rows (job TEXT NOT NULL, step INTEGER NOT NULL)";
const COUNT: &str = "SELECT job, step, count(*) FROM app_rows GROUP BY job, step";

/// Makes the table.
pub(super) fn make(under_test: &dyn StoreUnderTest) -> Result<()> {
    under_test.sql(TABLE).map(drop)
}

/// A workflow, and whether all of its rows must be there.
pub(super) type Written = (JobId, WorkflowJob, bool);

/// All workflows of a store that has come to rest.
pub(super) async fn written(world: &World) -> Result<Vec<Written>> {
    let engine = world.engine()?;
    let mut flows = Vec::new();
    for job in world.jobs(&[]).await?.into_iter().filter(|job| job.kind.as_str() == WorkflowJob::KIND) {
        let record = insist("a workflow is there", async || engine.jobs().get(job.id).await).await?;
        let flow = serde_json::from_slice(&record.input)
            .map_err(|error| Error::Unexpected(format!("the input of {}: {error}", job.id)))?;
        flows.push((job.id, flow, job.status.state == State::Succeeded));
    }
    Ok(flows)
}

/// Rows that are not there once each.
pub(super) fn wrong(under_test: &dyn StoreUnderTest, flows: &[Written]) -> Result<Vec<String>> {
    let mut rows: BTreeMap<(String, String), String> = BTreeMap::new();
    for row in under_test.sql(COUNT)? {
        let mut columns = row.into_iter().map(Option::unwrap_or_default);
        let mut column = || columns.next().unwrap_or_default();
        let key = (column(), column());
        rows.insert(key, column());
    }
    let mut problems = Vec::new();
    for (id, flow, ended) in flows {
        for step in (0..flow.steps).filter(|step| flow.is_row(*step)) {
            match rows.remove(&(id.to_string(), step.to_string())).as_deref() {
                Some("1") => {}
                None if !ended => {}
                count => problems.push(format!("the row of step {step} of {id} is there {count:?} times")),
            }
        }
    }
    problems.extend(rows.keys().map(|(id, step)| format!("a row of step {step} of {id}, which has none")));
    Ok(problems)
}
