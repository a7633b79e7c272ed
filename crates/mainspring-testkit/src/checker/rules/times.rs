//! Times that were asked for: deadlines, and the waits between attempts.

use std::time::Duration;

use super::BrokenRule;
use crate::checker::evidence::Evidence;
use crate::history::{EndKind, Fact};

/// How long it takes to drop a handler, and how far clocks may be apart.
const SLACK: Duration = Duration::from_secs(1);

/// Faults that move the store's clock.
const LEAPS: &[&str] = &["leap", "year", "back"];

/// No handler begins after its job's deadline, and none outlives it.
pub(super) fn deadline(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for (id, facts) in evidence.job_facts.iter().filter(|(_, facts)| !facts.may_have_returned()) {
        let (Some(job), Some(deadline)) = (facts.found, facts.deadline) else { continue };
        // Brought back, it has none any more.
        if facts.was_brought_back() {
            continue;
        }
        let until = job.created_at.after(deadline);
        for claim in &facts.claims {
            let Some((began, _)) = facts.began.iter().find(|(_, number)| *number == claim.number) else {
                continue;
            };
            if claim.now >= until && claim.at < *began {
                let what = format!("claim {} began after its deadline, {until}", claim.number);
                broken.push(BrokenRule::job(*id, what, vec![claim.at, *began]));
                continue;
            }
            let latest = evidence.time(claim.at).after(until.since(claim.now).mul_f64(1.02) + SLACK);
            let Some(&stopped) = facts.stopped.get(&claim.number) else { continue };
            // Who waits to be suspended does nothing any more, and may wait long for a node that is cut off: also behind
            // others, until after it was dropped.
            let suspends = |at: &usize| {
                matches!(evidence.history[*at].fact, Fact::Finishing { how: EndKind::Suspend, .. })
            };
            let waits = facts.finishing.get(&claim.number).is_some_and(suspends);
            let stopped = if waits { facts.last_body(claim.number).unwrap_or(*began) } else { stopped };
            let actor = evidence.history[*began].by;
            let stood = evidence.faults.iter().any(|fault| {
                fault.kind == "stop"
                    && fault.on == Some(actor)
                    && fault.at < stopped
                    && fault.until.is_none_or(|over| over >= evidence.time(claim.at))
            });
            if evidence.time(stopped) > latest && !stood {
                let what = format!("claim {} ran on after its deadline, {until}", claim.number);
                broken.push(BrokenRule::job(*id, what, vec![*began, stopped]));
            }
        }
    }
}

/// What is to wait before its next attempt does.
pub(super) fn deferred(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    if !evidence.terms.exact {
        return;
    }
    for (id, facts) in evidence.job_facts.iter().filter(|(_, facts)| !facts.may_have_returned()) {
        for (claim, after) in &facts.deferred {
            let waits = |how: EndKind| matches!(how, EndKind::Retry | EndKind::Snooze);
            let Some(end) =
                facts.finished.iter().find(|end| end.applied && end.claim == *claim && waits(end.how))
            else {
                continue;
            };
            let Some(next) = facts.claims.iter().find(|next| next.at > end.at && next.number > *claim) else {
                continue;
            };
            let waited = evidence.time(next.at).since(evidence.time(end.at));
            // The store's own clock may have leapt.
            let leapt = evidence
                .faults
                .iter()
                .any(|fault| LEAPS.contains(&fault.kind) && end.at < fault.at && fault.at < next.at);
            if waited < *after && !leapt && !facts.brought_back_between(end.at, next.at) {
                let what =
                    format!("to wait {after:?} after claim {claim}, and claimed again after {waited:?}");
                broken.push(BrokenRule::job(*id, what, vec![end.at, next.at]));
            }
        }
    }
}

/// A delayed job that is held keeps its time: only an operator's `retry` calls it up early.
pub(super) fn held(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    if evidence.went_back() {
        return;
    }
    for (id, facts) in evidence.job_facts.iter().filter(|(_, facts)| !facts.may_have_returned()) {
        let (Some(job), Some(claim)) = (facts.found, facts.claims.first()) else { continue };
        if !facts.was_brought_back() && claim.now < job.created_at.after(facts.delay) {
            let what = format!("claimed at {}, {:?} after {}", claim.now, facts.delay, job.created_at);
            broken.push(BrokenRule::job(*id, what, vec![claim.at]));
        }
    }
}
