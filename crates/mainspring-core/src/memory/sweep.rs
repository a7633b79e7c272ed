//! Sweeps: what time alone does to jobs.

use crate::Result;
use std::time::Duration;

use crate::bounds;
use crate::id::{NodeNo, Row};
use crate::job::{Input, Reason, State, Status};
use crate::name::QueueName;
use crate::store::{Class, NodeState, Swept};
use crate::time::Timestamp;

use super::model::{Membership, Model, RetentionKind};
use super::place::Place;

impl Model {
    pub(super) fn promote(&mut self, limit: usize, now: Timestamp) -> Result<Swept> {
        let due = self.timers.iter().take_while(|(due, _)| *due <= now).take(limit);
        let rows: Vec<Row> = due.map(|(_, row)| *row).collect();
        for row in &rows {
            match self.job(*row)?.place {
                Place::Suspended { .. } => self.wake(*row, now)?,
                _ => self.go(*row, Input::Due, Place::Ready { class: Class::Fresh, since: now })?,
            }
        }
        #[cfg(feature = "planted")]
        self.promote_again(&rows, now)?;
        self.promote_keys(limit, now);
        let (job, key) = (self.timers.first().map(|(due, _)| *due), self.dues.first().map(|(due, _)| *due));
        Ok(Swept { now, moved: rows.len(), next: job.into_iter().chain(key).min(), fire: self.next_fire() })
    }

    pub(super) fn expire(&mut self, limit: usize, now: Timestamp) -> Result<Swept> {
        let passed = self.deadlines.iter().take_while(|(deadline, _)| *deadline <= now).take(limit);
        let rows: Vec<Row> = passed.map(|(_, row)| *row).collect();
        let status = Status::because(State::Failed, Reason::Expired);
        let mut moved = 0;
        for row in rows {
            // It may have been cancelled a moment ago, with its parent.
            if self.job(row)?.place.is_waiting() {
                self.go(row, Input::Fail(Reason::Expired), Place::done(status, now, ""))?;
                moved += 1;
            }
        }
        Ok(Swept { now, moved, next: self.deadlines.first().map(|(deadline, _)| *deadline), fire: None })
    }

    pub(super) fn prune(&mut self, limit: usize, now: Timestamp) -> usize {
        let over: Vec<Row> = self
            .ended
            .iter()
            .flat_map(|((queue, kept), rows)| {
                let keep = self.retention(queue, *kept);
                rows.iter().take_while(move |(at, _)| at.after(keep) <= now).map(|(_, row)| *row)
            })
            .take(limit)
            .collect();
        for row in &over {
            self.remove(*row);
        }
        self.ended.retain(|_, rows| !rows.is_empty());
        self.prune_keys(now);
        self.prune_nodes(now);
        self.prune_limit_keys(limit, now);
        over.len()
    }

    fn retention(&self, queue: &QueueName, kept: RetentionKind) -> Duration {
        let retention = self.queues.get(queue).map(|settings| settings.retention).unwrap_or_default();
        match kept {
            RetentionKind::Good => retention.succeeded.0,
            RetentionKind::Bad => retention.failed.0,
        }
    }

    fn prune_keys(&mut self, now: Timestamp) {
        while let Some((_, kind, key)) = self.periods.first().filter(|(until, ..)| *until <= now).cloned() {
            self.free_key(&(kind, key));
        }
    }

    fn prune_nodes(&mut self, now: Timestamp) {
        let gone = |(no, member): (&NodeNo, &Membership)| {
            let silent = member.renewed_at.after(bounds::NODE_RETENTION) <= now;
            let gone = member.state != NodeState::Live && silent;
            (gone && self.held_by(*no).is_empty()).then_some((*no, member.registration.id))
        };
        let gone: Vec<_> = self.members.iter().filter_map(gone).collect();
        for (no, id) in gone {
            self.members.remove(&no);
            self.member_ids.remove(&id);
        }
    }
}
