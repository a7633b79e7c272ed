//! Kills in the middle of more quick work than workers have slots for.

use mainspring::State;
use mainspring_core::store::NodeState;

use crate::torture::victim::{QUEUES, SLOTS, Work};
use crate::torture::wait::{insist, wait};
use crate::torture::{Fault, FaultFuture, Victim, World};

/// Jobs that one rush brings: enough that workers claim ahead for a while.
const WORK: u64 = 2_000;
/// Kills in a row: one more than put an innocent job under quarantine, if each of them counted.
const KILLS: usize = 4;

/// Brings quick work and kills workers while they hold more of it than they have slots, one after the other. None of these jobs has
/// done anything, so none may come under quarantine; and of what was only claimed ahead no crash is counted.
pub(super) struct KillInRush;

impl Fault for KillInRush {
    fn name(&self) -> String {
        "rush".into()
    }

    fn inject<'a>(&'a mut self, world: &'a mut World) -> FaultFuture<'a> {
        Box::pin(async move {
            let engine = world.engine()?.clone();
            let slots: u64 = SLOTS.iter().copied().map(u64::from).sum();
            let mut hit = false;
            for _ in 0..KILLS {
                world.busy().await?;
                let work = || (0..WORK).map(|number| Work { number, millis: number % 3, ..Work::default() });
                let store = async || engine.enqueue_many(work()).queue(QUEUES[0]).await;
                insist("quick work is stored", store).await?;
                let ahead = wait("a worker claims ahead, or nothing is left to claim", async || {
                    let nodes = world.nodes().await?;
                    let is_ahead = |worker: &Victim| {
                        nodes.iter().any(|node| {
                            node.pid == worker.number()
                                && node.state == NodeState::Live
                                && node.claims > slots
                        })
                    };
                    if let Some(at) = world.workers.iter().position(is_ahead) {
                        return Ok(Some(Some(at)));
                    }
                    Ok(world.jobs(&[State::Ready]).await?.is_empty().then_some(None))
                })
                .await?;
                if let Some(at) = ahead {
                    hit = true;
                    let worker = world.workers.remove(at);
                    world.kill(worker)?;
                }
            }
            Ok(hit)
        })
    }
}
