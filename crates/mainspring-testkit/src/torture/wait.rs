//! Waiting for a condition with a deadline, on the real clock: victims are real processes.

#![expect(
    clippy::disallowed_methods,
    reason = "other processes have no clock to move; every wait has a deadline"
)]

use std::time::{Duration, Instant, SystemTime};

use mainspring_core::time::Timestamp;

use super::{Error, Result};

/// How long anything may take before a run is given up.
pub use crate::patience::PATIENCE;
/// Between two looks: short beside a process's start, long beside the cost of a look.
const PAUSE: Duration = Duration::from_millis(5);

/// Waits until there is something to return.
///
/// # Errors
/// [`Error::InVain`] after [`PATIENCE`], and what the condition fails with.
pub async fn wait<T>(what: &str, mut condition: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    within(PATIENCE, &mut condition).await?.ok_or_else(|| Error::InVain(what.into()))
}

/// Waits until there is something to return, or the time is up.
pub(super) async fn within<T>(
    patience: Duration,
    mut condition: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<Option<T>> {
    let began = Instant::now();
    loop {
        if let Some(value) = condition().await? {
            return Ok(Some(value));
        }
        if began.elapsed() >= patience {
            return Ok(None);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The time of the machine, which all ledgers are written by.
pub(super) fn now() -> Timestamp {
    SystemTime::now().into()
}

/// Asks a store that may be away at the moment, until it answers.
///
/// # Errors
/// [`Error::InVain`] after [`PATIENCE`], [`Error::Store`] with an answer that no repeat will mend.
pub(super) async fn insist<T>(
    what: &str,
    mut call: impl AsyncFnMut() -> mainspring_core::Result<T>,
) -> Result<T> {
    wait(what, async || match call().await {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.is_retryable() => Ok(None),
        Err(error) => Err(Error::store(what)(error)),
    })
    .await
}
