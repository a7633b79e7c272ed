//! Schedules under torture: they fire every second or two while everything else goes wrong, and rest when it is over.

use std::time::Duration;

use mainspring::schedule::{Missed, NewSchedule, Overlap};

use super::victim::Work;
use super::wait::{insist, wait};
use super::world::World;
use super::{Error, Result};

/// Their names.
pub(super) const NAMES: [&str; 4] = ["all", "once", "skip", "cancel"];

/// One per way to go on after a fire that was missed, or beside a job that has not ended.
fn schedule(name: &str) -> NewSchedule {
    let work = Work { millis: 20, ..Work::default() };
    let slow = Work { millis: 1_500, ..Work::default() };
    match name {
        "all" => NewSchedule::of(name, &work).times("every 1s").missed(Missed::All(20)),
        "skip" => NewSchedule::of(name, &slow).times("*/2 * * * * *").overlap(Overlap::Skip),
        "cancel" => {
            NewSchedule::of(name, &slow).times("every 2s").zone("Asia/Kolkata").overlap(Overlap::Cancel)
        }
        _ => NewSchedule::of(name, &work).times("* * * * * *").jitter(Duration::from_secs(1)),
    }
}

/// Sets them.
pub(super) async fn make(world: &World) -> Result<()> {
    let engine = world.engine()?;
    for name in NAMES {
        insist("a schedule is set", async || engine.schedules().set(schedule(name)).await).await?;
    }
    Ok(())
}

/// When all faults are over: sees each of them fire once more, whatever operators did, and then pauses it.
pub(super) async fn rest(world: &World) -> Result<()> {
    let engine = world.engine()?.clone();
    for name in NAMES {
        let resume = async || engine.schedules().resume(name).await;
        let since = insist("a schedule is resumed", resume).await?.state;
        wait("a schedule fires", async || {
            let now =
                engine.schedules().get(name).await.map_err(Error::store("looking at a schedule"))?.state;
            Ok((now.last_fire > since.last_fire).then_some(()))
        })
        .await?;
    }
    for name in NAMES {
        insist("a schedule rests", async || engine.schedules().pause(name, "the run is over").await).await?;
    }
    Ok(())
}
