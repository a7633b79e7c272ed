//! A history, sorted by what rules ask for.

use std::collections::BTreeMap;
use std::time::Duration;

use mainspring_core::id::{JobId, NodeNo};
use mainspring_core::job::{Status, Summary, Unique};
use mainspring_core::name::QueueName;
use mainspring_core::store::Abilities;
use mainspring_core::time::Timestamp;

use super::schedule::ScheduleFacts;
use super::workflow::WorkflowFacts;
use super::{CheckTerms, FinalState};
use crate::history::{Actor, EndKind, EnqueueAnswer, Event, Fact};

/// The place of an event in the history.
pub(super) type EventIndex = usize;

/// The queues of a node, with its slots for each.
type Slots<'a> = &'a [(QueueName, u32)];

/// Everything that is known.
pub(super) struct Evidence<'a> {
    pub(super) history: &'a [Event],
    pub(super) found: &'a FinalState,
    pub(super) terms: CheckTerms,
    /// What happened to each job, by id.
    pub(super) job_facts: BTreeMap<JobId, JobFacts<'a>>,
    /// Who each node was, and its lease.
    pub(super) nodes: BTreeMap<NodeNo, Membership>,
    /// What each node can do.
    pub(super) able: BTreeMap<NodeNo, (Slots<'a>, &'a Abilities)>,
    /// When which queue was paused, and when it went on.
    pub(super) pauses: Vec<(EventIndex, &'a QueueName, bool)>,
    pub(super) calm: Option<EventIndex>,
    pub(super) expiries: Vec<(EventIndex, NodeNo)>,
    pub(super) disowned: Vec<(EventIndex, NodeNo)>,
    pub(super) faults: Vec<Fault<'a>>,
    pub(super) schedules: ScheduleFacts<'a>,
}

/// What happened to one job.
#[derive(Default)]
pub(super) struct JobFacts<'a> {
    pub(super) asked: Option<EventIndex>,
    /// When its id was asked for once more; whether for the same job, and whether that was said to be stored.
    pub(super) reused: Vec<(EventIndex, bool, bool)>,
    pub(super) unique: Option<&'a Unique>,
    pub(super) delay: Duration,
    pub(super) deadline: Option<Duration>,
    /// When callers began to wait for its end, and what they were told.
    pub(super) awaited: Vec<EventIndex>,
    pub(super) answered: Vec<(EventIndex, Option<Status>)>,
    /// How long it was to wait after each claim that asked for another.
    pub(super) deferred: BTreeMap<u32, Duration>,
    /// What callers were told, the first time.
    pub(super) acknowledged: Option<(EventIndex, EnqueueAnswer)>,
    pub(super) refused: bool,
    pub(super) unknown: bool,
    pub(super) claims: Vec<Claimed>,
    /// When each claim was first offered to be ended.
    pub(super) finishing: BTreeMap<u32, EventIndex>,
    pub(super) finished: Vec<Finished>,
    pub(super) began: Vec<(EventIndex, u32)>,
    pub(super) ended: Vec<(EventIndex, u32)>,
    pub(super) stopped: BTreeMap<u32, EventIndex>,
    pub(super) orders: Vec<Order<'a>>,
    /// What makes it a workflow; nothing of it for most jobs.
    pub(super) flow: Option<Box<WorkflowFacts<'a>>>,
    pub(super) found: Option<&'a Summary>,
}

#[derive(Clone, Copy)]
pub(super) struct Claimed {
    pub(super) at: EventIndex,
    pub(super) node: NodeNo,
    pub(super) number: u32,
    pub(super) crashes: u16,
    pub(super) crashed: Duration,
    pub(super) ahead: bool,
    pub(super) now: Timestamp,
}

#[derive(Clone, Copy)]
pub(super) struct Finished {
    pub(super) at: EventIndex,
    pub(super) node: NodeNo,
    pub(super) claim: u32,
    pub(super) how: EndKind,
    pub(super) applied: bool,
}

/// A verb of an operator: anything may have happened between the order and the answer, and after the order if there is
/// no answer.
pub(super) struct Order<'a> {
    pub(super) verb: &'a str,
    pub(super) ordered: EventIndex,
    pub(super) obeyed: Option<(EventIndex, Status, Option<Status>)>,
}

pub(super) struct Membership {
    pub(super) actor: Actor,
    pub(super) joined: EventIndex,
    pub(super) lease: Duration,
    pub(super) left: Option<EventIndex>,
}

pub(super) struct Fault<'a> {
    pub(super) at: EventIndex,
    pub(super) kind: &'a str,
    pub(super) on: Option<Actor>,
    pub(super) until: Option<Timestamp>,
}

impl<'a> Evidence<'a> {
    pub(super) fn new(history: &'a [Event], found: &'a FinalState, terms: CheckTerms) -> Self {
        let mut evidence = Evidence {
            history,
            found,
            terms,
            job_facts: BTreeMap::new(),
            nodes: BTreeMap::new(),
            able: BTreeMap::new(),
            pauses: Vec::new(),
            calm: None,
            expiries: Vec::new(),
            disowned: Vec::new(),
            faults: Vec::new(),
            schedules: ScheduleFacts::default(),
        };
        for (at, event) in history.iter().enumerate() {
            match event.fact.job() {
                Some(id) => evidence.job_facts.entry(id).or_default().add(at, &event.fact),
                None => evidence.add(at, event),
            }
        }
        if terms.exact {
            // What was applied was seen: an order without an answer never got there.
            for facts in evidence.job_facts.values_mut() {
                facts.orders.retain(|order| order.obeyed.is_some());
            }
        }
        for facts in evidence.job_facts.values_mut() {
            facts.take_back();
        }
        for job in &found.jobs {
            evidence.job_facts.entry(job.id).or_default().found = Some(job);
        }
        evidence
    }

    fn add(&mut self, at: EventIndex, event: &'a Event) {
        match &event.fact {
            Fact::Joined { node, lease } => {
                let lease = Duration::from_micros(*lease);
                let membership = Membership { actor: event.by, joined: at, lease, left: None };
                // A repeat of a registration whose answer was lost.
                self.nodes.entry(*node).or_insert(membership);
            }
            Fact::Abilities { node, queues, abilities } => {
                self.able.insert(*node, (queues, abilities));
            }
            Fact::Paused { queue, paused } => self.pauses.push((at, queue, *paused)),
            Fact::Calm => self.calm = Some(at),
            Fact::Left { node } => {
                if let Some(membership) = self.nodes.get_mut(node) {
                    membership.left.get_or_insert(at);
                }
            }
            Fact::Disowned { node } => self.disowned.push((at, *node)),
            Fact::Expired { nodes } => self.expiries.extend(nodes.iter().map(|node| (at, *node))),
            Fact::Fault { kind, on, until } => {
                self.faults.push(Fault { at, kind, on: *on, until: *until });
            }
            // Of a store that was cut back, versions tell nothing.
            fact @ (Fact::AskedWhatIsDue { .. } | Fact::Scheduled(_) | Fact::LookedAtSchedule(_))
                if !self.terms.cut =>
            {
                self.schedules.add(at, event.by, fact);
            }
            // The rest is about jobs, or divides the history for people.
            _ => {}
        }
    }

    /// Whether the store's clock ever went back: then its times do not tell what came first.
    pub(super) fn went_back(&self) -> bool {
        self.faults.iter().any(|fault| fault.kind == "back")
    }

    /// When an event happened.
    pub(super) fn time(&self, at: EventIndex) -> Timestamp {
        self.history[at].at
    }

    /// The time of the last event.
    pub(super) fn over(&self) -> Timestamp {
        self.history.last().map_or(Timestamp::EPOCH, |event| event.at)
    }
}

impl<'a> JobFacts<'a> {
    fn add(&mut self, at: EventIndex, fact: &'a Fact) {
        match fact {
            Fact::Asked { unique, delay, .. } => {
                self.asked.get_or_insert(at);
                self.unique = unique.as_ref();
                self.delay = Duration::from_micros(*delay);
            }
            Fact::Bounded { deadline, .. } => self.deadline = Some(Duration::from_micros(*deadline)),
            Fact::Awaits { .. } => self.awaited.push(at),
            Fact::Answered { status, .. } => self.answered.push((at, *status)),
            Fact::Deferred { claim, after, .. } => {
                self.deferred.entry(*claim).or_insert(Duration::from_micros(*after));
            }
            Fact::Acknowledged { told, .. } => {
                self.acknowledged.get_or_insert((at, *told));
            }
            Fact::Refused { .. } => self.refused = true,
            Fact::Reused { same, stored, .. } => self.reused.push((at, *same, *stored)),
            Fact::Unknown { .. } => self.unknown = true,
            Fact::Ordered { verb, .. } => self.orders.push(Order { verb, ordered: at, obeyed: None }),
            Fact::Obeyed { verb, from, to, .. } => {
                let open = |order: &&mut Order<'_>| order.verb == verb && order.obeyed.is_none();
                if let Some(order) = self.orders.iter_mut().rev().find(open) {
                    order.obeyed = Some((at, *from, *to));
                }
            }
            Fact::Began { claim, .. } => self.began.push((at, *claim)),
            Fact::Ended { claim, .. } => self.ended.push((at, *claim)),
            Fact::Stopped { claim, .. } => {
                self.stopped.entry(*claim).or_insert(at);
            }
            Fact::Claimed { node, claim, crashes, crashed, ahead, now, .. } => self.claims.push(Claimed {
                at,
                node: *node,
                number: *claim,
                crashes: *crashes,
                crashed: Duration::from_micros(*crashed),
                ahead: *ahead,
                now: *now,
            }),
            Fact::Finishing { claim, how, .. } => {
                self.finishing.entry(*claim).or_insert(at);
                if *how == EndKind::Suspend {
                    // Its handler may be kept, but not in its slot.
                    self.stopped.entry(*claim).or_insert(at);
                }
            }
            Fact::Finished { node, claim, how, applied, .. } => {
                self.finished.push(Finished { at, node: *node, claim: *claim, how: *how, applied: *applied });
            }
            Fact::Joined { .. }
            | Fact::Abilities { .. }
            | Fact::Paused { .. }
            | Fact::Left { .. }
            | Fact::Disowned { .. }
            | Fact::Expired { .. }
            | Fact::Damaged { .. }
            | Fact::Mended { .. }
            | Fact::Looked { .. }
            | Fact::AskedWhatIsDue { .. }
            | Fact::Scheduled(_)
            | Fact::LookedAtSchedule(_)
            | Fact::Fault { .. }
            | Fact::Calm => {}
            _ => self.flow.get_or_insert_default().add(at, fact),
        }
    }

    /// Whether anybody ever wanted it.
    pub(super) fn is_known(&self) -> bool {
        self.asked.is_some()
    }

    /// Whether a caller was told that it is stored.
    pub(super) fn is_acknowledged(&self) -> bool {
        matches!(self.acknowledged, Some((_, EnqueueAnswer::Created)))
    }

    /// The first accepted end of each claim that ended the job, in order.
    pub(super) fn ends(&self) -> Vec<Finished> {
        let mut ends: Vec<Finished> = Vec::new();
        for finished in self.finished.iter().filter(|finished| finished.applied && finished.how.ends()) {
            if ends.iter().all(|end| end.claim != finished.claim) {
                ends.push(*finished);
            }
        }
        ends
    }

    /// When an end was first asked for: it may have taken effect long before its node was told.
    pub(super) fn asked(&self, end: &Finished) -> EventIndex {
        self.finishing.get(&end.claim).copied().unwrap_or(end.at)
    }

    /// Whether it may have had several lives under one id: deleted, and stored again by a late repeat of its enqueue.
    pub(super) fn may_have_returned(&self) -> bool {
        self.was_ordered("delete")
    }

    /// Whether a verb was ordered at all.
    pub(super) fn was_ordered(&self, verb: &str) -> bool {
        self.orders.iter().any(|order| order.verb == verb)
    }

    /// Whether a verb may have been applied after one event and before another.
    pub(super) fn ordered_between(&self, verb: &str, after: EventIndex, before: EventIndex) -> bool {
        self.orders.iter().any(|order| {
            order.verb == verb
                && order.ordered < before
                && order.obeyed.is_none_or(|(obeyed, _, _)| obeyed > after)
        })
    }

    /// Whether an operator ever brought it back: as it was, or from a step on.
    pub(super) fn was_brought_back(&self) -> bool {
        self.brought_back_between(0, EventIndex::MAX)
    }

    /// Whether an operator may have brought it back after one event and before another.
    pub(super) fn brought_back_between(&self, after: EventIndex, before: EventIndex) -> bool {
        ["retry", "rewind"].iter().any(|verb| self.ordered_between(verb, after, before))
    }

    /// Orders to bring it back.
    pub(super) fn revivals(&self) -> impl Iterator<Item = &Order<'a>> {
        self.orders.iter().filter(|order| matches!(order.verb, "retry" | "rewind"))
    }

    /// Each claim once: one that is adopted is told again.
    pub(super) fn first_claims(&self) -> impl Iterator<Item = &Claimed> {
        let told = |claim: &Claimed| {
            self.claims.iter().any(|first| first.number == claim.number && first.at < claim.at)
        };
        self.claims.iter().filter(move |claim| !told(claim))
    }

    /// The claim with this number.
    pub(super) fn claim(&self, number: u32) -> Option<&Claimed> {
        self.claims.iter().find(|claim| claim.number == number)
    }
}
