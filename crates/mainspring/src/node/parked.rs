//! Suspended handlers that are kept in memory for a while: a quick wake need not run them from their top.
//!
//! Nothing depends on it. A handler is taken up again only under the very next claim of its job, and only if the store has
//! said that it was suspended: then everything that it knows is as it is stored.

use std::collections::{BTreeMap, VecDeque};
use std::sync::PoisonError;
use std::time::Duration;

use mainspring_core::id::{Claim, JobId};
use mainspring_core::planted::{self, Defect};
use tokio::sync::Notify;

use super::Shared;
use crate::durable::root::Activation;
use crate::panic::drop_caught;
use crate::sync::{Mutex, MutexGuard};

/// How long a handler is kept.
const AGE: Duration = Duration::from_secs(10);

pub(super) struct Parked {
    state: Mutex<State>,
    limit: usize,
    /// Told when there is something to be dropped in time.
    told: Notify,
}

#[derive(Default)]
struct State {
    kept: BTreeMap<JobId, Kept>,
    /// When and under which claim handlers were parked, the first first. Some are gone already.
    order: VecDeque<(Duration, JobId, u32)>,
    closed: bool,
}

struct Kept {
    activation: Activation,
    claim: u32,
    /// Whether the store has said that the job is suspended.
    confirmed: bool,
}

impl Parked {
    pub(super) fn new(limit: usize) -> Self {
        Parked { state: Mutex::default(), limit, told: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a handler; others may have to go for it.
    pub(super) fn put(&self, claim: &Claim, activation: Activation, now: Duration) {
        let mut gone = Vec::new();
        {
            let mut state = self.lock();
            if self.limit == 0 || state.closed {
                gone.push(activation);
            } else {
                let kept = Kept { activation, claim: claim.number, confirmed: false };
                gone.extend(state.kept.insert(claim.id, kept).map(|kept| kept.activation));
                state.order.push_back((now, claim.id, claim.number));
                while state.kept.len() > self.limit {
                    let Some((_, id, number)) = state.order.pop_front() else { break };
                    gone.extend(state.remove(id, number));
                }
            }
        }
        self.told.notify_one();
        gone.into_iter().for_each(drop_caught);
    }

    /// The store has said what became of a suspension.
    pub(super) fn answered(&self, claim: &Claim, suspended: bool) {
        let gone = {
            let mut state = self.lock();
            match state.kept.get_mut(&claim.id).filter(|kept| kept.claim == claim.number) {
                Some(kept) if suspended || planted::is(Defect::ParkedUnconfirmed) => {
                    kept.confirmed = true;
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
        let kept = self.lock().kept.remove(&claim.id)?;
        if kept.confirmed && kept.claim + 1 == claim.number {
            return Some(kept.activation);
        }
        drop_caught(kept.activation);
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
            std::mem::replace(&mut *state, State { closed: true, ..State::default() })
        };
        state.kept.into_values().for_each(|kept| drop_caught(kept.activation));
    }
}

impl State {
    fn remove(&mut self, id: JobId, number: u32) -> Option<Activation> {
        self.kept.get(&id).filter(|kept| kept.claim == number)?;
        self.kept.remove(&id).map(|kept| kept.activation)
    }
}

/// Drops handlers that were not taken up again in time, and all when the node goes.
pub(super) async fn run(shared: std::sync::Arc<Shared>) {
    while !shared.is_closing() {
        if let Some(wait) = shared.parked.expire(shared.clock().monotonic()) {
            shared.pause(wait).await;
            continue;
        }
        tokio::select! {
            biased;
            () = shared.closing() => {}
            () = shared.parked.told.notified() => {}
        }
    }
    shared.parked.close();
}
