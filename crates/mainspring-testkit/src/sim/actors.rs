//! Who uses the system: producers that enqueue, and an operator who interferes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainspring::{Engine, Job};
use mainspring_core::Error;
use mainspring_core::backoff::Backoff;
use mainspring_core::id::JobId;
use mainspring_core::job::{State, Status, Unique, Until, Verb};
use mainspring_core::seam::{Clock, Rng};
use mainspring_core::store::Filter;

use super::plan::{End, LABEL, Plan, QUEUES};
use super::process::{Chore, Work};
use super::programs::Program;
use super::world::{World, below, between, chance, lock, pick};
use crate::history::{Actor, EnqueueAnswer, Fact, Recorder};
use crate::rng::SeededRng;

/// Jobs that the operator remembers.
const REMEMBERED: usize = 24;

/// What producers and the operator share: what there is to interfere with.
#[derive(Default)]
pub(super) struct KnownJobs(
    Mutex<VecDeque<JobId>>,
    Mutex<VecDeque<(JobId, Program)>>,
    Mutex<VecDeque<(JobId, Plan)>>,
);

impl KnownJobs {
    fn tell(&self, id: JobId) {
        let mut ids = lock(&self.0);
        if ids.len() >= REMEMBERED {
            ids.pop_front();
        }
        ids.push_back(id);
    }

    /// Tells of a workflow.
    pub(super) fn tell_flow(&self, id: JobId, program: Program) {
        let mut flows = lock(&self.1);
        if flows.len() >= REMEMBERED {
            flows.pop_front();
        }
        flows.push_back((id, program));
    }

    /// Some workflow, and what it does.
    pub(super) fn some_flow(&self, rng: &SeededRng) -> Option<(JobId, Program)> {
        let flows = lock(&self.1);
        flows.iter().rev().nth(below(rng, flows.len())).cloned()
    }

    /// Tells of a job that is stored and has neither a key nor a time.
    fn tell_work(&self, id: JobId, plan: Plan) {
        let mut works = lock(&self.2);
        if works.len() >= REMEMBERED {
            works.pop_front();
        }
        works.push_back((id, plan));
    }

    fn some_work(&self, rng: &SeededRng) -> Option<(JobId, Plan)> {
        let works = lock(&self.2);
        works.iter().rev().nth(below(rng, works.len())).cloned()
    }

    fn some(&self, rng: &SeededRng) -> Option<JobId> {
        let ids = lock(&self.0);
        // What was enqueued lately is most likely to run.
        let among = if chance(rng, 0.5) { ids.len().min(6) } else { ids.len() };
        ids.iter().rev().nth(below(rng, among)).copied()
    }
}

/// Somebody with a process of his own.
pub(super) struct Participant {
    pub(super) world: Arc<World>,
    pub(super) actor: Actor,
    pub(super) engine: Engine,
    pub(super) known_jobs: Arc<KnownJobs>,
    pub(super) rng: SeededRng,
}

impl Participant {
    pub(super) async fn pause(&self, mean: Duration) {
        self.world.time.sleep(between(&self.rng, mean / 5, mean * 9 / 5)).await;
    }

    pub(super) fn is_over(&self) -> bool {
        self.world.time.monotonic() >= self.world.config.fault_phase
    }

    pub(super) fn note(&self, fact: Fact) {
        self.world.log.note(self.actor, fact);
    }

    /// Lets the operator know of a job.
    pub(super) fn tell(&self, id: JobId) {
        self.known_jobs.tell(id);
    }

    /// Enqueues, until the fault phase is over.
    pub(super) async fn produce(self) {
        while !self.is_over() {
            self.pause(self.world.config.pace).await;
            match below(&self.rng, 20) {
                0..=2 => self.enqueue_many().await,
                3 if chance(&self.rng, 0.5) => self.reuse().await,
                3 => self.enqueue_together().await,
                4..=7 => self.start_flow().await,
                8..=10 => self.enqueue(Chore(Plan::of(&self.rng))).await,
                _ => self.enqueue(Work(Plan::of(&self.rng))).await,
            }
        }
    }

    async fn enqueue<J: Job + HasPlan>(&self, job: J) {
        let (rng, plan) = (&self.rng, job.plan().clone());
        let id = JobId::mint(self.world.time.now(), rng);
        let mut enqueue = self.engine.enqueue(job).id(id).priority(u8::try_from(below(rng, 10)).unwrap_or(5));
        enqueue = enqueue.backoff(Backoff::Fixed(Duration::from_millis(20 + rng.next_u64() % 1_000)));
        enqueue = enqueue.max_attempts(1 + u16::try_from(below(rng, 4)).unwrap_or(0));
        if chance(rng, 0.5) {
            enqueue = enqueue.queue(pick(rng, &QUEUES));
        }
        if plan.end == End::Hang || chance(rng, 0.1) {
            enqueue = enqueue.timeout(Duration::from_millis(500 + rng.next_u64() % 2_000));
        }
        let mut bare = J::KIND == Work::KIND;
        if chance(rng, 0.2) {
            bare = false;
            enqueue = enqueue.delay(Duration::from_millis(rng.next_u64() % 15_000));
        }
        if chance(rng, 0.1) {
            bare = false;
            enqueue = enqueue.deadline(Duration::from_millis(500 + rng.next_u64() % 20_000));
        }
        if chance(rng, 0.1) {
            enqueue = enqueue.label(LABEL);
        }
        if chance(rng, 0.35) {
            bare = false;
            enqueue = enqueue.unique(unique(rng));
        }
        self.known_jobs.tell(id);
        let answer = enqueue.await;
        self.note(match &answer {
            Ok(enqueued) if enqueued.id == id => Fact::Acknowledged { id, told: EnqueueAnswer::Created },
            Ok(enqueued) => Fact::Acknowledged { id, told: EnqueueAnswer::Existing(enqueued.id) },
            // A repeat of a call whose answer was lost met a held key; the first may arrive when the key is free.
            Err(Error::OutcomeUnknown { .. } | Error::Conflict { .. }) => Fact::Unknown { id },
            Err(_) => Fact::Refused { id },
        });
        if bare && answer.is_ok() {
            self.known_jobs.tell_work(id, plan);
        }
        if let Ok(enqueued) = answer
            && chance(rng, 0.05)
        {
            let id = enqueued.id;
            self.note(Fact::Awaits { id });
            let status = match self.engine.result(&enqueued).await {
                Ok(_) => Some(Status::plain(State::Succeeded)),
                Err(Error::Ended { status, .. }) => Some(status),
                Err(_) => None,
            };
            self.note(Fact::Answered { id, status });
        }
    }

    /// Asks for an id that a job has, for the same or for another one.
    async fn reuse(&self) {
        let rng = &self.rng;
        let Some((id, plan)) = self.known_jobs.some_work(rng) else { return };
        let same = chance(rng, 0.5);
        let answer = match (same, chance(rng, 0.5)) {
            (true, _) => self.engine.enqueue(Work(plan)).id(id).await.map(|job| job.id),
            (false, true) => self.engine.enqueue(Chore(plan)).id(id).await.map(|job| job.id),
            (false, false) => {
                let other = Work(Plan { millis: plan.millis + 1, ..plan });
                self.engine.enqueue(other).id(id).await.map(|job| job.id)
            }
        };
        match answer {
            Ok(_) => self.note(Fact::Reused { id, same, stored: true }),
            Err(Error::IdTaken { .. }) => self.note(Fact::Reused { id, same, stored: false }),
            Err(_) => {}
        }
    }

    /// Several callers of one process at once: what they ask for shares commits, and each wants his own answer.
    async fn enqueue_together(&self) {
        let work = || self.enqueue(Work(Plan::of(&self.rng)));
        tokio::join!(biased; work(), work(), work(), work(), work());
    }

    async fn enqueue_many(&self) {
        let count = 2 + below(&self.rng, 20);
        let jobs: Vec<Work> =
            (0..count).map(|number| Work(Plan { millis: number as u64 * 3, ..Plan::default() })).collect();
        let queue = pick(&self.rng, &QUEUES);
        // Of a call that fails nobody knows the ids: what it stored is nobody's promise.
        for enqueued in self.engine.enqueue_many(jobs).queue(queue).await.unwrap_or_default() {
            self.known_jobs.tell(enqueued.id);
            self.note(Fact::Acknowledged { id: enqueued.id, told: EnqueueAnswer::Created });
        }
    }

    /// Brings quick work, so that nodes learn to claim ahead; and a little later very much of it.
    pub(super) async fn rush(self, at: Duration) {
        let queue = pick(&self.rng, &QUEUES);
        self.world.time.sleep(at.saturating_sub(Duration::from_secs(1))).await;
        self.bring(queue, 150).await;
        self.world.time.sleep(at.saturating_sub(self.world.time.monotonic())).await;
        self.bring(queue, 450).await;
    }

    async fn bring(&self, queue: &str, count: u64) {
        let jobs = (0..count).map(|number| Work(Plan { millis: number % 3, ..Plan::default() }));
        for enqueued in self.engine.enqueue_many(jobs).queue(queue).await.unwrap_or_default() {
            self.note(Fact::Acknowledged { id: enqueued.id, told: EnqueueAnswer::Created });
        }
    }

    /// Interferes, until the fault phase is over.
    pub(super) async fn operate(self, mean: Duration) {
        while !self.is_over() {
            self.pause(mean).await;
            // A verb that is refused, or that the store did not hear, is an operator's daily bread.
            drop(self.interfere().await);
        }
    }

    async fn interfere(&self) -> Result<(), Error> {
        let (rng, jobs) = (&self.rng, self.engine.jobs());
        let Some(id) = self.known_jobs.some(rng) else { return Ok(()) };
        match below(rng, 22) {
            0..=3 => jobs.cancel(id).because("no reason").await.map(drop),
            4 | 5 => jobs.retry(id).await.map(drop),
            6 => jobs.hold(id).await.map(drop),
            7 | 8 => jobs.resume(id).await.map(drop),
            9 => jobs.fail(id).because("no hope").await.map(drop),
            10 => jobs.delete(id).await.map(drop),
            11 => jobs.set_priority(id, 1).await.map(drop),
            12 | 16 => {
                let queue = pick(rng, &QUEUES);
                self.engine.queues().pause(queue).await?;
                self.pause(Duration::from_secs(5)).await;
                self.engine.queues().resume(queue).await.map(drop)
            }
            13 => {
                let verb = pick(rng, &[0, 1]);
                let states = vec![State::Ready, State::Scheduled, State::Suspended];
                let verb = if verb == 0 { Verb::Resume } else { Verb::Cancel { why: "all of them".into() } };
                let queue = mainspring_core::name::QueueName::new(pick(rng, &QUEUES))?;
                let filter = Filter { queue: Some(queue), states, ..Filter::default() };
                jobs.change(filter, verb).await.map(drop)
            }
            17 | 18 => self.fork().await,
            19..=21 => self.retry_from().await,
            14 => jobs.why(id).await.map(drop),
            _ => self.engine.nodes().await.map(drop),
        }
    }
}

/// A job with a plan.
pub(super) trait HasPlan {
    /// What it does.
    fn plan(&self) -> &Plan;
}

impl HasPlan for Work {
    fn plan(&self) -> &Plan {
        &self.0
    }
}

impl HasPlan for Chore {
    fn plan(&self) -> &Plan {
        &self.0
    }
}

/// One of a few keys, so that jobs meet.
fn unique(rng: &SeededRng) -> Unique {
    let until = match below(rng, 5) {
        0 => Until::Started,
        1 => Until::after(Duration::from_secs(5)),
        _ => Until::Finished,
    };
    let unique = Unique::new(format!("key-{}", below(rng, 4))).until(until);
    match below(rng, 4) {
        0 => unique.replace(),
        1 => unique.reject(),
        _ => unique,
    }
}
