//! Group commit: many callers, one flush.
//!
//! Whoever finds the batcher idle flushes at once, on his own task; what others hand in meanwhile gathers and is flushed
//! next. There is no timer: waiting for company always costs more than it gains. A caller leaves with his own answer;
//! if work is left then, or if he is dropped in the middle of a flush, the rest goes on on a task of its own.
//!
//! # Invariants
//! - At most one flush is on the way.
//! - What was handed in is flushed, whether or not its caller still waits.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mainspring_core::seam::{Pending, Spawn};
use mainspring_core::{Error, Result, bounds};
use tokio::sync::oneshot;

/// Something that weighs something in a batch.
pub(crate) trait Weight {
    /// Bytes that it adds.
    fn bytes(&self) -> usize;
}

struct Item<T, R> {
    value: T,
    answer: oneshot::Sender<Result<R>>,
}

/// Stores a batch: one answer per value, in order.
type Flush<T, R> = dyn Fn(Vec<T>) -> Pending<'static, Result<Vec<R>>> + Send + Sync;

/// A place where callers meet.
pub(crate) struct Batcher<T, R> {
    shared: Arc<Shared<T, R>>,
}

struct Shared<T, R> {
    state: Mutex<State<T, R>>,
    flush: Box<Flush<T, R>>,
    spawn: Arc<dyn Spawn>,
}

struct State<T, R> {
    waiting: VecDeque<Item<T, R>>,
    /// Whether somebody is flushing.
    busy: bool,
}

impl<T: Weight + Send + 'static, R: Send + 'static> Batcher<T, R> {
    /// A batcher whose batches `flush` stores: one answer per value, in order.
    pub(crate) fn new<F>(spawn: Arc<dyn Spawn>, flush: F) -> Self
    where
        F: Fn(Vec<T>) -> Pending<'static, Result<Vec<R>>> + Send + Sync + 'static,
    {
        let state = Mutex::new(State { waiting: VecDeque::new(), busy: false });
        Batcher { shared: Arc::new(Shared { state, flush: Box::new(flush), spawn }) }
    }

    /// Hands a value in and waits until it is stored.
    pub(crate) async fn send(&self, value: T) -> Result<R> {
        let (answer, mut answered) = oneshot::channel();
        let leads = {
            let mut state = self.shared.lock();
            state.waiting.push_back(Item { value, answer });
            !std::mem::replace(&mut state.busy, true)
        };
        let mut rest = Rest {
            work: leads.then(|| Box::pin(work(Arc::clone(&self.shared))) as Pending<'static, ()>),
            spawn: &*self.shared.spawn,
        };
        let own = tokio::select! {
            biased;
            own = &mut answered => own,
            () = rest.done() => answered.await,
        };
        own.map_err(|_| Error::Closed)?
    }
}

/// Work that is not done when its caller leaves goes on without him.
struct Rest<'a> {
    work: Option<Pending<'static, ()>>,
    spawn: &'a dyn Spawn,
}

impl Rest<'_> {
    /// Does the work, if there is any; otherwise never ends.
    async fn done(&mut self) {
        match &mut self.work {
            Some(work) => work.await,
            None => std::future::pending().await,
        }
        self.work = None;
    }
}

impl Drop for Rest<'_> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.spawn.spawn(work);
        }
    }
}

impl<T, R> Shared<T, R> {
    fn lock(&self) -> MutexGuard<'_, State<T, R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Flushes until nothing waits.
async fn work<T: Weight, R>(shared: Arc<Shared<T, R>>) {
    let mut turn = Turn { shared, over: false };
    loop {
        let (values, answers) = {
            let mut state = turn.shared.lock();
            if state.waiting.is_empty() {
                state.busy = false;
                turn.over = true;
                return;
            }
            take(&mut state.waiting)
        };
        distribute((turn.shared.flush)(values).await, answers);
    }
}

/// The right to flush. However it ends, by a panic or with the executor too, the next caller must find the batcher idle.
struct Turn<T, R> {
    shared: Arc<Shared<T, R>>,
    over: bool,
}

impl<T, R> Drop for Turn<T, R> {
    fn drop(&mut self) {
        if !self.over {
            let mut state = self.shared.lock();
            state.busy = false;
            // Those who wait are told so, by the loss of their answers.
            state.waiting.clear();
        }
    }
}

/// As many as one batch may hold.
fn take<T: Weight, R>(waiting: &mut VecDeque<Item<T, R>>) -> (Vec<T>, Vec<oneshot::Sender<Result<R>>>) {
    let (mut values, mut answers, mut bytes) = (Vec::new(), Vec::new(), 0);
    while let Some(next) = waiting.front() {
        bytes += next.value.bytes();
        let full = values.len() >= bounds::BATCH || bytes > bounds::BATCH_BYTES;
        if full && !values.is_empty() {
            break;
        }
        let Some(Item { value, answer }) = waiting.pop_front() else { break };
        values.push(value);
        answers.push(answer);
    }
    (values, answers)
}

/// Gives each caller its answer. A caller that has gone away does not want it any more.
fn distribute<R>(result: Result<Vec<R>>, answers: Vec<oneshot::Sender<Result<R>>>) {
    match result {
        Ok(results) => {
            for (answer, result) in answers.into_iter().zip(results) {
                drop(answer.send(Ok(result)));
            }
        }
        Err(error) => {
            // Errors are not `Clone`: the first caller gets the error with its cause, the others its meaning.
            let mut answers = answers.into_iter();
            let first = answers.next();
            for answer in answers {
                drop(answer.send(Err(meaning(&error))));
            }
            if let Some(answer) = first {
                drop(answer.send(Err(error)));
            }
        }
    }
}

/// The same error without its cause.
pub(crate) fn meaning(error: &Error) -> Error {
    match error {
        Error::DiskFull => Error::DiskFull,
        Error::Poisoned => Error::Poisoned,
        Error::Closed => Error::Closed,
        Error::LeaseLost => Error::LeaseLost,
        Error::OutcomeUnknown { .. } => Error::OutcomeUnknown { source: None },
        Error::Corrupt { why } => Error::Corrupt { why: why.clone() },
        other => Error::Unavailable { why: other.to_string(), source: None },
    }
}

#[cfg(test)]
mod tests;
