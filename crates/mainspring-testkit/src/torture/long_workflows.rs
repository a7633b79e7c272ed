//! A marathon: many long workflows on one worker that is killed again and again.
//!
//! What must come of it: every workflow ends with the result that it has in peace, none is put under quarantine, a body
//! begins again only because the process that ran it was killed, and a row that is written in one commit with its record
//! is there once.

#![expect(clippy::disallowed_methods, reason = "a run takes real time, and somebody wants to know how much")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mainspring::{JobId, Reason, State};
use mainspring_core::bounds;
use rustix::process::Signal;

use super::outcome::{FaultCount, Outcome};
use super::process::{Role, VictimOptions};
use super::run::{drain, leave};
use super::victim::WorkflowJob;
use super::wait::{insist, wait};
use super::world::World;
use super::{Error, Plan, Result, StoreUnderTest, rows};
use crate::checker::{CheckTerms, check};
use crate::history::{Actor, EnqueueAnswer, Event, Fact};

/// Bodies that a worker must have run before it is killed.
const BODIES: usize = 15;
/// How long a worker lives on after that, at most.
const LIFE: u64 = 150;

/// How long it is.
#[derive(Debug, Clone, Copy)]
pub struct LongRun {
    /// Workflows; as many again if all have ended before the last kill.
    pub flows: u64,
    /// Steps of each.
    pub steps: u64,
    /// How long a body takes, in milliseconds.
    pub millis: u64,
}

/// Runs it; the plan's cycles are kills.
///
/// # Errors
/// If the run could not come to its end. Ledger and store are then kept, and the error says where.
pub async fn marathon(under_test: Arc<dyn StoreUnderTest>, plan: &Plan, course: LongRun) -> Result<Outcome> {
    let dir = tempfile::Builder::new().prefix("mainspring-torture-").tempdir();
    let dir = dir.map_err(Error::io("making a directory"))?;
    let began = Instant::now();
    let result = judged(&under_test, plan, course, dir.path()).await;
    let clean = result.as_ref().is_ok_and(Outcome::is_clean);
    let kept = if clean { None } else { Some(dir.keep()) };
    match result {
        Ok(outcome) => Ok(Outcome { took: began.elapsed(), kept, ..outcome }),
        Err(error) => {
            let kept = kept.map(|kept| kept.display().to_string()).unwrap_or_default();
            Err(Error::Unexpected(format!("{error} (seed {}, kept in {kept})", plan.seed)))
        }
    }
}

async fn judged(
    under_test: &Arc<dyn StoreUnderTest>,
    plan: &Plan,
    course: LongRun,
    dir: &Path,
) -> Result<Outcome> {
    let planted = plan.planted.clone();
    let mut world = World::new(Arc::clone(under_test), dir, &plan.program, plan.seed, planted).await?;
    rows::make(&**under_test)?;
    let mut flows = start(&world, course).await?;
    let mut tally = FaultCount::default();
    let mut killed = BTreeSet::new();
    for _ in 0..plan.cycles {
        let worker = world.start(Role::Worker, &VictimOptions::default())?;
        let number = worker.number();
        wait("the worker gets on", async || {
            let ran = |event: &&Event| event.by == number && matches!(event.fact, Fact::Ran { .. });
            if world.history()?.iter().filter(ran).count() >= BODIES {
                return Ok(Some(()));
            }
            let open = [State::Ready, State::Running, State::Scheduled, State::Suspended];
            if world.jobs(&open).await?.is_empty() {
                flows.extend(start(&world, course).await?);
            }
            Ok(None)
        })
        .await?;
        wait("a moment that nobody suffers a third time", async || {
            tokio::time::sleep(Duration::from_millis(world.below(LIFE))).await;
            // Stopped, so that it claims nobody between the look and the fault.
            worker.signal(Signal::STOP)?;
            let exposed = world.jobs(&[State::Ready, State::Running]).await?;
            if exposed.iter().any(|job| job.crashes >= bounds::SUSPECT_CRASHES) {
                worker.signal(Signal::CONT)?;
                return Ok(None);
            }
            Ok(Some(()))
        })
        .await?;
        killed.insert(number);
        world.kill(worker)?;
        tally.injected += 1;
        tally.hit += 1;
    }
    world.note(Fact::Calm);
    let worker = world.start(Role::Worker, &VictimOptions::default())?;
    world.workers.push(worker);
    drain(&world).await?;
    for mut worker in std::mem::take(&mut world.workers) {
        leave(&world, &mut worker).await?;
    }
    let history = world.history()?;
    let report = check(&history, &world.look().await?, CheckTerms { settled: true, ..CheckTerms::default() });
    let mut problems = bodies(&history, &killed);
    problems.extend(ends(&world, &flows).await?);
    let written: Vec<rows::Written> = flows.into_iter().map(|(id, flow)| (id, flow, true)).collect();
    problems.extend(rows::wrong(&**under_test, &written)?);
    world.close().await;
    Ok(Outcome {
        store: under_test.name(),
        seed: plan.seed,
        cycles: plan.cycles,
        took: Duration::ZERO,
        faults: BTreeMap::from([("kill in a marathon".to_owned(), tally)]),
        report,
        notes: Vec::new(),
        problems,
        kept: None,
    })
}

async fn start(world: &World, course: LongRun) -> Result<Vec<(JobId, WorkflowJob)>> {
    let engine = world.engine()?;
    let mut flows = Vec::new();
    for seed in 0..course.flows {
        let LongRun { steps, millis, .. } = course;
        let nap = if seed.is_multiple_of(4) { 100 } else { 0 };
        let ways = seed.is_multiple_of(2);
        let flow = WorkflowJob { seed, steps, millis, nap, rows: true, ways, ..WorkflowJob::default() };
        let id = JobId::mint(super::wait::now(), &*engine.seams().rng);
        world.note(flow.expects(id));
        insist("a workflow is enqueued", async || engine.enqueue(flow.clone()).id(id).await).await?;
        world.note(Fact::Acknowledged { id, told: EnqueueAnswer::Created });
        flows.push((id, flow));
    }
    Ok(flows)
}

/// Bodies that ran again although nobody was killed for it.
fn bodies(history: &[Event], killed: &BTreeSet<Actor>) -> Vec<String> {
    let mut entered: BTreeMap<(JobId, &str), Vec<Actor>> = BTreeMap::new();
    for event in history {
        if let Fact::Entered { id, key, .. } = &event.fact {
            entered.entry((*id, key)).or_default().push(event.by);
        }
    }
    let mut problems = Vec::new();
    for ((id, key), by) in entered {
        let lost: BTreeSet<_> = by.iter().filter(|actor| killed.contains(actor)).collect();
        let last = by.last().is_some_and(|last| killed.contains(last));
        let most = lost.len() + usize::from(!last);
        if by.len() > most {
            problems.push(format!(
                "`{key}` of {id} began {} times, and {} kills hit it",
                by.len(),
                lost.len()
            ));
        }
    }
    problems
}

/// Workflows that did not end as they would in peace.
async fn ends(world: &World, flows: &[(JobId, WorkflowJob)]) -> Result<Vec<String>> {
    let engine = world.engine()?.clone();
    let mut problems = Vec::new();
    for (id, flow) in flows {
        let record = insist("a workflow is there", async || engine.jobs().get(*id).await).await?;
        let result = record.result.as_ref().map(|result| String::from_utf8_lossy(result).into_owned());
        let status = record.summary.status;
        if status.reason == Some(Reason::Quarantine) {
            problems.push(format!("{id} is innocent, and under quarantine"));
        } else if status.state != State::Succeeded || result != Some(flow.result().to_string()) {
            problems.push(format!("{id} is {status} with {result:?}, not {}", flow.result()));
        }
    }
    Ok(problems)
}
