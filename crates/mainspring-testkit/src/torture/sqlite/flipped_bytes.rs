//! Damage inside of the main file.
//!
//! What SQLite can notice must come out as damage: never as a panic, a hang, or an error that looks like any other. What it
//! cannot notice (bytes inside of a payload, a number that is still a number) is not covered: the file has no checksums.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use mainspring::Engine;

use super::copy;
use crate::torture::victim::ProbeResult;
use crate::torture::{Error, Fault, FaultFuture, Result, World};

/// Damaged copies for each fault.
const COPIES: usize = 5;
/// Bytes of a page.
const PAGE: u64 = 4_096;

/// Kills everybody, and lets probes loose on damaged copies of what they leave.
pub(super) struct FlippedBytes {
    pub(super) database: PathBuf,
    /// Copies whose damage was noticed.
    pub(super) noticed: usize,
}

impl Fault for FlippedBytes {
    fn name(&self) -> String {
        "page flip".into()
    }

    fn inject<'a>(&'a mut self, world: &'a mut World) -> FaultFuture<'a> {
        Box::pin(async move {
            world.kill_all().await?;
            let base = copy(&self.database, &world.dir().join("flip"))?;
            // Opened and closed once: everything is in the main file then.
            let engine = Engine::open(&format!("sqlite:{}", base.display())).await;
            engine.map_err(Error::store("opening a copy"))?.close().await;
            let before = self.noticed;
            for number in 0..COPIES {
                let folder = world.dir().join(format!("flip-{number}"));
                let database = copy(&base, &folder)?;
                let what = damage(&database, world)?;
                match world.probe(&format!("sqlite:{}", database.display()), &folder).await {
                    Ok(ProbeResult::Clean) => {}
                    Ok(ProbeResult::Damage(_)) => self.noticed += 1,
                    Ok(ProbeResult::Other(seen)) => {
                        return Err(Error::Unexpected(format!("{what} was told as {seen}")));
                    }
                    Err(error) => return Err(Error::Unexpected(format!("{what}: {error}"))),
                }
                std::fs::remove_dir_all(&folder).map_err(Error::io("removing a copy"))?;
            }
            let folder = world.dir().join("flip");
            std::fs::remove_dir_all(folder).map_err(Error::io("removing a copy"))?;
            world.open().await?;
            Ok(self.noticed > before)
        })
    }
}

/// Damages a page, and tells how.
fn damage(database: &Path, world: &World) -> Result<String> {
    let failed = |error| Error::io("damaging a copy")(error);
    let file = std::fs::OpenOptions::new().read(true).write(true).open(database).map_err(failed)?;
    let pages = file.metadata().map_err(failed)?.len() / PAGE;
    let page = world.below(pages);
    let at = page * PAGE;
    let random =
        |length: u64| (0..length).map(|_| u8::try_from(world.below(256)).unwrap_or(0)).collect::<Vec<u8>>();
    let (what, offset, bytes) = match world.below(5) {
        0 => ("zeroed", 0, vec![0; 4_096]),
        1 => ("made noise", 0, random(PAGE)),
        // The kind of the page, how many cells it has, and where they begin.
        2 => ("damaged in its head", world.below(12), random(1)),
        3 => ("damaged in its cell pointers", 12 + world.below(64), random(4)),
        _ => ("damaged somewhere", world.below(PAGE - 16), random(16)),
    };
    file.write_all_at(&bytes, at + offset).map_err(failed)?;
    Ok(format!("page {page} of {pages}, {what} at {offset}"))
}
