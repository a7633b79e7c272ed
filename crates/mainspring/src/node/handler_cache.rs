//! The handler cache: suspended handlers stay in memory for a while, so that a quick wake need not run them from their top.
//!
//! Nothing depends on it. A handler resumes only under the very next claim of its job, and only if the store has confirmed
//! the suspension: then everything that the handler knows is as it is stored.

use std::collections::{BTreeMap, VecDeque};
use std::sync::PoisonError;
use std::time::Duration;

use mainspring_core::id::{Claim, JobId};
use mainspring_core::planted::{self, Defect};
use tokio::sync::Notify;

use super::NodeShared;
use crate::durable::activation::Activation;
use crate::panic::drop_caught;
use crate::sync::{Mutex, MutexGuard};

/// How long a handler is cached.
const AGE: Duration = Duration::from_secs(10);

pub(super) struct HandlerCache {
    state: Mutex<CacheState>,
    most: usize,
    /// Notified when a handler came that has to be dropped in time.
    added: Notify,
}

#[derive(Default)]
struct CacheState {
    cached: BTreeMap<JobId, CachedHandler>,
    /// When and under which claim handlers came, the oldest first. Some are gone already.
    order: VecDeque<(Duration, JobId, u32)>,
    closed: bool,
}

struct CachedHandler {
    activation: Activation,
    claim: u32,
    /// Whether the store has said that the job is suspended.
    confirmed: bool,
}

impl HandlerCache {
    pub(super) fn new(most: usize) -> Self {
        HandlerCache { state: Mutex::default(), most, added: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a handler. Older ones go if there are too many.
    pub(super) fn add(&self, claim: &Claim, activation: Activation, now: Duration) {
        let mut gone = Vec::new();
        {
            let mut state = self.lock();
            if self.most == 0 || state.closed {
                gone.push(activation);
            } else {
                let cached = CachedHandler { activation, claim: claim.number, confirmed: false };
                gone.extend(state.cached.insert(claim.id, cached).map(|cached| cached.activation));
                state.order.push_back((now, claim.id, claim.number));
                while state.cached.len() > self.most {
                    let Some((_, id, number)) = state.order.pop_front() else { break };
                    gone.extend(state.remove(id, number));
                }
            }
        }
        self.added.notify_one();
        gone.into_iter().for_each(drop_caught);
    }

    /// The store has answered a suspension.
    pub(super) fn answered(&self, claim: &Claim, suspended: bool) {
        let gone = {
            let mut state = self.lock();
            match state.cached.get_mut(&claim.id).filter(|cached| cached.claim == claim.number) {
                Some(cached) if suspended || planted::is(Defect::CachedUnconfirmed) => {
                    cached.confirmed = true;
                    None
                }
                Some(_) => state.remove(claim.id, claim.number),
                None => None,
            }
        };
        gone.into_iter().for_each(drop_caught);
    }

    /// The handler of a job that was claimed again, if it can go on.
    pub(super) fn take(&self, claim: &Claim) -> Option<Activation> {
        let cached = self.lock().cached.remove(&claim.id)?;
        if cached.confirmed && cached.claim + 1 == claim.number {
            return Some(cached.activation);
        }
        drop_caught(cached.activation);
        None
    }

    /// Drops what is too old; says when to look again.
    fn expire(&self, now: Duration) -> Option<Duration> {
        let (mut gone, mut next) = (Vec::new(), None);
        {
            let mut state = self.lock();
            while let Some(&(since, id, number)) = state.order.front() {
                next = (since + AGE).checked_sub(now).filter(|left| !left.is_zero());
                if next.is_some() {
                    break;
                }
                state.order.pop_front();
                gone.extend(state.remove(id, number));
            }
        }
        gone.into_iter().for_each(drop_caught);
        next
    }

    fn close(&self) {
        let state = {
            let mut state = self.lock();
            std::mem::replace(&mut *state, CacheState { closed: true, ..CacheState::default() })
        };
        state.cached.into_values().for_each(|cached| drop_caught(cached.activation));
    }
}

impl CacheState {
    fn remove(&mut self, id: JobId, number: u32) -> Option<Activation> {
        self.cached.get(&id).filter(|cached| cached.claim == number)?;
        self.cached.remove(&id).map(|cached| cached.activation)
    }
}

/// Drops handlers that were not taken up again in time, and all when the node goes.
pub(super) async fn run(shared: std::sync::Arc<NodeShared>) {
    while !shared.is_closing() {
        if let Some(wait) = shared.handler_cache.expire(shared.clock().monotonic()) {
            shared.pause(wait).await;
            continue;
        }
        tokio::select! {
            biased;
            () = shared.closing() => {}
            () = shared.handler_cache.added.notified() => {}
        }
    }
    shared.handler_cache.close();
}
