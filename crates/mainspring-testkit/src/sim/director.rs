//! The director: starts processes, lets things go wrong during the fault phase, and sees that all ends well after it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainspring::Engine;
use mainspring_core::job::{Reason, State, Summary};
use mainspring_core::name::QueueName;
use mainspring_core::seam::{Clock, Rng};
use mainspring_core::store::{Filter, Page, QueueChange, Store};

use super::actors::{KnownJobs, Participant};
use super::plan::{QUEUES, SimFault};
use super::process::Process;
use super::world::{NOBODY, StoreAbsence, World, below, between, chance, lock, pick};
use crate::executor::block_on;
use crate::history::{Actor, Fact};
use crate::rng::SeededRng;

/// How often the director looks whether there are nodes enough, or whether all is done.
pub(super) const LOOK: Duration = Duration::from_millis(500);
/// Simulated time after the fault phase within which all must be done, besides a few leases.
pub(super) const AFTERMATH: Duration = Duration::from_mins(4);
/// Where jobs are that wait for nothing but time and a node.
pub(super) const OPEN: [State; 4] = [State::Blocked, State::Scheduled, State::Ready, State::Running];

/// How long schedules are left in peace before they must have fired all that is due.
const UNDISTURBED: Duration = Duration::from_secs(20);
/// How far the store's clock jumps ahead.
const YEAR: Duration = Duration::from_hours(24 * 365);
/// How far it goes back, in microseconds.
const HOUR: i64 = 3_600_000_000;

pub(super) struct Director {
    pub(super) world: Arc<World>,
    /// The director's own handle on the store: nothing goes wrong on the way to it.
    pub(super) store: Arc<dyn Store>,
    processes: Mutex<Processes>,
    /// The operator's engine with which damaged jobs are resumed, in runs that have some.
    pub(super) mender: Mutex<Option<Engine>>,
    known_jobs: Arc<KnownJobs>,
}

#[derive(Default)]
struct Processes {
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
        let processes = Processes { wanted: world.config.nodes, ..Processes::default() };
        Arc::new(Director {
            world: Arc::clone(world),
            store: world.backend.connect(),
            processes: Mutex::new(processes),
            mender: Mutex::default(),
            known_jobs: Arc::default(),
        })
    }

    /// Starts everything.
    pub(super) fn start(self: &Arc<Self>) {
        let config = &self.world.config;
        {
            let mut net = self.world.net();
            net.trouble = config.trouble;
            net.hint_loss = config.hint_loss;
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
            lock(&self.processes).people.push(process);
        }
        if let Some(mean) = config.verbs {
            let (process, person) = self.person();
            process.run(person.operate(mean));
            lock(&self.processes).people.push(process);
        }
        if let Some(calendar) = config.schedules {
            let (process, person) = self.person();
            process.run(person.keep_schedules(calendar));
            lock(&self.processes).people.push(process);
        }
        if config.faults.iter().any(|(fault, _)| *fault == SimFault::Year) {
            // What ended before the year is still to be found after it.
            self.configure(&QueueChange {
                retain_succeeded: Some(YEAR * 9),
                retain_failed: Some(YEAR * 9),
                ..QueueChange::default()
            });
        }
        if config.faults.iter().any(|(fault, _)| *fault == SimFault::Damage) {
            let process = Process::open(&self.world, self.actor());
            *lock(&self.mender) = Some(process.engine.clone());
            lock(&self.processes).people.push(process);
        }
        for (fault, mean) in config.faults.clone() {
            self.spawn(Arc::clone(self).chaos(fault, mean));
        }
        if let Some(at) = config.rush {
            let (process, person) = self.person();
            process.run(person.rush(at));
            lock(&self.processes).people.push(process);
            self.spawn(Arc::clone(self).jam(at));
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
        let mut processes = lock(&self.processes);
        processes.last += 1;
        processes.last
    }

    fn person(&self) -> (Process, Participant) {
        let process = Process::open(&self.world, self.actor());
        let person = Participant {
            world: Arc::clone(&self.world),
            actor: process.actor,
            engine: process.engine.clone(),
            known_jobs: Arc::clone(&self.known_jobs),
            rng: SeededRng::new(self.world.fate.next_u64()),
        };
        (process, person)
    }

    fn add_node(&self, unrestricted: bool) {
        let process = Process::open(&self.world, self.actor());
        process.work(unrestricted);
        lock(&self.processes).nodes.insert(process.actor, process);
    }

    /// A process has come to its end.
    pub(super) fn ended(&self, actor: Actor) {
        if lock(&self.processes).leaving.contains(&actor) {
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
                let mut processes = lock(&self.processes);
                if processes.over {
                    return;
                }
                let dead: Vec<Actor> = processes
                    .nodes
                    .keys()
                    .copied()
                    .filter(|actor| self.world.executor.is_dead(*actor))
                    .collect();
                for actor in dead {
                    if let Some(process) = processes.nodes.remove(&actor) {
                        process.bury();
                    }
                }
                processes.wanted.saturating_sub(processes.nodes.len())
            };
            for _ in 0..missing {
                self.add_node(self.is_calm() || chance(&self.world.fate, 0.3));
            }
        }
    }

    /// Replaces all nodes, one after the other, when the code of workflows changes.
    async fn deploy(self: Arc<Self>) {
        self.world.time.sleep(self.world.config.deploy).await;
        let nodes: Vec<Actor> = lock(&self.processes).nodes.keys().copied().collect();
        for actor in nodes {
            if self.is_calm() {
                return;
            }
            let stays =
                !lock(&self.processes).leaving.contains(&actor) && !self.world.executor.is_dead(actor);
            if stays {
                self.dismiss(actor);
            }
            self.world.time.sleep(between(&self.world.fate, Duration::ZERO, LOOK)).await;
        }
    }

    /// Outcomes are not taken for a while, in the middle of a rush. Some node may die of it, with all that it has claimed ahead.
    async fn jam(self: Arc<Self>, at: Duration) {
        let (world, fate) = (&self.world, &self.world.fate);
        world.time.sleep(at + between(fate, Duration::ZERO, Duration::from_millis(50))).await;
        let left = world.config.fault_phase.saturating_sub(world.time.monotonic());
        let lasts = between(fate, Duration::from_secs(1), world.config.lease * 3).min(left);
        world.fault("jam", None, lasts);
        world.net().jammed = true;
        let before = between(fate, Duration::ZERO, lasts);
        world.time.sleep(before).await;
        if let Some(actor) = self.some_node(true).filter(|_| chance(fate, 0.5)) {
            world.crash(actor);
        }
        world.time.sleep(lasts.saturating_sub(before)).await;
        world.net().jammed = false;
    }

    pub(super) fn is_calm(&self) -> bool {
        self.world.time.monotonic() >= self.world.config.fault_phase
    }

    /// Some node that has joined and is not about to leave, unless those are wanted too.
    fn some_node(&self, leaving: bool) -> Option<Actor> {
        let processes = lock(&self.processes);
        let there: Vec<Actor> = processes
            .nodes
            .values()
            .filter(|process| {
                process.has_joined() && (leaving || !processes.leaving.contains(&process.actor))
            })
            .map(|process| process.actor)
            .filter(|actor| !self.world.executor.is_dead(*actor))
            .collect();
        (!there.is_empty()).then(|| pick(&self.world.fate, &there))
    }

    /// Lets one kind of thing go wrong, again and again.
    async fn chaos(self: Arc<Self>, fault: SimFault, mean: Duration) {
        loop {
            self.world.time.sleep(between(&self.world.fate, mean / 5, mean * 9 / 5)).await;
            if self.is_calm() {
                return;
            }
            self.strike(fault).await;
        }
    }

    async fn strike(&self, fault: SimFault) {
        let (world, fate, lease) = (&self.world, &self.world.fate, self.world.config.lease);
        let left = world.config.fault_phase.saturating_sub(world.time.monotonic());
        let lasts = between(fate, lease / 2, lease * 3).min(left);
        match fault {
            SimFault::Crash => {
                let Some(actor) = self.some_node(true) else { return };
                match below(fate, 3) {
                    0 => world.crash(actor),
                    1 => world.executor.doom(actor, below(fate, 60)),
                    _ => *lock(&world.armed) = Some(actor),
                }
            }
            SimFault::Stop => {
                let Some(actor) = self.some_node(true) else { return };
                world.fault("stop", Some(actor), lasts);
                world.executor.pause(actor);
                world.time.sleep(lasts).await;
                world.executor.resume(actor);
            }
            SimFault::Cut => {
                let Some(actor) = self.some_node(true) else { return };
                world.fault("cut", Some(actor), lasts);
                world.net().cut.insert(actor, pick(fate, &[StoreAbsence::Refusing, StoreAbsence::Silent]));
                world.time.sleep(lasts).await;
                world.net().cut.remove(&actor);
            }
            SimFault::Outage => {
                let (kind, away) =
                    pick(fate, &[("outage", StoreAbsence::Refusing), ("silence", StoreAbsence::Silent)]);
                world.fault(kind, None, lasts);
                world.net().away = Some(away);
                world.time.sleep(lasts).await;
                world.net().away = None;
            }
            SimFault::Slow => {
                world.fault("slow", None, lasts);
                world.net().slow = between(fate, Duration::from_millis(5), lease / 16);
                world.time.sleep(lasts).await;
                world.net().slow = Duration::ZERO;
            }
            SimFault::Full => {
                world.fault("disk full", None, lasts);
                world.net().full = true;
                world.time.sleep(lasts).await;
                world.net().full = false;
            }
            SimFault::Skew => {
                let Some(actor) = self.some_node(false) else { return };
                let by = i64::try_from(fate.next_u64() % 7_200_000_000).unwrap_or(0) - 3_600_000_000;
                world.fault("skew", Some(actor), Duration::ZERO);
                if let Some(process) = lock(&self.processes).nodes.get(&actor) {
                    process.clock.jump(by);
                }
            }
            SimFault::Leap => {
                world.fault("leap", None, Duration::ZERO);
                let by = between(fate, lease / 2, lease * 4);
                world.store_time.jump(i64::try_from(by.as_micros()).unwrap_or(0));
            }
            SimFault::Year => {
                world.fault("year", None, Duration::ZERO);
                world.store_time.jump(i64::try_from(YEAR.as_micros()).unwrap_or(0));
            }
            SimFault::Back => {
                world.fault("back", None, lasts);
                world.store_time.jump(-HOUR);
                world.time.sleep(lasts).await;
                world.fault("back", None, Duration::ZERO);
                world.store_time.jump(HOUR);
            }
            SimFault::Damage => self.damage(lasts).await,
            SimFault::Restart => {
                let Some(actor) = self.some_node(false) else { return };
                self.dismiss(actor);
            }
            SimFault::Scale => {
                let extra = {
                    let mut processes = lock(&self.processes);
                    processes.wanted = 3 + below(fate, 5);
                    processes.nodes.len().saturating_sub(processes.wanted)
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
        let mut processes = lock(&self.processes);
        processes.leaving.insert(actor);
        if let Some(process) = processes.nodes.get(&actor) {
            process.shut_down();
        }
    }

    /// After the fault phase: nothing goes wrong any more, and everything is to be done.
    async fn end(self: Arc<Self>) {
        let (world, config) = (&self.world, &self.world.config);
        world.time.sleep(config.fault_phase + LOOK).await;
        world.note(Fact::Calm);
        {
            let mut net = world.net();
            (net.trouble, net.slow, net.full, net.away) = (0.0, Duration::ZERO, false, None);
            // Who never hears a hint goes without them to the end: nothing depends on them.
            net.hint_loss = if config.hint_loss < 1.0 { 0.0 } else { 1.0 };
            net.cut.clear();
        }
        self.configure(&QueueChange { paused: Some(false), ..QueueChange::default() });
        // Two that can do everything, whatever the others can do.
        lock(&self.processes).wanted += 2;
        self.add_node(true);
        self.add_node(true);
        // What was sent during the fault phase may still arrive.
        world.time.sleep(config.lease * 3).await;
        if config.schedules.is_some() {
            world.time.sleep(UNDISTURBED).await;
            self.look_at_schedules();
        }
        self.mend_all().await;
        let until = world.time.monotonic() + AFTERMATH + config.lease * 6;
        while !self.is_done() && world.time.monotonic() < until {
            world.time.sleep(LOOK).await;
            self.pause_schedules();
        }
        let nodes: Vec<Actor> = {
            let mut processes = lock(&self.processes);
            processes.over = true;
            processes.nodes.keys().copied().filter(|actor| !world.executor.is_dead(*actor)).collect()
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
        let processes = lock(&self.processes);
        processes.over && processes.nodes.keys().all(|actor| self.world.executor.is_dead(*actor))
    }

    /// Closes what is still open, so that nothing of the run stays behind.
    pub(super) fn strike_the_set(&self) {
        let (nodes, people) = {
            let mut processes = lock(&self.processes);
            (std::mem::take(&mut processes.nodes), std::mem::take(&mut processes.people))
        };
        for process in nodes.values().chain(&people) {
            self.world.executor.kill(process.actor);
            process.bury();
        }
        self.world.executor.kill(NOBODY);
        self.world.backend.disconnect(&*self.store);
    }
}
