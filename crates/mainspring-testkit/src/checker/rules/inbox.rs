//! Signals, the ends of children, and sleep.

use std::collections::BTreeMap;
use std::time::Duration;

use mainspring_core::job::State;

use super::BrokenRule;
use super::workflows::{before, flows};
use crate::checker::evidence::{EventIndex, Evidence};
use crate::checker::workflow::{ClaimedJournal, Signal, WorkflowFacts, Write};
use crate::history::{InboxMessage, SignalAnswer};

/// How long after its time a job may be claimed when nothing is wrong: others may be before it.
const SLACK: Duration = Duration::from_secs(30);

/// When a message that was read is unread again, because the record that came of it was taken back.
fn unread(flow: &WorkflowFacts<'_>, no: i64, read: EventIndex) -> EventIndex {
    let again = flow.rewinds.iter().find(|rewind| rewind.at > read && rewind.unread.contains(&no));
    again.map_or(EventIndex::MAX, |rewind| rewind.at)
}

/// A message is read by one record, and is not delivered again after that, unless that record is taken back.
pub(super) fn read(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for (id, facts, flow) in flows(evidence) {
        let written = facts.written();
        let mut readers: BTreeMap<i64, Vec<&Write<'_>>> = BTreeMap::new();
        for write in &written {
            for no in &write.writes.read {
                let readers = readers.entry(*no).or_default();
                let first = readers.last().copied().filter(|first| unread(flow, *no, first.at) > write.at);
                let Some(first) = first else {
                    readers.push(write);
                    continue;
                };
                // A repeat of a record is the same record.
                if first.claim != write.claim || first.writes != write.writes {
                    let what = format!("message {no} was read twice");
                    broken.push(BrokenRule::job(*id, what, vec![first.at, write.at]));
                }
            }
        }
        for given in facts.givens() {
            let again = given.inbox.iter().find_map(|letter| {
                let mut readers = readers.get(&letter.no)?.iter();
                let first = readers.find(|first| {
                    before(evidence, first, &given) && unread(flow, letter.no, first.at) > given.at
                });
                first.map(|first| (letter.no, first.at))
            });
            if let Some((no, at)) = again {
                let what = format!("message {no} was read, and claim {} is given it", given.claim);
                broken.push(BrokenRule::job(*id, what, vec![at, given.at]));
            }
        }
    }
}

/// Whether a message was given to a claim, or read before it.
fn had(
    flow: &WorkflowFacts<'_>,
    written: &[Write<'_>],
    given: &ClaimedJournal<'_>,
    subject: &str,
    sender: &str,
) -> bool {
    let fits = |letter: &InboxMessage| letter.subject == subject && letter.sender == sender;
    if given.more || given.inbox.iter().any(fits) {
        return true;
    }
    let letters = flow.letters();
    let before = written.iter().filter(|write| write.at < given.at);
    let mut reads = before.flat_map(|write| write.writes.read.iter().map(|no| (*no, write.at)));
    reads.any(|(no, at)| {
        unread(flow, no, at) > given.at && letters.get(&no).is_some_and(|letter| fits(letter))
    })
}

/// What was dropped is given to nobody after that, unless the record of somebody who had read it before is taken back; and a
/// sender whose signal is there, was read or was dropped is not heard again.
pub(super) fn dropped(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for (id, facts, flow) in flows(evidence) {
        let stored = || flow.signals.iter().filter(|signal| signal.answer == SignalAnswer::Stored);
        for (number, signal) in stored().enumerate() {
            let same = |first: &&Signal<'_>| (first.subject, first.sender) == (signal.subject, signal.sender);
            if let Some(first) = stored().take(number).find(same) {
                let what = format!("{} of {} was stored twice", signal.subject, signal.sender);
                broken.push(BrokenRule::job(*id, what, vec![first.at, signal.at]));
            }
        }
        if !evidence.terms.exact || flow.dropped.is_empty() {
            continue;
        }
        let given = facts.givens().into_iter().map(|given| (given.at, given.inbox));
        for (at, inbox) in given.chain(flow.delivered.iter().copied()) {
            let rewound =
                |since: EventIndex| flow.rewinds.iter().any(|rewind| since < rewind.at && rewind.at < at);
            let gone = |letter: &InboxMessage| {
                let drops = flow.dropped.iter().filter(|drop| drop.at < at && !rewound(drop.at));
                let mut drops = drops.filter(|drop| drop.concerns(&letter.subject, &letter.sender));
                drops.find(|drop| {
                    let before = |signal: &Signal<'_>| {
                        signal.at < drop.at
                            && (signal.subject, signal.sender) == (&*letter.subject, &*letter.sender)
                    };
                    stored().any(before)
                })
            };
            if let Some((letter, drop)) = inbox.iter().find_map(|letter| Some((letter, gone(letter)?))) {
                let what =
                    format!("{} of {} was dropped, and is given to a claim", letter.subject, letter.sender);
                broken.push(BrokenRule::job(*id, what, vec![drop.at, at]));
            }
        }
    }
}

/// A signal that does not fit fails its wait when it was set aside: it is recorded as read, so that no later wait meets it.
pub(super) fn unfit(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for (id, facts, flow) in flows(evidence) {
        let written = facts.written();
        for (at, key) in &flow.unfit {
            let note = format!("{key}#unfit");
            let aside = |write: &Write<'_>| {
                write.at < *at
                    && !write.writes.read.is_empty()
                    && write.writes.entries.iter().any(|line| line.key.as_str() == note)
            };
            if !written.iter().any(aside) {
                let what = format!("`{key}` failed for what does not fit, which was not set aside");
                broken.push(BrokenRule::job(*id, what, vec![*at]));
            }
        }
    }
}

/// What was sent is given to every later claim until it is read or dropped: signals, and the ends of children.
pub(super) fn lost(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    if !evidence.terms.exact {
        return;
    }
    let mut children: BTreeMap<_, Vec<(String, EventIndex)>> = BTreeMap::new();
    for (id, facts) in &evidence.job_facts {
        let Some((parent, _)) = facts.flow.as_ref().and_then(|flow| flow.parent) else { continue };
        if let Some(end) = facts.ends().first() {
            children.entry(parent).or_default().push((format!("c:{id}"), end.at));
        }
    }
    for (id, facts, flow) in flows(evidence) {
        let signals = flow.signals.iter().filter(|signal| signal.answer == SignalAnswer::Stored);
        let signals = signals.map(|signal| (signal.subject.to_owned(), signal.sender, signal.at));
        let told = children.remove(id).unwrap_or_default().into_iter();
        let sent: Vec<_> = signals.chain(told.map(|(subject, at)| (subject, "", at))).collect();
        if sent.is_empty() {
            continue;
        }
        let written = facts.written();
        for given in facts.givens() {
            let dropped = |subject: &str, sender: &str, sent: EventIndex| {
                let mut drops = flow.dropped.iter().filter(|drop| sent < drop.at && drop.at < given.at);
                drops.any(|drop| drop.concerns(subject, sender))
            };
            let due = sent.iter().filter(|(_, _, at)| *at < given.at);
            let mut due = due.filter(|(subject, sender, at)| !dropped(subject, sender, *at));
            if let Some((subject, _, at)) =
                due.find(|(subject, sender, _)| !had(flow, &written, &given, subject, sender))
            {
                let what = format!("{subject} was stored, and claim {} is not given it", given.claim);
                broken.push(BrokenRule::job(*id, what, vec![*at, given.at]));
                break;
            }
        }
    }
}

/// A suspended job is woken when its time has come or what it waits for is there, not before, and soon after.
pub(super) fn woken(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    if !evidence.terms.exact {
        return;
    }
    for (id, facts, flow) in flows(evidence) {
        for (claim, suspend) in &flow.suspends {
            let Some(suspended) = facts.suspended(*claim) else { continue };
            let next = facts.claims.iter().find(|next| next.at > suspended && next.number > *claim);
            let Some(next) = next else { continue };
            let verbs = ["resume", "retry", "rewind", "hold"];
            if verbs.iter().any(|verb| facts.ordered_between(verb, suspended, next.at)) {
                continue;
            }
            let given = flow.given.iter().find(|given| given.claim == next.number);
            let there = suspend.waits.iter().any(|(subject, need)| {
                let came = given.map_or(0, |given| {
                    given.inbox.iter().filter(|letter| letter.subject == *subject).count()
                });
                came >= usize::try_from(*need).unwrap_or(usize::MAX)
            });
            let more = given.is_some_and(|given| given.more);
            // Or it was due before the clock went back.
            let due = evidence.went_back() || suspend.until.is_some_and(|until| until <= next.now);
            // It was there, and somebody has dropped it since.
            let mut drops = flow.dropped.iter().filter(|drop| suspended < drop.at && drop.at < next.at);
            let gone = drops.any(|drop| suspend.waits.iter().any(|(subject, _)| drop.took(subject)));
            if !there && !due && !more && !gone {
                let what = format!("claim {claim} was to sleep, and was woken for claim {}", next.number);
                broken.push(BrokenRule::job(*id, what, vec![suspend.at, next.at]));
            }
            let (Some(calm), Some(until)) = (evidence.calm, suspend.until) else { continue };
            let late = next.now.since(until);
            // From when on nothing holds it up.
            let quiet = evidence.time(calm.max(suspended)).after(Duration::from_mins(1));
            if late > SLACK && evidence.time(next.at).since(quiet) > late {
                let what = format!("claim {claim} was to sleep until {until}, and slept {late:?} longer");
                broken.push(BrokenRule::job(*id, what, vec![suspend.at, next.at]));
            }
        }
    }
}

/// When a job has ended, its children are not given out any more, but for those that go on without it.
pub(super) fn families(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    if !evidence.terms.exact {
        return;
    }
    for (id, facts, flow) in flows(evidence) {
        let Some((parent, abandoned)) = flow.parent.filter(|(_, abandoned)| !abandoned) else { continue };
        debug_assert!(!abandoned, "those were left out");
        let Some(parent) = evidence.job_facts.get(&parent).filter(|parent| !parent.may_have_returned())
        else {
            continue;
        };
        let ends = parent.ends();
        let finished = ends.iter().map(|end| end.at);
        let told = parent.orders.iter().filter_map(|order| order.obeyed);
        let told = told.filter(|(_, _, to)| to.is_some_and(|to| to.state.is_terminal())).map(|(at, _, _)| at);
        // Brought back, it may have other children.
        let since = parent.revivals().filter_map(|order| order.obeyed).map(|(at, _, _)| at).max();
        let ended = finished.chain(told).filter(|at| since.is_none_or(|since| *at > since)).min();
        let Some(ended) = ended else { continue };
        let known = facts.claims.iter().filter(|claim| claim.at < ended).map(|claim| claim.number).max();
        let again = facts.claims.iter().find(|claim| {
            claim.at > ended
                && known.is_none_or(|known| claim.number > known)
                && !facts.brought_back_between(0, claim.at)
        });
        if let Some(again) = again {
            let what = format!("its parent had ended, and claim {} was given out", again.number);
            broken.push(BrokenRule::job(*id, what, vec![ended, again.at]));
        }
        let open = facts.found.filter(|job| {
            let aside = matches!(job.status.state, State::Suspended) && !facts.orders.is_empty();
            evidence.terms.settled && !job.status.state.is_terminal() && !aside
        });
        if let Some(job) = open.filter(|_| !facts.was_brought_back()) {
            let what = format!("its parent has ended, and it is still {}", job.status);
            broken.push(BrokenRule::job(*id, what, vec![ended]));
        }
    }
}
