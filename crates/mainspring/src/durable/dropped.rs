//! Operations that are dropped before their end, after they were polled.
//!
//! A handler that waits for the first of several operations, with `select!` say, drops the others. When it runs again, one of
//! those could come first: its time has come meanwhile, or its signal. Then the handler would take another path than before.
//! So the drop is recorded beside the operation, and in a later run the operation stays pending. If the handler has nothing
//! else to wait for, because something that is not recorded led it there, the operation is revived.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use mainspring_core::Result;
use mainspring_core::journal::Written;
use mainspring_core::name::Key;
use mainspring_core::seam::Pending;

use super::key::side_key;
use super::operation::mark;
use super::session::Session;

/// Beside an operation's key: it was dropped before its end.
const DROPPED: &str = "dropped";

/// Where it is recorded that an operation was dropped.
pub(super) fn mark_key(key: &Key) -> Result<Key> {
    side_key(key, DROPPED)
}

/// Operations that were dropped in an earlier run, as a journal has them.
pub(super) fn load(entries: &BTreeMap<Key, Written>) -> BTreeSet<Key> {
    let dropped = entries.keys().filter_map(|key| key.as_str().strip_suffix(DROPPED)?.strip_suffix('#'));
    dropped.filter_map(|key| Key::new(key).ok()).collect()
}

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
        let mut state = self.session.state();
        if let Some(at) = self.at {
            state.waits.unshelve(at);
        }
        // Without room for the mark it is as if it had not been asked for.
        if !self.settled
            && !state.replay.scoped.leaves_no_drop_marks()
            && let Ok(key) = mark_key(&self.key)
        {
            state.deferred.add(mark(key), true);
        }
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
            let mut state = mark.session.state();
            mark.settled = state.replay.was_dropped(&mark.key);
            if mark.settled {
                let own = context.waker().will_wake(&mark.session.waker);
                state.waits.shelve(&mut mark.at, (!own).then(|| context.waker().clone()));
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
