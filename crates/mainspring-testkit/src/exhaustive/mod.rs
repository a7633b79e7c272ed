//! Everything that can happen to two jobs on two nodes: no sample, all of it.
//!
//! [`run`] explores claim, renew, finish, rescue, cancel, release, disown and retire of two nodes and two jobs, each job
//! claimed up to three times, with nodes that crash and join anew, nodes that sleep past their lease with requests under
//! way, and requests and answers that are lost. Every reachable state is visited and every rule checked in it, on every
//! step, and for the repeat of every call. The semantics are not written down a second time: each state holds a fork of the
//! real [`Memory`](mainspring_core::memory::Memory) store, which every other store is proven equal to.
//!
//! `sight` reduces a store to what matters of it, `world` keeps one fork per state, `rules` and `probe` say what must
//! hold, `state` and `step` are the nodes with their knowledge, `search` walks, `story` tells how a rule was broken.
//!
//! # What is left out
//! - Time moves in steps of half a lease, and nodes have leases of one length. The rules of rescue know no other times.
//! - A rescuer is always steady, which is more than can happen: that rescuers who are not change nothing is tried in every
//!   state, and so is every write under a claim that has ended.
//! - Each job has its own queue: a claim picks jobs, the order within a queue is the conformance suite's.
//! - One finish is under way, unanswered, at a time; its node's other calls go on.
//! - Marks, deadlines, keys, snoozes, pauses of queues and operators' other verbs.
//!
//! # Invariants
//! - The search ends by itself: what is not bounded by the claims of a job comes back to states already seen.

mod call;
mod limits;
mod probe;
mod rules;
mod search;
mod state;
mod step;
mod store_graph;
mod store_state;
mod suspension;
mod table;
mod trace;
mod view;

use std::fmt;

use call::End;
pub use limits::run_limits;
use step::Scope;
pub use suspension::run_suspension;

/// What the search found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// States of store and nodes together, each visited once.
    pub states: u64,
    /// Steps between them.
    pub transitions: u64,
    /// The longest of the shortest paths from the beginning.
    pub depth: u32,
    /// States of the store alone.
    pub store_states: u64,
    /// Different calls that were made on them.
    pub store_calls: u64,
    /// What must not be. The search ends at the first.
    pub violations: Vec<Violation>,
}

/// A rule that does not hold, and the shortest way there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The rule.
    pub rule: String,
    /// What was seen instead.
    pub what: String,
    /// How it came about, one line per step.
    pub trace: Vec<String>,
}

/// Three claims of each job, and the ends that make a difference to who holds what.
const DEEP: Scope = Scope { claims: 3, ends: &[End::Succeed, End::Release, End::Cancel], doubts: false };
/// Two claims of each job, and every end.
const WIDE: Scope = Scope { claims: 2, ends: &End::ALL, doubts: false };

/// Explores everything: [`deep`] and then [`wide`], with the figures of both together.
pub fn run() -> Report {
    let (deep, wide) = (deep(), wide());
    Report {
        states: deep.states + wide.states,
        transitions: deep.transitions + wide.transitions,
        depth: deep.depth.max(wide.depth),
        store_states: deep.store_states + wide.store_states,
        store_calls: deep.store_calls + wide.store_calls,
        violations: [deep.violations, wide.violations].concat(),
    }
}

/// Three claims of each job; handlers succeed, are released or cancelled. About half a minute of an unoptimised build.
pub fn deep() -> Report {
    search::run(DEEP, &call::DirectPath)
}

/// Two claims of each job; handlers end in every way. As long again.
pub fn wide() -> Report {
    search::run(WIDE, &call::DirectPath)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { states, transitions, depth, store_states, store_calls, violations } = self;
        writeln!(f, "states       {states}")?;
        writeln!(f, "transitions  {transitions}")?;
        writeln!(f, "depth        {depth}")?;
        writeln!(f, "the store    {store_states} states, {store_calls} calls")?;
        write!(f, "violations   {}", violations.len())?;
        for violation in violations {
            write!(f, "\n\n{violation}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "broken: {}", self.rule)?;
        for (number, line) in self.trace.iter().enumerate() {
            write!(f, "\n{number:>4}  {line}")?;
        }
        write!(f, "\n  =>  {}", self.what)
    }
}

#[cfg(test)]
mod tests;
