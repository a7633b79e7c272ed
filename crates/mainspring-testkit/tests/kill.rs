//! Real processes on one SQLite file, killed and stopped while they work.
//!
//! Three workers, a producer and a killer. Nothing that was acknowledged may be lost, every job gets exactly one outcome,
//! no write of a former owner is accepted, and what a dead process held runs elsewhere within a second.

#![expect(clippy::disallowed_methods, reason = "real processes live on the real clock and the real executor")]

use std::time::Duration;

use mainspring::{Backoff, Engine, Filter, JobId, Reason, State};
use mainspring_core::name::QueueName;
use mainspring_core::store::QueueChange;
use mainspring_testkit::rig::{Fallen, Rig, wait};
use mainspring_testkit::rng::SeededRng;
use mainspring_testkit::victim::{Poison, Work};
use tempfile::TempDir;

/// A rig on a file, and the file's directory.
async fn rig(lease: Duration) -> (Rig, TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    let address = format!("sqlite:{}", dir.path().join("store.db").display());
    let engine = Engine::open(&address).await.expect("a store");
    (Rig::new(env!("CARGO_BIN_EXE_mainspring-victim"), address, lease, engine), dir)
}

/// Stops a worker that holds jobs, outside of a transaction: a stopped process keeps the database's lock.
async fn stop(rig: &Rig, index: usize) -> Option<Fallen> {
    let fallen = rig.freeze(index).await?;
    let probe = QueueName::new("probe").expect("a name");
    let write =
        rig.engine.store().configure(probe, QueueChange { paused: Some(true), ..QueueChange::default() });
    let writable =
        tokio::time::timeout(Duration::from_millis(300), write).await.is_ok_and(|done| done.is_ok());
    if !writable {
        rig.workers[index].wake();
    }
    writable.then_some(fallen)
}

/// Enqueues jobs, some by themselves and the rest in bulk; returns what was acknowledged.
async fn produce(engine: Engine, count: u64) -> Vec<JobId> {
    const SINGLES: u64 = 20;
    let work =
        |number: u64| Work { number, millis: number % 20, fails: u16::from(number.is_multiple_of(50)) };
    let backoff = Backoff::Fixed(Duration::from_millis(50));
    let mut acknowledged = Vec::new();
    for number in 0..SINGLES.min(count) {
        acknowledged.push(engine.enqueue(work(number)).backoff(backoff).await.expect("acknowledged").id);
    }
    let stored =
        engine.enqueue_many((SINGLES..count).map(work)).backoff(backoff).await.expect("acknowledged");
    acknowledged.extend(stored.iter().map(|job| job.id));
    acknowledged
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thirty_kills_lose_and_double_nothing() {
    const KILLS: usize = 30;
    const JOBS_PER_KILL: u64 = 670;
    // The lease is long: a recovery that is quicker than it comes from the proof of death.
    let (mut rig, _dir) = rig(Duration::from_secs(15)).await;
    for _ in 0..3 {
        rig.start();
    }
    let (mut recoveries, mut acknowledged) = (Vec::new(), Vec::new());
    let rng = SeededRng::new(30);
    for _ in 0..KILLS {
        let producer = tokio::spawn(produce(rig.engine.clone(), JOBS_PER_KILL));
        let fallen = rig.kill_one(&rng).await;
        rig.rescued(fallen.node).await;
        recoveries.push(fallen.at.elapsed());
        rig.start();
        acknowledged.extend(producer.await.expect("a producer"));
    }
    assert!(acknowledged.len() > 20_000);
    rig.all_succeeded(acknowledged.len()).await;
    rig.check(&acknowledged, true).await;
    let quarantined = Filter { reason: Some(Reason::Quarantine), ..Filter::default() };
    assert!(rig.engine.jobs().list(quarantined, None, 10).await.expect("jobs").jobs.is_empty());
    recoveries.sort();
    println!(
        "{KILLS} kills; recovery: median {:?}, slowest {:?}",
        recoveries[KILLS / 2],
        recoveries[KILLS - 1]
    );
    // The promise is a second; a machine that is busy with other tests may take longer to schedule anybody.
    assert!(recoveries[KILLS / 2] < Duration::from_secs(1), "{recoveries:?}");
    assert!(recoveries[KILLS - 1] < Duration::from_secs(5), "{recoveries:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_worker_is_replaced_and_its_late_writes_are_refused() {
    const STOPS: usize = 3;
    let lease = Duration::from_secs(2);
    let (mut rig, _dir) = rig(lease).await;
    for _ in 0..3 {
        rig.start();
    }
    let producer = tokio::spawn(produce(rig.engine.clone(), 3_000));
    let mut recoveries = Vec::new();
    for turn in 0..STOPS {
        let fallen = loop {
            // Fresh work, so that there is always something to hold.
            let job = Work { number: 0, millis: 20, fails: 0 };
            rig.engine.enqueue(job).tag("filler").await.expect("acknowledged");
            match stop(&rig, turn % 3).await {
                Some(fallen) => break fallen,
                None => tokio::task::yield_now().await,
            }
        };
        rig.rescued(fallen.node).await;
        recoveries.push(fallen.at.elapsed());
        rig.workers[turn % 3].wake();
        wait("the woken worker has joined anew", async || rig.node(fallen.pid).await).await;
    }
    let mut acknowledged = producer.await.expect("a producer");
    let filler = Filter { tag: Some("filler".parse().expect("a tag")), ..Filter::default() };
    let fillers = rig.engine.jobs().list(filler, None, 1_000).await.expect("jobs").jobs;
    acknowledged.extend(fillers.iter().map(|job| job.id));
    rig.all_succeeded(acknowledged.len()).await;
    let late = rig.check(&acknowledged, false).await;
    println!("{STOPS} stops; recoveries: {recoveries:?}; {} late outcomes refused", late.len());
    recoveries.sort();
    assert!(recoveries[STOPS / 2] < lease + Duration::from_secs(1), "{recoveries:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_kills_its_process_is_quarantined_alone() {
    let (mut rig, _dir) = rig(Duration::from_secs(15)).await;
    for _ in 0..2 {
        rig.start();
    }
    let poison = rig.engine.enqueue(Poison {}).await.expect("acknowledged").id;
    let work = (0..300).map(|number| Work { number, millis: 3, fails: 0 });
    let stored = rig.engine.enqueue_many(work).await.expect("acknowledged");
    let acknowledged: Vec<_> = stored.iter().map(|job| job.id).collect();
    wait("the killer is under quarantine", async || {
        rig.replace_dead();
        let job = rig.engine.jobs().get(poison).await.expect("the job");
        (job.summary.status.state == State::Suspended).then_some(())
    })
    .await;
    let job = rig.engine.jobs().get(poison).await.expect("the job").summary;
    assert_eq!((job.status.reason, job.crashes), (Some(Reason::Quarantine), 3));
    rig.all_succeeded(acknowledged.len()).await;
    rig.check(&acknowledged, true).await;
}
