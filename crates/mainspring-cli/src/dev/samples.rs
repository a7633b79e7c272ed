//! The sample kinds of `mainspring dev`: small handlers that show what can happen to a job.
//!
//! They are ordinary handlers, written as an application would write them, except that they only pretend to work.

use std::time::Duration;

use mainspring::{Context, Job, NodeBuilder, discard};
use serde::{Deserialize, Serialize};

/// Adds all of them to a node.
pub(crate) fn register(node: NodeBuilder) -> NodeBuilder {
    node.handle(mail).handle(charge).handle(webhook).handle(report).handle(video).handle(order)
}

/// Succeeds, in a moment.
#[derive(Debug, Serialize, Deserialize, Job)]
#[job(kind = "demo.mail", result = String)]
pub(crate) struct Mail {
    pub(crate) to: String,
}

async fn mail(ctx: Context, job: Mail) -> mainspring::HandlerResult<String> {
    work(&ctx, 300).await;
    Ok(format!("sent to {}", job.to))
}

/// Fails for good: another attempt would not help.
#[derive(Debug, Serialize, Deserialize, Job)]
#[job(kind = "demo.charge")]
pub(crate) struct Charge {
    pub(crate) card: String,
    pub(crate) expired: bool,
}

async fn charge(ctx: Context, job: Charge) -> mainspring::HandlerResult<()> {
    work(&ctx, 500).await;
    if job.expired {
        return Err(discard(format!("card {} has expired", job.card)).into());
    }
    Ok(())
}

/// Fails a few times and then succeeds: the engine waits longer from time to time.
#[derive(Debug, Serialize, Deserialize, Job)]
#[job(kind = "demo.webhook", result = u16, max_attempts = 5, timeout = "10s")]
pub(crate) struct Webhook {
    pub(crate) url: String,
    /// How often the other side is down.
    pub(crate) outages: u16,
}

async fn webhook(ctx: Context, job: Webhook) -> mainspring::HandlerResult<u16> {
    work(&ctx, 200).await;
    if ctx.attempt() <= job.outages {
        return Err(format!("{} answered 503", job.url).into());
    }
    Ok(ctx.attempt())
}

/// Takes several seconds and says how far it has come. Kill the worker while it runs, and it comes back. There is one printer, so
/// one report runs at a time, on however many workers: `mainspring limit show demo.printer`.
#[derive(Debug, Serialize, Deserialize, Job)]
#[job(kind = "demo.report", result = String, limit("demo.printer", max = 1))]
pub(crate) struct Report {
    pub(crate) month: String,
    pub(crate) pages: u64,
}

async fn report(ctx: Context, job: Report) -> mainspring::HandlerResult<String> {
    for page in 0..job.pages {
        ctx.progress(page, job.pages, format!("page {} of {}", page + 1, job.pages));
        work(&ctx, 400).await;
    }
    Ok(format!("{}.pdf", job.month))
}

/// Takes so long that somebody loses patience and cancels it.
#[derive(Debug, Serialize, Deserialize, Job)]
#[job(kind = "demo.video")]
pub(crate) struct Video {
    pub(crate) minutes: u64,
}

async fn video(ctx: Context, job: Video) -> mainspring::HandlerResult<()> {
    let frames = job.minutes * 60;
    for frame in 0..frames {
        ctx.progress(frame, frames, "transcoding");
        work(&ctx, 1_000).await;
    }
    Ok(())
}

/// Does one thing after another and waits in between, with no slot meanwhile: a workflow. Kill the worker whenever you like,
/// and what was done is not done again; `mainspring job ID` shows what it has recorded.
#[derive(Debug, Serialize, Deserialize, Job)]
#[job(kind = "demo.order", result = String)]
pub(crate) struct Order {
    pub(crate) item: String,
    pub(crate) to: String,
}

async fn order(ctx: Context, job: Order) -> mainspring::HandlerResult<String> {
    let receipt = ctx
        .step("charge", async || {
            work(&ctx, 800).await;
            Ok(format!("receipt for {}", job.item))
        })
        .await?;
    ctx.sleep("cool-off", Duration::from_secs(5)).await?;
    ctx.step("ship", async || {
        work(&ctx, 800).await;
        Ok(())
    })
    .await?;
    let queue = ctx.info().queue.as_str();
    let mail = ctx.spawn("mail", Mail { to: job.to }).options(|mail| mail.queue(queue)).await?;
    mail.result().await?;
    Ok(receipt)
}

/// Pretends to work. An application would await its database or an HTTP call here.
async fn work(ctx: &Context, millis: u64) {
    ctx.engine().seams().clock.sleep(Duration::from_millis(millis)).await;
}
