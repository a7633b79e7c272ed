//! Many handles meet a database that comes back: not all at once.

use std::time::{Duration, Instant};

use mainspring_testkit::patience::{Pace, wait};
use mainspring_testkit::postgres::{Database, Options, Stop};

use super::support::{
    Gate, assert_lives, backends, database, enqueue, node, number, open, passed, succeeded,
};

/// As many as one small machine runs in one process.
const HANDLES: i64 = 50;
/// Long enough that pauses between attempts have grown to about a second, at the default lease.
const OUTAGE: Duration = Duration::from_secs(4);
/// A tick of what is counted.
const TICK: Duration = Duration::from_millis(100);

/// When sessions of this database began, from the first on, as the server logged it since its start.
fn arrivals(database: &Database) -> Vec<Duration> {
    // 2026-01-31 12:00:00.123 UTC [17] LOG:  connection authorized: …
    let log = database.server().log().expect("a log");
    let time = |line: &str| -> Option<Duration> {
        let clock = line.split(' ').nth(1)?;
        let [hours, minutes, seconds] = clock.splitn(3, ':').collect::<Vec<_>>().try_into().ok()?;
        let whole: u64 = hours.parse::<u64>().ok()? * 3600 + minutes.parse::<u64>().ok()? * 60;
        Some(Duration::from_secs(whole) + Duration::from_secs_f64(seconds.parse().ok()?))
    };
    let mut times: Vec<_> = log
        .lines()
        .filter(|line| line.contains("connection authorized") && line.contains(database.name()))
        .filter(|line| !line.contains("mainspring-testkit"))
        .filter_map(time)
        .collect();
    times.sort();
    times
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handles_come_back_to_a_database_one_after_another() {
    let options = Options::new().setting("log_connections", "on").setting("max_connections", "600");
    let database = database(&options).await;
    let gate = Gate::open();
    let mut nodes = Vec::new();
    for _ in 0..HANDLES {
        let engine = open(&database.url()).await;
        let node = node(&engine, &gate, Duration::from_secs(15)).await;
        nodes.push((engine, node));
    }
    let job = enqueue(&nodes[0].0, 0).await;
    succeeded(&nodes[0].0, job).await;
    let before = backends(&database, "true").len();
    database.server().stop(Stop::Fast).expect("stopped");
    passed(Instant::now(), OUTAGE).await;
    database.server().start_again().expect("started");
    let (back, pace) = (Instant::now(), Pace::start());
    wait("all nodes have renewed their leases", async || {
        let renewed = "SELECT count(*) FROM mainspring.nodes WHERE renewed_at > pg_postmaster_start_time()";
        (number(&database, renewed) == HANDLES).then_some(())
    })
    .await;
    let (took, steady) = (back.elapsed(), pace.is_steady());
    let arrivals = arrivals(&database);
    let sessions = |from: Duration| arrivals.iter().filter(|&&at| at >= from && at < from + TICK).count();
    let densest = arrivals.iter().map(|at| sessions(*at)).max().unwrap_or(0);
    let first = arrivals.first().copied().unwrap_or_default();
    let second = arrivals.iter().filter(|at| **at < first + Duration::from_secs(1)).count();
    println!(
        "{HANDLES} handles, {before} sessions before; {} came back in {took:?}: {second} in the first second, at most {densest} \
        in {TICK:?}",
        arrivals.len()
    );
    // Each comes once: nobody who was let in knocks again.
    assert!(arrivals.len() <= before + nodes.len(), "{} sessions", arrivals.len());
    // On a machine that is late those pile up who would have come one after the other.
    assert!(densest * 3 < before || !steady, "{densest} of {before} within {TICK:?}");
    for (_, node) in &nodes {
        assert_lives(&nodes[0].0, node, 0).await;
    }
    for (engine, node) in nodes {
        node.abort().await;
        engine.close().await;
    }
}
