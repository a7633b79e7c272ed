//! Death at a failure point.

use std::os::unix::process::ExitStatusExt;

use rustix::process::Signal;

use super::frozen_worker::freeze;
use crate::torture::points::{Point, When};
use crate::torture::wait::wait;
use crate::torture::{Error, Fault, FaultFuture, Result, Role, Victim, VictimOptions, World};

/// Visits of a busy point to choose from: the first is that of a worker that has just come.
const VISITS: u64 = 4;

/// How often a worker is stopped that is to lose its lease by it.
const STOPS: usize = 4;

/// Starts a worker that dies at a failure point, and sees it die there.
pub(super) struct DieAtPoint {
    point: Point,
}

impl DieAtPoint {
    pub(super) fn new(point: Point) -> Self {
        DieAtPoint { point }
    }

    fn orders(&self, visit: u64) -> VictimOptions {
        let visit = u32::try_from(visit).unwrap_or(1);
        VictimOptions { die_at: Some((self.point.name.into(), visit)), ..VictimOptions::default() }
    }

    async fn visited(&self, world: &World, role: Role, visit: u64) -> Result<bool> {
        let mut worker = world.start(role, &self.orders(visit))?;
        died(world, &mut worker).await
    }

    async fn leaving(&self, world: &World) -> Result<bool> {
        let mut worker = world.start(Role::Worker, &self.orders(1))?;
        wait("the worker holds jobs", async || {
            Ok(world.node(worker.number()).await?.filter(|node| node.claims > 0).map(drop))
        })
        .await?;
        worker.dismiss();
        died(world, &mut worker).await
    }

    /// Dies while it makes an empty store; the next one finds what is left of that, and goes on.
    async fn migrating(&self, world: &World) -> Result<bool> {
        let another = world.under_test().another()?;
        let mut worker = world.start_elsewhere(another.address(), Role::Worker, &self.orders(1))?;
        let hit = died(world, &mut worker).await?;
        let mut next = world.start_elsewhere(another.address(), Role::Worker, &VictimOptions::default())?;
        let engine = another.open().await.map_err(Error::store("opening what is left of a migration"))?;
        wait("a worker joins what is left of a migration", async || {
            let nodes = engine.nodes().await.map_err(Error::store("nodes"))?;
            Ok(nodes.iter().any(|node| node.pid == next.number()).then_some(()))
        })
        .await?;
        engine.close().await;
        next.dismiss();
        let status = world.end_of(&mut next).await?;
        if !status.success() {
            return Err(Error::Unexpected(format!("a worker after a broken migration left with {status}")));
        }
        Ok(hit)
    }

    /// Dies over what others have left, all of whom die before it: so nobody else comes first.
    async fn rescuing(&self, world: &mut World) -> Result<bool> {
        let mut worker = world.start(Role::Worker, &self.orders(1))?;
        wait("the worker is a member", async || Ok(world.node(worker.number()).await?.map(drop))).await?;
        for other in std::mem::take(&mut world.workers) {
            world.kill(other)?;
        }
        died(world, &mut worker).await
    }

    async fn unsettled(&self, world: &World) -> Result<bool> {
        let mut worker = world.start(Role::Worker, &self.orders(1))?;
        let under_test = std::sync::Arc::clone(world.under_test());
        wait("the worker holds jobs", async || {
            // It may have lost an answer before.
            if worker.ended()?.is_some() {
                return Ok(Some(()));
            }
            Ok(world.node(worker.number()).await?.filter(|node| node.claims > 0).map(drop))
        })
        .await?;
        let status = wait("an answer was lost", async || {
            under_test.unsettle();
            worker.ended()
        })
        .await?;
        killed(&worker, status)
    }

    async fn woken(&self, world: &World) -> Result<bool> {
        let mut worker = world.start(Role::Worker, &self.orders(1))?;
        wait("the worker holds jobs", async || {
            Ok(world.node(worker.number()).await?.filter(|node| node.claims > 0).map(drop))
        })
        .await?;
        // Stopped inside of a transaction it may keep everybody from expiring it, and goes on as if nothing had been.
        for _ in 0..STOPS {
            if freeze(world, &worker).await?.is_some() {
                return died(world, &mut worker).await;
            }
        }
        Ok(false)
    }
}

/// Waits for a death by a kill.
async fn died(world: &World, worker: &mut Victim) -> Result<bool> {
    let status = world.end_of(worker).await?;
    killed(worker, status)
}

fn killed(worker: &Victim, status: std::process::ExitStatus) -> Result<bool> {
    if status.signal() == Some(Signal::KILL.as_raw()) {
        return Ok(true);
    }
    Err(Error::Unexpected(format!("worker {} ended with {status}, not at its point", worker.number())))
}

impl Fault for DieAtPoint {
    fn name(&self) -> String {
        format!("point {}", self.point.name)
    }

    fn inject<'a>(&'a mut self, world: &'a mut World) -> FaultFuture<'a> {
        Box::pin(async move {
            match self.point.when() {
                When::Busy => {
                    let role =
                        if world.under_test().is_passed_by_producers(&self.point) && world.below(2) == 0 {
                            Role::Producer
                        } else {
                            Role::Worker
                        };
                    self.visited(world, role, 1 + world.below(VISITS)).await
                }
                When::Joining => self.visited(world, Role::Worker, 1).await,
                When::Leaving => self.leaving(world).await,
                When::Migrating => self.migrating(world).await,
                When::Woken => self.woken(world).await,
                When::Rescuing => self.rescuing(world).await,
                When::Unsettled => self.unsettled(world).await,
            }
        })
    }
}
