//! Pools: warm children that run jobs of some kinds, one job each at a time.
//!
//! [`Pool`] is what an application says. [`child`] is one child, [`slot`] the task that keeps one place of the pool filled,
//! [`waiting`] the list of jobs that wait for a child, [`protocol`] and [`lines`] what goes over the pipes.
//!
//! # Invariants
//! - A child has one job at a time, and one that broke the protocol, was cancelled in vain or outlived its job gets no other.
//! - Nothing counts against a job that no child has begun.

mod child;
mod lines;
mod log;
mod protocol;
mod slot;
mod waiting;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use mainspring_core::failure::{Failure, cancel, snooze};
use mainspring_core::name::Kind;
use mainspring_core::seam::{Pending, Seams};
use mainspring_core::{Error, Result, bounds};
use tokio::sync::{mpsc, oneshot, watch};

use super::guard::{self, Spec};
use super::guarded::NO_GUARD;
use crate::context::Context;
use crate::engine::Engine;
use crate::handler::{Broken, Handler, Payload, convert};
use waiting::{Abandon, Hold, Request, Waiting};

/// Children of a pool that does not say how many.
const CHILDREN: u32 = 4;
/// How long a child may take to say that it is ready, unless the pool says otherwise.
const START_WITHIN: Duration = Duration::from_secs(10);
/// How long a child may take to end a job that is cancelled, unless the pool says otherwise. With the time that its end takes, less
/// than a node gives a handler.
const CANCEL_GRACE: Duration = Duration::from_secs(5);
/// How long a job waits in its slot while the pool has no child, before other nodes get it.
const PATIENCE: Duration = Duration::from_secs(5);
/// For how long such a job is snoozed.
const SNOOZE: Duration = Duration::from_secs(5);

/// Handlers in another language: warm child processes that run jobs of some kinds.
///
/// ```no_run
/// # use mainspring::process::Pool;
/// # use std::time::Duration;
/// let pool = Pool::new(["python3", "resize.py"])
///     .kind("resize")
///     .children(4)
///     .max_jobs(1_000)
///     .max_memory(512 << 20);
/// ```
///
/// `docs/guides/other-languages.md` has the protocol that a child speaks. Give it to a node with
/// [`NodeBuilder::pool`](crate::NodeBuilder::pool).
#[derive(Debug, Clone)]
#[must_use = "a pool does nothing until a node has it"]
pub struct Pool {
    spec: Spec,
    kinds: Vec<String>,
    options: Options,
}

#[derive(Debug, Clone, Copy)]
struct Options {
    children: u32,
    start_within: Duration,
    cancel_grace: Duration,
    timeout: Option<Duration>,
    silence: Option<Duration>,
    max_jobs: Option<u32>,
    max_age: Option<Duration>,
    max_memory: Option<u64>,
}

impl Pool {
    /// The program of each child, and its arguments. No shell is involved unless it is the program.
    pub fn new(argv: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Pool {
            spec: Spec { argv: argv.into_iter().map(Into::into).collect(), ..Spec::default() },
            kinds: Vec::new(),
            options: Options {
                children: CHILDREN,
                start_within: START_WITHIN,
                cancel_grace: CANCEL_GRACE,
                timeout: None,
                silence: None,
                max_jobs: None,
                max_age: None,
                max_memory: None,
            },
        }
    }

    /// Adds a kind that its children run. A pool has at least one.
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kinds.push(kind.into());
        self
    }

    /// Sets how many children there are, and so how many jobs run at a time. Default: 4.
    pub fn children(mut self, children: u32) -> Self {
        self.options.children = children;
        self
    }

    /// Sets a variable for the children, besides those of this process.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.spec.env.insert(name.into(), value.into());
        self
    }

    /// Sets where the children run. Default: where this process runs.
    pub fn cwd(mut self, directory: impl Into<String>) -> Self {
        self.spec.cwd = Some(directory.into());
        self
    }

    /// Sets how long a child may take to say that it is ready. Default: 10 seconds.
    pub fn start_within(mut self, span: Duration) -> Self {
        self.options.start_within = span;
        self
    }

    /// Sets how long a child may take for a job, from the moment that it gets it. Default: as long as the job's own timeout, which also
    /// counts the wait for a child.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = Some(timeout);
        self
    }

    /// Sets for how long a child may say nothing while it has a job: no progress, no log, no answer. Default: no bound.
    pub fn silence(mut self, silence: Duration) -> Self {
        self.options.silence = Some(silence);
        self
    }

    /// Sets how long a child may take to end a job that was cancelled. Then it is killed. Default: 5 seconds. Keep it two
    /// seconds below [`NodeBuilder::cancel_grace`](crate::NodeBuilder::cancel_grace).
    pub fn cancel_grace(mut self, grace: Duration) -> Self {
        self.options.cancel_grace = grace;
        self
    }

    /// Sets after how many jobs a child is replaced. Default: never.
    pub fn max_jobs(mut self, jobs: u32) -> Self {
        self.options.max_jobs = Some(jobs);
        self
    }

    /// Sets after how long a child is replaced, as soon as it has no job. Default: never.
    pub fn max_age(mut self, age: Duration) -> Self {
        self.options.max_age = Some(age);
        self
    }

    /// Sets how many bytes of memory a child may use. Above that it is replaced after its job; above twice that it is killed,
    /// and its job fails. Default: no bound. Linux only; elsewhere a node with such a pool does not start.
    pub fn max_memory(mut self, bytes: u64) -> Self {
        self.options.max_memory = Some(bytes);
        self
    }

    /// Checks it, and makes it ready to run on a node of this engine.
    fn build(self, engine: &Engine) -> Result<PoolShared> {
        let setup = |why: String| Err(Error::NodeSetup { why });
        let Pool { spec, kinds, options } = self;
        let Some(first) = kinds.first() else {
            return setup("a pool has no kind; call .kind(…)".into());
        };
        let name = first.clone();
        if spec.argv.first().is_none_or(String::is_empty) {
            return setup(format!("pool `{name}` names no program"));
        }
        if !(1..=bounds::CHILDREN).contains(&options.children) {
            let (children, bound) = (options.children, bounds::CHILDREN);
            return setup(format!(
                "pool `{name}` has {children} children, which is not between 1 and {bound}"
            ));
        }
        let spans = [
            ("start_within", Some(options.start_within)),
            ("timeout", options.timeout),
            ("silence", options.silence),
            ("max_age", options.max_age),
        ];
        if let Some((what, _)) = spans.iter().find(|(_, span)| span.is_some_and(|span| span.is_zero())) {
            return setup(format!("{what} of pool `{name}` is zero"));
        }
        if options.max_jobs == Some(0) || options.max_memory == Some(0) {
            return setup(format!("pool `{name}` lets a child do nothing: a maximum is zero"));
        }
        if options.max_memory.is_some() && child::resident(std::process::id()).is_none() {
            return setup(format!(
                "max_memory of pool `{name}` needs /proc, which this system does not have"
            ));
        }
        if guard::program().is_none() {
            return setup(NO_GUARD.into());
        }
        Ok(PoolShared {
            name,
            spec,
            kinds,
            options,
            result_bound: engine.bounds().result,
            seams: engine.seams().clone(),
            waiting: Waiting::default(),
            state: watch::Sender::default(),
            closing: watch::Sender::new(false),
        })
    }
}

/// A pool on a node.
struct PoolShared {
    /// Its first kind.
    name: String,
    spec: Spec,
    kinds: Vec<String>,
    options: Options,
    result_bound: usize,
    seams: Seams,
    waiting: Waiting,
    state: watch::Sender<PoolState>,
    closing: watch::Sender<bool>,
}

/// What waiting jobs want to know of a pool.
#[derive(Debug, Default)]
struct PoolState {
    /// Children that are ready or have a job.
    up: u32,
    /// What ended the last child that ended without having finished a job; nothing once a job was finished.
    trouble: Option<String>,
}

impl PoolShared {
    /// Waits until the pool is to end.
    async fn closed(&self) {
        // The sender is in `self`, so the channel cannot be closed.
        drop(self.closing.subscribe().wait_for(|closing| *closing).await);
    }

    fn is_closed(&self) -> bool {
        *self.closing.borrow()
    }

    fn change(&self, change: impl FnOnce(&mut PoolState)) {
        self.state.send_modify(change);
        metrics::gauge!("mainspring_pool_children", "pool" => self.name.clone())
            .set(f64::from(self.state.borrow().up));
    }

    /// Runs a job in a child, once there is a free one.
    async fn run(&self, ctx: Context, input: Vec<u8>) -> Result<Payload, Broken> {
        let line = protocol::request(ctx.info(), &input).map_err(convert)?;
        let ctx = Arc::new(ctx);
        let (reply, mut answer) = oneshot::channel();
        let hold = Arc::new(Hold::default());
        // Dropped with the handler, whatever ends that: then the child that has the job is killed.
        let _abandon = Abandon(Arc::clone(&hold));
        let mut state = self.state.subscribe();
        self.waiting.push(Request { ctx: Arc::clone(&ctx), line, hold: Arc::clone(&hold), reply });
        let mut patience = std::pin::pin!(self.seams.clock.sleep(PATIENCE));
        let mut is_patient = true;
        loop {
            if hold.is_waiting() {
                let trouble = no_child(&state.borrow_and_update(), &self.name);
                if let Some(note) = trouble {
                    hold.note();
                    ctx.progress(0, 0, note);
                    if !is_patient && hold.withdraw() {
                        return Err(Broken::Failure(snooze(SNOOZE).into()));
                    }
                }
            }
            tokio::select! {
                biased;
                answer = &mut answer => {
                    return answer.unwrap_or_else(|_| Err(Broken::Failure("the pool has ended".into())));
                }
                () = ctx.cancelled(), if hold.is_waiting() => if hold.withdraw() {
                    let why = cancel("it was stopped while it waited for a child");
                    return Err(Broken::Failure(Failure::from(why)));
                },
                _ = state.changed(), if hold.is_waiting() => {}
                () = &mut patience, if is_patient => is_patient = false,
            }
        }
    }
}

/// Why jobs of a pool wait, if it has no child at all.
fn no_child(state: &PoolState, name: &str) -> Option<String> {
    let trouble = state.trouble.as_ref().filter(|_| state.up == 0)?;
    Some(format!("pool `{name}` has no child: the last one {trouble}"))
}

/// The handler of one kind of a pool.
pub(crate) struct PoolHandler(Arc<PoolShared>);

impl Handler for PoolHandler {
    fn call(&self, ctx: Context, input: Vec<u8>) -> Pending<'static, Result<Payload, Broken>> {
        let pool = Arc::clone(&self.0);
        Box::pin(async move { pool.run(ctx, input).await })
    }
}

/// All pools of a node.
#[derive(Default)]
pub(crate) struct Pools(Vec<Arc<PoolShared>>);

impl Pools {
    /// Adds a pool; returns the handlers of its kinds.
    pub(crate) fn add(&mut self, pool: Pool, engine: &Engine) -> Result<Vec<(Kind, PoolHandler)>> {
        let shared = Arc::new(pool.build(engine)?);
        let kinds = shared.kinds.iter().map(Kind::new).collect::<Result<Vec<_>>>()?;
        self.0.push(Arc::clone(&shared));
        Ok(kinds.into_iter().map(|kind| (kind, PoolHandler(Arc::clone(&shared)))).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keeps children running until `stopped`; ends when they are gone.
    pub(crate) async fn run(self, stopped: impl Future<Output = ()>) {
        let (alive, mut ended) = mpsc::channel::<()>(1);
        for pool in &self.0 {
            for _ in 0..pool.options.children {
                let (pool, alive) = (Arc::clone(pool), alive.clone());
                let task = Box::pin(async move {
                    slot::run(&pool).await;
                    drop(alive);
                });
                let spawn = Arc::clone(&self.0[0].seams.spawn);
                spawn.spawn(task);
            }
        }
        drop(alive);
        stopped.await;
        for pool in &self.0 {
            pool.closing.send_replace(true);
        }
        // Nothing is sent: it is closed when the last task is gone.
        let _ = ended.recv().await;
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pool_is_checked_before_its_node_starts() {
        let engine = Engine::open("memory:").await.expect("a store");
        let refused = |pool: Pool| match pool.build(&engine) {
            Ok(_) => panic!("the tests' `main` does not call `guard`"),
            Err(error) => error.to_string(),
        };
        let pool = || Pool::new(["worker"]).kind("k");
        for (pool, said) in [
            (Pool::new(["worker"]), "a pool has no kind"),
            (Pool::new([""; 1]).kind("k"), "pool `k` names no program"),
            (Pool::new([""; 0]).kind("k"), "pool `k` names no program"),
            (pool().children(0), "has 0 children, which is not between 1 and 1024"),
            (pool().children(1_025), "has 1025 children, which is not between 1 and 1024"),
            (pool().children(1_024), "`mainspring::process::guard()` was not called"),
            (pool().start_within(Duration::ZERO), "start_within of pool `k` is zero"),
            (pool().timeout(Duration::ZERO), "timeout of pool `k` is zero"),
            (pool().silence(Duration::ZERO), "silence of pool `k` is zero"),
            (pool().max_age(Duration::ZERO), "max_age of pool `k` is zero"),
            (pool().max_jobs(0), "a maximum is zero"),
            (pool().max_memory(0), "a maximum is zero"),
        ] {
            let error = refused(pool);
            assert!(error.contains(said), "{error}");
        }
    }
}
