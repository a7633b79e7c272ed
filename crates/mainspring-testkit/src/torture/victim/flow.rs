//! Workflows of victims: every body leaves its traces in the ledger.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mainspring::{Context, Failure, Job, JobId, StepContext};
use serde::{Deserialize, Serialize};

use crate::history::{Actor, Fact, Recorder, digest};

/// A chain of steps, with a nap in its middle.
#[derive(Debug, Clone, Default, Serialize, Deserialize, Job)]
#[job(kind = "flow", output = u64)]
pub struct Flow {
    /// What its values come from.
    pub seed: u64,
    /// How many steps it has.
    pub steps: u64,
    /// How long each body takes.
    pub millis: u64,
    /// How long it sleeps; not at all if nothing.
    pub nap: u64,
    /// Whether every fifth step is a row of the application, in one commit with its record.
    #[serde(default)]
    pub rows: bool,
}

impl Flow {
    fn value(&self, step: u64) -> u64 {
        self.seed.wrapping_mul(31).wrapping_add(step * step)
    }

    /// What it returns, whatever happens.
    pub fn output(&self) -> u64 {
        (0..self.steps).fold(0, |sum, step| sum.wrapping_add(self.value(step)))
    }

    /// That, as a fact about the job.
    pub fn expects(&self, id: JobId) -> Fact {
        Fact::Expects { id, outputs: vec![digest(self.output().to_string().as_bytes())] }
    }

    /// Whether a step is a row of the application.
    pub fn is_row(&self, step: u64) -> bool {
        self.rows && step % 5 == 4
    }
}

/// What bodies of one run know.
struct Act {
    ledger: Arc<dyn Recorder>,
    by: Actor,
    id: JobId,
    since: u32,
    current: AtomicU32,
}

impl Act {
    fn note(&self, fact: Fact) {
        self.ledger.note(self.by, fact);
    }

    fn goes_on(&self, claim: u32) {
        if self.current.fetch_max(claim, Ordering::SeqCst) < claim {
            self.note(Fact::Began { id: self.id, claim });
        }
    }
}

impl Drop for Act {
    fn drop(&mut self) {
        self.note(Fact::Stopped { id: self.id, claim: self.current.load(Ordering::SeqCst) });
    }
}

/// The handler.
pub(super) async fn perform(
    ctx: Context,
    flow: Flow,
    ledger: Arc<dyn Recorder>,
    by: Actor,
) -> Result<u64, Failure> {
    let (id, since) = (ctx.id(), ctx.info().claim);
    let act = Arc::new(Act { ledger, by, id, since, current: AtomicU32::new(since) });
    act.note(Fact::Began { id, claim: since });
    let mut sum = 0_u64;
    for number in 0..flow.steps {
        if flow.nap > 0 && number == flow.steps / 2 {
            ctx.sleep("nap", Duration::from_millis(flow.nap)).await?;
        }
        let value = if flow.is_row(number) {
            row(&ctx, &flow, number).await?
        } else {
            step(&ctx, &act, &flow, number).await?
        };
        sum = sum.wrapping_add(value);
    }
    act.note(Fact::Ended { id, claim: act.current.load(Ordering::SeqCst) });
    Ok(sum)
}

async fn step(ctx: &Context, act: &Arc<Act>, flow: &Flow, number: u64) -> Result<u64, Failure> {
    let key = format!("step-{number}");
    let (value, millis) = (flow.value(number), flow.millis);
    let clock = &ctx.engine().seams().clock;
    let (inner, name) = (Arc::clone(act), key.clone());
    let body = move |step: StepContext| {
        let (act, key) = (Arc::clone(&inner), name.clone());
        async move {
            let (id, claim, since) = (act.id, step.claim(), act.since);
            act.goes_on(claim);
            act.note(Fact::Entered { id, claim, since, key: key.clone(), once: false });
            clock.sleep(Duration::from_millis(millis)).await;
            act.note(Fact::Ran { id, claim, key });
            Ok(value)
        }
    };
    let value = ctx.step_with(&key, body).await?;
    let digest = Some(digest(value.to_string().as_bytes()));
    act.note(Fact::Saw { id: act.id, since: act.since, key, digest, rides: false });
    Ok(value)
}

/// A row of the application, on SQLite.
async fn row(ctx: &Context, flow: &Flow, number: u64) -> Result<u64, Failure> {
    let (job, value) = (ctx.id().to_string(), flow.value(number));
    let row = ctx.sqlite_transaction(&format!("row-{number}"), move |sql| {
        let step = i64::try_from(number).unwrap_or(i64::MAX);
        sql.execute("INSERT INTO app_rows (job, step) VALUES (?1, ?2)", (&job, step))?;
        Ok(value)
    });
    Ok(row.await?)
}
