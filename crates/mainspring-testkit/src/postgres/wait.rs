//! Waiting for a condition with a deadline, on the real clock: servers are real processes.

use std::time::{Duration, Instant};

use super::Result;

/// Between two looks: short beside the second that a server takes to start, long beside the cost of a look.
const PAUSE: Duration = Duration::from_millis(2);

/// Looks until something is there. `None` when it is not after all of the patience.
#[expect(
    clippy::disallowed_methods,
    reason = "another process has no clock to move; the wait has a deadline"
)]
pub(super) fn until<T>(patience: Duration, mut look: impl FnMut() -> Result<Option<T>>) -> Result<Option<T>> {
    let end = Instant::now() + patience;
    loop {
        if let Some(found) = look()? {
            return Ok(Some(found));
        }
        if Instant::now() >= end {
            return Ok(None);
        }
        std::thread::sleep(PAUSE);
    }
}
