//! The store, in every state that it can be in.
//!
//! Each state is kept once, as a fork of the real memory store, under its canonical number. A call on it is run once as
//! well: on another fork, whose new state is looked up or kept, and every rule is checked there and then. So the search
//! over nodes and their knowledge, which is far larger than the store's states, costs a look into a table per step.
//!
//! # Invariants
//! - A state's fork is never called itself.

use super::call::{Answer, Call, Wire};
use super::rules::{self, Broken};
use super::store_state::Room;
use super::table::Table;
use super::view::{SWAPS, Sight};

/// How often a state that is met again is compared, for who doubts.
const COMPARED: u32 = 2;

/// What one call does to one state.
#[derive(Debug, Clone, Copy)]
pub(super) struct Edge {
    /// The state that it leads to.
    pub(super) to: u32,
    /// The swaps under which it does.
    pub(super) swaps: u8,
    pub(super) answer: Answer,
}

/// All states of the store that were met.
pub(super) struct World<'w> {
    pub(super) wire: &'w dyn Wire,
    /// Whether a store that counts as one already seen is compared with that one.
    doubts: bool,
    rooms: Vec<Room>,
    known: Table,
    edges: Vec<Edge>,
    called: Table,
}

impl<'w> World<'w> {
    /// A world whose first state has two jobs and no node.
    pub(super) fn new(wire: &'w dyn Wire, doubts: bool) -> Result<Self, Broken> {
        let mut world = World {
            wire,
            doubts,
            rooms: Vec::new(),
            known: Table::new(),
            edges: Vec::new(),
            called: Table::new(),
        };
        let room = Room::first()?;
        rules::state(&room, wire)?;
        world.keep(room);
        Ok(world)
    }

    /// How many states there are.
    pub(super) fn states(&self) -> usize {
        self.rooms.len()
    }

    /// How many different calls were made.
    pub(super) fn calls(&self) -> usize {
        self.edges.len()
    }

    /// What can be seen in a state.
    pub(super) fn sight(&self, state: u32) -> &Sight {
        &self.rooms[state as usize].sight
    }

    /// What a call does to a state.
    pub(super) fn call(&mut self, from: u32, call: Call) -> Result<Edge, Broken> {
        let key = u64::from(from) << 9 | call.code();
        if let Some(edge) = self.called.get(key) {
            return Ok(self.edges[edge as usize]);
        }
        let edge = self.run(from, call)?;
        self.called.insert(key, number(self.edges.len()));
        self.edges.push(edge);
        Ok(edge)
    }

    fn run(&mut self, from: u32, call: Call) -> Result<Edge, Broken> {
        let before = &self.rooms[from as usize];
        let mut after = before.fork();
        let answer = after.apply(call, self.wire)?;
        rules::step(call, &before.sight, &after.sight, answer)?;
        if after.sight != before.sight {
            let mut again = after.fork();
            let repeated = again.repeat(call, self.wire)?;
            rules::repeat(call, &after.sight, &again.sight, answer, repeated)?;
        }
        if let Call::Claim { seat, settled: true, .. } | Call::Disown { seat, .. } = call {
            after.settle(seat);
        }
        let (key, swaps) = after.sight.canonical();
        // Any of the swaps will do.
        let swap = (0..SWAPS).find(|swap| swaps & 1 << swap != 0).unwrap_or_default();
        let to = if let Some(to) = self.known.get(key) {
            let kept = &mut self.rooms[to as usize];
            kept.meetings += 1;
            if self.doubts && kept.meetings <= COMPARED {
                after.rename(swap);
                self.compare(&self.rooms[to as usize], &after).map_err(|broken| broken.before(swap))?;
            }
            to
        } else {
            after.rename(swap);
            rules::state(&after, self.wire).map_err(|broken| broken.before(swap))?;
            self.keep(after)
        };
        Ok(Edge { to, swaps, answer })
    }

    /// Two stores with one number must answer alike, whatever they are asked.
    fn compare(&self, kept: &Room, met: &Room) -> Result<(), Broken> {
        for call in Call::every(&kept.sight) {
            let mut rooms = [kept.fork(), met.fork()];
            let mut seen = [(Answer::default(), 0); 2];
            for (room, seen) in rooms.iter_mut().zip(&mut seen) {
                *seen = (room.apply(call, self.wire)?, room.sight.canonical().0);
            }
            if seen[0] != seen[1] {
                let what =
                    format!("{call:?}: {} and {}; {:?}, {:?}", seen[0].0, seen[1].0, kept.sight, met.sight);
                return Err(Broken::of("states that count as one are alike", None, what));
            }
        }
        Ok(())
    }

    fn keep(&mut self, room: Room) -> u32 {
        let (key, _) = room.sight.canonical();
        let state = number(self.rooms.len());
        self.known.insert(key, state);
        self.rooms.push(room);
        state
    }
}

/// An index as it is kept.
pub(super) fn number(index: usize) -> u32 {
    u32::try_from(index).expect("a search ends long before four billion")
}
