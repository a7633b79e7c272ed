//! The store, in every state that it can be in.
//!
//! Each state is kept once, as a fork of the real memory store, under its canonical number. A call on it is run once as
//! well: on another fork, whose new state is looked up or kept, and every rule is checked there and then. So the search
//! over nodes and their knowledge, which is far larger than the store's states, costs a look into a table per step.
//!
//! # Invariants
//! - A state's fork is never called itself.

use super::call::{Answer, Call, CallPath};
use super::rules::{self, BrokenRule};
use super::store_state::StoreState;
use super::table::Table;
use super::view::{SWAPS, StoreView};

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
pub(super) struct StoreGraph<'w> {
    pub(super) wire: &'w dyn CallPath,
    /// Whether a store that counts as one already seen is compared with that one.
    doubts: bool,
    store_states: Vec<StoreState>,
    known: Table,
    edges: Vec<Edge>,
    called: Table,
}

impl<'w> StoreGraph<'w> {
    /// A world whose first state has two jobs and no node.
    pub(super) fn new(wire: &'w dyn CallPath, doubts: bool) -> Result<Self, BrokenRule> {
        let mut world = StoreGraph {
            wire,
            doubts,
            store_states: Vec::new(),
            known: Table::new(),
            edges: Vec::new(),
            called: Table::new(),
        };
        let store_state = StoreState::first()?;
        rules::state(&store_state, wire)?;
        world.keep(store_state);
        Ok(world)
    }

    /// How many states there are.
    pub(super) fn states(&self) -> usize {
        self.store_states.len()
    }

    /// How many different calls were made.
    pub(super) fn calls(&self) -> usize {
        self.edges.len()
    }

    /// What can be seen in a state.
    pub(super) fn sight(&self, state: u32) -> &StoreView {
        &self.store_states[state as usize].sight
    }

    /// What a call does to a state.
    pub(super) fn call(&mut self, from: u32, call: Call) -> Result<Edge, BrokenRule> {
        let key = u64::from(from) << 9 | call.code();
        if let Some(edge) = self.called.get(key) {
            return Ok(self.edges[edge as usize]);
        }
        let edge = self.run(from, call)?;
        self.called.insert(key, number(self.edges.len()));
        self.edges.push(edge);
        Ok(edge)
    }

    fn run(&mut self, from: u32, call: Call) -> Result<Edge, BrokenRule> {
        let before = &self.store_states[from as usize];
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
            let kept = &mut self.store_states[to as usize];
            kept.meetings += 1;
            if self.doubts && kept.meetings <= COMPARED {
                after.rename(swap);
                self.compare(&self.store_states[to as usize], &after)
                    .map_err(|broken| broken.before(swap))?;
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
    fn compare(&self, kept: &StoreState, met: &StoreState) -> Result<(), BrokenRule> {
        for call in Call::every(&kept.sight) {
            let mut store_states = [kept.fork(), met.fork()];
            let mut seen = [(Answer::default(), 0); 2];
            for (store_state, seen) in store_states.iter_mut().zip(&mut seen) {
                *seen = (store_state.apply(call, self.wire)?, store_state.sight.canonical().0);
            }
            if seen[0] != seen[1] {
                let what =
                    format!("{call:?}: {} and {}; {:?}, {:?}", seen[0].0, seen[1].0, kept.sight, met.sight);
                return Err(BrokenRule::of("states that count as one are alike", None, what));
            }
        }
        Ok(())
    }

    fn keep(&mut self, store_state: StoreState) -> u32 {
        let (key, _) = store_state.sight.canonical();
        let state = number(self.store_states.len());
        self.known.insert(key, state);
        self.store_states.push(store_state);
        state
    }
}

/// An index as it is kept.
pub(super) fn number(index: usize) -> u32 {
    u32::try_from(index).expect("a search ends long before four billion")
}
