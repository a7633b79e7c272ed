//! Outages: what a node says of a store that does not answer.
//!
//! Every part of a node tries again by itself, so a lost store fails many calls a second. The
//! log has one warning, when the first part fails, and one line when all parts have been answered again. The failures in
//! between are logged for debugging.
//!
//! # Invariants
//! - One warning per outage, whatever fails during it, and one line about its end.

use std::collections::BTreeSet;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mainspring_core::Error;

use crate::sync::{AtomicBool, Mutex, MutexGuard};

/// The target of both messages, so that a log can let through the end of an outage and leave out what else is of interest
/// to few.
const TARGET: &str = "mainspring::outage";

#[derive(Default)]
pub(super) struct Outage {
    /// Whether anything is in `state`: calls that go well look no further.
    on: AtomicBool,
    state: Mutex<OutageState>,
}

#[derive(Default)]
struct OutageState {
    /// When the first call failed, while there is an outage.
    since: Option<Duration>,
    /// Parts whose last call failed.
    failing: BTreeSet<&'static str>,
    /// When the lease was last renewed, and when that last failed.
    renewed: Option<Duration>,
    unrenewed: Option<Duration>,
}

impl Outage {
    fn lock(&self) -> MutexGuard<'_, OutageState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call of a part failed and is tried again.
    pub(super) fn failed(&self, part: &'static str, error: &Error, now: Duration) {
        let first = {
            let mut state = self.lock();
            state.failing.insert(part);
            self.on.store(true, Ordering::Relaxed);
            let first = state.since.is_none();
            state.since.get_or_insert(now);
            first
        };
        if first {
            tracing::warn!(
                target: TARGET,
                error = error as &dyn std::error::Error,
                part,
                "the store does not answer; running jobs continue, and the node keeps their outcomes"
            );
        } else {
            tracing::debug!(target: TARGET, %error, part, "the store still does not answer");
        }
    }

    /// Whether the last call of a part failed.
    pub(super) fn is_failing(&self, part: &'static str) -> bool {
        self.on.load(Ordering::Relaxed) && self.lock().failing.contains(part)
    }

    /// The lease was renewed.
    pub(super) fn renewed(&self, now: Duration) {
        self.lock().renewed = Some(now);
    }

    /// The lease could not be renewed.
    pub(super) fn unrenewed(&self, now: Duration) {
        self.lock().unrenewed = Some(now);
    }

    /// The last moment at which the lease could not be renewed, or should have been and was not. Within two thirds of a
    /// lease without a renewal nobody loses his, because all renew after one.
    pub(super) fn last_unrenewed(&self, now: Duration, lease: Duration) -> Option<Duration> {
        let state = self.lock();
        let overdue = state.renewed.is_some_and(|renewed| now.saturating_sub(renewed) > lease / 3 * 2);
        if overdue { Some(now) } else { state.unrenewed }
    }

    /// A call of a part was answered.
    pub(super) fn answered(&self, part: &'static str, now: Duration) {
        if !self.on.load(Ordering::Relaxed) {
            return;
        }
        let over = {
            let mut state = self.lock();
            state.failing.remove(part);
            if state.failing.is_empty() {
                self.on.store(false, Ordering::Relaxed);
                state.since.take()
            } else {
                None
            }
        };
        if let Some(since) = over {
            tracing::info!(
                target: TARGET,
                after = format!("{:.1}s", now.saturating_sub(since).as_secs_f64()),
                "the store answers again"
            );
        }
    }
}
