//! The drift guard: whether what is recorded still fits the code.
//!
//! Code changes while workflows run. Most changes do no harm: what is recorded is found again by its name. But when the
//! code asks for a name that is not recorded, while other names are recorded in that scope and nobody has asked for them,
//! then a step was added, removed or renamed, or the code goes another way than before; to go on could do something twice
//! that has another name now. So the operation hesitates, before any effect, until all that can run has run: what others
//! ask for beside it counts. If names remain then, the job is set aside with both lists, and people decide.
//!
//! What the code says of itself (`added`, `renamed_from`, `retired`) is no drift, and neither is what an operator said: that
//! is a message to the job, and is recorded when it is used.
//!
//! # Invariants
//! - Nothing recorded is run again under another name without anybody's word.
//! - Keys that come from data (`key`, the items of a map, the turns of a loop) are no names.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::ops::Bound;
use std::sync::Arc;
use std::task::{Poll, Waker};

use mainspring_core::Result;
use mainspring_core::journal::{Entry, EntryKind, Mail, Message, TURN, Written};
use mainspring_core::name::Key;
use mainspring_core::planted::{self, Defect};
use serde::{Deserialize, Serialize};

use super::key::{Slot, beside};
use super::session::{Session, State};
use super::step::Op;
use crate::context::Context;

/// The signal by which operators say how a drift is to be taken.
pub(crate) const TOPIC: &str = "mainspring.drift";
/// What is said of a handler that was stopped behind what is recorded.
pub(crate) const STOPPED: &str = "everything recorded was asked for";
/// Names that are told of.
const TOLD: usize = 10;

/// What an operator says of a drift.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Word {
    /// What the code asks for is new.
    Accept,
    /// What the code asks for as `to` is recorded as `from`.
    Rename {
        /// What it was called.
        from: String,
        /// What it is called.
        to: String,
    },
}

/// Operations that are not sure whether they fit, and names that nobody has to ask for.
#[derive(Default)]
pub(crate) struct Drift {
    hesitating: BTreeMap<u64, Hesitant>,
    /// Scopes and names.
    excused: BTreeSet<(Arc<str>, String)>,
    /// What was recorded before the error of a step was taken back. The step may come out otherwise this time, and so may the
    /// way: it is not missed.
    former: BTreeSet<Key>,
    /// Whether the handler is not to go on behind what is recorded.
    stopped: bool,
}

/// Where it is kept that an error was taken back.
pub(crate) const AGAIN: &str = "again";

struct Hesitant {
    scope: Arc<str>,
    name: String,
    key: Key,
    verdict: Option<Verdict>,
    waker: Option<Waker>,
}

#[derive(Clone)]
enum Verdict {
    /// It fits, or was accepted.
    Go,
    /// It is recorded under this name.
    Was(String),
}

/// What came of looking at those who hesitate.
pub(crate) enum Judged {
    /// Nobody hesitates.
    Nobody,
    /// Somebody goes on.
    Go,
    /// What runs may yet ask for what is recorded.
    Wait,
    /// What is recorded does not fit the code: why.
    Drift(String),
}

impl Drift {
    /// What a journal has of it; in the order of recording.
    pub(crate) fn load(entries: &[Written]) -> Self {
        let again = entries.iter().rposition(|entry| entry.key.as_str().ends_with("#again"));
        let former =
            entries.iter().take(again.map_or(0, |at| at + 1)).map(|entry| entry.key.clone()).collect();
        Drift { former, ..Drift::default() }
    }

    pub(crate) fn wakers(&mut self) -> impl Iterator<Item = Waker> {
        self.hesitating.values_mut().filter_map(|hesitant| hesitant.waker.take())
    }
}

impl State {
    /// Names that are recorded in a scope, and that nobody has asked for.
    fn unasked(&self, scope: &str) -> BTreeSet<&str> {
        let mut names = BTreeSet::new();
        for (label, deeper, written) in self.recorded_in(scope) {
            if self.drift.former.contains(&written.key) {
                continue;
            }
            let name = name_of(label);
            // What has no name belongs to no operation.
            if name.is_empty() {
                continue;
            }
            // A result that was asked for is not here any more. What belongs to it, or lies deeper, may be.
            let asked = (deeper || !is_result(label)) && self.scopes.asked(scope, name);
            if !asked && !self.drift.excused.iter().any(|(path, one)| &**path == scope && one == name) {
                names.insert(name);
            }
        }
        names
    }

    /// What is recorded in a scope and was not found yet: its label, whether the record lies deeper, and the record.
    fn recorded_in(&self, scope: &str) -> impl Iterator<Item = (&str, bool, &Written)> {
        let first = if scope.is_empty() { String::new() } else { format!("{scope}/") };
        let entries = self.entries.range::<str, _>((Bound::Included(first.as_str()), Bound::Unbounded));
        let inside = entries.map_while(|(key, written)| Some((key.as_str().strip_prefix(&first)?, written)));
        let labels = inside.map(|(rest, written)| match rest.split_once('/') {
            Some((label, _)) => (label, true, written),
            None => (rest, false, written),
        });
        labels.collect::<Vec<_>>().into_iter()
    }

    /// Whether an operation is a stranger in its scope: nothing is recorded of its name, and others have not been asked
    /// for.
    fn is_stranger(&self, slot: &Slot) -> bool {
        if self.entries.is_empty() || planted::is(Defect::DriftIgnored) {
            return false;
        }
        let (scope, name) = (slot.path(), name_of(slot.label()));
        !self.scopes.repeats(scope, slot.label(), name)
            && !self.recorded_in(scope).any(|(label, ..)| name_of(label) == name)
            && !self.unasked(scope).is_empty()
    }

    /// Looks at those who hesitate when nothing goes on by itself. `foreign`: something may yet wake the handler that we
    /// know nothing of.
    pub(crate) fn judge(&mut self, foreign: bool) -> Judged {
        let open = |hesitant: &&Hesitant| hesitant.verdict.is_none();
        let fits: Vec<u64> = {
            let all = self.drift.hesitating.iter().filter(|(_, hesitant)| open(hesitant));
            all.filter(|(_, hesitant)| self.unasked(&hesitant.scope).is_empty()).map(|(id, _)| *id).collect()
        };
        if !fits.is_empty() {
            for id in fits {
                self.conclude(id, Verdict::Go);
            }
            return Judged::Go;
        }
        let Some((&id, hesitant)) = self.drift.hesitating.iter().find(|(_, hesitant)| open(hesitant)) else {
            let all = self.drift.stopped && self.busy == 0;
            return if all { Judged::Drift(STOPPED.to_owned()) } else { Judged::Nobody };
        };
        if self.busy > 0 {
            return Judged::Wait;
        }
        let (scope, name, key) = (Arc::clone(&hesitant.scope), hesitant.name.clone(), hesitant.key.clone());
        if foreign {
            let recorded: Vec<&str> = self.unasked(&scope).into_iter().take(TOLD).collect();
            tracing::warn!(%key, recorded = recorded.join(", "), "a step that is not recorded, while others are recorded that the handler has not asked for; it awaits something that is not durable, so it goes on");
            self.conclude(id, Verdict::Go);
            return Judged::Go;
        }
        match self.word(&scope, &name) {
            Some((message, word)) => {
                let (mark, value, verdict) = match word {
                    Word::Accept => (ACCEPTED, "null".to_owned(), Verdict::Go),
                    Word::Rename { from, .. } => {
                        (RENAMED, serde_json::Value::from(from.as_str()).to_string(), Verdict::Was(from))
                    }
                };
                if let Ok(key) = beside(&key, mark) {
                    let value = value.into_bytes();
                    self.riding.entries.push(Entry { key, kind: EntryKind::Value, overlapped: false, value });
                    self.riding.read.push(message.no);
                    self.eager = true;
                }
                self.conclude(id, verdict);
                Judged::Go
            }
            None => Judged::Drift(self.tell(&scope, &name)),
        }
    }

    fn conclude(&mut self, id: u64, verdict: Verdict) {
        if let Some(hesitant) = self.drift.hesitating.get_mut(&id) {
            hesitant.verdict = Some(verdict);
        }
    }

    /// What an operator has said of a drift at this name, if anything, and has not been used.
    fn word(&mut self, scope: &str, name: &str) -> Option<(Message, Word)> {
        let unasked = self.unasked(scope);
        let fits = |word: &Word| match word {
            Word::Accept => true,
            // A slip of the pen is not to do something a second time.
            Word::Rename { from, to } => to == name && unasked.contains(from.as_str()),
        };
        let at = self.inbox.iter().position(|message| heard(message).as_ref().is_some_and(fits))?;
        let message = self.inbox.remove(at);
        let word = heard(&message)?;
        Some((message, word))
    }

    /// The handler has come to a wait: what was said of drift and not needed until here is not kept for another one.
    pub(super) fn spend_words(&mut self) {
        let spent = self.inbox.extract_if(.., |message| heard(message).is_some()).map(|message| message.no);
        self.riding.read.extend(spent);
    }

    /// Both lists, for people.
    fn tell(&self, scope: &str, name: &str) -> String {
        let names = self.unasked(scope);
        let more = if names.len() > TOLD { ", \u{2026}" } else { "" };
        let recorded: Vec<String> = names.iter().take(TOLD).map(|name| format!("`{name}`")).collect();
        let place = if scope.is_empty() { String::new() } else { format!(" in `{scope}`") };
        format!(
            "the code asks for `{name}`{place}, which is not recorded; recorded and not asked for: {}{more}",
            recorded.join(", ")
        )
    }
}

/// Where it is kept what an operation was called.
const RENAMED: &str = "renamed";
/// Where it is kept that an operation is new, whatever else is recorded.
pub(crate) const ACCEPTED: &str = "accepted";

/// What an operator says in a message, if it is about drift.
fn heard(message: &Message) -> Option<Word> {
    match &message.mail {
        Mail::Signal { name, body, .. } if name.as_str() == TOPIC => serde_json::from_slice(body).ok(),
        _ => None,
    }
}

/// The name in a label.
fn name_of(label: &str) -> &str {
    label.split('#').next().unwrap_or(label)
}

/// Whether a label is that of a result, and not of what belongs to an operation beside it.
fn is_result(label: &str) -> bool {
    match label.rsplit_once('#') {
        None => true,
        Some((_, last)) => last.starts_with('=') || last.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

impl Session {
    /// Waits until it is clear that an operation fits; what it was called, if it has another name now.
    async fn hesitate(&self, slot: &Slot) -> Option<String> {
        if !self.state().is_stranger(slot) {
            return None;
        }
        let mut waiting = Waiting { session: self, id: None };
        let verdict = poll_fn(|context| {
            let mut state = self.state();
            let id = *waiting.id.get_or_insert_with(|| state.number());
            if let Some(verdict) =
                state.drift.hesitating.get(&id).and_then(|hesitant| hesitant.verdict.clone())
            {
                return Poll::Ready(verdict);
            }
            let own = context.waker().will_wake(&self.waker);
            let hesitant = Hesitant {
                scope: Arc::clone(slot.path()),
                name: name_of(slot.label()).to_owned(),
                key: slot.key().clone(),
                verdict: None,
                waker: (!own).then(|| context.waker().clone()),
            };
            state.drift.hesitating.insert(id, hesitant);
            Poll::Pending
        })
        .await;
        match verdict {
            Verdict::Go => None,
            Verdict::Was(name) => Some(name),
        }
    }

    /// Nobody has to ask for this name any more.
    pub(crate) fn excuse(&self, scope: &Arc<str>, name: &str) {
        self.state().drift.excused.insert((Arc::clone(scope), name.to_owned()));
    }

    /// Whether anything is recorded of an operation, or inside of it.
    pub(crate) fn knows(&self, key: &str) -> bool {
        let state = self.state();
        let behind = state.entries.range::<str, _>((Bound::Included(key), Bound::Unbounded));
        let mut family = behind.map_while(|(one, _)| one.as_str().strip_prefix(key));
        family
            .any(|rest| rest.is_empty() || rest.starts_with('/') || rest.starts_with('#') && !is_result(rest))
    }
}

impl Session {
    /// Stops here for good, if nothing is to be done but what is recorded.
    pub(super) async fn stage(&self, key: &Key) {
        if self.probe().is_some_and(|probe| probe.stops(self.run().info.id, key)) {
            self.state().drift.stopped = true;
            std::future::pending::<()>().await;
        }
    }

    /// Whether operations are recorded inside of this one, or turns of it.
    fn was_scope(&self, key: &Key) -> bool {
        let state = self.state();
        let behind = state.entries.range::<str, _>((Bound::Excluded(key.as_str()), Bound::Unbounded));
        let mut family = behind.map_while(|(one, _)| one.as_str().strip_prefix(key.as_str()));
        family.any(|rest| rest.starts_with('/') || rest.starts_with(TURN))
    }
}

/// Somebody who hesitates, until he is dropped.
struct Waiting<'a> {
    session: &'a Session,
    id: Option<u64>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.session.state().drift.hesitating.remove(&id);
        }
    }
}

impl Op<'_> {
    /// As [`enter`](Self::enter), for what is recorded itself.
    pub(crate) async fn open(self) -> Result<(Slot, Option<Written>)> {
        let (slot, written) = self.enter().await?;
        if written.is_none() && slot.session().was_scope(slot.key()) {
            let key = slot.key();
            return slot
                .session()
                .halt(format!("`{key}` was a scope, and what is recorded in it is not asked for"))
                .await;
        }
        if written.is_none() {
            slot.session().stage(slot.key()).await;
        }
        Ok((slot, written))
    }

    /// The operation begins: what is recorded of it, if anything is. If nothing is, and what is recorded does not fit, it
    /// does not come back.
    pub(crate) async fn enter(self) -> Result<(Slot, Option<Written>)> {
        let added = self.is_added();
        let mut slot = self.begin()?;
        let session = Arc::clone(slot.session());
        let mut written = session.find(slot.key());
        if written.is_none() && slot.fits(added).await? {
            written = session.find(slot.key());
        }
        Ok((slot, written))
    }
}

impl Slot {
    /// Waits until it is clear that what is asked for under this key fits what is recorded. Whether it was called otherwise
    /// before: then the key is another. `added`: it is said to be new.
    pub(crate) async fn fits(&mut self, added: bool) -> Result<bool> {
        let session = Arc::clone(self.session());
        let former = match session.find(&beside(self.key(), RENAMED)?) {
            Some(written) => Some(Box::pin(session.decoded::<String>(written)).await?),
            None if added => None,
            None => Box::pin(session.hesitate(self)).await,
        };
        if let Some(former) = &former {
            self.rename(former)?;
        }
        Ok(former.is_some())
    }
}

impl Context {
    /// Says that a name is gone from the code of workflows that are under way: what is recorded under it in this scope is
    /// not missed.
    pub fn retired(&self, name: &str) {
        self.session().excuse(self.path(), name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_told_from_what_belongs_to_them() {
        for label in ["a", "a#2", "a#=k", "a#=k#12", "a b#=until"] {
            assert!(is_result(label), "{label}");
            assert!(["a", "a b"].contains(&name_of(label)));
        }
        for label in ["a#until", "a#2#begun", "a#=k#left", "a#turn=7", "a#accepted"] {
            assert!(!is_result(label), "{label}");
        }
    }
}
