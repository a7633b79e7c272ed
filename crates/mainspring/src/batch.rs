//! Group commit: many callers, one flush.
//!
//! Whoever finds the batcher idle flushes at once, on his own task; what others hand in meanwhile gathers and is flushed
//! next. There is no timer: waiting for company always costs more than it gains. But all who can run get their turn before
//! a flush: those who were answered together come back together, and would otherwise meet in every other flush only. As
//! soon as others come, or if he is dropped in the middle of a flush, the work goes on on a task of its own: nobody knows
//! when he is polled next.
//!
//! # Invariants
//! - At most one flush is on the way.
//! - What was handed in is flushed, whether or not its caller still waits.
//! - Nobody waits for another caller to be polled.
//! - What a flush hands back waits behind all others, in the order of its lane.

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
    /// Values of one lane are flushed in the order in which they were handed in, even if some are handed back.
    fn lane(&self) -> i64 {
        0
    }
}

/// What a flush did with a value.
pub(crate) enum Told<T, R> {
    Answered(R),
    /// It is flushed again, after the others that wait.
    Back(T),
}

struct Item<T, R> {
    value: T,
    answer: oneshot::Sender<Result<R>>,
}

/// Stores a batch: what it did with each value, in order.
type Flush<T, R> = dyn Fn(Vec<T>) -> Pending<'static, Result<Vec<Told<T, R>>>> + Send + Sync;

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
    /// Counts the callers that found the batcher idle.
    turn: u64,
    /// The work of the present turn, while it rests between two polls of the caller who does it.
    resting: Option<Pending<'static, ()>>,
    /// Whether anybody has joined since the turn began.
    company: bool,
}

impl<T: Weight + Send + 'static, R: Send + 'static> Batcher<T, R> {
    /// A batcher whose batches `flush` stores: one answer per value, in order.
    pub(crate) fn new<F>(spawn: Arc<dyn Spawn>, flush: F) -> Self
    where
        F: Fn(Vec<T>) -> Pending<'static, Result<Vec<R>>> + Send + Sync + 'static,
    {
        Self::handing_back(spawn, move |values| {
            let flush = flush(values);
            Box::pin(async move { Ok(flush.await?.into_iter().map(Told::Answered).collect()) })
        })
    }

    /// A batcher whose `flush` may hand values back.
    pub(crate) fn handing_back<F>(spawn: Arc<dyn Spawn>, flush: F) -> Self
    where
        F: Fn(Vec<T>) -> Pending<'static, Result<Vec<Told<T, R>>>> + Send + Sync + 'static,
    {
        let state = State { waiting: VecDeque::new(), busy: false, turn: 0, resting: None, company: false };
        Batcher { shared: Arc::new(Shared { state: Mutex::new(state), flush: Box::new(flush), spawn }) }
    }

    /// Hands a value in and waits until it is stored.
    pub(crate) async fn send(&self, value: T) -> Result<R> {
        check_outside()?;
        let (answer, mut answered) = oneshot::channel();
        let (leads, left) = self.shared.enter(Item { value, answer });
        if let Some(work) = left {
            self.shared.spawn.spawn(work);
        }
        let lead = leads.map(|turn| {
            let right = Right { shared: Arc::clone(&self.shared), over: false };
            self.shared.lock().resting = Some(Box::pin(work(right)));
            Lead { shared: &*self.shared, turn }
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
        let (leads, left) = self.shared.enter(Item { value, answer });
        // Nobody polls this caller for it.
        let lead = leads.map(|_| -> Pending<'static, ()> {
            Box::pin(work(Right { shared: Arc::clone(&self.shared), over: false }))
        });
        if let Some(work) = lead.or(left) {
            self.shared.spawn.spawn(work);
        }
        Ok(answered)
    }
}

/// A caller who flushes on his own task. When he leaves, what is left of his work goes on without him.
struct Lead<'a, T, R> {
    shared: &'a Shared<T, R>,
    turn: u64,
}

impl<T, R> Lead<'_, T, R> {
    /// Goes on with the work, if it is still here; whether it was.
    fn poll(&self, context: &mut Context<'_>) -> bool {
        let Some(mut work) = self.shared.take_resting(self.turn) else { return false };
        if work.as_mut().poll(context).is_pending() {
            let mut state = self.shared.lock();
            if state.company {
                drop(state);
                self.shared.spawn.spawn(work);
            } else {
                state.resting = Some(work);
            }
        }
        true
    }
}

impl<T, R> Drop for Lead<'_, T, R> {
    fn drop(&mut self) {
        if let Some(work) = self.shared.take_resting(self.turn) {
            self.shared.spawn.spawn(work);
        }
    }
}

impl<T, R> Shared<T, R> {
    fn lock(&self) -> MutexGuard<'_, State<T, R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a value in. The number of the turn, if it begins with it; or else work that must not stay where it is: a
    /// caller who does it may himself wait for the one who comes now.
    fn enter(&self, item: Item<T, R>) -> (Option<u64>, Option<Pending<'static, ()>>) {
        let mut state = self.lock();
        state.waiting.push_back(item);
        state.company = std::mem::replace(&mut state.busy, true);
        if state.company {
            return (None, state.resting.take());
        }
        state.turn += 1;
        (Some(state.turn), None)
    }

    /// Keeps what a flush handed back; the rest is answered.
    fn keep(
        &self,
        told: Result<Vec<Told<T, R>>>,
        answers: Vec<oneshot::Sender<Result<R>>>,
    ) -> (Result<Vec<R>>, Vec<oneshot::Sender<Result<R>>>)
    where
        T: Weight,
    {
        let told = match told {
            Ok(told) => told,
            Err(error) => return (Err(error), answers),
        };
        let (mut stored, mut answered, mut back) = (Vec::new(), Vec::new(), Vec::new());
        for (told, answer) in told.into_iter().zip(answers) {
            match told {
                Told::Answered(result) => {
                    stored.push(result);
                    answered.push(answer);
                }
                Told::Back(value) => back.push(Item { value, answer }),
            }
        }
        if !back.is_empty() {
            put_back(&mut self.lock().waiting, back);
        }
        (Ok(stored), answered)
    }

    /// Takes the work of a turn, if it rests.
    fn take_resting(&self, turn: u64) -> Option<Pending<'static, ()>> {
        let mut state = self.lock();
        if state.turn == turn { state.resting.take() } else { None }
    }
}

/// Flushes until nothing waits.
async fn work<T: Weight, R>(mut right: Right<T, R>) {
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
        let told = (right.shared.flush)(values).await;
        let (stored, answers) = right.shared.keep(told, answers);
        // Who was alone is not waited for: he comes back by himself, and begins a turn of his own.
        let over = alone && right.is_over();
        distribute(stored, answers);
        if over {
            return;
        }
    }
}

/// The right to flush. However it ends, by a panic or with the executor too, the next caller must find the batcher idle.
struct Right<T, R> {
    shared: Arc<Shared<T, R>>,
    over: bool,
}

impl<T, R> Right<T, R> {
    /// Ends the turn, if nothing waits.
    fn is_over(&mut self) -> bool {
        let mut state = self.shared.lock();
        self.over = state.waiting.is_empty();
        state.busy = !self.over;
        self.over
    }
}

impl<T, R> Drop for Right<T, R> {
    fn drop(&mut self) {
        if !self.over {
            let waiting = {
                let mut state = self.shared.lock();
                state.busy = false;
                std::mem::take(&mut state.waiting)
            };
            for item in waiting {
                drop(item.answer.send(Err(Error::Closed)));
            }
        }
    }
}

/// Puts values behind all others that wait, but for those of the same lanes.
fn put_back<T: Weight, R>(waiting: &mut VecDeque<Item<T, R>>, back: Vec<Item<T, R>>) {
    let lanes: BTreeSet<i64> = back.iter().map(|item| item.value.lane()).collect();
    let is_behind = |item: &Item<T, R>| lanes.contains(&item.value.lane());
    let (behind, others): (VecDeque<_>, VecDeque<_>) = waiting.drain(..).partition(is_behind);
    *waiting = others;
    waiting.extend(back.into_iter().chain(behind));
}

/// As many as one batch may hold.
fn take<T: Weight, R>(waiting: &mut VecDeque<Item<T, R>>) -> (Vec<T>, Vec<oneshot::Sender<Result<R>>>) {
    let count = fitting(waiting.iter().map(|item| &item.value), bounds::BATCH);
    waiting.drain(..count).map(|Item { value, answer }| (value, answer)).unzip()
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
