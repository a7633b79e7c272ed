//! The operator: a seeded script of verbs. What it orders and what is obeyed is noted by the watched store.

use std::error::Error;
use std::time::Duration;

use mainspring::admin::Filter;
use mainspring::name::Kind;
use mainspring::{Engine, Job, Reason, State};
use mainspring_core::Result;
use mainspring_core::job::{Priority, Verb};
use mainspring_core::seam::Rng;

use super::jobs::{QUEUES, Work};
use super::{VictimContext, until_input_ends};
use crate::torture::schedules::NAMES;

/// Between two orders.
const PAUSE: Duration = Duration::from_millis(40);
/// How far back fires are made up for.
const BACKFILLED: Duration = Duration::from_secs(3);
/// Jobs to choose from: the newest, which are those that something happens to.
const CHOICE: usize = 40;

pub(super) async fn run(life: VictimContext) -> std::result::Result<(), Box<dyn Error>> {
    let engine = life.open_in_time().await?;
    until_input_ends(&engine, PAUSE, async || {
        // A store that is away, and a job that has moved on meanwhile, are part of an operator's day.
        if let Err(error) = turn(&life, &engine).await {
            tracing::debug!(%error, "an order was not carried out");
        }
        Ok(())
    })
    .await?;
    engine.close().await;
    Ok(())
}

async fn turn(life: &VictimContext, engine: &Engine) -> Result<()> {
    let below = |bound: u64| life.rng.next_u64() % bound;
    if below(16) == 0 {
        return change_schedules(life, engine).await;
    }
    let (states, verb): (&[State], Verb) = match below(16) {
        0 => return engine.queues().pause(QUEUES[1]).await.map(drop),
        1 | 2 => return engine.queues().resume(QUEUES[1]).await.map(drop),
        3 | 4 => (&[State::Ready, State::Scheduled, State::Running], Verb::Cancel { why: "an order".into() }),
        5 | 6 => (&[State::Running], Verb::Cancel { why: "an order".into() }),
        7 | 8 => (&[State::Ready, State::Scheduled], Verb::Hold { why: String::new() }),
        // Not those under quarantine, which would only kill again.
        9..=11 => (&[State::Suspended], Verb::Resume),
        12 => (&[State::Cancelled, State::Failed, State::Scheduled], Verb::Retry),
        13 => (&[State::Succeeded, State::Cancelled, State::Ready], Verb::Delete),
        _ => (&[State::Ready, State::Scheduled], Verb::SetPriority(Priority::HIGHEST)),
    };
    let reason = (verb == Verb::Resume).then_some(Reason::Hold);
    let kind = Some(Kind::new(Work::KIND)?);
    let filter = Filter { states: states.to_vec(), kind, reason, ..Filter::default() };
    let jobs = engine.jobs().list(filter).limit(CHOICE).await?.jobs;
    let ids: Vec<_> = jobs.iter().filter(|_| below(12) == 0).map(|job| job.id).collect();
    // An empty list of ids is no order.
    if ids.is_empty() { Ok(()) } else { engine.jobs().change(ids, verb).await.map(drop) }
}

/// Something that people do with schedules.
async fn change_schedules(life: &VictimContext, engine: &Engine) -> Result<()> {
    let below = |bound: u64| life.rng.next_u64() % bound;
    let name = NAMES[usize::try_from(below(NAMES.len() as u64)).unwrap_or(0)];
    let schedules = engine.schedules().by("operator");
    match below(6) {
        0 => schedules.pause(name, "an order").await.map(drop),
        1 | 2 => schedules.resume(name).await.map(drop),
        3 => schedules.run(name).await.map(drop),
        4 => schedules.run_forced(name).await.map(drop),
        _ => {
            let last = schedules.get(name).await?.state.last_fire;
            schedules.backfill(name, last.before(BACKFILLED), last).await.map(drop)
        }
    }
}
