//! The director: starts processes, lets things go wrong while the storm lasts, and sees that all ends well after it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainspring::Engine;
use mainspring_core::job::{Reason, State, Summary};
use mainspring_core::name::QueueName;
use mainspring_core::seam::{Clock, Rng};
use mainspring_core::store::{Filter, Page, QueueChange, Store};

use super::actors::{Gossip, Person};
use super::plan::{Blow, QUEUES};
use super::process::Process;
use super::world::{Away, NOBODY, World, below, between, chance, lock, pick};
use crate::executor::block_on;
use crate::history::{Actor, Fact};
use crate::rng::SeededRng;

/// How often the director looks whether there are nodes enough, or whether all is done.
pub(super) const LOOK: Duration = Duration::from_millis(500);
/// Simulated time after the storm within which all must be done, besides a few leases.
pub(super) const AFTERMATH: Duration = Duration::from_mins(4);
/// Where jobs are that wait for nothing but time and a node.
pub(super) const OPEN: [State; 4] = [State::Blocked, State::Scheduled, State::Ready, State::Running];

pub(super) struct Director {
    pub(super) world: Arc<World>,
    /// The director's own handle on the store: nothing goes wrong on the way to it.
    pub(super) store: Arc<dyn Store>,
    cast: Mutex<Cast>,
    /// The operator's engine with which damaged jobs are resumed, in runs that have some.
    pub(super) mender: Mutex<Option<Engine>>,
    gossip: Arc<Gossip>,
}

#[derive(Default)]
struct Cast {
    nodes: BTreeMap<Actor, Process>,
    people: Vec<Process>,
    last: Actor,
    /// Processes that go in good order.
    leaving: BTreeSet<Actor>,
    /// How many nodes there are to be.
    wanted: usize,
    over: bool,
}

impl Director {
    pub(super) fn new(world: &Arc<World>) -> Arc<Self> {
        let cast = Cast { wanted: world.config.nodes, ..Cast::default() };
        Arc::new(Director {
            world: Arc::clone(world),
            store: world.backend.connect(),
            cast: Mutex::new(cast),
            mender: Mutex::default(),
            gossip: Arc::default(),
        })
    }

    /// Starts everything.
    pub(super) fn start(self: &Arc<Self>) {
        let config = &self.world.config;
        {
            let mut net = self.world.net();
            net.trouble = config.trouble;
            net.deaf = config.deaf;
        }
        if config.prune {
            self.configure(&QueueChange {
                retain_succeeded: Some(super::RETENTION),
                retain_failed: Some(super::RETENTION),
                ..QueueChange::default()
            });
        }
        for _ in 0..config.nodes {
            self.add_node(chance(&self.world.fate, 0.3));
        }
        for _ in 0..config.producers {
            let (process, person) = self.person();
            process.run(person.produce());
            lock(&self.cast).people.push(process);
        }
        if let Some(mean) = config.verbs {
            let (process, person) = self.person();
            process.run(person.operate(mean));
            lock(&self.cast).people.push(process);
        }
        if config.blows.iter().any(|(blow, _)| *blow == Blow::Damage) {
            let process = Process::open(&self.world, self.actor());
            *lock(&self.mender) = Some(process.engine.clone());
            lock(&self.cast).people.push(process);
        }
        for (blow, mean) in config.blows.clone() {
            self.spawn(Arc::clone(self).chaos(blow, mean));
        }
        if config.rolls {
            self.spawn(Arc::clone(self).deploy());
        }
        self.spawn(Arc::clone(self).replace());
        self.spawn(Arc::clone(self).end());
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.world.executor.spawn(NOBODY, Box::pin(task));
    }

    fn configure(&self, change: &QueueChange) {
        for queue in QUEUES {
            let queue = QueueName::new(queue).expect("a name");
            block_on(self.store.configure(queue, change.clone())).expect("a setting");
        }
    }

    fn actor(&self) -> Actor {
        let mut cast = lock(&self.cast);
        cast.last += 1;
        cast.last
    }

    fn person(&self) -> (Process, Person) {
        let process = Process::open(&self.world, self.actor());
        let person = Person {
            world: Arc::clone(&self.world),
            actor: process.actor,
            engine: process.engine.clone(),
            gossip: Arc::clone(&self.gossip),
            rng: SeededRng::new(self.world.fate.next_u64()),
        };
        (process, person)
    }

    fn add_node(&self, mighty: bool) {
        let process = Process::open(&self.world, self.actor());
        process.work(mighty);
        lock(&self.cast).nodes.insert(process.actor, process);
    }

    /// A process has come to its end.
    pub(super) fn ended(&self, actor: Actor) {
        if lock(&self.cast).leaving.contains(&actor) {
            self.world.note(Fact::fault("exit", Some(actor), None));
            self.world.executor.kill(actor);
        } else {
            self.world.crash(actor);
        }
    }

    /// Starts nodes in place of those that are gone.
    async fn replace(self: Arc<Self>) {
        loop {
            self.world.time.sleep(between(&self.world.fate, LOOK, LOOK * 4)).await;
            let missing = {
                let mut cast = lock(&self.cast);
                if cast.over {
                    return;
                }
                let dead: Vec<Actor> =
                    cast.nodes.keys().copied().filter(|actor| self.world.executor.is_dead(*actor)).collect();
                for actor in dead {
                    if let Some(process) = cast.nodes.remove(&actor) {
                        process.bury();
                    }
                }
                cast.wanted.saturating_sub(cast.nodes.len())
            };
            for _ in 0..missing {
                self.add_node(self.is_calm() || chance(&self.world.fate, 0.3));
            }
        }
    }

    /// Replaces all nodes, one after the other, when the code of workflows changes.
    async fn deploy(self: Arc<Self>) {
        self.world.time.sleep(self.world.config.deploy).await;
        let nodes: Vec<Actor> = lock(&self.cast).nodes.keys().copied().collect();
        for actor in nodes {
            if self.is_calm() {
                return;
            }
            let stays = !lock(&self.cast).leaving.contains(&actor) && !self.world.executor.is_dead(actor);
            if stays {
                self.dismiss(actor);
            }
            self.world.time.sleep(between(&self.world.fate, Duration::ZERO, LOOK)).await;
        }
    }

    fn is_calm(&self) -> bool {
        self.world.time.monotonic() >= self.world.config.storm
    }

    /// Some node that has joined and is not about to leave, unless those are wanted too.
    fn some_node(&self, leaving: bool) -> Option<Actor> {
        let cast = lock(&self.cast);
        let there: Vec<Actor> = cast
            .nodes
            .values()
            .filter(|process| process.has_joined() && (leaving || !cast.leaving.contains(&process.actor)))
            .map(|process| process.actor)
            .filter(|actor| !self.world.executor.is_dead(*actor))
            .collect();
        (!there.is_empty()).then(|| pick(&self.world.fate, &there))
    }

    /// Lets one kind of thing go wrong, again and again.
    async fn chaos(self: Arc<Self>, blow: Blow, mean: Duration) {
        loop {
            self.world.time.sleep(between(&self.world.fate, mean / 5, mean * 9 / 5)).await;
            if self.is_calm() {
                return;
            }
            self.strike(blow).await;
        }
    }

    async fn strike(&self, blow: Blow) {
        let (world, fate, lease) = (&self.world, &self.world.fate, self.world.config.lease);
        let left = world.config.storm.saturating_sub(world.time.monotonic());
        let lasts = between(fate, lease / 2, lease * 3).min(left);
        match blow {
            Blow::Crash => {
                let Some(actor) = self.some_node(true) else { return };
                match below(fate, 3) {
                    0 => world.crash(actor),
                    1 => world.executor.doom(actor, below(fate, 60)),
                    _ => *lock(&world.armed) = Some(actor),
                }
            }
            Blow::Stop => {
                let Some(actor) = self.some_node(true) else { return };
                world.fault("stop", Some(actor), lasts);
                world.executor.pause(actor);
                world.time.sleep(lasts).await;
                world.executor.resume(actor);
            }
            Blow::Cut => {
                let Some(actor) = self.some_node(true) else { return };
                world.fault("cut", Some(actor), lasts);
                world.net().cut.insert(actor, pick(fate, &[Away::Refusing, Away::Silent]));
                world.time.sleep(lasts).await;
                world.net().cut.remove(&actor);
            }
            Blow::Outage => {
                let (kind, away) = pick(fate, &[("outage", Away::Refusing), ("silence", Away::Silent)]);
                world.fault(kind, None, lasts);
                world.net().away = Some(away);
                world.time.sleep(lasts).await;
                world.net().away = None;
            }
            Blow::Slow => {
                world.fault("slow", None, lasts);
                world.net().slow = between(fate, Duration::from_millis(5), lease / 16);
                world.time.sleep(lasts).await;
                world.net().slow = Duration::ZERO;
            }
            Blow::Full => {
                world.fault("disk full", None, lasts);
                world.net().full = true;
                world.time.sleep(lasts).await;
                world.net().full = false;
            }
            Blow::Skew => {
                let Some(actor) = self.some_node(false) else { return };
                let by = i64::try_from(fate.next_u64() % 7_200_000_000).unwrap_or(0) - 3_600_000_000;
                world.fault("skew", Some(actor), Duration::ZERO);
                if let Some(process) = lock(&self.cast).nodes.get(&actor) {
                    process.clock.jump(by);
                }
            }
            Blow::Leap => {
                world.fault("leap", None, Duration::ZERO);
                let by = between(fate, lease / 2, lease * 4);
                world.store_time.jump(i64::try_from(by.as_micros()).unwrap_or(0));
            }
            Blow::Damage => self.damage(lasts).await,
            Blow::Restart => {
                let Some(actor) = self.some_node(false) else { return };
                self.dismiss(actor);
            }
            Blow::Scale => {
                let extra = {
                    let mut cast = lock(&self.cast);
                    cast.wanted = 3 + below(fate, 5);
                    cast.nodes.len().saturating_sub(cast.wanted)
                };
                world.fault("scale", None, Duration::ZERO);
                for _ in 0..extra {
                    if let Some(actor) = self.some_node(false) {
                        self.dismiss(actor);
                    }
                }
            }
        }
    }

    /// Lets a node go in good order.
    fn dismiss(&self, actor: Actor) {
        self.world.fault("shutdown", Some(actor), Duration::ZERO);
        let mut cast = lock(&self.cast);
        cast.leaving.insert(actor);
        if let Some(process) = cast.nodes.get(&actor) {
            process.shut_down();
        }
    }

    /// After the storm: nothing goes wrong any more, and everything is to be done.
    async fn end(self: Arc<Self>) {
        let (world, config) = (&self.world, &self.world.config);
        world.time.sleep(config.storm + LOOK).await;
        world.note(Fact::Calm);
        {
            let mut net = world.net();
            (net.trouble, net.slow, net.full, net.away) = (0.0, Duration::ZERO, false, None);
            // Who never hears a hint goes without them to the end: nothing depends on them.
            net.deaf = if config.deaf < 1.0 { 0.0 } else { 1.0 };
            net.cut.clear();
        }
        self.configure(&QueueChange { paused: Some(false), ..QueueChange::default() });
        // Two that can do everything, whatever the others can do.
        lock(&self.cast).wanted += 2;
        self.add_node(true);
        self.add_node(true);
        // What was sent during the storm may still arrive.
        world.time.sleep(config.lease * 3).await;
        self.mend_all().await;
        let until = world.time.monotonic() + AFTERMATH + config.lease * 6;
        while !self.is_done() && world.time.monotonic() < until {
            world.time.sleep(LOOK).await;
        }
        let nodes: Vec<Actor> = {
            let mut cast = lock(&self.cast);
            cast.over = true;
            cast.nodes.keys().copied().filter(|actor| !world.executor.is_dead(*actor)).collect()
        };
        for actor in &nodes {
            self.dismiss(*actor);
        }
        while nodes.iter().any(|actor| !world.executor.is_dead(*actor)) && world.time.monotonic() < until * 2
        {
            world.time.sleep(LOOK).await;
        }
    }

    fn is_done(&self) -> bool {
        !self.has_open() && !self.is_awaiting()
    }

    /// Whether some job waits for nothing but time and a node, or runs.
    pub(super) fn has_open(&self) -> bool {
        // At this very moment: the answer of a thread would come when it comes.
        let Ok(counts) = block_on(self.store.counts()) else { return true };
        OPEN.iter().any(|state| counts.total(*state) > 0)
    }

    /// Whether some job is suspended and will be woken.
    fn is_awaiting(&self) -> bool {
        let filter = Filter { states: vec![State::Suspended], ..Filter::default() };
        let listing = block_on(self.store.list(filter, Page { after: None, limit: 1_000 }));
        let awaits = |job: &Summary| job.status.reason.is_some_and(Reason::awaits);
        listing.is_ok_and(|listing| listing.jobs.iter().any(awaits))
    }

    /// Whether everything is over.
    pub(super) fn is_over(&self) -> bool {
        let cast = lock(&self.cast);
        cast.over && cast.nodes.keys().all(|actor| self.world.executor.is_dead(*actor))
    }

    /// Closes what is still open, so that nothing of the run stays behind.
    pub(super) fn strike_the_set(&self) {
        let (nodes, people) = {
            let mut cast = lock(&self.cast);
            (std::mem::take(&mut cast.nodes), std::mem::take(&mut cast.people))
        };
        for process in nodes.values().chain(&people) {
            self.world.executor.kill(process.actor);
            process.bury();
        }
        self.world.executor.kill(NOBODY);
        self.world.backend.disconnect(&*self.store);
    }
}
