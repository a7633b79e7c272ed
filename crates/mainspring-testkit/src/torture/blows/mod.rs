//! The blows that every store suffers.

mod kill;
mod point;
mod poison;
mod stop;
mod syscall;

use super::inject::Harm;
use super::points::{self, Point};
use super::{Blow, Stage};
use kill::Kill;
use point::AtPoint;
use poison::Swallow;
use stop::Freeze;
use syscall::AtCall;

/// What happens at system calls, each on its own. A disk that is full or read-only stays so for a while.
const HARMS: [Harm; 4] = [Harm::Kill, Harm::Fail("EIO", 1), Harm::Fail("ENOSPC", 5), Harm::Fail("EROFS", 5)];

/// All of them, for a store.
pub(super) fn all(stage: &dyn Stage) -> Vec<Box<dyn Blow>> {
    let mut blows: Vec<Box<dyn Blow>> = vec![Box::new(Kill), Box::new(Freeze), Box::new(Swallow)];
    let here = |point: &&Point| stage.crates().contains(&point.of);
    for point in points::ALL.iter().filter(here) {
        blows.push(Box::new(AtPoint::new(*point)));
    }
    for call in stage.calls().names {
        for harm in HARMS {
            blows.push(Box::new(AtCall::new(call, harm)));
        }
    }
    blows
}
