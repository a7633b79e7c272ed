//! The lock files of living workers are removed, as a cleaner of old files does.

use std::collections::BTreeSet;
use std::path::PathBuf;

use mainspring_core::id::NodeNo;
use mainspring_core::store::NodeState;

use crate::torture::run::leave;
use crate::torture::wait::{now, wait};
use crate::torture::{Error, Fault, FaultFuture, Result, World};

/// Removes all lock files. Nobody living may be expired for it, for as long as several rounds of rescue take. Everybody is
/// then replaced: who has no lock file is found dead by his lease alone.
pub(super) struct RemovedLocks {
    pub(super) database: PathBuf,
}

impl Fault for RemovedLocks {
    fn name(&self) -> String {
        "locks removed".into()
    }

    fn inject<'a>(&'a mut self, world: &'a mut World) -> FaultFuture<'a> {
        Box::pin(async move {
            let before = live(world).await?;
            world.fault("locks removed", None);
            let removed = remove(&self.database)?;
            // Rescue looks every half second.
            let over = now().after(world.under_test().lease());
            wait("rescuers have looked", async || Ok((now() >= over).then_some(()))).await?;
            let after = live(world).await?;
            if before != after {
                let what = format!("lock files were removed, and of the nodes {before:?} live {after:?}");
                return Err(Error::Unexpected(what));
            }
            for mut worker in std::mem::take(&mut world.workers) {
                leave(world, &mut worker).await?;
            }
            Ok(removed >= before.len())
        })
    }
}

/// The numbers of the workers that live.
async fn live(world: &World) -> Result<BTreeSet<NodeNo>> {
    let numbers: Vec<_> = world.workers.iter().map(crate::torture::Victim::number).collect();
    let nodes = world.nodes().await?;
    let live = nodes.iter().filter(|node| node.state == NodeState::Live && numbers.contains(&node.pid));
    Ok(live.map(|node| node.no).collect())
}

fn remove(database: &std::path::Path) -> Result<usize> {
    let failed = |error| Error::io("removing lock files")(error);
    let mut removed = 0;
    for entry in std::fs::read_dir(database.parent().unwrap_or(database)).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let is_lock = path.extension().is_some_and(|extension| extension == "lock");
        if is_lock && path.file_name().is_some_and(|name| name.to_string_lossy().contains("-node-")) {
            std::fs::remove_file(&path).map_err(failed)?;
            removed += 1;
        }
    }
    Ok(removed)
}
