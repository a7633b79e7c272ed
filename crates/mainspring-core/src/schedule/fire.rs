//! Firing: from a schedule's row and the present to its next row and the jobs to enqueue.
//!
//! A node reads a row, calls [`step`], and hands the outcome in. The store accepts it only if the row is still the one that was
//! read, and stores row and jobs in one commit. So whatever happens in between, each fire happens once.
//!
//! # Invariants
//! - The last fire only grows, but for a clock that was wrong by more than [`CLOCK_AHEAD`](crate::bounds::CLOCK_AHEAD).
//! - The id of a job follows from the schedule, its generation, the fire and the cause: a repeat meets the same job.

use std::time::Duration;

use super::definition::{Note, Pause, Schedule, ScheduleState, Seed, Trouble};
use super::{Definition, Hold, due, hash};
use crate::id::JobId;
use crate::job::{New, Status};
use crate::name::ScheduleName;
use crate::planted::{self, Defect};
use crate::time::Timestamp;
use crate::{Error, Result, Uuid, bounds};

/// Waits after a fire that could not be stored: first and longest.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));

/// Why a job is enqueued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The rule says so.
    Rule,
    /// Somebody asked for it; a repeat of the request has the same id.
    Request(Uuid),
}

/// What is to be done with a schedule.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Nothing is due.
    Wait,
    /// This job, of the fire before, is to be cancelled; the fire stays due.
    Cancel(JobId),
    /// This row is to be written, and these jobs are to be enqueued with it.
    Write(Box<Schedule>, Vec<New>),
}

impl Schedule {
    /// A schedule that is there from now on.
    pub fn create(name: ScheduleName, definition: Definition, generation: Uuid, now: Timestamp) -> Self {
        let state = ScheduleState {
            generation,
            last_fire: now,
            last_job: None,
            fired: 0,
            paused: None,
            note: None,
            error: None,
            seed: None,
            edited_by: None,
        };
        let mut schedule = Schedule { name, version: 0, next_at: None, definition, state };
        schedule.look_again();
        schedule
    }

    /// The job of one fire.
    pub fn job(&self, fire: Timestamp, cause: Cause) -> New {
        let cause = match &cause {
            Cause::Rule => [0; 16],
            Cause::Request(id) => *id.as_bytes(),
        };
        let parts = [
            self.name.as_str().as_bytes(),
            self.state.generation.as_bytes().as_slice(),
            &fire.as_micros().to_le_bytes(),
            &cause,
        ];
        let (one, other) = (hash(&parts), hash(&[parts.concat().as_slice(), b"2"]));
        let millis = u64::try_from(fire.as_micros() / 1_000).unwrap_or(0);
        let mut bytes = [0; 16];
        bytes[..6].copy_from_slice(&millis.to_be_bytes()[2..]);
        bytes[6..8].copy_from_slice(&one.to_be_bytes()[..2]);
        bytes[8..].copy_from_slice(&other.to_be_bytes());
        // Version and variant of a UUIDv7.
        bytes[6] = bytes[6] & 0x0f | 0x70;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        let last = (self.state.fired > 0).then_some(self.state.last_fire);
        self.definition.job.make(&self.name, JobId::from_bytes(bytes), fire, last)
    }

    /// The fires that come next, after the last one and `after`, when each is due.
    pub fn next_fires(&self, after: Timestamp, most: usize) -> Vec<Timestamp> {
        let rule = &self.definition.rule;
        let shift = rule.shift(self.name.as_str());
        let mut last = self.state.last_fire.max(after.before(shift));
        let left = rule.count.map_or(u64::MAX, |count| count.saturating_sub(self.state.fired));
        let mut fires = Vec::new();
        while fires.len() < most.min(usize::try_from(left).unwrap_or(usize::MAX))
            && let Some(fire) = rule.after(last)
        {
            fires.push(fire.after(shift));
            last = fire;
        }
        fires
    }

    /// Whether its rule names no later fire.
    pub fn has_ended(&self) -> bool {
        self.state.paused.is_none() && self.next_at.is_none()
    }

    /// Its row with another definition. Fires that the old one has dealt with do not happen again.
    #[must_use]
    pub fn redefined(&self, definition: Definition, now: Timestamp) -> Self {
        let mut changed = Schedule { definition, ..self.clone() };
        // What the new rule would have fired in the past, it has not missed.
        changed.state.last_fire = changed.state.last_fire.max(now);
        changed.state.error = None;
        changed.look_again();
        changed
    }

    /// Its row with what code says of it: a higher revision replaces a lower one, unless a person has edited it.
    #[must_use]
    pub fn seeded(&self, definition: &Definition, seed: &Seed, now: Timestamp) -> Self {
        let newer = self.state.seed.as_ref().is_none_or(|old| seed.revision > old.revision);
        let replaces = newer && self.state.edited_by.is_none() && *definition != self.definition;
        let mut changed = if replaces { self.redefined(definition.clone(), now) } else { self.clone() };
        match &mut changed.state.seed {
            // A node with an older revision still names it.
            Some(old) if !newer => old.seen = old.seen.max(now),
            old => *old = Some(Seed { seen: now, ..seed.clone() }),
        }
        changed
    }

    /// Its row while it is paused.
    #[must_use]
    pub fn paused(&self, by: &str, note: &str, now: Timestamp) -> Self {
        let mut changed = self.clone();
        changed.state.paused = Some(Pause { at: now, by: by.to_owned(), note: note.to_owned() });
        changed.look_again();
        changed
    }

    /// Its row when it fires again. Fires that were due while it was paused do not happen.
    #[must_use]
    pub fn resumed(&self, now: Timestamp) -> Self {
        let mut changed = self.clone();
        changed.state.paused = None;
        if planted::is(Defect::ResumeCatchesUp) {
            changed.look_again();
            return changed;
        }
        changed.state.last_fire = changed.state.last_fire.max(now.before(self.shift()));
        changed.look_again();
        changed
    }

    /// Its row after a fire that could not be stored: it is tried again, after a while that grows.
    #[must_use]
    pub fn troubled(&self, text: &str, now: Timestamp) -> Self {
        let mut changed = self.clone();
        let times = self.state.error.as_ref().map_or(1, |error| error.times.saturating_add(1));
        let text = text.chars().take(bounds::WHY_BYTES / 4).collect();
        changed.state.error = Some(Trouble { at: now, text, times });
        let wait = RETRY.0.saturating_mul(1_u32.checked_shl(times - 1).unwrap_or(u32::MAX)).min(RETRY.1);
        changed.next_at = Some(now.after(wait));
        changed
    }

    /// Its row with a note.
    #[must_use]
    pub fn noted(mut self, text: String, now: Timestamp) -> Self {
        self.state.note = Some(Note { at: now, text });
        self
    }

    fn shift(&self) -> Duration {
        self.definition.rule.shift(self.name.as_str())
    }

    /// Works out when to look next.
    fn look_again(&mut self) {
        let rule = &self.definition.rule;
        let over = rule.count.is_some_and(|count| self.state.fired >= count);
        self.next_at = if self.state.paused.is_some() || over {
            None
        } else {
            rule.after(self.state.last_fire).map(|next| next.after(self.shift()))
        };
    }
}

/// What is to be done with a schedule now. `before` is how the job of its last fire is, if there is one.
pub fn step(schedule: &Schedule, before: Option<Status>, now: Timestamp) -> Step {
    if schedule.state.paused.is_some() {
        return Step::Wait;
    }
    let definition = &schedule.definition;
    // The present, as nominal times count it.
    let present = now.before(schedule.shift());
    let mut changed = schedule.clone();
    if schedule.state.last_fire > present.after(bounds::CLOCK_AHEAD) {
        let text = format!(
            "its last fire, {}, was far ahead of the store's clock, which was wrong; it fires again from now on",
            schedule.state.last_fire
        );
        changed.state.last_fire = present;
        changed.look_again();
        return Step::Write(Box::new(changed.noted(text, now)), Vec::new());
    }
    let mut due =
        due(&definition.rule, definition.missed, definition.grace.0, schedule.state.last_fire, present);
    if let Some(count) = definition.rule.count {
        let left = count.saturating_sub(schedule.state.fired);
        due.fires.truncate(usize::try_from(left).unwrap_or(usize::MAX));
    }
    if due.fires.is_empty() && due.missed.is_none() {
        changed.look_again();
        // Another version of the time zones, or a fire that was put off after an error.
        let derived = changed.next_at != schedule.next_at && schedule.state.error.is_none();
        return if derived { Step::Write(Box::new(changed), Vec::new()) } else { Step::Wait };
    }
    let hold = definition.overlap.hold(definition.pause_on_failure, before);
    let last_job = schedule.state.last_job.map(|id| id.to_string()).unwrap_or_default();
    let mut jobs = Vec::new();
    if let Some(fire) = due.fires.last() {
        match hold {
            Hold::Fire => jobs = due.fires.iter().map(|fire| schedule.job(*fire, Cause::Rule)).collect(),
            Hold::Skip => {
                let text = format!("its fire of {fire} was skipped: job {last_job} has not ended");
                changed = changed.noted(text, now);
            }
            Hold::Cancel => return schedule.state.last_job.map_or(Step::Wait, Step::Cancel),
            Hold::Pause => {
                let paused = schedule.paused("pause_on_failure", &format!("job {last_job} failed"), now);
                return Step::Write(Box::new(paused), Vec::new());
            }
        }
    }
    if let Some((first, last)) = due.missed {
        let left_out = if first == last {
            format!("its fire of {first} was")
        } else {
            format!("its fires from {first} to {last} were")
        };
        changed = changed.noted(format!("{left_out} missed and enqueued no job"), now);
    }
    changed.state.last_fire = due.last;
    changed.state.fired = changed.state.fired.saturating_add(jobs.len() as u64);
    if let Some(job) = jobs.last() {
        changed.state.last_job = Some(job.id);
        changed.state.error = None;
    }
    changed.look_again();
    Step::Write(Box::new(changed), jobs)
}

/// The jobs of all fires of a schedule from one time to another, both included, as if each had been in time.
///
/// # Errors
/// [`Error::TooLarge`] if there are more than [`BATCH`](crate::bounds::BATCH).
pub fn backfill(schedule: &Schedule, from: Timestamp, to: Timestamp, request: Uuid) -> Result<Vec<New>> {
    let mut jobs = Vec::new();
    let mut after = Timestamp::from_micros(from.as_micros().saturating_sub(1));
    while let Some(fire) = schedule.definition.rule.after(after).filter(|fire| *fire <= to) {
        if jobs.len() == bounds::BATCH {
            return Err(Error::TooLarge {
                what: "number of fires",
                size: jobs.len() + 1,
                limit: bounds::BATCH,
            });
        }
        jobs.push(schedule.job(fire, Cause::Request(request)));
        after = fire;
    }
    Ok(jobs)
}
