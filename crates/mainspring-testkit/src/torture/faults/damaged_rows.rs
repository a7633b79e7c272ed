//! Rows of jobs that somebody damages while processes work, and mends in the end.

use mainspring::admin::Summary;
use mainspring::{Error as Refusal, JobId, Reason, State};

use crate::history::Fact;
use crate::torture::wait::{insist, wait};
use crate::torture::{Error, Fault, FaultFuture, Result, World};

/// A job whose row was damaged.
#[derive(Debug)]
pub(in crate::torture) struct Damaged {
    pub(in crate::torture) id: JobId,
    /// The number of its latest claim.
    pub(in crate::torture) claim: u32,
    pub(in crate::torture) crashes: u16,
    /// The statements that mend it, wherever the job is by then.
    pub(in crate::torture) mend: String,
}

/// Who damages and mends rows of a store, by plain SQL.
pub(in crate::torture) trait Hand {
    /// Damages some jobs that are ready, each in another way, in one transaction. None, if nobody waits.
    fn damage(&self) -> Result<Vec<Damaged>>;

    /// Mends them, in one transaction.
    fn mend(&self, jobs: &[Damaged]) -> Result<()>;

    /// Whether nothing takes back any more what was committed so far: no other fault may bring the damage back.
    fn settled(&self) -> Result<bool> {
        Ok(true)
    }
}

/// Damages rows: exactly those jobs are set aside, and no crash is counted. All others go on. Then they are mended and
/// resumed, and come to their ends. That none of them runs meanwhile the checker sees.
pub(in crate::torture) struct Rows<H> {
    pub(in crate::torture) hand: H,
}

impl<H: Hand> Fault for Rows<H> {
    fn name(&self) -> String {
        "rows damaged".into()
    }

    fn inject<'a>(&'a mut self, world: &'a mut World) -> FaultFuture<'a> {
        Box::pin(async move {
            world.fault("rows damaged", None);
            let jobs = wait("jobs are ready whose rows can be damaged", async || {
                Ok(Some(self.hand.damage()?).filter(|jobs| !jobs.is_empty()))
            })
            .await?;
            for job in &jobs {
                world.note(Fact::Damaged { id: job.id, claim: job.claim });
            }
            world.goes_on().await?;
            let mut aside = 0;
            for job in &jobs {
                aside += usize::from(is_aside(world, job).await?);
            }
            let set_aside = world.jobs(&[State::Suspended]).await?;
            let mut unreadable = set_aside.iter().filter(|job| is_unreadable(job));
            if let Some(innocent) = unreadable.find(|job| jobs.iter().all(|damaged| damaged.id != job.id)) {
                let what = format!("nobody damaged {}, and it is {}", innocent.id, innocent.status);
                return Err(Error::Unexpected(what));
            }
            world.goes_on().await?;
            for job in &jobs {
                world.note(Fact::Mended { id: job.id });
            }
            self.hand.mend(&jobs)?;
            for job in &jobs {
                ends(world, job).await?;
            }
            wait("what was mended stays so", async || Ok(self.hand.settled()?.then_some(()))).await?;
            Ok(aside > 0)
        })
    }
}

fn is_unreadable(job: &Summary) -> bool {
    job.status.reason == Some(Reason::Unreadable)
}

/// Waits until a claim has met a damaged job; tells whether it did, or an operator was there first.
async fn is_aside(world: &World, damaged: &Damaged) -> Result<bool> {
    wait("a damaged job is set aside", async || {
        let Some(job) = find(world, damaged.id).await? else { return Ok(Some(false)) };
        let wrong = |what: &str| Err(Error::Unexpected(format!("{} was damaged, and {what}", job.id)));
        match job.status.state {
            State::Suspended if is_unreadable(&job) && job.crashes != damaged.crashes => {
                wrong(&format!("has {} crashes, not {}", job.crashes, damaged.crashes))
            }
            State::Suspended if is_unreadable(&job) => Ok(Some(true)),
            State::Succeeded | State::Failed => wrong(&format!("is {}", job.status)),
            state if state.is_terminal() => Ok(Some(false)),
            _ => release(world, &job).await.map(|()| None),
        }
    })
    .await
}

/// Waits until a mended job has ended, or is gone.
async fn ends(world: &World, damaged: &Damaged) -> Result<()> {
    wait("a mended job has ended", async || {
        let Some(job) = find(world, damaged.id).await? else { return Ok(Some(())) };
        if job.status.state.is_terminal() {
            return Ok(Some(()));
        }
        if is_unreadable(&job) {
            // A claim that had met the damage may set it aside once more.
            drop(world.engine()?.jobs().resume(job.id).await);
        }
        release(world, &job).await.map(|()| None)
    })
    .await
}

/// Lets a job go that an operator held.
async fn release(world: &World, job: &Summary) -> Result<()> {
    if job.status.reason == Some(Reason::Hold) {
        // It may have been let go meanwhile.
        drop(world.engine()?.jobs().resume(job.id).await);
    }
    Ok(())
}

/// A job; nothing if somebody deleted it.
async fn find(world: &World, id: JobId) -> Result<Option<Summary>> {
    let engine = world.engine()?;
    insist("the store tells of a job", async || match engine.jobs().get(id).await {
        Ok(record) => Ok(Some(record.summary)),
        Err(Refusal::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    })
    .await
}
