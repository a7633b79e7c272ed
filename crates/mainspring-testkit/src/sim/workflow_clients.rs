//! Who starts workflows of a simulation, and what meets them from outside: signals, tokens that come back, cancellations
//! and cuts at the worst moment.

use std::sync::Arc;
use std::time::Duration;

use mainspring::Engine;
use mainspring_core::Error;
use mainspring_core::backoff::Backoff;
use mainspring_core::id::JobId;
use mainspring_core::job::{State, Verb};
use mainspring_core::journal::operation;
use mainspring_core::name::Key;
use mainspring_core::seam::{Clock, Rng};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use super::actors::Participant;
use super::plan::QUEUES;
use super::programs::{Flow, Message, Program};
use super::world::{NOBODY, StoreAbsence, World, below, between, chance, pick};
use crate::history::{Actor, EnqueueAnswer, Fact, Recorder};
use crate::rng::SeededRng;

impl Participant {
    /// Starts a workflow, and has its signals sent.
    pub(super) async fn start_flow(&self) {
        let (rng, program) = (&self.rng, Program::of(&self.rng, self.world.until_deploy()));
        let id = JobId::mint(self.world.time.now(), rng);
        self.announce(id, &program);
        let words = program.says();
        if !words.is_empty() {
            self.note(Fact::Says { id, words });
        }
        let mut enqueue = self.engine.enqueue(Flow(program.clone())).id(id);
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
        let answer = enqueue.await;
        if self.was_stored(id, &answer) {
            self.accompany(id, &program);
        }
    }

    /// Says what a workflow will come to, and waits for its tokens.
    fn announce(&self, id: JobId, program: &Program) {
        self.note(Fact::Expects { id, results: program.expects() });
        for (from, to, declared) in program.renamed() {
            self.note(Fact::Renamed { id, from, to, declared });
        }
        if program.asks() {
            let (world, engine) = (Arc::clone(&self.world), self.engine.clone());
            let callback = TokenReceiver { id, world, engine, by: self.actor };
            self.world.executor.spawn(self.actor, Box::pin(callback.wait(self.world.tokens_of(id))));
        }
        self.tell(id);
        self.known_jobs.tell_flow(id, program.clone());
    }

    /// Notes what was told of a workflow that is to be stored, and whether it may be.
    fn was_stored<T>(&self, id: JobId, answer: &Result<T, Error>) -> bool {
        let fact = match answer {
            Ok(_) => Fact::Acknowledged { id, told: EnqueueAnswer::Created },
            Err(Error::OutcomeUnknown { .. }) => Fact::Unknown { id },
            Err(_) => Fact::Refused { id },
        };
        let stored = !matches!(fact, Fact::Refused { .. });
        self.note(fact);
        stored
    }

    /// Forks some workflow at some step, and has the fork's signals sent.
    pub(super) async fn fork(&self) -> Result<(), Error> {
        let Some((source, program)) = self.known_jobs.some_flow(&self.rng) else { return Ok(()) };
        let Some(step) = recorded(&self.engine, source, &self.rng).await? else { return Ok(()) };
        let id = JobId::mint(self.world.time.now(), &self.rng);
        self.announce(id, &program);
        let mut fork = self.engine.jobs().fork(source).id(id);
        if chance(&self.rng, 0.8) {
            fork = fork.from(step);
        }
        let answer = fork.await;
        if self.was_stored(id, &answer) {
            self.accompany(id, &program);
        }
        Ok(())
    }

    /// Retries some workflow from some step.
    pub(super) async fn retry_from(&self) -> Result<(), Error> {
        for _ in 0..CHOICE {
            let Some((id, _)) = self.known_jobs.some_flow(&self.rng) else { break };
            let state = self.engine.jobs().get(id).await?.summary.status.state;
            // Of those that run or have succeeded some, to be refused.
            if matches!(state, State::Running | State::Succeeded) && chance(&self.rng, 0.9) {
                continue;
            }
            return retry_from(&self.engine, id, &self.rng).await;
        }
        Ok(())
    }

    /// Has the signals of a workflow sent, and some ill luck meet it.
    fn accompany(&self, id: JobId, program: &Program) {
        let (rng, waits) = (&self.rng, program.waits());
        // Drawn apart, so that the rest of a run does not depend on it.
        let whim = SeededRng::new(program.seed);
        for Message { name, wait, sender, value, after, spare } in program.senders() {
            let world = Arc::clone(&self.world);
            // Most of those that may come at any time come when they are about to be waited for; so do some of the others.
            let prompt = chance(rng, if after.is_none() { 0.7 } else { 0.3 });
            let prompt = prompt.then(|| self.world.watch_for(id, &wait));
            let some_time = Duration::from_millis(rng.next_u64() % 10_000);
            let timed = after.is_some();
            let after = if prompt.is_some() { LATEST } else { after.unwrap_or(some_time) };
            let again = chance(rng, 0.3);
            let dropped = chance(&whim, 0.3).then(|| chance(&whim, 0.5));
            if chance(&whim, 0.3) && program.bears_errors() {
                let (name, sender) = (name.clone(), format!("mistaken {sender}"));
                let dropped = chance(&whim, 0.3).then_some(true);
                let prompt = chance(&whim, 0.5).then(|| self.world.watch_for(id, &wait));
                let letter =
                    DelayedSignal { id, name, sender, value: json!("not a number"), again, prompt, dropped };
                let task = letter.send(Arc::clone(&world), self.engine.clone(), after / 2);
                self.world.executor.spawn(self.actor, Box::pin(task));
            }
            let dropped = dropped.filter(|alone| spare && (*alone || timed));
            let letter = DelayedSignal { id, name, sender, value: json!(value), again, prompt, dropped };
            let task = letter.send(world, self.engine.clone(), after);
            self.world.executor.spawn(self.actor, Box::pin(task));
        }
        if waits.is_empty() {
            return;
        }
        let (world, config) = (&self.world, &self.world.config);
        let wait = &waits[below(rng, waits.len())];
        if config.verbs.is_some() && chance(rng, 0.3) {
            let (told, back) = (world.watch_for(id, wait), chance(rng, 0.5));
            let task = meddle(Arc::clone(world), self.engine.clone(), id, told, back);
            world.executor.spawn(self.actor, Box::pin(task));
        } else if config.one_workflow_node && chance(rng, 0.5) {
            let stops = chance(rng, 0.5);
            if stops {
                world.stop_at(id, wait);
            }
            let task = sever(Arc::clone(world), world.watch_for(id, wait), stops);
            world.executor.spawn(NOBODY, Box::pin(task));
        }
    }
}

/// When a signal is sent for which nobody has come to wait.
const LATEST: Duration = Duration::from_secs(10);
/// How long after a handler came to a wait whoever meets it there acts: about as long as a suspension takes.
const MEETING: Duration = Duration::from_millis(3);

/// How many workflows an operator looks at to find one that can be retried from a step.
const CHOICE: usize = 8;

/// Something that a workflow has recorded, and that can be gone back to.
async fn recorded(engine: &Engine, id: JobId, rng: &SeededRng) -> Result<Option<String>, Error> {
    let story = engine.jobs().timeline(id).await?;
    let steps = story.entries.iter().map(|entry| operation(entry.key.as_str()));
    let steps: Vec<&str> = steps.filter(|step| !step.is_empty()).collect();
    Ok((!steps.is_empty()).then(|| pick(rng, &steps).to_owned()))
}

/// Retries a workflow from some step; half of the time two people do at once, each from another: one of them is too late.
/// So is who looked at the workflow before, and gives his order after.
async fn retry_from(engine: &Engine, id: JobId, rng: &SeededRng) -> Result<(), Error> {
    let from_some_step = async || {
        let claim = engine.jobs().get(id).await?.summary.claim;
        let Some(step) = recorded(engine, id, rng).await? else { return Ok(()) };
        engine.jobs().retry_from(id, step).await?;
        if chance(rng, 0.8)
            && let Some(step) = recorded(engine, id, rng).await?
        {
            let late = Verb::Rewind { from: Key::new(step)?, claim };
            for _ in 0..CHOICE {
                let answer = engine.jobs().change(id, late.clone()).await;
                // Who finds it running asks again: the order that is too late comes at last.
                if !matches!(answer, Err(Error::Illegal { .. })) {
                    break;
                }
                engine.seams().clock.sleep(between(rng, Duration::ZERO, MEETING * 100)).await;
            }
        }
        Ok(())
    };
    if chance(rng, 0.5) {
        return from_some_step().await;
    }
    let (one, other) = tokio::join!(biased; from_some_step(), from_some_step());
    one.or(other)
}

/// Cancels a workflow when it is about to be suspended, or has just been; or retries it from a step, or both.
async fn meddle(world: Arc<World>, engine: Engine, id: JobId, told: oneshot::Receiver<Actor>, back: bool) {
    if told.await.is_err() {
        return;
    }
    world.time.sleep(between(&world.fate, Duration::ZERO, MEETING)).await;
    let is_over = || world.time.monotonic() >= world.config.fault_phase;
    // What is refused is an operator's daily bread.
    if !is_over() && (!back || chance(&world.fate, 0.3)) {
        drop(engine.jobs().cancel(id).because("it waits").await);
    }
    while back && !is_over() {
        if retry_from(&engine, id, &world.fate).await.is_ok() {
            return;
        }
        world.time.sleep(between(&world.fate, Duration::ZERO, MEETING * 100)).await;
        if chance(&world.fate, 0.2) {
            return;
        }
    }
}

/// Cuts a node off, or stops it, when one of its handlers is about to be suspended, until others have found it dead: it
/// keeps a handler whose suspension was refused, and it alone is there to run that workflow again.
async fn sever(world: Arc<World>, told: oneshot::Receiver<Actor>, stops: bool) {
    let Ok(actor) = told.await else { return };
    let left = world.config.fault_phase.saturating_sub(world.time.monotonic());
    let lasts = between(&world.fate, world.config.lease * 3 / 2, world.config.lease * 5 / 2).min(left);
    if stops {
        world.fault("stop", Some(actor), lasts);
        world.time.sleep(lasts).await;
        world.executor.resume(actor);
        return;
    }
    world.fault("cut", Some(actor), lasts);
    world.net().cut.insert(actor, pick(&world.fate, &[StoreAbsence::Refusing, StoreAbsence::Silent]));
    world.time.sleep(lasts).await;
    world.net().cut.remove(&actor);
}

/// A signal on its way.
struct DelayedSignal {
    id: JobId,
    name: String,
    sender: String,
    value: Value,
    /// Whether it is sent twice for no reason.
    again: bool,
    /// Whether an operator drops it when it has come, and sends it once more: alone, or with all others of its name.
    dropped: Option<bool>,
    /// Told when it is about to be waited for, if it is to come then.
    prompt: Option<oneshot::Receiver<Actor>>,
}

impl DelayedSignal {
    /// Sends a signal until somebody has it. A job that is not there, or has ended, may come, or come back, as long as the
    /// fault phase lasts and what was sent in it has not arrived.
    async fn send(self, world: Arc<World>, engine: Engine, after: Duration) {
        let lease = world.config.lease;
        let mut later = [Duration::ZERO, lease * 3, lease * 11].into_iter();
        let (mut again, mut dropped) = (self.again, self.dropped);
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
                Ok(_) if dropped.is_some() => {
                    let sender = dropped.take().filter(|alone| *alone).map(|_| &*self.sender);
                    world.time.sleep(between(&world.fate, Duration::ZERO, MEETING)).await;
                    // What he is not told of he does not ask for again: the signal may have been read by then.
                    let unread = engine.jobs().drop_signals(self.id, &self.name);
                    drop(match sender {
                        Some(sender) => unread.sender(sender).await,
                        None => unread.await,
                    });
                }
                Ok(_) if again => {
                    again = false;
                    world.time.sleep(Duration::from_secs(2)).await;
                }
                Ok(_) => return,
                Err(Error::NotFound(_) | Error::Illegal { .. }) => {
                    let Some(later) = later.next() else { return };
                    let over = (world.config.fault_phase + later).saturating_sub(world.time.monotonic());
                    world.time.sleep(over + Duration::from_secs(1)).await;
                }
                Err(_) => world.time.sleep(Duration::from_millis(500)).await,
            }
        }
    }
}

/// Whoever is sent the tokens of a workflow.
struct TokenReceiver {
    id: JobId,
    world: Arc<World>,
    engine: Engine,
    by: Actor,
}

impl TokenReceiver {
    /// Comes back with every token, twice at once and then again, and wants something else each time.
    async fn wait(self, mut sent: mpsc::UnboundedReceiver<SentToken>) {
        while let Some(SentToken { key, token, values }) = sent.recv().await {
            let fate = &self.world.fate;
            self.world.time.sleep(between(fate, Duration::ZERO, Duration::from_secs(2))).await;
            let [one, other] = values;
            tokio::join!(biased; self.redeem(&key, &token, one), self.redeem(&key, &token, other));
            self.world.time.sleep(between(fate, Duration::ZERO, Duration::from_secs(4))).await;
            self.redeem(&key, &token, other).await;
        }
    }

    async fn redeem(&self, key: &str, token: &str, value: u64) {
        loop {
            let answer = self.engine.redeem(token, &value).await;
            if let Err(error) = &answer
                && error.is_retryable()
            {
                self.world.time.sleep(Duration::from_millis(500)).await;
                continue;
            }
            let (id, key, good) = (self.id, key.to_owned(), answer.is_ok());
            self.world.log.note(self.by, Fact::Redeemed { id, key, good });
            return;
        }
    }
}

/// A token on its way to whoever comes back with it.
pub(super) struct SentToken {
    /// The key of the step that made it.
    pub(super) key: String,
    pub(super) token: String,
    /// What he may come back with.
    pub(super) values: [u64; 2],
}
