//! Which code is being polled.
//!
//! Durable operations belong to the handler itself: a call inside the body of a step would be recorded although the body
//! is not, and a call from another task could outlive its claim. Both are refused before they have any effect. What is
//! being polled is noted around each poll of a handler and of a body, on the thread that does it.

use std::cell::Cell;
use std::sync::Arc;

use mainspring_core::name::Key;
use mainspring_core::{Error, Result};

use super::session::Session;

/// What a thread polls at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Polled {
    /// The address of its session: another one cannot have it while this is being polled.
    session: usize,
    body: bool,
}

thread_local! {
    static POLLED: Cell<Option<Polled>> = const { Cell::new(None) };
}

/// Restores what was noted before, also after a panic.
struct Restore(Option<Polled>);

impl Drop for Restore {
    fn drop(&mut self) {
        POLLED.set(self.0);
    }
}

/// Polls a handler, or a body of one of its steps.
pub(crate) fn within<T>(session: &Arc<Session>, body: bool, poll: impl FnOnce() -> T) -> T {
    let _restore = Restore(POLLED.replace(Some(Polled { session: address(session), body })));
    poll()
}

/// Refuses an operation that is not where it may be.
pub(crate) fn check(session: &Arc<Session>, key: &Key) -> Result<()> {
    match POLLED.get() {
        Some(polled) if polled.session == address(session) && !polled.body => Ok(()),
        Some(polled) if polled.session == address(session) => Err(Error::Nested { key: key.clone() }),
        _ => Err(Error::Detached { key: key.clone() }),
    }
}

fn address(session: &Arc<Session>) -> usize {
    Arc::as_ptr(session).addr()
}
