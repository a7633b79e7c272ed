//! Steps: what is done once and recorded.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use mainspring_core::backoff::Backoff;
use mainspring_core::error::BoxError;
use mainspring_core::failure::Failure;
use mainspring_core::id::JobId;
use mainspring_core::journal::{EntryKind, Writes};
use mainspring_core::name::Key;
use mainspring_core::planted::{self, Defect};
use mainspring_core::seam::Pending;
use mainspring_core::time::Timestamp;
use mainspring_core::{Error, Result, fault};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::dropped::OpFuture;
use super::key::side_key;
use super::operation::{Op, OpKey, check_lease, encode, keyed, lazy, side_entry};
use super::session::Session;
use super::{error, output, polled_code, under_way};
use crate::context::Context;
use crate::job_run::JobRun;
use crate::testing::ProbeVerdict;

type Body<'c, T> = Box<dyn FnMut(StepContext) -> Pending<'c, Result<T, Failure>> + Send + 'c>;

/// A step. Nothing happens until you await it; see [`Context::step`].
#[must_use = "nothing is done until this is awaited"]
pub struct Step<'c, T> {
    parts: Option<Parts<'c, T>>,
    run: Option<OpFuture<'c, Result<T>>>,
}

struct Parts<'c, T> {
    op: Op<'c>,
    body: Body<'c, T>,
    retries: u32,
    backoff: Backoff,
    timeout: Option<Duration>,
    once: bool,
}

impl<'c, T> Step<'c, T> {
    fn change(mut self, change: impl FnOnce(&mut Parts<'c, T>)) -> Self {
        if let Some(parts) = &mut self.parts {
            change(parts);
        }
        self
    }

    /// Runs the body again when it fails, up to `times` times, each after the [backoff](Self::backoff): `.retry(3)`
    /// means at most four runs. Default: no retry.
    ///
    /// The handler keeps its slot meanwhile. A failure that says [`discard`](crate::discard),
    /// [`snooze`](crate::snooze) or the like is not retried.
    pub fn retry(self, times: u32) -> Self {
        self.change(|parts| parts.retries = times)
    }

    /// Sets how long to wait between runs of the body. Default: exponential with jitter.
    pub fn backoff(self, backoff: Backoff) -> Self {
        self.change(|parts| parts.backoff = backoff)
    }

    /// Sets how long one run of the body may take. After that the body is dropped, and that run has failed. Default:
    /// no bound.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.change(|parts| parts.timeout = Some(timeout))
    }
}

keyed!(Step<'c; T>, op);
lazy!(Step<'c; T> => Result<T>, where { T: Serialize + DeserializeOwned + Send + 'c });

impl Context {
    /// Runs `body` once and records its result. When the handler runs again, the step returns the recorded result,
    /// and `body` does not run.
    ///
    /// `body` returns [`mainspring::HandlerResult`](crate::HandlerResult), so `?` takes any error and `async ||
    /// Ok(1)` needs no type. If your function has an error type of its own, call it inside the body, as below.
    ///
    /// `body` runs at least once: if the process dies after its effect and before the record, it runs again. Give the
    /// other side a key to recognize a repeat, with [`step_with`](Self::step_with); or use [`once`](Self::once).
    ///
    /// An error of `body` is [`Error::Step`]. If the handler returns it, nothing is recorded, and the next attempt
    /// runs the step again. If the handler continues, the error is recorded before its next step begins, so a later
    /// run takes the same path.
    ///
    /// ```
    /// # use mainspring::{Context, Job};
    /// # #[derive(serde::Serialize, serde::Deserialize, Job)] struct Order { id: u64 }
    /// # async fn charge(_id: u64) -> Result<String, std::io::Error> { Ok(String::new()) }
    /// async fn order(ctx: Context, job: Order) -> mainspring::HandlerResult<()> {
    ///     let receipt = ctx.step("charge", async || Ok(charge(job.id).await?)).retry(3).await?;
    ///     # let _ = receipt;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::Step`] if `body` fails or its result is too large; [`Error::DuplicateKey`], [`Error::Nested`] and
    /// [`Error::Detached`] before any effect.
    pub fn step<'c, T, F, Fut>(&'c self, name: &str, mut body: F) -> Step<'c, T>
    where
        F: FnMut() -> Fut + Send + 'c,
        Fut: Future<Output = Result<T, Failure>> + Send + 'c,
    {
        self.step_with(name, move |_| body())
    }

    /// Runs a [`step`](Self::step) whose body gets a [`StepContext`]: an idempotency key, the claim, tokens and
    /// output.
    pub fn step_with<'c, T, F, Fut>(&'c self, name: &str, mut body: F) -> Step<'c, T>
    where
        F: FnMut(StepContext) -> Fut + Send + 'c,
        Fut: Future<Output = Result<T, Failure>> + Send + 'c,
    {
        let parts = Parts {
            op: Op::new(self, name),
            body: Box::new(move |step| Box::pin(body(step))),
            retries: 0,
            backoff: Backoff::default(),
            timeout: None,
            once: false,
        };
        Step { parts: Some(parts), run: None }
    }

    /// Runs `body` at most once and records its result.
    ///
    /// The store records the beginning first, which costs a second commit. If anything interrupts the run, the next
    /// one gets [`Error::Interrupted`], and must find out by other means how far the body came. An error of `body` is
    /// recorded too, even if the handler returns it. The body is never retried.
    pub fn once<'c, T, F, Fut>(&'c self, name: &str, body: F) -> Step<'c, T>
    where
        F: FnMut() -> Fut + Send + 'c,
        Fut: Future<Output = Result<T, Failure>> + Send + 'c,
    {
        self.step(name, body).change(|parts| parts.once = true)
    }
}

/// The access of a step's body to its job: keys for the outside, tokens and output.
pub struct StepContext {
    session: Arc<Session>,
    run: Arc<JobRun>,
    key: Key,
    run_number: u32,
    /// Tells this run of the body from others.
    body: u64,
}

impl fmt::Debug for StepContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("StepContext");
        shown
            .field("run", &self.run)
            .field("key", &self.key)
            .field("run_number", &self.run_number)
            .finish_non_exhaustive()
    }
}

impl StepContext {
    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    pub(crate) fn body(&self) -> u64 {
        self.body
    }

    /// Returns a key that is the same for every run of this step of this job, and for no other step. Give it to the
    /// other side, so that it can recognize a repeat.
    pub fn idempotency_key(&self) -> String {
        format!("{}/{}", self.run.info.id, self.key)
    }

    /// Returns the job's id.
    pub fn job(&self) -> JobId {
        self.run.info.id
    }

    /// Returns the number of the claim that runs the body. It only grows: a good fence for writes to the outside.
    pub fn claim(&self) -> u32 {
        self.run.claim.number
    }

    /// Returns which run of the body in a row this is, from 1 on.
    pub fn attempt(&self) -> u32 {
        self.run_number
    }

    /// Returns when the job fails for good if it has not ended, if ever.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.run.info.deadline
    }

    /// Waits until somebody cancels the job; see [`Context::cancelled`].
    pub async fn cancelled(&self) {
        self.run.cancelled().await;
    }
}

/// A body that took too long.
#[derive(Debug, thiserror::Error)]
#[error("timed out after {0:?}")]
struct TimedOut(Duration);

impl<'c, T: Serialize + DeserializeOwned + Send + 'c> Parts<'c, T> {
    async fn run(self) -> Result<T> {
        let Parts { op, mut body, retries, backoff, timeout, once } = self;
        let limit = op.ctx.engine().bounds().step;
        let (op_key, written) = op.open().await?;
        let (session, key) = (op_key.session(), op_key.key());
        if let Some(written) = written {
            return session.replay(&op_key, written).await;
        }
        check_lease(session).await;
        if once {
            begin_once(&op_key).await?;
        }
        session.record_eager().await?;
        let mut run_number = 0;
        let result = loop {
            run_number += 1;
            check_lease(session).await;
            op_key.begin_body();
            let result = attempt(session, key, &mut body, run_number, timeout).await;
            match result {
                Err(failure) if run_number <= retries && !once && failure.control().is_none() => {
                    let rng = &*session.engine.seams().rng;
                    let pause = backoff.delay(u16::try_from(run_number).unwrap_or(u16::MAX), rng);
                    under_way::back_off(session, key, pause).await;
                }
                result => break result,
            }
        };
        let failure = match result {
            Ok(value) => {
                fault::point!("step.ran");
                match encode(value, limit) {
                    Ok((value, json)) => {
                        let entry = op_key.entry(EntryKind::Value, json);
                        if planted::is(Defect::ResultEarly) {
                            session.defer(entry, &[], false);
                        } else {
                            let (entries, forget) = (vec![entry], output::end_step(session, key));
                            let writes = Writes { entries, forget, ..Writes::default() };
                            session.record_all(writes, Vec::new()).await?;
                        }
                        return Ok(value);
                    }
                    Err(failure) => failure,
                }
            }
            Err(failure) => failure,
        };
        if !once {
            return Err(op_key.fail(failure));
        }
        let entry = op_key.entry(EntryKind::Error, error::encode(&failure));
        session.record(vec![entry], Vec::new()).await?;
        session.state().replay.keep_error(key);
        Err(error::failed(key, failure.into_error()))
    }
}

/// Records that something begins which must not be done twice.
async fn begin_once(op_key: &OpKey) -> Result<()> {
    let (session, key) = (op_key.session(), op_key.key());
    let begun = side_key(key, "begun")?;
    if session.find(&begun).is_some() {
        return Err(Error::Interrupted { key: key.clone() });
    }
    let entry = side_entry(begun, EntryKind::Begun, b"null".to_vec());
    session.record(vec![entry], Vec::new()).await
}

/// Runs the body once.
async fn attempt<T: Send>(
    session: &Arc<Session>,
    key: &Key,
    body: &mut Body<'_, T>,
    run_number: u32,
    timeout: Option<Duration>,
) -> Result<T, Failure> {
    let _busy = session.busy();
    let mut result = run_body(session, key, body, run_number, timeout).await;
    if let Some(probe) = session.probe()
        && result.is_ok()
    {
        match probe.ran(session.run().info.id, key) {
            ProbeVerdict::Keep => {}
            ProbeVerdict::Again => result = run_body(session, key, body, run_number, timeout).await,
            ProbeVerdict::Fail(why) => result = Err(Failure::from(why)),
            ProbeVerdict::Crash => {
                probe.crash();
                std::future::pending::<()>().await;
            }
        }
    }
    result
}

async fn run_body<T: Send>(
    session: &Arc<Session>,
    key: &Key,
    body: &mut Body<'_, T>,
    run_number: u32,
    timeout: Option<Duration>,
) -> Result<T, Failure> {
    let running = output::begin_body(session, key);
    let (session, key) = (Arc::clone(session), key.clone());
    let step = StepContext {
        run: session.run(),
        session: Arc::clone(&session),
        key,
        run_number,
        body: running.body(),
    };
    bounded(&session, body(step), timeout).await
}

async fn bounded<T>(
    session: &Arc<Session>,
    body: Pending<'_, Result<T, Failure>>,
    timeout: Option<Duration>,
) -> Result<T, Failure> {
    let body = InBody { session, body };
    let Some(timeout) = timeout else { return body.await };
    let clock = &session.engine.seams().clock;
    tokio::select! {
        biased;
        result = body => result,
        () = clock.sleep(timeout) => Err(BoxError::from(TimedOut(timeout)).into()),
    }
}

/// The body of a step, while it is polled.
struct InBody<'a, 'c, T> {
    session: &'a Arc<Session>,
    body: Pending<'c, Result<T, Failure>>,
}

impl<T> Future for InBody<'_, '_, T> {
    type Output = Result<T, Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut std::task::Context<'_>) -> std::task::Poll<Self::Output> {
        let session = Arc::clone(self.session);
        polled_code::within(&session, true, || self.body.as_mut().poll(context))
    }
}
