//! Damaged rows: the jobs concerned are set aside and do not run, and nobody else is.

use std::collections::BTreeMap;

use mainspring_core::id::JobId;
use mainspring_core::job::Reason;

use super::Broken;
use crate::checker::evidence::{At, Evidence};
use crate::history::Fact;

/// The row of a job, from its damage on.
struct Damaged {
    since: At,
    /// The number of its latest claim then.
    claim: u32,
    mended: Option<At>,
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
pub(super) fn aside(evidence: &Evidence<'_>, broken: &mut Vec<Broken>) {
    let damaged = damaged(evidence);
    for (at, event) in evidence.history.iter().enumerate() {
        if let Fact::Obeyed { id, from, .. } = &event.fact
            && from.reason == Some(Reason::Unreadable)
            && !damaged.contains_key(id)
        {
            broken.push(Broken::job(*id, "was unreadable, and nobody had damaged it", vec![at]));
        }
    }
    for job in evidence.found.jobs.iter().filter(|job| job.status.reason == Some(Reason::Unreadable)) {
        let last = damaged.get(&job.id).and_then(|rows| rows.last());
        match last {
            None => broken.push(Broken::job(job.id, "is unreadable, and nobody had damaged it", Vec::new())),
            Some(Damaged { since, mended: Some(mended), .. }) if evidence.terms.settled => {
                broken.push(Broken::job(job.id, "was mended, and is unreadable", vec![*since, *mended]));
            }
            Some(_) => {}
        }
    }
}

/// From its damage on no claim of a job is given to anybody, until it is mended. The number of a claim says whether it is an
/// older one, of which somebody tells late.
pub(super) fn runs(evidence: &Evidence<'_>, broken: &mut Vec<Broken>) {
    let damaged = damaged(evidence);
    for (at, event) in evidence.history.iter().enumerate() {
        let (Fact::Began { id, claim } | Fact::Claimed { id, claim, .. }) = event.fact else { continue };
        let Some(rows) = damaged.get(&id) else { continue };
        let meanwhile = |row: &&Damaged| claim > row.claim && row.mended.is_none_or(|mended| at < mended);
        if let Some(row) = rows.iter().find(meanwhile) {
            let what =
                format!("claim {claim} was given out, and its row was damaged after claim {}", row.claim);
            broken.push(Broken::job(id, what, vec![row.since, at]));
        }
    }
}
