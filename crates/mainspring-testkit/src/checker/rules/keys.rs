//! Unique keys.

use std::collections::BTreeMap;

use mainspring_core::job::{Reason, Summary, Until};
use mainspring_core::time::Timestamp;

use super::BrokenRule;
use crate::checker::evidence::Evidence;
use crate::history::Fact;

/// Of two jobs of one kind with one key, one has let go of it before the other took it.
pub(super) fn unique(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    if evidence.went_back() {
        return;
    }
    let mut by_key: BTreeMap<_, Vec<&Summary>> = BTreeMap::new();
    for job in &evidence.found.jobs {
        if let Some(unique) = &job.options.unique {
            by_key.entry((job.kind.clone(), unique.key.clone())).or_default().push(job);
        }
    }
    for ((_, key), mut jobs) in by_key {
        // Of two that were stored in one commit, the one that was replaced came first.
        jobs.sort_by_key(|job| (job.created_at, released(evidence, job), job.id));
        for pair in jobs.windows(2) {
            let (holder, next) = (pair[0], pair[1]);
            if released(evidence, holder).is_some_and(|until| until > next.created_at) {
                let asked = |job: &Summary| evidence.job_facts.get(&job.id).and_then(|facts| facts.asked);
                let what = format!("`{key}` was taken by {} while {} held it", next.id, holder.id);
                let events = asked(holder).into_iter().chain(asked(next)).collect();
                broken.push(BrokenRule::job(holder.id, what, events));
            }
        }
    }
}

/// When a job let go of its key; nothing if that cannot be told.
fn released(evidence: &Evidence<'_>, job: &Summary) -> Option<Timestamp> {
    let facts = evidence.job_facts.get(&job.id)?;
    // Brought back, it has no key any more, and its times are those of its second life.
    if facts.was_brought_back() {
        return None;
    }
    let never = Timestamp::from_micros(i64::MAX);
    let unique = job.options.unique.as_ref()?;
    match unique.until {
        // The next one has taken it from him.
        _ if job.status.reason == Some(Reason::Replaced) => job.finished_at,
        Until::Finished => Some(job.finished_at.unwrap_or(never)),
        Until::After(period) => Some(job.finished_at.map_or(never, |end| end.after(period))),
        // The claim that meets a damaged row starts the job and sets it aside, and tells nobody.
        Until::Started if !evidence.terms.exact || is_damaged(evidence, job) => None,
        Until::Started => {
            let started = facts.claims.first().map(|claim| claim.now);
            Some(started.or(job.finished_at).unwrap_or(never))
        }
    }
}

/// Whether its row was damaged at some time.
fn is_damaged(evidence: &Evidence<'_>, job: &Summary) -> bool {
    let mut facts = evidence.history.iter().map(|event| &event.fact);
    facts.any(|fact| matches!(fact, Fact::Damaged { id, .. } if *id == job.id))
}
