//! The workload of `bench steps` on durare.

#[path = "../../peer.rs"]
mod peer;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use durare::{DurableContext, DurableEngine, Error, StateProvider, WorkflowOptions};
use peer::{Asked, RESULT, Result, Rounds, WARM};
use tokio::sync::Barrier;

#[tokio::main]
async fn main() -> Result<()> {
    let asked = Asked::read()?;
    // Workflows wait until all are there, so that starting them is not measured.
    let gate = Arc::new(Barrier::new(asked.workflows + 1));
    let latencies = Arc::new(Mutex::new(Vec::new()));
    let mut engine = DurableEngine::new(provider(&asked).await?).await?;
    let (opens, times) = (Arc::clone(&gate), Arc::clone(&latencies));
    engine.register("flow", move |ctx: DurableContext, steps: usize| {
        let (gate, latencies) = (Arc::clone(&opens), Arc::clone(&times));
        async move {
            gate.wait().await;
            let (mut bytes, mut taken) = (0, Vec::with_capacity(steps));
            for _ in 0..steps {
                let began = Instant::now();
                let value = ctx.step("step", || async { Ok::<_, Error>("x".repeat(RESULT)) }).await?;
                taken.push(began.elapsed());
                bytes += value.len();
            }
            latencies.lock().expect("nobody panics with it").extend(taken);
            Ok::<_, Error>(bytes)
        }
    });

    let warm = asked.workflows * WARM;
    round(&engine, &gate, asked.workflows, WARM).await?;
    if asked.workflows == 1 {
        latencies.lock().expect("nobody panics with it").clear();
        round(&engine, &gate, 1, asked.steps).await?;
        peer::tell_latencies(latencies.lock().expect("nobody panics with it").clone(), warm + asked.steps);
    } else {
        let mut rounds = Rounds::after(warm);
        while rounds.more() {
            let spent = round(&engine, &gate, asked.workflows, asked.steps).await?;
            rounds.add(asked.workflows * asked.steps, spent);
        }
        rounds.tell(&asked);
    }
    engine.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}

/// From the first step to the last recorded end.
async fn round(engine: &DurableEngine, gate: &Barrier, workflows: usize, steps: usize) -> Result<Duration> {
    let mut handles = Vec::with_capacity(workflows);
    for _ in 0..workflows {
        handles.push(engine.start::<_, usize>("flow", steps, WorkflowOptions::default()).await?);
    }
    gate.wait().await;
    let began = Instant::now();
    for handle in handles {
        if handle.result().await? != steps * RESULT {
            return Err("a workflow has a wrong result".into());
        }
    }
    Ok(began.elapsed())
}

#[cfg(feature = "sqlite")]
async fn provider(asked: &Asked) -> Result<Arc<dyn StateProvider>> {
    use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};

    let address = &asked.address;
    let provider = match asked.setting.as_str() {
        "shipped" => durare::SqliteProvider::connect(address).await?,
        // As shipped, but for one setting.
        "full" => {
            let options = address
                .parse::<SqliteConnectOptions>()?
                .create_if_missing(true)
                .foreign_keys(true)
                .journal_mode(SqliteJournalMode::Wal)
                .synchronous(SqliteSynchronous::Full)
                .busy_timeout(Duration::from_secs(5));
            let pool = SqlitePoolOptions::new().max_connections(5).connect_with(options).await?;
            durare::SqliteProvider::from_pool(pool)
        }
        unknown => return Err(format!("no setting is named `{unknown}`").into()),
    };
    Ok(Arc::new(provider))
}

#[cfg(not(feature = "sqlite"))]
async fn provider(asked: &Asked) -> Result<Arc<dyn StateProvider>> {
    use durare::PostgresProvider;
    use sqlx::postgres::PgPoolOptions;

    let provider = match asked.setting.as_str() {
        "shipped" => PostgresProvider::connect(&asked.address).await?,
        pool => {
            let pool = PgPoolOptions::new().max_connections(pool.parse()?).connect(&asked.address).await?;
            PostgresProvider::from_pool_with_schema(pool, "dbos")?
        }
    };
    Ok(Arc::new(provider))
}
