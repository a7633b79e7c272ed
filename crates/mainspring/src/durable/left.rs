//! Operations that are given up: polled, and dropped before their end.
//!
//! Whoever waits for the first of several, with `select!` say, drops the others. When the handler runs again one of those
//! could come first: its time has come meanwhile, or its signal. Then the handler would take another way than before. So
//! that an operation was given up is recorded beside it, and in a later run it does not end, nor begin. Only if the
//! handler has nothing else to wait for, because it came there by something that is not recorded, does it come back.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use mainspring_core::name::Key;
use mainspring_core::seam::Pending;

use super::session::Session;

/// An operation that may be given up.
pub(crate) struct Left {
    session: Arc<Session>,
    key: Key,
    at: Option<u64>,
    /// Whether there is nothing to be noted: it has ended, or that it was given up is known.
    over: bool,
}

impl Left {
    pub(crate) fn new(session: &Arc<Session>, key: &Key) -> Self {
        Left { session: Arc::clone(session), key: key.clone(), at: None, over: false }
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        self.session.leave(&self.key, self.at, !self.over);
    }
}

/// An operation, which is done unless it was given up in an earlier run.
pub(crate) struct Kept<'c, T> {
    left: Option<Left>,
    begun: bool,
    run: Pending<'c, T>,
}

impl<'c, T> Kept<'c, T> {
    pub(crate) fn new(left: Option<Left>, run: Pending<'c, T>) -> Self {
        Kept { left, begun: false, run }
    }
}

impl<T> Future for Kept<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Kept { left, begun, run } = &mut *self;
        if let Some(left) = left
            && !*begun
        {
            left.over = left.session.is_left(&left.key);
            if left.over {
                let own = context.waker().will_wake(&left.session.waker);
                left.session.lie(&mut left.at, (!own).then(|| context.waker().clone()));
                return Poll::Pending;
            }
        }
        *begun = true;
        let result = run.as_mut().poll(context);
        if let (Some(left), Poll::Ready(_)) = (left, &result) {
            left.over = true;
        }
        result
    }
}
