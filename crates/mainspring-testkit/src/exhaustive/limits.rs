//! Everything that can happen when jobs of two limit keys meet claims, ends, deaths and changes: two nodes, three jobs, two keys
//! of one unit each. One job takes of both keys.
//!
//! Nodes claim one job at a time and may hold several; they crash, join anew and sleep past their lease; the answers of claims and
//! finishes may be lost, and the calls are made again then. Jobs end, are released, suspended with their units kept, and cancelled.
//! Somebody lowers a maximum to 0, raises it, and introduces a total. Every state that can be reached is visited once, as a fork of the real memory store. In
//! each of them the counters are the sums of the claims, nothing that is admitted exceeds what holds at that moment, and all jobs come to
//! their end as soon as everybody does what he should.
//!
//! # What is left out
//! - Rates, which only time changes, and keys of one limit: they are the conformance suite's.
//! - Deaths beside cancellations and changes: each scope has its own.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use mainspring_core::Result;
use mainspring_core::id::{Claim, ClaimBatchNo, JobId, NodeId, NodeNo};
use mainspring_core::job::{New, Options, Outcome, Priority, Reason, State, Verb};
use mainspring_core::journal::{Signal, Subject, Suspension, Wait, Writes};
use mainspring_core::limit::{Change, LimitUse, Total};
use mainspring_core::memory::Memory;
use mainspring_core::name::{LimitName, SignalName};
use mainspring_core::seam::{Clock, Pending};
use mainspring_core::store::{
    Abilities, ClaimRequest, Finish, Limits, Nodes, Operators, Producers, Registration, Rescue,
};
use mainspring_core::time::Timestamp;

use super::call::now;
use super::{Report, Violation};
use crate::clock::START;
use crate::harness::{LEASE, kind, queue};

/// What may happen, and how often: all of it at once is more than anybody waits for.
#[derive(Debug, Clone, Copy)]
struct Scope {
    /// Half leases that may pass.
    ticks: u32,
    /// Crashes.
    crashes: u32,
    /// Answers that may be lost.
    losses: u32,
    /// Changes of the maximum of `l`, and of the total.
    changes: u32,
    /// Jobs that may be cancelled.
    cancels: u32,
    /// Claims of one job.
    claims: u32,
    /// Whether a job may keep its units.
    keeps: bool,
}

/// Nodes that die and sleep.
const DEATHS: Scope =
    Scope { ticks: 2, crashes: 1, losses: 0, changes: 0, cancels: 0, claims: 1, keeps: false };
/// Answers that are lost.
const LOSSES: Scope =
    Scope { ticks: 0, crashes: 0, losses: 1, changes: 0, cancels: 0, claims: 2, keeps: false };
/// Nodes that live, and operators.
const CHANGES: Scope =
    Scope { ticks: 0, crashes: 0, losses: 0, changes: 2, cancels: 1, claims: 1, keeps: false };
/// Jobs that keep their units.
const KEEPS: Scope =
    Scope { ticks: 0, crashes: 0, losses: 0, changes: 0, cancels: 1, claims: 2, keeps: true };

const JOBS: usize = 3;

struct FixedClock(Timestamp);

impl Clock for FixedClock {
    fn now(&self) -> Timestamp {
        self.0
    }

    fn monotonic(&self) -> Duration {
        self.0.since(START)
    }

    fn sleep(&self, _: Duration) -> Pending<'static, ()> {
        Box::pin(std::future::pending())
    }
}

/// One state of store and nodes together.
struct StoreAndNodes {
    scope: Scope,
    store: Memory,
    ticks: u32,
    crashes: u32,
    losses: u32,
    changes: u32,
    cancels: u32,
    registered: u8,
    nodes: [Option<NodeNo>; 2],
    /// The next claim of each node.
    batches: [u64; 2],
    /// Whether the answer of that claim was lost before.
    unanswered: [bool; 2],
    /// What each node knows that it holds, by job.
    held: [BTreeMap<usize, Claim>; 2],
    trace: Vec<String>,
}

/// How a claim ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Succeed,
    Release,
    Keep,
}

/// What can happen next.
#[derive(Debug, Clone, Copy)]
enum Move {
    Tick,
    Join(usize),
    Rescue(usize),
    Crash(usize),
    /// A node asks for one job; the answer may be lost.
    Claim(usize, bool),
    /// A node ends what it holds of a job; the answer may be lost.
    Finish(usize, usize, End, bool),
    Cancel(usize),
    /// A kept job is woken.
    Wake(usize),
    /// The maximum of `l`.
    Max(u32),
    /// The total of the queue.
    Total(Option<u32>),
}

fn job(at: usize) -> JobId {
    JobId::from_bytes([u8::try_from(at + 1).expect("three jobs"); 16])
}

fn name(text: &str) -> LimitName {
    LimitName::new(text).expect("a limit's name")
}

fn go() -> SignalName {
    SignalName::new("go").expect("a name")
}

/// The first takes of `l`, the second of both, the third of `m`.
fn uses(at: usize) -> Vec<LimitUse> {
    let all = [LimitUse::new(name("l")), LimitUse::new(name("m"))];
    match at {
        0 => all[..1].to_vec(),
        1 => all.to_vec(),
        _ => all[1..].to_vec(),
    }
}

fn max(max: u32) -> Change {
    Change { max: Some(Some(max)), ..Change::default() }
}

/// Explores everything.
pub fn run_limits() -> Report {
    let mut report = Report::default();
    for scope in [CHANGES, KEEPS, LOSSES, DEATHS] {
        let more = explore(scope);
        report.states += more.states;
        report.store_states += more.store_states;
        report.transitions += more.transitions;
        report.depth = report.depth.max(more.depth);
        report.violations = more.violations;
        if !report.violations.is_empty() {
            break;
        }
    }
    report
}

fn explore(scope: Scope) -> Report {
    let mut report = Report::default();
    let first = StoreAndNodes::first(scope);
    let mut seen = BTreeSet::from([first.sight()]);
    let mut next = VecDeque::from([first]);
    while let Some(current) = next.pop_front() {
        report.states += 1;
        report.depth = report.depth.max(u32::try_from(current.trace.len()).unwrap_or(u32::MAX));
        if let Err(what) = current.judge() {
            report.violations.push(current.violation(what));
            return report;
        }
        for step in current.moves() {
            report.transitions += 1;
            let mut after = current.fork(current.ticks);
            after.trace.push(format!("{step:?}"));
            if let Err(what) = after.apply(step) {
                report.violations.push(after.violation(what));
                return report;
            }
            if seen.insert(after.sight()) {
                next.push_back(after);
            }
        }
    }
    report.store_states = report.states;
    report
}

impl StoreAndNodes {
    fn first(scope: Scope) -> Self {
        let store = Memory::new(Arc::new(FixedClock(START)));
        for limit in ["l", "m"] {
            now(store.set_limit(name(limit), max(1), "ann".into())).expect("a limit is stored");
        }
        let new = |at: usize| New {
            id: job(at),
            kind: kind("k"),
            queue: queue("one"),
            priority: Priority::default(),
            input: Vec::new(),
            run: None,
            deadline: None,
            options: Options { limits: uses(at), ..Options::default() },
            journal: Vec::new(),
        };
        now(store.enqueue((0..JOBS).map(new).collect())).expect("jobs are stored");
        StoreAndNodes {
            scope,
            store,
            ticks: 0,
            crashes: 0,
            losses: 0,
            changes: 0,
            cancels: 0,
            registered: 0,
            nodes: [None; 2],
            batches: [1; 2],
            unanswered: [false; 2],
            held: [BTreeMap::new(), BTreeMap::new()],
            trace: Vec::new(),
        }
    }

    fn fork(&self, ticks: u32) -> Self {
        let clock = Arc::new(FixedClock(START.after(LEASE / 2 * ticks)));
        StoreAndNodes {
            store: self.store.fork(clock),
            ticks,
            held: self.held.clone(),
            trace: self.trace.clone(),
            ..*self
        }
    }

    fn violation(&self, what: String) -> Violation {
        Violation { rule: "limits hold, and let the next in".into(), what, trace: self.trace.clone() }
    }

    /// All that matters of it, as text; also who has a turn, which no call tells.
    fn sight(&self) -> String {
        let jobs: Vec<_> = (0..JOBS).map(|at| self.job(at)).collect();
        let nodes = now(self.store.nodes()).expect("it answers");
        let nodes: Vec<_> = nodes.iter().map(|node| (node.no, node.state, node.lease_until)).collect();
        let told =
            (self.ticks, self.crashes, self.losses, self.changes, self.cancels, self.nodes, self.unanswered);
        let limits = now(self.store.limits()).expect("it answers");
        let max: Vec<_> = limits.iter().map(|limit| limit.definition.max).collect();
        let totals = now(self.store.totals()).expect("it answers");
        format!("{told:?} {:?} {jobs:?} {nodes:?} {max:?} {totals:?} {:?}", self.held, self.store.groups())
    }

    /// The state, the reason, the claim, the crashes and the owner of a job, and whether it is to be cancelled.
    fn job(&self, at: usize) -> (State, Option<Reason>, u32, u16, Option<NodeNo>, bool) {
        let summary = now(self.store.get(job(at))).expect("it answers").expect("it is there").summary;
        let (status, node) =
            (summary.status, summary.node.filter(|_| summary.status.state == State::Running));
        (status.state, status.reason, summary.claim, summary.crashes, node, summary.cancelling)
    }

    fn moves(&self) -> Vec<Move> {
        let mut moves = Vec::new();
        if self.ticks < self.scope.ticks {
            moves.push(Move::Tick);
        }
        let lossy = self.losses < self.scope.losses;
        for seat in 0..2 {
            if self.nodes[seat].is_none() {
                // Which of two that have never been there comes first is the same.
                if seat == 0 || self.registered > 0 {
                    moves.push(Move::Join(seat));
                }
                continue;
            }
            if self.scope.ticks > 0 {
                moves.push(Move::Rescue(seat));
            }
            if self.crashes < self.scope.crashes {
                moves.push(Move::Crash(seat));
            }
            moves.push(Move::Claim(seat, false));
            moves.extend(lossy.then_some(Move::Claim(seat, true)));
            for (at, claim) in &self.held[seat] {
                let again = claim.number < self.scope.claims;
                let ends =
                    [(End::Succeed, true), (End::Release, again), (End::Keep, again && self.scope.keeps)];
                for (end, _) in ends.into_iter().filter(|(_, may)| *may) {
                    moves.push(Move::Finish(seat, *at, end, false));
                    moves.extend(lossy.then_some(Move::Finish(seat, *at, end, true)));
                }
            }
        }
        for at in 0..JOBS {
            let (state, ..) = self.job(at);
            if self.cancels < self.scope.cancels && !state.is_terminal() {
                moves.push(Move::Cancel(at));
            }
            if state == State::Suspended {
                moves.push(Move::Wake(at));
            }
        }
        if self.changes < self.scope.changes {
            moves.extend([Move::Max(0), Move::Max(1), Move::Max(2), Move::Total(Some(1)), Move::Total(None)]);
        }
        moves
    }

    fn apply(&mut self, step: Move) -> Result<(), String> {
        let told = |error: mainspring_core::Error| format!("{step:?}: {error}");
        match step {
            Move::Tick => *self = self.fork(self.ticks + 1),
            Move::Join(seat) => {
                self.nodes[seat] = Some(self.join().map_err(told)?);
                self.batches[seat] = 1;
                self.unanswered[seat] = false;
            }
            Move::Rescue(seat) => {
                let Some(by) = self.nodes[seat] else { return Ok(()) };
                // One that is gone itself is refused.
                drop(now(self.store.rescue(Rescue { by, steady: LEASE, seen: self.time() })));
            }
            Move::Crash(seat) => {
                self.crashes += 1;
                self.nodes[seat] = None;
                self.held[seat].clear();
            }
            Move::Claim(seat, lost) => {
                let Some(node) = self.nodes[seat] else { return Ok(()) };
                self.losses += u32::from(lost);
                let claimed = self.claim(node, self.batches[seat])?;
                self.unanswered[seat] = lost;
                if !lost && !claimed.is_empty() {
                    self.batches[seat] += 1;
                    self.held[seat].extend(claimed);
                }
            }
            Move::Finish(seat, at, end, lost) => {
                let Some(node) = self.nodes[seat] else { return Ok(()) };
                let Some(claim) = self.held[seat].get(&at).copied() else { return Ok(()) };
                self.losses += u32::from(lost);
                let finish = Finish { claim, outcome: outcome(end) };
                now(self.store.finish(node, vec![finish])).map_err(told)?;
                if !lost {
                    self.held[seat].remove(&at);
                }
            }
            Move::Cancel(at) => {
                self.cancels += 1;
                let cancel = Verb::Cancel { why: String::new() };
                now(self.store.change(vec![job(at)], cancel, false)).map_err(told)?;
            }
            Move::Wake(at) => self.wake(at).map_err(told)?,
            Move::Max(to) => {
                self.changes += 1;
                now(self.store.set_limit(name("l"), max(to), "ann".into())).map_err(told)?;
            }
            Move::Total(to) => {
                self.changes += 1;
                now(self.store.set_total(Total::Queue(queue("one")), to, "ann".into())).map_err(told)?;
            }
        }
        Ok(())
    }

    fn time(&self) -> Timestamp {
        START.after(LEASE / 2 * self.ticks)
    }

    fn join(&mut self) -> Result<NodeNo> {
        self.registered += 1;
        let node = Registration {
            id: NodeId::from_bytes([self.registered; 16]),
            name: String::new(),
            version: String::new(),
            pid: 1,
            queues: vec![(queue("one"), 1)],
            abilities: Abilities { kinds: vec![kind("k")], ..Abilities::default() },
            lease: LEASE,
        };
        now(self.store.register(node)).map(|member| member.no)
    }

    fn wake(&self, at: usize) -> Result<()> {
        let signal = Signal { job: job(at), name: go(), sender: "ann".into(), body: b"1".to_vec() };
        now(self.store.signal(vec![signal])).map(drop)
    }

    /// Claims one job. Whatever is claimed is within what holds at that moment.
    fn claim(&self, node: NodeNo, batch: u64) -> Result<Vec<(usize, Claim)>, String> {
        let before: Vec<_> = (0..JOBS).map(|at| self.job(at).2).collect();
        let request = ClaimRequest {
            ahead: Vec::new(),
            node,
            batch: ClaimBatchNo(batch),
            queues: vec![(queue("one"), 1)],
            suspects: 1,
        };
        // A node that is gone is refused.
        let jobs = now(self.store.claim(request)).map(|batch| batch.jobs).unwrap_or_default();
        let number = |id: JobId| (0..JOBS).find(|at| job(*at) == id).expect("it is one of the three");
        let claimed: Vec<_> = jobs.iter().map(|it| (number(it.claim.id), it.claim)).collect();
        for (at, _) in claimed.iter().filter(|(at, claim)| claim.number > before[*at]) {
            for one in uses(*at) {
                let limits = now(self.store.limits()).map_err(|error| error.to_string())?;
                let max = limits.iter().find(|it| it.name == one.limit).and_then(|it| it.definition.max);
                let held = self.holders(&one.limit);
                // A keeper is claimed again whatever the maximum is by now.
                let kept = self.scope.keeps && self.job(*at).2 > 1;
                if !kept && max.is_some_and(|max| held > max) {
                    return Err(format!("job {at} was let in: {held} hold limit `{}` of {max:?}", one.limit));
                }
            }
            let running = (0..JOBS).filter(|at| self.job(*at).0 == State::Running).count();
            for total in now(self.store.totals()).map_err(|error| error.to_string())? {
                if running > total.max as usize {
                    return Err(format!("job {at} was let in: {running} run of {total:?}"));
                }
            }
        }
        Ok(claimed)
    }

    /// How many jobs hold a limit: those that run, and those that keep it.
    fn holders(&self, limit: &LimitName) -> u32 {
        let found = now(self.store.limit_key(limit.clone(), String::new())).expect("it answers");
        u32::try_from(found.holders.len()).expect("three jobs")
    }

    /// What must hold in every state.
    fn judge(&self) -> Result<(), String> {
        let findings = now(self.store.check()).map_err(|error| error.to_string())?;
        if let Some(finding) = findings.first() {
            return Err(finding.what.clone());
        }
        for limit in ["l", "m"] {
            let found = now(self.store.limit_key(name(limit), String::new())).expect("it answers");
            let running = (0..JOBS).filter(|at| {
                self.job(*at).0 == State::Running && uses(*at).iter().any(|one| one.limit == name(limit))
            });
            let kept = found.holders.iter().filter(|holder| holder.keeps).count();
            if found.key.in_use as usize != running.count() + kept {
                return Err(format!(
                    "limit `{limit}`: {} in use, held by {:?}",
                    found.key.in_use, found.holders
                ));
            }
        }
        self.ends()
    }

    /// If everybody does what he should, all jobs end.
    fn ends(&self) -> Result<(), String> {
        let mut current = self.fork(self.ticks + 3);
        let failed = |error: mainspring_core::Error| error.to_string();
        let maximum = |store: &Memory| {
            now(store.limits()).map(|limits| limits.first().and_then(|limit| limit.definition.max))
        };
        // Only if nobody is let in otherwise: a change passes on what somebody may have forgotten.
        if maximum(&current.store).map_err(failed)? == Some(0) {
            now(current.store.set_limit(name("l"), max(1), "ann".into())).map_err(failed)?;
        }
        let node = current.join().map_err(failed)?;
        let rescue = Rescue { by: node, steady: LEASE * 2, seen: current.time() };
        now(current.store.rescue(rescue)).map_err(failed)?;
        for at in 0..JOBS {
            current.wake(at).map_err(failed)?;
        }
        for batch in 1..=8 {
            for (_, claim) in current.claim(node, batch)? {
                let finish = Finish { claim, outcome: Outcome::Succeed { result: None } };
                now(current.store.finish(node, vec![finish])).map_err(failed)?;
            }
        }
        match (0..JOBS)
            .find(|at| !current.job(*at).0.is_terminal() && current.job(*at).1 != Some(Reason::Quarantine))
        {
            None => Ok(()),
            Some(at) => Err(format!("job {at} never ends: {:?}", current.job(at))),
        }
    }
}

fn outcome(end: End) -> Outcome {
    match end {
        End::Succeed => Outcome::Succeed { result: None },
        End::Release => Outcome::Release,
        End::Keep => Outcome::Suspend(Box::new(Suspension {
            reason: Reason::Signal,
            waits: vec![Wait { subject: Subject::Signal(go()), need: 1 }],
            until: None,
            keep: true,
            writes: Writes::default(),
            note: None,
        })),
    }
}
