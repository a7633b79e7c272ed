//! What `dev` and `watch` know of the store: looked at a few times per second, and compared with the time before.
//!
//! Looking works for everything that happens to the store, also in other processes. What starts and ends between two
//! looks is told once, by its end.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use mainspring::admin::{Counts, Filter, Node, NodeNo, NodeState, Progress, Summary};
use mainspring::time::Timestamp;
use mainspring::{Engine, Error, JobId, Reason, State, Status};

use super::event::{Event, Tone};
use super::recovery::Recovery;
use crate::text;

/// Between two looks.
pub(super) const TICK: Duration = Duration::from_millis(200);
/// Of the newest jobs, how many are looked at.
const WINDOW: usize = 200;
/// Of the running jobs, how many are looked at.
const RUNNING: usize = 200;
/// Rows of the table whose details are fetched.
const ROWS: usize = 60;
/// Seconds of throughput that are kept.
pub(super) const SECONDS: usize = 120;

/// A row of the table.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) job: Summary,
    pub(super) progress: Option<Progress>,
    /// Its last error, or why it was cancelled.
    pub(super) note: Option<String>,
}

/// What was seen of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    status: Status,
    claim: u32,
    failures: u16,
    crashes: u16,
}

/// What happened since `dev` started that the store does not count.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Tally {
    pub(super) retried: u64,
    pub(super) recovered: u64,
    pub(super) kills: u64,
}

/// What is known of the store.
#[derive(Debug, Default)]
pub(super) struct Watch {
    pub(super) now: Timestamp,
    pub(super) counts: Counts,
    pub(super) nodes: Vec<Node>,
    pub(super) rows: Vec<Row>,
    pub(super) paused: bool,
    pub(super) tally: Tally,
    /// Jobs that ended, per second; the last is the present second.
    pub(super) throughput: VecDeque<u64>,
    pub(super) recovery: Option<Recovery>,
    before: Option<Counts>,
    seen: BTreeMap<JobId, Seen>,
    known: BTreeMap<NodeNo, NodeState>,
    notes: BTreeMap<JobId, (u16, Status, Option<String>)>,
    second: u64,
    ended: u64,
}

impl Watch {
    /// Looks at the store, and tells what has happened.
    pub(super) async fn look(&mut self, engine: &Engine, queue: &str) -> Result<Vec<Event>, Error> {
        let first = self.before.is_none();
        self.now = engine.seams().clock.now();
        self.counts = engine.jobs().counts().await?;
        self.nodes = engine.nodes().await?;
        let queues = engine.queues().list().await?;
        self.paused = queues.iter().any(|one| one.name.as_str() == queue && one.settings.paused);
        self.measure(engine.seams().clock.monotonic(), first);
        let jobs = self.jobs(engine).await?;
        let mut events = self.node_events(first);
        for job in jobs.iter().rev() {
            let seen =
                Seen { status: job.status, claim: job.claim, failures: job.failures, crashes: job.crashes };
            let before = self.seen.insert(job.id, seen);
            if !first && before != Some(seen) {
                let note = self.note(engine, job).await?;
                events.extend(self.job_events(job, before, note));
            }
        }
        if self.seen.len() > 4 * (WINDOW + RUNNING) {
            self.seen.retain(|id, _| jobs.iter().any(|job| job.id == *id));
        }
        events = condense(events);
        self.fill(engine, jobs).await?;
        if let Some(recovery) = &mut self.recovery
            && let Some(event) = recovery.look(engine).await?
        {
            events.push(event);
            self.recovery = None;
        }
        Ok(events)
    }

    /// How many jobs have ended in this state since the start.
    pub(super) fn since_start(&self, state: State) -> u64 {
        let before = self.before.as_ref().map_or(0, |before| before.total(state));
        self.counts.total(state).saturating_sub(before)
    }

    /// How many jobs ended per second, over the last seconds that are whole.
    pub(super) fn per_second(&self) -> f64 {
        let recent = self.throughput.iter().rev().skip(1).take(5);
        recent.clone().sum::<u64>() as f64 / recent.count().max(1) as f64
    }

    /// How many jobs have not ended.
    pub(super) fn unfinished(&self) -> u64 {
        let open = State::ALL.iter().filter(|state| !state.is_terminal());
        open.map(|state| self.counts.total(*state)).sum()
    }

    /// The name of a node.
    pub(super) fn node_name(&self, no: Option<NodeNo>) -> Option<&str> {
        let node = self.nodes.iter().find(|node| Some(node.no) == no)?;
        Some(&node.name)
    }

    fn measure(&mut self, monotonic: Duration, first: bool) {
        let ended: u64 = State::ALL
            .iter()
            .filter(|state| state.is_terminal())
            .map(|state| self.counts.total(*state))
            .sum();
        let second = monotonic.as_secs();
        if first {
            self.before = Some(self.counts.clone());
            (self.second, self.ended) = (second, ended);
            self.throughput.push_back(0);
        }
        for _ in self.second..second.min(self.second + SECONDS as u64) {
            self.throughput.push_back(0);
        }
        self.second = second;
        if let Some(present) = self.throughput.back_mut() {
            *present += ended.saturating_sub(self.ended);
        }
        self.ended = ended;
        let surplus = self.throughput.len().saturating_sub(SECONDS);
        self.throughput.drain(..surplus);
    }

    /// The newest jobs and all that run, newest first.
    async fn jobs(&self, engine: &Engine) -> Result<Vec<Summary>, Error> {
        let mut jobs = engine.jobs().list(Filter::default()).limit(WINDOW).await?.jobs;
        let running = Filter { states: vec![State::Running], ..Filter::default() };
        for job in engine.jobs().list(running).limit(RUNNING).await?.jobs {
            if jobs.iter().all(|one| one.id != job.id) {
                jobs.push(job);
            }
        }
        Ok(jobs)
    }

    /// Fetches what is shown of the jobs that have a row.
    async fn fill(&mut self, engine: &Engine, jobs: Vec<Summary>) -> Result<(), Error> {
        let jobs = choose(&jobs);
        let mut rows = Vec::with_capacity(jobs.len());
        for job in jobs {
            let note = self.note(engine, &job).await?;
            let progress = match job.status.state {
                State::Running => engine.store().get(job.id).await?.and_then(|record| record.progress),
                _ => None,
            };
            rows.push(Row { job, progress, note });
        }
        self.notes.retain(|id, _| rows.iter().any(|row| row.job.id == *id));
        self.rows = rows;
        Ok(())
    }

    /// What is to be said of a job that failed or was cancelled; fetched once for each failure.
    async fn note(&mut self, engine: &Engine, job: &Summary) -> Result<Option<String>, Error> {
        if job.failures == 0 && !matches!(job.status.state, State::Cancelled | State::Failed) {
            return Ok(None);
        }
        if let Some((failures, status, note)) = self.notes.get(&job.id)
            && (*failures, *status) == (job.failures, job.status)
        {
            return Ok(note.clone());
        }
        let note = engine.store().get(job.id).await?.and_then(|record| {
            let error = record.errors.last().map(|error| error.message.clone());
            if job.status.state == State::Cancelled { record.note.or(error) } else { error.or(record.note) }
        });
        self.notes.insert(job.id, (job.failures, job.status, note.clone()));
        Ok(note)
    }

    fn event(&self, tone: Tone, word: &'static str, detail: impl Into<String>) -> Event {
        Event { at: self.now, tone, word, job: None, detail: detail.into() }
    }

    fn node_events(&mut self, first: bool) -> Vec<Event> {
        let mut events = Vec::new();
        for node in &self.nodes {
            let before = self.known.insert(node.no, node.state);
            if first || before == Some(node.state) {
                continue;
            }
            events.push(match node.state {
                NodeState::Live => {
                    self.event(Tone::Plain, "joined", format!("{} (pid {})", node.name, node.pid))
                }
                NodeState::Retired => self.event(Tone::Plain, "left", format!("{} in good order", node.name)),
                NodeState::Expired => {
                    self.event(Tone::Loud, "expired", format!("{} was found dead", node.name))
                }
            });
        }
        self.known.retain(|no, _| self.nodes.iter().any(|node| node.no == *no));
        events
    }

    fn job_events(&mut self, job: &Summary, before: Option<Seen>, note: Option<String>) -> Vec<Event> {
        let mut events = Vec::new();
        let crashes = before.map_or(0, |before| before.crashes);
        let mut record_event = |tone, word, detail: String| {
            let job = Some((job.id, job.kind.to_string()));
            events.push(Event { at: self.now, tone, word, job, detail });
        };
        let note = note.unwrap_or_default();
        if job.crashes > crashes {
            record_event(Tone::Loud, "rescued", format!("its node died ({})", text::crashes(job.crashes)));
        }
        let moved = before.is_none_or(|before| before.status != job.status || before.claim != job.claim);
        match job.status.state {
            _ if !moved => {}
            State::Scheduled if job.failures > before.map_or(0, |before| before.failures) => {
                self.tally.retried += 1;
                let wait = job.run_at.map(|at| text::relative(at, self.now)).unwrap_or_default();
                let attempt = job.failures.saturating_add(1);
                record_event(Tone::Warn, "retry", format!("attempt {attempt} {wait}: {note}"));
            }
            State::Scheduled => {
                let wait = job.run_at.map(|at| text::relative(at, self.now)).unwrap_or_default();
                record_event(Tone::Plain, "scheduled", wait);
            }
            State::Running if job.crashes > 0 => {
                self.tally.recovered += 1;
                let node = self.nodes.iter().find(|node| Some(node.no) == job.node);
                let node = node.map_or("another node", |node| node.name.as_str());
                record_event(
                    Tone::Good,
                    "recovered",
                    format!("runs again on {node} under claim {}", job.claim),
                );
            }
            State::Suspended if job.status.reason == Some(Reason::Quarantine) => {
                record_event(
                    Tone::Bad,
                    "quarantine",
                    format!("{} nodes died while they ran it", job.crashes),
                );
            }
            State::Suspended if job.status.reason.is_some_and(Reason::awaits) => {
                let wait = job.run_at.map(|at| text::relative(at, self.now)).unwrap_or_default();
                let reason = job.status.reason.map_or("", Reason::as_str);
                record_event(Tone::Plain, "waits", format!("for a {reason} {wait}").trim_end().to_owned());
            }
            State::Suspended => record_event(Tone::Warn, "suspended", job.status.to_string()),
            State::Succeeded if job.failures > 0 => {
                record_event(
                    Tone::Good,
                    "succeeded",
                    format!("on attempt {}", job.failures.saturating_add(1)),
                );
            }
            State::Succeeded => record_event(Tone::Good, "succeeded", String::new()),
            State::Failed => record_event(Tone::Bad, "failed", note),
            State::Cancelled => record_event(Tone::Warn, "cancelled", note),
            // Too many to tell.
            State::Ready | State::Running | State::Blocked | State::Skipped => {}
        }
        events
    }
}

/// Chooses the jobs that have a row: what runs, longest first; a few of those that wait; what ended, latest first.
fn choose(jobs: &[Summary]) -> Vec<Summary> {
    let of = |states: &[State], limit: usize| -> Vec<Summary> {
        jobs.iter().filter(|job| states.contains(&job.status.state)).take(limit).cloned().collect()
    };
    let mut running = of(&[State::Running], ROWS);
    running.sort_by_key(|job| job.claimed_at);
    let mut scheduled = of(&[State::Scheduled], WINDOW);
    scheduled.sort_by_key(|job| job.run_at);
    scheduled.truncate(4);
    let mut ended = of(&[State::Succeeded, State::Failed, State::Cancelled, State::Skipped], WINDOW);
    ended.sort_by_key(|job| std::cmp::Reverse(job.finished_at));
    let parts =
        [running, of(&[State::Suspended], 3), scheduled, of(&[State::Ready, State::Blocked], 3), ended];
    parts.into_iter().flatten().take(ROWS).collect()
}

/// Plain successes of one kind in one look, beyond which they are told together.
const TOGETHER: usize = 4;

/// Tells many successes of one kind together.
fn condense(events: Vec<Event>) -> Vec<Event> {
    let plain = |event: &Event| event.word == "succeeded" && event.detail.is_empty();
    let mut many: BTreeMap<String, usize> = BTreeMap::new();
    for (_, kind) in events.iter().filter(|event| plain(event)).filter_map(|event| event.job.as_ref()) {
        *many.entry(kind.clone()).or_default() += 1;
    }
    many.retain(|_, count| *count > TOGETHER);
    let mut condensed = Vec::with_capacity(events.len());
    for event in events {
        let count = event.job.as_ref().filter(|_| plain(&event)).and_then(|(_, kind)| many.get_mut(kind));
        match count {
            None => condensed.push(event),
            Some(0) => {}
            Some(count) => {
                let kind = event.job.as_ref().map_or("", |(_, kind)| kind.as_str());
                let detail = format!("{count} of {kind}");
                *count = 0;
                condensed.push(Event { job: None, detail, ..event });
            }
        }
    }
    condensed
}
