//! The simulator: nodes, producers and an operator in one thread, on a clock that stands still while they work.
//!
//! A seed stands for a whole run: how many nodes there are, what they work on, which task goes on next, which message
//! is late, when a process dies. The engine and the store are the real ones; time, randomness, tasks and the way to the
//! store are simulated. The same seed gives the same run, bit for bit, so that a failure that was seen once can be looked
//! at as often as one likes.
//!
//! A run has a fault phase, in which things go wrong, and then calm, in which everything has to be done. The
//! [`checker`] judges the [history](crate::history) of both.

mod actors;
mod backend;
mod clock;
mod command;
mod damage;
mod director;
mod executor;
mod forced_races;
mod network;
mod plan;
mod process;
mod programs;
mod scenarios;
mod schedules;
mod workflow;
mod workflow_clients;
mod world;

use std::cell::RefCell;
use std::sync::{Arc, Weak};
use std::time::Duration;

use mainspring_core::fault;
use mainspring_core::seam::Clock;

pub use backend::Kind;
pub(crate) use backend::scratch;
pub use command::{main, regressions};
pub use forced_races::{ForcedRaces, races};

use crate::checker::{self, CheckTerms, Figures, FinalState, Violation};
use crate::executor::block_on;
use crate::history::Event;
use crate::rng::SeededRng;
use director::Director;
use plan::Config;
use world::World;

/// How long ended jobs are kept in runs that remove them.
const RETENTION: Duration = Duration::from_mins(1);
/// Beyond a lease, how long it may take to find a dead node.
const RECOVERY: Duration = Duration::from_secs(1);

/// Every kind of fault. A long run in which one of them never happens proves less than it says.
pub const FAULTS: [&str; 22] = [
    "answer lost",
    "back",
    "call late",
    "call refused",
    "call repeated",
    "crash",
    "crash at a point",
    "cut",
    "disk full",
    "exit",
    "hint lost",
    "jam",
    "leap",
    "outage",
    "row damaged",
    "scale",
    "shutdown",
    "silence",
    "skew",
    "slow",
    "stop",
    "year",
];

/// What came of a run.
#[derive(Debug, Clone)]
pub struct Run {
    /// Its seed.
    pub seed: u64,
    /// Everything that was seen.
    pub history: Vec<Event>,
    /// What happened, in numbers.
    pub figures: Figures,
    /// What must not have happened.
    pub violations: Vec<Violation>,
    /// How much time passed in it.
    pub simulated: Duration,
}

impl Run {
    /// A number that differs for histories that differ.
    pub fn hash(&self) -> u64 {
        let mut hash = 0xCBF2_9CE4_8422_2325_u64;
        for event in &self.history {
            let line = serde_json::to_vec(event).expect("an event is JSON");
            for byte in line {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
            }
        }
        hash
    }

    /// The run as a story, one line per event.
    pub fn tell(&self) -> impl Iterator<Item = String> {
        checker::render(&self.history)
    }
}

thread_local! {
    /// The world that is simulated on this thread.
    static WORLD: RefCell<Weak<World>> = const { RefCell::new(Weak::new()) };
}

/// Has the failure points of the engine ask the world of their thread.
fn install_points() {
    // Another rig of this process may have its own; then points are that rig's.
    let _first = fault::install(|_| {
        if let Some(world) = WORLD.with_borrow(Weak::upgrade) {
            world.pass_point();
        }
    });
}

/// Runs one seed.
pub fn run(kind: Kind, seed: u64) -> Run {
    install_points();
    let config = Config::of(&SeededRng::new(seed));
    let world = World::new(kind, config, seed);
    WORLD.set(Arc::downgrade(&world));
    let director = Director::new(&world);
    director.start();
    let stuck = live(&world, &director);
    let mut found = block_on(FinalState::look(&*director.store)).expect("the store can be looked at");
    let listening = found.listen(&*director.store, world.log.speakers());
    block_on(listening).expect("the store can be listened to");
    director.strike_the_set();
    let claim = world.config.claim().unwrap_or(mainspring_core::bounds::BATCH);
    let terms = CheckTerms {
        exact: true,
        settled: true,
        retention: world.config.prune.then_some(RETENTION),
        recovery: Some(RECOVERY),
        cut: false,
        claim: Some(claim),
    };
    let history = world.log.take();
    let report = checker::check(&history, &found, terms);
    let mut violations = report.violations;
    violations.extend(stuck.map(|what| Violation {
        rule: "time goes on",
        job: None,
        what,
        timeline: Vec::new(),
    }));
    let simulated = world.time.monotonic();
    Run { seed, history, figures: report.figures, violations, simulated }
}

/// Lets time pass until all is over; what is wrong if it never is.
fn live(world: &Arc<World>, director: &Director) -> Option<String> {
    loop {
        if let Err(problem) = world.executor.run(|actor| director.ended(actor)) {
            return Some(problem);
        }
        if director.is_over() {
            return None;
        }
        match world.time.next_wake() {
            Some(next) => world.time.advance(next.saturating_sub(world.time.monotonic())),
            None => return Some("nobody can go on and nobody waits for time to pass".into()),
        }
    }
}
