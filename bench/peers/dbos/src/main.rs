//! The workload of `bench steps` on DBOS Transact.

#[path = "../../peer.rs"]
mod peer;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dbos::{Config, DBOS, WorkflowRef};
use peer::{Asked, RESULT, Result, Rounds, WARM};
use tokio::sync::Barrier;

#[tokio::main]
async fn main() -> Result<()> {
    let asked = Asked::read()?;
    let mut config = Config::new("peer-dbos", &asked.address);
    config.app_version = Some("1".to_owned());
    if asked.setting != "shipped" {
        config.max_connections = asked.setting.parse()?;
    }
    // Workflows wait until all are there, so that starting them is not measured.
    let gate = Arc::new(Barrier::new(asked.workflows + 1));
    let latencies = Arc::new(Mutex::new(Vec::new()));
    let dbos = DBOS::new(config);
    let (opens, times) = (Arc::clone(&gate), Arc::clone(&latencies));
    let flow = dbos.register_workflow("flow", move |steps: usize| {
        let (gate, latencies) = (Arc::clone(&opens), Arc::clone(&times));
        async move {
            gate.wait().await;
            let (mut bytes, mut taken) = (0, Vec::with_capacity(steps));
            for _ in 0..steps {
                let began = Instant::now();
                let value: String =
                    dbos::step("step", || async { dbos::Result::Ok("x".repeat(RESULT)) }).await?;
                taken.push(began.elapsed());
                bytes += value.len();
            }
            latencies.lock().expect("nobody panics with it").extend(taken);
            dbos::Result::Ok(bytes)
        }
    })?;
    dbos.launch().await?;

    let warm = asked.workflows * WARM;
    round(&flow, &gate, asked.workflows, WARM).await?;
    if asked.workflows == 1 {
        latencies.lock().expect("nobody panics with it").clear();
        round(&flow, &gate, 1, asked.steps).await?;
        peer::tell_latencies(latencies.lock().expect("nobody panics with it").clone(), warm + asked.steps);
    } else {
        let mut rounds = Rounds::after(warm);
        while rounds.more() {
            let spent = round(&flow, &gate, asked.workflows, asked.steps).await?;
            rounds.add(asked.workflows * asked.steps, spent);
        }
        rounds.tell(&asked);
    }
    dbos.shutdown().await;
    Ok(())
}

/// From the first step to the last recorded end.
async fn round(
    flow: &WorkflowRef<usize, usize>,
    gate: &Barrier,
    workflows: usize,
    steps: usize,
) -> Result<Duration> {
    let mut handles = Vec::with_capacity(workflows);
    for _ in 0..workflows {
        handles.push(flow.start(steps).await?);
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
