//! The workload of `bench queue --peers` on forge-jobs.

#[path = "../../pool.rs"]
mod pool;
#[path = "../../queue.rs"]
mod queue;

use std::path::Path;
use std::sync::{Arc, Mutex};

use forge_jobs::{
    DefaultRouter, EnqueueRequest, HandlerRegistry, JobCtx, JobHandler, JobOutcome, PostgresStorage,
    QueueHandle, QueueRuntime, SqliteStorage, Storage,
};
use pool::Pool;
use queue::{Asked, Queue, Result};

struct Noop;

#[async_trait::async_trait]
impl JobHandler for Noop {
    fn kind(&self) -> &'static str {
        "noop"
    }

    async fn run(&self, _: JobCtx<'_>, payload: serde_json::Value) -> JobOutcome {
        drop(payload);
        queue::seen();
        JobOutcome::Done
    }
}

fn request() -> EnqueueRequest {
    EnqueueRequest::new("noop", serde_json::json!({ "sent": 0, "text": queue::text() })).on_queue("default")
}

struct Forge {
    storage: Storage,
    pool: Pool,
    workers: i32,
    handle: Mutex<Option<QueueHandle>>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let asked = Asked::read(std::env::args().skip(1))?;
    let forge = open(&asked).await?;
    queue::answer(&asked, &forge).await?;
    std::process::exit(0);
}

async fn open(asked: &Asked) -> Result<Forge> {
    let start = asked.as_started()?;
    let (storage, pool) = if let Some(path) = asked.address.strip_prefix("sqlite:") {
        // It sets up its connections itself: a log, and the default of SQLite, which is FULL.
        let storage = SqliteStorage::open_file(Path::new(path)).await?;
        (Storage::from_one(Arc::new(storage)), Pool::Sqlite(Pool::sqlite(&asked.address, 1).await?))
    } else {
        let storage = PostgresStorage::open(&asked.address, if start { 30 } else { 40 }).await?;
        let pool = Pool::Postgres(storage.pool().clone());
        (Storage::from_one(Arc::new(storage)), pool)
    };
    let workers = match (start, &pool) {
        (true, _) => 2,
        (false, Pool::Postgres(_)) => 32,
        (false, Pool::Sqlite(_)) => 8,
    };
    Ok(Forge { storage, pool, workers, handle: Mutex::new(None) })
}

impl Queue for Forge {
    async fn fill(&self, jobs: usize) -> Result<()> {
        let mut left = jobs;
        while left > 0 {
            let count = left.min(1_000);
            self.storage.jobs.enqueue_bulk((0..count).map(|_| request()).collect()).await?;
            left -= count;
        }
        Ok(())
    }

    async fn enqueue(&self) -> Result<()> {
        self.storage.jobs.enqueue(request()).await?;
        Ok(())
    }

    async fn work(&self) -> Result<()> {
        let mut handlers = HandlerRegistry::new();
        handlers.register(Noop);
        let runtime = QueueRuntime::new(self.storage.clone(), handlers, Arc::new(DefaultRouter))
            .with_queues(["default".to_owned()]);
        runtime.ensure_queue("default", self.workers).await?;
        let handle = runtime.start().await?;
        *self.handle.lock().map_err(|_| "a panic")? = Some(handle);
        Ok(())
    }

    async fn left(&self, statement: &'static str) -> Result<usize> {
        self.pool.number(statement).await
    }
}
