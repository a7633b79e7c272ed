//! Who waits for which job to end.
//!
//! A node of the same process tells at once; for jobs that end elsewhere the store's hint of foreign commits, or a look
//! once a second, does.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use mainspring_core::id::JobId;
use mainspring_core::job::State;
use mainspring_core::store::{Hint, Listener};
use mainspring_core::{Error, Result};
use tokio::sync::Notify;

use crate::engine::Engine;
use crate::handler::Payload;
use crate::sync::Mutex;

/// How long a wait relies on being told before it looks by itself.
const LOOK: Duration = Duration::from_secs(1);

/// Callers that wait for jobs, and nodes that can be nudged.
#[derive(Default)]
pub(crate) struct Waiters {
    jobs: Mutex<BTreeMap<JobId, (usize, Arc<Notify>)>>,
    nudges: Mutex<Vec<Weak<dyn Listener>>>,
}

impl Waiters {
    /// Tells those who wait for a job that it has ended.
    pub(crate) fn ended(&self, id: JobId) {
        if let Some((_, notify)) = self.jobs.lock().unwrap_or_else(PoisonError::into_inner).get(&id) {
            notify.notify_waiters();
        }
    }

    /// Lets all who wait look again.
    pub(crate) fn wake_all(&self) {
        for (_, notify) in self.jobs.lock().unwrap_or_else(PoisonError::into_inner).values() {
            notify.notify_waiters();
        }
    }

    /// Has a node told by every [`nudge`](Self::nudge) until it is dropped.
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
}

/// One caller's interest in one job, given up when dropped.
struct Interest<'a> {
    waiters: &'a Waiters,
    id: JobId,
    notify: Arc<Notify>,
}

impl<'a> Interest<'a> {
    fn new(waiters: &'a Waiters, id: JobId) -> Self {
        let mut jobs = waiters.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, notify) = jobs.entry(id).or_default();
        *count += 1;
        let notify = Arc::clone(notify);
        drop(jobs);
        Interest { waiters, id, notify }
    }
}

impl Drop for Interest<'_> {
    fn drop(&mut self) {
        let mut jobs = self.waiters.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((count, _)) = jobs.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                jobs.remove(&self.id);
            }
        }
    }
}

/// Waits until a job has ended well and returns its output.
pub(crate) async fn wait(engine: &Engine, id: JobId) -> Result<Payload> {
    let interest = Interest::new(engine.waiters(), id);
    loop {
        let mut told = std::pin::pin!(interest.notify.notified());
        // Registered before the look, so that an end in between is not missed.
        told.as_mut().enable();
        match engine.store().get(id).await {
            Ok(Some(record)) => match record.summary.status.state {
                State::Succeeded => return Ok(record.output),
                state if state.is_terminal() => {
                    let last = record.errors.last().map(|error| error.message.clone());
                    let message = record.note.or(last);
                    return Err(Error::Ended { id, status: record.summary.status, message });
                }
                _ => {}
            },
            Ok(None) => return Err(Error::NotFound(id)),
            Err(error) if error.is_retryable() => {}
            Err(error) => return Err(error),
        }
        tokio::select! {
            biased;
            () = told => {}
            () = engine.seams().clock.sleep(LOOK) => {}
        }
    }
}
