//! Workflows of a simulation at work: what their handlers do, and what is noted of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mainspring::workflow::OnClose;
use mainspring::{Context, Failure, StepContext, discard};
use mainspring_core::Error;
use mainspring_core::id::JobId;
use mainspring_core::seam::{Clock, Pending};

use super::process::HandlerHost;
use super::programs::{Flow, INTERRUPTED, NOTHING, Part, Program, joined};
use super::world::{World, below, lock};
use crate::history::{Fact, digest};

/// One run of a workflow's handler: what its bodies know.
pub(super) struct HandlerRun {
    pub(super) host: Arc<HandlerHost>,
    pub(super) id: JobId,
    /// The claim under which it began.
    since: u32,
    /// The claim under which it goes on, as far as its bodies have learnt.
    pub(super) current: AtomicU32,
    clock: Arc<dyn Clock>,
    /// Whether its code is the later one.
    pub(super) edited: bool,
}

impl HandlerRun {
    /// A body begins.
    pub(super) fn enter(&self, claim: u32, key: &str, once: bool) {
        if self.current.fetch_max(claim, Ordering::SeqCst) < claim {
            self.host.note(Fact::Began { id: self.id, claim });
        }
        let (id, since, key) = (self.id, self.since, key.to_owned());
        self.host.note(Fact::Entered { id, claim, since, key, once });
    }

    /// Its effect is there.
    pub(super) fn ran(&self, key: &str) {
        let claim = self.current.load(Ordering::SeqCst);
        self.host.note(Fact::Ran { id: self.id, claim, key: key.to_owned() });
    }

    /// The handler goes on with what came of an operation.
    fn saw(&self, key: &str, value: Option<u64>, rides: bool) {
        self.saw_as(key, value.map(|value| digest(value.to_string().as_bytes())), rides);
    }

    pub(super) fn saw_as(&self, key: &str, digest: Option<u64>, rides: bool) {
        let (id, since, key) = (self.id, self.since, key.to_owned());
        self.host.note(Fact::Saw { id, since, key, digest, rides });
    }

    /// What a wait came to; it may have met a signal that is not a number.
    pub(super) fn met<T>(&self, key: &str, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(Error::Step { .. }) = result {
            let (id, since, key) = (self.id, self.since, key.to_owned());
            self.host.note(Fact::Unfit { id, since, key });
        }
        result
    }

    /// The handler comes to a wait; whoever wants to meet it there is told.
    pub(super) fn comes_to(&self, wait: &str) {
        self.host.world.comes_to(self.host.actor, self.id, wait);
    }

    /// How long some body takes.
    fn effort(&self) -> Duration {
        Duration::from_millis(match below(&self.host.world.fate, 8) {
            0 => 3_000,
            1 => 300,
            2..=3 => 0,
            _ => 10,
        })
    }

    /// A body takes some time.
    pub(super) async fn work(&self) {
        self.clock.sleep(self.effort()).await;
    }

    /// The body of a step that comes to a value.
    pub(super) fn body(
        self: &Arc<Self>,
        key: &str,
        value: u64,
    ) -> impl FnMut(StepContext) -> Pending<'static, Result<u64, Failure>> + Send + use<> {
        self.body_of(key, value, None)
    }

    /// The same, if it is known how long it takes.
    fn body_of(
        self: &Arc<Self>,
        key: &str,
        value: u64,
        effort: Option<Duration>,
    ) -> impl FnMut(StepContext) -> Pending<'static, Result<u64, Failure>> + Send + use<> {
        let (handler_run, key) = (Arc::clone(self), key.to_owned());
        move |step: StepContext| {
            let (handler_run, key) = (Arc::clone(&handler_run), key.clone());
            Box::pin(async move {
                handler_run.enter(step.claim(), &key, false);
                handler_run.clock.sleep(effort.unwrap_or_else(|| handler_run.effort())).await;
                handler_run.ran(&key);
                Ok(value)
            })
        }
    }

    /// A plain step that comes to a value.
    pub(super) async fn step(
        self: &Arc<Self>,
        ctx: &Context,
        path: &str,
        name: &str,
        value: u64,
    ) -> Result<u64, Error> {
        let key = format!("{path}{name}");
        let body = self.body(&key, value);
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
        effort: Duration,
    ) -> Result<u64, Error> {
        let (handler_run, key) = (Arc::clone(self), name.to_owned());
        let body = move |step: StepContext| {
            let (handler_run, key) = (Arc::clone(&handler_run), key.clone());
            async move {
                handler_run.enter(step.claim(), &key, false);
                handler_run.clock.sleep(effort).await;
                if handler_run.host.world.enter(handler_run.id, &key) <= times {
                    return Err(Failure::from("it is meant to fail"));
                }
                handler_run.ran(&key);
                Ok(value)
            }
        };
        ctx.step_with(name, body).await
    }

    async fn part(self: &Arc<Self>, ctx: &Context, program: &Program, number: usize) -> Result<u64, Failure> {
        let name = |what: &str| format!("{what}{number}");
        let value = |of: usize| program.value(number, of);
        match &program.parts[number] {
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
                    let (handler_run, path) = (Arc::clone(self), format!("{}/", name(side)));
                    let values = (value(first), value(first + 1));
                    ctx.branch(&name(side), move |ctx| async move {
                        let one = handler_run.step(&ctx, &path, "one", values.0).await?;
                        Ok(one.wrapping_add(handler_run.step(&ctx, &path, "two", values.1).await?))
                    })
                };
                let (north, south) = tokio::join!(biased; branch("north", 0), branch("south", 2));
                Ok(north?.wrapping_add(south?))
            }
            Part::Saga => {
                match self.fails(ctx, &name("try"), u32::MAX, 0, self.effort()).await {
                    Err(Error::Step { .. }) => self.saw(&name("try"), None, true),
                    Err(other) => return Err(other.into()),
                    Ok(_) => return Err(discard("it cannot succeed").into()),
                }
                Ok(self.step(ctx, "", &name("undo"), value(0)).await?)
            }
            Part::Flaky { times, beside } => {
                let (flaky, sure, effort) = (name("flaky"), name("beside"), self.effort());
                let flaky = self.fails(ctx, &flaky, *times, value(0), effort);
                if !beside {
                    return Ok(flaky.await?);
                }
                // Both take the same time: what is done is not yet recorded when the other one fails.
                let sure = async {
                    let value = ctx.step_with(&sure, self.body_of(&sure, value(1), Some(effort))).await?;
                    self.saw(&sure, Some(value), false);
                    Ok(value)
                };
                let (sure, flaky) = tokio::try_join!(biased; sure, flaky)?;
                Ok(sure.wrapping_add(flaky))
            }
            Part::Sleep(millis) => {
                self.comes_to(&name("sleep"));
                ctx.sleep(&name("sleep"), Duration::from_millis(*millis)).await?;
                Ok(0)
            }
            Part::Signals { need, .. } => {
                self.comes_to(&name("signal"));
                let need = u32::try_from(*need).unwrap_or(1);
                let sum = if need == 1 {
                    self.met(&name("signal"), ctx.signal::<u64>(&*name("signal")).await)?
                } else {
                    let received = ctx.signal::<u64>(&*name("signal")).count(need).await;
                    let received = self.met(&name("signal"), received)?;
                    received.iter().fold(0_u64, |sum, one| sum.wrapping_add(one.value))
                };
                self.saw(&name("signal"), None, true);
                Ok(sum)
            }
            Part::Timed { millis, .. } => {
                self.comes_to(&name("signal"));
                let timeout = Duration::from_millis(*millis);
                let value = ctx.signal::<u64>(&*name("signal")).timeout(timeout).await;
                let value = self.met(&name("signal"), value)?;
                self.saw(&name("signal"), None, true);
                Ok(value.unwrap_or(NOTHING))
            }
            Part::Children { .. } => self.family(ctx, program, number).await,
            Part::Once => self.once(ctx, program, number).await,
            Part::Race(race) => self.race(ctx, program, number, race).await,
            Part::Map { items, at_once, enough } => {
                self.map(ctx, program, number, (*items, *at_once, *enough)).await
            }
            Part::Iterate { turns, nap } => self.iterate(ctx, program, number, (*turns, *nap)).await,
            Part::Nest { nap } => self.nest(ctx, program, number, *nap).await,
            Part::Token { millis } => self.ask(ctx, program, number, *millis).await,
            Part::Says(speech) => self.speak(ctx, program, number, speech).await,
            Part::Edited { edit, millis } => self.edited(ctx, program, number, (*edit, *millis)).await,
        }
    }

    async fn once(self: &Arc<Self>, ctx: &Context, program: &Program, number: usize) -> Result<u64, Failure> {
        let name = |what: &str| format!("{what}{number}");
        // So that its body knows under which claim it runs.
        self.step(ctx, "", &name("first"), 0).await?;
        let (handler_run, key) = (Arc::clone(self), name("once"));
        let value = program.value(number, 0);
        let body = move || {
            let (handler_run, key) = (Arc::clone(&handler_run), key.clone());
            async move {
                handler_run.enter(handler_run.current.load(Ordering::SeqCst), &key, true);
                handler_run.work().await;
                handler_run.ran(&key);
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

    async fn family(
        self: &Arc<Self>,
        ctx: &Context,
        program: &Program,
        number: usize,
    ) -> Result<u64, Failure> {
        let Part::Children { programs, abandoned } = &program.parts[number] else { return Ok(0) };
        let (abandoned, mut sum) = (*abandoned, 0);
        let mut children = Vec::new();
        for (at, child) in programs.iter().enumerate() {
            let on_close = if at < abandoned { OnClose::Abandon } else { OnClose::Cancel };
            let (key, results) = (format!("child{number}-{at}"), child.expects());
            let child = ctx.spawn(&key, Flow(child.clone())).on_close(on_close).await?;
            self.host.note(Fact::Expects { id: child.id(), results });
            children.push((key, child));
        }
        // Some have ended by the time that anybody waits for them, some end at that very moment.
        if program.seed.is_multiple_of(2) {
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
struct Running(Arc<HandlerRun>);

impl Drop for Running {
    fn drop(&mut self) {
        let claim = self.0.current.load(Ordering::SeqCst);
        self.0.host.note(Fact::Stopped { id: self.0.id, claim });
    }
}

/// The handler.
pub(super) async fn perform(host: Arc<HandlerHost>, ctx: Context, program: Program) -> Result<u64, Failure> {
    let (id, since) = (ctx.id(), ctx.info().claim);
    host.note(Fact::Began { id, claim: since });
    let clock = Arc::clone(&ctx.engine().seams().clock);
    let edited = host.world.is_edited();
    let handler_run = Arc::new(HandlerRun { host, id, since, current: AtomicU32::new(since), clock, edited });
    let _running = Running(Arc::clone(&handler_run));
    let mut sum = 0;
    for number in 0..program.parts.len() {
        let value = handler_run.part(&ctx, &program, number).await?;
        sum = joined(sum, value);
    }
    // Also tells under which claim it ends.
    handler_run.step(&ctx, "", "last", 0).await?;
    if program.doomed {
        return Err(discard("it is meant to").into());
    }
    handler_run.host.note(Fact::Ended { id, claim: handler_run.current.load(Ordering::SeqCst) });
    Ok(sum)
}

impl World {
    /// How often this body of this job has begun, with this time.
    pub(super) fn enter(&self, id: JobId, key: &str) -> u32 {
        let mut bodies = lock(&self.bodies);
        let count = bodies.entry((id, key.to_owned())).or_default();
        *count += 1;
        *count
    }
}
