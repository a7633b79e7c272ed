//! The locks of this crate: those of the standard library, or in a test build with the feature `shuttle` those of
//! shuttle, whose every use is a point at which another thread may go on.
//!
//! # Invariants
//! - Whatever one thread of the store can wait for in another is from here; otherwise shuttle would not know that it
//!   waits, and stand still.
//! - What SQLite calls back into is not: shuttle must not switch threads inside of it.

#[cfg(not(all(test, feature = "shuttle")))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(all(test, feature = "shuttle")))]
pub(crate) use std::thread::park_timeout as pause;

#[cfg(all(test, feature = "shuttle"))]
pub(crate) use interleaved::{Condvar, pause};
#[cfg(all(test, feature = "shuttle"))]
pub(crate) use shuttle::sync::{Mutex, MutexGuard};

#[cfg(all(test, feature = "shuttle"))]
mod interleaved {
    //! What shuttle lacks: time.

    use std::sync::{LockResult, PoisonError};
    use std::time::Duration;

    use shuttle::rand::{Rng, thread_rng};
    use shuttle::sync::MutexGuard;

    /// Waits a moment: whoever else can run may do so.
    pub(crate) fn pause(_: Duration) {
        shuttle::thread::yield_now();
    }

    /// Whether a wait ended by the time.
    pub(crate) struct Waited(bool);

    impl Waited {
        pub(crate) fn timed_out(&self) -> bool {
            self.0
        }
    }

    /// A condition variable whose waits may time out.
    #[derive(Default)]
    pub(crate) struct Condvar(shuttle::sync::Condvar);

    impl Condvar {
        pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
            self.0.wait(guard)
        }

        /// Times out at once, or is told in time, or is told in the moment in which it times out.
        pub(crate) fn wait_timeout<'a, T>(
            &self,
            guard: MutexGuard<'a, T>,
            _: Duration,
        ) -> LockResult<(MutexGuard<'a, T>, Waited)> {
            let lot = thread_rng().gen_range(0..3);
            if lot == 0 {
                return Ok((guard, Waited(true)));
            }
            match self.0.wait(guard) {
                Ok(guard) => Ok((guard, Waited(lot == 1))),
                Err(poisoned) => Err(PoisonError::new((poisoned.into_inner(), Waited(lot == 1)))),
            }
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}
