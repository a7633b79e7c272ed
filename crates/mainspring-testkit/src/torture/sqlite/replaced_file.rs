//! The store's file is replaced under everybody, as a restored backup does.

use std::path::PathBuf;

use crate::history::Fact;
use crate::torture::wait::{now, wait};
use crate::torture::{Error, Fault, FaultFuture, Result, World};

/// Puts a copy in the place of the file: nothing may be acknowledged any more. Then everybody is killed, and the file comes back.
pub(super) struct ReplacedFile {
    pub(super) database: PathBuf,
}

impl Fault for ReplacedFile {
    fn name(&self) -> String {
        "file replaced".into()
    }

    fn inject<'a>(&'a mut self, world: &'a mut World) -> FaultFuture<'a> {
        Box::pin(async move {
            let (aside, copy) =
                (self.database.with_file_name("aside.db"), self.database.with_file_name("copy.db"));
            let failed = |error| Error::io("replacing the store's file")(error);
            std::fs::copy(&self.database, &copy).map_err(failed)?;
            world.fault("file replaced", None);
            std::fs::rename(&self.database, &aside).map_err(failed)?;
            std::fs::rename(&copy, &self.database).map_err(failed)?;
            // What was committed before may still be on its way to the ledger.
            pass(world).await?;
            let before = acknowledged(world)?;
            pass(world).await?;
            let after = acknowledged(world)?;
            world.kill_all().await?;
            std::fs::rename(&aside, &self.database).map_err(failed)?;
            if after > before {
                let what =
                    format!("{} calls were acknowledged into a file that was replaced", after - before);
                return Err(Error::Unexpected(what));
            }
            world.open().await?;
            Ok(true)
        })
    }
}

/// Lets a lease pass.
async fn pass(world: &World) -> Result<()> {
    let over = now().after(world.under_test().lease());
    wait("a lease has passed", async || Ok((now() >= over).then_some(()))).await
}

/// How many calls that change something were told that they have.
fn acknowledged(world: &World) -> Result<usize> {
    let told = |fact: &Fact| {
        matches!(fact, Fact::Acknowledged { .. } | Fact::Obeyed { .. })
            || matches!(fact, Fact::Finished { applied: true, .. } | Fact::Recorded { stored: true, .. })
    };
    Ok(world.history()?.iter().filter(|event| told(&event.fact)).count())
}
