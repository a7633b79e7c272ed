//! Many nodes, many jobs, one store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mainspring::{Context, Engine, State};

use crate::support::{Work, assert_sound, eventually, soon, sqlite, total, work};

const JOBS: u64 = 20_000;

/// Each job once, over four nodes: no job is lost, and none runs twice without a fault.
async fn burst(engines: Vec<Engine>) {
    let runs: Arc<Vec<AtomicU32>> = Arc::new((0..JOBS).map(|_| AtomicU32::new(0)).collect());
    let mut nodes = Vec::new();
    for engine in &engines {
        let runs = Arc::clone(&runs);
        let handler = move |_ctx: Context, job: Work| {
            runs[usize::try_from(job.n).expect("small")].fetch_add(1, Ordering::Relaxed);
            async move { mainspring::HandlerResult::Ok(job.n) }
        };
        // A long lease: on a busy machine nobody is to be taken for dead.
        let node = engine.node().handle(handler).queue("default", 4).lease(Duration::from_mins(5));
        nodes.push(node.start().await.expect("a node"));
    }
    let jobs = engines[0].enqueue_many((0..JOBS).map(work)).await.expect("enqueued");
    let last = jobs.last().expect("jobs");
    soon("the last ends", engines[0].result(last)).await.expect("it succeeded");
    eventually("all have ended", async || total(&engines[0], State::Succeeded).await == JOBS).await;
    for node in &nodes {
        soon("it drains", node.shutdown()).await;
    }
    assert!(runs.iter().all(|runs| runs.load(Ordering::Relaxed) == 1), "each exactly once");
    assert_sound(&engines[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_over_four_nodes_in_memory_runs_each_job_once() {
    let engine = Engine::open("memory:").await.expect("a store");
    burst(vec![engine; 4]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_over_four_nodes_on_one_file_runs_each_job_once() {
    let (address, _dir) = sqlite();
    let options = || Engine::options().relaxed_durability();
    let engine = options().open(&address).await.expect("a store");
    // Two handles with two nodes each, as two processes would have.
    let other = options().open(&address).await.expect("the same store");
    burst(vec![engine.clone(), engine, other.clone(), other]).await;
}

/// Producers and consumers at once, from several tasks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn producers_and_consumers_at_once_lose_nothing() {
    let (address, _dir) = sqlite();
    let engine = Engine::options().relaxed_durability().open(&address).await.expect("a store");
    let handler = async |_ctx: Context, job: Work| mainspring::HandlerResult::Ok(job.n * 3);
    let node = engine.node().handle(handler).queue("default", 4).start().await.expect("a node");
    let producers = (0..8_u64).map(|producer| {
        let engine = engine.clone();
        async move {
            for n in 0..100 {
                let n = producer * 100 + n;
                let job = engine.enqueue(work(n)).await.expect("enqueued");
                assert_eq!(engine.result(&job).await.expect("it succeeded"), n * 3);
            }
        }
    });
    let mut all = tokio::task::JoinSet::new();
    for producer in producers {
        all.spawn(producer);
    }
    soon("all are served", all.join_all()).await;
    node.shutdown().await;
    assert_eq!(total(&engine, State::Succeeded).await, 800);
    assert_sound(&engine).await;
}
