//! What nodes and callers say, against what they did and what was done to them.

use std::collections::BTreeMap;
use std::time::Duration;

use mainspring_core::bounds;
use mainspring_core::id::NodeNo;
use mainspring_core::job::{Reason, State};

use super::BrokenRule;
use crate::checker::evidence::{EventIndex, Evidence, JobFacts};
use crate::history::{Actor, EndKind, Fact};

/// Who still has his claim is not refused, and who was accepted once is not refused later.
pub(super) fn refused(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    if !evidence.terms.exact {
        return;
    }
    for (id, facts) in evidence.job_facts.iter().filter(|(_, facts)| !facts.may_have_returned()) {
        for refused in facts.finished.iter().filter(|one| !one.applied) {
            let held = |claim: &&crate::checker::evidence::Claimed| {
                claim.number == refused.claim && claim.node == refused.node
            };
            let Some(claim) = facts.claims.iter().find(held) else { continue };
            let within = |at: EventIndex| claim.at < at && at < refused.at;
            let of = |events: &[(EventIndex, NodeNo)]| {
                events.iter().any(|(at, node)| *node == claim.node && within(*at))
            };
            let left = evidence.nodes.get(&claim.node).and_then(|member| member.left).is_some_and(within);
            let lost = left || of(&evidence.expiries) || of(&evidence.disowned);
            let before = facts
                .finished
                .iter()
                .find(|one| one.applied && one.claim == refused.claim && one.at < refused.at);
            match before {
                None if !lost => {
                    let what = format!("claim {} was held, and its end was refused", refused.claim);
                    broken.push(BrokenRule::job(*id, what, vec![claim.at, refused.at]));
                }
                Some(one)
                    if one.how == refused.how
                        && one.how.ends()
                        && evidence.terms.retention.is_none()
                        && !facts.was_brought_back() =>
                {
                    let what = format!("claim {} was ended, and a repeat of that was refused", refused.claim);
                    broken.push(BrokenRule::job(*id, what, vec![one.at, refused.at]));
                }
                _ => {}
            }
        }
    }
}

/// What is said of a run is what came of one: nothing is reported of a handler that never began, and what ended well is
/// not reported otherwise.
pub(super) fn reported(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for (id, facts) in evidence.job_facts.iter().filter(|(_, facts)| !facts.may_have_returned()) {
        for (claim, at) in &facts.finishing {
            let Fact::Finishing { how, .. } = evidence.history[*at].fact else { continue };
            let began = facts.began.iter().any(|(began, number)| number == claim && began < at);
            // A handler that is kept in memory goes on where it was.
            let goes_on = claim.checked_sub(1).is_some_and(|before| facts.suspended(before).is_some());
            if matches!(how, EndKind::Succeed | EndKind::Retry | EndKind::Snooze) && !began && !goes_on {
                let what = format!("{how:?} of claim {claim}, which never began");
                broken.push(BrokenRule::job(*id, what, vec![*at]));
            }
            let well = facts.ended.iter().find(|(ended, number)| number == claim && ended < at);
            if let Some((ended, _)) = well.filter(|_| how != EndKind::Succeed) {
                let what = format!("claim {claim} did its work, and was ended as {how:?}");
                broken.push(BrokenRule::job(*id, what, vec![*ended, *at]));
            }
        }
    }
}

/// A job has as many attempts as it was given.
pub(super) fn attempts(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for (id, facts) in &evidence.job_facts {
        let Some(job) = facts.found else { continue };
        let most = job.options.max_attempts;
        let exhausted = job.status.reason == Some(Reason::Exhausted);
        if job.failures > most || (exhausted && job.failures != most) {
            let what = format!("{} after {} failures of {most}", job.status, job.failures);
            broken.push(BrokenRule::job(*id, what, Vec::new()));
        }
    }
}

/// Each claim is told how often its job has crashed since it last came through: as often as its nodes were lost, and not
/// never if one was. A claim that was ahead adds none.
pub(super) fn crashes(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    if !evidence.terms.exact {
        return;
    }
    for (id, facts) in evidence.job_facts.iter().filter(|(_, facts)| !facts.may_have_returned()) {
        for claim in facts.first_claims() {
            let lost = crashed(evidence, facts, claim.at);
            let told = usize::from(claim.crashes);
            if told > lost.len() || (told == 0 && !lost.is_empty()) {
                let what = format!("claim {} is told {told} crashes, {} happened", claim.number, lost.len());
                broken.push(BrokenRule::job(*id, what, lost));
            }
        }
        let Some(job) = facts.found else { continue };
        let lost = crashed(evidence, facts, usize::MAX);
        let status = (job.status.state, job.status.reason);
        if status == (State::Suspended, Some(Reason::Quarantine))
            && lost.len() < usize::from(bounds::QUARANTINE_CRASHES)
        {
            let what = format!("quarantined after {} crashes in a row", lost.len());
            broken.push(BrokenRule::job(*id, what, lost));
        }
    }
}

/// The claims before an event that were lost with their nodes and not ahead, since the job last came through or an operator answered
/// for it.
pub(super) fn crashed(evidence: &Evidence<'_>, facts: &JobFacts<'_>, before: EventIndex) -> Vec<EventIndex> {
    let through = |how: EndKind| {
        matches!(how, EndKind::Succeed | EndKind::Retry | EndKind::Fail | EndKind::Snooze | EndKind::Suspend)
    };
    // A repeat that is told as accepted changes nothing.
    let mut ends: BTreeMap<u32, EventIndex> = BTreeMap::new();
    for end in facts.finished.iter().filter(|end| end.applied && through(end.how)) {
        ends.entry(end.claim).or_insert(end.at);
    }
    let words = facts.orders.iter().filter(|order| matches!(order.verb, "retry" | "rewind" | "resume"));
    let answered = words.filter_map(|order| order.obeyed).map(|(at, _, _)| at);
    // Who records has come further than those before him; his own claim may still crash.
    let recorded = facts.written().into_iter().filter(|write| write.at < before && !write.writes.idle);
    let recorded =
        recorded.filter_map(|write| facts.claim(write.claim)).map(|claim| claim.at.saturating_sub(1));
    let reset = ends.into_values().chain(answered).filter(|at| *at < before).chain(recorded).max();
    let mut lost = Vec::new();
    for claim in facts.first_claims() {
        let after = reset.is_none_or(|reset| claim.at > reset);
        let ended = facts.finished.iter().filter(|end| end.applied && end.claim == claim.number);
        let given_back = evidence.disowned.iter().filter(|(_, node)| *node == claim.node).map(|(at, _)| *at);
        let over = ended.map(|end| end.at).chain(given_back).filter(|at| *at > claim.at).min();
        let expired = evidence.expiries.iter().find(|(at, node)| *node == claim.node && *at > claim.at);
        let crashed = expired.is_some_and(|(at, _)| *at < before && over.is_none_or(|over| over > *at));
        if after && crashed && !claim.ahead {
            lost.push(claim.at);
        }
    }
    lost
}

/// A node that has begun to work under a new number has let go of everything under the old one.
pub(super) fn abandoned(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    let mut first: BTreeMap<NodeNo, EventIndex> = BTreeMap::new();
    for claim in evidence.job_facts.values().flat_map(|facts| &facts.claims) {
        let at = first.entry(claim.node).or_insert(claim.at);
        *at = claim.at.min(*at);
    }
    let anew = |node: NodeNo, actor: Actor, at: EventIndex| {
        let later = first.iter().find(|(later, begun)| {
            **later > node
                && **begun < at
                && evidence.nodes.get(later).is_some_and(|member| member.actor == actor)
        });
        later.map(|(_, begun)| *begun)
    };
    for (id, facts) in evidence.job_facts.iter().filter(|(_, facts)| !facts.may_have_returned()) {
        for (at, number) in facts.began.iter().chain(&facts.ended) {
            let Some(claim) = facts.claim(*number) else { continue };
            let actor = evidence.history[*at].by;
            let Some(begun) = anew(claim.node, actor, *at) else { continue };
            // Who was stopped in between could not see to it.
            let stood = evidence.faults.iter().any(|fault| {
                fault.kind == "stop"
                    && fault.on == Some(actor)
                    && fault.at < *at
                    && fault.until.is_none_or(|over| over >= evidence.time(begun))
            });
            if !stood {
                let what =
                    format!("claim {number} of node {} went on when its node had joined anew", claim.node);
                broken.push(BrokenRule::job(*id, what, vec![claim.at, begun, *at]));
            }
        }
    }
}

/// Whether something was wrong with the store, or between it and an actor, that may have held him up.
fn disturbed(
    evidence: &Evidence<'_>,
    actor: Actor,
    from: EventIndex,
    to: EventIndex,
    before: Duration,
) -> bool {
    const HARMLESS: &[&str] = &["hint lost", "skew", "leap", "year", "back", "scale", "shutdown"];
    let began = evidence.time(from);
    evidence.faults.iter().any(|fault| {
        fault.on.is_none_or(|on| on == actor)
            && !HARMLESS.contains(&fault.kind)
            && fault.at < to
            && fault.until.unwrap_or_else(|| evidence.time(fault.at)).after(before) >= began
    })
}

/// While nothing is wrong, a handler whose job is cancelled is stopped at the next renewal.
pub(super) fn stopped(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    if !evidence.terms.exact {
        return;
    }
    for (id, facts) in evidence.job_facts.iter().filter(|(_, facts)| !facts.may_have_returned()) {
        for order in facts.orders.iter().filter(|order| matches!(order.verb, "cancel" | "recall")) {
            let Some((obeyed, from, _)) = order.obeyed else { continue };
            let Some(claim) = facts.claims.iter().rev().find(|claim| claim.at < obeyed) else { continue };
            let Some(member) = evidence.nodes.get(&claim.node) else { continue };
            let Some(&stopped) = facts.stopped.get(&claim.number) else { continue };
            let bound = member.lease / 2 + Duration::from_secs(1);
            let took = evidence.time(stopped).since(evidence.time(obeyed));
            if from.state == State::Running
                && stopped > obeyed
                && took > bound
                && !disturbed(evidence, member.actor, obeyed, stopped, member.lease)
            {
                let what = format!("cancelled, and claim {} ran on for {took:?}", claim.number);
                broken.push(BrokenRule::job(*id, what, vec![obeyed, stopped]));
            }
        }
    }
}

/// While nothing is wrong, a node that leaves in good order leaves nothing unsaid.
pub(super) fn leaving(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    if !evidence.terms.exact {
        return;
    }
    for (id, facts) in evidence.job_facts.iter().filter(|(_, facts)| !facts.may_have_returned()) {
        for (ended, number) in &facts.ended {
            let Some(claim) = facts.claim(*number) else { continue };
            let Some(member) = evidence.nodes.get(&claim.node) else { continue };
            let Some(left) = member.left.filter(|left| left > ended) else { continue };
            let told = facts.finished.iter().any(|end| end.claim == *number && end.at < left);
            if !told && !disturbed(evidence, member.actor, *ended, left, Duration::ZERO) {
                let what = format!("claim {number} did its work, and its node left without a word of it");
                broken.push(BrokenRule::job(*id, what, vec![*ended, left]));
            }
        }
    }
}

/// Who waits for a job to end is told, when it has, and not before.
pub(super) fn answered(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    /// A look once a second, and the way there and back.
    const SOON: Duration = Duration::from_secs(3);
    if !evidence.terms.exact {
        return;
    }
    for (id, facts) in evidence.job_facts.iter().filter(|(_, facts)| !facts.may_have_returned()) {
        for (at, status) in &facts.answered {
            let Some(status) = status else { continue };
            let succeeded = |end: &&crate::checker::evidence::Finished| {
                end.applied && end.how == EndKind::Succeed && end.at < *at
            };
            let early = match status.state {
                State::Succeeded => !facts.finished.iter().any(|end| succeeded(&end)),
                state => !state.is_terminal(),
            };
            if early {
                broken.push(BrokenRule::job(*id, format!("a caller is told that it is {status}"), vec![*at]));
            }
        }
        let (Some(end), Some(calm)) = (facts.ends().last().copied(), evidence.calm) else { continue };
        let since = evidence.time(end.at.max(calm));
        let waits = facts.awaited.len() > facts.answered.len();
        if evidence.terms.settled && waits && !facts.was_brought_back() && evidence.over().since(since) > SOON
        {
            broken.push(BrokenRule::job(*id, "it has ended, and a caller still waits", vec![end.at]));
        }
    }
}

/// A claim whose handler has begun is not one that its node does not know of.
pub(super) fn disowned(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    if !evidence.terms.exact {
        return;
    }
    for (id, facts) in evidence.job_facts.iter().filter(|(_, facts)| !facts.may_have_returned()) {
        for claim in facts.first_claims() {
            let Some(next) = facts.claims.iter().find(|next| next.number > claim.number) else { continue };
            let Some((began, _)) = facts.began.iter().find(|(_, number)| *number == claim.number) else {
                continue;
            };
            let within = |at: EventIndex| claim.at < at && at < next.at;
            let ended =
                facts.finished.iter().any(|one| one.applied && one.claim == claim.number && within(one.at));
            let left = evidence.nodes.get(&claim.node).and_then(|member| member.left).is_some_and(within);
            let expired = evidence.expiries.iter().any(|(at, node)| *node == claim.node && within(*at));
            let unknown = evidence
                .disowned
                .iter()
                .find(|(at, node)| *node == claim.node && began < at && *at < next.at);
            if let Some((at, _)) = unknown.filter(|_| !(ended || left || expired)) {
                let what = format!("claim {} had begun, and was disowned", claim.number);
                broken.push(BrokenRule::job(*id, what, vec![*began, *at, next.at]));
            }
        }
    }
}

/// A job that an operator brings back has no failures, until it fails again.
pub(super) fn revived(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    if !evidence.terms.exact {
        return;
    }
    for (id, facts) in evidence.job_facts.iter().filter(|(_, facts)| !facts.may_have_returned()) {
        let Some(since) = facts.revivals().filter_map(|order| order.obeyed).map(|(at, _, _)| at).max() else {
            continue;
        };
        let Some(job) = facts.found else { continue };
        let mut failed: BTreeMap<u32, EventIndex> = BTreeMap::new();
        for end in facts.finished.iter().filter(|end| end.applied && end.how.fails()) {
            failed.entry(end.claim).or_insert(end.at);
        }
        let failed = failed.values().filter(|at| **at > since).count();
        if usize::from(job.failures) > failed {
            let what = format!("{} failures are counted, {failed} since it was brought back", job.failures);
            broken.push(BrokenRule::job(*id, what, vec![since]));
        }
    }
}
