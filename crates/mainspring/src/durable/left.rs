//! Operations that are given up: polled, and dropped before their end.
//!
//! Whoever waits for the first of several, with `select!` say, drops the others. When the handler runs again one of those
//! could come first: its time has come meanwhile, or its signal. Then the handler would take another way than before. So
//! that an operation was given up is recorded beside it, and in a later run it does not end, nor begin. Only if the
//! handler has nothing else to wait for, because it came there by something that is not recorded, does it come back.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use mainspring_core::name::Key;

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

/// Does an operation, unless it was given up in an earlier run.
pub(crate) async fn kept<T>(left: Option<Left>, run: impl Future<Output = T>) -> T {
    let Some(mut left) = left else { return run.await };
    if left.session.is_left(&left.key) {
        left.over = true;
        poll_fn(|context| {
            if !left.session.is_left(&left.key) {
                return Poll::Ready(());
            }
            let own = context.waker().will_wake(&left.session.waker);
            left.session.lie(&mut left.at, (!own).then(|| context.waker().clone()));
            Poll::Pending
        })
        .await;
        left.over = false;
    }
    let result = run.await;
    left.over = true;
    result
}
