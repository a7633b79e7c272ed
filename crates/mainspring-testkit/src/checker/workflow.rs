//! What a history says of one workflow.

use std::collections::BTreeMap;

use mainspring_core::id::{JobId, NodeNo};
use mainspring_core::journal::{EntryKind, cut, operation};
use mainspring_core::name::Key;
use mainspring_core::time::Timestamp;

use super::evidence::{EventIndex, JobFacts};
use crate::history::{EndKind, Fact, InboxMessage, JournalWrites, Line, OutputFrame, SignalAnswer};

/// What happened to one workflow, beside what happens to every job.
#[derive(Default)]
pub(super) struct WorkflowFacts<'a> {
    /// When something was to be recorded, and under which claim.
    pub(super) recordings: Vec<(EventIndex, u32)>,
    pub(super) records: Vec<Record<'a>>,
    /// What it was stored with, and when that was first asked for.
    pub(super) shares: Option<(EventIndex, &'a JournalWrites)>,
    pub(super) rewinds: Vec<Rewind<'a>>,
    /// Suspensions, as they were first asked for, by claim.
    pub(super) suspends: BTreeMap<u32, Suspend<'a>>,
    /// What claims were given.
    pub(super) given: Vec<ClaimedJournal<'a>>,
    /// What looks into the inbox gave.
    pub(super) delivered: Vec<(EventIndex, &'a [InboxMessage])>,
    pub(super) signals: Vec<Signal<'a>>,
    pub(super) dropped: Vec<Dropped<'a>>,
    /// Waits that failed because of a signal that did not fit.
    pub(super) unfit: Vec<(EventIndex, &'a str)>,
    pub(super) entered: Vec<ScopeEntry<'a>>,
    pub(super) ran: Vec<(EventIndex, u32, &'a str)>,
    pub(super) saw: Vec<SeenResult<'a>>,
    pub(super) expects: Option<&'a [u64]>,
    /// When it was told what it is to say, and what.
    pub(super) says: Option<(EventIndex, &'a [OutputFrame])>,
    pub(super) decided: Vec<RaceDecision<'a>>,
    /// Names of steps: before, after, and whether the code says so.
    pub(super) renamed: Vec<(&'a str, &'a str, bool)>,
    /// Tokens that somebody came with: the step that made them, and whether they were good.
    pub(super) redeemed: Vec<(EventIndex, &'a str, bool)>,
    pub(super) returns: BTreeMap<u32, (EventIndex, u64)>,
    /// Its parent, and whether it goes on without it.
    pub(super) parent: Option<(JobId, bool)>,
}

pub(super) struct Record<'a> {
    pub(super) at: EventIndex,
    pub(super) node: NodeNo,
    pub(super) claim: u32,
    pub(super) stored: bool,
    pub(super) writes: &'a JournalWrites,
}

/// A retry from a step.
pub(super) struct Rewind<'a> {
    pub(super) at: EventIndex,
    from: &'a Key,
    /// The number that the job has since then: nobody was given a claim with it.
    pub(super) claim: u32,
    /// What it took back.
    took: JournalWrites,
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
    pub(super) at: EventIndex,
    pub(super) waits: &'a [(String, u32)],
    pub(super) until: Option<Timestamp>,
    pub(super) writes: &'a JournalWrites,
}

/// What a claim was given of its job's past.
#[derive(Clone, Copy)]
pub(super) struct ClaimedJournal<'a> {
    pub(super) at: EventIndex,
    pub(super) claim: u32,
    pub(super) entries: &'a [Line],
    pub(super) inbox: &'a [InboxMessage],
    pub(super) more: bool,
}

pub(super) struct Signal<'a> {
    pub(super) at: EventIndex,
    pub(super) subject: &'a str,
    pub(super) sender: &'a str,
    pub(super) answer: SignalAnswer,
}

/// Unread signals of a subject that were dropped, of one sender or of all.
pub(super) struct Dropped<'a> {
    pub(super) at: EventIndex,
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

pub(super) struct ScopeEntry<'a> {
    pub(super) at: EventIndex,
    pub(super) claim: u32,
    /// The claim under which its handler began: one that is kept in memory goes on under later ones.
    pub(super) since: u32,
    pub(super) key: &'a str,
    pub(super) once: bool,
}

pub(super) struct SeenResult<'a> {
    pub(super) at: EventIndex,
    pub(super) since: u32,
    pub(super) key: &'a str,
    pub(super) digest: Option<u64>,
    pub(super) rides: bool,
}

/// A handler goes on with the winner of a race.
pub(super) struct RaceDecision<'a> {
    pub(super) at: EventIndex,
    pub(super) claim: u32,
    pub(super) key: &'a str,
    pub(super) digest: u64,
}

/// Something that is in the journal from then on.
#[derive(Clone, Copy)]
pub(super) struct Write<'a> {
    pub(super) at: EventIndex,
    pub(super) claim: u32,
    pub(super) writes: &'a JournalWrites,
}

impl<'a> WorkflowFacts<'a> {
    pub(super) fn add(&mut self, at: EventIndex, fact: &'a Fact) {
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
                let (took, unread) = (JournalWrites::default(), Vec::new());
                self.rewinds.push(Rewind { at, from, claim: claim + 1, took, unread });
            }
            Fact::Belongs { parent, abandoned, .. } => self.parent = Some((*parent, *abandoned)),
            Fact::Suspending { claim, waits, until, writes, .. } => {
                let suspend = Suspend { at, waits, until: *until, writes };
                self.suspends.entry(*claim).or_insert(suspend);
            }
            Fact::Remembers { claim, entries, inbox, more, .. } => {
                self.given.push(ClaimedJournal { at, claim: *claim, entries, inbox, more: *more });
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
                self.entered.push(ScopeEntry { at, claim: *claim, since: *since, key, once: *once });
            }
            Fact::Ran { claim, key, .. } => self.ran.push((at, *claim, key)),
            Fact::Saw { since, key, digest, rides, .. } => {
                self.saw.push(SeenResult { at, since: *since, key, digest: *digest, rides: *rides });
            }
            Fact::Expects { results, .. } => self.expects = Some(results),
            Fact::Says { words, .. } => self.says = Some((at, words)),
            Fact::Decided { claim, key, digest, .. } => {
                self.decided.push(RaceDecision { at, claim: *claim, key, digest: *digest });
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
    pub(super) fn letters(&self) -> BTreeMap<i64, &'a InboxMessage> {
        let given = self.given.iter().flat_map(|given| given.inbox);
        let delivered = self.delivered.iter().flat_map(|(_, inbox)| *inbox);
        given.chain(delivered).map(|letter| (letter.no, letter)).collect()
    }
}

impl<'a> JobFacts<'a> {
    /// When a suspension of this claim was applied.
    pub(super) fn suspended(&self, claim: u32) -> Option<EventIndex> {
        let mut ends = self.finished.iter().filter(|end| end.applied && end.claim == claim);
        ends.find(|end| end.how == EndKind::Suspend).map(|end| end.at)
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
    fn taken(&self, number: usize) -> (JournalWrites, Vec<i64>) {
        let Some(flow) = &self.flow else { return Default::default() };
        let rewind = &flow.rewinds[number];
        let mut journal: Vec<(&Key, EntryKind, &JournalWrites)> = Vec::new();
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
        let (mut took, mut unread) = (JournalWrites::default(), Vec::new());
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
    pub(super) fn was_taken_back(&self, key: &str, after: EventIndex, before: EventIndex) -> bool {
        let rewinds = self.flow.iter().flat_map(|flow| &flow.rewinds);
        rewinds.filter(|rewind| after < rewind.at && rewind.at < before).any(|rewind| rewind.reaches(key))
    }

    /// When a body of this claim last began, or came to its end.
    pub(super) fn last_body(&self, claim: u32) -> Option<EventIndex> {
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
    pub(super) fn givens(&self) -> Vec<ClaimedJournal<'a>> {
        let Some(flow) = &self.flow else { return Vec::new() };
        let mut all = flow.given.clone();
        for claim in self.first_claims() {
            if all.iter().all(|given| given.claim != claim.number) {
                let nothing = ClaimedJournal {
                    at: claim.at,
                    claim: claim.number,
                    entries: &[],
                    inbox: &[],
                    more: false,
                };
                all.push(nothing);
            }
        }
        all.sort_by_key(|given| given.at);
        all
    }
}
