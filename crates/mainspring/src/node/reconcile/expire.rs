//! Fails waiting jobs whose deadline has passed.

use std::time::Duration;

use mainspring_core::seam::Pending;
use mainspring_core::{Result, bounds};
use tokio::sync::Notify;

use super::{Reconciler, again};
use crate::node::NodeShared;

pub(super) struct Expire;

impl Reconciler for Expire {
    const NAME: &'static str = "expire";

    fn tick<'a>(&'a mut self, shared: &'a NodeShared) -> Pending<'a, Result<Duration>> {
        Box::pin(async { Ok(again(shared, shared.store().expire(bounds::BATCH).await?)) })
    }

    fn wake(shared: &NodeShared) -> Option<&Notify> {
        Some(&shared.hint_router.expire)
    }
}
