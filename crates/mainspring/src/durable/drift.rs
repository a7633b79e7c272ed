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
use std::sync::Arc;
use std::task::{Poll, Waker};

use mainspring_core::journal::{EntryKind, Message, MessageBody, Written};
use mainspring_core::name::Key;
use mainspring_core::planted::{self, Defect};
use serde::{Deserialize, Serialize};

use super::deferred_writes::DeferredWrites;
use super::inbox::SessionInbox;
use super::key::{is_result, name_of, side_key};
use super::next_action::Fit;
use super::operation::{OpKey, side_entry};
use super::replay::Replay;
use super::session::Session;
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
    /// The number of the last of them.
    last: u64,
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

impl Drift {
    /// What a journal has of it; in the order of recording.
    pub(crate) fn load(entries: &[Written]) -> Self {
        let again = entries.iter().rposition(|entry| entry.key.as_str().ends_with("#again"));
        let former =
            entries.iter().take(again.map_or(0, |at| at + 1)).map(|entry| entry.key.clone()).collect();
        Drift { former, ..Drift::default() }
    }

    /// Takes the wakers of undecided operations.
    pub(super) fn take_wakers(&mut self) -> impl Iterator<Item = Waker> {
        self.undecided.values_mut().filter_map(|op| op.waker.take())
    }

    /// The handler is not to go on behind what is recorded.
    pub(super) fn stop(&mut self) {
        self.stopped = true;
    }

    /// Nobody has to ask for this name any more.
    pub(super) fn ignore_name(&mut self, scope: &Arc<str>, name: &str) {
        self.ignored_names.insert((Arc::clone(scope), name.to_owned()));
    }

    /// The oldest operation without a verdict.
    fn first(&self) -> Option<(u64, &UndecidedOp)> {
        self.undecided.iter().find(|(_, op)| op.verdict.is_none()).map(|(id, op)| (*id, op))
    }

    fn set_verdict(&mut self, id: u64, verdict: Verdict) {
        if let Some(op) = self.undecided.get_mut(&id) {
            op.verdict = Some(verdict);
        }
    }
}

impl Replay {
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

    /// Whether what is recorded fits what the handler asks for, as far as that can be seen now.
    pub(super) fn fit(&self, inbox: &SessionInbox) -> Fit {
        if !self.fitting().is_empty() {
            return Fit::Fitting;
        }
        match self.drift.first() {
            Some((_, op)) if self.decision_about(op, inbox).is_some() => Fit::Decided,
            Some(_) => Fit::Undecided,
            None if self.drift.stopped => Fit::Stopped,
            None => Fit::Fits,
        }
    }

    /// Undecided operations in whose scopes nothing recorded is missed any more.
    fn fitting(&self) -> Vec<u64> {
        let undecided = self.drift.undecided.iter().filter(|(_, op)| op.verdict.is_none());
        undecided.filter(|(_, op)| self.unasked(&op.scope).is_empty()).map(|(id, _)| *id).collect()
    }

    /// Lets those go on that fit by now.
    pub(super) fn pass_fitting(&mut self) {
        for id in self.fitting() {
            self.drift.set_verdict(id, Verdict::Go);
        }
    }

    /// Lets an operation go on that may not fit: something that we know nothing of may yet wake the handler.
    pub(super) fn pass_unseen(&mut self) {
        let Some((id, op)) = self.drift.first() else { return };
        let recorded: Vec<&str> = self.unasked(&op.scope).into_iter().take(LISTED_NAMES).collect();
        tracing::warn!(
            step = %op.key, unused = recorded.join(", "),
            "possible drift: step not in the journal while other records are unused; continuing because the handler awaits a non-durable future"
        );
        self.drift.set_verdict(id, Verdict::Go);
    }

    /// An operator's decision about an undecided operation that has not been used, and where it is in the inbox.
    fn decision_about(&self, op: &UndecidedOp, inbox: &SessionInbox) -> Option<(usize, Decision)> {
        let unasked = self.unasked(&op.scope);
        let fits = |decision: &Decision| match decision {
            Decision::Accept => true,
            // A slip of the pen is not to do something a second time.
            Decision::Rename { from, to } => *to == op.name && unasked.contains(from.as_str()),
        };
        inbox.find(|message| decision_in(message).filter(fits))
    }

    /// Does what an operator has decided; it is recorded before a body begins.
    pub(super) fn apply_decision(&mut self, inbox: &mut SessionInbox, deferred: &mut DeferredWrites) {
        let Some((id, op)) = self.drift.first() else { return };
        let Some((at, decision)) = self.decision_about(op, inbox) else { return };
        let (mark, value, verdict) = match decision {
            Decision::Accept => (ACCEPTED, "null".to_owned(), Verdict::Go),
            Decision::Rename { from, .. } => {
                (RENAMED, serde_json::Value::from(from.as_str()).to_string(), Verdict::Was(from))
            }
        };
        let message = inbox.take_at(at);
        if let Ok(key) = side_key(&op.key, mark) {
            deferred.add(side_entry(key, EntryKind::Value, value.into_bytes()), true);
            deferred.mark_read([message.no]);
        }
        self.drift.set_verdict(id, verdict);
    }

    /// What does not fit, for people: both lists.
    pub(super) fn describe_drift(&self) -> String {
        let Some((_, UndecidedOp { scope, name, .. })) = self.drift.first() else {
            return STOPPED.to_owned();
        };
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

/// The handler has come to a wait: decisions about drift that were not needed until here expire.
pub(super) fn discard_decisions(inbox: &mut SessionInbox, deferred: &mut DeferredWrites) {
    deferred.mark_read(inbox.take_all(|message| decision_in(message).is_some()));
}

/// Where it is kept what an operation was called.
pub(super) const RENAMED: &str = "renamed";
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

/// Waits until it is clear that an operation fits; what it was called, if it has another name now.
pub(super) async fn wait_for_verdict(op_key: &OpKey) -> Option<String> {
    let session = op_key.session();
    if !session.state().replay.is_unrecorded(op_key) {
        return None;
    }
    let mut waiting = UndecidedGuard { session, id: None };
    let verdict = poll_fn(|context| {
        let drift = &mut session.state().replay.drift;
        let id = *waiting.id.get_or_insert_with(|| {
            drift.last += 1;
            drift.last
        });
        if let Some(verdict) = drift.undecided.get(&id).and_then(|op| op.verdict.clone()) {
            return Poll::Ready(verdict);
        }
        let own = context.waker().will_wake(&session.waker);
        let op = UndecidedOp {
            scope: Arc::clone(op_key.path()),
            name: name_of(op_key.label()).to_owned(),
            key: op_key.key().clone(),
            verdict: None,
            waker: (!own).then(|| context.waker().clone()),
        };
        drift.undecided.insert(id, op);
        Poll::Pending
    })
    .await;
    match verdict {
        Verdict::Go => None,
        Verdict::Was(name) => Some(name),
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
            self.session.state().replay.drift.undecided.remove(&id);
        }
    }
}

impl Context {
    /// Declares that a name is gone from the code, so running workflows with a record of it in this scope are not
    /// held for drift.
    pub fn retired(&self, name: &str) {
        self.session().state().replay.ignore_name(self.path(), name);
    }
}
