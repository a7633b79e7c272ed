//! A worker that is stopped for longer than its lease, and wakes up.

use mainspring_core::id::NodeNo;
use mainspring_core::store::NodeState;
use rustix::process::Signal;

use crate::history::Fact;
use crate::torture::wait::{now, wait, within};
use crate::torture::{Error, Fault, FaultFuture, Result, Victim, World};

/// How often one is stopped at most, until it is missed: it may have ended its last job when it was stopped, and others may
/// not have been well for a lease.
const ATTEMPTS: usize = 3;

/// Stops a worker until it was expired, and lets it go on: it must find that it lost its lease, and join anew. A worker that
/// is stopped inside of a transaction may keep the store locked: then nobody is expired, and nobody must be harmed.
pub(super) struct FreezeWorker;

impl Fault for FreezeWorker {
    fn name(&self) -> String {
        "stop".into()
    }

    fn inject<'a>(&'a mut self, world: &'a mut World) -> FaultFuture<'a> {
        Box::pin(async move {
            let worker = world.workers.remove(world.any_worker());
            let mut hit = false;
            for _ in 0..ATTEMPTS {
                let lost = freeze(world, &worker).await?;
                wait("the woken worker is a member", async || {
                    let member = world.node(worker.number()).await?;
                    Ok(member.filter(|member| Some(member.no) != lost).map(drop))
                })
                .await?;
                hit = lost.is_some();
                if hit {
                    break;
                }
            }
            world.workers.push(worker);
            Ok(hit)
        })
    }
}

/// Stops a worker for longer than its lease, and lets it go on; tells the number under which it was expired, if it was.
pub(super) async fn freeze(world: &World, worker: &Victim) -> Result<Option<NodeNo>> {
    let number = worker.number();
    // Who holds nothing is not missed.
    let node =
        wait("the worker holds jobs", async || Ok(world.node(number).await?.filter(|node| node.claims > 0)))
            .await?;
    // Twice its lease is more than anybody takes who can write; a third one is for the rig's own pace.
    let lease = world.under_test().lease();
    world.note(Fact::fault("stop", Some(number), Some(now().after(lease * 3))));
    worker.signal(Signal::STOP)?;
    wait("all threads have stopped", async || Ok(worker.is_stopped()?.then_some(()))).await?;
    let engine = world.engine()?;
    let lost = within(lease * 2, async || {
        // Whoever is stopped in the middle of a write may keep the store to himself, from readers too.
        let nodes = match engine.nodes().await {
            Ok(nodes) => nodes,
            Err(error) if error.is_retryable() => return Ok(None),
            Err(error) => return Err(Error::store("nodes")(error)),
        };
        let gone = nodes.iter().find(|other| other.no == node.no);
        Ok(gone.is_none_or(|gone| gone.state == NodeState::Expired).then_some(node.no))
    })
    .await?;
    worker.signal(Signal::CONT)?;
    Ok(lost)
}
