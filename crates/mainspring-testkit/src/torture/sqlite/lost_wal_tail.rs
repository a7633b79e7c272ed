//! The end of the write-ahead log is lost, as a disk that lies about what it has stored loses it.
//!
//! SQLite must open at an earlier commit: what was acknowledged last may be gone, but nothing in between. Only frames are
//! cut off that no checkpoint has copied into the main file, because no disk forgets what it was made to store before it
//! stores what came later.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use mainspring::Engine;
use mainspring_core::job::State;

use super::{beside, copy};
use crate::checker::{CheckTerms, FinalState, check};
use crate::history::{Event, Fact};
use crate::torture::{Error, Fault, FaultFuture, Result, World};

/// Cuts of copies, for each cut of the store itself.
const COPIES: usize = 4;

/// Kills everybody, cuts the log off at a random byte, and goes on from there.
pub(super) struct LostWalTail {
    pub(super) database: PathBuf,
}

impl Fault for LostWalTail {
    fn name(&self) -> String {
        "wal cut".into()
    }

    fn inject<'a>(&'a mut self, world: &'a mut World) -> FaultFuture<'a> {
        Box::pin(async move {
            world.kill_all().await?;
            let history = world.history()?;
            let log = Log::read(&self.database)?;
            for number in 0..COPIES {
                let folder = world.dir().join(format!("cut-{number}"));
                let database = copy(&self.database, &folder)?;
                log.cut(&database, world)?;
                let engine = Engine::open(&format!("sqlite:{}", database.display())).await;
                let engine = engine.map_err(Error::store("opening a store whose log was cut"))?;
                let found =
                    FinalState::look(&**engine.store()).await.map_err(Error::store("looking through it"))?;
                engine.close().await;
                judge(&history, &found)?;
                std::fs::remove_dir_all(&folder).map_err(Error::io("removing a copy"))?;
            }
            let kept = log.cut(&self.database, world)?;
            world.fault("wal cut", None);
            world.open().await?;
            let found = world.look().await?;
            let history = world.history()?;
            judge(&history, &found)?;
            world.excused.extend(found.jobs.iter().filter(|job| job.crashes >= 2).map(|job| job.id));
            world.rewrite(&rebase(&history, &found)).await?;
            world.open().await?;
            Ok(kept < log.end)
        })
    }
}

/// Nothing in between is gone.
fn judge(history: &[Event], found: &FinalState) -> Result<()> {
    let report = check(history, found, CheckTerms { cut: true, ..CheckTerms::default() });
    match report.violations.first() {
        Some(violation) => Err(Error::Unexpected(format!("after a cut: {violation}"))),
        None => Ok(()),
    }
}

/// Which bytes of the log may be cut off.
struct Log {
    /// The end of what a checkpoint may have copied.
    start: u64,
    /// The end of the last commit.
    end: u64,
}

impl Log {
    /// Reads the log's index, which outlives those who shared it. Its layout is part of SQLite's documented file format.
    fn read(database: &Path) -> Result<Self> {
        const MAX_FRAME: usize = 16;
        const ATTEMPTED: usize = 128;
        const PAGE: u64 = 4_096;
        // Each frame has a header of its own, and so has the log.
        const LOG_HEADER: u64 = 32;
        const FRAME_HEADER: u64 = 24;
        let index = std::fs::read(beside(database, "-shm")).map_err(Error::io("reading the log's index"))?;
        let number = |at: usize| {
            let bytes = index.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            u64::from(bytes.map_or(0, u32::from_ne_bytes))
        };
        let offset = |frames: u64| LOG_HEADER + frames * (FRAME_HEADER + PAGE);
        let end = offset(number(MAX_FRAME));
        Ok(Log { start: offset(number(ATTEMPTED)).min(end), end })
    }

    /// Cuts a log off at a random byte, and tells where.
    fn cut(&self, database: &Path, world: &World) -> Result<u64> {
        let length = self.start + world.below(self.end - self.start + 1);
        let log = OpenOptions::new().write(true).open(beside(database, "-wal"));
        let cut = log.and_then(|log| log.set_len(length));
        cut.map_err(Error::io("cutting the log"))?;
        Ok(length)
    }
}

/// The history of what is left: as if all that was lost had never been.
fn rebase(history: &[Event], found: &FinalState) -> Vec<Event> {
    let jobs: std::collections::BTreeMap<_, _> = found.jobs.iter().map(|job| (job.id, job)).collect();
    let kept = |event: &&Event| {
        let Some(id) = event.fact.job() else {
            // All members are dead, and their numbers may be given out again.
            return matches!(event.fact, Fact::Fault { .. });
        };
        let Some(job) = jobs.get(&id) else { return false };
        let ended = job.status.state != State::Running;
        match event.fact {
            // What was recorded may be gone, and is done again then.
            Fact::Obeyed { .. }
            | Fact::Recording { .. }
            | Fact::Recorded { .. }
            | Fact::Suspending { .. }
            | Fact::Remembers { .. }
            | Fact::Delivered { .. }
            | Fact::Entered { .. }
            | Fact::Ran { .. }
            | Fact::Saw { .. } => false,
            Fact::Finished { claim, .. } => claim < job.claim || (claim == job.claim && ended),
            Fact::Claimed { claim, .. }
            | Fact::Began { claim, .. }
            | Fact::Ended { claim, .. }
            | Fact::Stopped { claim, .. }
            | Fact::Finishing { claim, .. } => claim <= job.claim,
            _ => true,
        }
    };
    history.iter().filter(kept).cloned().collect()
}
