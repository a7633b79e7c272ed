//! Workflows of victims: every body leaves its traces in the ledger.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mainspring::deadpool_postgres::{self, ManagerConfig, Pool, RecyclingMethod, Runtime};
use mainspring::tokio_postgres::{self, NoTls};
use mainspring::{Context, Failure, Job, JobId, StepContext};
use serde::{Deserialize, Serialize};

use crate::history::{Actor, Fact, Recorder, digest};

/// How long an application waits for its own database: a network that has swallowed an answer does not bring it back.
const PATIENCE: Duration = Duration::from_secs(4);
/// Connections of the application: fewer than workflows that run at once.
const CONNECTIONS: usize = 4;

/// A chain of steps, with a nap in its middle. It never gives up: whatever goes wrong on its way is a fault of the rig's.
#[derive(Debug, Clone, Default, Serialize, Deserialize, Job)]
#[job(kind = "flow", result = u64, max_attempts = 1000, backoff = "fixed:50ms")]
pub struct WorkflowJob {
    /// What its values come from.
    pub seed: u64,
    /// How many steps it has.
    pub steps: u64,
    /// How long each body takes.
    pub millis: u64,
    /// How long it sleeps; not at all if nothing.
    pub nap: u64,
    /// Whether every fifth step is a row of the application, in one commit with its record.
    #[serde(default)]
    pub rows: bool,
    /// Whether it has a child, a short one, and waits for it.
    #[serde(default)]
    pub child: bool,
    /// Whether it goes several ways: a map, a loop, and a race of a step against a nap.
    #[serde(default)]
    pub ways: bool,
}

/// Items of the map, and turns of the loop.
const ITEMS: u64 = 3;

impl WorkflowJob {
    fn value(&self, step: u64) -> u64 {
        self.seed.wrapping_mul(31).wrapping_add(step * step)
    }

    /// What it returns, whatever happens.
    pub fn result(&self) -> u64 {
        let own = (0..self.steps).fold(0, |sum: u64, step| sum.wrapping_add(self.value(step)));
        let own = if self.child { own.wrapping_add(self.offspring().result()) } else { own };
        if self.ways { own.wrapping_add(self.item() * 2) } else { own }
    }

    /// What the items of the map come to together, and the turns of the loop.
    fn item(&self) -> u64 {
        (0..ITEMS).fold(0, |sum: u64, item| sum.wrapping_add(self.seed % 1_000 + item))
    }

    fn offspring(&self) -> WorkflowJob {
        WorkflowJob { seed: self.seed + 1, steps: 2, millis: self.millis, ..WorkflowJob::default() }
    }

    /// That, as a fact about the job.
    pub fn expects(&self, id: JobId) -> Fact {
        Fact::Expects { id, results: vec![digest(self.result().to_string().as_bytes())] }
    }

    /// Whether a step is a row of the application.
    pub fn is_row(&self, step: u64) -> bool {
        self.rows && step % 5 == 4
    }
}

/// What bodies of one run know.
struct BodyContext {
    ledger: Arc<dyn Recorder>,
    by: Actor,
    id: JobId,
    since: u32,
    current: AtomicU32,
}

impl BodyContext {
    fn note(&self, fact: Fact) {
        self.ledger.note(self.by, fact);
    }

    fn goes_on(&self, claim: u32) {
        if self.current.fetch_max(claim, Ordering::SeqCst) < claim {
            self.note(Fact::Began { id: self.id, claim });
        }
    }
}

impl Drop for BodyContext {
    fn drop(&mut self) {
        self.note(Fact::Stopped { id: self.id, claim: self.current.load(Ordering::SeqCst) });
    }
}

/// The handler.
pub(super) async fn perform(
    ctx: Context,
    flow: WorkflowJob,
    ledger: Arc<dyn Recorder>,
    by: Actor,
    pool: Option<&Pool>,
) -> Result<u64, Failure> {
    let (id, since) = (ctx.id(), ctx.info().claim);
    let body = Arc::new(BodyContext { ledger, by, id, since, current: AtomicU32::new(since) });
    body.note(Fact::Began { id, claim: since });
    let mut sum = 0_u64;
    if flow.child {
        let child = ctx.spawn("child", flow.offspring()).await?;
        body.note(flow.offspring().expects(child.id()));
        sum = child.result().await?;
    }
    for number in 0..flow.steps {
        if flow.nap > 0 && number == flow.steps / 2 {
            ctx.sleep("nap", Duration::from_millis(flow.nap)).await?;
        }
        let value = if flow.is_row(number) {
            row(&ctx, &flow, number, pool).await?
        } else {
            step(&ctx, &body, &flow, number).await?
        };
        sum = sum.wrapping_add(value);
    }
    if flow.ways {
        sum = sum.wrapping_add(scopes(&ctx, &body, &flow).await?);
    }
    body.note(Fact::Ended { id, claim: body.current.load(Ordering::SeqCst) });
    Ok(sum)
}

async fn step(
    ctx: &Context,
    body: &Arc<BodyContext>,
    flow: &WorkflowJob,
    number: u64,
) -> Result<u64, Failure> {
    step_in(ctx, body, "", &format!("step-{number}"), (flow.value(number), flow.millis)).await
}

/// A step in a scope, which comes to a value and takes a while.
async fn step_in(
    ctx: &Context,
    body: &Arc<BodyContext>,
    path: &str,
    name: &str,
    (value, millis): (u64, u64),
) -> Result<u64, Failure> {
    let key = format!("{path}{name}");
    let clock = &ctx.engine().seams().clock;
    let (inner, body_key) = (Arc::clone(body), key.clone());
    let run = move |step: StepContext| {
        let (body, key) = (Arc::clone(&inner), body_key.clone());
        async move {
            let (id, claim, since) = (body.id, step.claim(), body.since);
            body.goes_on(claim);
            body.note(Fact::Entered { id, claim, since, key: key.clone(), once: false });
            clock.sleep(Duration::from_millis(millis)).await;
            body.note(Fact::Ran { id, claim, key });
            Ok(value)
        }
    };
    let value = ctx.step_with(name, run).await?;
    let digest = Some(digest(value.to_string().as_bytes()));
    body.note(Fact::Saw { id: body.id, since: body.since, key, digest, rides: false });
    Ok(value)
}

/// A map and a loop, and a race whose winner is anybody's guess: it adds nothing.
async fn scopes(ctx: &Context, body: &Arc<BodyContext>, flow: &WorkflowJob) -> Result<u64, Failure> {
    let (first, millis) = (flow.seed % 1_000, flow.millis);
    let map = ctx.map(
        "map",
        0..ITEMS,
        |item| *item,
        |ctx, item| {
            let body = Arc::clone(body);
            async move { step_in(&ctx, &body, &format!("map/{item}/"), "one", (first + item, millis)).await }
        },
    );
    let mapped = map.concurrency(2).await?.into_iter().fold(0, u64::wrapping_add);
    let turns = ctx.iterate("loop", (0, 0), |ctx, (turn, sum): (u64, u64)| {
        let body = Arc::clone(body);
        async move {
            let path = format!("loop/{}/", turn + 1);
            let sum = sum.wrapping_add(step_in(&ctx, &body, &path, "one", (first + turn, millis)).await?);
            let next = turn + 1;
            Ok(if next == ITEMS { ControlFlow::Break(sum) } else { ControlFlow::Continue((next, sum)) })
        }
    });
    let turned = turns.await?;
    let (left, right) = (Arc::clone(body), Arc::clone(body));
    let race = ctx.race::<u64>("race").arm("work", move |ctx| async move {
        step_in(&ctx, &left, "race/work/", "one", (0, millis)).await?;
        step_in(&ctx, &left, "race/work/", "two", (0, millis)).await
    });
    let race = race.arm("rest", move |ctx| async move {
        ctx.sleep("nap", Duration::from_millis(millis)).await?;
        step_in(&ctx, &right, "race/rest/", "late", (0, millis)).await
    });
    Ok(mapped.wrapping_add(turned).wrapping_add(race.await?))
}

/// A row of the application: through its own pool on Postgres, in the store's file on SQLite.
async fn row(ctx: &Context, flow: &WorkflowJob, number: u64, pool: Option<&Pool>) -> Result<u64, Failure> {
    let (name, job, value) = (format!("row-{number}"), ctx.id().to_string(), flow.value(number));
    let step = i32::try_from(number).unwrap_or(i32::MAX);
    let Some(pool) = pool else {
        let row = ctx.sqlite_transaction(&name, move |sql| {
            sql.execute("INSERT INTO app_rows (job, step) VALUES (?1, ?2)", (&job, step))?;
            Ok(value)
        });
        return Ok(row.await?);
    };
    let row = ctx.transaction(pool, &name, async |tx| {
        tx.execute("INSERT INTO app_rows (job, step) VALUES ($1, $2)", &[&job, &step]).await?;
        Ok(value)
    });
    tokio::select! {
        biased;
        done = row => Ok(done?),
        // Nobody knows what became of it: the next attempt finds out.
        () = ctx.engine().seams().clock.sleep(PATIENCE) => Err("the database does not answer".into()),
    }
}

/// The application's own connections to the database of a store.
pub(super) fn pool(address: &str) -> Result<Pool, Box<dyn std::error::Error>> {
    let config: tokio_postgres::Config = address.parse()?;
    let recycling = ManagerConfig { recycling_method: RecyclingMethod::Verified };
    let manager = deadpool_postgres::Manager::from_config(config, NoTls, recycling);
    let builder = Pool::builder(manager).max_size(CONNECTIONS).runtime(Runtime::Tokio1);
    let builder = builder.wait_timeout(Some(PATIENCE)).create_timeout(Some(PATIENCE));
    Ok(builder.recycle_timeout(Some(PATIENCE / 2)).build()?)
}
