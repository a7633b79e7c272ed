//! Simulated processes: nodes with their handlers, and the programs of producers and operators.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainspring::{Context, Engine, Job, Node, cancel, discard, snooze};
use mainspring_core::failure::Failure;
use mainspring_core::id::JobId;
use mainspring_core::job::PayloadBounds;
use mainspring_core::seam::Seams;
use mainspring_core::store::Store;
use serde::{Deserialize, Serialize};

use super::clock::SkewedClock;
use super::network::Network;
use super::plan::{End, LABEL, Plan, QUEUES};
use super::programs::Flow;
use super::schedules::of_code;
use super::workflow::perform as perform_flow;
use super::workflow_clients::SentToken;
use super::world::{World, below, between, lock, pick};
use crate::history::{Actor, EnqueueAnswer, Fact, Recorder};
use crate::rng::SeededRng;
use crate::seams::RealThreads;
use crate::watch::WatchedStore;

/// Work of one kind.
#[derive(Debug, Serialize, Deserialize, Job)]
#[job(kind = "work", result = u64)]
pub(super) struct Work(pub(super) Plan);

/// Work of another kind.
#[derive(Debug, Serialize, Deserialize, Job)]
#[job(kind = "chore", result = u64, queue = "mail", max_attempts = 3)]
pub(super) struct Chore(pub(super) Plan);

/// A process on the store.
pub(super) struct Process {
    pub(super) actor: Actor,
    pub(super) engine: Engine,
    pub(super) clock: SkewedClock,
    world: Arc<World>,
    store: Arc<dyn Store>,
    /// The node that runs in it, once it has joined.
    node: Arc<Mutex<Option<Node>>>,
}

impl Process {
    /// A process that has opened the store and does nothing yet.
    pub(super) fn open(world: &Arc<World>, actor: Actor) -> Self {
        let fast = i64::try_from(below(&world.fate, 20_000)).unwrap_or(0) - 10_000;
        let clock = SkewedClock::new(&world.time, fast);
        let seams = Seams {
            clock: Arc::new(clock.clone()),
            rng: Arc::new(SeededRng::new(u64::from(actor) << 32 | world.fate_bits())),
            spawn: world.executor.group(actor),
            threads: Arc::new(RealThreads),
        };
        let store = world.backend.connect();
        let recorder: Arc<dyn Recorder> = world.log.clone();
        let way = Network::new(world, actor);
        let watched = Arc::new(WatchedStore::new(Arc::clone(&store), way, recorder, actor));
        let engine = Engine::with(watched, seams, PayloadBounds::default());
        Process { actor, engine, clock, world: Arc::clone(world), store, node: Arc::default() }
    }

    /// Runs a program in the process.
    pub(super) fn run(&self, program: impl Future<Output = ()> + Send + 'static) {
        self.world.executor.group(self.actor).spawn(Box::pin(program));
    }

    /// Makes it a node, as soon as the store lets it join. One that is unrestricted can do everything.
    pub(super) fn work(&self, unrestricted: bool) {
        let (fate, lease) = (&self.world.fate, self.world.config.lease);
        let mut builder = self.engine.node().lease(lease).drain(between(fate, Duration::ZERO, lease));
        for queue in QUEUES {
            if unrestricted || below(fate, 4) > 0 {
                builder = builder.queue(queue, 1 + u32::try_from(below(fate, 6)).unwrap_or(0));
            }
        }
        // Without any queue it would serve none.
        builder = builder.queue(QUEUES[below(fate, QUEUES.len())], 2);
        if unrestricted || below(fate, 2) == 0 {
            builder = builder.label(LABEL);
        }
        let host = Arc::new(HandlerHost { world: Arc::clone(&self.world), actor: self.actor });
        let work = Arc::clone(&host);
        // Suspended handlers are kept, or soon dropped, or not kept at all.
        let cached = pick(fate, &[0, 1, 8]);
        builder = builder.cached_handlers(if self.world.config.one_workflow_node { 8 } else { cached });
        if self.world.config.schedules.is_some() {
            builder = builder.schedule(of_code(self.world.is_edited()));
        }
        if let Some(most) = self.world.config.claim() {
            builder = builder.claim_at_most(most);
        }
        let willing = unrestricted || self.world.config.one_workflow_node || below(fate, 4) > 0;
        if willing && self.world.may_run_workflows(self.actor) {
            let flow = Arc::clone(&host);
            builder =
                builder.handle(move |ctx: Context, job: Flow| perform_flow(Arc::clone(&flow), ctx, job.0));
        }
        builder = builder.handle(move |ctx: Context, job: Work| perform(Arc::clone(&work), ctx, job.0));
        if unrestricted || below(fate, 4) > 0 {
            builder = builder.handle(move |ctx: Context, job: Chore| perform(Arc::clone(&host), ctx, job.0));
        }
        let (place, world, actor) = (Arc::clone(&self.node), Arc::clone(&self.world), self.actor);
        self.run(async move {
            match builder.start().await {
                Ok(node) => *lock(&place) = Some(node),
                // Its set-up is right, so that it was the store: a real process ends here and is started anew.
                Err(_) => world.executor.doom(actor, 0),
            }
        });
    }

    /// Whether it has joined.
    pub(super) fn has_joined(&self) -> bool {
        lock(&self.node).is_some()
    }

    /// Shuts the node down in good order; the process ends with it.
    pub(super) fn shut_down(&self) {
        let (place, world, actor) = (Arc::clone(&self.node), Arc::clone(&self.world), self.actor);
        self.run(async move {
            let node = lock(&place).clone();
            if let Some(node) = node {
                node.shutdown().await;
            }
            world.executor.doom(actor, 0);
        });
    }

    /// What is left to do when the process is dead.
    pub(super) fn bury(&self) {
        self.world.backend.disconnect(&*self.store);
        lock(&self.node).take();
    }
}

/// Where handlers act.
pub(super) struct HandlerHost {
    pub(super) world: Arc<World>,
    pub(super) actor: Actor,
}

impl HandlerHost {
    /// Notes what a handler does. The dead do nothing.
    pub(super) fn note(&self, fact: Fact) {
        if !self.world.executor.is_gone(self.actor) {
            self.world.log.note(self.actor, fact);
        }
    }

    /// Sends a token away. The dead do nothing.
    pub(super) fn send(&self, id: JobId, sent: SentToken) {
        if !self.world.executor.is_gone(self.actor) {
            self.world.send(id, sent);
        }
    }
}

/// Notes the end of a run, however it comes.
struct Running<'a> {
    host: &'a HandlerHost,
    id: JobId,
    claim: u32,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.host.note(Fact::Stopped { id: self.id, claim: self.claim });
    }
}

async fn perform(host: Arc<HandlerHost>, ctx: Context, plan: Plan) -> Result<u64, Failure> {
    let (id, claim) = (ctx.id(), ctx.info().claim);
    let run = host.world.begin(id);
    host.note(Fact::Began { id, claim });
    let _running = Running { host: &host, id, claim };
    let clock = Arc::clone(&ctx.engine().seams().clock);
    ctx.progress(0, 2, "begun");
    if plan.end == End::Listen {
        tokio::select! {
            biased;
            () = ctx.cancelled() => return Err(cancel("asked to").into()),
            () = clock.sleep(Duration::from_millis(plan.millis)) => {}
        }
    } else {
        clock.sleep(Duration::from_millis(plan.millis)).await;
    }
    ctx.progress(1, 2, "half");
    if run <= plan.kills {
        // It dies a little later, with whatever else it has begun by then.
        host.world.executor.doom(host.actor, below(&host.world.fate, 40));
        std::future::pending::<()>().await;
    }
    for number in 0..plan.children {
        let child = Work(Plan { millis: u64::from(number), ..Plan::default() });
        let enqueued = ctx.engine().enqueue(child).await?;
        host.note(Fact::Acknowledged { id: enqueued.id, told: EnqueueAnswer::Created });
    }
    // Some ask for more time when they have failed already: that must not be forgotten over it.
    let failed_first = if plan.millis.is_multiple_of(2) { u32::from(plan.fails) } else { 0 };
    if failed_first == 0 && run <= plan.snoozes {
        return Err(snooze(Duration::from_millis(300)).into());
    }
    if ctx.attempt() <= plan.fails {
        return Err("it is meant to fail".into());
    }
    if failed_first > 0 && run <= failed_first + plan.snoozes {
        return Err(snooze(Duration::from_millis(300)).into());
    }
    match plan.end {
        End::Panic => std::panic::resume_unwind(Box::new("it is meant to panic")),
        End::Discard => return Err(discard("no use").into()),
        End::Cancel => return Err(cancel("not any more").into()),
        End::Hang => std::future::pending().await,
        End::Well | End::Listen => {}
    }
    host.note(Fact::Ended { id, claim });
    Ok(u64::from(claim))
}
