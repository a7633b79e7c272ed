//! Schedules: rows that are compared, written, and enqueue jobs.

use crate::audit::{AuditEntry, Subject};
use crate::name::ScheduleName;
use crate::planted::{self, Defect};
use crate::schedule::Schedule;
use crate::store::{DueSchedules, ScheduleWrite, Written};
use crate::time::Timestamp;
use crate::{Result, bounds};

use super::model::Model;

impl Model {
    pub(super) fn next_fire(&self) -> Option<Timestamp> {
        self.fires.first().map(|(at, _)| *at)
    }

    pub(super) fn due_schedules(&self, limit: usize, now: Timestamp) -> DueSchedules {
        let due = self.fires.iter().take_while(|(at, _)| *at <= now).take(limit);
        let schedules: Vec<_> = due.filter_map(|(_, name)| self.schedules.get(name).cloned()).collect();
        let next = self.fires.iter().nth(schedules.len()).map(|(at, _)| *at);
        DueSchedules { now, schedules, next }
    }

    pub(super) fn list_schedules(&self, after: Option<&ScheduleName>, limit: usize) -> Vec<Schedule> {
        let rest = self.schedules.values().filter(|it| after.is_none_or(|after| it.name > *after));
        rest.take(limit).cloned().collect()
    }

    pub(super) fn write_schedules(
        &mut self,
        writes: Vec<ScheduleWrite>,
        now: Timestamp,
    ) -> Result<Vec<Written>> {
        // A call that is refused changes nothing.
        let all: Vec<_> = writes.iter().flat_map(|write| write.jobs.clone()).collect();
        self.check_lines(&all)?;
        self.check_uses(all.iter().flat_map(|job| &job.options.limits))?;
        writes.into_iter().map(|write| self.write_schedule(write, now)).collect()
    }

    fn write_schedule(&mut self, write: ScheduleWrite, now: Timestamp) -> Result<Written> {
        let found = self.schedules.get(&write.name).map(|there| there.version);
        if found != write.expected && !planted::is(Defect::ScheduleUnchecked) {
            return Ok(Written::Stale);
        }
        let version = write.version();
        if let Some(before) = self.schedules.remove(&write.name)
            && let Some(at) = before.next_at
        {
            self.fires.remove(&(at, write.name.clone()));
        }
        if let Some(row) = write.row {
            if let Some(at) = row.next_at {
                self.fires.insert((at, write.name.clone()));
                self.hint_due(at);
            }
            self.schedules.insert(write.name.clone(), Schedule { name: write.name, version, ..row });
        }
        if let Some(entry) = write.audit {
            self.remember(entry, now);
        }
        Ok(Written::Stored(self.enqueue(write.jobs, now)?))
    }

    pub(super) fn remember(&mut self, entry: AuditEntry, now: Timestamp) {
        self.last_audit += 1;
        let subject = entry.subject.clone();
        self.audit.push(AuditEntry { no: self.last_audit, at: now, ..entry });
        let of_subject = |entry: &&AuditEntry| entry.subject == subject;
        if self.audit.iter().filter(of_subject).count() > bounds::AUDIT {
            let oldest = self.audit.iter().position(|entry| entry.subject == subject);
            oldest.map(|at| self.audit.remove(at));
        }
    }

    pub(super) fn audit(&self, subject: Option<&Subject>, limit: usize) -> Vec<AuditEntry> {
        let of_subject = |entry: &&AuditEntry| subject.is_none_or(|subject| entry.subject == *subject);
        self.audit.iter().rev().filter(of_subject).take(limit).cloned().collect()
    }
}
