//! Trials: does a workflow bear what may happen between any two of its steps?

use std::future::ready;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mainspring_core::id::JobId;
use mainspring_core::job::{Reason, State};
use mainspring_core::name::Key;
use tokio::sync::Notify;

use super::probe::{Probe, ProbeVerdict};
use super::{Error, Result, TestEngine, WAITS};
use crate::enqueue::Enqueued;
use crate::job::Job;
use crate::node::NodeBuilder;

/// A lease, the time in which its end is noticed, and a little more.
const RESCUE: Duration = Duration::from_secs(20);

type Engines = dyn Fn() -> Pin<Box<dyn Future<Output = Result<TestEngine>>>>;
type OnWait<J> = dyn for<'a> Fn(&'a TestEngine, Enqueued<J>) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Runs a workflow again and again, each time with another mishap, and compares the result with an undisturbed run.
///
/// A trial moves the test's clock over sleeps and retries, of the job and of its steps. Each call names the step that
/// broke, and fails with [`Error::NoSteps`] if the workflow has none.
///
/// ```
/// use mainspring::testing::Trial;
/// use mainspring::{Context, Job};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Clone, Serialize, Deserialize, Job)]
/// #[job(kind = "order", result = u64)]
/// struct Order { cents: u64 }
///
/// async fn order(ctx: Context, job: Order) -> mainspring::HandlerResult<u64> {
///     let charged = ctx.step("charge", async || Ok(job.cents)).await?;
///     ctx.sleep("cool-off", std::time::Duration::from_hours(24)).await?;
///     let shipped = ctx.step("ship", async || Ok(charged + 1)).await?;
///     Ok(shipped)
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let trial = Trial::new(Order { cents: 100 }, |node| node.handle(order).queue("default", 1));
/// trial.crash_after_every_step().await?;
/// trial.run_every_step_twice().await?;
/// trial.fail_every_step_once().await?;
/// # Ok(())
/// # }
/// ```
pub struct Trial<J, F> {
    job: J,
    setup: F,
    engines: Box<Engines>,
    on_wait: Option<Box<OnWait<J>>>,
}

/// What happens to a step.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Mishap {
    /// Nothing, to any.
    None,
    /// Every body runs twice.
    Twice,
    /// The process dies after this step's body, before its record.
    Crash(Key),
    /// This step fails once after its body has succeeded.
    Fail(Key),
}

/// Looks at every step, and makes the mishap happen once.
struct Watcher {
    state: Mutex<Seen>,
    crashed: Notify,
}

struct Seen {
    mishap: Mishap,
    job: Option<JobId>,
    ran: Vec<Key>,
}

impl Watcher {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Probe for Watcher {
    fn ran(&self, job: JobId, key: &Key) -> ProbeVerdict {
        let mut seen = self.lock();
        if seen.job != Some(job) {
            return ProbeVerdict::Keep;
        }
        seen.ran.push(key.clone());
        match &seen.mishap {
            Mishap::Twice => ProbeVerdict::Again,
            Mishap::Crash(at) if at == key => {
                seen.mishap = Mishap::None;
                ProbeVerdict::Crash
            }
            Mishap::Fail(at) if at == key => {
                seen.mishap = Mishap::None;
                ProbeVerdict::Fail("the test fails this step once, after its body".into())
            }
            Mishap::None | Mishap::Crash(_) | Mishap::Fail(_) => ProbeVerdict::Keep,
        }
    }

    fn crash(&self) {
        self.crashed.notify_one();
    }
}

impl<J, F> Trial<J, F>
where
    J: Job + Clone,
    J::Result: PartialEq + std::fmt::Debug,
    F: Fn(NodeBuilder) -> NodeBuilder,
{
    /// Makes a trial of a job, on nodes set up as in production. Each run has an engine of its own.
    pub fn new(job: J, setup: F) -> Self {
        Trial { job, setup, engines: Box::new(|| Box::pin(ready(Ok(TestEngine::new())))), on_wait: None }
    }

    /// Sets the engine of each run, such as one on a [file](TestEngine::sqlite) with the tables that the workflow
    /// writes to. Default: in memory. A trial never runs a transaction step twice in a row, and a crash comes after
    /// its commit.
    #[must_use]
    pub fn on<E, Fut>(mut self, engine: E) -> Self
    where
        E: Fn() -> Fut + 'static,
        Fut: Future<Output = Result<TestEngine>> + 'static,
    {
        self.engines = Box::new(move || Box::pin(engine()));
        self
    }

    /// Sets the answer when the workflow waits for a signal or a child: usually your test sends a signal.
    #[must_use]
    pub fn on_wait(
        mut self,
        on_wait: impl for<'a> Fn(&'a TestEngine, Enqueued<J>) -> Pin<Box<dyn Future<Output = ()> + 'a>> + 'static,
    ) -> Self {
        self.on_wait = Some(Box::new(on_wait));
        self
    }

    /// Kills the node after the body of each step in turn, between effect and record. The workflow resumes on another
    /// node, a lease later. Its result must be that of an undisturbed run.
    ///
    /// # Errors
    /// [`Error::Broke`] names the step after which the result differed.
    pub async fn crash_after_every_step(&self) -> Result<J::Result> {
        self.each("the node died after its body", Mishap::Crash).await
    }

    /// Fails each step in turn once, after its body has succeeded, as if the answer from outside had been lost.
    ///
    /// The result must be that of an undisturbed run, by a retry of the step or of the job. If a failure leads to
    /// another result, as in a saga, use [`fail_step`](Self::fail_step).
    ///
    /// # Errors
    /// [`Error::Broke`] names the step whose failure changed the result.
    pub async fn fail_every_step_once(&self) -> Result<J::Result> {
        self.each("it failed once", Mishap::Fail).await
    }

    /// Runs the body of every step twice in a row. The result must be that of an undisturbed run. Your test checks
    /// the effects outside.
    ///
    /// # Errors
    /// [`Error::Broke`] names the first step.
    pub async fn run_every_step_twice(&self) -> Result<J::Result> {
        let (expected, ran) = self.run(Mishap::None).await;
        let expected = expected?;
        let (twice, _) = self.run(Mishap::Twice).await;
        match ran.first() {
            Some(first) => judge(first, "every body ran twice", expected, twice),
            None => Err(Error::NoSteps),
        }
    }

    /// Returns the outcome when one step fails once, after its body has succeeded.
    ///
    /// # Errors
    /// The job's own error, if it did not succeed.
    pub async fn fail_step(&self, key: &str) -> Result<J::Result> {
        self.run(Mishap::Fail(Key::new(key)?)).await.0
    }

    async fn each(&self, what: &str, mishap: fn(Key) -> Mishap) -> Result<J::Result> {
        let (expected, ran) = self.run(Mishap::None).await;
        let mut expected = expected?;
        if ran.is_empty() {
            return Err(Error::NoSteps);
        }
        for key in ran {
            let (outcome, _) = self.run(mishap(key.clone())).await;
            expected = judge(&key, what, expected, outcome)?;
        }
        Ok(expected)
    }

    /// Runs the workflow to its end; tells its result and its steps.
    async fn run(&self, mishap: Mishap) -> (Result<J::Result>, Vec<Key>) {
        let watcher = Arc::new(Watcher {
            state: Mutex::new(Seen { mishap, job: None, ran: Vec::new() }),
            crashed: Notify::new(),
        });
        let outcome = match (self.engines)().await {
            Ok(test) => self.drive(&test, &watcher).await,
            Err(error) => Err(error),
        };
        let ran = std::mem::take(&mut watcher.lock().ran);
        (outcome, ran)
    }

    async fn drive(&self, test: &TestEngine, watcher: &Arc<Watcher>) -> Result<J::Result> {
        let start = || {
            let probe: Arc<dyn Probe> = Arc::<Watcher>::clone(watcher);
            test.node(|node| (self.setup)(node).probe(probe))
        };
        let job = test.enqueue(self.job.clone()).await?;
        watcher.lock().job = Some(job.id);
        start().await?;
        let mut asked_before: Option<(u32, Duration)> = None;
        for _ in 0..WAITS {
            tokio::select! {
                biased;
                () = watcher.crashed.notified() => {
                    test.crash().await?;
                    start().await?;
                    test.advance(RESCUE).await?;
                    continue;
                }
                idle = test.run_until_idle() => idle?,
            }
            let summary = test.jobs().get(job.id).await?.summary;
            let asked = matches!(summary.status.reason, Some(Reason::Signal | Reason::Child));
            match (summary.status.state, summary.run_at, &self.on_wait) {
                (state, ..) if state.is_terminal() => return test.outcome(&job),
                (State::Running, ..) if test.end_backoff().await? => {}
                (State::Suspended, at, Some(on_wait)) if asked => {
                    on_wait(test, job).await;
                    // If that does not help, time may: its own, or its child's. Little by little, for `on_wait` may need
                    // to be asked several times.
                    let (claim, wait) = asked_before.unwrap_or((summary.claim, Duration::ZERO));
                    let wait = if claim == summary.claim { wait } else { Duration::ZERO };
                    test.advance(at.map_or(wait, |at| wait.min(at.since(test.now())))).await?;
                    asked_before = Some((summary.claim, (wait * 2).max(Duration::from_secs(1))));
                }
                (State::Suspended | State::Scheduled, Some(at), _) => {
                    test.advance(at.since(test.now())).await?;
                }
                // Its child may wait in its stead.
                (State::Suspended, None, None) if summary.status.reason == Some(Reason::Child) => {
                    test.advance(RESCUE).await?;
                }
                _ => return test.outcome(&job),
            }
        }
        test.outcome(&job)
    }
}

fn judge<T: PartialEq + std::fmt::Debug>(
    key: &Key,
    what: &str,
    expected: T,
    outcome: Result<T>,
) -> Result<T> {
    match outcome {
        Ok(result) if result == expected => Ok(expected),
        Ok(result) => {
            let why = format!("the result is {result:?} instead of {expected:?}");
            Err(Error::Broke { key: key.clone(), what: what.to_owned(), why })
        }
        Err(error) => Err(Error::Broke { key: key.clone(), what: what.to_owned(), why: error.to_string() }),
    }
}
