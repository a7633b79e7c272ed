//! The claims that a node holds: from the moment of the claim until its outcome is stored.
//!
//! # Invariants
//! - A claim that is not here is not this node's business: nothing is written for it.
//! - Claims of a lost membership leave together, and none of them can enter afterwards.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use mainspring_core::id::{Claim, JobId, NodeNo, Row};
use tokio::sync::Notify;

use crate::job_run::{JobRun, Stop};
use crate::sync::{Mutex, MutexGuard};

pub(super) struct Held {
    state: Mutex<HeldClaims>,
    emptied: Notify,
}

struct HeldClaims {
    node: NodeNo,
    runs: BTreeMap<(Row, u32), Arc<JobRun>>,
}

fn key(claim: &Claim) -> (Row, u32) {
    (claim.row, claim.number)
}

impl Held {
    pub(super) fn new(node: NodeNo) -> Self {
        Held { state: Mutex::new(HeldClaims { node, runs: BTreeMap::new() }), emptied: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, HeldClaims> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node's present number.
    pub(super) fn node(&self) -> NodeNo {
        self.lock().node
    }

    /// Takes a batch in. `false` if it was claimed under a membership that has been lost since.
    pub(super) fn add(&self, node: NodeNo, runs: impl Iterator<Item = Arc<JobRun>>) -> bool {
        let mut state = self.lock();
        if state.node != node {
            return false;
        }
        state.runs.extend(runs.map(|run| (key(&run.claim), run)));
        true
    }

    /// Lets claims go whose outcome is stored or was refused.
    pub(super) fn remove<'a>(&self, claims: impl Iterator<Item = &'a Claim>) {
        let mut state = self.lock();
        for claim in claims {
            state.runs.remove(&key(claim));
        }
        if state.runs.is_empty() {
            self.emptied.notify_waiters();
        }
    }

    /// Starts over under a new number: everything held is abandoned.
    pub(super) fn rejoin(&self, node: NodeNo) {
        let runs = {
            let mut state = self.lock();
            state.node = node;
            std::mem::take(&mut state.runs)
        };
        for run in runs.values() {
            run.stop(Stop::Abandon);
        }
        self.emptied.notify_waiters();
    }

    pub(super) fn get(&self, claim: &Claim) -> Option<Arc<JobRun>> {
        self.lock().runs.get(&key(claim)).cloned()
    }

    /// The run of a job, if it is held.
    pub(super) fn of(&self, id: JobId) -> Option<Arc<JobRun>> {
        self.lock().runs.values().find(|run| run.claim.id == id).cloned()
    }

    /// All claims held at this moment.
    pub(super) fn all(&self) -> Vec<Arc<JobRun>> {
        self.lock().runs.values().cloned().collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().runs.is_empty()
    }

    /// Waits until nothing is held.
    pub(super) async fn empty(&self) {
        loop {
            let mut emptied = std::pin::pin!(self.emptied.notified());
            emptied.as_mut().enable();
            if self.is_empty() {
                return;
            }
            emptied.await;
        }
    }
}
