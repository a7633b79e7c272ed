//! Retry from a step: a job forgets what it has recorded from there on, and does it again.

use std::future::IntoFuture;

use mainspring_core::id::JobId;
use mainspring_core::job::Verb;
use mainspring_core::name::Key;
use mainspring_core::seam::Pending;
use mainspring_core::store::Changed;
use mainspring_core::{Error, Result};

use crate::engine::Engine;
use crate::fork::{stays, unknown};

/// A retry from a step. Nothing changes until you await it; see [`Jobs::retry_from`](crate::admin::Jobs::retry_from).
#[must_use = "nothing is retried until this is awaited"]
pub struct RetryFrom<'a> {
    engine: &'a Engine,
    id: JobId,
    from: String,
    dry_run: bool,
}

/// A job that was retried from a step, or with a dry run would have been.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retried {
    /// The keys of the removed records.
    pub removed: Vec<Key>,
}

impl<'a> RetryFrom<'a> {
    pub(crate) fn new(engine: &'a Engine, id: JobId, from: String) -> Self {
        RetryFrom { engine, id, from, dry_run: false }
    }

    /// Returns the records that the retry would remove, and changes nothing.
    pub fn dry_run(mut self) -> Self {
        self.dry_run = true;
        self
    }

    async fn apply(self) -> Result<Retried> {
        let RetryFrom { engine, id, from, dry_run } = self;
        let store = engine.store();
        // The claim before the journal: if the job goes on in between, the store says so.
        let claim = store.get(id).await?.ok_or(Error::NotFound(id))?.summary.claim;
        let timeline = store.timeline(id).await?.ok_or(Error::NotFound(id))?;
        let stays = stays(&timeline, &from).ok_or_else(|| unknown(&from, &timeline))?;
        let entries = timeline.entries.into_iter().zip(stays);
        let removed = entries.filter(|(_, stays)| !stays).map(|(entry, _)| entry.key).collect();
        let verb = Verb::Rewind { from: Key::new(&from)?, claim };
        match store.change(vec![id], verb, dry_run).await?.first() {
            Some(Changed::Applied { .. }) => Ok(Retried { removed }),
            Some(Changed::Illegal(illegal)) => {
                Err(Error::Illegal { id, verb: "retry", status: illegal.from })
            }
            Some(Changed::Stale) => Err(Error::unavailable("the job has changed meanwhile")),
            Some(Changed::NotFound) | None => Err(Error::NotFound(id)),
        }
    }
}

impl<'a> IntoFuture for RetryFrom<'a> {
    type Output = Result<Retried>;
    type IntoFuture = Pending<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.apply())
    }
}
