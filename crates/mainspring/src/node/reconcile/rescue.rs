//! Expires dead nodes and gives their jobs back.
//!
//! A node may judge another by its lapsed lease only if it has itself seen the store answer, without a break, for as
//! long as that lease: otherwise an outage of the store would look like everybody's death. What counts as a break is a
//! failed call, a gap in which a live node could have missed its renewal, or a renewal of its own that failed: a rescue
//! that finds nobody writes nothing, and goes well on a disk that is full.

use std::time::Duration;

use mainspring_core::Result;
use mainspring_core::planted::{self, Defect};
use mainspring_core::seam::Pending;
use mainspring_core::store::Rescue;
use mainspring_core::time::Timestamp;
use tokio::sync::Notify;

use super::Reconciler;
use crate::node::NodeShared;

/// How often to look. Where the store can prove a death at once, this is how soon a dead node's jobs are back.
const EVERY: Duration = Duration::from_millis(500);

#[derive(Default)]
pub(super) struct Rescuer {
    /// When the store last answered, and since when it has done so without a break.
    steady: Option<Steady>,
}

struct Steady {
    since: Duration,
    /// When the store last answered, by its own time.
    seen: Timestamp,
    /// The longest silence in which no live node misses its renewal.
    gap: Duration,
}

impl Reconciler for Rescuer {
    const NAME: &'static str = "rescue";

    /// How soon the dead are judged counts from the store's return, so that must be noticed at once.
    const PATIENCE: Duration = EVERY;

    fn tick<'a>(&'a mut self, shared: &'a NodeShared) -> Pending<'a, Result<Duration>> {
        Box::pin(async {
            // A call that fails leaves nothing behind: that is a break.
            let mut steady = self.steady.take();
            let began = shared.clock().monotonic();
            let unrenewed = shared.outage.last_unrenewed(began, shared.options.lease);
            if let (Some(steady), Some(unrenewed)) = (&mut steady, unrenewed) {
                steady.since = steady.since.max(unrenewed);
            }
            let span = steady.as_ref().map_or(Duration::ZERO, |steady| began.saturating_sub(steady.since));
            let seen = steady.as_ref().map_or(Timestamp::EPOCH, |steady| steady.seen);
            let mut rescue = Rescue { by: shared.held.node(), steady: span, seen };
            if planted::is(Defect::BlindRescue) {
                rescue = Rescue { steady: Duration::MAX, seen: Timestamp::from_micros(i64::MAX), ..rescue };
            }
            let rescued = shared.store().rescue(rescue).await?;
            // So is a silence in the store's own time: its calls hung, its clock jumped, or the machine was suspended,
            // and the others could not renew either.
            let unbroken = steady.filter(|steady| rescued.now.since(steady.seen) <= steady.gap);
            let since = unbroken.map_or_else(|| shared.clock().monotonic(), |steady| steady.since);
            self.steady = Some(Steady { since, seen: rescued.now, gap: rescued.shortest_lease / 2 });
            if !rescued.expired.is_empty() {
                let nodes: Vec<_> = rescued.expired.iter().map(ToString::to_string).collect();
                tracing::warn!(
                    nodes = nodes.join(", "),
                    returned = rescued.returned,
                    quarantined = rescued.quarantined,
                    "expired dead nodes and gave back their jobs"
                );
            }
            let every = EVERY.min(shared.options.lease / 6);
            Ok(if rescued.more { Duration::ZERO } else { every })
        })
    }

    fn wake(_shared: &NodeShared) -> Option<&Notify> {
        None
    }
}
