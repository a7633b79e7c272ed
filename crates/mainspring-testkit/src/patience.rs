//! Waiting for what others do: for tests with a real database or real processes, where time is real too.
//!
//! # Invariants
//! - Nothing waits for ever: [`wait`] has a deadline.

#![expect(
    clippy::disallowed_methods,
    reason = "a real database lives on the real clock and the real executor"
)]

use std::time::{Duration, Instant};

/// How long anything may take before a test gives up.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// Waits for a condition, with a deadline.
pub async fn wait<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(began.elapsed() < PATIENCE, "waited in vain until {what}");
        pause().await;
    }
}

/// Asks a store that may be away at the moment, until it answers.
pub async fn insist<T>(what: &str, mut call: impl AsyncFnMut() -> mainspring_core::Result<T>) -> T {
    wait(what, async || match call().await {
        Ok(answer) => Some(answer),
        Err(error) if error.is_retryable() => None,
        Err(error) => panic!("{what}: {error:?}"),
    })
    .await
}

/// Between two looks, without a thread of the executor.
async fn pause() {
    let look = || std::thread::park_timeout(Duration::from_millis(5));
    tokio::task::spawn_blocking(look).await.expect("a pause");
}
