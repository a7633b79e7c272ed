//! Claim: from `ready` to `lease`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::id::{Claim, NodeNo, Row};
use crate::job::{Input, Priority, Until};
use crate::journal::Value;
use crate::name::QueueName;
use crate::planted::{self, Defect};
use crate::store::{self, ClaimRequest, Claimed, ClaimedBatch, Class, Level};
use crate::time::Timestamp;
use crate::{Result, bounds};

use super::limited::Choice;
use super::model::{Line, LineNo, Model};
use super::place::Place;

/// The head of one line, in the order of claims.
pub(super) type Head = (Level, Timestamp, Row, LineNo);

impl Model {
    pub(super) fn claim(&mut self, request: &ClaimRequest, now: Timestamp) -> Result<ClaimedBatch> {
        self.renew_lease_in_time(request.node, now)?;
        let held = self.held_under(request);
        if !held.is_empty() {
            return self.batch(&held, now);
        }
        let mut choice = self.choice(request, now);
        let mut seen = BTreeSet::new();
        let mut keys = BTreeSet::new();
        // A group that is blocked leaves room for others, which must not wait for the next claim.
        while choice.leaves_a_queue_without(&mut seen) {
            self.keep_blocks(&choice);
            keys.extend(self.touched.iter().cloned());
            self.pass_on(now);
            choice = self.choice(request, now);
        }
        self.touched.extend(keys);
        let rows = std::mem::take(&mut choice.rows);
        let batch = self.give(&rows, request, now);
        self.keep_visits(choice);
        batch
    }

    /// What a node already holds under a batch's number.
    pub(super) fn held_under(&self, request: &ClaimRequest) -> Vec<Row> {
        let held = self.held_by(request.node).into_iter();
        held.filter(|(_, batch)| *batch == request.batch).map(|(row, _)| row).collect()
    }

    /// The jobs that answer a request, in order. A queue that is named twice is served once.
    pub(super) fn choice(&self, request: &ClaimRequest, now: Timestamp) -> Choice {
        let mut choice = Choice::new(request.suspects);
        let mut served = BTreeSet::new();
        for (queue, limit) in request.queues.iter().filter(|(queue, _)| served.insert(queue)) {
            if self.queues.get(queue).is_none_or(|settings| settings.paused) {
                continue;
            }
            let open = self.open_lines(request.node, queue, now);
            let limited = !self.totals.is_empty() || open.iter().any(|line| self.groups.has(*line));
            let before = choice.rows.len();
            if limited {
                self.choose_limited(&open, request, (queue, *limit), now, &mut choice);
            } else {
                let rows = self.choose(open, request, queue, *limit, &mut choice.suspects);
                choice.rows.extend(rows);
            }
            if choice.rows.len() == before && *limit > 0 {
                choice.without_jobs = true;
            }
        }
        choice
    }

    pub(super) fn give(
        &mut self,
        rows: &[Row],
        request: &ClaimRequest,
        now: Timestamp,
    ) -> Result<ClaimedBatch> {
        #[cfg(feature = "planted")]
        self.stop_at_damage(rows)?;
        let mut legible = Vec::with_capacity(rows.len());
        let mut taken: BTreeMap<QueueName, usize> = BTreeMap::new();
        for row in rows {
            let job = self.job(*row)?;
            let queue = job.queue.clone();
            let Some(damage) = job.damage.clone() else {
                let position = taken.entry(queue.clone()).or_default();
                *position += 1;
                let held_back = matches!(job.place, Place::Ready { class: Class::Suspect | Class::Lost, .. })
                    && !planted::is(Defect::LostAhead);
                let ahead = !held_back && *position > request.free(&queue);
                self.take(*row, request, ahead, now)?;
                legible.push(*row);
                continue;
            };
            self.take(*row, request, false, now)?;
            // Others may wait behind it.
            self.go(*row, Input::Unreadable, Place::unreadable(damage))?;
            if planted::is(Defect::UnreadableCrashes) {
                self.job_mut(*row)?.crashes += 1;
            }
            self.hint_ready(&queue);
        }
        self.batch(&legible, now)
    }

    pub(super) fn batch(&self, rows: &[Row], now: Timestamp) -> Result<ClaimedBatch> {
        let mut left = bounds::BATCH_BYTES;
        let jobs = rows.iter().map(|row| self.claimed(*row, &mut left)).collect::<Result<_>>()?;
        Ok(ClaimedBatch { now, jobs })
    }

    /// The jobs of one queue that a node would get of the lines that are open to it, in order. `suspects` is what is left of that limit.
    fn choose(
        &self,
        open: Vec<LineNo>,
        request: &ClaimRequest,
        queue: &QueueName,
        limit: usize,
        suspects: &mut usize,
    ) -> Vec<Row> {
        let mut lost = if planted::is(Defect::LostAhead) { limit } else { request.lost(queue) };
        let mut heads: BTreeSet<Head> = open.into_iter().filter_map(|line| self.head(line, None)).collect();
        let mut chosen = Vec::new();
        while chosen.len() < limit {
            let Some(head) = heads.pop_first() else { break };
            let (level, _, row, line) = head;
            if level.class() == Class::Suspect && *suspects == 0 {
                heads.extend(self.head_of_class(line, Class::Lost));
                continue;
            }
            if level.class() == Class::Lost && lost == 0 {
                heads.extend(self.head_of_class(line, Class::Returned));
                continue;
            }
            match level.class() {
                Class::Suspect => *suspects -= 1,
                Class::Lost => lost -= 1,
                Class::Returned | Class::Fresh => {}
            }
            chosen.push(row);
            heads.extend(self.head(line, Some(head)));
        }
        chosen
    }

    /// The lines of a queue that a node can run: it handles the kind and has all labels.
    pub(super) fn open_lines(&self, node: NodeNo, queue: &QueueName, now: Timestamp) -> Vec<LineNo> {
        let (Some(member), Some(lines)) = (self.members.get(&node), self.lines.get(queue)) else {
            return Vec::new();
        };
        let able = &member.registration.abilities;
        lines.iter().filter(|(line, _)| able.runs(&line.kind, &line.labels, now)).map(|(_, no)| *no).collect()
    }

    /// The lines that have ready jobs.
    pub(super) fn ready_lines(&self) -> Vec<store::Line> {
        let lines = self.lines.iter().flat_map(|(queue, lines)| lines.iter().map(move |line| (queue, line)));
        let busy = lines.filter(|(_, (_, no))| self.head(**no, None).is_some() || self.groups.has(**no));
        let line = |(queue, (line, _)): (&QueueName, (&Line, &LineNo))| store::Line {
            queue: queue.clone(),
            kind: line.kind.clone(),
            labels: line.labels.clone(),
        };
        busy.map(line).collect()
    }

    /// The first job of a line, or the first after another.
    pub(super) fn head(&self, line: LineNo, after: Option<Head>) -> Option<Head> {
        let from = match after {
            None => Bound::Included((line, Level::new(Class::Suspect, Priority::HIGHEST), EARLIEST, FIRST)),
            Some((level, since, row, line)) => Bound::Excluded((line, level, since, row)),
        };
        self.first_ready(line, from)
    }

    /// The first job of a line from this class on.
    pub(super) fn head_of_class(&self, line: LineNo, class: Class) -> Option<Head> {
        let level = Level::new(class, Priority::HIGHEST);
        self.first_ready(line, Bound::Included((line, level, EARLIEST, FIRST)))
    }

    fn first_ready(&self, line: LineNo, from: Bound<(LineNo, Level, Timestamp, Row)>) -> Option<Head> {
        let &(found, level, since, row) = self.ready.range((from, Bound::Unbounded)).next()?;
        (found == line).then_some((level, since, row, line))
    }

    fn take(&mut self, row: Row, request: &ClaimRequest, ahead: bool, now: Timestamp) -> Result<()> {
        let mut lease = Place::lease(request.node, request.batch, now);
        if let Place::Lease { ahead: is_ahead, .. } = &mut lease {
            *is_ahead = ahead;
        }
        self.go(row, Input::Claim, lease)?;
        let job = self.job_mut(row)?;
        job.claim += 1;
        let (id, kind) = (job.id, job.kind.clone());
        if let Some(unique) = job.options.unique.clone().filter(|unique| unique.until == Until::Started) {
            self.release_key(id, kind, unique, now);
        }
        Ok(())
    }

    pub(super) fn inputs(&self, claims: &[Claim]) -> Vec<Option<Vec<u8>>> {
        let job = |claim: &Claim| self.jobs.get(&claim.row).filter(|job| job.id == claim.id);
        claims.iter().map(|claim| job(claim).map(|job| job.input.clone())).collect()
    }

    fn claimed(&self, row: Row, left: &mut usize) -> Result<Claimed> {
        let job = self.job(row)?;
        let mut options = job.options.clone();
        options.backoff =
            options.backoff.or_else(|| self.queues.get(&job.queue).and_then(|queue| queue.backoff));
        Ok(Claimed {
            claim: Claim { id: job.id, row, number: job.claim },
            kind: job.kind.clone(),
            queue: job.queue.clone(),
            priority: job.priority,
            input: if job.input.len() > bounds::CLAIM_INPUT_BYTES {
                Value::There(job.input.len())
            } else {
                Value::Here(job.input.clone())
            },
            failures: job.failures,
            crashes: job.crashes,
            crashed_micros: job.crashed_micros,
            created_at: job.created_at,
            deadline: job.deadline,
            options,
            ahead: matches!(job.place, Place::Lease { ahead: true, .. }),
            journal: job.journal(left),
        })
    }
}

const EARLIEST: Timestamp = Timestamp::from_micros(i64::MIN);
const FIRST: Row = Row(i64::MIN);
