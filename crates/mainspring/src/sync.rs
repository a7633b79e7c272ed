//! The locks and atomics of this crate: those of the standard library, or in a test build with the feature `shuttle` those
//! of shuttle, whose every use is a point at which another task may go on.
//!
//! # Invariants
//! - What tasks of the engine share under a lock is from here; otherwise shuttle could switch tasks while it is held, and
//!   stand still. Tokio's primitives never hold a lock while they run foreign code, so that each use of them is one step.

#[cfg(not(all(test, feature = "shuttle")))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize};
#[cfg(not(all(test, feature = "shuttle")))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(all(test, feature = "shuttle"))]
pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize};
#[cfg(all(test, feature = "shuttle"))]
pub(crate) use shuttle::sync::{Mutex, MutexGuard};
