//! The batcher, under callers that wait, leave, forget to poll, and lose their executor.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use mainspring_core::seam::{Pending, Spawn};
use mainspring_core::{Error, Result};
use shuttle::future::{spawn, yield_now};
use tokio::sync::oneshot;

use super::{INTERLEAVINGS, Tasks, explore, random_below, yield_point};
use crate::batch::Batcher;

/// Callers of a batcher. Each hands in up to two values.
const CALLERS: usize = 4;

#[test]
fn every_value_is_flushed_once_and_every_caller_answered() {
    explore(INTERLEAVINGS, || {
        let rig = Rig::new();
        let book = Arc::clone(&rig.book);
        rig.start_callers(move |value, answer| {
            assert!(matches!(answer, Ok(_) | Err(Error::DiskFull)), "{answer:?}");
            assert_eq!(answer.is_err(), book.lock().failed.contains(&value), "the answer of another flush");
        });
        rig.wait();
        let book = rig.book.lock();
        assert_eq!(book.flushed, book.handed, "a value was lost");
        assert!(book.begun.values().all(|times| *times == 1), "a value was flushed twice");
    });
}

#[test]
fn an_executor_that_goes_leaves_nobody_waiting_and_the_batcher_idle() {
    explore(INTERLEAVINGS / 5, || {
        let rig = Rig::new();
        let book = Arc::clone(&rig.book);
        rig.start_callers(move |value, answer| {
            let begun = book.lock().begun.contains_key(&value);
            match answer {
                Ok(_) | Err(Error::DiskFull) => assert!(begun),
                Err(Error::Closed) => assert!(!begun, "its answer says that nothing was done for it"),
                Err(error) => assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}"),
            }
        });
        let work = Arc::clone(&rig.work);
        rig.callers.spawn(Box::pin(async move {
            for _ in 0..random_below(8) {
                yield_point();
            }
            work.kill();
        }));
        rig.wait();
        assert!(rig.book.lock().begun.values().all(|times| *times == 1), "a value was flushed twice");
        let last = CALLERS * 2;
        let after = rig.batcher.send(last);
        let answer = shuttle::future::block_on(after);
        assert!(matches!(answer, Ok(_) | Err(Error::DiskFull)), "{answer:?}");
        rig.wait();
    });
}

/// What was handed in, and what was done with it.
#[derive(Default)]
struct Book(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    handed: BTreeSet<usize>,
    /// How often the flush of each value has begun.
    begun: BTreeMap<usize, usize>,
    /// Values whose flush has come to its end.
    flushed: BTreeSet<usize>,
    /// Values whose flush failed.
    failed: BTreeSet<usize>,
    /// How many flushes are on the way.
    flushing: usize,
}

impl Book {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A flush that is on the way.
struct Flushing(Arc<Book>);

impl Flushing {
    fn new(book: &Arc<Book>, values: &[usize]) -> Self {
        let mut entries = book.lock();
        entries.flushing += 1;
        assert_eq!(entries.flushing, 1, "two flushes are on the way");
        for value in values {
            *entries.begun.entry(*value).or_default() += 1;
        }
        Flushing(Arc::clone(book))
    }
}

impl Drop for Flushing {
    fn drop(&mut self) {
        self.0.lock().flushing -= 1;
    }
}

struct Rig {
    callers: Arc<Tasks>,
    work: Arc<Tasks>,
    book: Arc<Book>,
    batcher: Arc<Batcher<usize, usize>>,
}

impl Rig {
    fn new() -> Self {
        let (work, book) = (Arc::<Tasks>::default(), Arc::<Book>::default());
        let flushing = Arc::clone(&book);
        let flush = move |values: Vec<usize>| -> Pending<'static, Result<Vec<usize>>> {
            let book = Arc::clone(&flushing);
            Box::pin(async move {
                let _flushing = Flushing::new(&book, &values);
                store().await;
                book.lock().flushed.extend(&values);
                if random_below(8) == 0 {
                    book.lock().failed.extend(&values);
                    return Err(Error::DiskFull);
                }
                Ok(values.iter().map(|value| value * 2).collect())
            })
        };
        let spawn: Arc<dyn Spawn> = Arc::<Tasks>::clone(&work);
        let batcher = Arc::new(Batcher::new(spawn, flush));
        Rig { callers: Arc::default(), work, book, batcher }
    }

    /// Starts callers of all kinds; `check` looks at each answer that one of them gets.
    fn start_callers(&self, check: impl Fn(usize, Result<usize>) + Send + Sync + 'static) {
        let check = Arc::new(check);
        for caller in 0..CALLERS {
            let (batcher, book, check) =
                (Arc::clone(&self.batcher), Arc::clone(&self.book), Arc::clone(&check));
            self.callers.spawn(Box::pin(async move {
                let (first, second) = (caller * 2, caller * 2 + 1);
                let sent = |value: usize| {
                    book.lock().handed.insert(value);
                    Box::pin(batcher.send(value))
                };
                let answered = |value: usize, answer: Result<usize>| {
                    if let Ok(answer) = &answer {
                        assert_eq!(*answer, value * 2, "somebody else's answer");
                    }
                    check(value, answer);
                };
                match random_below(4) {
                    // Leaves in the middle.
                    0 => {
                        let mut leaving = sent(first);
                        for _ in 0..=random_below(3) {
                            let gone = poll_fn(|cx| Poll::Ready(leaving.as_mut().poll(cx).is_ready())).await;
                            if gone {
                                break;
                            }
                            yield_now().await;
                        }
                    }
                    // Waits for his second call while he does not poll the first.
                    1 => {
                        let mut resting = sent(first);
                        let ended = poll_fn(|cx| Poll::Ready(resting.as_mut().poll(cx))).await;
                        answered(second, sent(second).await);
                        match ended {
                            Poll::Ready(answer) => answered(first, answer),
                            Poll::Pending => answered(first, resting.await),
                        }
                    }
                    _ => {
                        answered(first, sent(first).await);
                        answered(second, sent(second).await);
                    }
                }
            }));
        }
    }

    /// Waits until all tasks have ended: this is the task that goes on when no other can.
    fn wait(&self) {
        shuttle::thread::yield_now();
        assert!(self.callers.all_ended(), "a caller waits for ever");
        assert!(self.work.all_ended(), "a flush waits for ever");
    }
}

/// What a store does with a batch: it takes some time, and another task ends it, or it is quick.
async fn store() {
    for _ in 0..random_below(3) {
        yield_now().await;
    }
    if random_below(2) == 0 {
        let (sender, end) = oneshot::channel::<()>();
        drop(spawn(async move {
            yield_point();
            drop(sender);
        }));
        drop(end.await);
    }
}
