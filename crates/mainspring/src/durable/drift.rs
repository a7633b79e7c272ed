//! The drift guard: whether what is recorded still fits the code.
//!
//! Code changes while workflows run. Most changes do no harm: what is recorded is found again by its name. But when the
//! code asks for a name that is not recorded, while other names are recorded in that scope and nobody has asked for them,
//! then a step was added, removed or renamed, or the code takes another path than before; to continue could do something twice
//! that has another name now. So the operation stays undecided, before any effect, until all that can run has run: the names
//! that others ask for meanwhile count. If names remain then, the job is held with both lists, and people decide.
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
use mainspring_core::journal::{Entry, EntryKind, Message, MessageBody, TURN, Written};
use mainspring_core::name::Key;
use mainspring_core::planted::{self, Defect};
use serde::{Deserialize, Serialize};

use super::key::{OpKey, side_key};
use super::session::{Session, SessionState};
use super::step::Op;
use crate::context::Context;

/// The signal by which operators say how a drift is to be taken.
pub(crate) const DRIFT_SIGNAL: &str = "mainspring.drift";
/// What is said of a handler that was stopped behind what is recorded.
pub(crate) const STOPPED: &str = "everything recorded was asked for";
/// Names that a message lists at most.
const LISTED_NAMES: usize = 10;

/// What an operator decided about a drift.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Decision {
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

impl Decision {
    /// What operators call it.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Decision::Accept => "accept",
            Decision::Rename { .. } => "rename",
        }
    }
}

/// Operations that may not fit what is recorded, and names that nobody has to ask for.
#[derive(Default)]
pub(crate) struct Drift {
    undecided: BTreeMap<u64, UndecidedOp>,
    /// Scopes and names.
    ignored_names: BTreeSet<(Arc<str>, String)>,
    /// What was recorded before the error of a step was taken back. The step may come out otherwise this time, and so may the
    /// way: it is not missed.
    former: BTreeSet<Key>,
    /// Whether the handler is not to go on behind what is recorded.
    stopped: bool,
}

/// Where it is kept that an error was taken back.
pub(crate) const AGAIN: &str = "again";

struct UndecidedOp {
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

/// What came of looking at undecided operations.
pub(crate) enum Judgement {
    /// None is undecided.
    Nobody,
    /// At least one has its verdict.
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
        self.undecided.values_mut().filter_map(|op| op.waker.take())
    }
}

impl SessionState {
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
            if !asked && !self.drift.ignored_names.iter().any(|(path, one)| &**path == scope && one == name) {
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

    /// Whether an operation has no record in its scope, while the scope has names that nobody has asked for.
    fn is_unrecorded(&self, op_key: &OpKey) -> bool {
        if self.entries.is_empty() || planted::is(Defect::DriftIgnored) {
            return false;
        }
        let (scope, name) = (op_key.path(), name_of(op_key.label()));
        !self.scopes.repeats(scope, op_key.label(), name)
            && !self.recorded_in(scope).any(|(label, ..)| name_of(label) == name)
            && !self.unasked(scope).is_empty()
    }

    /// Looks at undecided operations when nothing moves by itself. `foreign`: something may yet wake the handler that we
    /// know nothing of.
    pub(crate) fn judge(&mut self, foreign: bool) -> Judgement {
        let open = |op: &&UndecidedOp| op.verdict.is_none();
        let fits: Vec<u64> = {
            let all = self.drift.undecided.iter().filter(|(_, op)| open(op));
            all.filter(|(_, op)| self.unasked(&op.scope).is_empty()).map(|(id, _)| *id).collect()
        };
        if !fits.is_empty() {
            for id in fits {
                self.set_verdict(id, Verdict::Go);
            }
            return Judgement::Go;
        }
        let Some((&id, op)) = self.drift.undecided.iter().find(|(_, op)| open(op)) else {
            let all = self.drift.stopped && self.busy == 0;
            return if all { Judgement::Drift(STOPPED.to_owned()) } else { Judgement::Nobody };
        };
        if self.busy > 0 {
            return Judgement::Wait;
        }
        let (scope, name, key) = (Arc::clone(&op.scope), op.name.clone(), op.key.clone());
        if foreign {
            let recorded: Vec<&str> = self.unasked(&scope).into_iter().take(LISTED_NAMES).collect();
            tracing::warn!(%key, recorded = recorded.join(", "), "a step that is not recorded, while others are recorded that the handler has not asked for; it awaits something that is not durable, so it goes on");
            self.set_verdict(id, Verdict::Go);
            return Judgement::Go;
        }
        match self.take_decision(&scope, &name) {
            Some((message, decision)) => {
                let (mark, value, verdict) = match decision {
                    Decision::Accept => (ACCEPTED, "null".to_owned(), Verdict::Go),
                    Decision::Rename { from, .. } => {
                        (RENAMED, serde_json::Value::from(from.as_str()).to_string(), Verdict::Was(from))
                    }
                };
                if let Ok(key) = side_key(&key, mark) {
                    let value = value.into_bytes();
                    self.deferred.entries.push(Entry {
                        key,
                        kind: EntryKind::Value,
                        overlapped: false,
                        value,
                    });
                    self.deferred.read.push(message.no);
                    self.eager = true;
                }
                self.set_verdict(id, verdict);
                Judgement::Go
            }
            None => Judgement::Drift(self.describe_drift(&scope, &name)),
        }
    }

    fn set_verdict(&mut self, id: u64, verdict: Verdict) {
        if let Some(op) = self.drift.undecided.get_mut(&id) {
            op.verdict = Some(verdict);
        }
    }

    /// An operator's decision about a drift at this name that has not been used, if there is one.
    fn take_decision(&mut self, scope: &str, name: &str) -> Option<(Message, Decision)> {
        let unasked = self.unasked(scope);
        let fits = |decision: &Decision| match decision {
            Decision::Accept => true,
            // A slip of the pen is not to do something a second time.
            Decision::Rename { from, to } => to == name && unasked.contains(from.as_str()),
        };
        let at = self.inbox.iter().position(|message| decision_in(message).as_ref().is_some_and(fits))?;
        let message = self.inbox.remove(at);
        let decision = decision_in(&message)?;
        Some((message, decision))
    }

    /// The handler has come to a wait: decisions about drift that were not needed until here expire.
    pub(super) fn discard_decisions(&mut self) {
        let spent =
            self.inbox.extract_if(.., |message| decision_in(message).is_some()).map(|message| message.no);
        self.deferred.read.extend(spent);
    }

    /// Both lists, for people.
    fn describe_drift(&self, scope: &str, name: &str) -> String {
        let names = self.unasked(scope);
        let more = if names.len() > LISTED_NAMES { ", \u{2026}" } else { "" };
        let recorded: Vec<String> = names.iter().take(LISTED_NAMES).map(|name| format!("`{name}`")).collect();
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

/// The decision in a message, if it is one about drift.
fn decision_in(message: &Message) -> Option<Decision> {
    match &message.body {
        MessageBody::Signal { name, body, .. } if name.as_str() == DRIFT_SIGNAL => {
            serde_json::from_slice(body).ok()
        }
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
    async fn wait_for_verdict(&self, op_key: &OpKey) -> Option<String> {
        if !self.state().is_unrecorded(op_key) {
            return None;
        }
        let mut waiting = UndecidedGuard { session: self, id: None };
        let verdict = poll_fn(|context| {
            let mut state = self.state();
            let id = *waiting.id.get_or_insert_with(|| state.number());
            if let Some(verdict) = state.drift.undecided.get(&id).and_then(|op| op.verdict.clone()) {
                return Poll::Ready(verdict);
            }
            let own = context.waker().will_wake(&self.waker);
            let op = UndecidedOp {
                scope: Arc::clone(op_key.path()),
                name: name_of(op_key.label()).to_owned(),
                key: op_key.key().clone(),
                verdict: None,
                waker: (!own).then(|| context.waker().clone()),
            };
            state.drift.undecided.insert(id, op);
            Poll::Pending
        })
        .await;
        match verdict {
            Verdict::Go => None,
            Verdict::Was(name) => Some(name),
        }
    }

    /// Nobody has to ask for this name any more.
    pub(crate) fn ignore_name(&self, scope: &Arc<str>, name: &str) {
        self.state().drift.ignored_names.insert((Arc::clone(scope), name.to_owned()));
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
    pub(super) async fn stop_at_probe(&self, key: &Key) {
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

/// An undecided operation, until this is dropped.
struct UndecidedGuard<'a> {
    session: &'a Session,
    id: Option<u64>,
}

impl Drop for UndecidedGuard<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.session.state().drift.undecided.remove(&id);
        }
    }
}

impl Op<'_> {
    /// As [`enter`](Self::enter), for what is recorded itself.
    pub(crate) async fn open(self) -> Result<(OpKey, Option<Written>)> {
        let (op_key, written) = self.enter().await?;
        if written.is_none() && op_key.session().was_scope(op_key.key()) {
            let key = op_key.key();
            return op_key
                .session()
                .halt(format!("`{key}` was a scope, and what is recorded in it is not asked for"))
                .await;
        }
        if written.is_none() {
            op_key.session().stop_at_probe(op_key.key()).await;
        }
        Ok((op_key, written))
    }

    /// The operation begins: what is recorded of it, if anything is. If nothing is, and what is recorded does not fit, it
    /// does not come back.
    pub(crate) async fn enter(self) -> Result<(OpKey, Option<Written>)> {
        let added = self.is_added();
        let mut op_key = self.begin()?;
        let session = Arc::clone(op_key.session());
        let mut written = session.find(op_key.key());
        if written.is_none() && op_key.fits(added).await? {
            written = session.find(op_key.key());
        }
        Ok((op_key, written))
    }
}

impl OpKey {
    /// Waits until it is clear that what is asked for under this key fits what is recorded. Whether it was called otherwise
    /// before: then the key is another. `added`: it is said to be new.
    pub(crate) async fn fits(&mut self, added: bool) -> Result<bool> {
        let session = Arc::clone(self.session());
        let former = match session.find(&side_key(self.key(), RENAMED)?) {
            Some(written) => Some(Box::pin(session.decoded::<String>(written)).await?),
            None if added => None,
            None => Box::pin(session.wait_for_verdict(self)).await,
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
        self.session().ignore_name(self.path(), name);
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
        for label in ["a#until", "a#2#begun", "a#=k#dropped", "a#turn=7", "a#accepted"] {
            assert!(!is_result(label), "{label}");
        }
    }
}
