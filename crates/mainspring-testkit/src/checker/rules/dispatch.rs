//! What nodes are given: what they can do, in which order, and not more of it than they have room for.

use std::collections::BTreeMap;

use mainspring_core::id::{JobId, NodeNo};
use mainspring_core::job::Priority;
use mainspring_core::name::QueueName;
use mainspring_core::time::Timestamp;

use super::BrokenRule;
use crate::checker::evidence::{EventIndex, Evidence, JobFacts};
use crate::history::{Actor, Fact};

/// A node claims what it said it can do, and nothing else.
pub(super) fn able(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for (id, facts) in &evidence.job_facts {
        let Some(job) = facts.found else { continue };
        for claim in &facts.claims {
            let Some((queues, able)) = evidence.able.get(&claim.node) else { continue };
            let serves = queues.iter().any(|(queue, _)| *queue == job.queue);
            // What it will be able to do one day counts as well: clocks differ.
            if !(serves && able.runs(&job.kind, &job.options.labels, Timestamp::MAX)) {
                let what = format!("node {} cannot run it, and was given claim {}", claim.node, claim.number);
                broken.push(BrokenRule::job(*id, what, vec![claim.at]));
            }
        }
    }
}

/// Nothing is claimed from a queue that is paused.
pub(super) fn paused(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    if !evidence.terms.exact {
        return;
    }
    for (id, facts) in evidence.job_facts.iter().filter(|(_, facts)| !facts.may_have_returned()) {
        let Some(job) = facts.found else { continue };
        for claim in facts.first_claims() {
            let set =
                evidence.pauses.iter().rev().find(|(at, queue, _)| *at < claim.at && **queue == job.queue);
            // When all faults are over, so are all pauses.
            let calm = evidence.calm.is_some_and(|calm| calm < claim.at);
            if let Some((at, _, true)) = set.filter(|_| !calm) {
                let what = format!("`{}` was paused, and claim {} was given out", job.queue, claim.number);
                broken.push(BrokenRule::job(*id, what, vec![*at, claim.at]));
            }
        }
    }
}

/// No more jobs of a queue run on a node than it has slots.
pub(super) fn slots(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    let mut slots: BTreeMap<(Actor, &QueueName), usize> = BTreeMap::new();
    for (node, able) in &evidence.able {
        let Some(member) = evidence.nodes.get(node) else { continue };
        for (queue, count) in able.0 {
            slots.insert((member.actor, queue), usize::try_from(*count).unwrap_or(usize::MAX));
        }
    }
    let queue =
        |facts: Option<&JobFacts<'_>>| facts.and_then(|facts| facts.found).map(|job| job.queue.clone());
    let mut running: BTreeMap<(Actor, QueueName), Vec<(EventIndex, u32)>> = BTreeMap::new();
    for (at, event) in evidence.history.iter().enumerate() {
        let (id, claim, began) = match event.fact {
            Fact::Began { id, claim } => (id, claim, true),
            Fact::Stopped { id, claim } => (id, claim, false),
            _ => continue,
        };
        // Of a workflow that is suspended nobody says when it left its slot: it may be kept in memory.
        let flow = evidence.job_facts.get(&id).and_then(|facts| facts.flow.as_deref());
        // What is expected of a child its parent may not have come to say.
        if flow.is_some_and(|flow| flow.expects.is_some() || flow.parent.is_some()) {
            continue;
        }
        let Some(queue) = queue(evidence.job_facts.get(&id)) else { continue };
        let Some(&most) = slots.get(&(event.by, &queue)) else { continue };
        let runs = running.entry((event.by, queue)).or_default();
        if !began {
            let same = |(begin, number): &(EventIndex, u32)| {
                *number == claim && evidence.history[*begin].fact.job() == Some(id)
            };
            runs.retain(|run| !same(run));
            continue;
        }
        runs.push((at, claim));
        if runs.len() > most {
            let what = format!("{} jobs run in {most} slots of actor {}", runs.len(), event.by);
            broken.push(BrokenRule::job(id, what, runs.iter().map(|(begin, _)| *begin).collect()));
        }
    }
}

/// A node never holds more claims than twice its slots and what may wait behind them: two claims' worth of each queue. So it does
/// not go on claiming when its outcomes cannot be stored.
pub(super) fn room(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    let Some(claim) = evidence.terms.claim else { return };
    let most = |node: &NodeNo| {
        let queues = evidence.able.get(node)?.0;
        let slots = queues.iter().map(|(_, slots)| usize::try_from(*slots).unwrap_or(usize::MAX));
        Some(2 * slots.map(|slots| slots.saturating_add(2 * claim)).sum::<usize>())
    };
    let mut held: BTreeMap<NodeNo, BTreeMap<JobId, (EventIndex, u32)>> = BTreeMap::new();
    let mut holder: BTreeMap<JobId, NodeNo> = BTreeMap::new();
    for (at, event) in evidence.history.iter().enumerate() {
        match &event.fact {
            Fact::Claimed { node, id, claim, .. } => {
                // Whoever had it before has it no longer, whatever became of it.
                if let Some(last) = holder.insert(*id, *node).filter(|last| last != node) {
                    held.entry(last).or_default().remove(id);
                }
                let claims = held.entry(*node).or_default();
                claims.insert(*id, (at, *claim));
                if let Some(most) = most(node).filter(|most| claims.len() > *most) {
                    let what = format!("node {node} holds {} claims, and has room for {most}", claims.len());
                    broken.push(BrokenRule::job(*id, what, vec![at]));
                    return;
                }
            }
            Fact::Finished { node, id, claim, .. } => {
                let claims = held.entry(*node).or_default();
                if claims.get(id).is_some_and(|(_, number)| number == claim) {
                    claims.remove(id);
                }
            }
            // Which ones it gave back nobody says.
            Fact::Left { node } | Fact::Disowned { node } => drop(held.remove(node)),
            Fact::Expired { nodes } => nodes.iter().for_each(|node| drop(held.remove(node))),
            _ => {}
        }
    }
}

/// A job that waited for nothing but a node.
struct New {
    id: JobId,
    priority: Priority,
    stored: EventIndex,
    claimed: EventIndex,
}

/// Of two new jobs that the same nodes can run, the more urgent is claimed first.
pub(super) fn urgent(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    if !evidence.terms.exact {
        return;
    }
    let mut lines: BTreeMap<_, Vec<New>> = BTreeMap::new();
    for (id, facts) in &evidence.job_facts {
        let (Some(job), Some((stored, _)), Some(first)) =
            (facts.found, facts.acknowledged, facts.claims.first())
        else {
            continue;
        };
        // What waited for a time, or met an operator, is ready since nobody knows when.
        if facts.is_acknowledged() && facts.orders.is_empty() && facts.delay.is_zero() && first.number == 1 {
            let line = (&job.queue, &job.kind, &job.options.labels);
            let new = New { id: *id, priority: job.priority, stored, claimed: first.at };
            lines.entry(line).or_default().push(new);
        }
    }
    for jobs in lines.values() {
        for later in jobs {
            let passed = jobs.iter().find(|job| {
                job.priority < later.priority && job.stored < later.claimed && later.claimed < job.claimed
            });
            if let Some(passed) = passed {
                let what = format!(
                    "of priority {:?}, and claimed before {} of priority {:?}",
                    later.priority, passed.id, passed.priority
                );
                broken.push(BrokenRule::job(
                    later.id,
                    what,
                    vec![passed.stored, later.claimed, passed.claimed],
                ));
            }
        }
    }
}
