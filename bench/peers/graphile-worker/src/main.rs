//! The workload of `bench queue --peers` on graphile_worker.

#[path = "../../pool.rs"]
mod pool;
#[path = "../../queue.rs"]
mod queue;

use std::sync::Arc;
use std::time::Duration;

use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, TaskHandler, Worker, WorkerContext, WorkerOptions,
};
use pool::Pool;
use queue::{Asked, Queue, Result};
use serde::{Deserialize, Serialize};

#[derive(Clone, Deserialize, Serialize)]
struct Noop {
    sent: u64,
    text: String,
}

fn noop() -> Noop {
    Noop { sent: 0, text: queue::text() }
}

impl TaskHandler for Noop {
    const IDENTIFIER: &'static str = "noop";

    async fn run(self, _: WorkerContext) -> impl IntoTaskHandlerResult {
        queue::seen();
        Ok::<(), String>(())
    }
}

struct Graphile {
    worker: Arc<Worker>,
    pool: Pool,
    /// Jobs of one call for many.
    batch: usize,
}

#[tokio::main]
async fn main() -> Result<()> {
    let asked = Asked::read(std::env::args().skip(1))?;
    let graphile = open(&asked).await?;
    queue::answer(&asked, &graphile).await?;
    std::process::exit(0);
}

async fn open(asked: &Asked) -> Result<Graphile> {
    let start = asked.as_started()?;
    let pool = Pool::postgres(&asked.address, (!start).then_some(16)).await?;
    let mut options =
        WorkerOptions::default().schema("graphile_worker").define_job::<Noop>().pg_pool(pool.clone());
    if start {
        options = options.concurrency(5);
    } else {
        // The way that its documentation shows for bursts.
        options = options
            .concurrency(64)
            .poll_interval(Duration::from_millis(50))
            .complete_job_batch_delay(Duration::from_millis(2));
        if asked.task == "drain" {
            options = options.local_queue(LocalQueueConfig::default().with_size(500).with_queue_count(4));
        }
    }
    let worker = Arc::new(options.init().await?);
    Ok(Graphile { worker, pool: Pool::Postgres(pool), batch: if start { 1_000 } else { 5_000 } })
}

impl Queue for Graphile {
    async fn fill(&self, jobs: usize) -> Result<()> {
        let utils = self.worker.create_utils();
        let spec = JobSpec::default();
        let mut left = jobs;
        while left > 0 {
            let count = left.min(self.batch);
            let batch: Vec<_> = (0..count).map(|_| (noop(), &spec)).collect();
            utils.add_jobs::<Noop>(&batch).await?;
            left -= count;
        }
        Ok(())
    }

    async fn enqueue(&self) -> Result<()> {
        self.worker.create_utils().add_job(noop(), JobSpec::default()).await?;
        Ok(())
    }

    async fn work(&self) -> Result<()> {
        let worker = Arc::clone(&self.worker);
        tokio::spawn(async move {
            if let Err(error) = worker.run().await {
                eprintln!("{error}");
            }
        });
        Ok(())
    }

    async fn left(&self, statement: &'static str) -> Result<usize> {
        self.pool.number(statement).await
    }
}
