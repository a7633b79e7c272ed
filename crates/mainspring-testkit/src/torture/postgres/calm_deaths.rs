//! Deaths while nothing else is wrong: only they tell how soon the dead are found.

use mainspring_core::store::NodeState;

use crate::torture::wait::{wait, within};
use crate::torture::{Blow, Result, Strike, World};

/// Deaths of one blow.
const DEATHS: usize = 2;
/// Jobs that a worker must hold to be missed: not all of them end before the kill arrives.
const HELD: u64 = 4;

/// Lets the world be for a while, kills a worker that holds jobs, and waits until it was found.
pub(super) struct InPeace;

impl InPeace {
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

impl Blow for InPeace {
    fn name(&self) -> String {
        "kill in peace".into()
    }

    fn strike<'a>(&'a mut self, world: &'a mut World) -> Strike<'a> {
        Box::pin(async move {
            let lease = world.stage().lease();
            // Whoever is to find the dead must have been well for a lease, after all that was wrong before was over.
            within(lease * 4, async || Ok(None::<()>)).await?;
            for _ in 0..DEATHS {
                InPeace::kill(world).await?;
            }
            within(lease, async || Ok(None::<()>)).await?;
            Ok(true)
        })
    }
}
