//! Rows of jobs that somebody damages in the store of a simulation, and mends again.
//!
//! Most are mended after a while, some only when all the rest has come to its end: what is damaged holds up nobody. Whoever
//! mends a job resumes it, and now and then tries to resume one that is still damaged.

use std::time::Duration;

use mainspring_core::id::JobId;
use mainspring_core::job::{Reason, State, Summary};
use mainspring_core::seam::Clock;
use mainspring_core::store::{Filter, Page};

use super::director::{AFTERMATH, Director, LOOK, OPEN};
use super::world::{between, chance, lock, pick};
use crate::executor::block_on;
use crate::history::Fact;

/// Jobs among which one is chosen, and open jobs that are looked at.
const CHOICE: usize = 200;

impl Director {
    /// Damages the row of some job, and mends it a while later, or leaves it so until the end.
    pub(super) async fn damage(&self, lasts: Duration) {
        let (world, fate) = (&self.world, &self.world.fate);
        let mut jobs = self.list(&[State::Ready, State::Scheduled, State::Suspended, State::Running]);
        jobs.retain(|job| !lock(&world.damaged).contains_key(&job.id));
        if jobs.is_empty() {
            return;
        }
        // Those that are about to be claimed most often.
        let ready: Vec<_> = jobs.iter().filter(|job| job.status.state == State::Ready).collect();
        let among: Vec<_> = if ready.is_empty() || chance(fate, 0.4) { jobs.iter().collect() } else { ready };
        let Summary { id, claim, .. } = *pick(fate, &among);
        let Some(mend) = world.backend.damage(id) else { return };
        world.fault("row damaged", None, Duration::ZERO);
        world.note(Fact::Damaged { id, claim });
        lock(&world.damaged).insert(id, mend);
        if chance(fate, 0.3) {
            return;
        }
        world.time.sleep(lasts / 2).await;
        if chance(fate, 0.3) {
            self.resume(id).await;
        }
        world.time.sleep(lasts / 2).await;
        // Once all is calm, what is still damaged stays so until all others have ended.
        if !self.is_calm() {
            self.mend(id).await;
        }
    }

    /// Mends all that is still damaged, when all the rest has had time to come to its end.
    pub(super) async fn mend_all(&self) {
        let world = &self.world;
        let damaged: Vec<JobId> = lock(&world.damaged).keys().copied().collect();
        if damaged.is_empty() {
            return;
        }
        let until = world.time.monotonic() + AFTERMATH + world.config.lease * 6;
        while self.has_open() && world.time.monotonic() < until {
            world.time.sleep(LOOK).await;
        }
        for job in self.list(&OPEN) {
            self.note_look(&job);
        }
        for id in damaged {
            self.mend(id).await;
        }
    }

    /// Mends a job, and resumes it if a claim has met it.
    async fn mend(&self, id: JobId) {
        let Some(mend) = lock(&self.world.damaged).remove(&id) else { return };
        if let Some(job) = self.find(id) {
            self.note_look(&job);
        }
        self.world.note(Fact::Mended { id });
        self.world.backend.mend(id, &mend);
        // Whatever happens to one order: from now on no claim finds anything wrong with it.
        while self.find(id).is_some_and(|job| job.status.reason == Some(Reason::Unreadable)) {
            self.resume(id).await;
            self.world.time.sleep(between(&self.world.fate, Duration::ZERO, LOOK)).await;
        }
    }

    async fn resume(&self, id: JobId) {
        let mender = lock(&self.mender).clone();
        if let Some(mender) = mender {
            // What is refused, or did not arrive, is ordered again if it is needed.
            drop(mender.jobs().resume(id).await);
        }
    }

    fn note_look(&self, job: &Summary) {
        let Summary { id, status, claim, crashes, .. } = *job;
        self.world.note(Fact::Looked { id, status, claim, crashes });
    }

    fn find(&self, id: JobId) -> Option<Summary> {
        block_on(self.store.get(id)).ok().flatten().map(|record| record.summary)
    }

    fn list(&self, states: &[State]) -> Vec<Summary> {
        let filter = Filter { states: states.to_vec(), ..Filter::default() };
        let listing = block_on(self.store.list(filter, Page { after: None, limit: CHOICE }));
        listing.map(|listing| listing.jobs).unwrap_or_default()
    }
}
