//! A thousand items, eight at a time.
//!
//! Run it as `cargo run -p example-fanout -- crash`, and the process dies in the middle. Run it again without `crash`: the workflow
//! goes on with what is left. Remove `fanout.db` to begin anew.
//! What each item came to is recorded in place of its steps, and in the end one record stands for all of them.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::atomic::{AtomicUsize, Ordering};

use mainspring::{Context, Engine, Job, JobId};
use serde::{Deserialize, Serialize};

const ITEMS: usize = 1_000;
/// The same id is the same job, however often the program is run.
const ID: &str = "01a1de98-55b8-78d4-8fb5-000000000001";

#[derive(Serialize, Deserialize, Job)]
#[job(kind = "album", result = usize)]
struct Album {
    photos: usize,
}

async fn album(ctx: Context, job: Album) -> mainspring::HandlerResult<usize> {
    let studio = ctx.state::<Studio>()?;
    let sizes = ctx
        .map(
            "photo",
            0..job.photos,
            |photo| *photo,
            async |ctx, photo| {
                let size = ctx.step("resize", async || Ok(studio.resize(photo))).await?;
                ctx.step("publish", async || Ok(())).await?;
                Ok(size)
            },
        )
        .concurrency(8)
        .await?;
    ctx.step("announce", async || {
        println!("all {} are published", sizes.len());
        Ok(())
    })
    .await?;
    Ok(sizes.into_iter().sum())
}

/// Where photos are resized.
struct Studio {
    resized: AtomicUsize,
    crash: bool,
}

impl Studio {
    fn resize(&self, photo: usize) -> usize {
        let resized = self.resized.fetch_add(1, Ordering::Relaxed) + 1;
        if self.crash && resized == ITEMS / 2 {
            println!("the process dies at photo {resized}");
            std::process::abort();
        }
        photo % 10
    }
}

#[tokio::main]
async fn main() -> Result<(), mainspring::Error> {
    let crash = std::env::args().nth(1).is_some_and(|word| word == "crash");
    let engine = Engine::open("sqlite:fanout.db").await?;
    let studio = Studio { resized: AtomicUsize::new(0), crash };
    let node = engine.node().state(studio).handle(album).queue("default", 1).start().await?;
    let id: JobId = ID.parse()?;
    let job = engine.enqueue(Album { photos: ITEMS }).id(id).await?;
    println!("together they have {} megapixels", engine.result(&job).await?);
    println!("records that are left: {}", engine.jobs().timeline(id).await?.entries.len());
    node.shutdown().await;
    engine.close().await;
    Ok(())
}
