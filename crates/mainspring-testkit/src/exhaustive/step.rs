//! What can happen next: every step that a node, an operator, time or a fault can take.
//!
//! # Invariants
//! - A node acts on what it knows alone; where a step looks at the store, it is to leave out what would change nothing.
//! - Steps that are not [`Step::is_fair`] are what nobody may rely on: faults, and what people do.

use mainspring_core::job::State as JobState;

use super::call::{Answer, Call, End};
use super::rules::BrokenRule;
use super::state::{Node, PendingFinish, State};
use super::store_graph::StoreGraph;
use super::view::{LEASE_TICKS, PAIR, SEATS, StoreView, Swap};

/// How far the search goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scope {
    /// Claims of one job, at most. A job that was claimed so often is not claimed again.
    pub(super) claims: u8,
    /// How handlers end.
    pub(super) ends: &'static [End],
    /// Whether stores that count as one are compared: many times the work.
    pub(super) doubts: bool,
}

/// Whether a call is carried out, and whether its caller hears of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delivery {
    Answered,
    AnswerLost,
    NeverArrives,
}

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Register(usize),
    Crash(usize),
    Retire(usize),
    Renew(usize),
    Claim {
        node: usize,
        set: u8,
        fate: Delivery,
    },
    Repeat {
        node: usize,
        fate: Delivery,
    },
    Disown {
        node: usize,
        fate: Delivery,
    },
    Finish {
        node: usize,
        job: usize,
        end: End,
    },
    Send {
        node: usize,
        job: usize,
        end: End,
    },
    Arrive {
        flight: usize,
        fate: Delivery,
    },
    Rescue(usize),
    Promote,
    Cancel(usize),
    /// Half a lease goes by.
    Tick {
        /// Whether somebody who is up and holds claims has not renewed its lease since the last one.
        overdue: bool,
    },
}

impl Step {
    /// Whether it can be relied upon when faults have stopped: what nodes do by themselves, time, and answers that come.
    pub(super) fn is_fair(self) -> bool {
        match self {
            Step::Register(_) | Step::Renew(_) | Step::Rescue(_) | Step::Promote => true,
            Step::Claim { fate, .. }
            | Step::Repeat { fate, .. }
            | Step::Disown { fate, .. }
            | Step::Arrive { fate, .. } => fate == Delivery::Answered,
            Step::Finish { end, .. } => end != End::Release,
            Step::Tick { overdue } => !overdue,
            Step::Crash(_) | Step::Retire(_) | Step::Send { .. } | Step::Cancel(_) => false,
        }
    }
}

/// What takes the states that a state leads to: the step, the packed state, and the swap of names on the way.
pub(super) type Visit<'a> = &'a mut dyn FnMut(Step, u64, Swap);

/// Finds everything that can happen next.
pub(super) fn next(
    scope: Scope,
    world: &mut StoreGraph<'_>,
    state: State,
    visit: Visit<'_>,
) -> Result<(), BrokenRule> {
    let sight = *world.sight(state.store);
    Steps { scope, world, state, sight, visit, trying: None }.all()
}

/// The step that breaks a rule, if one does.
pub(super) fn broken(scope: Scope, world: &mut StoreGraph<'_>, state: State) -> Option<Step> {
    let sight = *world.sight(state.store);
    let mut steps = Steps { scope, world, state, sight, visit: &mut |_, _, _| {}, trying: None };
    steps.all().err().and(steps.trying)
}

struct Steps<'a, 'w> {
    scope: Scope,
    world: &'a mut StoreGraph<'w>,
    state: State,
    sight: StoreView,
    visit: Visit<'a>,
    /// The step under way, for the story of what it breaks.
    trying: Option<Step>,
}

impl Steps<'_, '_> {
    fn all(&mut self) -> Result<(), BrokenRule> {
        for node in 0..PAIR {
            if self.state.nodes[node].up { self.node(node)? } else { self.register(node)? }
        }
        self.flights()?;
        self.others()
    }

    /// Makes a call, and goes on with what the caller then knows.
    fn call(
        &mut self,
        step: Step,
        call: Call,
        learn: impl FnOnce(&mut State, Answer),
    ) -> Result<(), BrokenRule> {
        self.trying = Some(step);
        let edge = self.world.call(self.state.store, call)?;
        let mut state = State { store: edge.to, ..self.state };
        learn(&mut state, edge.answer);
        let (key, swap) = state.canonical(edge.swaps, self.world.sight(edge.to));
        (self.visit)(step, key, swap);
        Ok(())
    }

    fn register(&mut self, node: usize) -> Result<(), BrokenRule> {
        self.call(Step::Register(node), Call::Register { seat: node }, |state, _| {
            state.nodes[node] = Node { up: true, ..Node::default() };
        })
    }

    fn node(&mut self, node: usize) -> Result<(), BrokenRule> {
        let gone = |state: &mut State, _| state.nodes[node] = Node::default();
        self.call(Step::Crash(node), Call::Vacate { seat: node }, gone)?;
        self.call(Step::Retire(node), Call::Retire { seat: node }, gone)?;
        self.call(Step::Renew(node), Call::Renew { seat: node }, told(node, |_, _| {}))?;
        match self.state.nodes[node].asked {
            0 => self.claim(node)?,
            set => self.settle(node, set)?,
        }
        self.finish(node)?;
        self.rescue(node)
    }

    /// A new claim, of any of the jobs that are ready.
    fn claim(&mut self, node: usize) -> Result<(), BrokenRule> {
        let open = |job: usize| {
            self.sight.jobs[job].is(JobState::Ready) && self.sight.jobs[job].claim < self.scope.claims
        };
        let ready = (0..PAIR).filter(|job| open(*job)).fold(0, |bits, job| bits | 1_u8 << job);
        let remembers = self.world.wire.settles_lost_claims();
        for set in (1..=3).filter(|set| set & !ready == 0) {
            let heard = Call::Claim { seat: node, set, settled: true };
            let unheard = Call::Claim { seat: node, set, settled: !remembers };
            let ask = |fate| Step::Claim { node, set, fate };
            let asked = if remembers { set } else { 0 };
            self.call(ask(Delivery::Answered), heard, told(node, take(node)))?;
            self.call(ask(Delivery::AnswerLost), unheard, |state, _| state.nodes[node].asked = asked)?;
            let mut state = self.state;
            state.nodes[node].asked = asked;
            self.stay(ask(Delivery::NeverArrives), state);
        }
        Ok(())
    }

    /// A claim that was not answered is repeated under its number, or what it may have brought is disowned.
    fn settle(&mut self, node: usize, set: u8) -> Result<(), BrokenRule> {
        let holds = self.sight.jobs.iter().any(|job| job.holder == Some(node) && job.unsettled);
        let bound = |job: &usize| {
            let it = &self.sight.jobs[*job];
            set & 1 << job != 0 && it.is(JobState::Ready) && it.claim >= self.scope.claims
        };
        if holds || !(0..PAIR).any(|job| bound(&job)) {
            let again = |settled| Call::Claim { seat: node, set, settled };
            let repeat = |fate| Step::Repeat { node, fate };
            self.call(repeat(Delivery::Answered), again(true), told(node, take(node)))?;
            self.call(repeat(Delivery::AnswerLost), again(false), |_, _| {})?;
        }
        let mut keep = self.state.nodes[node].held;
        for flight in self.state.flights.iter().flatten() {
            keep[flight.job] = keep[flight.job].max(flight.claim);
        }
        let disown = Call::Disown { seat: node, keep };
        let step = |fate| Step::Disown { node, fate };
        self.call(step(Delivery::Answered), disown, |state, _| state.nodes[node].asked = 0)?;
        self.call(step(Delivery::AnswerLost), disown, |_, _| {})
    }

    /// The handler of a job that the node believes to hold ends in any way.
    fn finish(&mut self, node: usize) -> Result<(), BrokenRule> {
        for job in 0..PAIR {
            let claim = self.state.nodes[node].held[job];
            if claim == 0 {
                continue;
            }
            for &end in self.scope.ends {
                // Nodes stop a handler when a renewal tells them to.
                let it = &self.sight.jobs[job];
                if end == End::Cancel && !(it.held_by(node, claim) && it.cancelling) {
                    continue;
                }
                let finish = Call::Finish { seat: node, job, claim, end };
                let mut sent = self.state;
                sent.nodes[node].held[job] = 0;
                let forget = move |state: &mut State, _| state.nodes[node].held[job] = 0;
                self.call(Step::Finish { node, job, end }, finish, forget)?;
                if let Some(free) = sent.flights.iter_mut().find(|flight| flight.is_none()) {
                    *free = Some(PendingFinish { job, claim, end });
                    self.stay(Step::Send { node, job, end }, sent);
                }
            }
        }
        Ok(())
    }

    /// Somebody else's claims are taken, if their lease has lapsed. Whether the rescuer has watched for long enough is its own affair: here it
    /// always has, which allows more than can happen, and every state is probed with rescuers that have not.
    fn rescue(&mut self, node: usize) -> Result<(), BrokenRule> {
        if (0..SEATS).any(|seat| seat != node && self.sight.seats[seat].claims > 0) {
            let rescue = Call::Rescue { seat: node, steady: true };
            self.call(Step::Rescue(node), rescue, |_, _| {})?;
        }
        Ok(())
    }

    /// Finishes that are under way arrive.
    fn flights(&mut self) -> Result<(), BrokenRule> {
        for (number, flight) in self.state.flights.into_iter().enumerate() {
            let Some(PendingFinish { job, claim, end }) = flight else { continue };
            // Sent by whoever held that claim, alive or not: if nobody held it any more, it would not be here.
            let seat = self.sight.jobs[job].holder.unwrap_or(SEATS);
            let finish = Call::Finish { seat, job, claim, end };
            let step = |fate| Step::Arrive { flight: number, fate };
            self.call(step(Delivery::Answered), finish, |state, _| state.flights[number] = None)?;
            self.call(step(Delivery::AnswerLost), finish, |_, _| {})?;
        }
        Ok(())
    }

    /// Operators, sweeps and time.
    fn others(&mut self) -> Result<(), BrokenRule> {
        for job in 0..PAIR {
            if !self.sight.jobs[job].has_ended() {
                self.call(Step::Cancel(job), Call::Cancel { job }, |_, _| {})?;
            }
        }
        if self.sight.jobs.iter().any(|job| job.is(JobState::Scheduled)) {
            self.call(Step::Promote, Call::Promote, |_, _| {})?;
        }
        let overdue = (0..PAIR).any(|node| {
            let seat = &self.sight.seats[node];
            self.state.nodes[node].up && seat.claims > 0 && seat.left < LEASE_TICKS
        });
        self.call(Step::Tick { overdue }, Call::Tick, |_, _| {})
    }

    /// Something changed that the store knows nothing of.
    fn stay(&mut self, step: Step, state: State) {
        let (_, swaps) = self.sight.canonical();
        let (key, swap) = state.canonical(swaps, &self.sight);
        (self.visit)(step, key, swap);
    }
}

/// A node that is told of its loss starts over: it is as good as down. Otherwise it learns from the answer.
fn told(node: usize, learn: impl FnOnce(&mut State, Answer)) -> impl FnOnce(&mut State, Answer) {
    move |state, answer| {
        if answer.lost {
            state.nodes[node] = Node::default();
        } else {
            learn(state, answer);
        }
    }
}

/// A node takes in what it claimed.
fn take(node: usize) -> impl FnOnce(&mut State, Answer) {
    move |state, answer| {
        let it = &mut state.nodes[node];
        it.asked = 0;
        for (held, claim) in it.held.iter_mut().zip(answer.claims) {
            *held = if claim > 0 { claim } else { *held };
        }
    }
}
