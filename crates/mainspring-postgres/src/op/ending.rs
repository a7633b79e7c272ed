//! Outcomes as arguments of statements: one column each.

use mainspring_core::job::{Outcome, Reason, State, Status, transition};
use mainspring_core::store::Finish;
use mainspring_core::time::micros;
use tokio_postgres::types::Type;

use super::node::number_of;
use crate::sql::{Arg, Present};

/// Outcomes of jobs that are all different, in order of their numbers.
#[derive(Default)]
pub(crate) struct Pass<'a> {
    pub(crate) succeeded: Succeeded<'a>,
    pub(crate) ended: Ended<'a>,
}

impl<'a> Pass<'a> {
    /// Adds the outcome of the next job.
    pub(crate) fn add(&mut self, finish: &'a Finish) {
        match &finish.outcome {
            Outcome::Succeed { output } => {
                self.succeeded.nos.push(finish.claim.row.0);
                self.succeeded.claims.push(number_of(&finish.claim));
                self.succeeded.outputs.push(output.as_deref());
            }
            _ => self.ended.add(finish),
        }
    }
}

/// Successes.
#[derive(Default)]
pub(crate) struct Succeeded<'a> {
    pub(crate) nos: Vec<i64>,
    claims: Vec<i32>,
    outputs: Vec<Option<&'a [u8]>>,
}

impl Succeeded<'_> {
    pub(crate) fn args<'c>(&'c self, at: &'c Present, node: &'c i32) -> Vec<Arg<'c>> {
        vec![
            (at, Type::TIMESTAMPTZ),
            (node, Type::INT4),
            (&self.nos, Type::INT8_ARRAY),
            (&self.claims, Type::INT4_ARRAY),
            (&self.outputs, Type::BYTEA_ARRAY),
        ]
    }
}

/// All other outcomes.
#[derive(Default)]
pub(crate) struct Ended<'a> {
    pub(crate) nos: Vec<i64>,
    claims: Vec<i32>,
    places: Vec<i16>,
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
        let (place, resets) = match outcome {
            Outcome::Succeed { .. } => (0, true),
            Outcome::Fail { fault: it, .. } => {
                fault = Some(it);
                (0, true)
            }
            Outcome::Cancel { why, .. } => {
                note = Some(why.as_str());
                (0, false)
            }
            Outcome::Retry { after: it, fault: error } => {
                (after, fault) = (micros(*it), Some(error));
                (1, true)
            }
            Outcome::Snooze { after: it } => {
                after = micros(*it);
                (1, true)
            }
            Outcome::Release => (2, false),
            Outcome::Suspend(_) => return,
        };
        self.nos.push(claim.row.0);
        self.claims.push(number_of(claim));
        self.places.push(place);
        self.states.push(to.state.code().into());
        self.reasons.push(to.reason.map(|reason: Reason| reason.code().into()));
        self.afters.push(after);
        self.faults.push(fault.map(|fault| fault.kind.code().into()));
        self.messages.push(fault.map(|fault| fault.message.as_str()));
        self.notes.push(note);
        self.resets.push(resets);
    }

    pub(crate) fn args<'c>(&'c self, at: &'c Present, node: &'c i32) -> Vec<Arg<'c>> {
        vec![
            (at, Type::TIMESTAMPTZ),
            (node, Type::INT4),
            (&self.nos, Type::INT8_ARRAY),
            (&self.claims, Type::INT4_ARRAY),
            (&self.places, Type::INT2_ARRAY),
            (&self.states, Type::INT2_ARRAY),
            (&self.reasons, Type::INT2_ARRAY),
            (&self.afters, Type::INT8_ARRAY),
            (&self.faults, Type::INT2_ARRAY),
            (&self.messages, Type::TEXT_ARRAY),
            (&self.notes, Type::TEXT_ARRAY),
            (&self.resets, Type::BOOL_ARRAY),
        ]
    }
}
