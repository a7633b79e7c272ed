//! Queues, as operators see them.

use std::time::Duration;

use mainspring_core::Result;
use mainspring_core::backoff::Backoff;
use mainspring_core::name::QueueName;
use mainspring_core::store::{Queue, QueueChange};

use crate::engine::Engine;

/// Looks at queues and changes their settings. You get one from [`Engine::queues`].
#[derive(Debug)]
pub struct Queues<'a> {
    engine: &'a Engine,
}

impl<'a> Queues<'a> {
    pub(crate) fn new(engine: &'a Engine) -> Self {
        Queues { engine }
    }

    /// Returns all queues, sorted by name. A queue exists as soon as a job, a node or a setting names it. A deleted
    /// queue is listed while it has jobs, and again when a starting node or a setting names it.
    pub async fn list(&self) -> Result<Vec<Queue>> {
        self.engine.store().queues().await
    }

    /// Stops claims from a queue on all nodes. Running jobs continue.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if `queue` is not a queue's name.
    pub async fn pause(&self, queue: &str) -> Result<Queue> {
        self.change(queue, QueueChange { paused: Some(true), ..QueueChange::default() }).await
    }

    /// Lets nodes claim from a paused queue again, and wakes them.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if `queue` is not a queue's name.
    pub async fn resume(&self, queue: &str) -> Result<Queue> {
        self.change(queue, QueueChange { paused: Some(false), ..QueueChange::default() }).await
    }

    /// Sets the backoff of jobs that have none of their own. `None` restores the engine's default: exponential from
    /// one second, doubling, at most one hour.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if `queue` is not a queue's name.
    pub async fn set_backoff(&self, queue: &str, backoff: Option<Backoff>) -> Result<Queue> {
        self.change(queue, QueueChange { backoff: Some(backoff), ..QueueChange::default() }).await
    }

    /// Sets how long ended jobs stay: succeeded ones (a day by default), and failed or cancelled ones (two weeks by
    /// default).
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) below one minute or above ten years, or if `queue` is not a queue's
    /// name.
    pub async fn set_retention(&self, queue: &str, succeeded: Duration, failed: Duration) -> Result<Queue> {
        let change = QueueChange {
            retain_succeeded: Some(succeeded),
            retain_failed: Some(failed),
            ..QueueChange::default()
        };
        self.change(queue, change).await
    }

    /// Changes several settings of a queue at once.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if `queue` is not a queue's name, or a setting is beyond its bound.
    pub async fn change(&self, queue: &str, change: QueueChange) -> Result<Queue> {
        change.check()?;
        self.engine.store().configure(QueueName::new(queue)?, change).await
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
