//! Queues, as operators see them.

use std::future::IntoFuture;
use std::time::Duration;

use mainspring_core::Result;
use mainspring_core::audit::check_who;
use mainspring_core::backoff::Backoff;
use mainspring_core::limit::Total;
use mainspring_core::name::QueueName;
use mainspring_core::seam::Pending;
use mainspring_core::store::{Queue, QueueChange};

use crate::engine::Engine;

/// Looks at queues and changes their settings. You get one from [`Engine::queues`].
#[derive(Debug)]
pub struct Queues<'a> {
    engine: &'a Engine,
    who: String,
}

impl<'a> Queues<'a> {
    pub(crate) fn new(engine: &'a Engine) -> Self {
        Queues { engine, who: "application".to_owned() }
    }

    /// Sets who changes a total: the audit remembers it. Default: `application`.
    #[must_use]
    pub fn by(mut self, who: impl Into<String>) -> Self {
        self.who = who.into();
        self
    }

    /// Returns all queues, sorted by name. A queue exists as soon as a job, a node or a setting names it. A deleted
    /// queue is listed while it has jobs, and again when a starting node or a setting names it.
    pub async fn list(&self) -> Result<Vec<Queue>> {
        self.engine.store().queues().await
    }

    /// Stops claims from a queue on all nodes. Running jobs continue.
    pub fn pause(&self, queue: &str) -> ChangeQueue<'a> {
        self.set(queue).paused(true)
    }

    /// Lets nodes claim from a paused queue again, and wakes them.
    pub fn resume(&self, queue: &str) -> ChangeQueue<'a> {
        self.set(queue).paused(false)
    }

    /// Sets the backoff of jobs that have none of their own. `None` restores the engine's default: exponential from
    /// one second, doubling, at most one hour.
    pub fn set_backoff(&self, queue: &str, backoff: Option<Backoff>) -> ChangeQueue<'a> {
        self.set(queue).backoff(backoff)
    }

    /// Sets how long ended jobs stay: succeeded ones (a day by default), and failed or cancelled ones (two weeks by
    /// default).
    pub fn set_retention(&self, queue: &str, succeeded: Duration, failed: Duration) -> ChangeQueue<'a> {
        self.set(queue).retention(succeeded, failed)
    }

    /// Sets how many jobs of a queue run at once over all nodes. `None`: as many as there are slots. It counts the jobs
    /// that run now, and ends none of them. [`Limits::totals`](crate::limit::Limits::totals) lists what is set.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if `queue` is not a queue's name;
    /// [`Error::TooLarge`](crate::Error::TooLarge) beyond 1,000,000.
    pub async fn set_max_running(&self, queue: &str, max: Option<u32>) -> Result<()> {
        Total::check(max)?;
        check_who(&self.who)?;
        let queue = Total::Queue(QueueName::new(queue)?);
        self.engine.store().set_total(queue, max, self.who.clone()).await
    }

    /// Changes several settings of a queue in one commit.
    ///
    /// ```
    /// # use mainspring::{Engine, Error};
    /// # use std::time::Duration;
    /// # async fn tidy_up(engine: &Engine) -> Result<(), Error> {
    /// let day = Duration::from_secs(24 * 3_600);
    /// engine.queues().set("mail").paused(true).retention(day, 7 * day).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn set(&self, queue: &str) -> ChangeQueue<'a> {
        self.change(queue, QueueChange::default())
    }

    /// Changes settings of a queue as a value says: what is `None` there stays as it is.
    pub fn change(&self, queue: &str, change: QueueChange) -> ChangeQueue<'a> {
        ChangeQueue { engine: self.engine, queue: QueueName::new(queue), change }
    }

    /// Deletes a queue that has no jobs, with its settings. Returns whether there was one.
    ///
    /// If somebody enqueues at the same moment, no job is lost: either the queue refuses to go, or it is there again
    /// with default settings. Nodes that serve the queue continue to do so.
    ///
    /// ```
    /// # use mainspring::{Engine, Error};
    /// # async fn clean(engine: &Engine) -> Result<(), Error> {
    /// match engine.queues().delete("mail-2025").await {
    ///     Err(Error::QueueNotEmpty { waiting, running, ended, .. }) => println!("{waiting} + {running} + {ended} jobs"),
    ///     answer => println!("deleted: {}", answer?),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::QueueNotEmpty`](crate::Error::QueueNotEmpty) while it has jobs: waiting, running, or ended and still
    /// kept.
    pub async fn delete(&self, queue: &str) -> Result<bool> {
        self.engine.store().delete_queue(QueueName::new(queue)?).await
    }
}

/// A change of a queue's settings. Nothing changes until you await it; then you get the queue as it is.
///
/// # Errors
/// [`Error::Invalid`](crate::Error::Invalid) if the name is not a queue's name, or a setting is beyond its bound: a retention below
/// one minute or above ten years.
#[derive(Debug)]
#[must_use = "nothing changes until this is awaited"]
pub struct ChangeQueue<'a> {
    engine: &'a Engine,
    queue: Result<QueueName>,
    change: QueueChange,
}

impl ChangeQueue<'_> {
    /// Stops claims, or lets nodes claim again.
    pub fn paused(mut self, paused: bool) -> Self {
        self.change.paused = Some(paused);
        self
    }

    /// As [`Queues::set_backoff`].
    pub fn backoff(mut self, backoff: Option<Backoff>) -> Self {
        self.change.backoff = Some(backoff);
        self
    }

    /// As [`Queues::set_retention`].
    pub fn retention(mut self, succeeded: Duration, failed: Duration) -> Self {
        (self.change.retain_succeeded, self.change.retain_failed) = (Some(succeeded), Some(failed));
        self
    }
}

impl<'a> IntoFuture for ChangeQueue<'a> {
    type Output = Result<Queue>;
    type IntoFuture = Pending<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            self.change.check()?;
            self.engine.store().configure(self.queue?, self.change).await
        })
    }
}
