//! The node: what runs jobs in this process.
//!
//! Small parts, each a file: the [`claimer`] fills the [`slot_table`], [`runner`]s work it off, the [`finisher`] stores
//! outcomes in batches, the [`keeper`] renews the lease on a thread of its own, the [`reconcile`]rs tend the store, and
//! the [`supervisor`] starts and stops them all; [`tasks`] has their names. [`held`] knows every claim from beginning to end.
//!
//! # Invariants
//! - The lease is renewed only while the node's tasks live: when their executor is gone, the keeper stops too.
//! - Nothing is claimed once the node is closing.

pub(crate) mod activity;
mod builder;
mod claimer;
mod finisher;
mod handler_cache;
mod held;
mod hint_router;
mod identity;
#[cfg(all(test, feature = "shuttle"))]
mod interleavings;
mod keeper;
mod large_inputs;
pub(crate) mod lease;
mod outage;
mod reconcile;
mod runner;
mod slot_table;
mod supervisor;
mod tasks;
mod watchdog;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use mainspring_core::id::NodeNo;
use mainspring_core::job::Outcome;
use mainspring_core::name::QueueName;
use mainspring_core::seam::{Clock, Task};
use mainspring_core::store::{Finish, QueueActivity, QueueChange, Registration, Store};
use mainspring_core::{Error, Result, bounds};
use tokio::sync::{Notify, mpsc, watch};

pub use builder::NodeBuilder;
pub use identity::shutdown_signal;
#[cfg(feature = "fuzz")]
pub(crate) use identity::{labels, lease, queues};

use crate::context::States;
use crate::durable::recorder::Recorder;
use crate::engine::Engine;
use crate::handler::Handlers;
use crate::job_run::JobRun;
use crate::layer::{Hooks, Layer};
use crate::sync::AtomicBool;
use crate::testing::Probe;
use handler_cache::HandlerCache;
use held::Held;
use hint_router::HintRouter;
use large_inputs::LargeInputs;
use lease::Lease;
use outage::Outage;
use slot_table::{SlotTable, UnstartedJob};
use tasks::NodeTasks;

/// How far a node has come in shutting down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Claims and runs.
    Open,
    /// Claims nothing more, lets running jobs end.
    Draining,
    /// Stops what still runs.
    Stopping,
    /// Has left: what is not stored by now never will be. Its tasks end.
    Stopped,
    /// Is gone, and its tasks are.
    Gone,
}

/// How a node behaves.
#[derive(Debug, Clone, Copy)]
struct Options {
    lease: Duration,
    drain: Duration,
    cancel_grace: Duration,
    /// Suspended handlers that are kept in memory.
    cached_handlers: usize,
    /// Jobs that one claim takes at most.
    claim: usize,
}

/// What all parts of a node share.
struct NodeShared {
    engine: Engine,
    options: Options,
    /// What the node says of itself, for joining anew after it was expired.
    registration: Registration,
    handlers: Handlers,
    layers: Vec<Arc<dyn Layer>>,
    hooks: Hooks,
    states: Arc<States>,
    recorder: Arc<Recorder>,
    handler_cache: HandlerCache,
    inputs: LargeInputs,
    probe: Option<Arc<dyn Probe>>,
    slot_table: Arc<SlotTable>,
    held: Arc<Held>,
    hint_router: Arc<HintRouter>,
    finishes: mpsc::UnboundedSender<finisher::UnstoredOutcome>,
    unstored: finisher::Unstored,
    renew_now: Arc<Notify>,
    rejoined: Notify,
    phase: watch::Sender<Phase>,
    tasks: Arc<NodeTasks>,
    /// Cleared when the executor drops the node's tasks.
    alive: AtomicBool,
    outage: Arc<Outage>,
    lease: Arc<Lease>,
}

impl NodeShared {
    fn store(&self) -> &dyn Store {
        &**self.engine.store()
    }

    fn clock(&self) -> &dyn Clock {
        &*self.engine.seams().clock
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Task {
        self.engine.seams().spawn.spawn(Box::pin(task))
    }

    /// Starts a part of the node: a task that lives as long as the node.
    fn supervise(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn(self.tasks.register(name, task));
    }

    fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    fn is_closing(&self) -> bool {
        self.phase() > Phase::Open
    }

    /// Moves on to a phase; never back.
    fn advance(&self, phase: Phase) {
        self.phase.send_if_modified(|now| {
            let forward = *now < phase;
            *now = phase.max(*now);
            forward
        });
    }

    async fn reached(&self, phase: Phase) {
        // The sender is in `self`, so the channel cannot be closed.
        drop(self.phase.subscribe().wait_for(|now| *now >= phase).await);
    }

    async fn closing(&self) {
        self.reached(Phase::Draining).await;
    }

    /// Waits, or until the node is closing.
    async fn pause(&self, duration: Duration) {
        tokio::select! {
            biased;
            () = self.closing() => {}
            () = self.clock().sleep(duration) => {}
        }
    }

    /// Waits until the node has another number than this.
    async fn rejoined(&self, lost: NodeNo) {
        loop {
            let mut rejoined = std::pin::pin!(self.rejoined.notified());
            rejoined.as_mut().enable();
            if self.held.node() != lost {
                return;
            }
            rejoined.await;
        }
    }

    /// Notes that a call of a part failed and is tried again.
    fn failed(&self, part: &'static str, error: &Error) {
        self.outage.failed(part, error, self.clock().monotonic());
    }

    /// Notes that a call of a part was answered.
    fn answered(&self, part: &'static str) {
        self.outage.answered(part, self.clock().monotonic());
    }

    /// Hands an outcome to the finisher.
    fn finish(&self, run: &Arc<JobRun>, outcome: Outcome) {
        self.unstored.add(&outcome);
        let entry =
            finisher::UnstoredOutcome { run: Arc::clone(run), finish: Finish { claim: run.claim, outcome } };
        if let Err(entry) = self.finishes.send(entry) {
            // The finisher is gone, so is the node: its claims go back with its retirement or its rescue.
            self.unstored.remove(std::iter::once(&entry.0.finish.outcome));
        }
    }

    /// Runs jobs for which there are slots, which the places of their queues name.
    fn start(self: &Arc<Self>, works: Vec<(usize, UnstartedJob)>) {
        for (queue, work) in works {
            self.spawn(runner::run(Arc::clone(self), queue, work));
        }
    }

    /// Gives back jobs that were claimed and not started.
    fn release(&self, works: Vec<UnstartedJob>) {
        for work in works {
            self.finish(&work.run, Outcome::Release);
        }
    }
}

/// A part met an error that a repeat does not fix.
fn broken(error: &Error) {
    tracing::error!(%error, "the store refuses this node's work; fix the cause and restart the node");
}

/// A running node. It is cheap to clone. Dropping it does not stop the node.
#[derive(Clone)]
pub struct Node {
    shared: Arc<NodeShared>,
}

impl Node {
    /// Returns the node's name for people: `{prefix}-worker-{version}-{id}`.
    pub fn name(&self) -> &str {
        &self.shared.registration.name
    }

    /// Returns the store's present number for the node. If the node expires and joins again, it gets another one.
    pub fn number(&self) -> NodeNo {
        self.shared.held.node()
    }

    /// Stops the node without losing work: it claims nothing more, lets running jobs end for as long as
    /// [`NodeBuilder::drain`](crate::NodeBuilder::drain) says, and gives the rest back.
    ///
    /// Nothing of this counts as a failure or a crash. It never hangs, whatever handlers or the store do. If you call
    /// it twice, both calls wait for the same end.
    pub async fn shutdown(&self) {
        self.shared.advance(Phase::Draining);
        self.shared.reached(Phase::Gone).await;
    }

    /// Stops the node at once: it stops running jobs and gives them back. Otherwise as [`shutdown`](Self::shutdown).
    pub async fn abort(&self) {
        self.shared.advance(Phase::Stopping);
        self.shared.reached(Phase::Gone).await;
    }

    /// Returns whether the node is shutting down or gone.
    pub fn is_shutting_down(&self) -> bool {
        self.shared.is_closing()
    }

    /// Waits until the node begins to shut down.
    pub async fn shutting_down(&self) {
        self.shared.closing().await;
    }

    /// Returns how many claims the node holds: jobs that run, wait for a slot, or have an outcome that is not stored
    /// yet.
    pub fn claims(&self) -> usize {
        self.shared.held.all().len()
    }

    /// What the node does for each of its queues at this moment: busy slots, jobs that it claimed ahead, outcomes that wait to be
    /// stored, its last claim, and when it looks for jobs again.
    pub fn queues(&self) -> Vec<QueueActivity> {
        activity::snapshot(&self.shared)
    }

    /// Serves a queue with this many slots from now on: one that the node serves, or a new one. Nothing restarts.
    ///
    /// New slots take jobs at once. If there are fewer than before, running jobs end in their slots, and no others begin
    /// until the number is right; jobs that the node claimed ahead go back to the queue. Other nodes and operators see
    /// the change with the next renewal of the lease, which the node sends at once. A node that shuts down changes
    /// nothing.
    ///
    /// ```no_run
    /// # async fn example(node: mainspring::Node) -> Result<(), mainspring::Error> {
    /// node.set_slots("mail", 20).await?;
    /// node.remove_queue("reports")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if `queue` is not a queue's name, or `slots` is not between 1 and
    /// 100,000; [`Error::TooLarge`](crate::Error::TooLarge) beyond 256 queues; an error of the store, which learns of a
    /// new queue first. Then nothing has changed.
    pub async fn set_slots(&self, queue: impl AsRef<str>, slots: u32) -> Result<()> {
        let name = QueueName::new(queue)?;
        if slots == 0 || slots > bounds::SLOTS {
            let why = format!(
                "{slots} slots for queue `{name}` are not between 1 and {}; .remove_queue(…) ends serving it",
                bounds::SLOTS
            );
            return Err(Error::Invalid { what: "slots", why });
        }
        if !self.shared.slot_table.serving().iter().any(|(served, _)| *served == name) {
            // A queue exists as soon as a setting names it.
            self.shared.store().configure(name.clone(), QueueChange::default()).await?;
        }
        self.resize(&name, slots)
    }

    /// Serves a queue no longer. Running jobs end, jobs that the node claimed ahead go back to the queue, and it claims
    /// no more of them. Returns whether the node served the queue.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if `queue` is not a queue's name, or the last that the node serves: shut
    /// the node down instead.
    pub fn remove_queue(&self, queue: impl AsRef<str>) -> Result<bool> {
        let name = QueueName::new(queue)?;
        let serves = self.shared.slot_table.serving().iter().any(|(served, _)| *served == name);
        if serves {
            self.resize(&name, 0)?;
        }
        Ok(serves)
    }

    fn resize(&self, queue: &QueueName, slots: u32) -> Result<()> {
        let resized = self.shared.slot_table.set_slots(queue, slots)?;
        self.shared.start(resized.start);
        self.shared.release(resized.release);
        self.shared.renew_now.notify_one();
        tracing::info!(%queue, slots, "the slots of a queue were changed");
        Ok(())
    }

    /// The number that the store knows it by, and its claims.
    pub(crate) fn runs(&self) -> (NodeNo, Vec<Arc<JobRun>>) {
        (self.shared.held.node(), self.shared.held.all())
    }

    /// Runs until `signal` ends, then shuts down; SIGTERM or SIGINT during the shutdown aborts it.
    ///
    /// ```no_run
    /// # async fn example(node: mainspring::Node) {
    /// node.run_until(mainspring::shutdown_signal()).await;
    /// # }
    /// ```
    pub async fn run_until(&self, signal: impl Future<Output = ()>) {
        tokio::select! {
            biased;
            () = signal => {}
            () = self.shutting_down() => {}
        }
        tokio::select! {
            biased;
            () = self.shutdown() => {}
            () = shutdown_signal() => self.abort().await,
        }
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node")
            .field("name", &self.name())
            .field("phase", &self.shared.phase())
            .finish_non_exhaustive()
    }
}
