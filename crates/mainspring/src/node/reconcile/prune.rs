//! Removes ended jobs whose retention is over.

use std::time::Duration;

use mainspring_core::seam::Pending;
use mainspring_core::{Result, bounds};
use tokio::sync::Notify;

use super::Reconciler;
use crate::node::NodeShared;

/// Retention counts in minutes at least, so once a minute is soon enough.
const EVERY: Duration = Duration::from_mins(1);
/// Between full batches: others want to write too.
const BREATH: Duration = Duration::from_millis(20);

pub(super) struct Prune;

impl Reconciler for Prune {
    const NAME: &'static str = "prune";

    fn tick<'a>(&'a mut self, shared: &'a NodeShared) -> Pending<'a, Result<Duration>> {
        Box::pin(async {
            let removed = shared.store().prune(bounds::BATCH).await?;
            Ok(if removed < bounds::BATCH { EVERY } else { BREATH })
        })
    }

    fn wake(_shared: &NodeShared) -> Option<&Notify> {
        None
    }
}
