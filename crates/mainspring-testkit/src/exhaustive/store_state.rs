//! One state of the store: a fork of the memory store, and what its nodes and jobs are called.
//!
//! [`StoreState::apply`] turns a [`Call`] into a call of the [`Store`] trait and looks at the store again. Time stands still in
//! a state; a tick leads to one with a later clock.
//!
//! # Invariants
//! - What is known of the store was read through its public calls, except under which batch a claim was made: nobody
//!   tells that, so it is noted here when the claim is answered.

use std::sync::Arc;
use std::time::Duration;

use mainspring_core::id::{Claim, ClaimBatchNo, JobId, NodeId, NodeNo, Row};
use mainspring_core::job::{FaultKind, New, Options, Priority, Record, State, Status};
use mainspring_core::memory::Memory;
use mainspring_core::seam::{Clock, Pending};
use mainspring_core::store::{
    Abilities, Changed, ClaimRequest, Finish, Finished, NodeState, Nodes, Operators, Producers, Registration,
    Renewal, Rescue,
};
use mainspring_core::time::{Timestamp, micros};
use mainspring_core::{Error, Result};

use crate::clock::START;
use crate::harness::{LEASE, kind, queue};

use super::call::{Answer, Call, CallPath, now};
use super::rules::BrokenRule;
use super::view::{Job, LEASE_TICKS, PAIR, SEATS, Seat, StoreView, Swap, job_after, node_after};

/// One queue per job, so that a claim names the jobs it wants and the search tries every choice.
const QUEUES: [&str; PAIR] = ["one", "two"];
/// The number of a node that nobody ever registered.
const NOBODY: NodeNo = NodeNo(i64::MAX);

/// Time that stands still.
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

/// One state of the store.
pub(super) struct StoreState {
    store: Memory,
    clock: Arc<dyn Clock>,
    jobs: [(JobId, Row, usize); PAIR],
    /// Who sits where.
    nodes: [NodeNo; SEATS],
    /// How many nodes were ever registered.
    registered: u8,
    /// The number of each node's next claim, or of the one that it repeats.
    batches: [u64; PAIR],
    /// The batch under which each job was last claimed.
    claimed: [u64; PAIR],
    pub(super) sight: StoreView,
    /// How often the search came back to it.
    pub(super) meetings: u32,
}

impl StoreState {
    /// Two jobs that are ready, and no node.
    pub(super) fn first() -> Result<Self, BrokenRule> {
        let clock: Arc<dyn Clock> = Arc::new(FixedClock(START));
        let store = Memory::new(Arc::clone(&clock));
        let names = [1_u8, 2];
        let new = |name: u8| New {
            id: JobId::from_bytes([name; 16]),
            kind: kind("k"),
            queue: queue(QUEUES[usize::from(name) - 1]),
            priority: Priority::default(),
            input: Vec::new(),
            run: None,
            deadline: None,
            options: Options::default(),
            journal: Vec::new(),
        };
        answered(now(store.enqueue(names.map(new).to_vec())))?;
        let job = Job {
            status: Status::plain(State::Ready),
            claim: 0,
            failures: 0,
            crashes: 0,
            holder: None,
            unsettled: false,
            cancelling: false,
            errors: 0,
        };
        let mut store_state = StoreState {
            store,
            clock,
            // The memory store counts rows from one; a claim that tells another is found out below.
            jobs: names
                .map(|name| (JobId::from_bytes([name; 16]), Row(i64::from(name)), usize::from(name) - 1)),
            nodes: [NOBODY; SEATS],
            registered: 0,
            batches: [1; PAIR],
            claimed: [0; PAIR],
            sight: StoreView { jobs: [job; PAIR], seats: [Seat::default(); SEATS] },
            meetings: 0,
        };
        store_state.look()?;
        Ok(store_state)
    }

    /// A copy that can be called.
    pub(super) fn fork(&self) -> Self {
        self.fork_at(Arc::clone(&self.clock))
    }

    fn fork_at(&self, clock: Arc<dyn Clock>) -> Self {
        StoreState { store: self.store.fork(Arc::clone(&clock)), clock, meetings: 0, ..*self }
    }

    /// The number of whoever sits there; a seat that does not exist is nobody's.
    pub(super) fn node(&self, seat: usize) -> NodeNo {
        self.nodes.get(seat).copied().unwrap_or(NOBODY)
    }

    /// Whether somebody sits there, alive or not.
    pub(super) fn is_taken(&self, seat: usize) -> bool {
        self.nodes[seat] != NOBODY
    }

    /// The claim of a job with this number.
    pub(super) fn claim(&self, job: usize, number: u8) -> Claim {
        let (id, row, _) = self.jobs[job];
        Claim { id, row, number: number.into() }
    }

    pub(super) fn store(&self) -> &Memory {
        &self.store
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Makes a call and looks at what it did.
    pub(super) fn apply(&mut self, call: Call, wire: &dyn CallPath) -> Result<Answer, BrokenRule> {
        let answer = self.make(call, wire)?;
        self.look()?;
        Ok(answer)
    }

    /// Makes a call once more, as a node does whose answer was lost.
    pub(super) fn repeat(&mut self, call: Call, wire: &dyn CallPath) -> Result<Answer, BrokenRule> {
        match call {
            Call::Register { .. } => {
                self.registered -= 1;
                self.apply(call, wire)
            }
            // Not calls.
            Call::Tick | Call::Vacate { .. } => Ok(Answer::default()),
            _ => self.apply(call, wire),
        }
    }

    fn make(&mut self, call: Call, wire: &dyn CallPath) -> Result<Answer, BrokenRule> {
        let mut answer = Answer::default();
        match call {
            Call::Register { seat } => {
                self.registered += 1;
                let member = answered(now(self.store.register(registration(self.registered))))?;
                (self.nodes[seat], self.batches[seat]) = (member.no, 1);
            }
            Call::Renew { seat } => {
                let renewal = Renewal::new(self.nodes[seat]);
                if let Some(renewed) = unless_lost(now(self.store.renew(renewal)), &mut answer)? {
                    for (claim, _) in renewed.cancel {
                        answer.claims[self.job(claim.id)?] = number(claim.number);
                    }
                }
            }
            Call::Retire { seat } => {
                answered(now(self.store.retire(self.nodes[seat])))?;
            }
            Call::Vacate { seat } => self.vacate(seat),
            Call::Claim { seat, set, .. } => {
                let wanted = (0..PAIR).filter(|job| set & 1 << job != 0);
                let request = ClaimRequest {
                    ahead: Vec::new(),
                    node: self.nodes[seat],
                    batch: ClaimBatchNo(self.batches[seat]),
                    queues: wanted.map(|job| (queue(QUEUES[self.jobs[job].2]), 1)).collect(),
                    suspects: PAIR,
                };
                if let Some(batch) = unless_lost(wire.claim(&self.store, request), &mut answer)? {
                    for claimed in batch.jobs {
                        let job = self.job(claimed.claim.id)?;
                        if claimed.claim.row != self.jobs[job].1 {
                            return Err(BrokenRule::of("a job keeps its row", Some(job), "it has another"));
                        }
                        answer.claims[job] = number(claimed.claim.number);
                        self.claimed[job] = self.batches[seat];
                    }
                }
            }
            Call::Disown { seat, keep } => {
                let known = (0..PAIR).filter(|job| keep[*job] > 0);
                let keep = known.map(|job| self.claim(job, keep[job])).collect();
                let settled = ClaimBatchNo(self.batches[seat]);
                answered(now(self.store.disown(self.nodes[seat], settled, keep)))?;
            }
            Call::Finish { seat, job, claim, end } => {
                let finish = Finish { claim: self.claim(job, claim), outcome: end.outcome() };
                let answers = answered(wire.finish(&self.store, self.node(seat), vec![finish]))?;
                answer.lost = answers != [Finished::Applied];
            }
            Call::Rescue { seat, steady } => {
                // Half a lease of silence is the most that a steady rescuer may have had.
                let now = self.now();
                let (steady, seen) = if steady { (LEASE, now.before(LEASE / 2)) } else { (LEASE / 2, now) };
                let rescue = Rescue { by: self.nodes[seat], steady, seen };
                unless_lost(wire.rescue(&self.store, rescue), &mut answer)?;
            }
            Call::Promote => {
                answered(now(self.store.promote(PAIR)))?;
            }
            Call::Cancel { job } => {
                let answers = answered(wire.cancel(&self.store, self.jobs[job].0, "enough".into()))?;
                answer.lost = !matches!(answers[..], [Changed::Applied { .. }]);
            }
            Call::Tick => {
                let later = self.now().after(LEASE / u32::from(LEASE_TICKS));
                *self = self.fork_at(Arc::new(FixedClock(later)));
            }
        }
        Ok(answer)
    }

    /// A node is gone. If it holds claims, its membership takes one of the former seats.
    fn vacate(&mut self, seat: usize) {
        if self.sight.seats[seat].claims > 0 {
            let free = (PAIR..SEATS).find(|former| self.sight.seats[*former].claims == 0);
            // Two jobs have two holders at most.
            self.nodes[free.unwrap_or(PAIR)] = self.nodes[seat];
        }
        self.nodes[seat] = NOBODY;
    }

    /// The node knows what its last claim gave: its next one has a new number.
    pub(super) fn settle(&mut self, seat: usize) {
        self.batches[seat] += 1;
        for job in &mut self.sight.jobs {
            job.unsettled &= job.holder != Some(seat);
        }
    }

    /// Swaps names, so that the state is its own canonical form.
    pub(super) fn rename(&mut self, swap: Swap) {
        let former = self.sight.former(swap);
        let seats = [Some(node_after(swap, 0)), Some(node_after(swap, 1)), former[0], former[1]];
        self.nodes = seats.map(|seat| seat.map_or(NOBODY, |seat| self.nodes[seat]));
        self.sight.seats = seats.map(|seat| seat.map(|seat| self.sight.seats[seat]).unwrap_or_default());
        let jobs = [job_after(swap, 0), job_after(swap, 1)];
        self.jobs = jobs.map(|job| self.jobs[job]);
        self.claimed = jobs.map(|job| self.claimed[job]);
        self.batches = [self.batches[node_after(swap, 0)], self.batches[node_after(swap, 1)]];
        self.sight.jobs = jobs.map(|job| self.sight.jobs[job]);
        for job in &mut self.sight.jobs {
            job.holder =
                job.holder.map(|old| seats.iter().position(|new| *new == Some(old)).unwrap_or(SEATS));
        }
    }

    /// Everything that the store tells of a job.
    pub(super) fn record(&self, job: usize) -> Result<Record, BrokenRule> {
        let record = answered(now(self.store.get(self.jobs[job].0)))?;
        record
            .ok_or_else(|| BrokenRule::of("an acknowledged job never vanishes", Some(job), "it is not found"))
    }

    /// Reads what can be seen.
    fn look(&mut self) -> Result<(), BrokenRule> {
        let present = self.now();
        let mut seats = [Seat::default(); SEATS];
        for node in answered(now(self.store.nodes()))? {
            let Some(seat) = self.nodes.iter().position(|no| *no == node.no) else { continue };
            let left = micros(node.lease_until.since(present));
            let tick = micros(LEASE) / i64::from(LEASE_TICKS);
            seats[seat] = Seat {
                live: node.state == NodeState::Live,
                left: u8::try_from((left + tick - 1) / tick).unwrap_or(u8::MAX),
                claims: u8::try_from(node.claims).unwrap_or(u8::MAX),
            };
        }
        self.sight.seats = seats;
        for job in 0..PAIR {
            let record = self.record(job)?;
            let summary = record.summary;
            let failures = record.errors.iter().filter(|error| error.kind != FaultKind::Crashed);
            let holder = summary.node.filter(|_| summary.status.state == State::Running);
            let holder = holder.map(|node| self.nodes.iter().position(|no| *no == node));
            let holder = holder.map(|seat| seat.unwrap_or(SEATS));
            let batch = holder.and_then(|seat| self.batches.get(seat));
            self.sight.jobs[job] = Job {
                status: summary.status,
                claim: number(summary.claim),
                failures: summary.failures,
                crashes: u8::try_from(summary.crashes).unwrap_or(u8::MAX),
                holder,
                unsettled: batch == Some(&self.claimed[job]),
                cancelling: summary.cancelling,
                errors: failures.fold(0, |bits, error| bits | 1 << (error.claim - 1)),
            };
        }
        Ok(())
    }

    fn job(&self, id: JobId) -> Result<usize, BrokenRule> {
        let job = self.jobs.iter().position(|(known, ..)| *known == id);
        job.ok_or_else(|| {
            BrokenRule::of("only what was enqueued is claimed", None, format!("job {id} was not"))
        })
    }
}

fn registration(name: u8) -> Registration {
    Registration {
        id: NodeId::from_bytes([name; 16]),
        name: String::new(),
        version: String::new(),
        pid: 1,
        queues: QUEUES.map(|name| (queue(name), 1)).to_vec(),
        abilities: Abilities { kinds: vec![kind("k")], ..Abilities::default() },
        lease: LEASE,
    }
}

fn number(claim: u32) -> u8 {
    u8::try_from(claim).unwrap_or(u8::MAX)
}

/// The answer of a call that cannot fail here.
pub(super) fn answered<T>(answer: Result<T>) -> Result<T, BrokenRule> {
    answer.map_err(|error| BrokenRule::of("a call is answered", None, error.to_string()))
}

/// The answer of a call that is refused to who is gone.
fn unless_lost<T>(answer: Result<T>, told: &mut Answer) -> Result<Option<T>, BrokenRule> {
    match answer {
        Err(Error::LeaseLost) => {
            told.lost = true;
            Ok(None)
        }
        answer => answered(answer).map(Some),
    }
}
