//! What operators do to jobs.

use crate::Result;
use crate::id::{JobId, Row};
use crate::job::{Reason, State, Status, Verb};
use crate::journal::Rewind;
use crate::planted::{self, Defect};
use crate::store::{Cancellation, Changed, Class};
use crate::time::Timestamp;

use super::model::Model;
use super::place::Place;

impl Model {
    pub(super) fn change(
        &mut self,
        ids: &[JobId],
        verb: &Verb,
        dry_run: bool,
        now: Timestamp,
    ) -> Result<Vec<Changed>> {
        verb.check()?;
        ids.iter().map(|id| self.change_one(*id, verb, dry_run, now)).collect()
    }

    fn change_one(&mut self, id: JobId, verb: &Verb, dry_run: bool, now: Timestamp) -> Result<Changed> {
        let Some(&row) = self.ids.get(&id) else { return Ok(Changed::NotFound) };
        let place = &self.job(row)?.place;
        let from = place.status();
        let later = place.due().is_some_and(|due| due > now);
        let to = match verb.apply(from, later) {
            Ok(to) => to,
            Err(illegal) => return Ok(Changed::Illegal(illegal)),
        };
        let goes_on = to.is_some_and(|to| !to.state.is_terminal() && to.state != State::Running);
        if goes_on && self.job(row)?.damage.is_some() {
            return Ok(Changed::Illegal(verb.refused(from)));
        }
        if let Verb::Rewind { from: step, claim } = verb {
            let job = self.job(row)?;
            let current = job.claim == *claim || planted::is(Defect::RewindRepeated);
            let Some(rewind) = job.rewind(step).filter(|_| current) else {
                return Ok(Changed::Stale);
            };
            if !dry_run {
                self.rewind(row, &rewind, now)?;
            }
        } else if !dry_run {
            self.apply(row, verb, to, now)?;
        }
        Ok(Changed::Applied { from, to })
    }

    /// Does what a verb says; `to` is the status that the state machine gave.
    fn apply(&mut self, row: Row, verb: &Verb, to: Option<Status>, now: Timestamp) -> Result<()> {
        match (verb, to) {
            (_, None) => self.delete(row, now),
            (Verb::Cancel { why }, Some(to)) if to.state == State::Running => {
                self.flag(row, Cancellation::operator(why))
            }
            (Verb::Recall { why }, Some(to)) if to.state == State::Running => {
                self.flag(row, Cancellation::parent(why))
            }
            (Verb::Cancel { why } | Verb::Recall { why } | Verb::Fail { why }, Some(to)) => {
                self.settle(row, Place::done(to, now, why))
            }
            (Verb::SetPriority(priority), Some(_)) => self.alter(row, |job| job.priority = *priority),
            (
                Verb::Retry | Verb::Rewind { .. } | Verb::Resume | Verb::Hold { .. } | Verb::Delete,
                Some(to),
            ) => {
                let job = self.job_mut(row)?;
                match verb {
                    Verb::Retry | Verb::Rewind { .. } => {
                        job.failures = 0;
                        job.clear_crashes();
                    }
                    Verb::Resume => job.clear_crashes(),
                    _ => {}
                }
                let due = job.place.due();
                let note = match verb {
                    Verb::Hold { why } if !why.is_empty() => Some(why.clone()),
                    _ => None,
                };
                self.settle(row, waiting(to, due, note, now))
            }
        }
    }

    /// Takes back what a job has recorded from a step on, and runs it again.
    fn rewind(&mut self, row: Row, rewind: &Rewind, now: Timestamp) -> Result<()> {
        let job = self.job_mut(row)?;
        job.claim += 1;
        job.failures = 0;
        job.clear_crashes();
        let forgotten = job.take_back(rewind);
        self.settle(row, Place::Ready { class: Class::Fresh, since: now })?;
        for mail in forgotten {
            self.post(row, mail, now)?;
        }
        let lost: Vec<Row> = rewind.children.iter().filter_map(|id| self.ids.get(id)).copied().collect();
        for child in lost {
            if self.job(row)?.cancels(child) {
                self.cancel_child(child, now)?;
            }
        }
        Ok(())
    }

    /// Asks the node of a running job to stop it. The reason first given stays.
    pub(super) fn flag(&mut self, row: Row, why: Cancellation) -> Result<()> {
        if let Place::Lease { cancel, node, .. } = &mut self.job_mut(row)?.place {
            cancel.get_or_insert(why);
            let node = *node;
            self.hint_cancel(node);
        }
        Ok(())
    }

    fn delete(&mut self, row: Row, now: Timestamp) -> Result<()> {
        if self.job(row)?.place.is_waiting() {
            self.close(row, Status::because(State::Cancelled, Reason::Operator), now)?;
        }
        let Some(job) = self.remove(row) else { return Ok(()) };
        if let Some(unique) = job.options.unique {
            let key = (job.kind, unique.key);
            if self.keys.get(&key).is_some_and(|key| key.holder == job.id) {
                self.free_key(&key);
            }
        }
        Ok(())
    }
}

/// The place of a job that an operator lets wait in another way. `due` is the time that it was to wait for, `note` why it is
/// held.
fn waiting(to: Status, due: Option<Timestamp>, note: Option<String>, now: Timestamp) -> Place {
    match (to.reason, due) {
        (Some(reason), due) => Place::Suspended { reason, due, waits: Vec::new(), note },
        (None, Some(due)) if to.state == State::Scheduled => Place::Timers { due },
        (None, _) => Place::Ready { class: Class::Fresh, since: now },
    }
}
