//! The runner: one task per busy slot, one job after the other.
//!
//! The handler is polled inside of the task, with its panics caught, next to the reasons to stop it: a cancellation, its
//! time-out, its deadline, the node's shutdown, the loss of the lease. Whatever ends the run is settled by core and
//! handed to the finisher; the slot then takes the next job.
//!
//! # Invariants
//! - A slot is free only when its handler's future has ended or been dropped: no second copy runs beside a live one.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use mainspring_core::failure::Failure;
use mainspring_core::fault;
use mainspring_core::job::{Ended, Fault, FaultKind, Outcome, Standing, settle};
use mainspring_core::journal::{Journal, Value};
use mainspring_core::seam::Pending;
use tracing::Instrument;

use super::NodeShared;
use super::slot_table::UnstartedJob;
use crate::context::Context;
use crate::durable::activation::Activation;
use crate::durable::session::Session;
use crate::handler::{Broken, Handler, Payload};
use crate::job_run::{Interrupt, JobRun, Stop};
use crate::layer::Inner;
use crate::panic::{caught, caught_sync, drop_caught};

pub(super) async fn run(shared: Arc<NodeShared>, queue: usize, work: UnstartedJob) {
    let mut next = Some(work);
    while let Some(work) = next {
        let began = shared.clock().monotonic();
        let run = Arc::clone(&work.run);
        run.begin(began);
        let mut session = None;
        // User code runs in more places than its handler's polls: layers, errors, drops. None may cost the slot.
        let ended = caught(std::pin::pin!(execute(&shared, work, &mut session))).await;
        run.end();
        fault::point!("node.ended");
        let ended = ended.unwrap_or_else(|message| Some(panicked(message)));
        if let Some(ended) = await_recordings(&run, session, ended).await {
            shared.finish(&run, outcome(&shared, &run, ended));
        } else {
            tracing::warn!(job_id = %run.info.id, kind = %run.info.kind, claim = run.claim.number, "job abandoned: the node lost its lease");
            shared.slot_table.cleared(&run.claim);
        }
        let took = shared.clock().monotonic().saturating_sub(began);
        next = shared.slot_table.next(queue, took);
        // Handlers that never wait would otherwise keep the executor to themselves.
        tokio::task::consume_budget().await;
    }
}

/// Waits until the store has answered all recordings of a handler, however it ended: the job's end must not overtake them.
/// Returns `None` if the claim is lost meanwhile.
async fn await_recordings(
    run: &JobRun,
    session: Option<Arc<Session>>,
    ended: Option<Ended>,
) -> Option<Ended> {
    if let (Some(_), Some(session)) = (&ended, session) {
        tokio::select! {
            biased;
            () = run.abandoned() => {
                drop_caught(ended);
                return None;
            }
            () = session.wait_for_answers() => {}
        }
    }
    ended
}

/// What is written for a run. Looking at an error is looking at user code, so that this too may panic.
fn outcome(shared: &NodeShared, run: &JobRun, ended: Ended) -> Outcome {
    let options = run.info.options();
    let standing = Standing {
        failures: run.info.attempt - 1,
        max_attempts: options.max_attempts,
        backoff: options.backoff.unwrap_or_default(),
    };
    let rng = &*shared.engine.seams().rng;
    caught_sync(|| settle(ended, &standing, rng))
        .unwrap_or_else(|message| settle(panicked(message), &standing, rng))
}

fn panicked(message: String) -> Ended {
    Ended::Fault(Fault::new(FaultKind::Panic, message))
}

/// Runs a job to its end; `None` if its outcome is nobody's business any more. Its session outlives it, and panics.
async fn execute(
    shared: &Arc<NodeShared>,
    work: UnstartedJob,
    session: &mut Option<Arc<Session>>,
) -> Option<Ended> {
    let UnstartedJob { run, input, journal, ahead: _ } = work;
    if let Some(stop) = run.stop_reason() {
        return stopped(stop);
    }
    let now = shared.clock().monotonic();
    if run.is_lapsed(now) {
        tracing::warn!(job_id = %run.info.id, kind = %run.info.kind, "job not started: the process was paused for longer than its lease");
        return stopped(Stop::Release);
    }
    if run.until_deadline(now).is_some_and(|left| left.is_zero()) {
        return Some(Ended::Expired);
    }
    let Some(handler) = shared.handlers.get(&run.info.kind) else {
        tracing::error!(job_id = %run.info.id, kind = %run.info.kind, "claimed a job of a kind without a handler");
        return Some(Ended::Released);
    };
    let cached = shared.handler_cache.take(&run.claim);
    let input = match input {
        // A handler that goes on has had its input.
        _ if cached.is_some() => Vec::new(),
        Value::Here(input) => input,
        Value::There(bytes) => match fetch(shared, &run, bytes).await {
            Ok(input) => input,
            Err(ended) => return ended,
        },
    };
    shared.hooks.started(&run.info);
    let activation = if let Some(cached) = cached {
        cached.session.resume(Arc::clone(&run), journal);
        *session = Some(Arc::clone(&cached.session));
        cached
    } else {
        let session = session.insert(open(shared, &run, journal));
        match begin(shared, &**handler, &run, input, session) {
            Ok(future) => Activation { session: Arc::clone(session), future },
            Err(message) => return Some(panicked(message)),
        }
    };
    let info = &run.info;
    let span = tracing::info_span!(
        "job", job_id = %info.id, kind = %info.kind, queue = %info.queue, attempt = info.attempt, claim = info.claim
    );
    drive(shared, &run, activation).instrument(span).await
}

/// Reads the input of a job that is about to begin; or how it ends if that cannot be.
async fn fetch(shared: &NodeShared, run: &JobRun, bytes: usize) -> Result<Vec<u8>, Option<Ended>> {
    run.read();
    tokio::select! {
        biased;
        stop = run.stop_requested() => Err(stopped(stop)),
        input = shared.inputs.read(shared, run, bytes) => match input {
            // The handler has its time from now on.
            Ok(Some(input)) => {
                run.begin(shared.clock().monotonic());
                Ok(input)
            }
            // The job went with its claim.
            Ok(None) => Err(Some(Ended::Released)),
            Err(error) => {
                let message = format!("the input could not be read: {error}");
                Err(Some(Ended::Fault(Fault::new(FaultKind::Convert, message))))
            }
        }
    }
}

/// What a handler that begins from its top knows of its job's past.
fn open(shared: &NodeShared, run: &Arc<JobRun>, journal: Option<Box<Journal>>) -> Arc<Session> {
    let (recorder, probe) = (Arc::clone(&shared.recorder), shared.probe.clone());
    let staged = probe.as_deref().and_then(|probe| probe.journal(run.info.id));
    let journal = staged.map(Box::new).or(journal);
    Session::new(shared.engine.clone(), recorder, probe, Arc::clone(run), journal)
}

/// Calls a handler, from its top.
fn begin(
    shared: &NodeShared,
    handler: &dyn Handler,
    run: &Arc<JobRun>,
    input: Vec<u8>,
    session: &Arc<Session>,
) -> Result<Pending<'static, Ended>, String> {
    let ctx = Context::new(Arc::clone(session), Arc::clone(&shared.states));
    // A handler that is not an async function may panic before it returns its future.
    let future = {
        let _in_poll = run.in_poll();
        caught_sync(|| handler.call(ctx, input))?
    };
    Ok(if shared.layers.is_empty() {
        Box::pin(async move { caught(future).await.map_or_else(panicked, plain) })
    } else {
        let future = layered(shared, run, future);
        Box::pin(async move { caught(future).await.map_or_else(panicked, erased) })
    })
}

fn plain(result: Result<Payload, Broken>) -> Ended {
    match result {
        Ok(result) => Ended::Ok(result),
        Err(Broken::Failure(failure)) => Ended::Err(failure),
        Err(Broken::Fault(fault)) => Ended::Fault(fault),
    }
}

/// Layers see failures only; a fault travels through them as an error and is found again behind them.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.message)]
struct FaultError(Fault);

fn erased(result: Result<Payload, Failure>) -> Ended {
    match result {
        Ok(result) => Ended::Ok(result),
        Err(failure) => match failure.error().downcast_ref::<FaultError>() {
            Some(FaultError(fault)) => Ended::Fault(fault.clone()),
            None => Ended::Err(failure),
        },
    }
}

/// Puts all layers around a run, the first that was added outermost.
fn layered(shared: &NodeShared, run: &JobRun, future: Pending<'static, Result<Payload, Broken>>) -> Inner {
    let innermost: Inner = Box::pin(async move {
        future.await.map_err(|broken| match broken {
            Broken::Failure(failure) => failure,
            Broken::Fault(fault) => Failure::from(FaultError(fault)),
        })
    });
    shared.layers.iter().rev().fold(innermost, |inner, layer| layer.wrap(Arc::clone(&run.info), inner))
}

/// Runs a handler until it ends, waits or is to stop, and drops it or sets it aside: only then is the slot free.
async fn drive(shared: &NodeShared, run: &JobRun, mut activation: Activation) -> Option<Ended> {
    let ended = poll(shared, run, &mut activation).await;
    match &ended {
        // One that does not fit its records will not fit them any better.
        Some(Ended::Suspended(suspension)) if suspension.reason.awaits() => {
            shared.handler_cache.add(&run.claim, activation, shared.clock().monotonic());
        }
        Some(Ended::Err(failure)) => {
            tokio::select! {
                biased;
                result = activation.session.take_back(failure) => if let Err(error) = result {
                    tracing::warn!(%error, job_id = %run.info.id, "cannot remove recorded errors");
                },
                () = run.must_go() => {}
            }
            drop_caught(activation);
        }
        _ => drop_caught(activation),
    }
    ended
}

/// Polls a handler next to everything that may stop it.
async fn poll(shared: &NodeShared, run: &JobRun, activation: &mut Activation) -> Option<Ended> {
    let limit = TimeLimit::of(shared, run);
    let session = Arc::clone(&activation.session);
    let mut result = std::pin::pin!(activation.run());
    let mut passes = std::pin::pin!(limit.passes(shared));
    let mut draining = false;
    let stop = loop {
        tokio::select! {
            biased;
            ended = &mut result => return overruled(ended, run),
            interrupt = run.interrupted(draining) => match interrupt {
                Interrupt::Stop(stop) => break stop,
                // The handler looks again: it may watch for this.
                Interrupt::Drain => {
                    draining = true;
                    session.waker.wake_by_ref();
                }
            },
            () = &mut passes => return Some(limit.ended()),
        }
    };
    if matches!(stop, Stop::Cancel(_)) && run.is_cooperative() {
        session.wake_waits();
        tokio::select! {
            biased;
            ended = &mut result => return overruled(ended, run),
            () = run.must_go() => {}
            () = shared.clock().sleep(shared.options.cancel_grace) => {}
        }
    }
    stopped(run.stop_reason().unwrap_or(stop))
}

/// A success counts even if somebody wanted the job to stop; a failure then is how it stopped.
fn overruled(ended: Ended, run: &JobRun) -> Option<Ended> {
    match (ended, run.stop_reason()) {
        (_, Some(Stop::Abandon)) => None,
        (Ended::Err(_) | Ended::Fault(_), Some(stop)) => stopped(stop),
        (ended, _) => Some(ended),
    }
}

fn stopped(stop: Stop) -> Option<Ended> {
    match stop {
        Stop::Cancel(why) => Some(Ended::Stopped(why)),
        Stop::Release => Some(Ended::Released),
        Stop::Abandon => None,
    }
}

/// What ends a run when time passes: its time-out or its deadline, whichever comes first.
enum TimeLimit {
    Never,
    Timeout(Duration),
    Deadline(Duration),
}

impl TimeLimit {
    fn of(shared: &NodeShared, run: &JobRun) -> Self {
        let deadline = run.until_deadline(shared.clock().monotonic());
        match (run.info.timeout(), deadline) {
            (None, None) => TimeLimit::Never,
            (Some(timeout), None) => TimeLimit::Timeout(timeout),
            (Some(timeout), Some(deadline)) if timeout <= deadline => TimeLimit::Timeout(timeout),
            (_, Some(deadline)) => TimeLimit::Deadline(deadline),
        }
    }

    fn passes(&self, shared: &NodeShared) -> impl Future<Output = ()> + use<> {
        let sleep = match self {
            TimeLimit::Never => None,
            TimeLimit::Timeout(duration) | TimeLimit::Deadline(duration) => {
                Some(shared.clock().sleep(*duration))
            }
        };
        async move {
            match sleep {
                Some(sleep) => sleep.await,
                None => std::future::pending().await,
            }
        }
    }

    fn ended(&self) -> Ended {
        match self {
            TimeLimit::Timeout(timeout) => {
                Ended::Fault(Fault::new(FaultKind::Timeout, format!("timed out after {timeout:?}")))
            }
            TimeLimit::Deadline(_) | TimeLimit::Never => Ended::Expired,
        }
    }
}
