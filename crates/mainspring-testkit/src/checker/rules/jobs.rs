//! Jobs: there or not, where, and for how long.

use std::collections::BTreeMap;

use mainspring_core::id::JobId;
use mainspring_core::job::{Reason, State};

use super::BrokenRule;
use crate::checker::evidence::{Evidence, JobFacts};
use crate::checker::is_open;
use crate::history::EnqueueAnswer;

/// Every acknowledged job is there, unless somebody deleted it or its time was over.
pub(super) fn lost(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    // The last thing that survived a cut: whatever was acknowledged before it was asked for must have survived too.
    let survived =
        evidence.job_facts.values().filter(|facts| facts.found.is_some()).filter_map(|facts| facts.asked);
    let horizon = if evidence.terms.cut { survived.max().unwrap_or(0) } else { usize::MAX };
    for (id, facts) in &evidence.job_facts {
        let Some((at, told)) = facts.acknowledged else { continue };
        match told {
            EnqueueAnswer::Created
                if facts.found.is_none() && at < horizon && !may_be_gone(evidence, facts) =>
            {
                broken.push(BrokenRule::job(*id, "acknowledged, and not there", vec![at]));
            }
            EnqueueAnswer::Existing(holder)
                if !evidence.job_facts.get(&holder).is_some_and(JobFacts::is_known) =>
            {
                let what = format!("said to exist as {holder}, which nobody ever enqueued");
                broken.push(BrokenRule::job(*id, what, vec![at]));
            }
            EnqueueAnswer::Created | EnqueueAnswer::Existing(_) => {}
        }
    }
}

/// An id that belongs to another job is not said to be stored, and who asks for the same job again is not refused.
pub(super) fn taken(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for (id, facts) in &evidence.job_facts {
        // The id of a job that was removed is free, and whoever asks first has it.
        if !facts.is_acknowledged() || evidence.terms.cut || may_be_gone(evidence, facts) {
            continue;
        }
        for (at, same, stored) in facts.reused.iter().filter(|(_, same, stored)| same != stored) {
            let what = match (same, stored) {
                (false, true) => "said to be stored under the id of another job",
                _ => "said to belong to another job, and it is the same",
            };
            broken.push(BrokenRule::job(*id, what, vec![*at]));
        }
    }
}

/// Deleted by an operator, or removed a while after its end.
fn may_be_gone(evidence: &Evidence<'_>, facts: &JobFacts<'_>) -> bool {
    if evidence.terms.exact {
        return facts.was_ordered("delete") || is_over(evidence, facts);
    }
    facts.was_ordered("delete")
        || evidence.terms.retention.is_some_and(|retention| {
            let ended = facts.ends().first().map(|end| evidence.time(end.at));
            let stopped =
                facts.orders.iter().find_map(|order| order.obeyed).map(|(at, _, _)| evidence.time(at));
            // Ended by its deadline or by another job's claim to its key, nobody wrote down when.
            let asked = facts.asked.map(|at| evidence.time(at));
            [ended, stopped, asked]
                .into_iter()
                .flatten()
                .min()
                .is_some_and(|since| evidence.over().since(since) >= retention)
        })
}

/// Whether a job may have ended so long ago that it was removed.
fn is_over(evidence: &Evidence<'_>, facts: &JobFacts<'_>) -> bool {
    let ended = facts.ends().last().map(|end| end.at);
    let ends = |verb: &str| matches!(verb, "cancel" | "recall" | "fail");
    let words = facts.orders.iter().filter(|order| ends(order.verb)).filter_map(|order| order.obeyed);
    let worded = words.map(|(at, _, _)| at).min();
    // Ended by its deadline, or by another job's claim to its key, nobody wrote down when.
    let alone = facts.asked.filter(|_| facts.deadline.is_some() || facts.unique.is_some());
    let since = [ended, worded, alone].into_iter().flatten().min();
    evidence
        .terms
        .retention
        .zip(since)
        .is_some_and(|(retention, since)| evidence.over().since(evidence.time(since)) >= retention)
}

/// Every job was asked for, and not refused.
pub(super) fn phantom(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for (id, facts) in &evidence.job_facts {
        if facts.found.is_none() && facts.claims.is_empty() {
            continue;
        }
        if !facts.is_known() {
            broken.push(BrokenRule::job(*id, "in the store, and nobody asked for it", Vec::new()));
        } else if facts.refused && !facts.unknown && facts.acknowledged.is_none() {
            broken.push(BrokenRule::job(
                *id,
                "refused, and stored all the same",
                facts.asked.into_iter().collect(),
            ));
        }
    }
}

/// The store's own look at itself, and its counts against its jobs.
pub(super) fn one_place(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for finding in &evidence.found.findings {
        broken.push(BrokenRule::other(format!("the store says: {}", finding.what), Vec::new()));
    }
    let mut listed: BTreeMap<_, BTreeMap<State, u64>> = BTreeMap::new();
    let mut seen = BTreeMap::new();
    for job in &evidence.found.jobs {
        *listed.entry(job.queue.clone()).or_default().entry(job.status.state).or_default() += 1;
        if seen.insert(job.id, job.status).is_some() {
            broken.push(BrokenRule::job(job.id, "listed twice", Vec::new()));
        }
    }
    let mut counted = evidence.found.counts.0.clone();
    for states in counted.values_mut() {
        states.retain(|_, count| *count > 0);
    }
    counted.retain(|_, states| !states.is_empty());
    if listed != counted {
        broken.push(BrokenRule::other(format!("listed are {listed:?}, counted {counted:?}"), Vec::new()));
    }
}

/// With all faults over and time enough, nothing is left undone.
pub(super) fn liveness(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    if !evidence.terms.settled {
        return;
    }
    for (id, facts) in &evidence.job_facts {
        let Some(job) = facts.found else { continue };
        let held = job.status.reason == Some(Reason::Hold) && facts.was_ordered("hold");
        let quarantined = job.status.reason == Some(Reason::Quarantine);
        // Whether it is set aside with reason is another rule's question.
        let drifted = job.status.reason == Some(Reason::Drift);
        let aside = held || quarantined || drifted || awaits_in_vain(evidence, *id, facts);
        if is_open(job.status.state) || (job.status.state == State::Suspended && !aside) {
            broken.push(BrokenRule::job(*id, format!("still {}", job.status), last(facts)));
        }
    }
}

/// Whether a job waits for what cannot come: it was stored again without what had been sent to it, or it waits for a child
/// that is set aside.
fn awaits_in_vain(evidence: &Evidence<'_>, id: JobId, facts: &JobFacts<'_>) -> bool {
    let Some(reason) = facts.found.and_then(|job| job.status.reason).filter(|reason| reason.awaits()) else {
        return false;
    };
    let aside = |child: &JobFacts<'_>| {
        let status = child.found.map(|job| job.status);
        let parent = child.flow.as_ref().and_then(|flow| flow.parent).map(|(parent, _)| parent);
        parent == Some(id) && status.is_some_and(|status| status.state == State::Suspended)
    };
    facts.may_have_returned() || (reason == Reason::Child && evidence.job_facts.values().any(aside))
}

fn last(facts: &JobFacts<'_>) -> Vec<usize> {
    let claimed = facts.claims.last().map(|claim| claim.at);
    let finished = facts.finished.last().map(|finished| finished.at);
    claimed.into_iter().chain(finished).collect()
}

/// A delayed job is not claimed before its time.
pub(super) fn early(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    if evidence.went_back() {
        return;
    }
    for (id, facts) in &evidence.job_facts {
        // An operator may call it up early.
        let (Some(job), Some(claim)) = (facts.found, facts.claims.first()) else { continue };
        if facts.orders.is_empty() && claim.now < job.created_at.after(facts.delay) {
            let what = format!("claimed at {}, {:?} after {}", claim.now, facts.delay, job.created_at);
            broken.push(BrokenRule::job(*id, what, vec![claim.at]));
        }
    }
}
