//! The standby: it takes over, or is missing.

use std::sync::Arc;
use std::time::Duration;

use super::cluster::Cluster;
use super::{failed, outage};
use crate::postgres::Stop;
use crate::torture::wait::{wait, within};
use crate::torture::{Fault, FaultFuture, Result, World};

/// How long it takes a standby to be promoted, about, and another one to follow it.
const TAKING_OVER: Duration = Duration::from_secs(5);

pub(super) fn all(cluster: &Arc<Cluster>) -> Vec<Box<dyn Fault>> {
    vec![
        Box::new(Failover { cluster: Arc::clone(cluster) }),
        Box::new(MissingStandby { cluster: Arc::clone(cluster) }),
    ]
}

/// The primary is lost for good, and the standby takes its place.
struct Failover {
    cluster: Arc<Cluster>,
}

impl Fault for Failover {
    fn name(&self) -> String {
        "failover".into()
    }

    fn inject<'a>(&'a mut self, world: &'a mut World) -> FaultFuture<'a> {
        Box::pin(async move {
            outage(world, &self.name(), TAKING_OVER);
            let how = [None, Some(Stop::Immediate)][usize::from(world.below(2) == 0)];
            self.cluster.fail_over(how)?;
            // By themselves: the new primary has no standby yet, and is asked for none.
            world.goes_on().await?;
            self.cluster.replace_standby()?;
            Ok(true)
        })
    }
}

/// The standby is away for longer than a lease: nothing is acknowledged meanwhile.
struct MissingStandby {
    cluster: Arc<Cluster>,
}

impl MissingStandby {
    async fn inject(&self, world: &World) -> Result<bool> {
        let pair = self.cluster.pair();
        pair.standby().stop(Stop::Immediate).map_err(failed("stopping a standby"))?;
        let held = within(world.under_test().lease() * 3 / 2, async || Ok(None::<()>)).await;
        let commits =
            pair.primary().sql("postgres", "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'");
        pair.standby().start_again().map_err(failed("starting a standby again"))?;
        held?;
        wait("the standby follows", async || {
            Ok(pair.primary().has_standby().map_err(failed("asking for the standby"))?.then_some(()))
        })
        .await?;
        Ok(!commits.map_err(failed("asking for commits that wait"))?.is_empty())
    }
}

impl Fault for MissingStandby {
    fn name(&self) -> String {
        "standby away".into()
    }

    fn inject<'a>(&'a mut self, world: &'a mut World) -> FaultFuture<'a> {
        Box::pin(async move {
            outage(world, &self.name(), world.under_test().lease() * 3 / 2);
            MissingStandby::inject(self, world).await
        })
    }
}
