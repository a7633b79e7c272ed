//! Workflows: what is recorded, by whom, and that it is not done again.

use std::collections::BTreeMap;

use mainspring_core::journal::{Ended, EntryKind};
use mainspring_core::name::Key;

use super::BrokenRule;
use super::claims::is_echo;
use super::scopes::turn;
use crate::checker::evidence::{EventIndex, Evidence, JobFacts};
use crate::checker::workflow::{ClaimedJournal, WorkflowFacts, Write};
use crate::history::{EndKind, Line};

/// All workflows that had one life.
pub(super) fn flows<'e, 'a>(
    evidence: &'e Evidence<'a>,
) -> impl Iterator<Item = (&'e mainspring_core::id::JobId, &'e JobFacts<'a>, &'e WorkflowFacts<'a>)> {
    // What was recorded before a cut may be gone, and is done again then.
    let job_facts =
        evidence.job_facts.iter().filter(|(_, facts)| !evidence.terms.cut && !facts.may_have_returned());
    job_facts.filter_map(|(id, facts)| facts.flow.as_deref().map(|flow| (id, facts, flow)))
}

/// Whether a write was there when a claim was given out.
pub(super) fn before(evidence: &Evidence<'_>, write: &Write<'_>, given: &ClaimedJournal<'_>) -> bool {
    if evidence.terms.exact { write.at < given.at } else { write.claim < given.claim }
}

/// A recorded result never changes and is never lost: every later claim is given it, unless it was an error that was taken
/// back; and nothing is given that nobody recorded.
pub(super) fn immutable(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for (id, facts, _) in flows(evidence) {
        let written = facts.written();
        for given in facts.givens() {
            let mut journal: BTreeMap<&Key, (EventIndex, &Line)> = BTreeMap::new();
            for write in written.iter().filter(|write| before(evidence, write, &given)) {
                for key in &write.writes.forget {
                    journal.remove(key);
                }
                for line in &write.writes.entries {
                    journal.entry(&line.key).or_insert((write.at, line));
                }
            }
            for line in given.entries {
                match journal.remove(&line.key) {
                    Some((at, first))
                        if first.kind != line.kind
                            || line.digest.is_some_and(|digest| first.digest != Some(digest)) =>
                    {
                        let what = format!("`{}` changed before claim {}", line.key, given.claim);
                        broken.push(BrokenRule::job(*id, what, vec![at, given.at]));
                    }
                    None if evidence.terms.exact => {
                        let what =
                            format!("claim {} is given `{}`, which nobody recorded", given.claim, line.key);
                        broken.push(BrokenRule::job(*id, what, vec![given.at]));
                    }
                    _ => {}
                }
            }
            // An answer that says that an error was taken back may be missing, or that something gave way to the result of
            // its scope, or to the state after a later turn.
            let ended = Ended::of(given.entries.iter().map(|line| (line.key.as_str(), line.kind)));
            let gave_way = |line: &Line| {
                let later = |(key, turn): (&str, u64)| ended.has(&format!("{key}/{turn}"));
                line.kind == EntryKind::Error
                    || ended.has(line.key.as_str())
                    || turn(line.key.as_str()).is_some_and(later)
            };
            let lost = journal.iter().find(|(_, (_, line))| evidence.terms.exact || !gave_way(line));
            if let Some((key, (at, _))) = lost {
                let what = format!("`{key}` was recorded, and claim {} is not given it", given.claim);
                broken.push(BrokenRule::job(*id, what, vec![*at, given.at]));
            }
        }
    }
}

/// Nothing is recorded under a claim that is over, or by another node than the claim's.
pub(super) fn owner(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for (id, facts, flow) in flows(evidence) {
        for record in flow.records.iter().filter(|record| record.stored) {
            let asked = flow.recordings.iter().rev();
            let mut asked = asked.filter(|(at, claim)| *claim == record.claim && *at < record.at);
            let reached =
                if evidence.terms.exact { Some(record.at) } else { asked.next().map(|(at, _)| *at) };
            let Some(reached) = reached else { continue };
            let Some(claim) = facts.claim(record.claim) else { continue };
            if claim.node != record.node {
                let what = format!(
                    "node {} recorded under claim {} of node {}",
                    record.node, claim.number, claim.node
                );
                broken.push(BrokenRule::job(*id, what, vec![claim.at, record.at]));
            }
            let later = facts.claims.iter().find(|later| later.number > record.claim && later.at < reached);
            let over = facts.finished.iter().find(|end| {
                evidence.terms.exact && end.applied && end.claim == record.claim && end.at < reached
            });
            let expired = evidence.expiries.iter().find(|(at, node)| {
                evidence.terms.exact && *node == record.node && claim.at < *at && *at < reached
            });
            let gone = later.map(|later| later.at).or(over.map(|end| end.at)).or(expired.map(|(at, _)| *at));
            if let Some(gone) = gone {
                let what = format!("claim {} was over, and something was recorded under it", record.claim);
                broken.push(BrokenRule::job(*id, what, vec![gone, record.at]));
            }
        }
    }
}

/// The body of a step whose result is recorded does not begin again.
pub(super) fn again(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for (id, facts, flow) in flows(evidence) {
        let written = facts.written();
        for entered in &flow.entered {
            let known = |write: &Write<'_>| {
                write.claim < entered.claim || (write.claim == entered.claim && write.at < entered.at)
            };
            let mut there = None;
            for write in written.iter().filter(|write| known(write)) {
                if write.writes.forget.iter().any(|key| key.as_str() == entered.key) {
                    there = None;
                }
                if write.writes.entries.iter().any(|line| line.key.as_str() == entered.key) {
                    there.get_or_insert(write.at);
                }
            }
            // That it was taken back may have been stored without an answer that anybody saw.
            let error = flow
                .given
                .iter()
                .flat_map(|given| given.entries)
                .any(|line| line.key.as_str() == entered.key && line.kind == EntryKind::Error);
            if let Some(at) = there.filter(|_| evidence.terms.exact || !error) {
                let what =
                    format!("`{}` was recorded, and began again under claim {}", entered.key, entered.claim);
                broken.push(BrokenRule::job(*id, what, vec![at, entered.at]));
            }
        }
    }
}

/// A body that came to its end runs again only if its claim was lost before its result was recorded; one that must not run
/// twice does not.
pub(super) fn bodies(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for (id, facts, flow) in flows(evidence) {
        for (ran, claim, key) in &flow.ran {
            let mut ends = facts.finished.iter().filter(|end| end.applied && end.claim == *claim);
            let over = ends.find(|end| !is_echo(evidence, facts, end));
            let again = flow.entered.iter().find(|entered| {
                entered.key == *key
                    && !facts.was_taken_back(key, *ran, entered.at)
                    && ((entered.claim == *claim && entered.at > *ran)
                        || (entered.claim > *claim && over.is_some()))
            });
            if let Some(again) = again {
                let what = format!("`{key}` was done under claim {claim}, and again under {}", again.claim);
                broken.push(BrokenRule::job(*id, what, vec![*ran, again.at]));
            }
        }
        let mut first: BTreeMap<&str, EventIndex> = BTreeMap::new();
        for entered in flow.entered.iter().filter(|entered| entered.once) {
            if let Some(before) = first.insert(entered.key, entered.at)
                && !facts.was_taken_back(entered.key, before, entered.at)
            {
                let what = format!("`{}` must not begin twice, and did", entered.key);
                broken.push(BrokenRule::job(*id, what, vec![before, entered.at]));
            }
        }
    }
}

/// A result is recorded before its handler sees it; what came from outside, before the next body begins.
pub(super) fn seen(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for (id, facts, flow) in flows(evidence) {
        if flow.saw.is_empty() {
            continue;
        }
        let written = facts.written();
        let recorded = |key: &str, digest: Option<u64>, by: EventIndex| {
            let fits = |line: &Line| {
                line.key.as_str() == key
                    && (line.digest.is_none() || digest.is_none() || line.digest == digest)
            };
            let writes = written.iter().filter(|write| write.at < by);
            let given = flow.given.iter().filter(|given| given.at < by);
            let mut lines =
                writes.flat_map(|write| &write.writes.entries).chain(given.flat_map(|given| given.entries));
            lines.any(fits)
        };
        for saw in &flow.saw {
            let by = if saw.rides {
                let actor = evidence.history[saw.at].by;
                let next = flow.entered.iter().find(|entered| {
                    entered.at > saw.at
                        && entered.since == saw.since
                        && evidence.history[entered.at].by == actor
                });
                next.map(|entered| entered.at)
            } else {
                Some(saw.at)
            };
            let Some(by) = by else { continue };
            if !recorded(saw.key, saw.digest, by) {
                let what = format!("`{}` was not recorded when its handler went on with it", saw.key);
                broken.push(BrokenRule::job(*id, what, vec![saw.at, by]));
            }
        }
    }
}

/// A handler that goes on under a later claim than it began with was suspended by each one before: what it knows is stored.
pub(super) fn resumed(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    if !evidence.terms.exact {
        return;
    }
    for (id, facts, flow) in flows(evidence) {
        for entered in &flow.entered {
            // It may have been refused long before: what it learnt from then on counts for nothing.
            let refused = |before: &u32| facts.suspended(*before).is_none_or(|at| at > entered.at);
            if let Some(before) = (entered.since..entered.claim).find(refused) {
                let what = format!(
                    "a handler of claim {} went on under claim {}, and claim {before} was not suspended",
                    entered.since, entered.claim
                );
                broken.push(BrokenRule::job(*id, what, vec![entered.at]));
            }
        }
    }
}

/// What a workflow returns does not depend on what happened to its nodes.
pub(super) fn result(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for (id, facts, flow) in flows(evidence) {
        let Some(expected) = flow.expects else { continue };
        for end in facts.ends().iter().filter(|end| end.how == EndKind::Succeed) {
            let Some((at, result)) = flow.returns.get(&end.claim) else { continue };
            if !expected.contains(result) {
                let what = format!("claim {} returned what it does not come to", end.claim);
                broken.push(BrokenRule::job(*id, what, vec![*at, end.at]));
            }
        }
    }
}
