//! Shutdown: a node that runs until SIGTERM or Ctrl-C and then ends in good order.
//!
//! Running jobs get a moment to end; what is still running then is given back as it was, and runs again when a node is
//! there: no failure is counted, no crash, and nothing waits for a lease.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use mainspring::{Context, Engine, Job, shutdown_signal};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Job)]
#[job(kind = "endless")]
struct Endless {}

async fn endless(_ctx: Context, _job: Endless) -> mainspring::HandlerResult<()> {
    println!("running; end me with Ctrl-C");
    std::future::pending().await
}

#[tokio::main]
async fn main() -> Result<(), mainspring::Error> {
    // From here on a signal is heard.
    let told_to_end = shutdown_signal();
    let engine = Engine::open("sqlite:shutdown.db").await?;
    let node = engine
        .node()
        .handle(endless)
        .queue("default", 1)
        .drain(Duration::from_millis(200)) // 25 seconds if not set
        .start()
        .await?;
    let job = engine.enqueue(Endless {}).unique("the one").await?;

    // A second signal during the shutdown cuts it short.
    node.run_until(told_to_end).await;

    let job = engine.jobs().get(job.id).await?.summary;
    println!("{}, {} failures, {} crashes", job.status, job.failures, job.crashes);
    engine.close().await;
    Ok(())
}
