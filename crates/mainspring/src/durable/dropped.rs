//! Operations that are dropped before their end, after they were polled.
//!
//! A handler that waits for the first of several operations, with `select!` say, drops the others. When it runs again, one of
//! those could come first: its time has come meanwhile, or its signal. Then the handler would take another path than before.
//! So the drop is recorded beside the operation, and in a later run the operation stays pending. If the handler has nothing
//! else to wait for, because something that is not recorded led it there, the operation is revived.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use mainspring_core::name::Key;
use mainspring_core::seam::Pending;

use super::session::Session;

/// Records, when it is dropped, that its operation was dropped before its end.
pub(crate) struct DropMark {
    session: Arc<Session>,
    key: Key,
    at: Option<u64>,
    /// Whether there is nothing to record: the operation has ended, or its drop is recorded already.
    settled: bool,
}

impl DropMark {
    pub(crate) fn new(session: &Arc<Session>, key: &Key) -> Self {
        DropMark { session: Arc::clone(session), key: key.clone(), at: None, settled: false }
    }
}

impl Drop for DropMark {
    fn drop(&mut self) {
        self.session.end_operation(&self.key, self.at, !self.settled);
    }
}

/// The future of an operation, which stays pending if it was dropped in an earlier run.
pub(crate) struct OpFuture<'c, T> {
    mark: Option<DropMark>,
    begun: bool,
    run: Pending<'c, T>,
}

impl<'c, T> OpFuture<'c, T> {
    pub(crate) fn new(mark: Option<DropMark>, run: Pending<'c, T>) -> Self {
        OpFuture { mark, begun: false, run }
    }
}

impl<T> Future for OpFuture<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let OpFuture { mark, begun, run } = &mut *self;
        if let Some(mark) = mark
            && !*begun
        {
            mark.settled = mark.session.was_dropped(&mark.key);
            if mark.settled {
                let own = context.waker().will_wake(&mark.session.waker);
                mark.session.shelve(&mut mark.at, (!own).then(|| context.waker().clone()));
                return Poll::Pending;
            }
        }
        *begun = true;
        let result = run.as_mut().poll(context);
        if let (Some(mark), Poll::Ready(_)) = (mark, &result) {
            mark.settled = true;
        }
        result
    }
}
