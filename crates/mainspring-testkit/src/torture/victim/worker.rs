//! The worker: a node whose handlers leave their traces in the ledger.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use mainspring::{Context, JobId, snooze};

use super::jobs::{CRASHER_QUEUE, Crasher, QUEUES, Work};
use super::workflow::{self, WorkflowJob};
use super::{VictimContext, input_ends, producer};
use crate::history::{Actor, Fact, Recorder};

/// Slots for each queue: more than one, so that a death takes several jobs along.
pub const SLOTS: [u32; 2] = [8, 4];
/// So few that the next claim goes out before the last one is answered.
pub const CLAIM: usize = 8;
/// How long a worker that is sent home waits for its jobs: none takes nearly as long.
const DRAIN: Duration = Duration::from_secs(5);
/// How long a job that puts itself off does so.
const SNOOZE: Duration = Duration::from_millis(50);

pub(super) async fn run(life: VictimContext) -> Result<(), Box<dyn Error>> {
    let engine = life.open().await?;
    let pool =
        if engine.describe().backend == "postgres" { Some(workflow::pool(&life.store)?) } else { None };
    let (ledger, by, lease) = (life.ledger, life.by, life.lease);
    let (poisoned, recorded) = (Arc::clone(&ledger), Arc::clone(&ledger));
    let mut node = engine
        .node()
        .handle(move |ctx: Context, job: Work| {
            let ledger = Arc::clone(&ledger);
            async move { work(&ctx, &job, &ledger, by).await }
        })
        .handle(move |ctx: Context, _: Crasher| {
            let run = Run::begin(&ctx, &poisoned, by);
            // Whoever finds the dead must be able to tell why: the note comes first.
            run.ledger.note(by, Fact::fault("exit", Some(by), None));
            async move { std::process::abort() as mainspring::HandlerResult<()> }
        })
        .handle(move |ctx: Context, job: WorkflowJob| {
            let (ledger, pool) = (Arc::clone(&recorded), pool.clone());
            async move { workflow::perform(ctx, job, ledger, by, pool.as_ref()).await }
        })
        .prefix("victim")
        .lease(lease)
        .claim_at_most(CLAIM)
        .drain(DRAIN);
    for (queue, slots) in QUEUES.iter().zip(SLOTS) {
        node = node.queue(queue, slots);
    }
    node = node.queue(CRASHER_QUEUE, 1);
    let node = node.start().await?;
    node.run_until(input_ends(&*engine.seams().threads)).await;
    engine.close().await;
    Ok(())
}

/// One run of a handler: its slot is free when this is dropped.
struct Run {
    ledger: Arc<dyn Recorder>,
    by: Actor,
    id: JobId,
    claim: u32,
}

impl Run {
    fn begin(ctx: &Context, ledger: &Arc<dyn Recorder>, by: Actor) -> Run {
        let run = Run { ledger: Arc::clone(ledger), by, id: ctx.id(), claim: ctx.info().claim };
        run.ledger.note(by, Fact::Began { id: run.id, claim: run.claim });
        run
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.ledger.note(self.by, Fact::Stopped { id: self.id, claim: self.claim });
    }
}

pub(super) async fn work(
    ctx: &Context,
    job: &Work,
    ledger: &Arc<dyn Recorder>,
    by: Actor,
) -> mainspring::HandlerResult<String> {
    let run = Run::begin(ctx, ledger, by);
    ctx.engine().seams().clock.sleep(Duration::from_millis(job.millis)).await;
    if run.claim <= job.snoozes {
        return Err(snooze(SNOOZE).into());
    }
    if ctx.attempt() <= job.fails {
        Err(format!("attempt {} is meant to fail", ctx.attempt()))?;
    }
    for number in 0..u64::from(job.children) {
        let child = Work { number, ..Work::default() };
        producer::told(&**ledger, by, ctx.engine(), ctx.engine().enqueue(child)).await;
    }
    ledger.note(by, Fact::Ended { id: run.id, claim: run.claim });
    // Files of victims are on disks that are made to be small.
    let width = if ctx.engine().describe().backend == "postgres" { job.returns } else { 0 };
    let number = job.number.to_string();
    Ok(" ".repeat(width.saturating_sub(number.len())) + &number)
}
