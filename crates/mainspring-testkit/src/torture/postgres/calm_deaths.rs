//! Deaths while nothing else is wrong: only they tell how soon the dead are found.

use mainspring_core::store::NodeState;

use crate::torture::wait::{wait, within};
use crate::torture::{Fault, FaultFuture, Result, World};

/// Deaths of one fault.
const DEATHS: usize = 2;
/// Jobs that a worker must hold to be missed: not all of them end before the kill arrives.
const HELD: u64 = 4;

/// Lets the world be for a while, kills a worker that holds jobs, and waits until it was found.
pub(super) struct CalmDeath;

impl CalmDeath {
    async fn kill(world: &mut World) -> Result<()> {
        let (index, node) = wait("a worker holds jobs", async || {
            let index = world.any_worker();
            let node = world.node(world.workers[index].number()).await?;
            Ok(node.filter(|node| node.claims >= HELD).map(|node| (index, node.no)))
        })
        .await?;
        let worker = world.workers.remove(index);
        world.kill(worker)?;
        wait("the dead worker was found", async || {
            let nodes = world.nodes().await?;
            let dead = nodes.iter().find(|other| other.no == node);
            // One that had just ended its last job is not missed.
            Ok(dead.is_none_or(|dead| dead.state == NodeState::Expired || dead.claims == 0).then_some(()))
        })
        .await?;
        world.replace_dead()
    }
}

impl Fault for CalmDeath {
    fn name(&self) -> String {
        "kill in peace".into()
    }

    fn inject<'a>(&'a mut self, world: &'a mut World) -> FaultFuture<'a> {
        Box::pin(async move {
            let lease = world.under_test().lease();
            // Whoever is to find the dead must have been well for a lease, after all that was wrong before was over.
            within(lease * 4, async || Ok(None::<()>)).await?;
            for _ in 0..DEATHS {
                CalmDeath::kill(world).await?;
            }
            within(lease, async || Ok(None::<()>)).await?;
            Ok(true)
        })
    }
}
