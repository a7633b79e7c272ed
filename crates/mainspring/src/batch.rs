//! Group commit: many callers, one flush.
//!
//! A caller that finds the batcher idle flushes at once, on its own task. What others hand in meanwhile gathers and is
//! flushed next. There is no timer: waiting for others always costs more than it gains. But before a flush, all tasks that can
//! run get their turn: callers that were answered together come back together, and would otherwise meet in every other
//! flush only. If others come, or if the caller is dropped in the middle of a flush, the work moves to a task of its own:
//! nobody knows when that caller is polled next.
//!
//! # Invariants
//! - At most one flush is on the way.
//! - What was handed in is flushed, whether or not its caller still waits.
//! - Nobody waits for another caller to be polled.
//! - A value that a flush hands back waits behind all others; values with one order key keep their order.

use std::collections::{BTreeSet, VecDeque};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use mainspring_core::seam::{Pending, Spawn};
use mainspring_core::store::check_outside;
use mainspring_core::{Error, Result, bounds};
use tokio::sync::oneshot;

use crate::sync::{AtomicUsize, Mutex, MutexGuard};

/// Something that weighs something in a batch.
pub(crate) trait Weight {
    /// Bytes that it adds.
    fn bytes(&self) -> usize;
    /// Values with one order key are flushed in the order in which they were handed in, even if some are handed back.
    fn order_key(&self) -> i64 {
        0
    }
}

/// What a flush did with a value.
pub(crate) enum Flushed<T, R> {
    Answered(R),
    /// It is flushed again, after the others that wait.
    Back(T),
}

struct QueuedValue<T, R> {
    value: T,
    answer: oneshot::Sender<Result<R>>,
}

/// Stores a batch: what it did with each value, in order.
type Flush<T, R> = dyn Fn(Vec<T>) -> Pending<'static, Result<Vec<Flushed<T, R>>>> + Send + Sync;

/// A place where callers meet.
pub(crate) struct Batcher<T, R> {
    shared: Arc<BatchShared<T, R>>,
}

struct BatchShared<T, R> {
    state: Mutex<BatchState<T, R>>,
    flush: Box<Flush<T, R>>,
    spawn: Arc<dyn Spawn>,
}

struct BatchState<T, R> {
    waiting: VecDeque<QueuedValue<T, R>>,
    /// Whether somebody is flushing.
    busy: bool,
    /// Counts the callers that found the batcher idle.
    turn: u64,
    /// The work of the present turn, between two polls of the caller that does it.
    unpolled: Option<Pending<'static, ()>>,
    /// Whether anybody has joined since the turn began.
    has_others: bool,
}

impl<T: Weight + Send + 'static, R: Send + 'static> Batcher<T, R> {
    /// A batcher whose batches `flush` stores: one answer per value, in order.
    pub(crate) fn new<F>(spawn: Arc<dyn Spawn>, flush: F) -> Self
    where
        F: Fn(Vec<T>) -> Pending<'static, Result<Vec<R>>> + Send + Sync + 'static,
    {
        Self::handing_back(spawn, move |values| {
            let flush = flush(values);
            Box::pin(async move { Ok(flush.await?.into_iter().map(Flushed::Answered).collect()) })
        })
    }

    /// A batcher whose `flush` may hand values back.
    pub(crate) fn handing_back<F>(spawn: Arc<dyn Spawn>, flush: F) -> Self
    where
        F: Fn(Vec<T>) -> Pending<'static, Result<Vec<Flushed<T, R>>>> + Send + Sync + 'static,
    {
        let state =
            BatchState { waiting: VecDeque::new(), busy: false, turn: 0, unpolled: None, has_others: false };
        Batcher { shared: Arc::new(BatchShared { state: Mutex::new(state), flush: Box::new(flush), spawn }) }
    }

    /// Hands a value in and waits until it is stored.
    pub(crate) async fn send(&self, value: T) -> Result<R> {
        check_outside()?;
        let (answer, mut answered) = oneshot::channel();
        let (leads, left) = self.shared.enter(QueuedValue { value, answer });
        if let Some(work) = left {
            self.shared.spawn.spawn(work);
        }
        let lead = leads.map(|turn| {
            let right = FlushRight { shared: Arc::clone(&self.shared), over: false };
            self.shared.lock().unpolled = Some(Box::pin(work(right)));
            Leader { shared: &*self.shared, turn }
        });
        let own = poll_fn(|context| {
            if let Poll::Ready(own) = Pin::new(&mut answered).poll(context) {
                return Poll::Ready(own);
            }
            match &lead {
                Some(lead) if lead.poll(context) => Pin::new(&mut answered).poll(context),
                _ => Poll::Pending,
            }
        });
        // Without an answer, the flush was dropped on its way.
        own.await.unwrap_or(Err(Error::OutcomeUnknown { source: None }))
    }
}

impl<T: Weight + Send + 'static, R: Send + 'static> Batcher<T, R> {
    /// Hands a value in, here and now; the answer comes when it is stored. What is handed in one after the other is stored
    /// in that order.
    pub(crate) fn post(&self, value: T) -> Result<oneshot::Receiver<Result<R>>> {
        check_outside()?;
        let (answer, answered) = oneshot::channel();
        let (leads, left) = self.shared.enter(QueuedValue { value, answer });
        // Nobody polls this caller for it.
        let lead = leads.map(|_| -> Pending<'static, ()> {
            Box::pin(work(FlushRight { shared: Arc::clone(&self.shared), over: false }))
        });
        if let Some(work) = lead.or(left) {
            self.shared.spawn.spawn(work);
        }
        Ok(answered)
    }
}

/// A caller that flushes on its own task. When it is dropped, the rest of its work moves to a task of its own.
struct Leader<'a, T, R> {
    shared: &'a BatchShared<T, R>,
    turn: u64,
}

impl<T, R> Leader<'_, T, R> {
    /// Polls the work, if it is still here; returns whether it was.
    fn poll(&self, context: &mut Context<'_>) -> bool {
        let Some(mut work) = self.shared.take_unpolled(self.turn) else { return false };
        if work.as_mut().poll(context).is_pending() {
            let mut state = self.shared.lock();
            if state.has_others {
                drop(state);
                self.shared.spawn.spawn(work);
            } else {
                state.unpolled = Some(work);
            }
        }
        true
    }
}

impl<T, R> Drop for Leader<'_, T, R> {
    fn drop(&mut self) {
        if let Some(work) = self.shared.take_unpolled(self.turn) {
            self.shared.spawn.spawn(work);
        }
    }
}

impl<T, R> BatchShared<T, R> {
    fn lock(&self) -> MutexGuard<'_, BatchState<T, R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a value in. Returns the number of the turn, if one begins with it; or else work that must not stay where it is:
    /// the caller that does it may itself wait for the one that comes now.
    fn enter(&self, queued: QueuedValue<T, R>) -> (Option<u64>, Option<Pending<'static, ()>>) {
        let mut state = self.lock();
        state.waiting.push_back(queued);
        state.has_others = std::mem::replace(&mut state.busy, true);
        if state.has_others {
            return (None, state.unpolled.take());
        }
        state.turn += 1;
        (Some(state.turn), None)
    }

    /// Keeps what a flush handed back; the rest is answered.
    fn sort_answers(
        &self,
        flushed: Result<Vec<Flushed<T, R>>>,
        answers: Vec<oneshot::Sender<Result<R>>>,
    ) -> (Result<Vec<R>>, Vec<oneshot::Sender<Result<R>>>)
    where
        T: Weight,
    {
        let flushed = match flushed {
            Ok(flushed) => flushed,
            Err(error) => return (Err(error), answers),
        };
        let (mut stored, mut answered, mut back) = (Vec::new(), Vec::new(), Vec::new());
        for (flushed, answer) in flushed.into_iter().zip(answers) {
            match flushed {
                Flushed::Answered(result) => {
                    stored.push(result);
                    answered.push(answer);
                }
                Flushed::Back(value) => back.push(QueuedValue { value, answer }),
            }
        }
        if !back.is_empty() {
            put_back(&mut self.lock().waiting, back);
        }
        (Ok(stored), answered)
    }

    /// Takes the work of a turn, if nobody polls it.
    fn take_unpolled(&self, turn: u64) -> Option<Pending<'static, ()>> {
        let mut state = self.lock();
        if state.turn == turn { state.unpolled.take() } else { None }
    }
}

/// Flushes until nothing waits.
async fn work<T: Weight, R>(mut right: FlushRight<T, R>) {
    loop {
        let mut turn = false;
        poll_fn(|context| {
            if std::mem::replace(&mut turn, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
        if right.is_over() {
            return;
        }
        let (values, answers) = take(&mut right.shared.lock().waiting);
        let alone = values.len() == 1;
        let flushed = (right.shared.flush)(values).await;
        let (stored, answers) = right.shared.sort_answers(flushed, answers);
        // Who was alone is not waited for: he comes back by himself, and begins a turn of his own.
        let over = alone && right.is_over();
        distribute(stored, answers);
        if over {
            return;
        }
    }
}

/// The right to flush. However it ends, by a panic or with the executor too, the next caller must find the batcher idle.
struct FlushRight<T, R> {
    shared: Arc<BatchShared<T, R>>,
    over: bool,
}

impl<T, R> FlushRight<T, R> {
    /// Ends the turn, if nothing waits.
    fn is_over(&mut self) -> bool {
        let mut state = self.shared.lock();
        self.over = state.waiting.is_empty();
        state.busy = !self.over;
        self.over
    }
}

impl<T, R> Drop for FlushRight<T, R> {
    fn drop(&mut self) {
        if !self.over {
            let waiting = {
                let mut state = self.shared.lock();
                state.busy = false;
                std::mem::take(&mut state.waiting)
            };
            for queued in waiting {
                drop(queued.answer.send(Err(Error::Closed)));
            }
        }
    }
}

/// Puts values behind all others that wait, but for those with the same order keys.
fn put_back<T: Weight, R>(waiting: &mut VecDeque<QueuedValue<T, R>>, back: Vec<QueuedValue<T, R>>) {
    let order_keys: BTreeSet<i64> = back.iter().map(|queued| queued.value.order_key()).collect();
    let is_behind = |queued: &QueuedValue<T, R>| order_keys.contains(&queued.value.order_key());
    let (behind, others): (VecDeque<_>, VecDeque<_>) = waiting.drain(..).partition(is_behind);
    *waiting = others;
    waiting.extend(back.into_iter().chain(behind));
}

/// As many as one batch may hold.
fn take<T: Weight, R>(
    waiting: &mut VecDeque<QueuedValue<T, R>>,
) -> (Vec<T>, Vec<oneshot::Sender<Result<R>>>) {
    let count = fitting(waiting.iter().map(|queued| &queued.value), bounds::BATCH);
    waiting.drain(..count).map(|QueuedValue { value, answer }| (value, answer)).unzip()
}

/// How many of these fit into one batch: at most so many, and no more than [`bounds::BATCH_BYTES`]; but one at least.
pub(crate) fn fitting<'a, T: Weight + 'a>(values: impl Iterator<Item = &'a T>, most: usize) -> usize {
    let mut bytes = 0_usize;
    let fits = |(at, value): &(usize, &T)| {
        bytes = bytes.saturating_add(value.bytes());
        *at == 0 || (*at < most && bytes <= bounds::BATCH_BYTES)
    };
    values.enumerate().take_while(fits).count()
}

/// How many values a flush may take. One that failed may have been more than the store takes in the time of a call, so the
/// next try is half of it, down to single values. It grows again with every flush that is stored: fast if that was quick, and
/// slowly otherwise, for a commit may take long whatever is in it.
#[derive(Debug)]
pub(crate) struct FlushSize(AtomicUsize);

impl Default for FlushSize {
    fn default() -> Self {
        FlushSize(AtomicUsize::new(bounds::BATCH))
    }
}

impl FlushSize {
    /// After a flush that took longer, twice as much might not come through.
    const QUICK: Duration = Duration::from_secs(1);
    /// A flush that takes longer, half of a call's time, is large enough.
    const SLOW: Duration = Duration::from_millis(2_500);

    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// So many values could not be stored together.
    pub(crate) fn failed(&self, count: usize) {
        self.0.store((count / 2).max(1), Ordering::Relaxed);
    }

    /// A flush was stored, and took this long.
    pub(crate) fn stored(&self, took: Duration) {
        let size = self.get();
        let more = if took < Self::QUICK {
            size
        } else if took < Self::SLOW {
            size / 4 + 1
        } else {
            0
        };
        self.0.store((size + more).min(bounds::BATCH), Ordering::Relaxed);
    }
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
        Error::Poisoned { why } => Error::Poisoned { why: why.clone() },
        Error::Closed => Error::Closed,
        Error::LeaseLost => Error::LeaseLost,
        Error::OutcomeUnknown { .. } => Error::OutcomeUnknown { source: None },
        Error::Corrupt { why } => Error::Corrupt { why: why.clone() },
        other => Error::Unavailable { why: other.to_string(), source: None },
    }
}

#[cfg(test)]
mod tests;
