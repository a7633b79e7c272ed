//! One answer from a thread to a task.
//!
//! # Invariants
//! - A sender that is dropped without an answer wakes its receiver, which then knows that none will come.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::sync::Mutex;

enum Answer<T> {
    Empty,
    Waiting(Waker),
    Full(T),
    Closed,
}

/// Gives the answer.
pub(crate) struct Sender<T>(Arc<Mutex<Answer<T>>>);

/// Waits for the answer; `None` if the sender was dropped without giving one.
pub(crate) struct Receiver<T>(Arc<Mutex<Answer<T>>>);

/// A connected pair.
pub(crate) fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let answer = Arc::new(Mutex::new(Answer::Empty));
    (Sender(Arc::clone(&answer)), Receiver(answer))
}

impl<T> Sender<T> {
    /// Gives the answer and wakes who waits for it.
    pub(crate) fn send(self, value: T) {
        self.put(Answer::Full(value));
    }

    fn put(&self, value: Answer<T>) {
        let before = {
            let mut answer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if matches!(*answer, Answer::Full(_)) {
                return;
            }
            std::mem::replace(&mut *answer, value)
        };
        if let Answer::Waiting(waker) = before {
            waker.wake();
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.put(Answer::Closed);
    }
}

impl<T> Future for Receiver<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut answer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *answer, Answer::Closed) {
            Answer::Full(value) => Poll::Ready(Some(value)),
            Answer::Closed => Poll::Ready(None),
            Answer::Empty | Answer::Waiting(_) => {
                *answer = Answer::Waiting(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll<T>(receiver: &mut Receiver<T>) -> Poll<Option<T>> {
        Pin::new(receiver).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn answer_arrives_before_or_after_the_first_poll() {
        let (sender, mut receiver) = channel();
        sender.send(7);
        assert_eq!(poll(&mut receiver), Poll::Ready(Some(7)));
        let (sender, mut receiver) = channel();
        assert_eq!(poll(&mut receiver), Poll::Pending);
        sender.send(8);
        assert_eq!(poll(&mut receiver), Poll::Ready(Some(8)));
    }

    #[test]
    fn dropped_sender_ends_the_wait() {
        let (sender, mut receiver) = channel::<()>();
        assert_eq!(poll(&mut receiver), Poll::Pending);
        drop(sender);
        assert_eq!(poll(&mut receiver), Poll::Ready(None));
    }
}
