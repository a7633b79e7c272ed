//! One worker that is cut off while all others are well: it is taken for dead, and must find out.

use std::sync::Arc;

use mainspring_core::store::NodeState;

use super::cluster::Cluster;
use super::now;
use crate::history::Fact;
use crate::torture::wait::{wait, within};
use crate::torture::{Error, Fault, FaultFuture, Result, Role, VictimOptions, World};

/// Starts a worker behind two proxies of its own and lets these swallow everything for longer than its lease.
pub(super) struct Partition {
    cluster: Arc<Cluster>,
    database: String,
}

impl Partition {
    pub(super) fn new(cluster: &Arc<Cluster>, database: &str) -> Self {
        Partition { cluster: Arc::clone(cluster), database: database.to_owned() }
    }

    async fn inject(&self, world: &World) -> Result<bool> {
        let proxies = self.cluster.start_proxies()?;
        let mut worker =
            world.start_on(proxies.address(&self.database), Role::Worker, &VictimOptions::default())?;
        let number = worker.number();
        let node = wait("the lonely worker holds jobs", async || {
            Ok(world.node(number).await?.filter(|node| node.claims > 0))
        })
        .await?;
        let lease = world.under_test().lease();
        world.note(Fact::fault("cut", Some(number), Some(now().after(lease * 3))));
        proxies.swallow(true);
        // It may have had nothing left when it was cut off: then nobody misses it.
        let lost = within(lease * 5 / 2, async || {
            let nodes = world.nodes().await?;
            let gone = nodes.iter().find(|other| other.no == node.no);
            Ok(gone.is_none_or(|gone| gone.state == NodeState::Expired).then_some(()))
        })
        .await?;
        proxies.swallow(false);
        wait("the lonely worker is a member again", async || {
            let member = world.node(number).await?;
            Ok(member.filter(|member| lost.is_none() || member.no != node.no).map(drop))
        })
        .await?;
        worker.dismiss();
        let status = world.end_of(&mut worker).await?;
        if !status.success() {
            return Err(Error::Unexpected(format!("a worker that was cut off left with {status}")));
        }
        Ok(lost.is_some())
    }
}

impl Fault for Partition {
    fn name(&self) -> String {
        "apart".into()
    }

    fn inject<'a>(&'a mut self, world: &'a mut World) -> FaultFuture<'a> {
        Box::pin(Partition::inject(self, world))
    }
}
