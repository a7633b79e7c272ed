//! Damaged rows: the jobs concerned are set aside and do not run, and nobody else is.

use std::collections::BTreeMap;

use mainspring_core::id::JobId;
use mainspring_core::job::Reason;

use super::BrokenRule;
use super::reports_vs_facts::crashed;
use crate::checker::evidence::{EventIndex, Evidence, JobFacts};
use crate::checker::is_open;
use crate::history::Fact;

/// The row of a job, from its damage on.
struct Damaged {
    since: EventIndex,
    /// The number of its latest claim then.
    claim: u32,
    mended: Option<EventIndex>,
}

fn damaged(evidence: &Evidence<'_>) -> BTreeMap<JobId, Vec<Damaged>> {
    let mut all: BTreeMap<JobId, Vec<Damaged>> = BTreeMap::new();
    for (at, event) in evidence.history.iter().enumerate() {
        match event.fact {
            Fact::Damaged { id, claim } => {
                all.entry(id).or_default().push(Damaged { since: at, claim, mended: None });
            }
            Fact::Mended { id } => {
                if let Some(last) = all.get_mut(&id).and_then(|rows| rows.last_mut()) {
                    last.mended = Some(at);
                }
            }
            _ => {}
        }
    }
    all
}

/// A job is unreadable only if its row was damaged, and not in the end if that was mended.
pub(super) fn aside(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    let damaged = damaged(evidence);
    for (at, event) in evidence.history.iter().enumerate() {
        if let Fact::Obeyed { id, from, .. } = &event.fact
            && from.reason == Some(Reason::Unreadable)
            && !damaged.contains_key(id)
        {
            broken.push(BrokenRule::job(*id, "was unreadable, and nobody had damaged it", vec![at]));
        }
    }
    for job in evidence.found.jobs.iter().filter(|job| job.status.reason == Some(Reason::Unreadable)) {
        let last = damaged.get(&job.id).and_then(|rows| rows.last());
        match last {
            None => {
                broken.push(BrokenRule::job(job.id, "is unreadable, and nobody had damaged it", Vec::new()));
            }
            Some(Damaged { since, mended: Some(mended), .. }) if evidence.terms.settled => {
                broken.push(BrokenRule::job(job.id, "was mended, and is unreadable", vec![*since, *mended]));
            }
            Some(_) => {}
        }
    }
}

/// A job that is set aside as damaged has as many crashes as happened before. Where the order of commits is not known, whoever
/// looks at it must judge that himself.
pub(super) fn counts(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    if !evidence.terms.exact {
        return;
    }
    for (at, event) in evidence.history.iter().enumerate() {
        let Fact::Looked { id, status, crashes, .. } = event.fact else { continue };
        let facts = evidence.job_facts.get(&id).filter(|facts| !facts.may_have_returned());
        let Some(facts) = facts.filter(|_| status.reason == Some(Reason::Unreadable)) else { continue };
        let lost = crashed(evidence, facts, at);
        let told = usize::from(crashes);
        if told > lost.len() || (told == 0 && !lost.is_empty()) {
            let what = format!("set aside with {told} crashes, {} happened", lost.len());
            broken.push(BrokenRule::job(id, what, lost.into_iter().chain([at]).collect()));
        }
    }
}

/// Once faults are over, the damaged are set aside and all others come to their ends, although nobody has mended anything.
pub(super) fn holds_up(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    let calm = evidence.calm.unwrap_or(EventIndex::MAX);
    for (at, event) in evidence.history.iter().enumerate().skip(calm) {
        if let Fact::Looked { id, status, .. } = event.fact
            && is_open(status.state)
        {
            broken.push(BrokenRule::job(id, format!("still {status}, while rows are damaged"), vec![at]));
        }
    }
}

/// From its damage on no claim of a job is given to anybody, and nobody resumes it, until it is mended. The number of a claim
/// says whether it is an older one, of which somebody tells late.
pub(super) fn runs(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    let damaged = damaged(evidence);
    for (id, rows) in &damaged {
        let facts =
            evidence.job_facts.get(id).filter(|facts| evidence.terms.exact && !facts.may_have_returned());
        let resumed = facts.iter().flat_map(|facts| &facts.orders).filter(|order| order.verb == "resume");
        for (at, _, _) in resumed.filter_map(|order| order.obeyed) {
            if let Some(row) =
                rows.iter().find(|row| row.since < at && row.mended.is_none_or(|mended| at < mended))
            {
                broken.push(BrokenRule::job(*id, "resumed, and its row was damaged", vec![row.since, at]));
            }
        }
    }
    for (at, event) in evidence.history.iter().enumerate() {
        let (Fact::Began { id, claim } | Fact::Claimed { id, claim, .. }) = event.fact else { continue };
        let Some(rows) = damaged.get(&id) else { continue };
        // Stored again under its id, it is another row.
        if evidence.job_facts.get(&id).is_some_and(JobFacts::may_have_returned) {
            continue;
        }
        let meanwhile = |row: &&Damaged| claim > row.claim && row.mended.is_none_or(|mended| at < mended);
        if let Some(row) = rows.iter().find(meanwhile) {
            let what =
                format!("claim {claim} was given out, and its row was damaged after claim {}", row.claim);
            broken.push(BrokenRule::job(id, what, vec![row.since, at]));
        }
    }
}
