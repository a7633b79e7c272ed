//! The faults that every store suffers.

mod crashing_job;
pub(super) mod damaged_rows;
mod failure_point;
mod frozen_worker;
mod kill;
mod rush;
mod system_call;

use super::points::{self, Point};
use super::{Fault, StoreUnderTest};
use crashing_job::EnqueueCrashingJob;
use failure_point::DieAtPoint;
use frozen_worker::FreezeWorker;
use kill::KillVictim;
use rush::KillInRush;
use system_call::FailAtCall;

/// Plain kills for each other fault: a death has many moments, and no list names them all.
const KILLS: usize = 6;

/// All of them, for a store.
pub(super) fn all(under_test: &dyn StoreUnderTest) -> Vec<Box<dyn Fault>> {
    let mut faults: Vec<Box<dyn Fault>> =
        vec![Box::new(FreezeWorker), Box::new(EnqueueCrashingJob), Box::new(KillInRush)];
    faults.extend((0..KILLS).map(|_| Box::new(KillVictim) as Box<dyn Fault>));
    let here = |point: &&Point| under_test.reaches(point);
    for point in points::ALL.iter().filter(here) {
        faults.push(Box::new(DieAtPoint::new(*point)));
    }
    let calls = under_test.calls();
    for call in calls.names {
        faults
            .extend(calls.harms.iter().map(|harm| Box::new(FailAtCall::new(call, *harm)) as Box<dyn Fault>));
    }
    faults
}
