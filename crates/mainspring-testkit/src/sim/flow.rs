//! Workflows of a simulation: programs made of parts, each with the values that it may come to.
//!
//! What a workflow returns follows from its plan, and from which of a few things happened that may happen in peace too: a
//! wait timed out, an operator ended a child. So its results are known beforehand, whatever becomes of its nodes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mainspring::{Context, Engine, Failure, Job, OnClose, StepContext, discard};
use mainspring_core::Error;
use mainspring_core::backoff::Backoff;
use mainspring_core::id::JobId;
use mainspring_core::seam::{Clock, Rng};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::people::Person;
use super::plan::QUEUES;
use super::process::Stage;
use super::world::{Away, NOBODY, World, below, between, chance, lock, pick};
use crate::history::{Actor, Fact, Told, digest};
use crate::rng::SeededRng;

/// A workflow.
#[derive(Debug, Serialize, Deserialize, Job)]
#[job(kind = "flow", output = u64, max_attempts = 40)]
pub(super) struct Flow(pub(super) Course);

/// What a workflow does.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Course {
    /// What its values come from.
    seed: u64,
    parts: Vec<Part>,
    /// Whether it fails for good in the end.
    #[serde(default)]
    doomed: bool,
}

/// A part of a workflow.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Part {
    /// Steps, one after the other.
    Chain(u64),
    /// A value is drawn, and two steps beside each other see it.
    Join,
    /// Two branches beside each other, with steps of the same names.
    Branches,
    /// A step fails; the workflow survives it and does something else.
    Saga,
    /// A step fails so often, and the workflow with it.
    Flaky(u32),
    /// It sleeps so many milliseconds.
    Sleep(u64),
    /// It waits for so many of these signals.
    Signals { need: usize, of: usize },
    /// It waits for one signal, and not longer than this.
    Timed { millis: u64, sent: Option<u64> },
    /// It waits for children. Some are not waited for, and go on without it.
    Children { courses: Vec<Course>, abandoned: usize },
    /// Something is done at most once.
    Once,
}

/// What a child, or a step, that was ended from outside comes to.
const INTERRUPTED: u64 = 1;
/// What a wait comes to whose time was up.
const NOTHING: u64 = 2;

impl Course {
    /// What some workflow does.
    pub(super) fn of(rng: &SeededRng) -> Self {
        let parts = 1 + below(rng, 3);
        let mut course = Course { seed: rng.next_u64() >> 20, parts: Vec::new(), doomed: false };
        for _ in 0..parts {
            course.parts.push(Part::of(rng, !course.has_children()));
        }
        course
    }

    fn has_children(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Children { .. }))
    }

    fn child(rng: &SeededRng) -> Self {
        let mut parts = vec![Part::Chain(1 + rng.next_u64() % 2)];
        if chance(rng, 0.5) {
            parts.push(Part::Sleep(rng.next_u64() % 3_000));
        }
        Course { seed: rng.next_u64() >> 20, parts, doomed: chance(rng, 0.2) }
    }

    /// A value that belongs to a part.
    fn value(&self, part: usize, number: usize) -> u64 {
        let mut bytes = self.seed.to_le_bytes().to_vec();
        bytes.extend([u8::try_from(part).unwrap_or(0), u8::try_from(number).unwrap_or(0)]);
        // Some way from what stands for other things.
        digest(&bytes) >> 16 | 1 << 48
    }

    /// All that it may return.
    fn outputs(&self) -> BTreeSet<u64> {
        if self.doomed {
            return BTreeSet::new();
        }
        let mut all = BTreeSet::from([0]);
        for (number, part) in self.parts.iter().enumerate() {
            let values = self.values(number, part);
            all = all.iter().flat_map(|so_far| values.iter().map(|value| joined(*so_far, *value))).collect();
        }
        all
    }

    fn values(&self, number: usize, part: &Part) -> BTreeSet<u64> {
        let value = |of: usize| self.value(number, of);
        let sum = |of: std::ops::Range<usize>| of.map(value).fold(0, u64::wrapping_add);
        match part {
            Part::Chain(steps) => BTreeSet::from([sum(0..usize::try_from(*steps).unwrap_or(0))]),
            Part::Join => BTreeSet::from([sum(0..2)]),
            Part::Branches => BTreeSet::from([sum(0..4)]),
            Part::Saga | Part::Flaky(_) => BTreeSet::from([value(0)]),
            Part::Sleep(_) => BTreeSet::from([0]),
            Part::Signals { need, of } => {
                let chosen = (0..1_usize << of).filter(|set| set.count_ones() as usize == *need);
                chosen
                    .map(|set| {
                        (0..*of).filter(|one| set >> one & 1 == 1).map(value).fold(0, u64::wrapping_add)
                    })
                    .collect()
            }
            Part::Timed { sent, .. } => std::iter::once(NOTHING).chain(sent.map(|_| value(0))).collect(),
            Part::Children { courses, abandoned } => {
                let mut sums = BTreeSet::from([0]);
                for course in courses.iter().skip(*abandoned) {
                    let mut ends = course.outputs();
                    ends.insert(INTERRUPTED);
                    sums = sums.iter().flat_map(|sum| ends.iter().map(|end| joined(*sum, *end))).collect();
                }
                sums
            }
            Part::Once => BTreeSet::from([value(0), INTERRUPTED]),
        }
    }

    /// What may be returned, as facts tell it.
    fn expects(&self) -> Vec<u64> {
        self.outputs().iter().map(|output| digest(output.to_string().as_bytes())).collect()
    }
}

fn joined(one: u64, other: u64) -> u64 {
    one.wrapping_mul(31).wrapping_add(other)
}

impl Part {
    fn of(rng: &SeededRng, family: bool) -> Self {
        match below(rng, 11) {
            9 if family => {
                let courses: Vec<Course> = (0..=below(rng, 3)).map(|_| Course::child(rng)).collect();
                let abandoned = if chance(rng, 0.3) { below(rng, courses.len() + 1) } else { 0 };
                Part::Children { courses, abandoned }
            }
            0 | 1 => Part::Chain(1 + rng.next_u64() % 5),
            2 | 9 => Part::Join,
            3 => Part::Branches,
            4 => Part::Saga,
            5 => Part::Flaky(1 + u32::try_from(below(rng, 2)).unwrap_or(0)),
            6 => Part::Sleep(rng.next_u64() % 8_000),
            7 => {
                let of = 1 + below(rng, 3);
                Part::Signals { need: 1 + below(rng, of), of }
            }
            8 => {
                let millis = 100 + rng.next_u64() % 6_000;
                // Too early, too late, about when the time is up, or never.
                let sent = pick(rng, &[None, Some(0), Some(millis), Some(millis / 2), Some(millis * 2)]);
                Part::Timed { millis, sent }
            }
            _ => Part::Once,
        }
    }
}

/// One run of a workflow's handler: what its bodies know.
struct Act {
    stage: Arc<Stage>,
    id: JobId,
    /// The claim under which it began.
    since: u32,
    /// The claim under which it goes on, as far as its bodies have learnt.
    current: AtomicU32,
    clock: Arc<dyn Clock>,
}

impl Act {
    /// A body begins.
    fn enter(&self, claim: u32, key: &str, once: bool) {
        if self.current.fetch_max(claim, Ordering::SeqCst) < claim {
            self.stage.note(Fact::Began { id: self.id, claim });
        }
        let (id, since, key) = (self.id, self.since, key.to_owned());
        self.stage.note(Fact::Entered { id, claim, since, key, once });
    }

    /// Its effect is there.
    fn ran(&self, key: &str) {
        let claim = self.current.load(Ordering::SeqCst);
        self.stage.note(Fact::Ran { id: self.id, claim, key: key.to_owned() });
    }

    /// The handler goes on with what came of an operation.
    fn saw(&self, key: &str, value: Option<u64>, rides: bool) {
        let digest = value.map(|value| digest(value.to_string().as_bytes()));
        let (id, since, key) = (self.id, self.since, key.to_owned());
        self.stage.note(Fact::Saw { id, since, key, digest, rides });
    }

    /// The handler comes to a wait; whoever wants to meet it there is told.
    fn comes_to(&self, wait: &str) {
        self.stage.world.comes_to(self.stage.actor, self.id, wait);
    }

    /// A body takes some time.
    async fn work(&self) {
        let millis = match below(&self.stage.world.fate, 8) {
            0 => 3_000,
            1 => 300,
            2..=3 => 0,
            _ => 10,
        };
        self.clock.sleep(Duration::from_millis(millis)).await;
    }

    /// A plain step that comes to a value.
    async fn step(self: &Arc<Self>, ctx: &Context, path: &str, name: &str, value: u64) -> Result<u64, Error> {
        let key = format!("{path}{name}");
        let (act, inner) = (Arc::clone(self), key.clone());
        let body = move |step: StepContext| {
            let (act, key) = (Arc::clone(&act), inner.clone());
            async move {
                act.enter(step.claim(), &key, false);
                act.work().await;
                act.ran(&key);
                Ok(value)
            }
        };
        let result = ctx.step_with(name, body).await;
        if let Ok(value) = result {
            self.saw(&key, Some(value), false);
        }
        result
    }

    /// A step that fails, the first times or always.
    async fn fails(
        self: &Arc<Self>,
        ctx: &Context,
        name: &str,
        times: u32,
        value: u64,
    ) -> Result<u64, Error> {
        let (act, key) = (Arc::clone(self), name.to_owned());
        let body = move |step: StepContext| {
            let (act, key) = (Arc::clone(&act), key.clone());
            async move {
                act.enter(step.claim(), &key, false);
                act.work().await;
                if act.stage.world.enter(act.id, &key) <= times {
                    return Err(Failure::from("it is meant to fail"));
                }
                act.ran(&key);
                Ok(value)
            }
        };
        ctx.step_with(name, body).await
    }

    async fn part(self: &Arc<Self>, ctx: &Context, course: &Course, number: usize) -> Result<u64, Failure> {
        let name = |what: &str| format!("{what}{number}");
        let value = |of: usize| course.value(number, of);
        match &course.parts[number] {
            Part::Chain(steps) => {
                let mut sum = 0_u64;
                for at in 0..usize::try_from(*steps).unwrap_or(0) {
                    sum =
                        sum.wrapping_add(self.step(ctx, "", &name(&format!("chain{at}-")), value(at)).await?);
                }
                Ok(sum)
            }
            Part::Join => {
                let dice = ctx.random(&name("dice")).await?;
                self.saw(&name("dice"), Some(dice), true);
                let (left, right) = (name("left"), name("right"));
                let left = self.step(ctx, "", &left, value(0));
                let right = self.step(ctx, "", &right, value(1));
                let (left, right) = tokio::join!(biased; left, right);
                Ok(left?.wrapping_add(right?))
            }
            Part::Branches => {
                let branch = |side: &'static str, first: usize| {
                    let (act, path) = (Arc::clone(self), format!("{}/", name(side)));
                    let values = (value(first), value(first + 1));
                    ctx.branch(&name(side), move |ctx| async move {
                        let one = act.step(&ctx, &path, "one", values.0).await?;
                        Ok(one.wrapping_add(act.step(&ctx, &path, "two", values.1).await?))
                    })
                };
                let (north, south) = tokio::join!(biased; branch("north", 0), branch("south", 2));
                Ok(north?.wrapping_add(south?))
            }
            Part::Saga => {
                match self.fails(ctx, &name("try"), u32::MAX, 0).await {
                    Err(Error::Step { .. }) => self.saw(&name("try"), None, true),
                    Err(other) => return Err(other.into()),
                    Ok(_) => return Err(discard("it cannot succeed").into()),
                }
                Ok(self.step(ctx, "", &name("undo"), value(0)).await?)
            }
            Part::Flaky(times) => Ok(self.fails(ctx, &name("flaky"), *times, value(0)).await?),
            Part::Sleep(millis) => {
                self.comes_to(&name("sleep"));
                ctx.sleep(&name("sleep"), Duration::from_millis(*millis)).await?;
                Ok(0)
            }
            Part::Signals { need, .. } => {
                self.comes_to(&name("signal"));
                let need = u32::try_from(*need).unwrap_or(1);
                let sum = if need == 1 {
                    ctx.signal::<u64>(&*name("signal")).await?
                } else {
                    let received = ctx.signal::<u64>(&*name("signal")).count(need).await?;
                    received.iter().fold(0_u64, |sum, one| sum.wrapping_add(one.value))
                };
                self.saw(&name("signal"), None, true);
                Ok(sum)
            }
            Part::Timed { millis, .. } => {
                self.comes_to(&name("signal"));
                let timeout = Duration::from_millis(*millis);
                let value = ctx.signal::<u64>(&*name("signal")).timeout(timeout).await?;
                self.saw(&name("signal"), None, true);
                Ok(value.unwrap_or(NOTHING))
            }
            Part::Children { .. } => self.family(ctx, course, number).await,
            Part::Once => {
                // So that its body knows under which claim it runs.
                self.step(ctx, "", &name("first"), 0).await?;
                let (act, key) = (Arc::clone(self), name("once"));
                let value = value(0);
                let body = move || {
                    let (act, key) = (Arc::clone(&act), key.clone());
                    async move {
                        act.enter(act.current.load(Ordering::SeqCst), &key, true);
                        act.work().await;
                        act.ran(&key);
                        Ok(value)
                    }
                };
                match ctx.once(&name("once"), body).await {
                    Ok(value) => {
                        self.saw(&name("once"), Some(value), false);
                        Ok(value)
                    }
                    Err(Error::Interrupted { .. }) => Ok(INTERRUPTED),
                    Err(other) => Err(other.into()),
                }
            }
        }
    }

    async fn family(self: &Arc<Self>, ctx: &Context, course: &Course, number: usize) -> Result<u64, Failure> {
        let Part::Children { courses, abandoned } = &course.parts[number] else { return Ok(0) };
        let (abandoned, mut sum) = (*abandoned, 0);
        let mut children = Vec::new();
        for (at, child) in courses.iter().enumerate() {
            let on_close = if at < abandoned { OnClose::Abandon } else { OnClose::Cancel };
            let (key, outputs) = (format!("child{number}-{at}"), child.expects());
            let child = ctx.spawn(&key, Flow(child.clone())).on_close(on_close).await?;
            self.stage.note(Fact::Expects { id: child.id(), outputs });
            children.push((key, child));
        }
        // Some have ended by the time that anybody waits for them, some end at that very moment.
        if course.seed.is_multiple_of(2) {
            self.step(ctx, "", &format!("meanwhile{number}"), 0).await?;
        }
        self.comes_to(&format!("child{number}"));
        for (key, child) in children.into_iter().skip(abandoned) {
            let end = match child.result().await {
                Ok(value) => value,
                Err(Error::Ended { .. }) => INTERRUPTED,
                Err(other) => return Err(other.into()),
            };
            self.saw(&format!("{key}#result"), None, true);
            sum = joined(sum, end);
        }
        Ok(sum)
    }
}

/// Notes the end of a run, however it comes.
struct Running(Arc<Act>);

impl Drop for Running {
    fn drop(&mut self) {
        let claim = self.0.current.load(Ordering::SeqCst);
        self.0.stage.note(Fact::Stopped { id: self.0.id, claim });
    }
}

/// The handler.
pub(super) async fn perform(stage: Arc<Stage>, ctx: Context, course: Course) -> Result<u64, Failure> {
    let (id, since) = (ctx.id(), ctx.info().claim);
    stage.note(Fact::Began { id, claim: since });
    let clock = Arc::clone(&ctx.engine().seams().clock);
    let act = Arc::new(Act { stage, id, since, current: AtomicU32::new(since), clock });
    let _running = Running(Arc::clone(&act));
    let mut sum = 0;
    for number in 0..course.parts.len() {
        let value = act.part(&ctx, &course, number).await?;
        sum = joined(sum, value);
    }
    // Also tells under which claim it ends.
    act.step(&ctx, "", "last", 0).await?;
    if course.doomed {
        return Err(discard("it is meant to").into());
    }
    act.stage.note(Fact::Ended { id, claim: act.current.load(Ordering::SeqCst) });
    Ok(sum)
}

impl Person {
    /// Starts a workflow, and has its signals sent.
    pub(super) async fn start_flow(&self) {
        let (rng, course) = (&self.rng, Course::of(&self.rng));
        let id = JobId::mint(self.world.time.now(), rng);
        self.note(Fact::Expects { id, outputs: course.expects() });
        let senders = course.senders();
        let waits = course.waits();
        let mut enqueue = self.engine.enqueue(Flow(course)).id(id);
        enqueue = enqueue.backoff(Backoff::Fixed(Duration::from_millis(20 + rng.next_u64() % 500)));
        if chance(rng, 0.5) {
            enqueue = enqueue.queue(pick(rng, &QUEUES));
        }
        if chance(rng, 0.1) {
            enqueue = enqueue.delay(Duration::from_millis(rng.next_u64() % 5_000));
        }
        if chance(rng, 0.05) {
            enqueue = enqueue.deadline(Duration::from_millis(2_000 + rng.next_u64() % 20_000));
        }
        self.tell(id);
        let answer = enqueue.await;
        self.note(match &answer {
            Ok(_) => Fact::Acknowledged { id, told: Told::Created },
            Err(Error::OutcomeUnknown { .. }) => Fact::Unknown { id },
            Err(_) => Fact::Refused { id },
        });
        if matches!(&answer, Err(error) if !matches!(error, Error::OutcomeUnknown { .. })) {
            return;
        }
        for Message { name, sender, value, after } in senders {
            let world = Arc::clone(&self.world);
            // Half of those that may come at any time come when they are about to be waited for.
            let prompt = (after.is_none() && chance(rng, 0.5)).then(|| self.world.watch_for(id, &name));
            let some_time = Duration::from_millis(rng.next_u64() % 10_000);
            let after = after.unwrap_or(if prompt.is_some() { LATEST } else { some_time });
            let again = chance(rng, 0.3);
            let letter = Letter { id, name, sender, value, again, prompt };
            let task = letter.send(world, self.engine.clone(), after);
            self.world.executor.spawn(self.actor, Box::pin(task));
        }
        if waits.is_empty() {
            return;
        }
        let (world, config) = (&self.world, &self.world.config);
        let wait = &waits[below(rng, waits.len())];
        if config.verbs.is_some() && chance(rng, 0.2) {
            let task = meddle(Arc::clone(world), self.engine.clone(), id, world.watch_for(id, wait));
            world.executor.spawn(self.actor, Box::pin(task));
        } else if config.lonely && chance(rng, 0.4) {
            let task = sever(Arc::clone(world), world.watch_for(id, wait));
            world.executor.spawn(NOBODY, Box::pin(task));
        }
    }
}

/// When a signal is sent for which nobody has come to wait.
const LATEST: Duration = Duration::from_secs(10);
/// How long after a handler came to a wait whoever meets it there acts: about as long as a suspension takes.
const MEETING: Duration = Duration::from_millis(3);

/// Cancels a workflow when it is about to be suspended, or has just been.
async fn meddle(world: Arc<World>, engine: Engine, id: JobId, told: oneshot::Receiver<Actor>) {
    if told.await.is_err() {
        return;
    }
    world.time.sleep(between(&world.fate, Duration::ZERO, MEETING)).await;
    if world.time.monotonic() < world.config.storm {
        // A cancellation that is refused is an operator's daily bread.
        drop(engine.jobs().cancel(id).because("it waits").await);
    }
}

/// Cuts a node off when one of its handlers is about to be suspended, until others have found it dead: it keeps a handler
/// whose suspension was refused, and it alone is there to run that workflow again.
async fn sever(world: Arc<World>, told: oneshot::Receiver<Actor>) {
    let Ok(actor) = told.await else { return };
    let left = world.config.storm.saturating_sub(world.time.monotonic());
    let lasts = between(&world.fate, world.config.lease * 3 / 2, world.config.lease * 5 / 2).min(left);
    world.fault("cut", Some(actor), lasts);
    world.net().cut.insert(actor, pick(&world.fate, &[Away::Refusing, Away::Silent]));
    world.time.sleep(lasts).await;
    world.net().cut.remove(&actor);
}

/// A signal that a workflow counts upon.
struct Message {
    name: String,
    sender: String,
    value: u64,
    after: Option<Duration>,
}

impl Course {
    /// The names of all waits, as handlers come to them.
    fn waits(&self) -> Vec<String> {
        let wait = |(number, part): (usize, &Part)| match part {
            Part::Signals { .. } | Part::Timed { .. } => Some(format!("signal{number}")),
            Part::Sleep(_) => Some(format!("sleep{number}")),
            Part::Children { .. } => Some(format!("child{number}")),
            _ => None,
        };
        self.parts.iter().enumerate().filter_map(wait).collect()
    }

    fn senders(&self) -> Vec<Message> {
        let mut all = Vec::new();
        for (number, part) in self.parts.iter().enumerate() {
            let name = format!("signal{number}");
            let message = |of: usize, after| Message {
                name: name.clone(),
                sender: format!("sender {of}"),
                value: self.value(number, of),
                after,
            };
            match part {
                Part::Signals { of, .. } => all.extend((0..*of).map(|of| message(of, None))),
                Part::Timed { sent: Some(sent), .. } => {
                    all.push(message(0, Some(Duration::from_millis(*sent))));
                }
                _ => {}
            }
        }
        all
    }
}

/// A signal on its way.
struct Letter {
    id: JobId,
    name: String,
    sender: String,
    value: u64,
    /// Whether it is sent twice for no reason.
    again: bool,
    /// Told when it is about to be waited for, if it is to come then.
    prompt: Option<oneshot::Receiver<Actor>>,
}

impl Letter {
    /// Sends a signal until somebody has it. A job that is not there, or has ended, may come, or come back, as long as the
    /// storm lasts and what was sent in it has not arrived.
    async fn send(self, world: Arc<World>, engine: Engine, after: Duration) {
        let lease = world.config.lease;
        let mut later = [Duration::ZERO, lease * 3, lease * 11].into_iter();
        let mut again = self.again;
        match self.prompt {
            None => world.time.sleep(after).await,
            Some(told) => {
                tokio::select! {
                    biased;
                    Ok(_) = told => {}
                    () = world.time.sleep(after) => {}
                }
                world.time.sleep(between(&world.fate, Duration::ZERO, MEETING)).await;
            }
        }
        loop {
            let sent = engine.signal(self.id, &*self.name, &self.value).sender(self.sender.clone()).await;
            match sent {
                Ok(_) if again => {
                    again = false;
                    world.time.sleep(Duration::from_secs(2)).await;
                }
                Ok(_) => return,
                Err(Error::NotFound(_) | Error::Illegal { .. }) => {
                    let Some(later) = later.next() else { return };
                    let over = (world.config.storm + later).saturating_sub(world.time.monotonic());
                    world.time.sleep(over + Duration::from_secs(1)).await;
                }
                Err(_) => world.time.sleep(Duration::from_millis(500)).await,
            }
        }
    }
}

impl World {
    /// How often this body of this job has begun, with this time.
    fn enter(&self, id: JobId, key: &str) -> u32 {
        let mut bodies = lock(&self.bodies);
        let count = bodies.entry((id, key.to_owned())).or_default();
        *count += 1;
        *count
    }
}
