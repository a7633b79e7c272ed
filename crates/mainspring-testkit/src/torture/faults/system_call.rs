//! System calls that fail, or kill.

use std::os::unix::process::ExitStatusExt;

use rustix::process::Signal;

use crate::torture::inject::{SyscallFault, fired};
use crate::torture::victim::PANICKED;
use crate::torture::wait::wait;
use crate::torture::{Error, Fault, FaultFuture, Result, Role, VictimOptions, World};

/// How much further each fault strikes than the one before, at most: together they sweep over what a worker does from its
/// first call on.
const STEP: u64 = 5;

/// Of so many victims that are killed at a call, one is a producer.
const PRODUCERS: u64 = 3;

/// Starts a worker of which one system call goes wrong, a later one each time.
pub(super) struct FailAtCall {
    call: &'static str,
    harm: SyscallFault,
    index: u32,
}

impl FailAtCall {
    pub(super) fn new(call: &'static str, harm: SyscallFault) -> Self {
        FailAtCall { call, harm, index: 0 }
    }

    /// A worker that meets an error goes on, or tells and ends; it is then sent home like any other.
    async fn fail(&self, world: &mut World) -> Result<bool> {
        let injection = world.injection(self.call, self.harm, self.index);
        let trace = injection.trace.clone();
        let mut worker = world
            .start(Role::Worker, &VictimOptions { inject: Some(injection), ..VictimOptions::default() })?;
        // Noted beforehand: nobody can tell what it will have held, and for how long, when it is missed.
        world.fault("exit", Some(worker.number()));
        let mut status = wait("a system call has failed", async || {
            let status = worker.ended()?;
            Ok((status.is_some() || fired(&trace)).then_some(status))
        })
        .await?;
        if status.is_none() {
            world.goes_on().await?;
            worker.dismiss();
            status = Some(world.end_of(&mut worker).await?);
        }
        if let Some(status) = status
            && status.code() != Some(0)
            && status.code() != Some(1)
        {
            let what = format!("{} ended a worker with {status} at {} {}", self.harm, self.call, self.index);
            let panicked = if status.code() == Some(PANICKED) { " (it panicked)" } else { "" };
            return Err(Error::Unexpected(format!("{what}{panicked}")));
        }
        Ok(fired(&trace))
    }

    async fn kill(&self, world: &mut World) -> Result<bool> {
        let injection = world.injection(self.call, self.harm, self.index);
        let role = if world.below(PRODUCERS) == 0 { Role::Producer } else { Role::Worker };
        let mut victim =
            world.start(role, &VictimOptions { inject: Some(injection), ..VictimOptions::default() })?;
        world.fault("exit", Some(victim.number()));
        let status = world.end_of(&mut victim).await?;
        Ok(status.signal() == Some(Signal::KILL.as_raw()))
    }
}

impl Fault for FailAtCall {
    fn name(&self) -> String {
        format!("{} {}", self.call, self.harm)
    }

    fn inject<'a>(&'a mut self, world: &'a mut World) -> FaultFuture<'a> {
        Box::pin(async move {
            self.index += 1 + u32::try_from(world.below(STEP)).unwrap_or(0);
            match self.harm {
                SyscallFault::Kill => self.kill(world).await,
                SyscallFault::Fail(..) => self.fail(world).await,
            }
        })
    }
}
