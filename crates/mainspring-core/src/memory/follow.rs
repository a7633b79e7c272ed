//! Following another store: which answers to a claim are legal, and claiming what such an answer has claimed.
//!
//! Where stores may differ, the model is a relation. Without limits and totals, an answer has the jobs that the model would give, but
//! for jobs of one level and one moment. With them, an answer is legal if each line and each group gives its first jobs, nothing exceeds a
//! bound, and a queue that could give a job gives one.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::{JobId, Row};
use crate::limit::LimitUse;
use crate::name::QueueName;
use crate::store::{ClaimRequest, ClaimedBatch, Class, Level};
use crate::time::Timestamp;
use crate::{Error, Result};

use super::limited::Choice;
use super::model::{LineNo, Model};
use super::place::Place;

/// Jobs of a line whose order is told: those with the same limits, and apart those of a class that is bounded.
type Bucket = (Vec<LimitUse>, Option<Class>);

/// Where a ready job stands in the order of claims, as far as stores must agree.
type Standing = (usize, Level, Timestamp);

impl Model {
    /// Claims what another store has claimed, if that was a legal answer to the request.
    pub(super) fn follow(
        &mut self,
        request: &ClaimRequest,
        claimed: &[JobId],
        now: Timestamp,
    ) -> Result<ClaimedBatch> {
        self.renew_lease_in_time(request.node, now)?;
        let rows: Vec<Row> = claimed.iter().filter_map(|id| self.ids.get(id).copied()).collect();
        let distinct: BTreeSet<Row> = rows.iter().copied().collect();
        let held = self.held_under(request);
        if !held.is_empty() {
            let same = distinct == held.iter().copied().collect() && rows.len() == held.len();
            return if same { self.batch(&rows, now) } else { Err(illegal("the same batch", &held, &rows)) };
        }
        if distinct.len() != claimed.len() {
            return Err(illegal("a job twice, or an unknown one", &[], &rows));
        }
        let free_of_limits = self.totals.is_empty() && self.groups.by_no.is_empty();
        if free_of_limits {
            let chosen = self.choice(request, now).rows;
            let standings =
                |rows: &[Row]| rows.iter().map(|row| self.standing(request, *row, now)).collect::<Vec<_>>();
            if standings(&chosen) != standings(&rows) {
                return Err(illegal("other jobs", &chosen, &rows));
            }
        } else if let Some(why) = self.what_is_illegal(request, &rows, now) {
            return Err(illegal(why, &self.choice(request, now).rows, &rows));
        }
        self.give(&rows, request, now)
    }

    /// Where a ready job stands in the order of claims; `None` if it is not for this node.
    fn standing(&self, request: &ClaimRequest, row: Row, now: Timestamp) -> Option<Standing> {
        let job = self.jobs.get(&row)?;
        let queue = request.queues.iter().position(|(queue, _)| *queue == job.queue)?;
        let Place::Ready { class, since } = job.place else { return None };
        let open = self.open_lines(request.node, &job.queue, now).contains(&job.line);
        open.then_some((queue, Level::new(class, job.priority), since))
    }

    /// Why these jobs are no legal answer; `None` if they are.
    fn what_is_illegal(&self, request: &ClaimRequest, rows: &[Row], now: Timestamp) -> Option<&'static str> {
        let mut choice = Choice::new(request.suspects);
        let mut taken: BTreeMap<LineNo, BTreeSet<Row>> = BTreeMap::new();
        let mut of_queue: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
        let mut before: Option<usize> = None;
        for row in rows {
            let Some((at, level, _)) = self.standing(request, *row, now) else {
                return Some("not for this node");
            };
            let (queue, limit) = &request.queues[at];
            if before.is_some_and(|before| before > at) {
                return Some("queues in another order");
            }
            before = Some(at);
            if self.queues.get(queue).is_none_or(|settings| settings.paused) {
                return Some("its queue is paused");
            }
            let job = self.jobs.get(row)?;
            let (count, lost) = of_queue.entry(at).or_default();
            *count += 1;
            *lost += usize::from(level.class() == Class::Lost);
            let suspect = level.class() == Class::Suspect;
            if *count > *limit || *lost > request.lost(queue) || suspect && choice.suspects == 0 {
                return Some("more than asked for");
            }
            choice.suspects -= usize::from(suspect);
            if !self.count_in_totals(*row, &mut choice) {
                return Some("beyond a total");
            }
            if job.is_limited() {
                if *count > request.limited(queue) {
                    return Some("a limited job ahead");
                }
                if !job.options.limits.iter().all(|one| self.has_room(one, &choice, now)) {
                    return Some("beyond a limit");
                }
                choice.take(&job.options.limits);
            }
            taken.entry(job.line).or_default().insert(*row);
        }
        if taken.iter().any(|(line, rows)| !self.are_first(*line, rows)) {
            return Some("not the first of its line or group");
        }
        let mut idle = request
            .queues
            .iter()
            .enumerate()
            .filter(|(at, (_, limit))| *limit > 0 && !of_queue.contains_key(at));
        let could =
            |(_, (queue, _)): (usize, &(QueueName, usize))| self.could_give(request, queue, &choice, now);
        idle.any(could).then_some("a queue that could give a job gives none")
    }

    /// Whether these jobs are the first of their class among the plain jobs of their line, or in their group.
    fn are_first(&self, line: LineNo, rows: &BTreeSet<Row>) -> bool {
        let mut waiting: BTreeMap<Bucket, Vec<(Level, Timestamp, bool)>> = BTreeMap::new();
        for (row, job) in self.jobs.iter().filter(|(_, job)| job.line == line) {
            let Place::Ready { class, since } = job.place else { continue };
            // How many of these a claim gives is bounded apart.
            let bounded = matches!(class, Class::Suspect | Class::Lost).then_some(class);
            let uses = if job.is_limited() { job.options.limits.clone() } else { Vec::new() };
            let jobs = waiting.entry((uses, bounded)).or_default();
            jobs.push((Level::new(class, job.priority), since, !rows.contains(row)));
        }
        // A job that was left is not before one that was taken, unless nobody can tell them apart.
        waiting.into_values().all(|mut jobs| {
            jobs.sort_unstable();
            let last_taken =
                jobs.iter().rev().find(|(.., left)| !left).map(|(level, since, _)| (*level, *since));
            let first_left = jobs.iter().find(|(.., left)| *left).map(|(level, since, _)| (*level, *since));
            match (last_taken, first_left) {
                (Some(taken), Some(left)) => taken <= left,
                _ => true,
            }
        })
    }

    /// Whether a queue has a job that must be given to somebody who asks for one. One that waits for a token may also wait for a
    /// promotion.
    fn could_give(&self, request: &ClaimRequest, queue: &QueueName, choice: &Choice, now: Timestamp) -> bool {
        if self.queues.get(queue).is_none_or(|settings| settings.paused) {
            return false;
        }
        let open = self.open_lines(request.node, queue, now);
        self.jobs.iter().filter(|(_, job)| open.contains(&job.line)).any(|(row, job)| {
            let Place::Ready { class, .. } = job.place else { return false };
            let waits = |one: &LimitUse| {
                let found = self.limits.get(&one.limit);
                found.is_some_and(|limit| limit.definition.rate.is_some()) || !self.has_room(one, choice, now)
            };
            let refused = class == Class::Suspect && choice.suspects == 0
                || job.is_limited() && job.options.limits.iter().any(waits);
            !refused && self.has_room_in_totals(*row, choice)
        })
    }
}

fn illegal(why: &str, own: &[Row], other: &[Row]) -> Error {
    Error::Invalid {
        what: "claim",
        why: format!("{why}: the model claims {own:?}, the other store {other:?}"),
    }
}
