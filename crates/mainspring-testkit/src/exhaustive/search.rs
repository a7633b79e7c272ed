//! The search: breadth first over everything that can happen, then backwards from the good ends.
//!
//! States are numbered in the order in which they are found and expanded in that order, so the first rule that breaks
//! breaks at the end of a shortest story. When no state is left to expand, every one that can be reached was.
//! Liveness is asked of the same graph: from each state there must be a path of fair steps to one in which all jobs have
//! come to rest.
//!
//! # Invariants
//! - A state is expanded once.

use mainspring_core::job::State as JobState;

use super::call::CallPath;
use super::rules::BrokenRule;
use super::state::State;
use super::step::{self, Scope};
use super::store_graph::{StoreGraph, number};
use super::table::Table;
use super::trace;
use super::{Report, Violation};

/// What is known of the whole graph.
pub(super) struct Search<'w> {
    pub(super) scope: Scope,
    pub(super) world: StoreGraph<'w>,
    /// Packed states, in the order of finding.
    pub(super) states: Vec<u64>,
    known: Table,
    /// The state from which each was found first.
    pub(super) parents: Vec<u32>,
    /// Where the fair steps of each state begin among `fair`.
    starts: Vec<u32>,
    /// The states to which fair steps lead.
    fair: Vec<u32>,
    transitions: u64,
    depth: u32,
}

/// Looks at everything.
pub(super) fn run(scope: Scope, wire: &dyn CallPath) -> Report {
    let world = match StoreGraph::new(wire, scope.doubts) {
        Ok(world) => world,
        Err(broken) => {
            return Report { violations: vec![trace::of_the_beginning(&broken)], ..Report::default() };
        }
    };
    let mut search = Search {
        scope,
        world,
        states: Vec::new(),
        known: Table::new(),
        parents: Vec::new(),
        starts: Vec::new(),
        fair: Vec::new(),
        transitions: 0,
        depth: 0,
    };
    let first = State { store: 0, nodes: Default::default(), flights: Default::default() };
    search.find(first.pack(), 0);
    let violation = search.forwards().or_else(|| search.backwards());
    Report {
        states: search.states.len() as u64,
        transitions: search.transitions,
        depth: search.depth,
        store_states: search.world.states() as u64,
        store_calls: search.world.calls() as u64,
        violations: violation.into_iter().collect(),
    }
}

impl Search<'_> {
    /// The number of a state; new if need be.
    fn find(&mut self, key: u64, parent: u32) -> u32 {
        if let Some(state) = self.known.get(key) {
            return state;
        }
        let state = number(self.states.len());
        self.known.insert(key, state);
        self.states.push(key);
        self.parents.push(parent);
        state
    }

    /// Expands every state, the first found first.
    fn forwards(&mut self) -> Option<Violation> {
        let (mut at, mut level_ends) = (0, 1);
        let mut found = Vec::new();
        while at < self.states.len() {
            if at == level_ends {
                self.depth += 1;
                level_ends = self.states.len();
            }
            let state = State::unpack(self.states[at]);
            self.starts.push(number(self.fair.len()));
            found.clear();
            let next =
                step::next(self.scope, &mut self.world, state, &mut |step, key, _| found.push((step, key)));
            if let Err(broken) = next {
                return Some(trace::render(self, at, &broken, true));
            }
            self.transitions += found.len() as u64;
            for (step, key) in &found {
                let to = self.find(*key, number(at));
                if step.is_fair() && to != number(at) {
                    self.fair.push(to);
                }
            }
            at += 1;
        }
        self.starts.push(number(self.fair.len()));
        None
    }

    /// Looks for a state from which no path of fair steps leads to rest.
    fn backwards(&mut self) -> Option<Violation> {
        let mut good: Vec<bool> = self.states.iter().map(|key| self.rests(*key)).collect();
        loop {
            let mut changed = false;
            // Steps lead to later states more often than not, so one pass from the end settles most of them.
            for at in (0..good.len()).rev().filter(|at| !good[*at]).collect::<Vec<_>>() {
                let steps = self.starts[at] as usize..self.starts[at + 1] as usize;
                if self.fair[steps].iter().any(|to| good[*to as usize]) {
                    good[at] = true;
                    changed = true;
                }
            }
            if !changed {
                break;
            }
        }
        let stuck = good.iter().position(|good| !good)?;
        let what = "no path of answered calls leads to the end of all jobs".to_owned();
        let broken = BrokenRule { rule: "once faults stop, every job can come to its end", job: None, what };
        Some(trace::render(self, stuck, &broken, false))
    }

    /// Whether all jobs have come to rest: ended, quarantined, or out of the claims that the search allows them.
    fn rests(&self, key: u64) -> bool {
        let jobs = self.world.sight(State::unpack(key).store).jobs;
        jobs.iter().all(|job| {
            let waits = job.is(JobState::Ready) || job.is(JobState::Scheduled);
            job.has_ended() || job.is_quarantined() || waits && job.claim >= self.scope.claims
        })
    }
}
