//! Real processes on a primary with a synchronous standby, and everything that can happen to them there, once.
//!
//! More of it, and with other seeds: `cargo xtask torture --store postgres --cycles 200`.

use std::sync::Arc;

use mainspring_testkit::torture::postgres::Postgres;
use mainspring_testkit::torture::{LongRun, Plan, marathon, run};

/// Each kind of fault; of failure points and system calls, those at which it is hardest to know what was stored.
const FAULTS: [&str; 22] = [
    "kill in peace",
    "stop",
    "point postgres.sent",
    "sendto KILL",
    "cut commit before",
    "cut commit inside",
    "cut commit after",
    "cut commit lost",
    "cut rows",
    "cut listeners",
    "black hole",
    "apart",
    "restart fast",
    "restart immediate",
    "sessions ended",
    "session killed",
    "crowd",
    "lock",
    "lock done",
    "rows damaged",
    "standby away",
    "failover",
];

/// One worker that is killed again and again finishes every workflow, and does again only what was lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workflows_survive_twenty_kills_of_their_only_worker() {
    let stage = Arc::new(Postgres::new().expect("two servers"));
    let plan = Plan::new(env!("CARGO_BIN_EXE_mainspring-victim"), 20, 1);
    let outcome = marathon(stage, &plan, LongRun { flows: 80, steps: 20, millis: 100 }).await.expect("a run");
    println!("{outcome}");
    outcome.assert_clean();
}

/// Results of a megabyte are stored in the end, although nobody could for a while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_are_damaged_and_outcomes_that_wait_disturb_nobody() {
    let stage = Arc::new(Postgres::new().expect("two servers"));
    let only = ["rows damaged", "lock done"];
    let plan = Plan::new(env!("CARGO_BIN_EXE_mainspring-victim"), 4, 3).only(&only);
    let outcome = run(stage, &plan).await.expect("a run");
    println!("{outcome}");
    outcome.assert_clean();
    assert_eq!(outcome.faults["rows damaged"].hit, 2, "{outcome}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_that_were_claimed_ahead_are_not_blamed_for_deaths() {
    let stage = Arc::new(Postgres::new().expect("two servers"));
    let plan = Plan::new(env!("CARGO_BIN_EXE_mainspring-victim"), 2, 1).only(&["rush"]);
    let outcome = run(stage, &plan).await.expect("a run");
    println!("{outcome}");
    outcome.assert_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_blow_loses_and_doubles_nothing() {
    let stage = Arc::new(Postgres::new().expect("two servers"));
    let plan = Plan::new(env!("CARGO_BIN_EXE_mainspring-victim"), FAULTS.len(), 20).only(&FAULTS);
    let outcome = run(stage, &plan).await.expect("a run");
    println!("{outcome}");
    outcome.assert_clean();
    assert!(outcome.faults.len() == FAULTS.len() && outcome.faults.values().all(|tally| tally.injected == 1));
    assert!(!outcome.report.figures.peaceful.is_empty(), "nobody knows how soon the dead are found");
}
