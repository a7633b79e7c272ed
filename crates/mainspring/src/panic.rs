//! Panics, caught where user code is polled.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::Poll;

/// Polls a future to its end, or to its panic, whose message is the error.
///
/// The future is not polled again after a panic, and whatever it had borrowed is only dropped.
pub(crate) async fn caught<F: Future + Unpin>(mut future: F) -> Result<F::Output, String> {
    std::future::poll_fn(move |cx| match catch_unwind(AssertUnwindSafe(|| Pin::new(&mut future).poll(cx))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
        Err(panic) => Poll::Ready(Err(message(panic))),
    })
    .await
}

/// Runs a closure to its end or to its panic, whose message is the error.
pub(crate) fn caught_sync<T>(body: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(body)).map_err(message)
}

/// Drops a value whose `Drop` may panic.
pub(crate) fn drop_caught<T>(value: T) {
    if let Err(message) = caught_sync(move || drop(value)) {
        tracing::error!(message, "handler panicked while it was dropped");
    }
}

fn message(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    // Whatever was thrown is user code too: its drop may throw again.
    if catch_unwind(AssertUnwindSafe(|| drop(panic))).is_err() {
        tracing::error!("payload of a panic panicked while it was dropped");
    }
    text.unwrap_or_else(|| "a panic without a message".to_owned())
}
