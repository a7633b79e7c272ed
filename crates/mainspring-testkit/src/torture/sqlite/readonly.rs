//! A store that may not be written to for a while.
//!
//! Whoever has the file open goes on, as the operating system lets him; whoever opens it meanwhile is told why he cannot.
//! (What a file system does to those that write when it becomes read-only under them, injected system calls do: `EROFS`.)

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::beside;
use crate::torture::wait::wait;
use crate::torture::{Error, Fault, FaultFuture, Result, Role, VictimOptions, World};

/// Takes the right to write from file and folder, sees a new worker refused, gives it back, and sees one come.
pub(super) struct ReadOnly {
    pub(super) database: PathBuf,
}

impl Fault for ReadOnly {
    fn name(&self) -> String {
        "read-only".into()
    }

    fn inject<'a>(&'a mut self, world: &'a mut World) -> FaultFuture<'a> {
        Box::pin(async move {
            let orders = VictimOptions { unprivileged: true, ..VictimOptions::default() };
            world.fault("read-only", None);
            allow(&self.database, 0o444, 0o555)?;
            let refused = world.start(Role::Worker, &orders);
            let status = match refused {
                Ok(mut worker) => world.end_of(&mut worker).await,
                Err(error) => Err(error),
            };
            allow(&self.database, 0o666, 0o777)?;
            let status = status?;
            if status.code() != Some(1) {
                return Err(Error::Unexpected(format!("on a read-only store a worker ended with {status}")));
            }
            let mut worker = world.start(Role::Worker, &orders)?;
            wait("a worker is a member again", async || Ok(world.node(worker.number()).await?.map(drop)))
                .await?;
            worker.dismiss();
            Ok(world.end_of(&mut worker).await?.success())
        })
    }
}

fn allow(database: &Path, file: u32, folder: u32) -> Result<()> {
    let set = |path: &Path, mode| {
        set_permissions(path, Permissions::from_mode(mode)).map_err(Error::io("changing permissions"))
    };
    for ending in ["", "-wal", "-shm"] {
        set(&beside(database, ending), file)?;
    }
    database.parent().map_or(Ok(()), |parent| set(parent, folder))
}
