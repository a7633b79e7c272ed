//! What a history says of one workflow.

use std::collections::BTreeMap;

use mainspring_core::id::{JobId, NodeNo};
use mainspring_core::journal::{EntryKind, cut, operation};
use mainspring_core::name::Key;
use mainspring_core::time::Timestamp;

use super::evidence::{At, Life};
use crate::history::{Fact, How, Letter, Line, Posted, Word, Wrote};

/// What happened to one workflow, beside what happens to every job.
#[derive(Default)]
pub(super) struct Flow<'a> {
    /// When something was to be recorded, and under which claim.
    pub(super) recordings: Vec<(At, u32)>,
    pub(super) records: Vec<Record<'a>>,
    /// What it was stored with, and when that was first asked for.
    pub(super) shares: Option<(At, &'a Wrote)>,
    pub(super) rewinds: Vec<Rewind<'a>>,
    /// Suspensions, as they were first asked for, by claim.
    pub(super) suspends: BTreeMap<u32, Suspend<'a>>,
    /// What claims were given.
    pub(super) given: Vec<Given<'a>>,
    /// What looks into the inbox gave.
    pub(super) delivered: Vec<(At, &'a [Letter])>,
    pub(super) signals: Vec<Signal<'a>>,
    pub(super) dropped: Vec<Dropped<'a>>,
    /// Waits that failed because of a signal that did not fit.
    pub(super) unfit: Vec<(At, &'a str)>,
    pub(super) entered: Vec<Entered<'a>>,
    pub(super) ran: Vec<(At, u32, &'a str)>,
    pub(super) saw: Vec<Saw<'a>>,
    pub(super) expects: Option<&'a [u64]>,
    /// When it was told what it is to say, and what.
    pub(super) says: Option<(At, &'a [Word])>,
    pub(super) decided: Vec<Decided<'a>>,
    /// Names of steps: before, after, and whether the code says so.
    pub(super) renamed: Vec<(&'a str, &'a str, bool)>,
    /// Tokens that somebody came with: the step that made them, and whether they were good.
    pub(super) redeemed: Vec<(At, &'a str, bool)>,
    pub(super) returns: BTreeMap<u32, (At, u64)>,
    /// Its parent, and whether it goes on without it.
    pub(super) parent: Option<(JobId, bool)>,
}

pub(super) struct Record<'a> {
    pub(super) at: At,
    pub(super) node: NodeNo,
    pub(super) claim: u32,
    pub(super) stored: bool,
    pub(super) writes: &'a Wrote,
}

/// A retry from a step.
pub(super) struct Rewind<'a> {
    pub(super) at: At,
    from: &'a Key,
    /// The number that the job has since then: nobody was given a claim with it.
    pub(super) claim: u32,
    /// What it took back.
    took: Wrote,
    /// Messages that are unread again.
    pub(super) unread: Vec<i64>,
}

impl Rewind<'_> {
    /// Whether something that an operation had recorded went, or a scope around it: it may be done again.
    pub(super) fn reaches(&self, key: &str) -> bool {
        self.took.forget.iter().any(|gone| {
            let gone = operation(gone.as_str());
            key.strip_prefix(gone).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }
}

pub(super) struct Suspend<'a> {
    pub(super) at: At,
    pub(super) waits: &'a [(String, u32)],
    pub(super) until: Option<Timestamp>,
    pub(super) writes: &'a Wrote,
}

/// What a claim was given of its job's past.
#[derive(Clone, Copy)]
pub(super) struct Given<'a> {
    pub(super) at: At,
    pub(super) claim: u32,
    pub(super) entries: &'a [Line],
    pub(super) inbox: &'a [Letter],
    pub(super) more: bool,
}

pub(super) struct Signal<'a> {
    pub(super) at: At,
    pub(super) subject: &'a str,
    pub(super) sender: &'a str,
    pub(super) answer: Posted,
}

/// Unread signals of a subject that were dropped, of one sender or of all.
pub(super) struct Dropped<'a> {
    pub(super) at: At,
    subject: &'a str,
    sender: Option<&'a str>,
    count: usize,
}

impl Dropped<'_> {
    /// Whether it took away something of this subject.
    pub(super) fn took(&self, subject: &str) -> bool {
        self.subject == subject && self.count > 0
    }

    /// Whether it was about signals like this one.
    pub(super) fn concerns(&self, subject: &str, sender: &str) -> bool {
        self.subject == subject && self.sender.is_none_or(|of| of == sender)
    }
}

pub(super) struct Entered<'a> {
    pub(super) at: At,
    pub(super) claim: u32,
    /// The claim under which its handler began: one that is kept in memory goes on under later ones.
    pub(super) since: u32,
    pub(super) key: &'a str,
    pub(super) once: bool,
}

pub(super) struct Saw<'a> {
    pub(super) at: At,
    pub(super) since: u32,
    pub(super) key: &'a str,
    pub(super) digest: Option<u64>,
    pub(super) rides: bool,
}

/// A handler goes on with the winner of a race.
pub(super) struct Decided<'a> {
    pub(super) at: At,
    pub(super) claim: u32,
    pub(super) key: &'a str,
    pub(super) digest: u64,
}

/// Something that is in the journal from then on.
#[derive(Clone, Copy)]
pub(super) struct Write<'a> {
    pub(super) at: At,
    pub(super) claim: u32,
    pub(super) writes: &'a Wrote,
}

impl<'a> Flow<'a> {
    pub(super) fn add(&mut self, at: At, fact: &'a Fact) {
        match fact {
            Fact::Recording { claim, .. } => self.recordings.push((at, *claim)),
            Fact::Recorded { node, claim, stored, writes, .. } => {
                self.records.push(Record { at, node: *node, claim: *claim, stored: *stored, writes });
            }
            Fact::Shares { writes, .. } => {
                // A repeat of an enqueue shares the same.
                self.shares.get_or_insert((at, writes));
            }
            Fact::Rewound { from, claim, .. } => {
                let (took, unread) = (Wrote::default(), Vec::new());
                self.rewinds.push(Rewind { at, from, claim: claim + 1, took, unread });
            }
            Fact::Belongs { parent, abandoned, .. } => self.parent = Some((*parent, *abandoned)),
            Fact::Suspending { claim, waits, until, writes, .. } => {
                let suspend = Suspend { at, waits, until: *until, writes };
                self.suspends.entry(*claim).or_insert(suspend);
            }
            Fact::Remembers { claim, entries, inbox, more, .. } => {
                self.given.push(Given { at, claim: *claim, entries, inbox, more: *more });
            }
            Fact::Delivered { inbox, .. } => self.delivered.push((at, inbox)),
            Fact::Signalled { subject, sender, answer, .. } => {
                self.signals.push(Signal { at, subject, sender, answer: *answer });
            }
            Fact::Dropped { subject, sender, count, .. } => {
                self.dropped.push(Dropped { at, subject, sender: sender.as_deref(), count: *count });
            }
            Fact::Unfit { key, .. } => self.unfit.push((at, key)),
            Fact::Entered { claim, since, key, once, .. } => {
                self.entered.push(Entered { at, claim: *claim, since: *since, key, once: *once });
            }
            Fact::Ran { claim, key, .. } => self.ran.push((at, *claim, key)),
            Fact::Saw { since, key, digest, rides, .. } => {
                self.saw.push(Saw { at, since: *since, key, digest: *digest, rides: *rides });
            }
            Fact::Expects { results, .. } => self.expects = Some(results),
            Fact::Says { words, .. } => self.says = Some((at, words)),
            Fact::Decided { claim, key, digest, .. } => {
                self.decided.push(Decided { at, claim: *claim, key, digest: *digest });
            }
            Fact::Renamed { from, to, declared, .. } => self.renamed.push((from, to, *declared)),
            Fact::Redeemed { key, good, .. } => self.redeemed.push((at, key, *good)),
            Fact::Returns { claim, result, .. } => {
                self.returns.entry(*claim).or_insert((at, *result));
            }
            _ => {}
        }
    }

    /// All messages that were ever delivered, by number.
    pub(super) fn letters(&self) -> BTreeMap<i64, &'a Letter> {
        let given = self.given.iter().flat_map(|given| given.inbox);
        let delivered = self.delivered.iter().flat_map(|(_, inbox)| *inbox);
        given.chain(delivered).map(|letter| (letter.no, letter)).collect()
    }
}

impl<'a> Life<'a> {
    /// When a suspension of this claim was applied.
    pub(super) fn suspended(&self, claim: u32) -> Option<At> {
        let mut ends = self.finished.iter().filter(|end| end.applied && end.claim == claim);
        ends.find(|end| end.how == How::Suspend).map(|end| end.at)
    }

    /// Finds out what each retry from a step has taken back.
    pub(super) fn take_back(&mut self) {
        for at in 0..self.flow.as_ref().map_or(0, |flow| flow.rewinds.len()) {
            let (took, unread) = self.taken(at);
            if let Some(rewind) = self.flow.as_mut().and_then(|flow| flow.rewinds.get_mut(at)) {
                (rewind.took, rewind.unread) = (took, unread);
            }
        }
    }

    /// What a retry from a step takes back, given that it is known of those before it.
    fn taken(&self, number: usize) -> (Wrote, Vec<i64>) {
        let Some(flow) = &self.flow else { return Default::default() };
        let rewind = &flow.rewinds[number];
        let mut journal: Vec<(&Key, EntryKind, &Wrote)> = Vec::new();
        for write in self.written().iter().filter(|write| write.at < rewind.at) {
            journal.retain(|(key, _, _)| !write.writes.forget.contains(key));
            for line in &write.writes.entries {
                if journal.iter().all(|(key, _, _)| **key != line.key) {
                    journal.push((&line.key, line.kind, write.writes));
                }
            }
        }
        let entries: Vec<_> = journal.iter().map(|(key, kind, _)| (key.as_str(), *kind)).collect();
        let stays = cut(&entries, rewind.from.as_str()).unwrap_or_default();
        let letters = flow.letters();
        let (mut took, mut unread) = (Wrote::default(), Vec::new());
        for ((key, kind, writes), _) in journal.iter().zip(stays).filter(|(_, stays)| !stays) {
            took.forget.push((*key).clone());
            if *kind == EntryKind::Received {
                let label = key.as_str().rsplit('/').next().unwrap_or_default();
                let subject = format!("s:{}", label.split('#').next().unwrap_or_default());
                let reads = writes.read.iter().copied();
                unread.extend(
                    reads.filter(|no| letters.get(no).is_some_and(|letter| letter.subject == subject)),
                );
            }
        }
        (took, unread)
    }

    /// Whether a retry from a step between two events let an operation be done again.
    pub(super) fn was_taken_back(&self, key: &str, after: At, before: At) -> bool {
        let rewinds = self.flow.iter().flat_map(|flow| &flow.rewinds);
        rewinds.filter(|rewind| after < rewind.at && rewind.at < before).any(|rewind| rewind.reaches(key))
    }

    /// When a body of this claim last began, or came to its end.
    pub(super) fn last_body(&self, claim: u32) -> Option<At> {
        let flow = self.flow.as_deref()?;
        let entered = flow.entered.iter().map(|entered| (entered.at, entered.claim));
        let ran = flow.ran.iter().map(|(at, claim, _)| (*at, *claim));
        entered.chain(ran).filter(|(_, of)| *of == claim).map(|(at, _)| at).max()
    }

    /// All that was accepted into its journal, in order: also what it was stored with, and what was taken back.
    pub(super) fn written(&self) -> Vec<Write<'_>> {
        let Some(flow) = &self.flow else { return Vec::new() };
        let stored = flow.records.iter().filter(|record| record.stored);
        let recorded =
            stored.map(|record| Write { at: record.at, claim: record.claim, writes: record.writes });
        let suspended = flow.suspends.iter().filter_map(|(claim, suspend)| {
            let at = self.suspended(*claim)?;
            Some(Write { at, claim: *claim, writes: suspend.writes })
        });
        let shared = flow.shares.map(|(at, writes)| Write { at, claim: 0, writes });
        let rewound = flow.rewinds.iter();
        let rewound =
            rewound.map(|rewind| Write { at: rewind.at, claim: rewind.claim, writes: &rewind.took });
        let mut all: Vec<Write<'_>> =
            shared.into_iter().chain(recorded).chain(suspended).chain(rewound).collect();
        all.sort_by_key(|write| write.at);
        all
    }

    /// What each claim was given; nothing, if it was not told of a past.
    pub(super) fn givens(&self) -> Vec<Given<'a>> {
        let Some(flow) = &self.flow else { return Vec::new() };
        let mut all = flow.given.clone();
        for claim in self.first_claims() {
            if all.iter().all(|given| given.claim != claim.number) {
                let nothing =
                    Given { at: claim.at, claim: claim.number, entries: &[], inbox: &[], more: false };
                all.push(nothing);
            }
        }
        all.sort_by_key(|given| given.at);
        all
    }
}
