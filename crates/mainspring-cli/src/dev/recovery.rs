//! How long it takes until the jobs of a dead worker run again.

use std::collections::BTreeMap;
use std::time::Duration;

use mainspring::admin::Filter;
use mainspring::{Engine, Error, JobId, Reason, State};

use super::event::{Event, Tone};
use crate::text;

/// The jobs of a worker that died, until all of them run again or have ended.
#[derive(Debug)]
pub(super) struct Recovery {
    died: Duration,
    /// Those that have not come back, with the number of the claim that was lost.
    waiting: BTreeMap<JobId, u32>,
    pub(super) jobs: usize,
    quarantined: usize,
}

impl Recovery {
    /// Notes what a process held when it died just now. `None` if that was nothing.
    pub(super) async fn begin(engine: &Engine, pid: u32, died: Duration) -> Result<Option<Self>, Error> {
        let nodes = engine.nodes().await?;
        let dead: Vec<_> = nodes.iter().filter(|node| node.pid == pid).map(|node| node.no).collect();
        let running = Filter { states: vec![State::Running], ..Filter::default() };
        let jobs = engine.jobs().list(running).limit(mainspring::bounds::PAGE).await?.jobs;
        let waiting: BTreeMap<JobId, u32> = jobs
            .iter()
            .filter(|job| job.node.is_some_and(|node| dead.contains(&node)))
            .map(|job| (job.id, job.claim))
            .collect();
        let jobs = waiting.len();
        Ok((jobs > 0).then_some(Recovery { died, waiting, jobs, quarantined: 0 }))
    }

    /// How many run again.
    pub(super) fn back(&self) -> usize {
        self.jobs - self.waiting.len()
    }

    /// Looks which of them are back; tells when all are.
    pub(super) async fn look(&mut self, engine: &Engine) -> Result<Option<Event>, Error> {
        for (id, claim) in self.waiting.clone() {
            // One that was removed in the meantime needs no recovery.
            let status = match engine.store().get(id).await? {
                Some(job) if job.summary.claim > claim => None,
                Some(job) => Some(job.summary.status),
                None => None,
            };
            let quarantined = status.is_some_and(|status| status.reason == Some(Reason::Quarantine));
            self.quarantined += usize::from(quarantined);
            if quarantined || status.is_none_or(|status| status.state.is_terminal()) {
                self.waiting.remove(&id);
            }
        }
        if !self.waiting.is_empty() {
            return Ok(None);
        }
        let clock = &engine.seams().clock;
        let took = text::duration(clock.monotonic().saturating_sub(self.died));
        let jobs = text::count(self.jobs, "job");
        let fate = match self.quarantined {
            0 => "nothing was lost".to_owned(),
            count => format!("{count} quarantined, because workers keep dying with it"),
        };
        let detail = format!("{jobs} came back {took} after the worker died; {fate}");
        Ok(Some(Event { at: clock.now(), tone: Tone::Loud, word: "recovery", job: None, detail }))
    }
}
