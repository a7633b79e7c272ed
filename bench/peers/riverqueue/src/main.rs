//! The workload of `bench queue --peers` on riverqueue.

#[path = "../../pool.rs"]
mod pool;
#[path = "../../queue.rs"]
mod queue;

use std::str::FromStr as _;
use std::time::Duration;

use pool::Pool;
use queue::{Asked, Queue, Result};
use riverqueue::migrate::{PostgresMigrator, SqliteMigrator};
use riverqueue::{
    BoxError, Client, ClientBuilder, InsertOpts, Job, JobArgs, QueueConfig, WorkContext, WorkOutcome, Workers,
};
use serde::{Deserialize, Serialize};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};

#[derive(Clone, Debug, Deserialize, JobArgs, Serialize)]
#[river(kind = "noop")]
struct Noop {
    sent: u64,
    text: String,
}

fn noop() -> Noop {
    Noop { sent: 0, text: queue::text() }
}

async fn handle(_: WorkContext, job: Job<Noop>) -> Result<WorkOutcome, BoxError> {
    drop(job);
    queue::seen();
    Ok(WorkOutcome::Complete)
}

struct River {
    client: Client,
    pool: Pool,
    /// Calls for many jobs at the same time.
    calls: usize,
}

#[tokio::main]
async fn main() -> Result<()> {
    let asked = Asked::read(std::env::args().skip(1))?;
    let river = open(&asked).await?;
    queue::answer(&asked, &river).await?;
    std::process::exit(0);
}

async fn open(asked: &Asked) -> Result<River> {
    let start = asked.as_started()?;
    let (builder, pool, workers) = if asked.address.starts_with("sqlite:") {
        let pool = if start {
            // The example of its documentation, with the usual patience of its pool.
            let options = SqliteConnectOptions::from_str(&asked.address)?
                .create_if_missing(true)
                .journal_mode(SqliteJournalMode::Wal)
                .busy_timeout(Duration::from_secs(5));
            SqlitePoolOptions::new().max_connections(5).connect_with(options).await?
        } else {
            Pool::sqlite(&asked.address, 2).await?
        };
        SqliteMigrator::new(pool.clone()).migrate_up().await?;
        (Client::builder(pool.clone()), Pool::Sqlite(pool), if start { 4 } else { 5_000 })
    } else {
        let pool = Pool::postgres(&asked.address, (!start).then_some(16)).await?;
        PostgresMigrator::new(pool.clone()).migrate_up().await?;
        (Client::builder(pool.clone()), Pool::Postgres(pool), if start { 10 } else { 5_000 })
    };
    let client = set(builder, asked, workers, start)?;
    let calls = if start || matches!(pool, Pool::Sqlite(_)) { 1 } else { 8 };
    Ok(River { client, pool, calls })
}

fn set(builder: ClientBuilder, asked: &Asked, workers: usize, start: bool) -> Result<Client> {
    let mut handlers = Workers::new();
    handlers.add_fn(handle)?;
    let mut config = QueueConfig::new(workers);
    let mut builder = builder.workers(handlers);
    if !start {
        let cooldown = Duration::from_millis(1);
        // Rare polls when it is told of jobs, frequent ones when it has many to fetch.
        let poll = if asked.task == "drain" { 5 } else { 20 };
        config = config.with_fetch_cooldown(cooldown).with_fetch_poll_interval(Duration::from_millis(poll));
        builder = builder.fetch_cooldown(cooldown);
    }
    Ok(builder.queue("default", config).build()?)
}

impl River {
    async fn insert(&self, jobs: usize, at_once: usize) -> Result<()> {
        let mut left = jobs;
        while left > 0 {
            let mut calls = tokio::task::JoinSet::new();
            while left > 0 && calls.len() < at_once {
                let count = left.min(1_000);
                left -= count;
                let client = self.client.clone();
                calls.spawn(async move {
                    client.insert_many((0..count).map(|_| (noop(), InsertOpts::default()))).await.map(drop)
                });
            }
            while let Some(call) = calls.join_next().await {
                call??;
            }
        }
        Ok(())
    }
}

impl Queue for River {
    async fn fill(&self, jobs: usize) -> Result<()> {
        self.insert(jobs, self.calls).await
    }

    async fn preload(&self, jobs: usize) -> Result<()> {
        self.insert(jobs, 8).await
    }

    async fn enqueue(&self) -> Result<()> {
        self.client.insert(noop()).await?;
        Ok(())
    }

    async fn work(&self) -> Result<()> {
        self.client.start()?.detach();
        Ok(())
    }

    async fn left(&self, statement: &'static str) -> Result<usize> {
        self.pool.number(statement).await
    }
}
