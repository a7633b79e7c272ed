//! A job on its way from the caller to its handler and back. The README shows this file.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use mainspring::{Context, Engine, Job, discard};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Job)]
#[job(kind = "welcome", result = String)]
struct Welcome {
    user: u64,
}

async fn welcome(_ctx: Context, job: Welcome) -> mainspring::HandlerResult<String> {
    if job.user == 0 {
        return Err(discard("no such user").into()); // any other error is retried with backoff
    }
    Ok(format!("welcome, user {}", job.user))
}

#[tokio::main]
async fn main() -> Result<(), mainspring::Error> {
    let engine = Engine::open("sqlite:app.db").await?;
    let node = engine.node().handle(welcome).queue("default", 10).start().await?;

    let job = engine.enqueue(Welcome { user: 7 }).priority(1).await?; // from here on it is on disk
    let text: String = engine.result(&job).await?;
    println!("{text}");

    node.shutdown().await; // running jobs end, the rest is given back
    engine.close().await;
    Ok(())
}
