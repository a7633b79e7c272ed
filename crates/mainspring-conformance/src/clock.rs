//! A clock that is moved by hand.

use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use mainspring_core::seam::{Clock, Pending};
use mainspring_core::time::{Timestamp, micros};

/// Where every manual clock begins: an arbitrary day, so that no test depends on the real one.
pub const START: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

/// Time that passes only when a test says so. Clones are the same clock.
#[derive(Clone, Default)]
pub struct ManualClock {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    monotonic: Duration,
    /// How far the wall clock is ahead of [`START`] plus monotonic time, in microseconds.
    skew: i64,
    /// Who sleeps, by when they wake; the number keeps those apart that wake together.
    sleepers: BTreeMap<(Duration, u64), Waker>,
    last_sleeper: u64,
}

impl ManualClock {
    /// A clock that stands at [`START`].
    pub fn new() -> Self {
        ManualClock::default()
    }

    /// Lets time pass, and wakes everybody whose sleep is over, in order.
    pub fn advance(&self, duration: Duration) {
        let woken: Vec<Waker> = {
            let mut inner = self.lock();
            inner.monotonic += duration;
            let later = (inner.monotonic + Duration::from_nanos(1), 0);
            let later = inner.sleepers.split_off(&later);
            std::mem::replace(&mut inner.sleepers, later).into_values().collect()
        };
        // Outside of the lock: a waker may run its task at once.
        woken.into_iter().for_each(Waker::wake);
    }

    /// Sets the wall clock, forwards or backwards. Nobody wakes: sleeps count monotonic time.
    pub fn set_wall(&self, now: Timestamp) {
        let mut inner = self.lock();
        inner.skew = now.as_micros() - START.as_micros() - micros(inner.monotonic);
    }

    /// How many sleep at the moment.
    pub fn sleepers(&self) -> usize {
        self.lock().sleepers.len()
    }

    /// When the first sleeper wakes, as monotonic time.
    pub fn next_wake(&self) -> Option<Duration> {
        self.lock().sleepers.keys().next().map(|(at, _)| *at)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        let inner = self.lock();
        Timestamp::from_micros(START.as_micros() + micros(inner.monotonic) + inner.skew)
    }

    fn monotonic(&self) -> Duration {
        self.lock().monotonic
    }

    fn sleep(&self, duration: Duration) -> Pending<'static, ()> {
        let (until, number) = {
            let mut inner = self.lock();
            inner.last_sleeper += 1;
            (inner.monotonic + duration, inner.last_sleeper)
        };
        let mut sleep = Sleep { clock: self.clone(), key: (until, number) };
        Box::pin(poll_fn(move |context| sleep.poll(context.waker())))
    }
}

/// One sleep. Takes its waker away when it is dropped.
struct Sleep {
    clock: ManualClock,
    key: (Duration, u64),
}

impl Sleep {
    fn poll(&mut self, waker: &Waker) -> Poll<()> {
        let mut inner = self.clock.lock();
        if inner.monotonic >= self.key.0 {
            return Poll::Ready(());
        }
        inner.sleepers.insert(self.key, waker.clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.clock.lock().sleepers.remove(&self.key);
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ManualClock({})", self.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleepers_wake_when_their_time_has_come_and_not_before() {
        let clock = ManualClock::new();
        let mut sleep = clock.sleep(Duration::from_secs(2));
        let mut context = std::task::Context::from_waker(Waker::noop());
        assert!(sleep.as_mut().poll(&mut context).is_pending());
        assert_eq!(clock.next_wake(), Some(Duration::from_secs(2)));
        clock.advance(Duration::from_secs(1));
        assert!(sleep.as_mut().poll(&mut context).is_pending());
        clock.advance(Duration::from_secs(1));
        assert_eq!(clock.sleepers(), 0);
        assert!(sleep.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn dropped_sleep_is_forgotten() {
        let clock = ManualClock::new();
        let mut sleep = clock.sleep(Duration::from_secs(2));
        let mut context = std::task::Context::from_waker(Waker::noop());
        assert!(sleep.as_mut().poll(&mut context).is_pending());
        drop(sleep);
        assert_eq!(clock.sleepers(), 0);
    }

    #[test]
    fn wall_clock_jumps_and_monotonic_time_does_not() {
        let clock = ManualClock::new();
        clock.advance(Duration::from_secs(5));
        clock.set_wall(Timestamp::EPOCH);
        assert_eq!((clock.now(), clock.monotonic()), (Timestamp::EPOCH, Duration::from_secs(5)));
        clock.advance(Duration::from_secs(1));
        assert_eq!(clock.now(), Timestamp::EPOCH.after(Duration::from_secs(1)));
    }
}
