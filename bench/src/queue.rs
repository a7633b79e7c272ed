//! The queue benchmark.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use mainspring::{Context, Engine, Job, Node};
use mainspring_core::job::Outcome;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::bare_node::{self, Bare};
use crate::database::Place;
use crate::report::{Report, millis, percentile};

/// Options of the queue benchmark.
#[derive(Args, Clone)]
pub(crate) struct Options {
    /// The store to measure; with peers both, unless one is named.
    #[arg(long, default_value = "sqlite", default_value_if("peers", "true", "all"), value_parser = ["sqlite", "postgres", "all"])]
    store: String,
    /// Jobs to drain; fewer with peers, some of which are slow.
    #[arg(long, default_value = "1000000", default_value_if("peers", "true", "200000"))]
    pub(crate) jobs: usize,
    /// Slots of the node.
    #[arg(long, default_value_t = 64)]
    pub(crate) slots: u32,
    /// One JSON line per figure.
    #[arg(long)]
    pub(crate) json: bool,
    /// Where to put the databases of SQLite; a temporary directory if not given.
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
    /// Only the parts, or with peers the systems beside ours, whose name contains this.
    #[arg(long)]
    pub(crate) only: Option<String>,
    /// Measure other job queues beside ours, which are built first, and say which of our goals hold.
    #[arg(long)]
    peers: bool,
    /// With peers: how often everything is measured.
    #[arg(long, default_value_t = 3, requires = "peers")]
    pub(crate) rounds: usize,
    /// With peers: seconds that one task may take; slower ones are told by how far they came.
    #[arg(long, default_value_t = 15, requires = "peers")]
    pub(crate) limit: u64,
    /// With peers: write the figures, the tables and the chart of docs/performance.md, and the short form in README.md.
    #[arg(long, requires = "peers")]
    pub(crate) write: bool,
    /// With peers: take the figures from this file instead of measuring.
    #[arg(long, requires = "peers")]
    pub(crate) from: Option<PathBuf>,
}

impl Options {
    /// The stores to measure.
    pub(crate) fn stores(&self) -> Vec<&str> {
        if self.store == "all" { vec!["postgres", "sqlite"] } else { vec![&self.store] }
    }
}

/// A job of about a hundred bytes that does nothing.
#[derive(Serialize, Deserialize, Job)]
#[job(kind = "noop")]
pub(crate) struct Noop {
    pub(crate) sent: u64,
    pub(crate) text: String,
}

impl Noop {
    pub(crate) fn new(sent: u64) -> Self {
        Noop { sent, text: "x".repeat(70) }
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    if options.peers {
        return crate::comparison::run(options);
    }
    options.stores().into_iter().try_for_each(|store| run_on(store, options))
}

fn run_on(store: &str, options: &Options) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let report = Report::new("queue", store, options.json);
    let place = Place::new(store, options.dir.as_deref())?;
    let wanted = |part: &str| options.only.as_deref().is_none_or(|only| part.contains(only));
    runtime.block_on(async {
        if wanted("drain") {
            bulk_and_drain(options, &place, &report).await?;
        }
        if wanted("single") {
            for producers in [1, 64, 512] {
                single(producers, &place, &report).await?;
            }
        }
        if wanted("both") {
            both(options, &place, &report).await?;
        }
        if wanted("claim") {
            claims(options, &place, &report).await?;
        }
        if wanted("idle") {
            idle(&place, &report).await?;
        }
        if let (Some(server), true) = (place.server(), wanted("postgres")) {
            crate::postgres::run(server, options, &report).await?;
        }
        Ok(())
    })
}

/// Fills a store with jobs; returns jobs per second.
pub(crate) async fn fill(engine: &Engine, jobs: usize) -> Result<f64> {
    let began = Instant::now();
    let mut left = jobs;
    while left > 0 {
        let count = left.min(100_000);
        engine.enqueue_many((0..count).map(|_| Noop::new(0))).await?;
        left -= count;
    }
    Ok(jobs as f64 / began.elapsed().as_secs_f64())
}

/// Bulk enqueue, drain at five points, memory, bytes per job; then the same drain without the engine.
async fn bulk_and_drain(options: &Options, place: &Place, report: &Report) -> Result<()> {
    let database = place.database("drain")?;
    let engine = database.open().await?;
    report.figure("bulk enqueue", fill(&engine, options.jobs).await?, "jobs/s");
    report.figure("bytes per waiting job", database.bytes()? / options.jobs as f64, "bytes");
    let (rate, points) = drain(&engine, options).await?;
    report.figure("drain", rate, "jobs/s");
    for (at, point) in points.iter().enumerate() {
        report.figure(&format!("drain, fifth {} of 5", at + 1), *point, "jobs/s");
    }
    report.figure("bytes per finished job", database.bytes()? / options.jobs as f64, "bytes");
    report.figure("memory at its peak", peak_memory()?, "MiB");
    engine.close().await;
    drop(database);

    for batch in [1_000, 100] {
        let database = place.database("ceiling")?;
        let engine = database.open().await?;
        fill(&engine, options.jobs).await?;
        let ceiling = bare_node::drain(&engine, batch).await?;
        report.figure_of("store alone", &format!("drain, batches of {batch}"), ceiling, "jobs/s");
        if batch == 1_000 {
            report.figure("drain, share of the store alone", 100.0 * rate / ceiling, "%");
        }
        engine.close().await;
    }
    Ok(())
}

/// Drains a full store with a node; the rate over all, and of each fifth.
pub(crate) async fn drain(engine: &Engine, options: &Options) -> Result<(f64, Vec<f64>)> {
    let done = Arc::new(AtomicUsize::new(0));
    let (told, mut tell) = mpsc::unbounded_channel();
    let (counted, fifth, jobs) = (Arc::clone(&done), options.jobs / 5, options.jobs);
    let began = Instant::now();
    let node = engine
        .node()
        .handle(|_: Context, _: Noop| async { mainspring::HandlerResult::Ok(()) })
        .queue("default", options.slots)
        .on_outcome(move |_, _| {
            let count = counted.fetch_add(1, Ordering::Relaxed) + 1;
            if count.is_multiple_of(fifth) || count == jobs {
                let _gone = told.send((count, Instant::now()));
            }
        })
        .start()
        .await?;
    let (mut points, mut last) = (Vec::new(), (0, began));
    while last.0 < jobs {
        let (count, at) = tell.recv().await.context("the node stopped")?;
        points.push((count - last.0) as f64 / (at - last.1).as_secs_f64());
        last = (count, at);
    }
    node.shutdown().await;
    points.truncate(5);
    Ok((jobs as f64 / (last.1 - began).as_secs_f64(), points))
}

/// How long producers run.
const LOAD: Duration = Duration::from_secs(3);

/// Producers that each enqueue one job after the other; acknowledged jobs, and how long each took.
async fn produce(engine: &Engine, producers: usize) -> Result<(usize, Vec<Duration>)> {
    let mut tasks = Vec::new();
    let end = Instant::now() + LOAD;
    for _ in 0..producers {
        let engine = engine.clone();
        tasks.push(tokio::spawn(async move {
            let mut latencies = Vec::new();
            while Instant::now() < end {
                let began = Instant::now();
                engine.enqueue(Noop::new(0)).await?;
                latencies.push(began.elapsed());
            }
            Ok::<_, mainspring::Error>(latencies)
        }));
    }
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await??);
    }
    Ok((latencies.len(), latencies))
}

async fn single(producers: usize, place: &Place, report: &Report) -> Result<()> {
    let database = place.database("single")?;
    let engine = database.open().await?;
    let began = Instant::now();
    let (count, mut latencies) = produce(&engine, producers).await?;
    let rate = count as f64 / began.elapsed().as_secs_f64();
    report.figure(&format!("single enqueues, {producers} producers"), rate, "jobs/s");
    report.latencies(&format!("single enqueues, {producers} producers, ack"), &mut latencies);
    engine.close().await;
    Ok(())
}

/// 512 producers and a node at the same time.
async fn both(options: &Options, place: &Place, report: &Report) -> Result<()> {
    let database = place.database("both")?;
    let engine = database.open().await?;
    let done = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&done);
    let node = engine
        .node()
        .handle(|_: Context, _: Noop| async { mainspring::HandlerResult::Ok(()) })
        .queue("default", options.slots)
        .on_outcome(move |_, _| {
            counted.fetch_add(1, Ordering::Relaxed);
        })
        .start()
        .await?;
    let began = Instant::now();
    let (count, mut latencies) = produce(&engine, 512).await?;
    let enqueued = began.elapsed();
    while done.load(Ordering::Relaxed) < count {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let drained = began.elapsed();
    report.figure("both at once, 512 producers: enqueued", count as f64 / enqueued.as_secs_f64(), "jobs/s");
    report.figure("both at once, 512 producers: done", count as f64 / drained.as_secs_f64(), "jobs/s");
    report.latencies("both at once, 512 producers: ack", &mut latencies);
    node.shutdown().await;
    engine.close().await;
    Ok(())
}

/// How often the latency of a claim is measured.
const CLAIMS: usize = 300;

/// How long it takes to claim 100 jobs with few and with very many waiting.
async fn claims(options: &Options, place: &Place, report: &Report) -> Result<()> {
    let mut tails = Vec::new();
    for waiting in [0, 100, options.jobs] {
        let database = place.database("claim")?;
        let engine = database.open().await?;
        fill(&engine, waiting).await?;
        let mut bare = Bare::join(&engine).await?;
        let mut latencies = Vec::new();
        for _ in 0..CLAIMS {
            let began = Instant::now();
            let claimed = bare.claim(100).await?;
            latencies.push(began.elapsed());
            if claimed.jobs.len() != waiting.min(100) {
                bail!("claimed {} of {waiting} waiting jobs", claimed.jobs.len());
            }
            // Given back, so that as many wait for the next.
            bare.finish(&claimed, &Outcome::Release).await?;
        }
        report.latencies(&format!("claim of 100 with {waiting} waiting"), &mut latencies);
        tails.push(percentile(&mut latencies, 0.99));
        bare.leave().await?;
        engine.close().await;
    }
    report.figure("claim p99, most waiting : 100 waiting", millis(tails[2]) / millis(tails[1]), "ratio");
    Ok(())
}

/// How often the latency of an idle system is measured.
const SAMPLES: usize = 500;
/// How long an idle system is watched.
const WATCH: Duration = Duration::from_secs(30);

/// How long the system rests between two jobs, where it does: long enough for its processors to fall asleep.
const REST: Duration = Duration::from_millis(2);

/// One job at a time on an idle system, and what the system writes when there is none.
async fn idle(place: &Place, report: &Report) -> Result<()> {
    let database = place.database("idle")?;
    let engine = database.open().await?;
    let clock = Instant::now();
    let nanos = move || u64::try_from(clock.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let started = Arc::new(AtomicU64::new(0));
    let (done, mut ended) = mpsc::unbounded_channel();
    let begun = Arc::clone(&started);
    let node = engine
        .node()
        .handle(move |_: Context, _: Noop| {
            begun.store(nanos(), Ordering::Relaxed);
            async { mainspring::HandlerResult::Ok(()) }
        })
        .queue("default", 10)
        .on_outcome(move |_, _| {
            let _gone = done.send(nanos());
        })
        .start()
        .await?;
    for (rest, name) in [(Duration::ZERO, "idle"), (REST, "idle, 2 ms apart")] {
        let (mut acks, mut starts, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..SAMPLES {
            let sent = nanos();
            engine.enqueue(Noop::new(0)).await?;
            acks.push(Duration::from_nanos(nanos().saturating_sub(sent)));
            let end = ended.recv().await.context("the node stopped")?;
            starts.push(Duration::from_nanos(started.load(Ordering::Relaxed).saturating_sub(sent)));
            ends.push(Duration::from_nanos(end.saturating_sub(sent)));
            tokio::time::sleep(rest).await;
        }
        report.latencies(&format!("{name}: enqueue → acknowledged"), &mut acks);
        report.latencies(&format!("{name}: enqueue → start"), &mut starts);
        report.latencies(&format!("{name}: enqueue → done"), &mut ends);
    }
    report.figure("idle: writes per second", database.writes(WATCH).await?, "commits/s");
    report.figure("idle: a third of the lease", 1.0 / 5.0, "1/s");
    stop(node, engine).await;
    Ok(())
}

pub(crate) async fn stop(node: Node, engine: Engine) {
    node.shutdown().await;
    engine.close().await;
}

/// The most memory that this process ever had, in MiB.
fn peak_memory() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).context("no VmHWM")?;
    let kib: f64 = line.split_whitespace().nth(1).context("no figure")?.parse()?;
    Ok(kib / 1_024.0)
}
