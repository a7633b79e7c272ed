//! Outcomes as arguments of statements: one column each.

use super::finish::{End, Succeed, Suspend};
use super::node::number_of;
use super::record::Pages;
use crate::sql::{At, Call, Present};
use mainspring_core::job::{Outcome, Reason, State, Status, transition};
use mainspring_core::journal::Suspension;
use mainspring_core::store::Finish;
use mainspring_core::time::micros;

/// Outcomes of jobs that are all different, in order of their numbers.
#[derive(Default)]
pub(crate) struct Pass<'a> {
    pub(crate) succeeded: Succeeded<'a>,
    pub(crate) ended: Ended<'a>,
    pub(crate) suspended: Suspended<'a>,
}

impl<'a> Pass<'a> {
    /// Adds the outcome of the next job.
    pub(crate) fn add(&mut self, finish: &'a Finish) {
        match &finish.outcome {
            Outcome::Succeed { result } => {
                self.succeeded.nos.push(finish.claim.row.0);
                self.succeeded.claims.push(number_of(&finish.claim));
                self.succeeded.results.push(result.as_deref());
            }
            Outcome::Suspend(suspension) => self.suspended.add(finish, suspension),
            _ => self.ended.add(finish),
        }
    }

    /// The numbers of its jobs; not in order.
    pub(crate) fn nos(&self) -> impl Iterator<Item = i64> {
        let nos = self.succeeded.nos.iter().chain(&self.ended.nos).chain(&self.suspended.nos);
        nos.copied()
    }

    /// How many kinds of outcomes it has: each takes a statement.
    pub(crate) fn kinds(&self) -> usize {
        let some = [&self.succeeded.nos, &self.ended.nos, &self.suspended.nos];
        some.iter().filter(|nos| !nos.is_empty()).count()
    }
}

/// Successes.
#[derive(Default)]
pub(crate) struct Succeeded<'a> {
    pub(crate) nos: Vec<i64>,
    claims: Vec<i32>,
    results: Vec<Option<&'a [u8]>>,
}

impl Succeeded<'_> {
    pub(crate) fn call<'c>(&'c self, at: &'c Present, node: &'c i32) -> Call<'c> {
        Succeed { at, node, nos: &self.nos, claims: &self.claims, results: &self.results }.call()
    }
}

/// All other outcomes.
#[derive(Default)]
pub(crate) struct Ended<'a> {
    pub(crate) nos: Vec<i64>,
    claims: Vec<i32>,
    states: Vec<i16>,
    reasons: Vec<Option<i16>>,
    afters: Vec<i64>,
    pub(crate) faults: Vec<Option<i16>>,
    messages: Vec<Option<&'a str>>,
    notes: Vec<Option<&'a str>>,
    resets: Vec<bool>,
}

impl<'a> Ended<'a> {
    fn add(&mut self, Finish { claim, outcome }: &'a Finish) {
        // Checked before: every outcome has an edge.
        let Ok(to) = transition(Status::plain(State::Running), outcome.input()) else { return };
        let (mut after, mut fault, mut note) = (0, None, None);
        let resets = match outcome {
            Outcome::Succeed { .. } => true,
            Outcome::Fail { fault: it, .. } => {
                fault = Some(it);
                true
            }
            Outcome::Cancel { why, .. } => {
                note = Some(why.as_str());
                false
            }
            Outcome::Retry { after: it, fault: error } => {
                (after, fault) = (micros(*it), Some(error));
                true
            }
            Outcome::Snooze { after: it } => {
                after = micros(*it);
                true
            }
            Outcome::Release => false,
            // A statement of its own.
            Outcome::Suspend(_) => return,
        };
        self.nos.push(claim.row.0);
        self.claims.push(number_of(claim));
        self.states.push(to.state.code().into());
        self.reasons.push(to.reason.map(|reason: Reason| reason.code().into()));
        self.afters.push(after);
        self.faults.push(fault.map(|fault| fault.kind.code().into()));
        self.messages.push(fault.map(|fault| fault.message.as_str()));
        self.notes.push(note);
        self.resets.push(resets);
    }

    pub(crate) fn call<'c>(&'c self, at: &'c Present, node: &'c i32) -> Call<'c> {
        let end = End {
            at,
            node,
            nos: &self.nos,
            claims: &self.claims,
            states: &self.states,
            reasons: &self.reasons,
            afters: &self.afters,
            faults: &self.faults,
            messages: &self.messages,
            notes: &self.notes,
            resets: &self.resets,
        };
        end.call()
    }
}

/// Suspensions.
#[derive(Default)]
pub(crate) struct Suspended<'a> {
    pub(crate) nos: Vec<i64>,
    /// What is recorded with them.
    pub(crate) pages: Pages<'a>,
    claims: Vec<i32>,
    reasons: Vec<i16>,
    dues: Vec<Option<At>>,
    waits: Vec<String>,
    notes: Vec<Option<&'a str>>,
    keeps: Vec<bool>,
}

impl<'a> Suspended<'a> {
    fn add(&mut self, Finish { claim, .. }: &'a Finish, suspension: &'a Suspension) {
        let (no, number) = (claim.row.0, number_of(claim));
        self.nos.push(no);
        self.claims.push(number);
        self.reasons.push(suspension.reason.code().into());
        self.dues.push(suspension.until.map(At));
        let waits: Vec<(String, u32)> =
            suspension.waits.iter().map(|wait| (wait.subject.to_string(), wait.need)).collect();
        self.waits.push(serde_json::to_string(&waits).expect("pairs of a text and a number"));
        self.notes.push(suspension.note.as_deref());
        self.keeps.push(suspension.keep);
        self.pages.claim(no, number, true);
        self.pages.add(no, number, &suspension.writes);
    }

    pub(crate) fn call<'c>(&'c self, at: &'c Present, node: &'c i32) -> Call<'c> {
        let suspend = Suspend {
            at,
            node,
            nos: &self.nos,
            claims: &self.claims,
            reasons: &self.reasons,
            dues: &self.dues,
            waits: &self.waits,
            notes: &self.notes,
            keeps: &self.keeps,
        };
        suspend.call()
    }
}
