//! The blows that every store suffers.

pub(super) mod damage;
mod kill;
mod point;
mod poison;
mod stop;
mod syscall;

use super::points::{self, Point};
use super::{Blow, Stage};
use kill::Kill;
use point::AtPoint;
use poison::Swallow;
use stop::Freeze;
use syscall::AtCall;

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
