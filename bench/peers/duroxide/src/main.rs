//! The workload of `bench steps` on duroxide.
//!
//! A workflow here is run from its top after each step, so the time of a step is taken between the bodies of two steps,
//! and workflows cannot wait for each other: they are enqueued before the runtime starts.

#[path = "../../peer.rs"]
mod peer;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use duroxide::providers::Provider;
use duroxide::runtime::registry::ActivityRegistry;
use duroxide::runtime::{Runtime, RuntimeOptions};
use duroxide::{ActivityContext, Client, OrchestrationContext, OrchestrationRegistry, OrchestrationStatus};
use peer::{Asked, RESULT, Result, Rounds, WARM};

/// When the bodies of steps ran.
type Times = Arc<Mutex<Vec<Instant>>>;

#[tokio::main]
async fn main() -> Result<()> {
    let asked = Asked::read()?;
    let store = provider(&asked).await?;
    let mut options = RuntimeOptions::default();
    if asked.setting == "quick" {
        options.dispatcher_min_poll_interval = Duration::from_millis(1);
    }
    let times = Times::default();
    let warm = asked.workflows * WARM;
    round(&store, &options, &times, 0, (asked.workflows, WARM)).await?;
    if asked.workflows == 1 {
        times.lock().expect("nobody panics with it").clear();
        round(&store, &options, &times, 1, (1, asked.steps)).await?;
        let times = times.lock().expect("nobody panics with it");
        let latencies = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        peer::tell_latencies(latencies, warm + asked.steps);
    } else {
        let (mut rounds, mut number) = (Rounds::after(warm), 0);
        while rounds.more() {
            number += 1;
            let spent = round(&store, &options, &times, number, (asked.workflows, asked.steps)).await?;
            rounds.add(asked.workflows * asked.steps, spent);
        }
        rounds.tell(&asked);
    }
    Ok(())
}

/// From the start of the runtime to the last recorded end.
async fn round(
    store: &Arc<dyn Provider>,
    options: &RuntimeOptions,
    times: &Times,
    number: usize,
    (workflows, steps): (usize, usize),
) -> Result<Duration> {
    let ran = || times.lock().expect("nobody panics with it").len();
    let last = ran() + workflows * steps;
    let bodies = Arc::clone(times);
    let activities = ActivityRegistry::builder()
        .register("step", move |_: ActivityContext, _: String| {
            bodies.lock().expect("nobody panics with it").push(Instant::now());
            async { Ok("x".repeat(RESULT)) }
        })
        .build();
    let orchestrations = OrchestrationRegistry::builder()
        .register("flow", |ctx: OrchestrationContext, steps: String| async move {
            let steps: usize = steps.parse().map_err(|_| "no number of steps")?;
            let mut bytes = 0;
            for _ in 0..steps {
                bytes += ctx.schedule_activity("step", "").await?.len();
            }
            Ok(bytes.to_string())
        })
        .build();
    let client = Client::new(Arc::clone(store));
    for workflow in 0..workflows {
        client.start_orchestration(name(number, workflow), "flow", steps.to_string()).await?;
    }
    let began = Instant::now();
    let runtime =
        Runtime::start_with_options(Arc::clone(store), activities, orchestrations, options.clone()).await;
    // Looking reads a whole history, so nobody looks before the last body has run, and then at one after the other.
    while ran() < last {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for workflow in 0..workflows {
        loop {
            match client.get_orchestration_status(&name(number, workflow)).await? {
                OrchestrationStatus::Completed { output, .. } if output == (steps * RESULT).to_string() => {
                    break;
                }
                OrchestrationStatus::Completed { .. } => return Err("a workflow has a wrong result".into()),
                OrchestrationStatus::Failed { details, .. } => return Err(details.display_message().into()),
                _ => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    }
    let spent = began.elapsed();
    runtime.shutdown(None).await;
    Ok(spent)
}

fn name(round: usize, workflow: usize) -> String {
    format!("flow-{round}-{workflow}")
}

#[cfg(feature = "sqlite")]
async fn provider(asked: &Asked) -> Result<Arc<dyn Provider>> {
    /// What its pool holds at most.
    const POOL: usize = 5;

    let address = format!("{}?mode=rwc", asked.address);
    let provider = duroxide::providers::sqlite::SqliteProvider::new(&address, None).await?;
    if asked.setting != "shipped" {
        // It takes no pool of others, but shows its own: all connections are taken once and set up.
        let mut taken = Vec::new();
        for _ in 0..POOL {
            let mut connection = provider.get_pool().acquire().await?;
            sqlx::query("PRAGMA synchronous = FULL").execute(&mut *connection).await?;
            taken.push(connection);
        }
    }
    Ok(Arc::new(provider))
}

#[cfg(not(feature = "sqlite"))]
async fn provider(asked: &Asked) -> Result<Arc<dyn Provider>> {
    Ok(Arc::new(duroxide_pg::PostgresProvider::new(&asked.address).await?))
}
