//! How long it takes until the jobs of a dead worker run again.

use std::collections::BTreeMap;
use std::time::Duration;

use mainspring::{Engine, Error, Filter, JobId, State};

use super::event::{Event, Tone};
use crate::text;

/// The jobs of a worker that died, until all of them run again or have ended.
#[derive(Debug)]
pub(super) struct Recovery {
    died: Duration,
    /// Those that have not come back, with the number of the claim that was lost.
    waiting: BTreeMap<JobId, u32>,
    pub(super) jobs: usize,
}

impl Recovery {
    /// Notes what a process held when it died just now. `None` if that was nothing.
    pub(super) async fn begin(engine: &Engine, pid: u32, died: Duration) -> Result<Option<Self>, Error> {
        let nodes = engine.queues().nodes().await?;
        let dead: Vec<_> = nodes.iter().filter(|node| node.pid == pid).map(|node| node.no).collect();
        let running = Filter { states: vec![State::Running], ..Filter::default() };
        let jobs = engine.jobs().list(running, None, mainspring::bounds::PAGE).await?.jobs;
        let waiting: BTreeMap<JobId, u32> = jobs
            .iter()
            .filter(|job| job.node.is_some_and(|node| dead.contains(&node)))
            .map(|job| (job.id, job.claim))
            .collect();
        let jobs = waiting.len();
        Ok((jobs > 0).then_some(Recovery { died, waiting, jobs }))
    }

    /// How many run again.
    pub(super) fn back(&self) -> usize {
        self.jobs - self.waiting.len()
    }

    /// Looks which of them are back; tells when all are.
    pub(super) async fn look(&mut self, engine: &Engine) -> Result<Option<Event>, Error> {
        for (id, claim) in self.waiting.clone() {
            let job = engine.store().get(id).await?;
            let back = job.is_none_or(|job| {
                job.summary.claim > claim
                    || job.summary.status.state.is_terminal()
                    || job.summary.status.state == State::Suspended
            });
            if back {
                self.waiting.remove(&id);
            }
        }
        if !self.waiting.is_empty() {
            return Ok(None);
        }
        let clock = &engine.seams().clock;
        let took = text::duration(clock.monotonic().saturating_sub(self.died));
        let jobs = text::count(self.jobs, "job");
        let detail = format!("{jobs} came back {took} after the worker died; nothing was lost");
        Ok(Some(Event { at: clock.now(), tone: Tone::Loud, word: "recovery", job: None, detail }))
    }
}
