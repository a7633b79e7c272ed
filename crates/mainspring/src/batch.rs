//! Group commit: many callers, one flush.
//!
//! A batcher flushes at once when it is idle, and while a flush is in flight the next batch gathers behind it. There is
//! no timer: waiting for company always costs more than it gains.

use std::sync::Arc;

use mainspring_core::seam::{Pending, Spawn};
use mainspring_core::{Error, Result, bounds};
use tokio::sync::{mpsc, oneshot};

/// Something that weighs something in a batch.
pub(crate) trait Weight {
    /// Bytes that it adds.
    fn bytes(&self) -> usize;
}

struct Item<T, R> {
    value: T,
    answer: oneshot::Sender<Result<R>>,
}

/// The sending end of a batcher, cheap to clone. The batcher ends with its last sender.
pub(crate) struct Batcher<T, R> {
    items: mpsc::UnboundedSender<Item<T, R>>,
}

impl<T, R> Clone for Batcher<T, R> {
    fn clone(&self) -> Self {
        Batcher { items: self.items.clone() }
    }
}

impl<T, R> Batcher<T, R>
where
    T: Weight + Send + 'static,
    R: Send + 'static,
{
    /// Starts a batcher whose batches `flush` stores: one answer per value, in order.
    pub(crate) fn start<F>(spawn: &dyn Spawn, flush: F) -> Self
    where
        F: Fn(Vec<T>) -> Pending<'static, Result<Vec<R>>> + Send + Sync + 'static,
    {
        let (items, receiver) = mpsc::unbounded_channel();
        spawn.spawn(Box::pin(run(receiver, Arc::new(flush))));
        Batcher { items }
    }

    /// Hands a value in and waits until it is stored.
    pub(crate) async fn send(&self, value: T) -> Result<R> {
        let (answer, answered) = oneshot::channel();
        self.items.send(Item { value, answer }).map_err(|_| Error::Closed)?;
        answered.await.map_err(|_| Error::Closed)?
    }
}

async fn run<T: Weight, R>(
    mut items: mpsc::UnboundedReceiver<Item<T, R>>,
    flush: Arc<impl Fn(Vec<T>) -> Pending<'static, Result<Vec<R>>> + ?Sized>,
) {
    let mut carried: Option<Item<T, R>> = None;
    loop {
        let first = match carried.take() {
            Some(item) => item,
            None => match items.recv().await {
                Some(item) => item,
                None => return,
            },
        };
        let mut bytes = first.value.bytes();
        let (mut values, mut answers) = (vec![first.value], vec![first.answer]);
        while values.len() < bounds::BATCH {
            let Ok(item) = items.try_recv() else { break };
            bytes += item.value.bytes();
            if bytes > bounds::BATCH_BYTES {
                carried = Some(item);
                break;
            }
            values.push(item.value);
            answers.push(item.answer);
        }
        distribute(flush(values).await, answers);
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
        Error::Poisoned => Error::Poisoned,
        Error::Closed => Error::Closed,
        Error::LeaseLost => Error::LeaseLost,
        Error::OutcomeUnknown { .. } => Error::OutcomeUnknown { source: None },
        Error::Corrupt { why } => Error::Corrupt { why: why.clone() },
        other => Error::Unavailable { why: other.to_string(), source: None },
    }
}
