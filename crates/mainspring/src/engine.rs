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
use crate::kinds::Kinds;
use crate::limit::Limits;
use crate::limit::seed::Planted;
use crate::node::NodeBuilder;
use crate::node::activity::LocalNode;
use crate::queues::Queues;
use crate::schedule::Schedules;
use crate::sync::Mutex;
use crate::waiters::Waiters;

/// Enqueues jobs, runs them and looks at them: the entry to Mainspring, on one store.
///
/// An engine is cheap to clone, and all clones share the store. An engine by itself only enqueues and looks. To run
/// jobs in this process, start a [`node`](Self::node).
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
    planted: Planted,
    /// Nodes of this process.
    nodes: Mutex<Vec<LocalNode>>,
    /// Keeps the waiters' listener to the store.
    _listener: Arc<dyn Listener>,
}

impl Engine {
    /// Opens the store at an address and returns its engine.
    ///
    /// | address | store |
    /// |---|---|
    /// | `sqlite:app.db` | a SQLite file. The engine creates and migrates it if need be |
    /// | `postgres://app@db/shop`, or libpq's `host=db dbname=shop` | a Postgres database (feature `postgres`). Create its tables with `mainspring migrate` or [`OpenOptions::migrate`](crate::OpenOptions::migrate) |
    /// | `memory:` | memory of this process, gone with it |
    ///
    /// For more, see [`options`](Self::options). Call it within a Tokio runtime; the engine then uses that runtime.
    ///
    /// # Errors
    /// [`Error::Open`] with the problem: see [`OpenProblem`](crate::error::OpenProblem).
    pub async fn open(address: &str) -> Result<Engine> {
        Engine::options().open(address).await
    }

    /// Returns options for opening a store: durability, bounds, migration.
    pub fn options() -> crate::open::OpenOptions {
        crate::open::OpenOptions::default()
    }

    /// Makes an engine on a store and seams of your own: for tests and simulations.
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
            planted: Planted::default(),
            nodes: Mutex::default(),
            _listener: listener,
        };
        Engine { shared: Arc::new(shared) }
    }

    /// Enqueues a job. Nothing happens until you await the builder; then the job is on stable storage.
    ///
    /// ```
    /// # use mainspring::{Engine, Error, Job};
    /// # use serde::{Deserialize, Serialize};
    /// # #[derive(Serialize, Deserialize, Job)]
    /// # struct Report { month: u8 }
    /// # async fn example(engine: &Engine) -> Result<(), Error> {
    /// let job = engine.enqueue(Report { month: 1 }).queue("reports").tag("monthly").await?;
    /// println!("{}", job.id);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When you await it: [`Error::Invalid`] or [`Error::TooLarge`] for a value beyond its bound, [`Error::Convert`]
    /// if the input cannot become JSON, [`Error::Conflict`] and [`Error::IdTaken`] as you asked for,
    /// [`Error::Unavailable`], [`Error::DiskFull`] or [`Error::OutcomeUnknown`] from the store. You may repeat a
    /// retryable one; with an [`id`](Enqueue::id) of your own the repeat is the same job.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "the job is handed over: `&Welcome { user: 7 }` would be noise"
    )]
    pub fn enqueue<J: Job>(&self, job: J) -> Enqueue<'_, J> {
        Enqueue::of(self, &job)
    }

    /// Enqueues a job by its kind and its input as JSON, for callers that do not know its type. It takes no defaults
    /// from the type: the queue is `default` unless you name one.
    pub fn enqueue_json(&self, kind: &str, input: &Value) -> Enqueue<'_, Json> {
        Enqueue::json(self, kind, input)
    }

    /// Enqueues up to 100,000 jobs of one type with the same options.
    ///
    /// The engine stores batches of 1,000 jobs or 16 MiB, each in one commit.
    ///
    /// # Errors
    /// When you await it: [`Error::Partial`] if a later batch fails, with the number of jobs that are stored, counted
    /// from the first. Otherwise as [`enqueue`](Self::enqueue).
    pub fn enqueue_many<J: Job>(&self, jobs: impl IntoIterator<Item = J>) -> EnqueueMany<'_, J> {
        EnqueueMany::of(self, jobs)
    }

    /// Enqueues up to 100,000 jobs by their kind and their inputs as JSON. Otherwise as
    /// [`enqueue_many`](Self::enqueue_many).
    pub fn enqueue_many_json(
        &self,
        kind: &str,
        inputs: impl IntoIterator<Item = Value>,
    ) -> EnqueueMany<'_, Json> {
        EnqueueMany::json(self, kind, inputs)
    }

    /// Waits until a job has ended and returns its result.
    ///
    /// The job runs whether or not anybody waits, and you may drop the future at any time. For a bound, use
    /// `tokio::time::timeout`. To look without waiting, use [`Jobs::get`].
    ///
    /// # Errors
    /// [`Error::Ended`] if the job failed, was cancelled or skipped; [`Error::NotFound`] if there is no such job, or
    /// its retention is over; [`Error::Convert`] if the result does not fit the type.
    pub async fn result<J: Job>(&self, job: &Enqueued<J>) -> Result<J::Result> {
        self.result_of::<J>(job.id).await
    }

    /// Waits until the job with this id has ended and returns its result.
    ///
    /// Any process that knows the id can call it. You name the job's type: `engine.result_of::<Report>(id)`.
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

    /// Wakes nodes, in this process and in others, for a job from your own transaction, after its commit. Without it,
    /// nodes find the job within a second.
    pub fn nudge<J>(&self, job: &Enqueued<J>) {
        self.shared.waiters.nudge();
        self.shared.store.nudge(job.id);
    }

    /// Returns the jobs of the store: look at them and change them.
    pub fn jobs(&self) -> Jobs<'_> {
        Jobs::new(self)
    }

    /// Returns all nodes that the store remembers, newest first. It forgets nodes 24 hours after they are gone.
    ///
    /// Nodes of this process report what they do for their queues now; others, the report of their last renewal.
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

    /// Returns the queues of the store: look at them and change them.
    pub fn queues(&self) -> Queues<'_> {
        Queues::new(self)
    }

    /// Schedules: look at them and change them.
    pub fn schedules(&self) -> Schedules<'_> {
        Schedules::new(self)
    }

    /// Returns the limits of the store: look at them and change them.
    pub fn limits(&self) -> Limits<'_> {
        Limits::new(self)
    }

    /// Returns what operators set for kinds.
    pub fn kinds(&self) -> Kinds<'_> {
        Kinds::new(self)
    }

    /// Sets up a node that runs jobs in this process.
    ///
    /// ```no_run
    /// # use mainspring::{Context, Engine, Job};
    /// # use serde::{Deserialize, Serialize};
    /// # #[derive(Serialize, Deserialize, Job)]
    /// # struct Report { month: u8 }
    /// # async fn report(_ctx: Context, _job: Report) -> mainspring::HandlerResult<()> { Ok(()) }
    /// # async fn example(engine: &Engine) -> Result<(), mainspring::Error> {
    /// let node = engine.node().handle(report).queue("reports", 4).start().await?;
    /// node.run_until(mainspring::shutdown_signal()).await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn node(&self) -> NodeBuilder {
        NodeBuilder::new(self.clone())
    }

    /// Describes the store: its kind, location, version and durability, without secrets.
    pub fn describe(&self) -> Description {
        self.shared.store.describe()
    }

    /// Finishes all calls that are under way and closes the store. Shut down nodes before. Later calls return
    /// [`Error::Closed`].
    pub async fn close(&self) {
        self.shared.store.close().await;
    }

    /// Returns the store itself: for tools that look beneath the engine. [`mainspring_core::store`] has its contract.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.shared.store
    }

    /// Returns the seams that the engine runs on: clock, randomness, tasks.
    pub fn seams(&self) -> &Seams {
        &self.shared.seams
    }

    /// Returns the configured bounds of inputs, results and step results.
    pub fn bounds(&self) -> &PayloadBounds {
        &self.shared.bounds
    }

    pub(crate) fn reads_back(&self) -> bool {
        self.shared.reads_back
    }

    pub(crate) fn planted(&self) -> &Planted {
        &self.shared.planted
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
