//! Moves jobs whose time has come to `ready`, and wakes who fires schedules when one is due.

use std::sync::atomic::Ordering;
use std::time::Duration;

use mainspring_core::seam::Pending;
use mainspring_core::store::Swept;
use mainspring_core::time::Timestamp;
use mainspring_core::{Result, bounds};
use tokio::sync::Notify;

use super::{Reconciler, again};
use crate::node::NodeShared;

#[derive(Default)]
pub(super) struct Promote {
    /// The store's time at the last sweep.
    seen: Option<Timestamp>,
}

impl Promote {
    /// Whether schedules are to be looked at: those that are due, and all of them at first and when the store's clock goes back.
    fn schedules(&mut self, swept: Swept) -> (bool, bool) {
        let seen = self.seen.replace(swept.now);
        let all = seen.is_none_or(|seen| seen > swept.now.after(BACK));
        (swept.fire.is_some_and(|at| at <= swept.now), all && swept.fire.is_some())
    }
}

/// How far the store's clock may go back before somebody looks what that means for schedules.
const BACK: Duration = Duration::from_hours(1);

impl Reconciler for Promote {
    const NAME: &'static str = "promote";

    fn tick<'a>(&'a mut self, shared: &'a NodeShared) -> Pending<'a, Result<Duration>> {
        Box::pin(async {
            let swept = shared.store().promote(bounds::BATCH).await?;
            let (due, all) = self.schedules(swept);
            if all {
                shared.hint_router.all_schedules.store(true, Ordering::Relaxed);
            }
            if due || all {
                shared.hint_router.fire.notify_one();
            }
            let fire = swept.fire.map(|at| at.since(swept.now)).filter(|wait| !wait.is_zero());
            Ok(again(shared, swept).min(fire.unwrap_or(Duration::MAX)))
        })
    }

    fn wake(shared: &NodeShared) -> Option<&Notify> {
        Some(&shared.hint_router.promote)
    }
}
