//! The blows that every store suffers.

mod crashing_job;
pub(super) mod damaged_rows;
mod failure_point;
mod frozen_worker;
mod kill;
mod system_call;

use super::points::{self, Point};
use super::{Blow, Stage};
use crashing_job::Swallow;
use failure_point::AtPoint;
use frozen_worker::Freeze;
use kill::Kill;
use system_call::AtCall;

/// Plain kills for each other blow: a death has many moments, and no list names them all.
const KILLS: usize = 6;

/// All of them, for a store.
pub(super) fn all(stage: &dyn Stage) -> Vec<Box<dyn Blow>> {
    let mut blows: Vec<Box<dyn Blow>> = vec![Box::new(Freeze), Box::new(Swallow)];
    blows.extend((0..KILLS).map(|_| Box::new(Kill) as Box<dyn Blow>));
    let here = |point: &&Point| stage.reaches(point);
    for point in points::ALL.iter().filter(here) {
        blows.push(Box::new(AtPoint::new(*point)));
    }
    let calls = stage.calls();
    for call in calls.names {
        blows.extend(calls.harms.iter().map(|harm| Box::new(AtCall::new(call, *harm)) as Box<dyn Blow>));
    }
    blows
}
