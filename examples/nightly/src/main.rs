//! Nightly: a schedule enqueues a report every night, in local time, and a person runs it now.
//!
//! Run it twice: the second run finds the schedule that the first has stored, and changes nothing about it.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use mainspring::schedule::{NewSchedule, Overlap};
use mainspring::{Context, Engine, Job};
use serde::{Deserialize, Serialize};

/// The report of one night.
#[derive(Serialize, Deserialize, Job)]
#[job(kind = "report", result = String)]
struct Report {
    /// The time of the fire; the schedule's template fills it in.
    night: String,
}

async fn report(_ctx: Context, job: Report) -> mainspring::HandlerResult<String> {
    // The time of the fire, not of the clock: a report that runs late is still the report of its night.
    let date = job.night.split('T').next().unwrap_or_default();
    Ok(format!("the report of {date}"))
}

#[tokio::main]
async fn main() -> Result<(), mainspring::Error> {
    let engine = Engine::open("sqlite:nightly.db").await?;

    // At 02:30 in Berlin, also where clocks change; never two at once.
    let nightly = NewSchedule::of("nightly", &Report { night: "{{fire}}".into() })
        .times("30 2 * * *")
        .zone("Europe/Berlin")
        .overlap(Overlap::Skip);
    let node = engine.node().handle(report).schedule(nightly).queue("default", 1).start().await?;

    let next = engine.schedules().next("nightly", 7).await?;
    println!("the next {} nights are known", next.len());

    // `mainspring schedule run nightly` does the same.
    let job = engine.schedules().by("ann").run("nightly").await?;
    println!("by hand: {}", engine.result_of::<Report>(job).await?);

    node.shutdown().await;
    engine.close().await;
    Ok(())
}
