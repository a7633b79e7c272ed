//! Nodes: join, renew, retire.

use crate::id::{Claim, NodeNo};
use crate::store::{ActivityReport, Mark, Node, NodeState, Registered, Registration, Renewal, Renewed};
use crate::time::{Timestamp, micros};
use crate::{Error, Result};

use super::model::{Membership, Model};
use super::place::Place;

impl Model {
    pub(super) fn register(&mut self, registration: Registration, now: Timestamp) -> Registered {
        if let Some(&no) = self.member_ids.get(&registration.id) {
            return Registered { no, now };
        }
        self.last_node += 1;
        let no = NodeNo(self.last_node);
        for (queue, _) in &registration.queues {
            self.name_queue(queue);
            self.deleted.remove(queue);
        }
        self.member_ids.insert(registration.id, no);
        let lease_until = now.after(registration.lease);
        let state = NodeState::Live;
        let member = Membership {
            registration,
            state,
            started_at: now,
            renewed_at: now,
            lease_until,
            backed_up: false,
            report: None,
        };
        self.members.insert(no, member);
        Registered { no, now }
    }

    /// Extends a live node's lease, lapsed or not.
    fn renew_lease(&mut self, node: NodeNo, now: Timestamp) -> Result<()> {
        let member = self.live(node)?;
        member.renewed_at = now;
        member.lease_until = now.after(member.registration.lease);
        Ok(())
    }

    /// The same, if more than a third of the lease has passed, or the clock has gone back.
    pub(super) fn renew_lease_in_time(&mut self, node: NodeNo, now: Timestamp) -> Result<()> {
        let member = self.live(node)?;
        let lease = micros(member.registration.lease);
        let left = member.lease_until.as_micros().saturating_sub(now.as_micros());
        if left < lease - lease / 3 || left > lease {
            self.renew_lease(node, now)?;
        }
        Ok(())
    }

    fn live(&mut self, node: NodeNo) -> Result<&mut Membership> {
        let live = self.members.get_mut(&node).filter(|member| member.state == NodeState::Live);
        live.ok_or(Error::LeaseLost)
    }

    pub(super) fn renew(&mut self, renewal: &Renewal, now: Timestamp) -> Result<Renewed> {
        self.renew_lease(renewal.node, now)?;
        let member = self.live(renewal.node)?;
        member.backed_up = renewal.backed_up;
        member.report = Some(ActivityReport { at: now, queues: renewal.queues.clone() });
        for (claim, mark) in &renewal.marks {
            self.mark(renewal.node, claim, *mark);
        }
        let flagged = self.held_by(renewal.node).into_iter().filter_map(|(row, _)| {
            let job = self.jobs.get(&row)?;
            let why = job.place.cancel()?.to_owned();
            Some((Claim { id: job.id, row, number: job.claim }, why))
        });
        Ok(Renewed { now, cancel: flagged.collect() })
    }

    fn mark(&mut self, node: NodeNo, claim: &Claim, mark: Mark) {
        let Some(job) = self.held(node, claim).and_then(|row| self.jobs.get_mut(&row)) else { return };
        match (mark, &mut job.place) {
            (Mark::Stuck, Place::Lease { stuck, .. }) => *stuck = true,
            (Mark::Foreign, Place::Lease { foreign, .. }) => *foreign = true,
            (Mark::GoesOn, Place::Lease { foreign, .. }) => *foreign = false,
            (Mark::Cleared, Place::Lease { .. }) => job.crashes = job.crashes.min(1),
            (Mark::Stuck | Mark::Cleared | Mark::Foreign | Mark::GoesOn, _) => {}
        }
    }

    pub(super) fn retire(&mut self, node: NodeNo, now: Timestamp) -> Result<usize> {
        let Ok(member) = self.live(node) else { return Ok(0) };
        member.state = NodeState::Retired;
        let held = self.held_by(node);
        for (row, _) in &held {
            self.release(*row, now)?;
        }
        Ok(held.len())
    }

    pub(super) fn nodes(&self) -> Vec<Node> {
        self.members.iter().rev().map(|(no, member)| self.node(*no, member)).collect()
    }

    fn node(&self, no: NodeNo, member: &Membership) -> Node {
        let it = &member.registration;
        let served = member.report.as_ref().and_then(ActivityReport::serves);
        Node {
            no,
            id: it.id,
            name: it.name.clone(),
            version: it.version.clone(),
            pid: it.pid,
            queues: served.unwrap_or_else(|| it.queues.clone()),
            abilities: it.abilities.clone(),
            state: member.state,
            started_at: member.started_at,
            renewed_at: member.renewed_at,
            lease_until: member.lease_until,
            claims: self.held_by(no).len() as u64,
            backed_up: member.backed_up,
            report: member.report.clone(),
        }
    }
}
