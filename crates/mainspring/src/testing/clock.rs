//! A clock that stands still until a test moves it.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use mainspring_core::seam::{Clock, Pending};
use mainspring_core::time::Timestamp;

/// When every test begins: 2026-01-01T00:00:00Z.
const START: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);

/// A clock moved by hand. Clones are the same clock.
#[derive(Clone, Default)]
pub(super) struct ManualClock(Arc<Mutex<ClockState>>);

#[derive(Default)]
struct ClockState {
    now: Duration,
    last: u64,
    /// By when they wake, then in the order in which they fell asleep.
    sleepers: BTreeMap<(Duration, u64), Sleeper>,
}

struct Sleeper {
    /// Whether it only looks again whether there is something to do.
    idle: bool,
    waker: Option<Waker>,
}

impl ManualClock {
    fn lock(&self) -> MutexGuard<'_, ClockState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves on to a point in time; never back. Wakes all whose time has come, in the order of their times.
    pub(super) fn set(&self, now: Duration) {
        let due: Vec<Sleeper> = {
            let mut state = self.lock();
            state.now = state.now.max(now);
            let now = state.now;
            let later = state.sleepers.split_off(&(now, u64::MAX));
            std::mem::replace(&mut state.sleepers, later).into_values().collect()
        };
        // Outside of the lock: whoever wakes may look at the clock.
        for waker in due.into_iter().filter_map(|sleeper| sleeper.waker) {
            waker.wake();
        }
    }

    /// When the next one wakes.
    pub(super) fn next(&self) -> Option<Duration> {
        self.lock().sleepers.first_key_value().map(|((until, _), _)| *until)
    }

    /// When the next one wakes for whom something is due.
    pub(super) fn next_due(&self) -> Option<Duration> {
        let state = self.lock();
        state.sleepers.iter().find(|(_, sleeper)| !sleeper.idle).map(|((until, _), _)| *until)
    }

    fn fall_asleep(&self, duration: Duration, idle: bool) -> Pending<'static, ()> {
        let mut state = self.lock();
        state.last += 1;
        let key = (state.now.saturating_add(duration), state.last);
        if !duration.is_zero() {
            state.sleepers.insert(key, Sleeper { idle, waker: None });
        }
        drop(state);
        Box::pin(SleepFuture { clock: self.clone(), key })
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        START.after(self.monotonic())
    }

    fn monotonic(&self) -> Duration {
        self.lock().now
    }

    fn sleep(&self, duration: Duration) -> Pending<'static, ()> {
        self.fall_asleep(duration, false)
    }

    fn idle(&self, duration: Duration) -> Pending<'static, ()> {
        self.fall_asleep(duration, true)
    }
}

/// Sleeps until it is taken off the list.
struct SleepFuture {
    clock: ManualClock,
    key: (Duration, u64),
}

impl Future for SleepFuture {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.clock.lock().sleepers.get_mut(&self.key) {
            None => Poll::Ready(()),
            Some(sleeper) => {
                sleeper.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for SleepFuture {
    fn drop(&mut self) {
        self.clock.lock().sleepers.remove(&self.key);
    }
}
