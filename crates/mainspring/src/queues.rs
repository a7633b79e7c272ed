//! Queues, as operators see them.

use std::time::Duration;

use mainspring_core::Result;
use mainspring_core::backoff::Backoff;
use mainspring_core::name::QueueName;
use mainspring_core::store::{Queue, QueueChange};

use crate::engine::Engine;

/// Queues; made by [`Engine::queues`].
#[derive(Debug)]
pub struct Queues<'a> {
    engine: &'a Engine,
}

impl<'a> Queues<'a> {
    pub(crate) fn new(engine: &'a Engine) -> Self {
        Queues { engine }
    }

    /// All queues that were ever named, sorted. One that was deleted is among them while it has jobs, and once a node that
    /// starts or a setting has named it again.
    pub async fn list(&self) -> Result<Vec<Queue>> {
        self.engine.store().queues().await
    }

    /// Stops claims from a queue. Running jobs go on.
    pub async fn pause(&self, queue: &str) -> Result<Queue> {
        self.change(queue, QueueChange { paused: Some(true), ..QueueChange::default() }).await
    }

    /// Lets a queue go on.
    pub async fn resume(&self, queue: &str) -> Result<Queue> {
        self.change(queue, QueueChange { paused: Some(false), ..QueueChange::default() }).await
    }

    /// Sets the backoff of jobs that set none themselves; `None`: the default.
    pub async fn set_backoff(&self, queue: &str, backoff: Option<Backoff>) -> Result<Queue> {
        self.change(queue, QueueChange { backoff: Some(backoff), ..QueueChange::default() }).await
    }

    /// Sets how long ended jobs are kept: those that succeeded, and those that failed or were cancelled.
    pub async fn set_retention(&self, queue: &str, succeeded: Duration, failed: Duration) -> Result<Queue> {
        let change = QueueChange {
            retain_succeeded: Some(succeeded),
            retain_failed: Some(failed),
            ..QueueChange::default()
        };
        self.change(queue, change).await
    }

    /// Changes several settings at once.
    pub async fn change(&self, queue: &str, change: QueueChange) -> Result<Queue> {
        change.check()?;
        self.engine.store().configure(QueueName::new(queue)?, change).await
    }

    /// Deletes a queue that has no jobs, with its settings. Returns whether there was one.
    ///
    /// A job that is enqueued at the same moment is safe: either it refuses the deletion, or its queue is there again, with
    /// default settings. Nodes that serve the queue go on doing so.
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
    /// [`Error::QueueNotEmpty`](crate::Error::QueueNotEmpty) while it has jobs: waiting, running, or ended and still kept.
    pub async fn delete(&self, queue: &str) -> Result<bool> {
        self.engine.store().delete_queue(QueueName::new(queue)?).await
    }
}
