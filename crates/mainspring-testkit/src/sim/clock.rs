//! The clocks of a simulation: one time, and what everybody takes it for.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use mainspring_core::seam::{Clock, Pending};
use mainspring_core::time::{Timestamp, micros};

use crate::clock::ManualClock;

/// A clock that is wrong: it goes too fast or too slow, and its wall time may jump.
#[derive(Debug, Clone)]
pub(super) struct SkewedClock {
    base: ManualClock,
    /// How far the wall clock is off, in microseconds.
    off: Arc<AtomicI64>,
    /// How much faster than time it goes, in millionths.
    fast: i64,
}

impl SkewedClock {
    pub(super) fn new(base: &ManualClock, fast: i64) -> Self {
        SkewedClock { base: base.clone(), off: Arc::default(), fast }
    }

    /// Moves the wall clock, forwards or backwards.
    pub(super) fn jump(&self, by: i64) {
        self.off.fetch_add(by, Ordering::SeqCst);
    }
}

fn scaled(duration: Duration, millionths: i64) -> Duration {
    let micros = micros(duration);
    let scaled = i128::from(micros) * i128::from(1_000_000 + millionths) / 1_000_000;
    Duration::from_micros(u64::try_from(scaled).unwrap_or(u64::MAX))
}

impl Clock for SkewedClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.base.now().as_micros() + self.off.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Duration {
        scaled(self.base.monotonic(), self.fast)
    }

    fn sleep(&self, duration: Duration) -> Pending<'static, ()> {
        // What sleeps must have slept long enough by its own clock: rounded up, and never for nothing.
        self.base.sleep(scaled(duration, -self.fast) + Duration::from_micros(1))
    }
}
