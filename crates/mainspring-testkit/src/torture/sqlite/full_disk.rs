//! A disk that is full for a while.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::history::Fact;
use crate::torture::victim::Work;
use crate::torture::wait::{now, wait, within};
use crate::torture::{Error, Fault, FaultFuture, Result, Victim, World};

/// Fills the file system of the store, for longer than a lease, and makes room again. Nobody may have to be restarted, and
/// nobody may be expired: a store that is away for all proves nothing of anybody.
pub(super) struct FullDisk {
    pub(super) folder: PathBuf,
}

impl Fault for FullDisk {
    fn name(&self) -> String {
        "disk full".into()
    }

    fn inject<'a>(&'a mut self, world: &'a mut World) -> FaultFuture<'a> {
        Box::pin(async move {
            let lease = world.under_test().lease();
            world.note(Fact::fault("disk full", None, Some(now().after(lease * 3))));
            let filler = self.folder.join("filler");
            let filled = fill(&filler);
            let felt = felt(world, lease).await;
            std::fs::remove_file(&filler).map_err(Error::io("making room again"))?;
            filled?;
            felt?;
            world.goes_on().await?;
            for victim in world.workers.iter_mut().chain(&mut world.others) {
                if let Some(status) = victim.ended()? {
                    let (role, number) = (victim.role.as_str(), Victim::number(victim));
                    return Err(Error::Unexpected(format!(
                        "{role} {number} ended with {status} for want of room"
                    )));
                }
            }
            Ok(true)
        })
    }
}

/// Waits until the disk is seen to be full, and for longer than a lease.
async fn felt(world: &World, lease: std::time::Duration) -> Result<()> {
    let engine = world.engine()?.clone();
    wait("the disk is full", async || {
        let full = matches!(engine.enqueue(Work::default()).await, Err(mainspring::Error::DiskFull));
        Ok(full.then_some(()))
    })
    .await?;
    within(lease * 3 / 2, async || Ok(None::<()>)).await.map(drop)
}

/// Leaves no room.
fn fill(path: &Path) -> Result<()> {
    let mut file = File::create(path).map_err(Error::io("filling the disk"))?;
    for size in [1 << 20, 4_096] {
        loop {
            match file.write_all(&vec![0; size]) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => break,
                Err(error) => return Err(Error::io("filling the disk")(error)),
            }
        }
    }
    Ok(())
}
