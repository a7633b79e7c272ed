//! The workload of `bench queue --peers` on apalis.

#[path = "../../pool.rs"]
mod pool;
#[path = "../../queue.rs"]
mod queue;

use std::sync::Mutex;
use std::time::Duration;

use apalis::prelude::*;
use apalis_postgres::PostgresStorage;
use apalis_sqlite::SqliteStorage;
use apalis_sqlite::callback::HookCallbackListener;
use pool::Pool;
use queue::{Asked, Queue, Result};
use serde::{Deserialize, Serialize};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};

/// How often a tuned worker looks into its file, beside being told by the hook of its own connections. Without a strategy
/// one that has nothing to do looks with each heartbeat, every thirty seconds.
const LOOK: Duration = Duration::from_millis(5);

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Noop {
    sent: u64,
    text: String,
}

fn noop() -> Noop {
    Noop { sent: 0, text: queue::text() }
}

async fn handle(job: Noop) -> Result<(), BoxDynError> {
    drop(job);
    queue::seen();
    Ok(())
}

struct Apalis {
    pool: Pool,
    start: bool,
    /// What the connections of a tuned pool tell of their writes.
    told: Mutex<Option<HookCallbackListener>>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let asked = Asked::read(std::env::args().skip(1))?;
    let apalis = open(&asked).await?;
    queue::answer(&asked, &apalis).await?;
    std::process::exit(0);
}

async fn open(asked: &Asked) -> Result<Apalis> {
    let start = asked.as_started()?;
    if !asked.address.starts_with("sqlite:") {
        let pool = Pool::postgres(&asked.address, (!start).then_some(16)).await?;
        PostgresStorage::setup(&pool).await?;
        return Ok(Apalis { pool: Pool::Postgres(pool), start, told: Mutex::default() });
    }
    if start {
        let options: SqliteConnectOptions = asked.address.parse()?;
        let options = options.create_if_missing(true).busy_timeout(Duration::from_secs(60));
        let pool = SqlitePool::connect_with(options).await?;
        SqliteStorage::setup(&pool).await?;
        return Ok(Apalis { pool: Pool::Sqlite(pool), start, told: Mutex::default() });
    }
    let pool = Pool::sqlite(&asked.address, 1).await?;
    SqliteStorage::setup(&pool).await?;
    // The set-up turned `synchronous` off on its connection.
    pool.close().await;
    let (pool, listener) = SqliteStorage::connect_with_callback(&asked.address)?;
    Ok(Apalis { pool: Pool::Sqlite(pool), start, told: Mutex::new(Some(listener)) })
}

impl Apalis {
    fn postgres(&self, pool: &sqlx::PgPool) -> PostgresStorage<Noop> {
        let mut config = apalis_postgres::Config::default().queue("noop");
        if !self.start {
            config = config.batch_size(500).lock_tasks(false);
        }
        PostgresStorage::new(pool).with_config(config)
    }

    fn sqlite(&self, pool: &SqlitePool) -> SqliteStorage<Noop> {
        let mut config = apalis_sqlite::Config::default().queue("noop");
        if !self.start {
            config = config.batch_size(500).lock_tasks(false);
        }
        SqliteStorage::new(pool).with_config(config)
    }
}

impl Queue for Apalis {
    async fn fill(&self, jobs: usize) -> Result<()> {
        let mut left = jobs;
        while left > 0 {
            let count = left.min(1_000);
            let batch: Vec<Noop> = (0..count).map(|_| noop()).collect();
            match &self.pool {
                Pool::Postgres(pool) => self.postgres(pool).push_bulk(batch).await?,
                Pool::Sqlite(pool) => self.sqlite(pool).push_bulk(batch).await?,
            }
            left -= count;
        }
        Ok(())
    }

    async fn enqueue(&self) -> Result<()> {
        match &self.pool {
            Pool::Postgres(pool) => self.postgres(pool).push(noop()).await?,
            Pool::Sqlite(pool) => self.sqlite(pool).push(noop()).await?,
        }
        Ok(())
    }

    async fn work(&self) -> Result<()> {
        match (&self.pool, self.start) {
            (Pool::Postgres(pool), true) => {
                let worker = WorkerBuilder::new("worker").backend(self.postgres(pool)).build(handle);
                apart(move |runtime| said(runtime.block_on(worker.run())));
            }
            (Pool::Postgres(pool), false) => {
                let backend = self.postgres(pool).with_pubsub();
                let worker =
                    WorkerBuilder::new("worker").backend(backend).parallelize(tokio::spawn).build(handle);
                apart(move |runtime| said(runtime.block_on(worker.run())));
            }
            (Pool::Sqlite(pool), true) => {
                let worker = WorkerBuilder::new("worker").backend(self.sqlite(pool)).build(handle);
                apart(move |runtime| said(runtime.block_on(worker.run())));
            }
            (Pool::Sqlite(pool), false) => {
                let listener = self.told.lock().map_err(|_| "a panic")?.take().ok_or("one worker")?;
                let strategy = Strategy::new().stream(listener).interval(LOOK);
                let worker = WorkerBuilder::new("worker")
                    .backend(self.sqlite(pool).poll_with_strategy(strategy))
                    .parallelize(tokio::spawn)
                    .build(handle);
                apart(move |runtime| said(runtime.block_on(worker.run())));
            }
        }
        Ok(())
    }

    async fn left(&self, statement: &'static str) -> Result<usize> {
        self.pool.number(statement).await
    }
}

/// Runs a worker on a thread of its own: the compiler does not see that one that is parallelized can be a task.
fn apart(work: impl FnOnce(tokio::runtime::Handle) + Send + 'static) {
    let runtime = tokio::runtime::Handle::current();
    std::thread::spawn(move || work(runtime));
}

fn said<E: std::fmt::Display>(ended: Result<(), E>) {
    if let Err(error) = ended {
        eprintln!("{error}");
    }
}
