//! What the memory store holds, and how a job moves.
//!
//! A [`Job`] is what was enqueued plus its [`Place`]. Beside the jobs there are indexes, one per question that is asked
//! often; only [`Model::enter`], [`Model::leave`] and what is built on them touch these.

use std::collections::{BTreeMap, BTreeSet};

use crate::audit::AuditEntry;
use crate::id::{Claim, ClaimBatchNo, JobId, NodeId, NodeNo, Row};
use crate::job::{ErrorEntry, Input, New, Options, Priority, Progress, State, Status, transition};
use crate::limit::{Limit, Total};
use crate::name::{Kind, Label, LimitName, QueueName, ScheduleName};
use crate::planted::{self, Defect};
use crate::schedule::Schedule;
use crate::store::{ActivityReport, Class, Counts, Hint, Level, NodeState, Registration, Settings};
use crate::time::Timestamp;
use crate::{Error, Result};

use super::journal::Past;
use super::limited::{Blocked, Groups};
use super::limits::{KeyId, Keys, TotalState};
use super::place::Place;

/// Everything.
#[derive(Clone, Default)]
pub(super) struct Model {
    pub(super) jobs: BTreeMap<Row, Job>,
    pub(super) ids: BTreeMap<JobId, Row>,
    /// Unique keys that are held, by the kind and the key.
    pub(super) keys: BTreeMap<(Kind, String), Key>,
    pub(super) queues: BTreeMap<QueueName, Settings>,
    /// Those of the queues that were deleted: they are there again while they have jobs.
    pub(super) deleted: BTreeSet<QueueName>,
    pub(super) members: BTreeMap<NodeNo, Membership>,
    pub(super) member_ids: BTreeMap<NodeId, NodeNo>,
    pub(super) counts: Counts,

    /// The lines of each queue: which kind and which labels they need.
    pub(super) lines: BTreeMap<QueueName, BTreeMap<Line, LineNo>>,
    /// Jobs in `ready`, in the order of claims.
    pub(super) ready: BTreeSet<(LineNo, Level, Timestamp, Row)>,
    /// Jobs in `timers`, and those in `suspended` that time wakes, by the time they wait for.
    pub(super) timers: BTreeSet<(Timestamp, Row)>,
    /// Waiting jobs that have a deadline, by that.
    pub(super) deadlines: BTreeSet<(Timestamp, Row)>,
    /// Jobs in `lease`, by their node.
    pub(super) leases: BTreeSet<(NodeNo, Row)>,
    /// Jobs in `done`, by when they ended, apart for each retention.
    pub(super) ended: BTreeMap<(QueueName, RetentionKind), BTreeSet<(Timestamp, Row)>>,
    /// Keys that are held for a period after the end of their job, by the end of that.
    pub(super) periods: BTreeSet<(Timestamp, Kind, String)>,

    pub(super) schedules: BTreeMap<ScheduleName, Schedule>,
    /// Those that are to be looked at, by when.
    pub(super) fires: BTreeSet<(Timestamp, ScheduleName)>,
    pub(super) limits: BTreeMap<LimitName, Limit>,
    pub(super) keys_of_limits: Keys,
    pub(super) totals: BTreeMap<Total, TotalState>,
    /// Jobs in `limited`.
    pub(super) groups: Groups,
    /// Groups that wait for room, by the key.
    pub(super) blocked: BTreeMap<KeyId, Blocked>,
    /// Keys at which time alone lets the next group in, by when; and the same by key.
    pub(super) dues: BTreeSet<(Timestamp, KeyId)>,
    pub(super) due_keys: BTreeMap<KeyId, Timestamp>,
    /// Keys that this call has left with another room, or has visited.
    pub(super) touched: BTreeSet<KeyId>,
    /// Changes of settings, the first first.
    pub(super) audit: Vec<AuditEntry>,
    pub(super) last_audit: i64,

    #[cfg(feature = "planted")]
    pub(super) stale: super::planted::Stale,
    hints: Hints,
    last_row: i64,
    pub(super) last_node: i64,
    last_line: u32,
    pub(super) last_message: i64,
}

/// A job.
#[derive(Clone)]
pub(super) struct Job {
    pub(super) id: JobId,
    pub(super) kind: Kind,
    pub(super) queue: QueueName,
    pub(super) line: LineNo,
    pub(super) input: Vec<u8>,
    pub(super) created_at: Timestamp,
    pub(super) options: Options,

    pub(super) place: Place,
    pub(super) priority: Priority,
    pub(super) claim: u32,
    pub(super) failures: u16,
    pub(super) crashes: u16,
    pub(super) crashed_micros: i64,
    /// Whether it waits and keeps the units of its limits.
    pub(super) keeps: bool,
    /// Taken away when the job ends.
    pub(super) deadline: Option<Timestamp>,

    pub(super) errors: Vec<ErrorEntry>,
    pub(super) progress: Option<Progress>,
    /// What it has recorded, been sent and started, if anything.
    pub(super) past: Option<Box<Past>>,
    /// The job that started it.
    pub(super) parent: Option<Row>,
    /// Every status in which it ended, and the claim it had then; operators may have run it again since.
    pub(super) ends: Vec<(u32, Status)>,
    /// Why it cannot be read; for tests.
    pub(super) damage: Option<String>,
}

/// What a node must be able to do to run a job, within one queue.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Line {
    pub(super) kind: Kind,
    pub(super) labels: Vec<Label>,
}

/// The number of a line; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LineNo(u32);

/// A unique key that is held.
#[derive(Clone)]
pub(super) struct Key {
    pub(super) holder: JobId,
    /// When it becomes free: set when its job has ended and it has a period.
    pub(super) until: Option<Timestamp>,
}

/// A node.
#[derive(Clone)]
pub(super) struct Membership {
    pub(super) registration: Registration,
    pub(super) state: NodeState,
    pub(super) started_at: Timestamp,
    pub(super) renewed_at: Timestamp,
    pub(super) lease_until: Timestamp,
    pub(super) backed_up: bool,
    pub(super) report: Option<ActivityReport>,
}

/// Which of a queue's two retentions applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RetentionKind {
    /// As those that succeeded.
    Good,
    /// As those that failed.
    Bad,
}

impl RetentionKind {
    pub(super) fn of(state: State) -> Self {
        if matches!(state, State::Failed | State::Cancelled) {
            RetentionKind::Bad
        } else {
            RetentionKind::Good
        }
    }
}

/// What one call leaves for the listeners.
#[derive(Clone, Default)]
struct Hints {
    ready: BTreeSet<QueueName>,
    due: Option<Timestamp>,
    cancel: BTreeSet<NodeNo>,
    messages: BTreeSet<JobId>,
}

impl Model {
    /// Puts a new job into its first place.
    pub(super) fn add(&mut self, new: New, now: Timestamp) -> Row {
        self.last_row += 1;
        let row = Row(self.last_row);
        let run = new.run.map(|run| run.resolve(now)).filter(|&run| run > now);
        let place = match run {
            None => Place::Ready { class: Class::Fresh, since: now },
            Some(due) => Place::Timers { due },
        };
        let job = Job {
            line: self.line(&new),
            id: new.id,
            kind: new.kind,
            queue: new.queue,
            input: new.input,
            created_at: now,
            place,
            priority: new.priority,
            claim: 0,
            failures: 0,
            crashes: 0,
            crashed_micros: 0,
            keeps: false,
            deadline: new.deadline.map(|deadline| deadline.resolve(now)),
            options: new.options,
            errors: Vec::new(),
            progress: None,
            past: Past::shared(new.journal, now),
            parent: None,
            ends: Vec::new(),
            damage: None,
        };
        self.ids.insert(job.id, row);
        self.name_queue(&job.queue);
        self.jobs.insert(row, job);
        self.enter(row);
        row
    }

    /// Takes a job out, with everything known of it but its unique key.
    pub(super) fn remove(&mut self, row: Row) -> Option<Job> {
        self.leave(row);
        let job = self.jobs.remove(&row)?;
        if job.keeps {
            self.give_back(&job.options.limits);
        }
        self.ids.remove(&job.id);
        Some(job)
    }

    /// Moves a job to another place, if there is such an edge.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there is none: callers have checked before.
    pub(super) fn go(&mut self, row: Row, input: Input, place: Place) -> Result<()> {
        let from = self.job(row)?.place.status();
        match transition(from, input) {
            Ok(to) if to == place.status() => self.settle(row, place),
            Ok(to) => Err(Error::Corrupt { why: format!("{input:?} leads to {to}, not {}", place.status()) }),
            Err(illegal) => Err(Error::Corrupt { why: illegal.to_string() }),
        }
    }

    /// Moves a job to a place that the state machine has already allowed.
    pub(super) fn settle(&mut self, row: Row, place: Place) -> Result<()> {
        self.leave(row);
        self.settle_units(row, &place)?;
        let job = self.job_mut(row)?;
        let claim = job.place.claim();
        job.place = place;
        if let Place::Done { status, at, began, .. } = &mut job.place {
            *began = claim;
            let (status, at) = (*status, *at);
            job.deadline = None;
            job.ends.push((job.claim, status));
            let id = job.id;
            let unique = job.options.unique.clone().map(|unique| (job.kind.clone(), unique));
            if let Some((kind, unique)) = unique {
                self.release_key(id, kind, unique, at);
            }
        }
        self.enter(row);
        match self.job(row)?.place {
            Place::Done { status, at, .. } => self.close(row, status, at),
            Place::Ready { .. } | Place::Timers { .. } | Place::Suspended { .. } | Place::Lease { .. } => {
                Ok(())
            }
        }
    }

    /// A job that is claimed takes its units, unless it has kept them; one whose claim ends, or that ends, gives them back, unless it
    /// keeps them.
    fn settle_units(&mut self, row: Row, to: &Place) -> Result<()> {
        let job = self.job(row)?;
        if job.options.limits.is_empty() {
            return Ok(());
        }
        let (claimed, kept, uses) =
            (matches!(job.place, Place::Lease { .. }), job.keeps, job.options.limits.clone());
        match to {
            Place::Lease { since, .. } if !kept => self.take_units(row, *since),
            Place::Lease { .. } => self.job_mut(row)?.keeps = false,
            Place::Done { .. } if claimed || kept => {
                self.job_mut(row)?.keeps = false;
                self.give_back(&uses);
                if planted::is(Defect::LimitGivenTwice) {
                    self.give_back(&uses);
                }
            }
            Place::Suspended { .. } if claimed && planted::is(Defect::LimitKeptOnSuspend) => {}
            Place::Ready { class: Class::Lost | Class::Suspect, .. }
                if claimed && planted::is(Defect::LimitKeptOnRescue) => {}
            Place::Suspended { .. } if claimed && kept => {}
            _ if claimed => self.give_back(&uses),
            _ => {}
        }
        Ok(())
    }

    /// Changes something that indexes depend on, while the job stays where it is.
    pub(super) fn alter(&mut self, row: Row, change: impl FnOnce(&mut Job)) -> Result<()> {
        self.leave(row);
        change(self.job_mut(row)?);
        self.enter(row);
        Ok(())
    }

    pub(super) fn job(&self, row: Row) -> Result<&Job> {
        self.jobs.get(&row).ok_or_else(|| Error::Corrupt { why: format!("no job at row {}", row.0) })
    }

    pub(super) fn job_mut(&mut self, row: Row) -> Result<&mut Job> {
        self.jobs.get_mut(&row).ok_or_else(|| Error::Corrupt { why: format!("no job at row {}", row.0) })
    }

    /// The row of a claim that a node holds, or `None` if it is not the owner.
    pub(super) fn held(&self, node: NodeNo, claim: &Claim) -> Option<Row> {
        let job = self.jobs.get(&claim.row).filter(|job| job.id == claim.id && job.claim == claim.number)?;
        matches!(job.place, Place::Lease { node: owner, .. } if owner == node).then_some(claim.row)
    }

    /// The rows of all claims that a node holds, with their batches.
    pub(super) fn held_by(&self, node: NodeNo) -> Vec<(Row, ClaimBatchNo)> {
        let rows = self.leases.range((node, Row(i64::MIN))..=(node, Row(i64::MAX)));
        let batch = |row: Row| match self.jobs.get(&row).map(|job| &job.place) {
            Some(Place::Lease { batch, .. }) => Some((row, *batch)),
            _ => None,
        };
        rows.filter_map(|(_, row)| batch(*row)).collect()
    }

    /// Takes a job out of every index of its place.
    fn leave(&mut self, row: Row) {
        let Some(job) = self.jobs.get(&row) else { return };
        match &job.place {
            Place::Ready { .. } if job.is_limited() => self.leave_limited(row),
            Place::Ready { class, since } => {
                self.ready.remove(&(job.line, Level::new(*class, job.priority), *since, row));
            }
            Place::Timers { .. } | Place::Suspended { .. } => {
                if let Some(due) = job.place.wakes() {
                    self.timers.remove(&(due, row));
                }
            }
            Place::Lease { node, .. } => {
                self.leases.remove(&(*node, row));
                let totals = job.totals();
                self.count_claim(&totals, false);
            }
            Place::Done { status, at, .. } => {
                let key = (job.queue.clone(), RetentionKind::of(status.state));
                if let Some(ended) = self.ended.get_mut(&key) {
                    ended.remove(&(*at, row));
                }
            }
        }
        let Some(job) = self.jobs.get(&row) else { return };
        let status = job.place.status();
        if let Some(deadline) = job.deadline.filter(|_| job.place.is_waiting()) {
            self.deadlines.remove(&(deadline, row));
        }
        let queue = job.queue.clone();
        self.count(&queue, status.state, false);
    }

    /// Puts a job into every index of its place, and notes whom that may wake.
    fn enter(&mut self, row: Row) {
        let Some(job) = self.jobs.get(&row) else { return };
        match &job.place {
            Place::Ready { .. } if job.is_limited() => {
                let queue = job.queue.clone();
                self.enter_limited(row);
                self.hints.ready.insert(queue);
            }
            Place::Ready { class, since } => {
                self.ready.insert((job.line, Level::new(*class, job.priority), *since, row));
                self.hints.ready.insert(job.queue.clone());
            }
            Place::Timers { .. } | Place::Suspended { .. } => {
                if let Some(due) = job.place.wakes() {
                    self.timers.insert((due, row));
                    self.hints.due = self.hints.due.into_iter().chain([due]).min();
                }
            }
            Place::Lease { node, .. } => {
                self.leases.insert((*node, row));
                let totals = job.totals();
                self.count_claim(&totals, true);
            }
            Place::Done { status, at, .. } => {
                let key = (job.queue.clone(), RetentionKind::of(status.state));
                self.ended.entry(key).or_default().insert((*at, row));
            }
        }
        let Some(job) = self.jobs.get(&row) else { return };
        let status = job.place.status();
        if let Some(deadline) = job.deadline.filter(|_| job.place.is_waiting()) {
            self.deadlines.insert((deadline, row));
            self.hints.due = self.hints.due.into_iter().chain([deadline]).min();
        }
        let queue = job.queue.clone();
        self.count(&queue, status.state, true);
    }

    fn count(&mut self, queue: &QueueName, state: State, more: bool) {
        let states = self.counts.0.entry(queue.clone()).or_default();
        let count = states.entry(state).or_default();
        *count = if more { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            states.remove(&state);
        }
        if states.is_empty() {
            self.counts.0.remove(queue);
        }
    }

    /// The line of a new job; made if it is the first of its kind.
    fn line(&mut self, new: &New) -> LineNo {
        let line = Line { kind: new.kind.clone(), labels: new.options.labels.clone() };
        let last = &mut self.last_line;
        *self.lines.entry(new.queue.clone()).or_default().entry(line).or_insert_with(|| {
            *last += 1;
            LineNo(*last)
        })
    }

    /// How many lines there are.
    pub(super) fn line_count(&self) -> usize {
        self.lines.values().map(BTreeMap::len).sum()
    }

    pub(super) fn name_queue(&mut self, queue: &QueueName) {
        if !self.queues.contains_key(queue) {
            self.queues.insert(queue.clone(), Settings::default());
        }
    }

    pub(super) fn hint_ready(&mut self, queue: &QueueName) {
        self.hints.ready.insert(queue.clone());
    }

    pub(super) fn hint_due(&mut self, at: Timestamp) {
        self.hints.due = self.hints.due.into_iter().chain([at]).min();
    }

    pub(super) fn hint_cancel(&mut self, node: NodeNo) {
        self.hints.cancel.insert(node);
    }

    pub(super) fn hint_message(&mut self, id: JobId) {
        self.hints.messages.insert(id);
    }

    pub(super) fn take_hints(&mut self) -> Vec<Hint> {
        let Hints { ready, due, cancel, messages } = std::mem::take(&mut self.hints);
        let ready = (!ready.is_empty()).then(|| Hint::Ready(ready.into_iter().collect()));
        let flagged = cancel.into_iter().map(Hint::Cancel).chain(messages.into_iter().map(Hint::Message));
        ready.into_iter().chain(due.map(Hint::Due)).chain(flagged).collect()
    }
}
