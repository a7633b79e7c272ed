//! Claim: from `ready` to `lease`.

use std::collections::BTreeSet;
use std::ops::Bound;

use crate::Result;
use crate::id::{Claim, NodeNo, Row};
use crate::job::{Input, Priority, Until};
use crate::name::QueueName;
use crate::store::{ClaimRequest, Claimed, ClaimedBatch, Class, Level};
use crate::time::Timestamp;

use super::model::{Line, LineNo, Model};
use super::place::Place;

/// The head of one line, in the order of claims.
type Head = (Level, Timestamp, Row, LineNo);

impl Model {
    pub(super) fn claim(&mut self, request: &ClaimRequest, now: Timestamp) -> Result<ClaimedBatch> {
        self.renew_lease_in_time(request.node, now)?;
        let held = self.held_by(request.node).into_iter();
        let mut rows: Vec<Row> =
            held.filter(|(_, batch)| *batch == request.batch).map(|(row, _)| row).collect();
        if rows.is_empty() {
            let mut suspects = request.suspects;
            for (queue, limit) in &request.queues {
                for row in self.choose(request.node, queue, *limit, &mut suspects) {
                    self.take(row, request, now)?;
                    rows.push(row);
                }
            }
        }
        let jobs = rows.into_iter().map(|row| self.claimed(row)).collect::<Result<_>>()?;
        Ok(ClaimedBatch { now, jobs })
    }

    /// The jobs of one queue that a node would get, in order. `suspects` is what is left of that limit.
    fn choose(&self, node: NodeNo, queue: &QueueName, limit: usize, suspects: &mut usize) -> Vec<Row> {
        if self.queues.get(queue).is_none_or(|settings| settings.paused) {
            return Vec::new();
        }
        let mut heads: BTreeSet<Head> =
            self.open_lines(node, queue).into_iter().filter_map(|line| self.head(line, None)).collect();
        let mut chosen = Vec::new();
        while chosen.len() < limit {
            let Some(head) = heads.pop_first() else { break };
            let (level, _, row, line) = head;
            if level.class() == Class::Suspect && *suspects == 0 {
                heads.extend(self.head_of_the_unsuspected(line));
                continue;
            }
            if level.class() == Class::Suspect {
                *suspects -= 1;
            }
            chosen.push(row);
            heads.extend(self.head(line, Some(head)));
        }
        chosen
    }

    /// The lines of a queue that a node can run: it handles the kind and has all labels.
    fn open_lines(&self, node: NodeNo, queue: &QueueName) -> Vec<LineNo> {
        let (Some(member), Some(lines)) = (self.members.get(&node), self.lines.get(queue)) else {
            return Vec::new();
        };
        let able = &member.registration;
        // Both are sorted, as their types say.
        let can = |line: &Line| {
            able.kinds.binary_search(&line.kind).is_ok()
                && line.labels.iter().all(|label| able.labels.binary_search(label).is_ok())
        };
        lines.iter().filter(|(line, _)| can(line)).map(|(_, no)| *no).collect()
    }

    /// The first job of a line, or the first after another.
    fn head(&self, line: LineNo, after: Option<Head>) -> Option<Head> {
        let from = match after {
            None => Bound::Included((line, Level::new(Class::Suspect, Priority::HIGHEST), EARLIEST, FIRST)),
            Some((level, since, row, line)) => Bound::Excluded((line, level, since, row)),
        };
        self.first_ready(line, from)
    }

    fn head_of_the_unsuspected(&self, line: LineNo) -> Option<Head> {
        let level = Level::new(Class::Returned, Priority::HIGHEST);
        self.first_ready(line, Bound::Included((line, level, EARLIEST, FIRST)))
    }

    fn first_ready(&self, line: LineNo, from: Bound<(LineNo, Level, Timestamp, Row)>) -> Option<Head> {
        let &(found, level, since, row) = self.ready.range((from, Bound::Unbounded)).next()?;
        (found == line).then_some((level, since, row, line))
    }

    fn take(&mut self, row: Row, request: &ClaimRequest, now: Timestamp) -> Result<()> {
        let (node, batch) = (request.node, request.batch);
        let lease = Place::Lease { node, batch, since: now, cancel: None, stuck: false };
        self.go(row, Input::Claim, lease)?;
        let job = self.job_mut(row)?;
        job.claim += 1;
        let (id, kind) = (job.id, job.kind.clone());
        if let Some(unique) = job.options.unique.clone().filter(|unique| unique.until == Until::Started) {
            self.release_key(id, kind, unique, now);
        }
        Ok(())
    }

    fn claimed(&self, row: Row) -> Result<Claimed> {
        let job = self.job(row)?;
        let mut options = job.options.clone();
        options.backoff =
            options.backoff.or_else(|| self.queues.get(&job.queue).and_then(|queue| queue.backoff));
        Ok(Claimed {
            claim: Claim { id: job.id, row, number: job.claim },
            kind: job.kind.clone(),
            queue: job.queue.clone(),
            priority: job.priority,
            input: job.input.clone(),
            failures: job.failures,
            crashes: job.crashes,
            crashed_micros: job.crashed_micros,
            created_at: job.created_at,
            deadline: job.deadline,
            options,
        })
    }
}

const EARLIEST: Timestamp = Timestamp::from_micros(i64::MIN);
const FIRST: Row = Row(i64::MIN);
