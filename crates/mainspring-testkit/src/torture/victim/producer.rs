//! The producer: enqueues as applications do, and writes down what it was told.

use std::error::Error;
use std::time::Duration;

use mainspring::enqueue::Enqueue;
use mainspring::{Backoff, Engine, Error as Refusal, Job, JobId, State, Unique};
use mainspring_core::job::Until;
use mainspring_core::seam::Rng;

use super::jobs::{QUEUES, Work};
use super::workflow::WorkflowJob;
use super::{VictimContext, until_input_ends};
use crate::history::{Actor, EnqueueAnswer, Fact, Recorder};

/// Jobs that may wait before the producer does: enough to keep all slots busy, few enough to drain soon.
const AHEAD: u64 = 150;
/// Between two turns.
const PAUSE: Duration = Duration::from_millis(10);
/// Between the attempts of a job.
const BACKOFF: Backoff = Backoff::Fixed(Duration::from_millis(50));
/// One in so many jobs returns as much as this: enough that a few of them are more than one commit may have.
const LARGE: (u64, usize) = (100, 1_000_000);
/// Unique keys: few, so that they are met.
const KEYS: u64 = 10;

pub(super) async fn run(life: VictimContext) -> Result<(), Box<dyn Error>> {
    let engine = life.open_in_time().await?;
    until_input_ends(&engine, PAUSE, async || {
        // Of a store that does not answer nobody knows how much waits: the next enqueue finds out.
        let waiting = engine.jobs().counts().await.map_or(0, |counts| counts.total(State::Ready));
        if waiting < AHEAD {
            turn(&life, &engine).await;
        }
        Ok(())
    })
    .await?;
    engine.close().await;
    Ok(())
}

/// A few jobs: by themselves, at the same time, and in bulk.
async fn turn(life: &VictimContext, engine: &Engine) {
    let below = |bound: u64| life.rng.next_u64() % bound;
    let note = (&*life.ledger, life.by);
    match below(10) {
        0 | 1 => {
            let jobs = (0..5 + below(40)).map(|number| work(number, &below));
            let many = engine.enqueue_many(jobs).queue(queue(&below)).backoff(BACKOFF);
            // Ids are made inside: of those that were not acknowledged, the ledger says that they were asked for.
            if let Ok(stored) = many.await {
                for job in stored {
                    note.0.note(note.1, Fact::Acknowledged { id: job.id, told: EnqueueAnswer::Created });
                }
            }
        }
        2 => {
            let key = Unique::new(format!("key-{}", below(KEYS)));
            let key = match below(4) {
                0 => key.replace(),
                1 => key.reject(),
                2 => key.until(Until::Started),
                _ => key.until(Until::after(Duration::from_millis(below(100)))),
            };
            let job = engine.enqueue(work(0, &below)).unique(key).backoff(BACKOFF);
            told(note.0, note.1, engine, job).await;
        }
        3 => {
            let flows = (0..=below(3)).map(|_| flow(&below));
            let asked = flows.map(|flow| {
                let id = JobId::mint(engine.seams().clock.now(), &*engine.seams().rng);
                note.0.note(note.1, flow.expects(id));
                told_as(id, note.0, note.1, engine.enqueue(flow))
            });
            all(asked.collect()).await;
        }
        4 => {
            let delay = Duration::from_millis(below(300));
            let job = engine.enqueue(work(0, &below)).delay(delay).backoff(BACKOFF);
            told(note.0, note.1, engine, job).await;
        }
        _ => {
            let jobs: Vec<_> = (0..=below(4)).map(|number| work(number, &below)).collect();
            let job = |job| {
                engine
                    .enqueue(job)
                    .queue(queue(&below))
                    .priority([0, 5, 5, 9][usize::try_from(below(4)).unwrap_or(0)])
            };
            let asked = jobs.into_iter().map(|one| told(note.0, note.1, engine, job(one).backoff(BACKOFF)));
            all(asked.collect()).await;
        }
    }
}

/// Waits for all, at the same time.
async fn all(futures: Vec<impl Future<Output = ()>>) {
    let mut left: Vec<_> = futures.into_iter().map(Box::pin).collect();
    std::future::poll_fn(|context| {
        left.retain_mut(|future| future.as_mut().poll(context).is_pending());
        if left.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

fn queue(below: &impl Fn(u64) -> u64) -> &'static str {
    if below(4) == 0 { QUEUES[1] } else { QUEUES[0] }
}

fn work(number: u64, below: &impl Fn(u64) -> u64) -> Work {
    Work {
        number,
        // Most are short, some long enough to be met by a fault in their middle.
        millis: if below(10) == 0 { 100 + below(150) } else { below(40) },
        fails: u16::from(below(30) == 0),
        snoozes: u32::from(below(30) == 0),
        children: if below(20) == 0 { 2 } else { 0 },
        returns: if below(LARGE.0) == 0 { LARGE.1 } else { 0 },
    }
}

fn flow(below: &impl Fn(u64) -> u64) -> WorkflowJob {
    WorkflowJob {
        seed: below(1_000),
        steps: 5 + below(3),
        millis: below(20),
        nap: [0, 30][usize::try_from(below(2)).unwrap_or(0)],
        rows: below(4) > 0,
        child: below(4) == 0,
        ways: below(3) == 0,
    }
}

/// Enqueues a job and writes down what became of it.
pub(super) async fn told(ledger: &dyn Recorder, by: Actor, engine: &Engine, job: Enqueue<'_, Work>) {
    let id = JobId::mint(engine.seams().clock.now(), &*engine.seams().rng);
    told_as(id, ledger, by, job).await;
}

async fn told_as<J: Job>(id: JobId, ledger: &dyn Recorder, by: Actor, job: Enqueue<'_, J>) {
    let fact = match job.id(id).await {
        Ok(stored) if stored.existing => Fact::Acknowledged { id, told: EnqueueAnswer::Existing(stored.id) },
        Ok(_) => Fact::Acknowledged { id, told: EnqueueAnswer::Created },
        // These say that nothing was stored.
        Err(Refusal::Conflict { .. } | Refusal::Unavailable { .. } | Refusal::DiskFull) => {
            Fact::Refused { id }
        }
        Err(_) => Fact::Unknown { id },
    };
    ledger.note(by, fact);
}
