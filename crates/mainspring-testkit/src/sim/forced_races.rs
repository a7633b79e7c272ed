//! Forced races: a node is stopped in the middle of a job, past its lease, until another has done the job; then it wakes
//! and writes what it has.

use std::sync::Arc;
use std::time::Duration;

use mainspring_core::seam::{Clock, Rng};

use super::backend::Kind;
use super::plan::{Config, Plan};
use super::process::{Process, Work};
use super::world::World;
use crate::history::{Actor, Event, Fact};
use crate::rng::SeededRng;

/// What came of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForcedRaces {
    /// Nodes that woke and wrote.
    pub forced: usize,
    /// Of those, whose write was refused.
    pub refused: usize,
    /// Jobs that ended once, by the other node.
    pub once: usize,
}

const LEASE: Duration = Duration::from_secs(2);

/// Forces that many races, one after the other.
pub fn races(kind: Kind, count: usize, seed: u64) -> ForcedRaces {
    let rng = SeededRng::new(seed);
    let config = Config { nodes: 2, lease: LEASE, fault_phase: Duration::ZERO, ..Config::of(&rng) };
    let world = World::new(kind, config, seed);
    let nodes = [Process::open(&world, 1), Process::open(&world, 2)];
    for node in &nodes {
        node.work(true);
    }
    let caller = Process::open(&world, 3);
    let mut races = ForcedRaces { forced: 0, refused: 0, once: 0 };
    pass(&world, LEASE * 2);
    for _ in 0..count {
        world.log.take();
        let job = Work(Plan { millis: 50 + rng.next_u64() % 500, ..Plan::default() });
        let engine = caller.engine.clone();
        caller.run(async move {
            engine.enqueue(job).await.expect("nothing is in the way");
        });
        let victim = until(&world, |event| match event.fact {
            Fact::Began { .. } => Some(event.by),
            _ => None,
        });
        world.executor.pause(victim);
        let rescuer = until(&world, |event| match event.fact {
            Fact::Finished { applied: true, .. } => Some(event.by),
            _ => None,
        });
        assert_ne!(victim, rescuer, "who is stopped writes nothing");
        world.executor.resume(victim);
        let refused = until(&world, |event| match event.fact {
            Fact::Finished { applied, .. } if event.by == victim => Some(!applied),
            _ => None,
        });
        // Both are to be live, and steady for a lease, before the next.
        pass(&world, LEASE * 2);
        let accepted = |event: &Event| matches!(event.fact, Fact::Finished { applied: true, .. });
        races.forced += 1;
        races.refused += usize::from(refused);
        races.once += usize::from(world.log.take().iter().filter(|event| accepted(event)).count() == 1);
    }
    for process in nodes.iter().chain([&caller]) {
        world.executor.kill(process.actor);
        process.bury();
    }
    world.executor.kill(super::world::NOBODY);
    races
}

/// Lets time pass.
fn pass(world: &Arc<World>, duration: Duration) {
    let until = world.time.monotonic() + duration;
    while world.time.monotonic() < until {
        step(world);
    }
}

/// Lets time pass until something is in the history.
fn until<T>(world: &Arc<World>, seen: impl Fn(&Event) -> Option<T>) -> T {
    let patience = world.time.monotonic() + LEASE * 20;
    loop {
        if let Some(found) = world.log.look(|events| events.iter().find_map(&seen)) {
            return found;
        }
        assert!(world.time.monotonic() < patience, "it never comes");
        step(world);
    }
}

fn step(world: &Arc<World>) {
    world.executor.run(|actor: Actor| world.crash(actor)).expect("an end");
    if let Some(next) = world.time.next_wake() {
        world.time.advance(next.saturating_sub(world.time.monotonic()));
    }
}
