//! Claims: their numbers, their owners, and what comes of them.

use std::collections::{BTreeMap, BTreeSet};

use mainspring_core::id::{JobId, NodeNo};
use mainspring_core::job::{Reason, State};

use super::BrokenRule;
use crate::checker::evidence::{EventIndex, Evidence, Finished, JobFacts};
use crate::history::EndKind;

/// Each claim has a higher number than the one before, and one owner. A retry from a step takes a number like a claim.
pub(super) fn grow(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for (id, facts) in evidence.job_facts.iter().filter(|(_, facts)| !facts.may_have_returned()) {
        let mut owners = BTreeMap::new();
        let mut highest: Option<(u32, usize)> = None;
        let mut rewinds = facts.flow.iter().flat_map(|flow| &flow.rewinds).peekable();
        for claim in &facts.claims {
            while let Some(rewind) = rewinds.next_if(|rewind| rewind.at < claim.at) {
                raise(*id, evidence, &mut highest, (rewind.claim, rewind.at), broken);
            }
            let (owner, first) = *owners.entry(claim.number).or_insert((claim.node, claim.at));
            if owner != claim.node {
                let what =
                    format!("claim {} was given to node {owner} and to node {}", claim.number, claim.node);
                broken.push(BrokenRule::job(*id, what, vec![first, claim.at]));
            }
            // A claim that is adopted is told again under its old number; the order of late notes says nothing.
            let new = first == claim.at;
            if new {
                raise(*id, evidence, &mut highest, (claim.number, claim.at), broken);
            }
        }
        for rewind in rewinds {
            raise(*id, evidence, &mut highest, (rewind.claim, rewind.at), broken);
        }
    }
}

/// A claim, or a retry from a step, takes the next number.
fn raise(
    id: JobId,
    evidence: &Evidence<'_>,
    highest: &mut Option<(u32, EventIndex)>,
    (number, at): (u32, EventIndex),
    broken: &mut Vec<BrokenRule>,
) {
    match *highest {
        Some((before, since)) if number <= before => {
            if evidence.terms.exact {
                let what = format!("claim {number} came after claim {before}");
                broken.push(BrokenRule::job(id, what, vec![since, at]));
            }
        }
        _ => *highest = Some((number, at)),
    }
}

/// A job is claimed again only when its last claim was ended, given back, or lost with its node.
pub(super) fn handed_over(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    if !evidence.terms.exact {
        return;
    }
    for (id, facts) in evidence.job_facts.iter().filter(|(_, facts)| !facts.may_have_returned()) {
        for next in &facts.claims {
            let before =
                facts.claims.iter().rev().find(|claim| claim.at < next.at && claim.number < next.number);
            let Some(claim) = before else { continue };
            let within = |at: usize| claim.at < at && at < next.at;
            let of = |events: &[(usize, NodeNo)]| {
                events.iter().any(|(at, node)| *node == claim.node && within(*at))
            };
            let ended =
                facts.finished.iter().any(|one| one.applied && one.claim == claim.number && one.at < next.at);
            let left = evidence.nodes.get(&claim.node).and_then(|member| member.left).is_some_and(within);
            if !(ended || left || of(&evidence.expiries) || of(&evidence.disowned)) {
                let what =
                    format!("claim {} was given out while claim {} was held", next.number, claim.number);
                broken.push(BrokenRule::job(*id, what, vec![claim.at, next.at]));
                break;
            }
        }
    }
}

/// No write is accepted that was sent when a later claim had been given out, or by another node than the claim's.
pub(super) fn owner(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for (id, facts) in evidence.job_facts.iter().filter(|(_, facts)| !facts.may_have_returned()) {
        for finished in facts.finished.iter().filter(|finished| finished.applied) {
            let claim = facts.claim(finished.claim);
            if let Some(claim) = claim.filter(|claim| claim.node != finished.node) {
                let what = format!(
                    "node {} ended claim {}, which was node {}'s",
                    finished.node, claim.number, claim.node
                );
                broken.push(BrokenRule::job(*id, what, vec![claim.at, finished.at]));
            }
            let Some(&asked) = facts.finishing.get(&finished.claim) else { continue };
            if is_echo(evidence, facts, finished) {
                continue;
            }
            if let Some((at, node)) = expired_before(evidence, facts, finished) {
                let what =
                    format!("node {node} was expired, and its end of claim {} was accepted", finished.claim);
                broken.push(BrokenRule::job(*id, what, vec![*at, asked, finished.at]));
            }
            // A repeat of what was applied before is told so, whatever has happened since.
            let later = facts.claims.iter().find(|later| later.number > finished.claim && later.at < asked);
            if let Some(later) = later {
                let what = format!(
                    "claim {} was ended ({:?}) when claim {} was given out",
                    finished.claim, finished.how, later.number
                );
                broken.push(BrokenRule::job(*id, what, vec![later.at, asked, finished.at]));
            }
        }
    }
}

/// Whether a write is told as accepted only because the job has ended in that very way without it: its deadline passed, or
/// an operator or its parent's end cancelled it, after its claim was lost. Nothing was written. Of a job that is not there any
/// more nobody can tell.
pub(super) fn is_echo(evidence: &Evidence<'_>, facts: &JobFacts<'_>, finished: &Finished) -> bool {
    // What it came to in the end, and what it had come to before an operator brought it back.
    let ends = facts.orders.iter().filter_map(|order| order.obeyed.map(|(_, from, _)| from));
    let mut ends = ends.chain(facts.found.map(|job| job.status));
    let mut ended = |reasons: &[Reason]| {
        facts.found.is_none() || ends.any(|end| end.reason.is_some_and(|one| reasons.contains(&one)))
    };
    evidence.expiries.iter().any(|(at, node)| *node == finished.node && *at < finished.at)
        && match finished.how {
            EndKind::Fail => ended(&[Reason::Expired]),
            EndKind::Cancel => ended(&[Reason::Operator, Reason::Parent]),
            EndKind::Succeed | EndKind::Retry | EndKind::Snooze | EndKind::Release | EndKind::Suspend => {
                false
            }
        }
}

/// When the node of a write was expired, if that was before it was sent and took its claims with it.
///
/// Expiry decides when rescue may start, never who wins. In the rigs that know the order of commits it takes all claims of
/// the node with it; elsewhere a rescue may step over a lease that somebody is touching, whose owner may still end it: what
/// counts there is that nobody else was given the job.
fn expired_before<'e>(
    evidence: &'e Evidence<'_>,
    facts: &JobFacts<'_>,
    finished: &Finished,
) -> Option<&'e (EventIndex, NodeNo)> {
    let asked = facts.asked(finished);
    evidence.expiries.iter().find(|(at, node)| evidence.terms.exact && *node == finished.node && *at < asked)
}

/// A job gets one accepted end, and one more for each time that an operator brings it back.
pub(super) fn doubled(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for (id, facts) in evidence.job_facts.iter().filter(|(_, facts)| !facts.may_have_returned()) {
        let ends = facts.ends();
        let retried = facts.revivals().count();
        if ends.len() > 1 + retried {
            let what = format!("{} ends were accepted, and it was brought back {retried} times", ends.len());
            broken.push(BrokenRule::job(*id, what, ends.iter().map(|end| end.at).collect()));
        }
    }
}

/// A job that has ended is not claimed again, unless an operator brings it back.
pub(super) fn after_end(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    if !evidence.terms.exact {
        return;
    }
    for (id, facts) in evidence.job_facts.iter().filter(|(_, facts)| !facts.may_have_returned()) {
        for end in facts.ends() {
            let again = facts.claims.iter().find(|claim| claim.at > end.at && claim.number > end.claim);
            // A success is final.
            let back = |at: EventIndex| {
                end.how != EndKind::Succeed && facts.brought_back_between(facts.asked(&end), at)
            };
            let Some(again) = again.filter(|again| !back(again.at)) else {
                continue;
            };
            let what = format!("ended by claim {} and claimed again as {}", end.claim, again.number);
            broken.push(BrokenRule::job(*id, what, vec![end.at, again.at]));
        }
    }
}

/// What the store holds in the end is what it accepted last, and success has an effect.
pub(super) fn agree(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    if evidence.terms.cut {
        return;
    }
    for (id, facts) in &evidence.job_facts {
        let Some(job) = facts.found.filter(|_| !facts.may_have_returned()) else { continue };
        if let Some(end) = facts.ends().last()
            && !facts.brought_back_between(facts.asked(end), usize::MAX)
            && (job.claim, job.status.state) != (end.claim, state(end.how))
        {
            let what = format!(
                "{:?} of claim {} was accepted, and the job is {} by claim {}",
                end.how, end.claim, job.status, job.claim
            );
            broken.push(BrokenRule::job(*id, what, vec![end.at]));
        }
        if job.status.state != State::Succeeded {
            continue;
        }
        let effects: Vec<_> = facts.ended.iter().filter(|(_, claim)| *claim == job.claim).collect();
        if effects.len() != 1 {
            let what = format!("succeeded by claim {}, which has {} effects", job.claim, effects.len());
            broken.push(BrokenRule::job(*id, what, effects.iter().map(|(at, _)| *at).collect()));
        }
        if !facts.finishing.contains_key(&job.claim) {
            let what = format!("succeeded by claim {}, which nobody ended", job.claim);
            broken.push(BrokenRule::job(*id, what, Vec::new()));
        }
    }
}

fn state(how: EndKind) -> State {
    match how {
        EndKind::Succeed => State::Succeeded,
        EndKind::Fail => State::Failed,
        EndKind::Cancel => State::Cancelled,
        EndKind::Retry | EndKind::Snooze | EndKind::Release => State::Scheduled,
        EndKind::Suspend => State::Suspended,
    }
}

/// Crashes, releases and snoozes burn no retry; failures do.
pub(super) fn failures(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    if evidence.terms.cut {
        return;
    }
    for (id, facts) in &evidence.job_facts {
        // A second life under the same id counts from nothing, and so does one that an operator gave back.
        let other = facts.was_brought_back() || facts.may_have_returned();
        let Some(job) = facts.found.filter(|_| !other) else { continue };
        let failed = |finished: &&Finished| {
            finished.how.fails() && finished.applied && !is_echo(evidence, facts, finished)
        };
        let accepted: BTreeSet<u32> =
            facts.finished.iter().filter(failed).map(|finished| finished.claim).collect();
        let (counted, accepted) = (usize::from(job.failures), accepted.len());
        // An answer that was lost may have been a yes.
        let asked = facts.finishing.len();
        // A deadline that passes while the job waits is a failure that no claim reports.
        let expired = usize::from(job.status.reason == Some(Reason::Expired));
        let most = if evidence.terms.exact { accepted } else { asked } + expired;
        if counted < accepted || counted > most {
            let what = format!("{counted} failures are counted, {accepted} were accepted");
            broken.push(BrokenRule::job(
                *id,
                what,
                facts.finished.iter().filter(failed).map(|one| one.at).collect(),
            ));
        }
    }
}

/// The handler of one claim is started once.
pub(super) fn twice(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for (id, facts) in evidence.job_facts.iter().filter(|(_, facts)| !facts.may_have_returned()) {
        let mut first = BTreeMap::new();
        for (at, claim) in &facts.began {
            if let Some(before) = first.insert(*claim, *at) {
                broken.push(BrokenRule::job(*id, format!("claim {claim} began twice"), vec![before, *at]));
            }
        }
    }
}

/// A job whose cancellation was acknowledged is not given out again, and does not wait for ever.
pub(super) fn cancel(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for (id, facts) in evidence.job_facts.iter().filter(|(_, facts)| !facts.may_have_returned()) {
        for order in facts.orders.iter().filter(|order| matches!(order.verb, "cancel" | "recall")) {
            let Some((obeyed, _, _)) = order.obeyed else { continue };
            if let Some(again) = given_out(evidence, facts, obeyed) {
                let what = format!("cancelled, and claimed again as {}", facts.claims[again].number);
                broken.push(BrokenRule::job(*id, what, vec![obeyed, facts.claims[again].at]));
            }
            let open = facts.found.filter(|job| evidence.terms.settled && !job.status.state.is_terminal());
            if let Some(job) = open.filter(|_| !facts.brought_back_between(obeyed, usize::MAX)) {
                let what = format!("cancelled, and still {}", job.status);
                broken.push(BrokenRule::job(*id, what, vec![obeyed]));
            }
        }
    }
}

/// The first new claim after an event without an operator's word in between.
fn given_out(evidence: &Evidence<'_>, facts: &JobFacts<'_>, after: usize) -> Option<usize> {
    if !evidence.terms.exact {
        return None;
    }
    let known = facts.claims.iter().filter(|claim| claim.at < after).map(|claim| claim.number).max();
    facts.claims.iter().position(|claim| {
        claim.at > after
            && known.is_none_or(|known| claim.number > known)
            && !facts.brought_back_between(after, claim.at)
    })
}
