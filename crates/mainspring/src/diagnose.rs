//! The diagnosis of a store: what is wrong with it, its nodes and its queues.
//!
//! It tries a write that leaves nothing behind, and goes through the jobs part by part, within a time of its own.
//!
//! What the store must not hold, and jobs in the hands of a silent node, are problems. Other things worth knowing are
//! notes: what surrounds the store and may hurt it, and what makes jobs wait.

use std::future::IntoFuture;
use std::time::Duration;

use mainspring_core::error::chain;
use mainspring_core::job::{Reason, State, Why, stranded};
use mainspring_core::limit::{Limit, Total, TotalUse};
use mainspring_core::seam::Pending;
use mainspring_core::store::{CheckPart, Counts, Description, Filter, Finding, Node, NodeState, Queue};
use mainspring_core::time::{Span, Timestamp};
use mainspring_core::{Error, Result};

use crate::engine::Engine;

/// How long the self-check may look at the jobs unless you say otherwise.
const WITHIN: Duration = Duration::from_mins(10);

/// The result of a diagnosis.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Diagnosis {
    /// The store.
    pub store: Description,
    /// Its nodes, newest first.
    pub nodes: Vec<Node>,
    /// What must not be, or needs a person.
    pub problems: Vec<Finding>,
    /// A fact worth knowing.
    pub notes: Vec<Finding>,
}

/// How far the self-check of a diagnosis has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckProgress {
    /// It looks at the tables.
    Tables,
    /// It looks at the jobs.
    Jobs {
        /// Jobs that it has looked at.
        done: u64,
        /// Jobs in all.
        total: u64,
    },
    /// It looks at what all jobs have in common, such as counts and keys.
    Common,
}

/// A diagnosis on its way. Await it; see [`Engine::diagnose`].
#[must_use = "nothing is diagnosed until this is awaited"]
pub struct Diagnose<'a> {
    engine: &'a Engine,
    within: Duration,
    watch: Option<Box<dyn FnMut(CheckProgress) + Send + 'a>>,
    found: Found,
}

/// What was found so far.
#[derive(Default)]
struct Found {
    problems: Vec<Finding>,
    notes: Vec<Finding>,
}

impl Found {
    fn problem(&mut self, what: impl Into<String>, hint: impl Into<String>) {
        self.problems.push(Finding { what: what.into(), hint: hint.into() });
    }

    fn note(&mut self, what: impl Into<String>, hint: impl Into<String>) {
        self.notes.push(Finding { what: what.into(), hint: hint.into() });
    }
}

impl Engine {
    /// Finds problems of the store, its nodes and its queues. Changes nothing.
    ///
    /// ```
    /// # async fn example(engine: &mainspring::Engine) -> Result<(), mainspring::Error> {
    /// let diagnosis = engine.diagnose().await?;
    /// for problem in &diagnosis.problems {
    ///     eprintln!("{}; {}", problem.what, problem.hint);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn diagnose(&self) -> Diagnose<'_> {
        Diagnose { engine: self, within: WITHIN, watch: None, found: Found::default() }
    }
}

impl<'a> Diagnose<'a> {
    /// Sets how long the self-check may read jobs. A check that does not finish is a problem of its own. Default: 10
    /// minutes.
    pub fn within(mut self, time: Duration) -> Self {
        self.within = time;
        self
    }

    /// Reports how far the self-check has come: before each part, and after each part of the jobs.
    pub fn watched(mut self, watch: impl FnMut(CheckProgress) + Send + 'a) -> Self {
        self.watch = Some(Box::new(watch));
        self
    }

    async fn run(mut self) -> Result<Diagnosis> {
        let engine = self.engine;
        let store = engine.describe();
        if let Err(error) = engine.store().try_write().await {
            self.found.unwritable(&error);
        }
        self.check().await;
        let mut found = self.found;
        found.notes.extend(engine.store().diagnose().await?);
        let nodes = engine.nodes().await?;
        let queues = engine.queues().list().await?;
        let counts = engine.jobs().counts().await?;
        let now = engine.seams().clock.now();
        found.silent(&nodes, now);
        found.unserved(&queues, &nodes, &counts, now);
        found.unhandled(engine, &nodes, now).await?;
        found.closed(&engine.limits().list().await?, &engine.limits().totals().await?);
        if is_any(engine, Reason::Quarantine).await? {
            found.note(
                "jobs are in quarantine: the nodes that ran them kept dying",
                "list them with `mainspring jobs --reason quarantine`, then resume or fail them",
            );
        }
        if is_any(engine, Reason::Unreadable).await? {
            found.note(
                "the store set aside jobs that it cannot read",
                "list them with `mainspring jobs --reason unreadable`; `mainspring why ID` names the damage",
            );
        }
        if !store.durable {
            found.note(
                "a power failure can lose acknowledged data: durability is relaxed",
                "open the store without relaxed durability",
            );
        }
        let Found { problems, notes } = found;
        Ok(Diagnosis { store, nodes, problems, notes })
    }

    /// The store's self-check, part by part, as far as the time goes.
    async fn check(&mut self) {
        let engine = self.engine;
        let clock = &engine.seams().clock;
        let begun = clock.monotonic();
        let mut next = Some(CheckPart::default());
        // Before the jobs come the tables, and after them what can only be asked of everything at once: parts that have no
        // measure and may take long each.
        let (mut done, mut total) = (0, 0);
        self.progress(CheckProgress::Tables);
        while let Some(part) = next {
            if clock.monotonic().saturating_sub(begun) >= self.within {
                let within = Span(self.within);
                self.found.problem(
                    format!("the self-check did not finish within {within}: {}", reached(done, total)),
                    "give it more time: `mainspring doctor --within 1h`",
                );
                return;
            }
            let checked = match engine.store().check_part(part).await {
                Ok(checked) => checked,
                Err(error) => {
                    self.found.problem(
                        format!("the self-check did not finish: {error}"),
                        "the check says nothing about the rest; fix the error and run it again",
                    );
                    return;
                }
            };
            self.found.problems.extend(checked.findings);
            next = checked.next;
            if checked.total > 1 {
                (done, total) = (checked.done, checked.total);
                self.progress(CheckProgress::Jobs { done, total });
            } else if total == 0 {
                self.progress(CheckProgress::Tables);
            } else {
                self.progress(CheckProgress::Common);
            }
        }
    }

    fn progress(&mut self, progress: CheckProgress) {
        if let Some(watch) = &mut self.watch {
            watch(progress);
        }
    }
}

impl<'a> IntoFuture for Diagnose<'a> {
    type Output = Result<Diagnosis>;
    type IntoFuture = Pending<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl Diagnosis {
    /// Nodes that are live and have renewed their lease in time.
    pub fn live_nodes(&self, now: Timestamp) -> usize {
        self.nodes.iter().filter(|node| node.state == NodeState::Live && !is_silent(node, now)).count()
    }
}

impl Found {
    /// Nothing could be written now.
    fn unwritable(&mut self, error: &Error) {
        let mut what = format!("the store accepts no writes: {error}");
        for cause in chain(error).skip(1) {
            what = format!("{what}: {cause}");
        }
        let hint = match error {
            Error::DiskFull => {
                "free some space: until then no job is stored, claimed or ended; no acknowledged data is lost"
            }
            _ => {
                "until then no job is stored, claimed or ended: check who locks the store, whether it is read-only, and what the user may write"
            }
        };
        self.problem(what, hint);
    }

    /// Nodes that hold claims and have not renewed their lease: their jobs wait until another node rescues them.
    fn silent(&mut self, nodes: &[Node], now: Timestamp) {
        for node in nodes.iter().filter(|node| is_silent(node, now)) {
            let Node { name, lease_until, renewed_at, claims, .. } = node;
            if *claims == 0 {
                self.note(
                    format!("node {name} is silent: its lease expired at {lease_until}; it holds no jobs"),
                    "it has died or cannot reach the store; no job waits for it",
                );
            } else {
                self.problem(
                    format!("node {name} has been silent since {renewed_at} and holds {}", jobs(*claims)),
                    "any live node takes its jobs over; start one if there is none",
                );
            }
        }
    }

    /// Queues whose jobs wait and that nobody serves, or that are paused.
    fn unserved(&mut self, queues: &[Queue], nodes: &[Node], counts: &Counts, now: Timestamp) {
        for queue in queues {
            let name = &queue.name;
            let waiting = counts.of(name, State::Ready);
            let is_served = nodes.iter().any(|node| {
                node.state == NodeState::Live
                    && !is_silent(node, now)
                    && node.queues.iter().any(|(served, _)| served == name)
            });
            if waiting > 0 && queue.settings.paused {
                self.note(
                    format!("queue {name} is paused with {} waiting", jobs(waiting)),
                    format!("resume it with `mainspring queue resume {name}`"),
                );
            } else if waiting > 0 && !is_served {
                self.note(
                    format!("no live node serves queue {name}, with {} waiting", jobs(waiting)),
                    format!("start one: `mainspring work --queue {name}:10`, or your application"),
                );
            }
        }
    }

    /// Limits and totals that let nobody in: that is seldom meant to last.
    fn closed(&mut self, limits: &[Limit], totals: &[TotalUse]) {
        for limit in limits {
            let name = &limit.name;
            if limit.paused {
                self.note(
                    format!("limit {name} is paused"),
                    format!("let jobs in again with `mainspring limit resume {name}`"),
                );
            } else if limit.definition.max == Some(0) {
                self.note(
                    format!("limit {name} admits nobody: its maximum is 0"),
                    format!("change it with `mainspring limit set {name} --max N`"),
                );
            }
        }
        for total in totals.iter().filter(|total| total.max == 0) {
            let (what, name) = match &total.total {
                Total::Queue(queue) => ("queue", queue.as_str()),
                Total::Kind(kind) => ("kind", kind.as_str()),
            };
            self.note(
                format!("{what} {name} may run no job: its maximum is 0"),
                format!("change it with `mainspring {what} set {name} --max-running N`"),
            );
        }
    }

    /// Kinds of waiting jobs that no live node of their queue can run.
    async fn unhandled(&mut self, engine: &Engine, nodes: &[Node], now: Timestamp) -> Result<()> {
        for line in engine.store().lines().await? {
            match stranded(&line, nodes, now) {
                // That nobody serves a queue is told for all its kinds at once.
                None | Some(Why::NoNode { .. }) => {}
                Some(why) => self.note(
                    format!("jobs of kind {} wait in queue {}: {why}", line.kind, line.queue),
                    why.hint().unwrap_or_default(),
                ),
            }
        }
        Ok(())
    }
}

/// Whether nobody has said that it is gone, and its lease has lapsed.
fn is_silent(node: &Node, now: Timestamp) -> bool {
    node.state == NodeState::Live && node.lease_until <= now
}

/// How far a self-check got that did not finish.
fn reached(done: u64, total: u64) -> String {
    match (done, total) {
        (_, 0) => "it had read no job yet".into(),
        (done, total) if done == total => {
            "it had read every job, but not yet what they share, such as counts and keys".into()
        }
        _ => format!("it had read {done} of {total} job numbers; it says nothing about the rest"),
    }
}

/// Whether a job is suspended for this reason.
async fn is_any(engine: &Engine, reason: Reason) -> Result<bool> {
    let filter = Filter { states: vec![State::Suspended], reason: Some(reason), ..Filter::default() };
    Ok(!engine.jobs().list(filter).limit(1).await?.jobs.is_empty())
}

/// "1 job", "2 jobs".
fn jobs(count: u64) -> String {
    if count == 1 { "1 job".to_owned() } else { format!("{count} jobs") }
}
