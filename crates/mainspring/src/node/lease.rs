//! Whether the node's lease has certainly lapsed, as far as this process can tell.
//!
//! A process that is stopped and continued goes on where it was: its claims may have been given away meanwhile, and the keeper
//! needs a moment to find out. The monotonic clock goes on while a process is stopped, so one look at it tells before a body
//! or a handler is begun.
//!
//! # Invariants
//! - An outage makes no lease lapse here, however long its calls take: the keeper says in time that it tries. Only a keeper
//!   that did not run for the length of a lease does.
//! - A lease that has lapsed is good again only when the store has answered a renewal.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A node's lease. The runs of its claims share it with the keeper.
#[derive(Debug)]
pub(crate) struct Lease {
    /// In microseconds.
    length: u64,
    /// Until when nobody can have found it lapsed while the keeper did its work, in microseconds of monotonic time.
    until: AtomicU64,
}

#[cfg(test)]
impl Default for Lease {
    fn default() -> Self {
        Lease::new(Duration::from_secs(15), Duration::ZERO)
    }
}

impl Lease {
    pub(crate) fn new(length: Duration, now: Duration) -> Self {
        let lease = Lease { length: micros(length), until: AtomicU64::new(0) };
        lease.kept(now);
        lease
    }

    /// A renewal that was begun at this time was answered.
    pub(crate) fn kept(&self, began: Duration) {
        self.until.fetch_max(micros(began).saturating_add(self.length), Ordering::Relaxed);
    }

    /// The keeper tries to renew it, and the store does not answer.
    pub(crate) fn tried(&self, now: Duration) {
        if micros(now) <= self.until.load(Ordering::Relaxed) {
            self.kept(now);
        }
    }

    /// Whether it has lapsed for a claim that was sent at `asked`: the store would not have given that to a node that was found
    /// dead.
    pub(crate) fn is_lapsed(&self, asked: Duration, now: Duration) -> bool {
        let since = micros(asked).saturating_add(self.length);
        micros(now) > self.until.load(Ordering::Relaxed).max(since)
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_lapses_only_when_nobody_has_kept_it_for_its_length() {
        let at = Duration::from_secs;
        let lease = Lease::new(at(15), at(100));
        assert!(!lease.is_lapsed(at(0), at(115)));
        assert!(lease.is_lapsed(at(0), at(115) + Duration::from_micros(1)));
        assert!(!lease.is_lapsed(at(101), at(116)), "claimed since");
        lease.kept(at(120));
        lease.kept(at(110));
        assert!(!lease.is_lapsed(at(0), at(135)));
        assert!(lease.is_lapsed(at(0), at(136)));
    }

    #[test]
    fn an_outage_makes_no_lease_lapse() {
        let at = Duration::from_secs;
        let lease = Lease::new(at(3), at(100));
        for now in [102, 105, 107, 110] {
            lease.tried(at(now));
            assert!(!lease.is_lapsed(at(0), at(now + 3)));
        }
        assert!(lease.is_lapsed(at(0), at(114)), "the process did not run");
    }

    #[test]
    fn only_an_answer_makes_a_lapsed_lease_good_again() {
        let at = Duration::from_secs;
        let lease = Lease::new(at(15), at(100));
        lease.tried(at(116));
        assert!(lease.is_lapsed(at(0), at(116)), "the first renewal after a stop fails");
        lease.tried(at(117));
        assert!(lease.is_lapsed(at(0), at(117)));
        lease.kept(at(118));
        assert!(!lease.is_lapsed(at(0), at(133)));
    }
}
