//! Stages: a job that enqueues the next one, and hands its id on as a result.
//!
//! A handler may run again after it has enqueued the next stage. So each stage has a unique key made from the id of the
//! job before it, held for a day after the end: a second run finds the stage that the first has made.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use mainspring::{Context, Engine, Job, JobId, Unique, Until};
use serde::{Deserialize, Serialize};

/// Reads a text and hands it on.
#[derive(Serialize, Deserialize, Job)]
#[job(kind = "fetch", result = JobId)]
struct Fetch {
    document: String,
}

/// Counts the words of a text.
#[derive(Serialize, Deserialize, Job)]
#[job(kind = "count", result = usize, max_attempts = 3)]
struct Count {
    text: String,
}

async fn fetch(ctx: Context, job: Fetch) -> mainspring::HandlerResult<JobId> {
    let text = format!("the whole text of {}", job.document);
    Ok(next(&ctx, Count { text }).await?)
}

async fn count(_ctx: Context, job: Count) -> mainspring::HandlerResult<usize> {
    Ok(job.text.split_whitespace().count())
}

/// Enqueues the stage after this job, once.
async fn next<J: Job>(ctx: &Context, stage: J) -> Result<JobId, mainspring::Error> {
    let day = Until::after(Duration::from_hours(24));
    let key = Unique::new(format!("after-{}", ctx.id())).until(day);
    Ok(ctx.engine().enqueue(stage).unique(key).await?.id)
}

#[tokio::main]
async fn main() -> Result<(), mainspring::Error> {
    let engine = Engine::open("sqlite:stages.db").await?;

    // Two callers want the same document at the same time: there is one job, and both get its result.
    let fetch_once = || {
        let job = Fetch { document: "the almanac".into() };
        engine.enqueue(job).unique("the almanac")
    };
    let (first, second) = (fetch_once().await?, fetch_once().await?);
    println!("one job for two callers: {}", first.id == second.id && second.existing);

    let node = engine.node().handle(fetch).handle(count).queue("default", 4).start().await?;
    let stage = engine.result(&first).await?;
    let words = engine.result_of::<Count>(stage).await?;
    println!("words: {words}");

    node.shutdown().await;
    engine.close().await;
    Ok(())
}
