//! Who starts workflows of a simulation, and what meets them from outside: signals, tokens that come back, cancellations
//! and cuts at the worst moment.

use std::sync::Arc;
use std::time::Duration;

use mainspring::Engine;
use mainspring_core::Error;
use mainspring_core::backoff::Backoff;
use mainspring_core::id::JobId;
use mainspring_core::seam::{Clock, Rng};
use tokio::sync::{mpsc, oneshot};

use super::course::{Course, Flow, Message};
use super::people::Person;
use super::plan::QUEUES;
use super::world::{Away, NOBODY, World, below, between, chance, pick};
use crate::history::{Actor, Fact, Recorder, Told};

impl Person {
    /// Starts a workflow, and has its signals sent.
    pub(super) async fn start_flow(&self) {
        let (rng, course) = (&self.rng, Course::of(&self.rng));
        let id = JobId::mint(self.world.time.now(), rng);
        self.note(Fact::Expects { id, outputs: course.expects() });
        for (from, to, declared) in course.renamed() {
            self.note(Fact::Renamed { id, from, to, declared });
        }
        let senders = course.senders();
        let waits = course.waits();
        if course.asks() {
            let (world, engine) = (Arc::clone(&self.world), self.engine.clone());
            let callback = Callback { id, world, engine, by: self.actor };
            self.world.executor.spawn(self.actor, Box::pin(callback.wait(self.world.tokens_of(id))));
        }
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

/// Whoever is sent the tokens of a workflow.
struct Callback {
    id: JobId,
    world: Arc<World>,
    engine: Engine,
    by: Actor,
}

impl Callback {
    /// Comes back with every token, twice at once and then again, and wants something else each time.
    async fn wait(self, mut sent: mpsc::UnboundedReceiver<Sent>) {
        while let Some(Sent { key, token, values }) = sent.recv().await {
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
pub(super) struct Sent {
    /// The key of the step that made it.
    pub(super) key: String,
    pub(super) token: String,
    /// What he may come back with.
    pub(super) values: [u64; 2],
}
