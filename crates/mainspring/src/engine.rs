//! The engine: a store with the parts around it that callers share.

use std::sync::{Arc, PoisonError};

use mainspring_core::id::JobId;
use mainspring_core::job::{New, PayloadBounds};
use mainspring_core::journal::Signal;
use mainspring_core::seam::Seams;
use mainspring_core::store::{ActivityReport, Description, Hint, Listener, Receipt, Store};
use mainspring_core::{Error, Result};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::batch::Batcher;
use crate::durable;
use crate::enqueue::flush::flush_each;
use crate::enqueue::{Enqueue, EnqueueMany, Enqueued, Json};
use crate::job::Job;
use crate::jobs::Jobs;
use crate::node::NodeBuilder;
use crate::node::activity::LocalNode;
use crate::queues::Queues;
use crate::sync::Mutex;
use crate::waiters::Waiters;

/// The way into Mainspring. Cheap to clone; all clones share one store.
///
/// An engine by itself only enqueues and looks; [`node`](Self::node) makes it run jobs.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<EngineShared>,
}

pub(crate) struct EngineShared {
    store: Arc<dyn Store>,
    seams: Seams,
    bounds: PayloadBounds,
    /// Whether inputs are read back before they are stored: tests find types that do not read what they write.
    reads_back: bool,
    enqueues: Batcher<New, Result<Receipt>>,
    signals: Batcher<Signal, durable::signal::Answer>,
    waiters: Arc<Waiters>,
    /// Nodes of this process.
    nodes: Mutex<Vec<LocalNode>>,
    /// Keeps the waiters' listener to the store.
    _listener: Arc<dyn Listener>,
}

impl Engine {
    /// Opens the store at an address: `sqlite:app.db`, `postgres://app@db/shop` (or libpq's `host=db dbname=shop`; feature
    /// `postgres`), or `memory:` for one that is gone with the process. On SQLite it is created and migrated if need be;
    /// on Postgres only [`OpenOptions::migrate`](crate::OpenOptions::migrate) does that. For more, see
    /// [`options`](Self::options).
    ///
    /// Must be called within a Tokio runtime, which the engine then uses.
    ///
    /// # Errors
    /// [`Error::Open`] with the reason.
    pub async fn open(address: &str) -> Result<Engine> {
        Engine::options().open(address).await
    }

    /// Options for opening a store.
    pub fn options() -> crate::open::OpenOptions {
        crate::open::OpenOptions::default()
    }

    /// An engine on a store and seams that are already there: for tests and simulations.
    pub fn with(store: Arc<dyn Store>, seams: Seams, bounds: PayloadBounds) -> Engine {
        Engine::new(store, seams, bounds, false)
    }

    /// The same, which also refuses inputs that their own type cannot read.
    pub(crate) fn reading_back(store: Arc<dyn Store>, seams: Seams, bounds: PayloadBounds) -> Engine {
        Engine::new(store, seams, bounds, true)
    }

    fn new(store: Arc<dyn Store>, seams: Seams, bounds: PayloadBounds, reads_back: bool) -> Engine {
        let flushing = Arc::clone(&store);
        let enqueues = Batcher::new(Arc::clone(&seams.spawn), move |jobs| {
            Box::pin(flush_each(Arc::clone(&flushing), jobs))
        });
        let flushing = Arc::clone(&store);
        let signals = Batcher::new(Arc::clone(&seams.spawn), move |signals| {
            Box::pin(durable::signal::flush(Arc::clone(&flushing), signals))
        });
        let waiters = Arc::new(Waiters::default());
        let listener: Arc<dyn Listener> = Arc::new(ForeignCommitListener(Arc::clone(&waiters)));
        store.subscribe(Arc::downgrade(&listener));
        let shared = EngineShared {
            store,
            seams,
            bounds,
            reads_back,
            enqueues,
            signals,
            waiters,
            nodes: Mutex::default(),
            _listener: listener,
        };
        Engine { shared: Arc::new(shared) }
    }

    /// Enqueues a job. Nothing happens until the builder is awaited; then it is on stable storage.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "the job is handed over: `&Welcome { user: 7 }` would be noise"
    )]
    pub fn enqueue<J: Job>(&self, job: J) -> Enqueue<'_, J> {
        Enqueue::of(self, &job)
    }

    /// Enqueues a job whose type is not known here, by its kind and its input as JSON.
    pub fn enqueue_json(&self, kind: &str, input: &Value) -> Enqueue<'_, Json> {
        Enqueue::json(self, kind, input)
    }

    /// Enqueues up to 100,000 jobs of one type with the same options. Batches of 1,000 are each stored in one commit.
    pub fn enqueue_many<J: Job>(&self, jobs: impl IntoIterator<Item = J>) -> EnqueueMany<'_, J> {
        EnqueueMany::of(self, jobs)
    }

    /// Enqueues up to 100,000 jobs whose type is not known here, by their kind and their inputs as JSON.
    pub fn enqueue_many_json(
        &self,
        kind: &str,
        inputs: impl IntoIterator<Item = Value>,
    ) -> EnqueueMany<'_, Json> {
        EnqueueMany::json(self, kind, inputs)
    }

    /// Waits until a job has ended and returns its result.
    ///
    /// # Errors
    /// [`Error::Ended`] if it failed, was cancelled or skipped; [`Error::NotFound`] if it does not exist (any more).
    pub async fn result<J: Job>(&self, job: &Enqueued<J>) -> Result<J::Result> {
        self.result_of::<J>(job.id).await
    }

    /// Waits until a job has ended and returns its result, as the type that the caller knows it to have.
    ///
    /// # Errors
    /// As [`result`](Self::result).
    pub async fn result_of<J: Job>(&self, id: JobId) -> Result<J::Result> {
        self.decoded(id).await
    }

    async fn decoded<T: DeserializeOwned>(&self, id: JobId) -> Result<T> {
        let result = crate::waiters::wait(self, id).await?;
        serde_json::from_slice(result.as_deref().unwrap_or(b"null"))
            .map_err(|error| Error::Convert { what: "result", source: error.into() })
    }

    /// Waits until a job has ended and returns its result as JSON.
    ///
    /// # Errors
    /// As [`result`](Self::result).
    pub async fn result_json(&self, id: JobId) -> Result<Value> {
        self.decoded(id).await
    }

    /// Wakes nodes, in this process and in others, for a job that was enqueued in a caller's transaction, now that it has
    /// committed. Without it the job is picked up within a second all the same.
    pub fn nudge<J>(&self, job: &Enqueued<J>) {
        self.shared.waiters.nudge();
        self.shared.store.nudge(job.id);
    }

    /// Jobs: look at them and change them.
    pub fn jobs(&self) -> Jobs<'_> {
        Jobs::new(self)
    }

    /// All nodes that the store still remembers, newest first. Those of this process say what they do for their queues now, others what
    /// they said with their last renewal.
    pub async fn nodes(&self) -> Result<Vec<mainspring_core::store::Node>> {
        let mut nodes = self.shared.store.nodes().await?;
        let at = self.shared.seams.clock.now();
        let local = self.shared.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        for (no, queues) in local.iter().filter_map(LocalNode::activity) {
            if let Some(node) = nodes.iter_mut().find(|node| node.no == no) {
                node.report = Some(ActivityReport { at, queues });
            }
        }
        Ok(nodes)
    }

    /// A node of this process has joined.
    pub(crate) fn add_node(&self, node: LocalNode) {
        let mut nodes = self.shared.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.retain(LocalNode::is_there);
        nodes.push(node);
    }

    /// Queues: look at them and change them.
    pub fn queues(&self) -> Queues<'_> {
        Queues::new(self)
    }

    /// Sets up a node that runs jobs in this process.
    pub fn node(&self) -> NodeBuilder {
        NodeBuilder::new(self.clone())
    }

    /// What the store is.
    pub fn describe(&self) -> Description {
        self.shared.store.describe()
    }

    /// Finishes what is under way and closes the store. Nodes should be shut down before.
    pub async fn close(&self) {
        self.shared.store.close().await;
    }

    /// The store itself: for tools that look beneath the engine. What it promises is in
    /// [`mainspring_core::store`].
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.shared.store
    }

    /// The seams that the engine runs on.
    pub fn seams(&self) -> &Seams {
        &self.shared.seams
    }

    /// The configured bounds.
    pub fn bounds(&self) -> &PayloadBounds {
        &self.shared.bounds
    }

    pub(crate) fn reads_back(&self) -> bool {
        self.shared.reads_back
    }

    pub(crate) fn waiters(&self) -> &Arc<Waiters> {
        &self.shared.waiters
    }

    pub(crate) fn signals(&self) -> &Batcher<Signal, durable::signal::Answer> {
        &self.shared.signals
    }

    pub(crate) fn enqueues(&self) -> &Batcher<New, Result<Receipt>> {
        &self.shared.enqueues
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("store", &self.describe()).finish_non_exhaustive()
    }
}

/// Hears that another process has done something, and lets those who wait for results look again.
struct ForeignCommitListener(Arc<Waiters>);

impl Listener for ForeignCommitListener {
    fn hint(&self, hint: &Hint) {
        if *hint == Hint::Foreign {
            self.0.wake_all();
        }
    }
}
