//! Moves jobs whose time has come to `ready`.

use std::time::Duration;

use mainspring_core::seam::Pending;
use mainspring_core::{Result, bounds};
use tokio::sync::Notify;

use super::{Reconciler, again};
use crate::node::NodeShared;

pub(super) struct Promote;

impl Reconciler for Promote {
    const NAME: &'static str = "promote";

    fn tick<'a>(&'a mut self, shared: &'a NodeShared) -> Pending<'a, Result<Duration>> {
        Box::pin(async { Ok(again(shared, shared.store().promote(bounds::BATCH).await?)) })
    }

    fn wake(shared: &NodeShared) -> Option<&Notify> {
        Some(&shared.hint_router.promote)
    }
}
