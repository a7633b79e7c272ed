//! Everything that can happen when a signal, a cancellation and a suspension meet: one workflow, one signal, two nodes.
//!
//! The workflow records something, waits for the signal, records that it has read it, and ends; some time or other somebody
//! may cancel it. Its nodes crash, join anew, sleep past their lease and go on as if nothing had been; the answers of all
//! their calls may be lost, and the calls are made again then. Every state that can be reached is visited once, as a fork of the real memory store. In each of them
//! the store must be in order, every write under an earlier claim is tried and must be refused, and from each of them the
//! workflow must come to its end as soon as everybody does what he should.
//!
//! # What is left out
//! - Claims whose answer is lost, and renewals; those are [`run`](super::run)'s.
//! - More than one lease, more than one crash, and cancellations beside either.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use mainspring_core::Result;
use mainspring_core::id::{Claim, ClaimBatchNo, JobId, NodeId, NodeNo};
use mainspring_core::job::{New, Options, Outcome, Priority, Reason, State, Verb};
use mainspring_core::journal::{
    Entry, EntryKind, Recorded, Recording, Signal, Signalled, Subject, Suspension, Wait, Writes,
};
use mainspring_core::memory::Memory;
use mainspring_core::name::{Key, SignalName};
use mainspring_core::seam::{Clock, Pending};
use mainspring_core::store::{
    Abilities, ClaimRequest, Claimed, Finish, Finished, Journals, Nodes, Operators, Producers, Registration,
    Rescue,
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
    /// Times that the signal may be sent.
    sent: u32,
    /// Whether somebody may cancel it.
    cancels: bool,
}

/// Nodes that die and sleep.
const SIGNALS: Scope = Scope { ticks: 2, crashes: 1, sent: 1, cancels: false };
/// Nodes that live, and a cancellation.
const CANCELS: Scope = Scope { ticks: 0, crashes: 0, sent: 1, cancels: true };

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

/// What a handler knows.
#[derive(Debug, Clone)]
struct HandlerMemory {
    node: NodeNo,
    claim: Claim,
    /// Whether its step is recorded.
    done: bool,
    /// The signal that it was given.
    message: Option<i64>,
    /// Whether that is recorded.
    read: bool,
}

/// One state of store and nodes together.
struct StoreAndNodes {
    scope: Scope,
    store: Memory,
    ticks: u32,
    crashes: u32,
    sent: u32,
    cancelled: bool,
    registered: u8,
    nodes: [Option<NodeNo>; 2],
    /// The next claim of each node.
    batches: [u64; 2],
    handlers: [Option<HandlerMemory>; 2],
    trace: Vec<String>,
}

/// What can happen next.
#[derive(Debug, Clone, Copy)]
enum Move {
    Tick,
    Send,
    Cancel,
    Join(usize),
    Rescue(usize),
    Claim(usize),
    Crash(usize),
    /// The handler of a node makes its next call; the answer may be lost.
    Go(usize, bool),
}

fn job() -> JobId {
    JobId::from_bytes([1; 16])
}

fn key(name: &str) -> Key {
    Key::new(name).expect("a key")
}

fn subject() -> Subject {
    Subject::Signal(SignalName::new("go").expect("a name"))
}

fn entry(name: &str) -> Entry {
    Entry { key: key(name), kind: EntryKind::Value, overlapped: false, value: b"1".to_vec(), took: None }
}

fn suspend() -> Outcome {
    Outcome::Suspend(Box::new(Suspension {
        reason: Reason::Signal,
        waits: vec![Wait { subject: subject(), need: 1 }],
        until: None,
        keep: false,
        writes: Writes::default(),
        note: None,
    }))
}

/// Explores everything.
pub fn run_suspension() -> Report {
    let mut report = explore(CANCELS);
    if report.violations.is_empty() {
        let more = explore(SIGNALS);
        report.states += more.states;
        report.store_states += more.store_states;
        report.transitions += more.transitions;
        report.depth = report.depth.max(more.depth);
        report.violations = more.violations;
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
            let (before, now) = (current.keys(), after.keys());
            if !before.is_subset(&now) {
                report.violations.push(after.violation(format!("{before:?} became {now:?}")));
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
        let new = New {
            id: job(),
            kind: kind("k"),
            queue: queue("one"),
            priority: Priority::default(),
            input: Vec::new(),
            run: None,
            deadline: None,
            options: Options::default(),
            journal: Vec::new(),
        };
        now(store.enqueue(vec![new])).expect("a job is stored");
        StoreAndNodes {
            scope,
            store,
            ticks: 0,
            crashes: 0,
            sent: 0,
            cancelled: false,
            registered: 0,
            nodes: [None; 2],
            batches: [1; 2],
            handlers: [None, None],
            trace: Vec::new(),
        }
    }

    fn fork(&self, ticks: u32) -> Self {
        let clock = Arc::new(FixedClock(START.after(LEASE / 2 * ticks)));
        StoreAndNodes {
            store: self.store.fork(clock),
            ticks,
            handlers: self.handlers.clone(),
            trace: self.trace.clone(),
            ..*self
        }
    }

    fn violation(&self, what: String) -> Violation {
        Violation { rule: "signals and suspensions meet".into(), what, trace: self.trace.clone() }
    }

    /// All that matters of it, as text: not when its job was claimed or what it holds was written.
    fn sight(&self) -> String {
        let record = now(self.store.get(job())).expect("it answers").expect("it is there");
        let trace = now(self.store.timeline(job())).expect("it answers").unwrap_or_default();
        let nodes = now(self.store.nodes()).expect("it answers");
        let job = &record.summary;
        let job = (job.status, job.claim, job.failures, job.crashes, job.node, job.cancelling, &record.waits);
        let entries: Vec<_> = trace.entries.iter().map(|entry| (&entry.key, entry.claim)).collect();
        let unread: Vec<_> = trace.inbox.messages.iter().map(|message| message.no).collect();
        let told = (self.ticks, self.crashes, self.sent, self.cancelled, self.nodes, self.batches);
        format!("{told:?} {:?} {job:?} {entries:?} {unread:?} {nodes:?}", self.handlers)
    }

    /// All that there is of its job.
    fn whole(&self) -> String {
        let record = now(self.store.get(job())).expect("it answers");
        let trace = now(self.store.timeline(job())).expect("it answers");
        format!("{record:?} {trace:?}")
    }

    fn keys(&self) -> BTreeSet<Key> {
        let trace = now(self.store.timeline(job())).expect("it answers").unwrap_or_default();
        trace.entries.into_iter().map(|entry| entry.key).collect()
    }

    fn state(&self) -> (State, Option<Reason>, u32) {
        let summary = now(self.store.get(job())).expect("it answers").expect("it is there").summary;
        (summary.status.state, summary.status.reason, summary.claim)
    }

    fn unread(&self) -> usize {
        let trace = now(self.store.timeline(job())).expect("it answers").unwrap_or_default();
        trace.inbox.messages.len()
    }

    fn moves(&self) -> Vec<Move> {
        let mut moves = Vec::new();
        if self.ticks < self.scope.ticks {
            moves.push(Move::Tick);
        }
        if self.sent < self.scope.sent {
            moves.push(Move::Send);
        }
        if self.scope.cancels && !self.cancelled {
            moves.push(Move::Cancel);
        }
        for seat in 0..2 {
            if self.nodes[seat].is_none() {
                // Which of two that have never been there comes first is the same.
                if seat == 0 || self.registered > 0 {
                    moves.push(Move::Join(seat));
                }
                continue;
            }
            moves.push(Move::Rescue(seat));
            if self.crashes < self.scope.crashes {
                moves.push(Move::Crash(seat));
            }
            match self.handlers[seat] {
                None => moves.push(Move::Claim(seat)),
                Some(_) => moves.extend([Move::Go(seat, false), Move::Go(seat, true)]),
            }
        }
        moves
    }

    fn apply(&mut self, step: Move) -> Result<(), String> {
        let told = |error: mainspring_core::Error| format!("{step:?}: {error}");
        match step {
            Move::Tick => *self = self.fork(self.ticks + 1),
            Move::Send => {
                self.sent += 1;
                let answer = self.send().map_err(told)?;
                if !matches!(answer, Signalled::Stored | Signalled::Ended(_)) {
                    return Err(format!("a signal is answered {answer:?}"));
                }
            }
            Move::Cancel => {
                let cancel = Verb::Cancel { why: "enough".into() };
                now(self.store.change(vec![job()], cancel, false)).map_err(told)?;
                self.cancelled = true;
            }
            Move::Join(seat) => {
                self.nodes[seat] = Some(self.join().map_err(told)?);
                self.batches[seat] = 1;
            }
            Move::Rescue(seat) => {
                let Some(by) = self.nodes[seat] else { return Ok(()) };
                let rescue = Rescue { by, steady: LEASE, seen: self.time() };
                // One that is gone itself is refused.
                drop(now(self.store.rescue(rescue)));
            }
            Move::Claim(seat) => {
                let Some(node) = self.nodes[seat] else { return Ok(()) };
                let claimed = self.claim(node, ClaimBatchNo(self.batches[seat])).unwrap_or_default();
                // One that finds nothing is asked for again: else there would be no end of states.
                if let Some(claimed) = claimed.first() {
                    self.batches[seat] += 1;
                    self.handlers[seat] = Some(handler(node, claimed));
                }
            }
            Move::Crash(seat) => {
                self.crashes += 1;
                (self.nodes[seat], self.handlers[seat]) = (None, None);
            }
            Move::Go(seat, lost) => {
                let Some(handler) = self.handlers[seat].clone() else { return Ok(()) };
                let goes_on = self.go(handler).map_err(told)?;
                if !lost {
                    self.handlers[seat] = goes_on;
                }
            }
        }
        Ok(())
    }

    fn time(&self) -> Timestamp {
        START.after(LEASE / 2 * self.ticks)
    }

    fn send(&self) -> Result<Signalled> {
        let name = SignalName::new("go").expect("a name");
        let signal = Signal { job: job(), name, sender: "somebody".into(), body: b"1".to_vec() };
        now(self.store.signal(vec![signal])).map(|answers| answers[0])
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

    fn claim(&self, node: NodeNo, batch: ClaimBatchNo) -> Result<Vec<Claimed>> {
        let request =
            ClaimRequest { ahead: Vec::new(), node, batch, queues: vec![(queue("one"), 1)], suspects: 1 };
        now(self.store.claim(request)).map(|batch| batch.jobs)
    }

    /// The next call of a handler; what it knows then, or nothing if it is over.
    fn go(&self, mut handler: HandlerMemory) -> Result<Option<HandlerMemory>> {
        let record = |writes| {
            let recording = Recording { claim: handler.claim, writes, children: Vec::new() };
            now(self.store.record(handler.node, vec![recording])).map(|answers| answers[0])
        };
        if !handler.done {
            let writes = Writes { entries: vec![entry("a")], ..Writes::default() };
            handler.done = record(writes)? == Recorded::Stored;
            return Ok(handler.done.then_some(handler));
        }
        if handler.read {
            self.finish(&handler, Outcome::Succeed { result: None })?;
            return Ok(None);
        }
        let Some(message) = handler.message else {
            self.finish(&handler, suspend())?;
            return Ok(None);
        };
        let writes = Writes { entries: vec![entry("s")], read: vec![message], ..Writes::default() };
        handler.read = record(writes)? == Recorded::Stored;
        Ok(handler.read.then_some(handler))
    }

    fn finish(&self, handler: &HandlerMemory, outcome: Outcome) -> Result<Finished> {
        let finish = Finish { claim: handler.claim, outcome };
        now(self.store.finish(handler.node, vec![finish])).map(|answers| answers[0])
    }

    /// What must hold in every state.
    fn judge(&self) -> Result<(), String> {
        let findings = now(self.store.check()).map_err(|error| error.to_string())?;
        if let Some(finding) = findings.first() {
            return Err(finding.what.clone());
        }
        let (state, reason, claim) = self.state();
        if state == State::Suspended && reason == Some(Reason::Signal) && self.unread() > 0 {
            return Err("it sleeps, and its signal is there".into());
        }
        if self.cancelled && !(state == State::Running || state.is_terminal()) {
            return Err(format!("it was cancelled, and waits: {state:?} {reason:?}"));
        }
        let sent = self.sent > 0 && !state.is_terminal();
        let read = self.keys().contains(&key("s"));
        if sent && (self.unread() == 1) == read {
            return Err(format!("the signal is unread {} times, and read: {read}", self.unread()));
        }
        self.stale(claim)?;
        self.ends()
    }

    /// No write under an earlier claim is accepted, whoever sends it, and no signal twice; and none of that changes anything.
    fn stale(&self, current: u32) -> Result<(), String> {
        let Some(row) = self.row() else { return Ok(()) };
        let fork = self.fork(self.ticks);
        let told = |error: mainspring_core::Error| error.to_string();
        if self.sent > 0 {
            let answer = fork.send().map_err(told)?;
            if !matches!(answer, Signalled::Repeated | Signalled::Ended(_)) {
                return Err(format!("a signal that was sent before is answered {answer:?}"));
            }
        }
        for node in (1..=self.registered).map(|number| NodeNo(number.into())) {
            for number in 1..current {
                let claim = Claim { id: job(), row, number };
                let writes = Writes { entries: vec![entry("stale")], ..Writes::default() };
                let recording = Recording { claim, writes, children: Vec::new() };
                let recorded = now(fork.store.record(node, vec![recording])).map_err(told)?;
                let handler = HandlerMemory { node, claim, done: true, message: None, read: false };
                let finished = fork.finish(&handler, suspend()).map_err(told)?;
                if recorded != [Recorded::LeaseLost] || finished != Finished::LeaseLost {
                    return Err(format!("claim {number} is over, and node {node} could write under it"));
                }
            }
        }
        if fork.whole() == self.whole() {
            Ok(())
        } else {
            Err("what was refused has changed something".into())
        }
    }

    fn row(&self) -> Option<mainspring_core::id::Row> {
        let handler = self.handlers.iter().flatten().next();
        handler.map(|handler| handler.claim.row).or(Some(mainspring_core::id::Row(1)))
    }

    /// If everybody does what he should, it ends.
    fn ends(&self) -> Result<(), String> {
        let mut current = self.fork(self.ticks + 3);
        let failed = |error: mainspring_core::Error| error.to_string();
        current.send().map_err(failed)?;
        let node = current.join().map_err(failed)?;
        let rescue = Rescue { by: node, steady: LEASE * 2, seen: current.time() };
        now(current.store.rescue(rescue)).map_err(failed)?;
        if current.state().1 == Some(Reason::Quarantine) {
            return Ok(());
        }
        for batch in 1..6 {
            if current.state().0.is_terminal() {
                break;
            }
            let claimed = current.claim(node, ClaimBatchNo(batch)).map_err(failed)?;
            let mut going = claimed.first().map(|claimed| handler(node, claimed));
            while let Some(handler) = going {
                going = current.go(handler).map_err(failed)?;
            }
        }
        match current.state() {
            (State::Succeeded, ..) => Ok(()),
            (State::Cancelled, ..) if self.cancelled => Ok(()),
            other => Err(format!("it never ends: {other:?}")),
        }
    }
}

/// What a handler knows that begins with a claim.
fn handler(node: NodeNo, claimed: &Claimed) -> HandlerMemory {
    let journal = claimed.journal.as_deref().cloned().unwrap_or_default();
    let has = |name: &str| journal.entries.iter().any(|entry| entry.key == key(name));
    let message = journal.inbox.messages.first().map(|message| message.no);
    HandlerMemory { node, claim: claimed.claim, done: has("a"), message, read: has("s") }
}
