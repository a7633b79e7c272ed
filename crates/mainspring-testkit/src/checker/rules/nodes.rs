//! Nodes: who is dead, who only looks it, and what they leave behind.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mainspring_core::bounds;
use mainspring_core::id::NodeNo;
use mainspring_core::job::{Reason, State};
use mainspring_core::time::Timestamp;

use super::BrokenRule;
use crate::checker::evidence::{EventIndex, Evidence, Fault, JobFacts};
use crate::history::Actor;

/// Faults that may make a node miss its lease. A store that is away for all is none of them.
const EXCUSES: &[&str] = &["crash", "kill", "stop", "cut", "exit"];
/// Faults that end a node.
pub(in crate::checker) const DEATHS: &[&str] = &["crash", "kill", "exit"];

/// A node is expired only after something has happened to that very node.
pub(super) fn living(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for (at, node) in &evidence.expiries {
        let Some(member) = evidence.nodes.get(node) else { continue };
        let now = evidence.time(*at);
        // A lease lapses a lease after the last renewal, and somebody must notice.
        let reach = member.lease * 2 + Duration::from_secs(2);
        let excused = evidence.faults.iter().any(|fault| {
            fault.on == Some(member.actor)
                && EXCUSES.contains(&fault.kind)
                && fault.at < *at
                && fault.until.is_none_or(|until| now.since(until) <= reach)
        });
        if !excused {
            let what = format!("node {node} (actor {}) was alive and well, and was expired", member.actor);
            broken.push(BrokenRule::other(what, vec![member.joined, *at]));
        }
    }
}

/// Of the jobs that may have taken their nodes with them, a node runs one at a time, until it has outlived its crash.
pub(super) fn suspects(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    let mut runs: BTreeMap<Actor, Vec<(EventIndex, EventIndex, mainspring_core::id::JobId)>> =
        BTreeMap::new();
    for (id, facts) in &evidence.job_facts {
        for claim in facts.claims.iter().filter(|claim| claim.crashes >= bounds::SUSPECT_CRASHES) {
            let Some((began, _)) = facts.began.iter().find(|(_, number)| *number == claim.number) else {
                continue;
            };
            // By the node's own clock, which may go a little faster.
            let cleared = evidence.time(*began).after(claim.crashed.mul_f64(0.97));
            let stopped = facts.stopped.get(&claim.number).copied();
            // In the order of events: several may share one moment.
            let proven = evidence.history[*began..].iter().position(|event| event.at > cleared);
            let over = [stopped, proven.map(|offset| began + offset)].into_iter().flatten().min();
            let actor = evidence.history[*began].by;
            let runs = runs.entry(actor).or_default();
            if runs.last().is_none_or(|last| last.0 != *began) {
                runs.push((*began, over.unwrap_or(evidence.history.len()), *id));
            }
        }
    }
    for (actor, mut runs) in runs {
        runs.sort_unstable();
        for pair in runs.windows(2) {
            let ((first, over, one), (second, _, other)) = (pair[0], pair[1]);
            if second < over {
                let what = format!("suspects {one} and {other} ran together on actor {actor}");
                broken.push(BrokenRule::job(other, what, vec![first, second]));
            }
        }
    }
}

/// A job is quarantined only if nodes were lost while they held it, as often as the bound says.
pub(super) fn quarantine(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    if !evidence.terms.exact {
        return innocent(evidence, broken);
    }
    for (id, facts) in evidence.job_facts.iter().filter(|(_, facts)| !facts.may_have_returned()) {
        let Some(job) = facts.found else { continue };
        let crashed = crashed(evidence, facts);
        let counted = usize::from(job.crashes);
        let quarantined =
            (job.status.state, job.status.reason) == (State::Suspended, Some(Reason::Quarantine));
        if quarantined && crashed.len() < usize::from(bounds::QUARANTINE_CRASHES) {
            let what = format!("quarantined after {} crashes", crashed.len());
            broken.push(BrokenRule::job(*id, what, crashed));
        } else if counted > crashed.len() {
            let what = format!("{counted} crashes are counted, {} happened", crashed.len());
            broken.push(BrokenRule::job(*id, what, crashed));
        }
    }
}

/// Where not every claim is seen: of the claims before it, those that were ahead and those that were ended add no crash to what a
/// claim is told.
fn innocent(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for (id, facts) in evidence.job_facts.iter().filter(|(_, facts)| !facts.may_have_returned()) {
        for claim in facts.first_claims() {
            let ahead = facts.claims.iter().filter(|other| other.ahead).map(|other| other.number);
            let ended = facts.finished.iter().filter(|end| end.applied).map(|end| end.claim);
            let harmless: BTreeSet<u32> =
                ahead.chain(ended).filter(|number| *number < claim.number).collect();
            let harmless = u32::try_from(harmless.len()).unwrap_or(u32::MAX);
            let most = claim.number.saturating_sub(1).saturating_sub(harmless);
            if u32::from(claim.crashes) > most {
                let what = format!(
                    "claim {} is told {} crashes, and {most} claims before it may have crashed",
                    claim.number, claim.crashes
                );
                broken.push(BrokenRule::job(*id, what, vec![claim.at]));
            }
        }
    }
}

/// The claims that were lost with their node and not ahead.
fn crashed(evidence: &Evidence<'_>, facts: &JobFacts<'_>) -> Vec<EventIndex> {
    let mut lost = BTreeMap::new();
    for claim in facts.claims.iter().filter(|claim| !claim.ahead) {
        let expired = evidence.expiries.iter().find(|(at, node)| *node == claim.node && *at > claim.at);
        let over = |by: EventIndex| {
            let mut ends = facts.finished.iter().filter(|one| one.claim == claim.number && one.applied);
            ends.any(|end| end.at < by)
        };
        if expired.is_some_and(|(at, _)| !over(*at)) {
            lost.insert(claim.number, claim.at);
        }
    }
    lost.into_values().collect()
}

/// A job whose node was lost is not claimed ahead the next time: its death would count nothing again. An operator who comes between
/// changes that.
pub(super) fn free_slot(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    if !evidence.terms.exact {
        return;
    }
    for (id, facts) in evidence.job_facts.iter().filter(|(_, facts)| !facts.may_have_returned()) {
        for next in facts.first_claims().filter(|claim| claim.ahead) {
            let before =
                facts.first_claims().filter(|claim| claim.number.checked_add(1) == Some(next.number));
            let Some(before) = before.last().filter(|before| before.at < next.at) else { continue };
            let within = |at: EventIndex| before.at < at && at < next.at;
            let ended = facts.finished.iter().any(|end| end.claim == before.number && end.applied);
            let given_back = evidence.disowned.iter().any(|(at, node)| *node == before.node && within(*at));
            let expired = evidence.expiries.iter().find(|(at, node)| *node == before.node && within(*at));
            let ordered = facts.orders.iter().any(|order| order.ordered < next.at);
            if let Some((at, node)) = expired.filter(|_| !(ended || given_back || ordered)) {
                let what = format!("lost with node {node}, and claimed ahead as {}", next.number);
                broken.push(BrokenRule::job(*id, what, vec![before.at, *at, next.at]));
            }
        }
    }
}

/// Sooner than this nobody is answered who asks the store: each way takes half of it.
const ANSWER: Duration = Duration::from_micros(100);

/// No body begins when its process goes on after it was stopped for longer than its lease, unless the store has answered it since.
/// That is certain only where nothing is answered at once.
pub(super) fn lapsed(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    if !evidence.terms.exact {
        return;
    }
    let bodies =
        evidence.job_facts.iter().filter_map(|(id, facts)| Some((id, facts, facts.flow.as_deref()?)));
    let bodies: Vec<_> =
        bodies.flat_map(|(id, facts, flow)| flow.entered.iter().map(move |body| (id, facts, body))).collect();
    for stop in evidence.faults.iter().filter(|fault| fault.kind == "stop") {
        let (began, Some(over)) = (evidence.time(stop.at), stop.until) else { continue };
        let mut memberships = evidence.nodes.values().filter(|member| Some(member.actor) == stop.on);
        // The clock of the node may go a little slower.
        let lapsed = memberships.all(|member| over.since(began) > member.lease.mul_f64(1.02));
        // Stopped twice, it goes on when the first is over.
        let twice = evidence.faults.iter().any(|other| {
            let times = (evidence.time(other.at), other.until.unwrap_or(Timestamp::MAX));
            other.kind == "stop"
                && other.on == stop.on
                && other.at != stop.at
                && times.0 <= over
                && times.1 >= began
        });
        if !lapsed || twice {
            continue;
        }
        for (id, facts, body) in &bodies {
            let event = &evidence.history[body.at];
            let at_once = event.at >= over && event.at.since(over) < ANSWER;
            let claimed = facts.claim(body.claim).is_some_and(|claim| claim.at < stop.at);
            if Some(event.by) == stop.on && at_once && claimed && body.at > stop.at {
                let what = format!(
                    "`{}` begins after its process was stopped for {:?}",
                    body.key,
                    over.since(began)
                );
                broken.push(BrokenRule::job(**id, what, vec![stop.at, body.at]));
            }
        }
    }
}

/// While nothing else is wrong, a dead node that holds jobs is expired within its lease and a little more.
pub(super) fn recovery(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    let Some(slack) = evidence.terms.recovery else { return };
    for (fault, node) in deaths(evidence) {
        let member = &evidence.nodes[&node];
        let (died, bound) = (evidence.time(fault.at), member.lease + slack);
        let disturbed = evidence.faults.iter().any(|other| {
            let began = evidence.time(other.at);
            let ended = other.until.unwrap_or(began);
            // A hint that is lost, or the clock of a node, has no part in it.
            let harmless = matches!(other.kind, "hint lost" | "skew" | "scale");
            !std::ptr::eq(other, fault)
                && !harmless
                && began <= died.after(bound)
                && ended.after(member.lease) >= died
        });
        if disturbed || !witnessed(evidence, fault, member.lease) || evidence.over().since(died) <= bound {
            continue;
        }
        let expired = evidence.expiries.iter().find(|(at, no)| *no == node && *at > fault.at);
        let took = expired.map(|(at, _)| evidence.time(*at).since(died));
        if took.is_none_or(|took| took > bound) {
            let what = format!("node {node} died holding jobs and was expired after {took:?}, not {bound:?}");
            broken.push(BrokenRule::other(what, vec![fault.at]));
        }
    }
}

/// Whether the store was there for everybody around a death, from a lease before it to so long after it, and somebody could
/// have found it. That others died as well is no excuse.
pub(in crate::checker) fn in_peace(evidence: &Evidence<'_>, death: &Fault<'_>, lease: Duration) -> bool {
    let died = evidence.time(death.at);
    let disturbs = |fault: &&Fault<'_>| {
        let began = evidence.time(fault.at);
        // Who was cut off takes a while to come back, and a lease to be sure.
        let over = fault.until.unwrap_or(began).after(lease * 2);
        !DEATHS.contains(&fault.kind) && began <= died.after(lease * 3 / 2) && over >= died
    };
    witnessed(evidence, death, lease) && !evidence.faults.iter().any(|fault| disturbs(&fault))
}

/// Each death of a node that held jobs.
pub(in crate::checker) fn deaths<'e>(evidence: &'e Evidence<'_>) -> Vec<(&'e Fault<'e>, NodeNo)> {
    let mut deaths = Vec::new();
    for fault in evidence.faults.iter().filter(|fault| DEATHS.contains(&fault.kind)) {
        let mut nodes = evidence
            .nodes
            .iter()
            .filter(|(_, member)| Some(member.actor) == fault.on && member.joined < fault.at);
        // Of several memberships the last is the one that died.
        let Some((node, member)) = nodes.next_back() else { continue };
        if member.left.is_none() && holds(evidence, *node, fault.at) {
            deaths.push((fault, *node));
        }
    }
    deaths
}

/// Whether a node held a claim at some point of the history.
fn holds(evidence: &Evidence<'_>, node: NodeNo, at: EventIndex) -> bool {
    evidence.job_facts.values().any(|facts| {
        let Some(claim) = facts.claims.iter().rev().find(|claim| claim.at < at) else { return false };
        let over = facts.finished.iter().any(|finished| finished.claim == claim.number && finished.applied);
        claim.node == node && !over
    })
}

/// Whether some other node was there, unharmed, for a lease before a death and until that must have been found.
pub(in crate::checker) fn witnessed(evidence: &Evidence<'_>, death: &Fault<'_>, lease: Duration) -> bool {
    let died = evidence.time(death.at);
    let harmless = |fault: &Fault<'_>| {
        let over = fault.until.filter(|_| !DEATHS.contains(&fault.kind));
        evidence.time(fault.at) > died.after(lease * 2) || over.is_some_and(|over| over.after(lease) < died)
    };
    evidence.nodes.values().any(|member| {
        Some(member.actor) != death.on
            && evidence.time(member.joined).after(lease) <= died
            && member.left.is_none_or(|left| evidence.time(left) > died.after(lease * 2))
            && evidence.faults.iter().all(|fault| fault.on != Some(member.actor) || harmless(fault))
    })
}
