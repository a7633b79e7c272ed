//! A kill at a random moment.

use crate::torture::{Fault, FaultFuture, World};

/// Of so many kills one hits the producer or the operator instead of a worker.
const OTHERS: u64 = 6;

/// Kills some victim, wherever it is: in the middle of a transaction too.
pub(super) struct KillVictim;

impl Fault for KillVictim {
    fn name(&self) -> String {
        "kill".into()
    }

    fn inject<'a>(&'a mut self, world: &'a mut World) -> FaultFuture<'a> {
        Box::pin(async move {
            let victim = if world.below(OTHERS) == 0 {
                world.others.remove(0)
            } else {
                world.workers.remove(world.any_worker())
            };
            world.kill(victim)?;
            Ok(true)
        })
    }
}
