//! Enqueue, and unique keys.

use std::collections::BTreeSet;

use crate::bounds;
use crate::id::JobId;
use crate::job::{Input, New, OnConflict, Reason, State, Status, Unique, Until};
use crate::name::Kind;
use crate::planted::{self, Defect};
use crate::store::Receipt;
use crate::time::Timestamp;
use crate::{Error, Result};

use super::model::{Key, Line, Model};
use super::place::Place;

impl Model {
    pub(super) fn enqueue(&mut self, jobs: Vec<New>, now: Timestamp) -> Result<Vec<Receipt>> {
        self.check_lines(&jobs)?;
        self.check_uses(jobs.iter().flat_map(|job| &job.options.limits))?;
        jobs.into_iter().map(|job| self.enqueue_one(job, now)).collect()
    }

    fn enqueue_one(&mut self, job: New, now: Timestamp) -> Result<Receipt> {
        if let Some(&row) = self.ids.get(&job.id) {
            let there = self.job(row)?;
            return Ok(match job.differs(there.kind.as_str(), &there.options, &there.input) {
                Some(differs) if !planted::is(Defect::IdTakenSilently) => Receipt::Taken(differs),
                _ => Receipt::Repeated,
            });
        }
        let Some(unique) = &job.options.unique else {
            self.add(job, now);
            return Ok(Receipt::Created);
        };
        let key = (job.kind.clone(), unique.key.clone());
        if let Some(holder) = self.holder(&key, now) {
            match unique.on_conflict {
                OnConflict::Keep => return Ok(Receipt::Existing(holder)),
                OnConflict::Reject => return Ok(Receipt::Rejected(holder)),
                OnConflict::Replace => {
                    if !self.replace(holder, now)? {
                        return Ok(Receipt::Existing(holder));
                    }
                }
            }
        }
        self.free_key(&key);
        self.keys.insert(key, Key { holder: job.id, until: None });
        self.add(job, now);
        Ok(Receipt::Created)
    }

    /// Cancels a waiting job in favour of a new one. False if it does not wait.
    fn replace(&mut self, holder: JobId, now: Timestamp) -> Result<bool> {
        let Some(&row) = self.ids.get(&holder) else { return Ok(false) };
        if !self.job(row)?.place.is_waiting() {
            return Ok(false);
        }
        let status = Status::because(State::Cancelled, Reason::Replaced);
        self.go(row, Input::Cancel(Reason::Replaced), Place::done(status, now, ""))?;
        Ok(true)
    }

    /// The job that holds a key now.
    fn holder(&self, key: &(Kind, String), now: Timestamp) -> Option<JobId> {
        let key = self.keys.get(key)?;
        key.until.is_none_or(|until| until > now).then_some(key.holder)
    }

    /// Releases the key of a job that ends, or lets its period begin. A key that another job holds is left alone.
    pub(super) fn release_key(&mut self, id: JobId, kind: Kind, unique: Unique, now: Timestamp) {
        let key = (kind, unique.key);
        let Some(held) = self.keys.get_mut(&key) else { return };
        if held.holder != id || held.until.is_some() {
            return;
        }
        match unique.until {
            Until::Started | Until::Finished => self.free_key(&key),
            Until::After(period) => {
                let until = now.after(period);
                held.until = Some(until);
                self.periods.insert((until, key.0, key.1));
            }
        }
    }

    /// Forgets a key, whoever holds it.
    pub(super) fn free_key(&mut self, key: &(Kind, String)) {
        if let Some(Key { until: Some(until), .. }) = self.keys.remove(key) {
            self.periods.remove(&(until, key.0.clone(), key.1.clone()));
        }
    }

    /// Refuses a batch that would make more lines than a store holds.
    pub(super) fn check_lines(&self, jobs: &[New]) -> Result<()> {
        let line = |job: &New| Line { kind: job.kind.clone(), labels: job.options.labels.clone() };
        let known =
            |job: &&New| self.lines.get(&job.queue).is_some_and(|lines| lines.contains_key(&line(job)));
        let new: BTreeSet<_> =
            jobs.iter().filter(|job| !known(job)).map(|job| (&job.queue, line(job))).collect();
        let size = self.line_count() + new.len();
        if !new.is_empty() && size > bounds::LINES {
            return Err(Error::TooLarge { what: "number of lines", size, limit: bounds::LINES });
        }
        Ok(())
    }
}
