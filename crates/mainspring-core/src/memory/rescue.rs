//! Rescue: the dead are expired, and their jobs given back.

use crate::bounds;
use crate::id::{NodeNo, Row};
use crate::job::{Fault, Input};
use crate::planted::{self, Defect};
use crate::store::{NodeState, Rescue, Rescued};
use crate::time::{Timestamp, micros};
use crate::{Error, Result};

use super::model::Model;
use super::place::Place;

/// What became of one job of a dead node.
enum Fate {
    Returned,
    Quarantined,
    Cancelled,
}

impl Model {
    pub(super) fn rescue(&mut self, rescue: Rescue, now: Timestamp) -> Result<Rescued> {
        if self.members.get(&rescue.by).is_none_or(|member| member.state != NodeState::Live) {
            return Err(Error::LeaseLost);
        }
        let expired = self.dead(rescue, now);
        for node in &expired {
            if let Some(member) = self.members.get_mut(node) {
                member.state = NodeState::Expired;
            }
        }
        #[cfg(feature = "planted")]
        self.rescue_unchecked(now)?;
        let (mut returned, mut quarantined) = (0, 0);
        let orphans = self.orphans();
        for row in orphans.iter().take(bounds::BATCH) {
            match self.crash(*row, now)? {
                Fate::Returned => returned += 1,
                Fate::Quarantined => quarantined += 1,
                Fate::Cancelled => {}
            }
        }
        let live = self.members.values().filter(|member| member.state == NodeState::Live);
        let shortest_lease = live.map(|member| member.registration.lease).min().unwrap_or(bounds::LEASE_MAX);
        Ok(Rescued {
            now,
            expired,
            returned,
            quarantined,
            more: orphans.len() > bounds::BATCH,
            shortest_lease,
        })
    }

    /// Live nodes whose lease has lapsed while they hold claims, and which the rescuer may judge.
    fn dead(&self, rescue: Rescue, now: Timestamp) -> Vec<NodeNo> {
        let lapsed = self.members.iter().filter(|(no, member)| {
            **no != rescue.by
                && member.state == NodeState::Live
                && member.lease_until <= now
                && member.registration.lease <= rescue.steady
                && now.since(rescue.seen) <= member.registration.lease / 2
        });
        lapsed.map(|(no, _)| *no).filter(|no| !self.held_by(*no).is_empty()).collect()
    }

    /// Claims of nodes that have been expired, and one more than a call moves at most.
    fn orphans(&self) -> Vec<Row> {
        let dead = self.members.iter().filter(|(_, member)| member.state == NodeState::Expired);
        dead.flat_map(|(no, _)| self.held_by(*no)).map(|(row, _)| row).take(bounds::BATCH + 1).collect()
    }

    fn crash(&mut self, row: Row, now: Timestamp) -> Result<Fate> {
        let job = self.job_mut(row)?;
        let Place::Lease { since, cancel, ahead, .. } = &job.place else {
            return Err(Error::Corrupt { why: format!("job {} is among the leases but has none", job.id) });
        };
        if cancel.is_some() {
            self.release(row, now)?;
            return Ok(Fate::Cancelled);
        }
        if *ahead && !planted::is(Defect::AheadCrashes) {
            let place = job.lost(now);
            self.go(row, Input::Crash { quarantine: false }, place)?;
            return Ok(Fate::Returned);
        }
        job.crashed_micros = job.crashed_micros.max(micros(now.since(*since)));
        job.crashes = job.crashes.saturating_add(1);
        job.note(Fault::crashed(), now);
        let quarantine = job.crashes >= bounds::QUARANTINE_CRASHES;
        let (fate, place) = if quarantine {
            (Fate::Quarantined, Place::quarantine())
        } else {
            (Fate::Returned, job.lost(now))
        };
        self.go(row, Input::Crash { quarantine }, place)?;
        Ok(fate)
    }
}
