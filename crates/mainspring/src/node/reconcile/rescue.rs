//! Expires dead nodes and gives their jobs back.
//!
//! A node may judge another by its lapsed lease only if it has itself seen the store answer, without a break, for as
//! long as that lease: otherwise an outage of the store would look like everybody's death. What counts as a break is a
//! failed call, or a gap in which a live node could have missed its renewal.

use std::time::Duration;

use mainspring_core::Result;
use mainspring_core::seam::{Clock, Pending};
use mainspring_core::store::Rescue;
use mainspring_core::time::Timestamp;
use tokio::sync::Notify;

use super::Reconciler;
use crate::node::Shared;

/// How often to look. Where the store can prove a death at once, this is how soon a dead node's jobs are back.
const EVERY: Duration = Duration::from_millis(500);

#[derive(Default)]
pub(super) struct Rescuer {
    /// When the store last answered, and since when it has done so without a break.
    steady: Option<Steady>,
}

struct Steady {
    since: Duration,
    last: Duration,
    /// The wall clock when the store last answered: leases are counted on it.
    wall: Timestamp,
    /// The longest gap in which no live node misses its renewal.
    gap: Duration,
}

impl Steady {
    /// Whether the store has answered without a break, if it is only heard again now. A machine that was suspended has
    /// had a break, too: the others could not renew either. Many monotonic clocks stand still meanwhile, so that only
    /// the wall clock tells.
    fn holds(&self, clock: &dyn Clock) -> bool {
        let silent = clock.monotonic().saturating_sub(self.last).max(clock.now().since(self.wall));
        silent <= self.gap
    }
}

impl Reconciler for Rescuer {
    const NAME: &'static str = "rescue";

    fn tick<'a>(&'a mut self, shared: &'a Shared) -> Pending<'a, Result<Duration>> {
        Box::pin(async {
            let began = shared.clock().monotonic();
            let steady = self.steady.take().filter(|steady| steady.holds(shared.clock()));
            let span = steady.as_ref().map_or(Duration::ZERO, |steady| began.saturating_sub(steady.since));
            let rescued = shared.store().rescue(Rescue { by: shared.held.node(), steady: span }).await?;
            let now = shared.clock().monotonic();
            // The answer may have been long in coming: that counts as a gap too.
            let since =
                steady.filter(|steady| steady.holds(shared.clock())).map_or(now, |steady| steady.since);
            self.steady = Some(Steady {
                since,
                last: now,
                wall: shared.clock().now(),
                gap: rescued.shortest_lease / 2,
            });
            if !rescued.expired.is_empty() {
                tracing::warn!(
                    nodes = ?rescued.expired,
                    returned = rescued.returned,
                    quarantined = rescued.quarantined,
                    "dead nodes were expired"
                );
            }
            let every = EVERY.min(shared.options.lease / 6);
            Ok(if rescued.more { Duration::ZERO } else { every })
        })
    }

    fn wake(_shared: &Shared) -> Option<&Notify> {
        None
    }
}
