//! The workload of `bench queue --peers` on awa.

#[path = "../../pool.rs"]
mod pool;
#[path = "../../queue.rs"]
mod queue;

use std::sync::Mutex;
use std::time::Duration;

use awa::{
    Client, InsertOpts, InsertParams, JobArgs, JobResult, QueueConfig, QueueStorage, QueueStorageConfig,
    insert_many, insert_with, migrations,
};
use pool::Pool;
use queue::{Asked, Queue, Result};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;

#[derive(Debug, Deserialize, JobArgs, Serialize)]
struct Noop {
    sent: u64,
    text: String,
}

fn noop() -> Noop {
    Noop { sent: 0, text: queue::text() }
}

fn options() -> InsertOpts {
    InsertOpts { queue: "noop".to_owned(), ..InsertOpts::default() }
}

fn params(jobs: usize) -> Result<Vec<InsertParams>> {
    let args = serde_json::to_value(noop())?;
    let kind = noop().kind_str().to_owned();
    Ok((0..jobs).map(|_| InsertParams { kind: kind.clone(), args: args.clone(), opts: options() }).collect())
}

struct Awa {
    pool: PgPool,
    start: bool,
    idle: bool,
    client: Mutex<Option<Client>>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let asked = Asked::read(std::env::args().skip(1))?;
    let start = asked.as_started()?;
    let pool = Pool::postgres(&asked.address, (!start).then_some(16)).await?;
    migrations::run(&pool).await?;
    // A fresh database is moved to the storage of this version by the first worker; this is the same call.
    sqlx::query("SELECT awa.storage_auto_finalize_if_fresh('awa')").execute(&pool).await?;
    let awa = Awa { pool, start, idle: asked.task == "idle", client: Mutex::new(None) };
    queue::answer(&asked, &awa).await?;
    std::process::exit(0);
}

impl Awa {
    fn storage() -> Result<QueueStorage> {
        Ok(QueueStorage::new(QueueStorageConfig::default())?)
    }
}

impl Queue for Awa {
    async fn fill(&self, jobs: usize) -> Result<()> {
        if !self.start {
            return self.preload(jobs).await;
        }
        let mut left = jobs;
        while left > 0 {
            let count = left.min(500);
            insert_many(&self.pool, &params(count)?).await?;
            left -= count;
        }
        Ok(())
    }

    /// By the way that its documentation names for many jobs.
    async fn preload(&self, jobs: usize) -> Result<()> {
        let mut left = jobs;
        while left > 0 {
            let count = left.min(5_000);
            Self::storage()?.enqueue_params_copy(&self.pool, &params(count)?).await?;
            left -= count;
        }
        Ok(())
    }

    async fn enqueue(&self) -> Result<()> {
        insert_with(&self.pool, &noop(), options()).await?;
        Ok(())
    }

    async fn work(&self) -> Result<()> {
        let mut config = QueueConfig::default();
        if !self.start {
            config.max_workers = 2_048;
            config.claimers = 2;
            config.poll_interval = Duration::from_millis(if self.idle { 50 } else { 5 });
            // Without a deadline, claims take its shorter way.
            config.deadline_duration = Duration::ZERO;
        }
        let client = Client::builder(self.pool.clone())
            .queue("noop", config)
            .register::<Noop, _, _>(|_, _| async {
                queue::seen();
                Ok(JobResult::Completed)
            })
            .build()?;
        client.start().await?;
        *self.client.lock().map_err(|_| "a panic")? = Some(client);
        Ok(())
    }

    async fn left(&self, statement: &'static str) -> Result<usize> {
        Pool::Postgres(self.pool.clone()).number(statement).await
    }
}
