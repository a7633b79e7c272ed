//! Torture: real processes on a real store, and one fault after the other.
//!
//! A [`World`] is a store with three workers, a producer and an operator on it, each a process of its own (the
//! [`victim`]s). A [`Fault`] breaks something while they are busy; one fault is one cycle. When all cycles are over the
//! world is left in peace, everything must drain, and the [checker](crate::checker) judges what the victims wrote into
//! the [`ledger`] against what the store holds.
//!
//! A store takes part as a [`StoreUnderTest`]: where it is, and which faults only it can suffer. [`faults`] has those that every store
//! suffers: kills, stops, failure points, system calls that fail.
//!
//! # Invariants
//! - No process outlives its world.
//! - Nothing waits for ever: a wait that ends in vain ends the run, and keeps its directory.
//! - A fault says whether it hit; a kind that never hit is a failure of the run.

mod error;
pub mod faults;
mod fires;
pub mod inject;
pub mod ledger;
mod long_workflows;
mod outcome;
pub mod points;
pub mod postgres;
mod process;
mod rows;
mod run;
mod schedules;
pub mod sqlite;
pub mod victim;
mod wait;
mod world;

pub use error::{Error, Result};
pub use fires::fires;
pub use long_workflows::{LongRun, marathon};
pub use outcome::{FaultCount, Outcome};
pub use process::{Role, Victim, VictimOptions};
pub use run::{Plan, command, run};
pub use wait::{PATIENCE, wait};
pub use world::World;

use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use mainspring::Engine;
use mainspring_core::seam::Pending;

/// A store under torture.
pub trait StoreUnderTest: Send + Sync {
    /// What it is called: `sqlite`, `postgres`.
    fn name(&self) -> &'static str;

    /// The address under which victims open it.
    fn address(&self) -> String;

    /// Opens it for the rig itself, by a way that no fault cuts.
    fn open(&self) -> Pending<'_, mainspring_core::Result<Engine>>;

    /// The crates whose failure points a victim on this store can reach.
    fn crates(&self) -> &'static [&'static str];

    /// Whether a victim on this store comes by a point.
    fn reaches(&self, point: &points::Point) -> bool {
        self.crates().contains(&point.of)
    }

    /// Whether producers come by a point again and again, and not only workers.
    fn is_passed_by_producers(&self, _point: &points::Point) -> bool {
        false
    }

    /// Which system calls carry its writes, and on which files. Without files they are hit wherever they go, so a call
    /// that the ledger is written with (`write`) needs some.
    fn calls(&self) -> WriteCalls;

    /// An empty store of the same sort, for faults that need one: migrations are interrupted there. Gone when dropped.
    fn another(&self) -> Result<Box<dyn StoreUnderTest>>;

    /// The faults that only this store can suffer.
    fn faults(&self) -> Vec<Box<dyn Fault>>;

    /// Runs a statement of the application, which shares the database with the store; the rows, as text.
    ///
    /// # Errors
    /// If it fails.
    fn sql(&self, sql: &str) -> Result<Vec<Vec<Option<String>>>>;

    /// Loses an answer on its way to a victim, if that can happen to this store. Done again and again while a worker is
    /// awaited at a point that only those come by who have lost one.
    fn unsettle(&self) {}

    /// The lease of the workers: short, because some faults outlast it.
    fn lease(&self) -> Duration {
        Duration::from_secs(2)
    }

    /// How much longer than its lease anybody who died in peace may remain undiscovered, on a machine that is busy.
    fn slack(&self) -> Duration {
        Duration::from_secs(1)
    }

    /// Within which time the jobs of a killed worker are to be found, in the median: by proof, or by its lease.
    fn recovery(&self) -> Duration;
}

/// System calls that carry a store's writes.
#[derive(Debug, Clone, Default)]
pub struct WriteCalls {
    /// Their names, as `strace` knows them.
    pub names: &'static [&'static str],
    /// The files that they must concern; none if it is their own sort that tells them apart.
    pub files: Vec<PathBuf>,
    /// What happens at them, each on its own.
    pub harms: &'static [inject::SyscallFault],
}

/// A fault under way. It stays on its thread, which a rig has for itself.
pub type FaultFuture<'a> = Pin<Box<dyn Future<Output = Result<bool>> + 'a>>;

/// Something that goes wrong, on purpose.
pub trait Fault {
    /// Its kind, in figures and for `--only`.
    fn name(&self) -> String;

    /// Strikes a busy world, and tells whether it hit. It notes the fault in the ledger *before* anybody can notice it, and
    /// leaves the world able to go on: the dead may be left to [`World::replace_dead`].
    ///
    /// # Errors
    /// If the world does not do what it must, or something waits in vain.
    fn inject<'a>(&'a mut self, world: &'a mut World) -> FaultFuture<'a>;
}
