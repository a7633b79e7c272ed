//! A job that takes its process down, again and again.

use mainspring::{Reason, State};

use crate::torture::victim::{CRASHER_QUEUE, Crasher};
use crate::torture::wait::{insist, wait};
use crate::torture::{Error, Fault, FaultFuture, World};

/// Enqueues a job that aborts whoever runs it. The third death quarantines it, and it alone.
pub(super) struct EnqueueCrashingJob;

impl Fault for EnqueueCrashingJob {
    fn name(&self) -> String {
        "poison".into()
    }

    fn inject<'a>(&'a mut self, world: &'a mut World) -> FaultFuture<'a> {
        Box::pin(async move {
            // Two killers within a moment may make a suspect of the same bystander, and the second would finish it.
            let open = [State::Ready, State::Scheduled, State::Running];
            wait("nobody is under suspicion", async || {
                Ok(world.jobs(&open).await?.iter().all(|job| job.crashes == 0).then_some(()))
            })
            .await?;
            let engine = world.engine()?.clone();
            let job =
                insist("a job is stored", async || engine.enqueue(Crasher {}).queue(CRASHER_QUEUE).await)
                    .await?;
            let quarantined = wait("the killer is under quarantine", async || {
                world.replace_dead()?;
                let job = world.job(job.id).await?;
                Ok(job.status.state.is_terminal().then_some(false).or_else(|| {
                    let found = (job.status.state, job.status.reason, job.crashes);
                    (found == (State::Suspended, Some(Reason::Quarantine), 3)).then_some(true)
                }))
            })
            .await?;
            // An operator may have cancelled it before it did much harm.
            if quarantined {
                return Ok(true);
            }
            Err(Error::Unexpected(format!("the killer {} has ended", job.id)))
        })
    }
}
