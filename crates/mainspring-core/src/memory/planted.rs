//! Where the reference model goes wrong on purpose; see [`planted`](crate::planted).
//!
//! A job of the model is in one place by construction. These are the places where a table of jobs with a status column, or
//! a list that was read too early, would let it be in two.

use std::collections::BTreeSet;

use crate::id::{Claim, ClaimBatchNo, NodeNo, Row};
use crate::planted::{Defect, is};
use crate::store::{Class, NodeState};
use crate::time::Timestamp;
use crate::{Error, Result};

use super::model::Model;
use super::place::Place;

/// What should have been forgotten.
#[derive(Clone, Default)]
pub(super) struct Stale {
    /// Leases, as an earlier rescue saw them.
    leases: BTreeSet<(NodeNo, Row)>,
    /// Timers that were promoted before.
    timers: BTreeSet<Row>,
}

impl Model {
    /// A claim under which something may be recorded although it is not held.
    pub(super) fn recorded_wrongly(&self, claim: &Claim) -> Option<Row> {
        let job = self.jobs.get(&claim.row).filter(|job| job.id == claim.id)?;
        let leased = matches!(job.place, Place::Lease { .. });
        (is(Defect::StaleRecord) && leased).then_some(claim.row)
    }

    /// A claim that is not held, and yet may be ended.
    pub(super) fn held_wrongly(&mut self, node: NodeNo, claim: &Claim, now: Timestamp) -> Option<Row> {
        let job = self.jobs.get(&claim.row).filter(|job| job.id == claim.id)?;
        if is(Defect::ClaimIgnored) {
            return matches!(job.place, Place::Lease { node: owner, .. } if owner == node)
                .then_some(claim.row);
        }
        let waits = !matches!(job.place, Place::Done { .. });
        if is(Defect::NodeIgnored) && job.claim == claim.number && waits {
            let place = Place::lease(node, ClaimBatchNo(0), now);
            self.settle(claim.row, place).ok()?;
            return Some(claim.row);
        }
        None
    }

    /// A claim that meets one damaged job gives none.
    pub(super) fn stop_at_damage(&self, rows: &[Row]) -> Result<()> {
        let damage = |row: &Row| self.jobs.get(row).and_then(|job| job.damage.clone());
        match rows.iter().find_map(damage) {
            Some(why) if is(Defect::UnreadableStops) => Err(Error::Corrupt { why }),
            _ => Ok(()),
        }
    }

    /// Gives back what dead nodes held when somebody last looked, wherever it is now.
    pub(super) fn rescue_unchecked(&mut self, now: Timestamp) -> Result<()> {
        if !is(Defect::RescueUnchecked) {
            return Ok(());
        }
        let dead =
            |node: &NodeNo| self.members.get(node).is_some_and(|member| member.state == NodeState::Expired);
        let lost: Vec<Row> =
            self.stale.leases.iter().filter(|(node, _)| dead(node)).map(|(_, row)| *row).collect();
        self.stale.leases = self.leases.clone();
        self.back_to_ready(lost, Class::Returned, now)
    }

    /// Promotes what was promoted before, and remembers what was promoted now.
    pub(super) fn promote_again(&mut self, promoted: &[Row], now: Timestamp) -> Result<()> {
        if !is(Defect::TimerKept) {
            return Ok(());
        }
        // Once it has been claimed: before, nobody would notice.
        let waits = |row: &Row| {
            let place = self.jobs.get(row).map(|job| &job.place);
            matches!(place, Some(Place::Ready { .. } | Place::Timers { .. }))
        };
        let (kept, again): (BTreeSet<Row>, Vec<Row>) = {
            let (kept, again): (Vec<Row>, Vec<Row>) = self.stale.timers.iter().partition(|row| waits(row));
            (kept.into_iter().chain(promoted.iter().copied()).collect(), again)
        };
        self.stale.timers = kept;
        self.back_to_ready(again, Class::Fresh, now)
    }

    fn back_to_ready(&mut self, rows: Vec<Row>, class: Class, now: Timestamp) -> Result<()> {
        for row in rows.into_iter().filter(|row| self.jobs.contains_key(row)).collect::<Vec<_>>() {
            self.settle(row, Place::Ready { class, since: now })?;
        }
        Ok(())
    }
}
