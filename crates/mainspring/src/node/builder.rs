//! Setting up a node.

use std::any::type_name;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use mainspring_core::failure::Failure;
use mainspring_core::id::{JobId, NodeId};
use mainspring_core::job::{Outcome, When};
use mainspring_core::name::{Label, QueueName};
use mainspring_core::seam::Clock;
use mainspring_core::store::{Abilities, Listener, Registration};
use mainspring_core::time::Timestamp;
use mainspring_core::{Error, Result, bounds};
use tokio::sync::{Notify, mpsc, watch};

use super::activity::LocalNode;
use super::finisher::{Unstored, UnstoredOutcome};
use super::handler_cache::HandlerCache;
use super::held::Held;
use super::hint_router::HintRouter;
use super::large_inputs::LargeInputs;
use super::lease::Lease;
use super::outage::Outage;
use super::slot_table::SlotTable;
use super::tasks::NodeTasks;
use super::{Node, NodeShared, Options, Phase, identity, supervisor};
use crate::context::{Context, Info, States};
use crate::durable::recorder::{self, RecorderHost};
use crate::engine::Engine;
use crate::handler::Handlers;
use crate::job::Job;
use crate::layer::{Hooks, Layer};
use crate::limit::NewLimit;
use crate::schedule::NewSchedule;
use crate::sync::AtomicBool;
use crate::testing::Probe;
use crate::waiters::Waiters;

/// The version of a node that has none.
const UNVERSIONED: &str = "0";

/// A node to start. You get one from [`Engine::node`]; [`start`](Self::start) reports the first mistake in its setup.
#[must_use = "a node does nothing until it is started"]
pub struct NodeBuilder {
    engine: Engine,
    options: Options,
    handlers: Handlers,
    layers: Vec<Arc<dyn Layer>>,
    hooks: Hooks,
    states: States,
    probe: Option<Arc<dyn Probe>>,
    needs: Vec<Need>,
    schedules: Vec<NewSchedule>,
    limits: Vec<NewLimit>,
    queues: Vec<(QueueName, u32)>,
    labels: Vec<Label>,
    later: Vec<(Label, Timestamp)>,
    prefix: String,
    version: String,
    problem: Option<Error>,
    #[cfg(all(unix, feature = "process"))]
    pools: crate::process::Pools,
}

/// State that some handler needs.
struct Need {
    name: &'static str,
    given: fn(&States) -> bool,
}

impl NodeBuilder {
    pub(crate) fn new(engine: Engine) -> Self {
        NodeBuilder {
            engine,
            options: Options {
                lease: Duration::from_secs(15),
                drain: Duration::from_secs(25),
                cancel_grace: Duration::from_secs(10),
                cached_handlers: 1_000,
                claim: bounds::BATCH,
            },
            probe: None,
            handlers: Handlers::default(),
            layers: Vec::new(),
            hooks: Hooks::default(),
            states: States::default(),
            needs: Vec::new(),
            schedules: Vec::new(),
            limits: Vec::new(),
            queues: Vec::new(),
            labels: Vec::new(),
            later: Vec::new(),
            prefix: "mainspring".into(),
            version: UNVERSIONED.into(),
            problem: None,
            #[cfg(all(unix, feature = "process"))]
            pools: crate::process::Pools::default(),
        }
    }

    /// Notes the first thing that is wrong.
    fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.problem.get_or_insert(error)).ok()
    }

    /// Adds the handler of one kind: a function or closure. A node has one handler per kind.
    pub fn handle<J, F, Fut, E>(mut self, handler: F) -> Self
    where
        J: Job,
        F: Fn(Context, J) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<J::Result, E>> + Send + 'static,
        E: Into<Failure> + 'static,
    {
        let added = self.handlers.add::<J, F, Fut, E>(handler);
        self.note(added);
        self.schedules.extend(J::schedule());
        self.limits.extend(J::limit_seeds());
        self
    }

    /// Adds handlers in another language: children that run the kinds of the pool. They are started with the node, and end with it.
    /// `main` has to call [`process::guard`](crate::process::guard) first. The queue's slots bound how many jobs wait for a child, or have
    /// one.
    #[cfg(all(unix, feature = "process"))]
    pub fn pool(mut self, pool: crate::process::Pool) -> Self {
        let added = self.pools.add(pool, &self.engine).and_then(|handlers| {
            handlers.into_iter().try_for_each(|(kind, handler)| self.handlers.add_pool(kind, handler))
        });
        self.note(added);
        self
    }

    /// Names a schedule: it is created when the node starts, if there is none of its name. One that is there is replaced if
    /// [`revision`](NewSchedule::revision) is higher than what code said before, and if no person has edited it.
    pub fn schedule(mut self, schedule: NewSchedule) -> Self {
        self.schedules.push(schedule);
        self
    }

    /// Names a [limit](crate::limit): it is created when the node starts, if there is none of its name. One that is there is
    /// changed if [`revision`](NewLimit::revision) is higher than what code said before, and if no person has edited it.
    pub fn limit(mut self, limit: NewLimit) -> Self {
        self.limits.push(limit);
        self
    }

    /// Serves a queue with this many slots: the jobs that run at a time. Call it again for the same queue to change
    /// the number.
    pub fn queue(mut self, name: impl AsRef<str>, slots: u32) -> Self {
        let name = QueueName::new(name);
        if let Some(name) = self.note(name) {
            self.serve(name, slots);
        }
        self
    }

    fn serve(&mut self, name: QueueName, slots: u32) {
        match self.queues.iter_mut().find(|(queue, _)| *queue == name) {
            Some((_, present)) => *present = slots,
            None => self.queues.push((name, slots)),
        }
    }

    /// Adds a label, an ability that jobs may require.
    pub fn label(mut self, label: impl AsRef<str>) -> Self {
        let label = Label::new(label);
        let label = self.note(label);
        self.labels.extend(label);
        self
    }

    /// Sets the first part of the node's name. Default: `mainspring`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets the version of the application, as part of the node's name; usually `env!("CARGO_PKG_VERSION")`. It is
    /// also the build that jobs may be [pinned](crate::enqueue::Enqueue::pin) to.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = version.into();
        self
    }

    /// From this time on, also runs jobs that are [pinned](crate::enqueue::Enqueue::pin) to another build. Until then
    /// they are left to the nodes of that build, so that these can drain. The time is a
    /// [`SystemTime`](std::time::SystemTime), or a [`Duration`] from now; a past time means at once.
    pub fn takes_over(mut self, build: impl AsRef<str>, from: impl Into<When>) -> Self {
        let label = Label::of_build(build.as_ref());
        let from = from.into().resolve(self.engine.seams().clock.now());
        let label = self.note(label);
        self.later.extend(label.map(|label| (label, from)));
        self
    }

    /// Sets how long the node may be silent before others take over its jobs. Default: 15 seconds. The node renews
    /// three times as often.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease;
        self
    }

    /// Sets how many suspended handlers stay in memory, for ten seconds at most, so a quick wake need not run them
    /// from their top. Default: 1,000; 0 keeps none. Nothing but speed depends on it.
    pub fn cached_handlers(mut self, handlers: usize) -> Self {
        self.options.cached_handlers = handlers;
        self
    }

    /// Sets how many jobs one claim takes at most. Default: 1,000, which is also the maximum. The node claims quick
    /// jobs ahead of their slots, up to two claims per queue. Lower it if so many inputs are too much for your
    /// memory.
    pub fn claim_at_most(mut self, jobs: usize) -> Self {
        self.options.claim = jobs.clamp(1, bounds::BATCH);
        self
    }

    /// Looks at every step that was run; for tests.
    pub(crate) fn probe(mut self, probe: Arc<dyn Probe>) -> Self {
        self.probe = Some(probe);
        self
    }

    /// Sets how long running jobs may take to end when the node shuts down. Default: 25 seconds.
    pub fn drain(mut self, drain: Duration) -> Self {
        self.options.drain = drain;
        self
    }

    /// Sets how long a handler that watches for its cancellation ([`Context::cancelled`]) may take to end. Default:
    /// 10 seconds.
    pub fn cancel_grace(mut self, grace: Duration) -> Self {
        self.options.cancel_grace = grace;
        self
    }

    /// Shares a value with all handlers; they ask for it by its type, with [`Context::state`].
    pub fn state<T: Send + Sync + 'static>(mut self, state: T) -> Self {
        self.states.insert(state);
        self
    }

    /// Declares that a handler needs state of this type: without it the node does not start.
    pub fn needs<T: Send + Sync + 'static>(mut self) -> Self {
        self.needs.push(Need { name: type_name::<T>(), given: |states| states.get::<T>().is_ok() });
        self
    }

    /// Puts a layer around every handler. The first that you add is the outermost.
    pub fn layer(mut self, layer: impl Layer) -> Self {
        self.layers.push(Arc::new(layer));
        self
    }

    /// Calls a function whenever a handler is about to start.
    pub fn on_start(mut self, hook: impl Fn(&Info) + Send + Sync + 'static) -> Self {
        self.hooks.start.push(Box::new(hook));
        self
    }

    /// Calls a function whenever the outcome of a run has been stored. It does not hear of refused outcomes.
    pub fn on_outcome(mut self, hook: impl Fn(&Info, &Outcome) + Send + Sync + 'static) -> Self {
        self.hooks.outcome.push(Box::new(hook));
        self
    }

    /// Takes queues, labels, name and lease from the environment, if it sets them: `MAINSPRING_QUEUES`
    /// (`default:10,mail:5`), `MAINSPRING_LABELS` (`gpu,eu`), `MAINSPRING_NODE_PREFIX`, `MAINSPRING_VERSION`,
    /// `MAINSPRING_LEASE` (`15s`).
    pub fn from_env(mut self) -> Self {
        let queues =
            identity::variable(identity::QUEUES).and_then(|text| read(text.as_deref(), identity::queues));
        for (name, slots) in self.note(queues).flatten().unwrap_or_default() {
            self.serve(name, slots);
        }
        let labels =
            identity::variable(identity::LABELS).and_then(|text| read(text.as_deref(), identity::labels));
        let labels = self.note(labels).flatten().unwrap_or_default();
        self.labels.extend(labels);
        let lease =
            identity::variable(identity::LEASE).and_then(|text| read(text.as_deref(), identity::lease));
        if let Some(lease) = self.note(lease).flatten() {
            self.options.lease = lease;
        }
        let prefix = identity::variable(identity::PREFIX);
        if let Some(prefix) = self.note(prefix).flatten() {
            self.prefix = prefix;
        }
        let version = identity::variable(identity::VERSION);
        if let Some(version) = self.note(version).flatten() {
            self.version = version;
        }
        self
    }

    /// Joins the store and starts to run jobs.
    ///
    /// # Errors
    /// The first mistake in the setup, such as two handlers for one kind, no queue or no handler; or an error of the
    /// store.
    #[cfg_attr(not(all(unix, feature = "process")), expect(unused_mut, reason = "it takes its pools out"))]
    pub async fn start(mut self) -> Result<Node> {
        #[cfg(all(unix, feature = "process"))]
        let pools = std::mem::take(&mut self.pools);
        let (shared, entries) = self.join().await?;
        supervisor::start(&shared, entries);
        #[cfg(all(unix, feature = "process"))]
        if !pools.is_empty() {
            let node = Arc::clone(&shared);
            shared.supervise("process pools", pools.run(async move { node.reached(Phase::Stopped).await }));
        }
        Ok(Node { shared })
    }

    /// Joins the store; nothing runs yet. Outcomes that are handed in arrive at the other end.
    pub(super) async fn join(
        mut self,
    ) -> Result<(Arc<NodeShared>, mpsc::UnboundedReceiver<UnstoredOutcome>)> {
        let registration = self.registration()?;
        registration.check()?;
        let began = self.engine.seams().clock.monotonic();
        let limits = std::mem::take(&mut self.limits);
        let mut seeds = std::mem::take(&mut self.schedules);
        let limits = limits.into_iter().chain(seeds.iter_mut().flat_map(NewSchedule::take_limits)).collect();
        let seeds = seeds.into_iter().map(NewSchedule::parts).collect::<Result<Vec<_>>>()?;
        let member = self.engine.store().register(registration.clone()).await?;
        crate::limit::seed::plant(&self.engine, limits, &registration.version).await?;
        crate::schedule::seed::plant(&self.engine, seeds, &registration.version).await?;
        let lease = Arc::new(Lease::new(self.options.lease, began));
        let slot_table = Arc::new(SlotTable::new(&registration.queues, self.options.claim));
        let renew_now = Arc::new(Notify::new());
        let held = Arc::new(Held::new(member.no));
        let hint_router = Arc::new(HintRouter::new(
            Arc::clone(&slot_table),
            Arc::clone(&held),
            Arc::clone(&renew_now),
            member.no,
        ));
        let listener: Arc<dyn Listener> = Arc::<HintRouter>::clone(&hint_router);
        self.engine.store().subscribe(Arc::downgrade(&listener));
        self.engine.waiters().on_nudge(Arc::downgrade(&listener));
        let (finishes, entries) = mpsc::unbounded_channel();
        let (phase, outage) = (watch::Sender::new(Phase::Open), Arc::new(Outage::default()));
        let seams = self.engine.seams();
        let host = NodeRecorderHost {
            phase: phase.subscribe(),
            outage: Arc::clone(&outage),
            clock: Arc::clone(&seams.clock),
            waiters: Arc::clone(self.engine.waiters()),
        };
        let host: Arc<dyn RecorderHost> = Arc::new(host);
        let recorder = recorder::start(self.engine.store(), seams, &host);
        let inputs = LargeInputs::new(self.engine.store(), seams);
        let tasks = Arc::new(NodeTasks::new(phase.subscribe()));
        let shared = Arc::new(NodeShared {
            engine: self.engine,
            options: self.options,
            registration,
            handlers: self.handlers,
            layers: self.layers,
            hooks: self.hooks,
            states: Arc::new(self.states),
            slot_table,
            held,
            recorder: Arc::new(recorder),
            handler_cache: HandlerCache::new(self.options.cached_handlers),
            inputs,
            probe: self.probe,
            hint_router,
            finishes,
            unstored: Unstored::default(),
            renew_now,
            rejoined: Notify::new(),
            phase,
            tasks,
            alive: AtomicBool::new(true),
            outage,
            lease,
        });
        shared.engine.add_node(LocalNode::new(&shared));
        Ok((shared, entries))
    }

    fn registration(&mut self) -> Result<Registration> {
        if let Some(problem) = self.problem.take() {
            return Err(problem);
        }
        let setup = |why: String| Err(Error::NodeSetup { why });
        if self.queues.is_empty() {
            return setup(format!(
                "no queue is declared; call .queue(\"default\", 10) or set {}=default:10",
                identity::QUEUES
            ));
        }
        let kinds = self.handlers.kinds();
        if kinds.is_empty() {
            return setup("it has no handler; call .handle(…)".into());
        }
        if let Some(need) = self.needs.iter().find(|need| !(need.given)(&self.states)) {
            return setup(format!("a handler needs state of type `{}`; add .state(…)", need.name));
        }
        if self.version != UNVERSIONED {
            self.labels.push(Label::of_build(&self.version)?);
        }
        self.labels.sort();
        self.labels.dedup();
        let seams = self.engine.seams();
        let id = NodeId::mint(seams.clock.now(), &*seams.rng);
        Ok(Registration {
            id,
            name: identity::name(&self.prefix, &self.version, id),
            version: self.version.clone(),
            pid: std::process::id(),
            abilities: Abilities { kinds, labels: self.labels.clone(), later: self.later.clone() },
            queues: self.queues.clone(),
            lease: self.options.lease,
        })
    }
}

/// What the recorder asks its node.
struct NodeRecorderHost {
    phase: watch::Receiver<Phase>,
    outage: Arc<Outage>,
    clock: Arc<dyn Clock>,
    waiters: Arc<Waiters>,
}

impl RecorderHost for NodeRecorderHost {
    fn is_gone(&self) -> bool {
        *self.phase.borrow() >= Phase::Stopped
    }

    fn failed(&self, part: &'static str, error: &Error) {
        self.outage.failed(part, error, self.clock.monotonic());
    }

    fn answered(&self, part: &'static str) {
        self.outage.answered(part, self.clock.monotonic());
    }

    fn has_output(&self, job: JobId) {
        self.waiters.tails().has_output(job);
    }
}

fn read<T>(text: Option<&str>, read: fn(&str) -> Result<T>) -> Result<Option<T>> {
    text.map(read).transpose()
}
