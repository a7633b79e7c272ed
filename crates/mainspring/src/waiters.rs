//! Who waits for which job to end.
//!
//! However many wait, one task asks the store for all of them: at once for those who have just come and for jobs of which
//! a node of this process says that they ended, and once a second for all, because jobs end elsewhere. The store's hint of
//! foreign commits makes that sooner.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use mainspring_core::id::JobId;
use mainspring_core::job::State;
use mainspring_core::journal::JobEnd;
use mainspring_core::seam::Clock;
use mainspring_core::store::{Hint, Listener, Store};
use mainspring_core::{Error, Result, bounds};
use tokio::sync::{Notify, oneshot};

use crate::batch::meaning;
use crate::engine::Engine;
use crate::handler::Payload;
use crate::sync::{Mutex, MutexGuard};
use crate::tail::Tails;

/// How long the task relies on being woken before it looks by itself.
const LOOK: Duration = Duration::from_secs(1);

/// Callers that wait for jobs, and nodes that can be nudged.
#[derive(Default)]
pub(crate) struct Waiters {
    watched: Mutex<WaitedJobs>,
    wake: Notify,
    nudges: Mutex<Vec<Weak<dyn Listener>>>,
    tails: Tails,
}

#[derive(Default)]
struct WaitedJobs {
    jobs: BTreeMap<JobId, Vec<oneshot::Sender<Result<JobEnd>>>>,
    /// Those to be looked at now.
    now: BTreeSet<JobId>,
    all: bool,
    /// Whether the task is there.
    busy: bool,
}

impl Waiters {
    fn lock(&self) -> MutexGuard<'_, WaitedJobs> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells those who wait for a job that it has ended.
    pub(crate) fn ended(&self, id: JobId) {
        let mut watched = self.lock();
        if watched.jobs.contains_key(&id) {
            watched.now.insert(id);
            self.wake.notify_one();
        }
        drop(watched);
        self.tails.has_output(id);
    }

    /// Those who read what jobs say.
    pub(crate) fn tails(&self) -> &Tails {
        &self.tails
    }

    /// Lets all who wait look again.
    pub(crate) fn wake_all(&self) {
        self.lock().all = true;
        self.wake.notify_one();
        self.tails.wake_all();
    }

    /// Wakes a node with every [`nudge`](Self::nudge) until it is dropped.
    pub(crate) fn on_nudge(&self, node: Weak<dyn Listener>) {
        let mut nudges = self.nudges.lock().unwrap_or_else(PoisonError::into_inner);
        nudges.retain(|node| node.strong_count() > 0);
        nudges.push(node);
    }

    /// Wakes the nodes of this process.
    pub(crate) fn nudge(&self) {
        let nodes: Vec<_> = {
            let nudges = self.nudges.lock().unwrap_or_else(PoisonError::into_inner);
            nudges.iter().filter_map(Weak::upgrade).collect()
        };
        for node in nodes {
            // What another connection has committed is as good as foreign.
            node.hint(&Hint::Foreign);
        }
    }

    /// Enters a caller; says whether the task has to be started.
    fn enter(&self, id: JobId) -> (oneshot::Receiver<Result<JobEnd>>, bool) {
        let (answer, answered) = oneshot::channel();
        let mut watched = self.lock();
        watched.jobs.entry(id).or_default().push(answer);
        watched.now.insert(id);
        self.wake.notify_one();
        (answered, !std::mem::replace(&mut watched.busy, true))
    }

    /// What to ask for now; `None`, and the task ends, if nobody waits any more.
    fn next(&self) -> Option<Vec<JobId>> {
        let mut watched = self.lock();
        if watched.all {
            // Not each time: many who wait for one job each must not look at each other for every one that ends.
            watched.jobs.retain(|_, callers| {
                callers.retain(|caller| !caller.is_closed());
                !callers.is_empty()
            });
        }
        if watched.jobs.is_empty() {
            *watched = WaitedJobs::default();
            return None;
        }
        let now = std::mem::take(&mut watched.now);
        if std::mem::take(&mut watched.all) {
            return Some(watched.jobs.keys().copied().collect());
        }
        Some(now.into_iter().filter(|id| watched.jobs.contains_key(id)).collect())
    }

    fn answer(&self, id: JobId, mut answer: impl FnMut() -> Result<JobEnd>) {
        let callers = self.lock().jobs.remove(&id).unwrap_or_default();
        for caller in callers {
            drop(caller.send(answer()));
        }
    }
}

/// Asks the store on behalf of all who wait, until nobody does.
async fn watch(waiters: Arc<Waiters>, store: Arc<dyn Store>, clock: Arc<dyn Clock>) {
    while let Some(ids) = waiters.next() {
        for ids in ids.chunks(bounds::BATCH) {
            match store.job_ends(ids.to_vec()).await {
                Ok(job_ends) => {
                    for (id, job_end) in
                        ids.iter().zip(job_ends).filter(|(_, job_end)| *job_end != JobEnd::Open)
                    {
                        waiters.answer(*id, || Ok(job_end.clone()));
                    }
                }
                // The next look will tell.
                Err(error) if error.is_retryable() => tracing::debug!(%error, "cannot read results"),
                Err(error) => ids.iter().for_each(|id| waiters.answer(*id, || Err(meaning(&error)))),
            }
        }
        tokio::select! {
            biased;
            () = waiters.wake.notified() => {}
            () = clock.idle(LOOK) => waiters.lock().all = true,
        }
    }
}

/// Leaves the place to the next task if this one is dropped or panics.
struct WatchTask {
    waiters: Arc<Waiters>,
    /// Whether it has ended in good order, and left already.
    over: bool,
}

impl Drop for WatchTask {
    fn drop(&mut self) {
        if !self.over {
            *self.waiters.lock() = WaitedJobs::default();
        }
    }
}

/// Waits until a job has ended well and returns its result.
pub(crate) async fn wait(engine: &Engine, id: JobId) -> Result<Payload> {
    let waiters = engine.waiters();
    let (answered, first) = waiters.enter(id);
    if first {
        let (waiters, store) = (Arc::clone(waiters), Arc::clone(engine.store()));
        let clock = Arc::clone(&engine.seams().clock);
        // Made before the task is: an executor that is gone drops it without having polled it.
        let guard = WatchTask { waiters: Arc::clone(&waiters), over: false };
        let task = async move {
            let mut guard = guard;
            watch(waiters, store, clock).await;
            guard.over = true;
        };
        engine.seams().spawn.spawn(Box::pin(task));
    }
    // Without an answer, the task is gone with its executor.
    match answered.await.unwrap_or(Err(Error::Closed))? {
        JobEnd::Ended { status, result, .. } if status.state == State::Succeeded => Ok(result),
        JobEnd::Ended { status, message, .. } => {
            Err(Error::Ended { id, status, message: message.unwrap_or_default() })
        }
        JobEnd::Missing | JobEnd::Open => Err(Error::NotFound(id)),
    }
}
