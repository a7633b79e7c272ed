//! Finish, release and progress: how a claim ends, and what it says before.

use std::collections::BTreeSet;

use crate::Result;
use crate::bounds;
use crate::id::{Claim, ClaimBatchNo, NodeNo, Row};
use crate::job::{ErrorEntry, Fault, FaultKind, Input, Outcome, Progress, State, Status, transition};
use crate::planted::{self, Defect};
use crate::store::{Cancellation, Finish, Finished};
use crate::time::Timestamp;

use super::model::{Job, Model};
use super::place::{Began, Place};

impl Model {
    pub(super) fn finish(
        &mut self,
        node: NodeNo,
        finishes: Vec<Finish>,
        now: Timestamp,
    ) -> Result<Vec<Finished>> {
        // All before any: a call that fails has no effect.
        for finish in &finishes {
            finish.outcome.check()?;
        }
        let mut answers = Vec::with_capacity(finishes.len());
        for Finish { claim, outcome } in finishes {
            let held = self.held(node, &claim);
            #[cfg(feature = "planted")]
            let held = held.or_else(|| self.held_wrongly(node, &claim, now));
            answers.push(match held {
                Some(row) => {
                    self.end(row, outcome, now)?;
                    Finished::Applied
                }
                None if self.was_applied(&claim, &outcome) => Finished::Applied,
                None => Finished::LeaseLost,
            });
        }
        Ok(answers)
    }

    /// Whether this very outcome was applied before, as far as it left a trace.
    fn was_applied(&self, claim: &Claim, outcome: &Outcome) -> bool {
        let Some(job) = self.jobs.get(&claim.row).filter(|job| job.id == claim.id) else { return false };
        match outcome {
            Outcome::Succeed { .. } | Outcome::Fail { .. } | Outcome::Cancel { .. } => {
                transition(Status::plain(State::Running), outcome.input())
                    .is_ok_and(|status| job.ends.contains(&(claim.number, status)))
            }
            Outcome::Retry { .. } => job.failures().any(|error| error.claim == claim.number),
            Outcome::Snooze { .. } | Outcome::Release | Outcome::Suspend(_) => false,
        }
    }

    fn end(&mut self, row: Row, outcome: Outcome, now: Timestamp) -> Result<()> {
        let input = outcome.input();
        let job = self.job_mut(row)?;
        match outcome {
            Outcome::Succeed { result } => {
                job.clear_crashes();
                let status = Status::plain(State::Succeeded);
                self.go(
                    row,
                    input,
                    Place::Done {
                        status,
                        at: now,
                        began: None,
                        result: result.map(|result| result.to_vec()),
                        note: None,
                    },
                )
            }
            Outcome::Retry { after, fault } => {
                job.clear_crashes();
                job.fail(fault, now);
                let dropped = job.options.unique.clone().filter(|_| planted::is(Defect::KeyDropped));
                if let Some(unique) = dropped {
                    let (id, kind) = (job.id, job.kind.clone());
                    self.release_key(id, kind, unique, now);
                }
                self.go_on(row, input, Place::Timers { due: now.after(after) }, now)
            }
            Outcome::Fail { reason, fault } => {
                job.clear_crashes();
                job.fail(fault, now);
                self.go(row, input, Place::done(Status::because(State::Failed, reason), now, ""))
            }
            Outcome::Snooze { after } => {
                job.clear_crashes();
                self.go_on(row, input, Place::Timers { due: now.after(after) }, now)
            }
            Outcome::Release => self.release(row, now),
            Outcome::Suspend(suspension) => self.suspend(row, *suspension, now),
            Outcome::Cancel { reason, why } => {
                self.go(row, input, Place::done(Status::because(State::Cancelled, reason), now, &why))
            }
        }
    }

    /// Moves a claimed job back to where it waits, unless it is to be cancelled.
    pub(super) fn go_on(&mut self, row: Row, input: Input, place: Place, now: Timestamp) -> Result<()> {
        match self.job(row)?.place.cancel().cloned() {
            None => self.go(row, input, place),
            Some(_) if planted::is(Defect::CancelLost) => self.go(row, input, place),
            Some(Cancellation { reason, why }) => {
                let status = Status::because(State::Cancelled, reason);
                self.go(row, Input::Stop(reason), Place::done(status, now, &why))
            }
        }
    }

    /// Gives a claimed job back, counting nothing.
    pub(super) fn release(&mut self, row: Row, now: Timestamp) -> Result<()> {
        let place = self.job(row)?.returned(now);
        self.go_on(row, Input::Release, place, now)
    }

    pub(super) fn disown(
        &mut self,
        node: NodeNo,
        settled: ClaimBatchNo,
        keep: &[Claim],
        now: Timestamp,
    ) -> Result<usize> {
        let kept: BTreeSet<Row> = keep.iter().filter_map(|claim| self.held(node, claim)).collect();
        let held = self.held_by(node).into_iter();
        let lost: Vec<Row> = held
            .filter(|(row, batch)| *batch <= settled && !kept.contains(row))
            .map(|(row, _)| row)
            .collect();
        for row in &lost {
            self.release(*row, now)?;
        }
        Ok(lost.len())
    }

    pub(super) fn progress(&mut self, node: NodeNo, progress: Vec<(Claim, Progress)>) {
        for (claim, progress) in progress {
            if let Some(job) = self.held(node, &claim).and_then(|row| self.jobs.get_mut(&row)) {
                let kept = |number: u64| number.min(i64::MAX as u64);
                let (done, total) = (kept(progress.done), kept(progress.total));
                job.progress = Some(Progress { done, total, note: progress.note });
            }
        }
    }
}

impl Job {
    /// Counts a failure and keeps its error.
    fn fail(&mut self, fault: Fault, now: Timestamp) {
        self.failures = self.failures.saturating_add(1);
        self.note(fault, now);
    }

    /// Keeps what went wrong under the job's claim, and not more than the bound.
    pub(super) fn note(&mut self, fault: Fault, now: Timestamp) {
        let Some(Began { at: claimed_at, node }) = self.place.claim() else { return };
        let Fault { kind, message } = fault;
        self.errors.push(ErrorEntry { claim: self.claim, claimed_at, node, at: now, kind, message });
        if self.errors.len() > bounds::ERRORS_KEPT {
            self.errors.remove(0);
        }
    }

    fn failures(&self) -> impl DoubleEndedIterator<Item = &ErrorEntry> {
        self.errors.iter().filter(|error| error.kind != FaultKind::Crashed)
    }

    /// What went wrong last; the loss of a node is not meant.
    pub(super) fn last_failure(&self) -> Option<&ErrorEntry> {
        self.failures().next_back()
    }
}
