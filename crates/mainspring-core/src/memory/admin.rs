//! What operators see, and the settings of queues.

use crate::Result;
use crate::bounds;
use crate::id::{JobId, Row};
use crate::job::{Record, Summary};
use crate::limit::Total;
use crate::name::QueueName;
use crate::store::{Filter, Listing, Page, PagePosition, Queue, QueueChange, Settings};

use super::model::{Job, Model};
use super::place::Place;

impl Model {
    pub(super) fn get(&self, id: JobId) -> Option<Record> {
        self.ids.get(&id).and_then(|row| self.jobs.get(row)).map(Job::record)
    }

    pub(super) fn list(&self, filter: &Filter, page: &Page) -> Result<Listing> {
        let before = page.after.as_ref().map_or(Ok(i64::MAX), PagePosition::no)?;
        let limit = page.limit.clamp(1, bounds::PAGE);
        let mut jobs = Vec::new();
        let mut last = None;
        for (looked_at, (row, job)) in self.jobs.range(..Row(before)).rev().enumerate() {
            if jobs.len() == limit || looked_at == bounds::SCAN {
                return Ok(Listing { jobs, next: last });
            }
            let summary = job.summary();
            let error = job.last_failure().map(|error| error.message.as_str());
            if filter.matches(&summary) && filter.error.as_ref().is_none_or(|text| text.is_in(error)) {
                jobs.push(summary);
            }
            last = Some(PagePosition::behind(row.0));
        }
        Ok(Listing { jobs, next: None })
    }

    pub(super) fn queues(&self) -> Vec<Queue> {
        let queue = |(name, settings): (&QueueName, &_)| Queue {
            name: name.clone(),
            settings: Clone::clone(settings),
        };
        let there = |name: &QueueName| !self.deleted.contains(name) || self.counts.check_empty(name).is_err();
        self.queues.iter().filter(|(name, _)| there(name)).map(queue).collect()
    }

    pub(super) fn configure(&mut self, name: QueueName, change: &QueueChange) -> Result<Queue> {
        change.check()?;
        self.deleted.remove(&name);
        let settings = self.queues.entry(name.clone()).or_default();
        let was_paused = settings.paused;
        change.apply(settings);
        let queue = Queue { name, settings: settings.clone() };
        if was_paused && !queue.settings.paused {
            self.hint_ready(&queue.name);
        }
        Ok(queue)
    }

    pub(super) fn delete_queue(&mut self, name: &QueueName) -> Result<bool> {
        self.counts.check_empty(name)?;
        let Some(settings) = self.queues.get_mut(name) else { return Ok(false) };
        *settings = Settings::default();
        self.totals.remove(&Total::Queue(name.clone()));
        Ok(self.deleted.insert(name.clone()))
    }
}

impl Job {
    fn summary(&self) -> Summary {
        let mut summary = Summary {
            id: self.id,
            kind: self.kind.clone(),
            queue: self.queue.clone(),
            priority: self.priority,
            status: self.place.status(),
            claim: self.claim,
            failures: self.failures,
            crashes: self.crashes,
            created_at: self.created_at,
            run_at: self.place.due().or(self.place.wakes()),
            claimed_at: None,
            finished_at: None,
            deadline: self.deadline,
            node: None,
            cancelling: false,
            stuck: false,
            foreign: false,
            unreadable: self.damage.clone(),
            options: self.options.clone(),
        };
        match &self.place {
            Place::Ready { .. } | Place::Timers { .. } | Place::Suspended { .. } => {}
            Place::Lease { node, since, cancel, stuck, foreign, .. } => {
                summary.node = Some(*node);
                summary.claimed_at = Some(*since);
                summary.cancelling = cancel.is_some();
                summary.stuck = *stuck;
                summary.foreign = *foreign && !*stuck;
            }
            Place::Done { at, began, .. } => {
                summary.finished_at = Some(*at);
                summary.claimed_at = began.map(|began| began.at);
                summary.node = began.map(|began| began.node);
            }
        }
        summary
    }

    fn record(&self) -> Record {
        let (result, note, waits) = match &self.place {
            Place::Done { result, note, .. } => (result.clone(), note.clone(), Vec::new()),
            Place::Suspended { note, waits, .. } => (None, note.clone(), waits.clone()),
            Place::Ready { .. } | Place::Timers { .. } | Place::Lease { .. } => (None, None, Vec::new()),
        };
        let summary = self.summary();
        Record {
            last: summary.foreign.then(|| self.last_record()).flatten(),
            summary,
            input: self.input.clone(),
            result,
            note,
            errors: self.errors.clone(),
            progress: self.progress.clone(),
            waits,
        }
    }
}
