//! The world of a simulation: time, the network, the store, and what is wrong with them at the moment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use mainspring_core::id::JobId;
use mainspring_core::seam::{Clock, Rng};
use mainspring_core::store::{Hint, Listener};
use tokio::sync::{Notify, mpsc, oneshot};

use super::backend::{Backend, Kind};
use super::clock::SkewedClock;
use super::executor::Executor;
use super::plan::Config;
use super::workflow_clients::SentToken;
use crate::clock::ManualClock;
use crate::history::{Actor, EndKind, Event, Fact, Recorder};
use crate::rng::SeededRng;

/// The world itself: it is nobody's process, and nothing kills it.
pub(super) const NOBODY: Actor = 0;

pub(super) struct World {
    pub(super) config: Config,
    pub(super) time: ManualClock,
    /// What the store takes for the time.
    pub(super) store_time: SkewedClock,
    pub(super) executor: Executor,
    pub(super) log: Arc<Log>,
    pub(super) backend: Backend,
    /// Decides what goes wrong.
    pub(super) fate: SeededRng,
    pub(super) net: Mutex<Disruption>,
    /// Who dies at the next failure point that he passes.
    pub(super) armed: Mutex<Option<Actor>>,
    /// How often each job has begun, which a job that is to come back several times must know.
    pub(super) runs: Mutex<BTreeMap<JobId, u32>>,
    /// The same for bodies of steps.
    pub(super) bodies: Mutex<BTreeMap<(JobId, String), u32>>,
    /// Who runs workflows, in runs in which one node does.
    pub(super) hermit: Mutex<Option<Actor>>,
    /// Who wants to act at the very moment at which a workflow comes to one of its waits.
    pub(super) watchers: Mutex<WaitListeners>,
    /// The waits at which whoever comes to them is stopped.
    stops: Mutex<BTreeSet<(JobId, String)>>,
    /// Jobs whose rows are damaged, each with what mends it.
    pub(super) damaged: Mutex<BTreeMap<JobId, String>>,
    /// Who is sent the tokens of which workflow.
    tokens: Mutex<BTreeMap<JobId, mpsc::UnboundedSender<SentToken>>>,
}

/// Who is to be told when a workflow comes to a wait, by job and name of the wait.
type WaitListeners = BTreeMap<(JobId, String), Vec<oneshot::Sender<Actor>>>;

/// What is wrong with the network and the store.
#[derive(Default)]
pub(super) struct Disruption {
    /// Nobody reaches the store.
    pub(super) away: Option<StoreAbsence>,
    /// Who alone does not reach it.
    pub(super) cut: BTreeMap<Actor, StoreAbsence>,
    /// There is no room to write.
    pub(super) full: bool,
    /// Outcomes are refused, and nothing else.
    pub(super) jammed: bool,
    /// How much longer every message takes.
    pub(super) slow: Duration,
    /// How likely one call goes wrong.
    pub(super) trouble: f64,
    /// How likely a hint is lost.
    pub(super) hint_loss: f64,
    /// Whose last renewal went wrong: the next one must not, or a lease would lapse without anybody's fault.
    pub(super) spared: BTreeSet<Actor>,
    /// Told when an actor has claimed.
    pub(super) claims: BTreeMap<Actor, Arc<Notify>>,
    /// Who wants to hear hints.
    pub(super) ears: Vec<(Actor, Weak<dyn Listener>)>,
}

/// How a store is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreAbsence {
    /// Calls are refused.
    Refusing,
    /// Calls are swallowed.
    Silent,
}

impl World {
    pub(super) fn new(kind: Kind, config: Config, seed: u64) -> Arc<Self> {
        let time = ManualClock::new();
        let store_time = SkewedClock::new(&time, 0);
        Arc::new(World {
            config,
            executor: Executor::new(seed),
            log: Arc::new(Log { time: time.clone(), events: Mutex::default(), claims: Mutex::default() }),
            backend: Backend::new(kind, &store_time, seed),
            fate: SeededRng::new(!seed),
            net: Mutex::default(),
            armed: Mutex::default(),
            runs: Mutex::default(),
            bodies: Mutex::default(),
            hermit: Mutex::default(),
            watchers: Mutex::default(),
            stops: Mutex::default(),
            damaged: Mutex::default(),
            tokens: Mutex::default(),
            time,
            store_time,
        })
    }

    pub(super) fn net(&self) -> MutexGuard<'_, Disruption> {
        lock(&self.net)
    }

    /// Notes a fact that nobody's process sees.
    pub(super) fn note(&self, fact: Fact) {
        self.log.note(NOBODY, fact);
    }

    /// Notes a fault that begins now and lasts a while.
    pub(super) fn fault(&self, kind: &str, on: Option<Actor>, lasts: Duration) {
        self.note(Fact::fault(kind, on, Some(self.time.now().after(lasts))));
    }

    /// Ends a process where it stands.
    pub(super) fn crash(&self, actor: Actor) {
        if !self.executor.is_dead(actor) {
            self.note(Fact::fault("crash", Some(actor), None));
            self.executor.kill(actor);
        }
    }

    /// An actor has claimed.
    pub(super) fn claimed(&self, actor: Actor) {
        if let Some(claimed) = self.net().claims.get(&actor) {
            claimed.notify_waiters();
        }
    }

    /// Waits for the moment at which a late message of an actor does the most harm: when he has just claimed again, some
    /// time or other; or just a while.
    pub(super) async fn worst_moment(&self, actor: Actor, a_while: Duration) {
        if chance(&self.fate, 0.5) {
            return self.time.sleep(a_while).await;
        }
        let claimed = Arc::clone(self.net().claims.entry(actor).or_default());
        for _ in 0..=below(&self.fate, 4) {
            tokio::select! {
                biased;
                () = claimed.notified() => {}
                () = self.time.sleep(self.config.lease * 2) => return,
            }
        }
        self.time.sleep(between(&self.fate, Duration::ZERO, Duration::from_millis(50))).await;
    }

    /// Waits for the moment at which a late message about a job does the most harm: when the job has just been claimed
    /// again, by this actor or by whomever; or just a while, if it is not.
    pub(super) async fn claimed_again(&self, job: JobId, by: Option<Actor>) {
        let until = self.time.sleep(self.config.lease * 4);
        tokio::pin!(until);
        loop {
            let claimed = self.log.next_claim(job);
            tokio::select! {
                biased;
                Ok(actor) = claimed => {
                    if by.is_none_or(|by| by == actor) {
                        break;
                    }
                }
                () = &mut until => break,
            }
        }
        self.time.sleep(between(&self.fate, Duration::ZERO, Duration::from_millis(20))).await;
    }

    /// A failure point was passed by whoever is at work.
    pub(super) fn pass_point(&self) {
        let mut armed = lock(&self.armed);
        if let (Some(victim), Some(current)) = (*armed, self.executor.current())
            && victim == current
        {
            *armed = None;
            drop(armed);
            // Nothing that it still does in this poll is seen by anybody.
            self.executor.doom(victim, 0);
            self.fault("crash at a point", Some(victim), Duration::ZERO);
        }
    }

    /// Whether a node may run workflows: all may when the fault phase is over, and in most runs.
    pub(super) fn may_run_workflows(&self, actor: Actor) -> bool {
        if !self.config.one_workflow_node || self.time.monotonic() >= self.config.fault_phase {
            return true;
        }
        let mut hermit = lock(&self.hermit);
        let free = hermit.is_none_or(|other| self.executor.is_dead(other));
        if free {
            *hermit = Some(actor);
        }
        free
    }

    /// Told by which actor, as soon as the handler of a workflow comes to this wait.
    pub(super) fn watch_for(&self, id: JobId, wait: &str) -> oneshot::Receiver<Actor> {
        let (tell, told) = oneshot::channel();
        lock(&self.watchers).entry((id, wait.to_owned())).or_default().push(tell);
        told
    }

    /// Has whoever comes to this wait stopped there, before his suspension goes out. Somebody else lets him go on.
    pub(super) fn stop_at(&self, id: JobId, wait: &str) {
        lock(&self.stops).insert((id, wait.to_owned()));
    }

    /// The handler of a workflow comes to a wait.
    pub(super) fn comes_to(&self, by: Actor, id: JobId, wait: &str) {
        if lock(&self.stops).remove(&(id, wait.to_owned())) {
            self.executor.pause(by);
        }
        for tell in lock(&self.watchers).remove(&(id, wait.to_owned())).into_iter().flatten() {
            // Somebody who has not waited for it needs no word.
            let _told = tell.send(by);
        }
    }

    /// How long it is until the code of workflows changes, if it is yet to change.
    pub(super) fn until_deploy(&self) -> Option<Duration> {
        self.config.deploy.checked_sub(self.time.monotonic())
    }

    /// Whether the code of workflows is the later one by now.
    pub(super) fn is_edited(&self) -> bool {
        self.time.monotonic() >= self.config.deploy
    }

    /// The tokens that a workflow will send away.
    pub(super) fn tokens_of(&self, id: JobId) -> mpsc::UnboundedReceiver<SentToken> {
        let (tell, told) = mpsc::unbounded_channel();
        lock(&self.tokens).insert(id, tell);
        told
    }

    /// A workflow sends a token away.
    pub(super) fn send(&self, id: JobId, sent: SentToken) {
        if let Some(tell) = lock(&self.tokens).get(&id) {
            // Whoever was to come back may be gone for good.
            let _told = tell.send(sent);
        }
    }

    /// How often this job has begun, with this time.
    pub(super) fn begin(&self, id: JobId) -> u32 {
        let mut runs = lock(&self.runs);
        let count = runs.entry(id).or_default();
        *count += 1;
        *count
    }

    /// Bits for the seed of a process's own randomness.
    pub(super) fn fate_bits(&self) -> u64 {
        self.fate.next_u64() >> 32
    }

    /// Passes a hint on to one ear, some time, or never.
    pub(super) fn pass(self: &Arc<Self>, actor: Actor, ear: Weak<dyn Listener>, hint: Hint) {
        let lost = {
            let net = self.net();
            net.away.is_some() || net.cut.contains_key(&actor) || chance(&self.fate, net.hint_loss)
        };
        if lost {
            if self.config.hint_loss > 0.0 {
                self.fault("hint lost", Some(actor), Duration::ZERO);
            }
            return;
        }
        let delay = self.time.sleep(between(&self.fate, Duration::ZERO, Duration::from_millis(2)));
        let world = Arc::clone(self);
        let task = async move {
            delay.await;
            if let Some(ear) = ear.upgrade()
                && !world.executor.is_dead(actor)
            {
                ear.hint(&hint);
            }
        };
        self.executor.spawn(NOBODY, Box::pin(task));
    }

    /// Tells everybody that something was written, for a store whose own hints cannot be repeated.
    pub(super) fn tell_all(self: &Arc<Self>) {
        let ears = {
            let mut net = self.net();
            net.ears.retain(|(_, ear)| ear.strong_count() > 0);
            net.ears.clone()
        };
        for (actor, ear) in ears {
            self.pass(actor, ear, Hint::Foreign);
        }
    }
}

/// Everything that was seen.
pub(super) struct Log {
    time: ManualClock,
    events: Mutex<Vec<Event>>,
    /// Who waits for the next claim of a job.
    claims: Mutex<BTreeMap<JobId, Vec<oneshot::Sender<Actor>>>>,
}

impl Log {
    pub(super) fn take(&self) -> Vec<Event> {
        std::mem::take(&mut *lock(&self.events))
    }

    /// All jobs of which it is known what they say.
    pub(super) fn speakers(&self) -> Vec<JobId> {
        let speaker = |event: &Event| match &event.fact {
            Fact::Says { id, .. } => Some(*id),
            _ => None,
        };
        lock(&self.events).iter().filter_map(speaker).collect()
    }

    /// Told by whom, when this job is claimed the next time.
    fn next_claim(&self, job: JobId) -> oneshot::Receiver<Actor> {
        let (tell, told) = oneshot::channel();
        lock(&self.claims).entry(job).or_default().push(tell);
        told
    }

    /// For which job an actor has just asked to record something.
    pub(super) fn recording(&self, by: Actor) -> Option<JobId> {
        lock(&self.events).iter().rev().take(8).find_map(|event| match event.fact {
            Fact::Recording { id, .. } if event.by == by => Some(id),
            _ => None,
        })
    }

    /// A job that an actor has just asked to end for a while, to be claimed again.
    pub(super) fn giving_back(&self, by: Actor) -> Option<JobId> {
        lock(&self.events).iter().rev().take(16).find_map(|event| match event.fact {
            Fact::Finishing {
                id,
                how: EndKind::Retry | EndKind::Snooze | EndKind::Release | EndKind::Suspend,
                ..
            } if event.by == by => Some(id),
            _ => None,
        })
    }

    pub(super) fn look<T>(&self, look: impl FnOnce(&[Event]) -> T) -> T {
        look(&lock(&self.events))
    }
}

impl Recorder for Log {
    fn note(&self, by: Actor, fact: Fact) {
        if let Fact::Claimed { id, .. } = &fact {
            for tell in lock(&self.claims).remove(id).into_iter().flatten() {
                // Somebody who has waited long enough needs no word.
                let _told = tell.send(by);
            }
        }
        let event = Event { at: self.time.now(), by, fact };
        lock(&self.events).push(event);
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether something that likely happens.
pub(super) fn chance(rng: &SeededRng, likely: f64) -> bool {
    // Drawn in any case, so that one likelihood does not change the rest of a run.
    rng.next_unit() < likely
}

/// A number below another.
pub(super) fn below(rng: &SeededRng, bound: usize) -> usize {
    usize::try_from(rng.next_u64() >> 33).unwrap_or(0) % bound.max(1)
}

/// One of several.
pub(super) fn pick<T: Copy>(rng: &SeededRng, of: &[T]) -> T {
    of[below(rng, of.len())]
}

/// A time between two.
pub(super) fn between(rng: &SeededRng, from: Duration, to: Duration) -> Duration {
    from + to.saturating_sub(from).mul_f64(rng.next_unit())
}
