//! The benchmark of limits: what a job with a limit costs, beside plain jobs of the same run.
//!
//! Rounds alternate between plain and limited jobs, each on a fresh database, and the medians are compared: what the machine does
//! meanwhile meets both.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use mainspring::{Context, Engine, Job};
use mainspring_core::job::Outcome;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::bare_node::Bare;
use crate::database::{Database, Place};
use crate::queue::{Noop, fill};
use crate::report::{Report, percentile};

/// The limit of all jobs here.
const LIMIT: &str = "bench";
/// Keys where there are many.
const KEYS: usize = 10_000;
/// Keys where each lets in one job at a time.
const FULL_KEYS: usize = 1_000;
/// Jobs that follow each other through a limit of one.
const FOLLOWERS: usize = 400;
/// Claims whose latency is measured.
const CLAIMS: usize = 400;

/// Options of the benchmark of limits.
#[derive(Args, Clone)]
pub(crate) struct Options {
    /// The store to measure.
    #[arg(long, default_value = "sqlite", value_parser = ["sqlite", "postgres"])]
    store: String,
    /// What is measured; everything if not given.
    #[arg(long)]
    regime: Option<Regime>,
    /// Jobs to drain.
    #[arg(long, default_value_t = 100_000)]
    jobs: usize,
    /// Jobs that are held back beside plain ones.
    #[arg(long, default_value_t = 1_000_000)]
    held_back: usize,
    /// Rounds of each.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Slots of the node.
    #[arg(long, default_value_t = 64)]
    slots: u32,
    /// One JSON line per figure.
    #[arg(long)]
    json: bool,
    /// Where to put the databases of SQLite; a temporary directory if not given.
    #[arg(long)]
    dir: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Regime {
    /// As many keys as jobs.
    Fresh,
    /// Ten thousand keys, and all jobs wait.
    Deep,
    /// A maximum of one: each end lets the next one in.
    Saturated,
    /// One key that has room; on Postgres also under a snapshot that somebody holds.
    Hot,
    /// How soon the next job starts after one that made room, on one node and on two.
    Two,
    /// Claims of plain jobs beside very many that are held back.
    Beside,
}

#[derive(Serialize, Deserialize, Job)]
#[job(kind = "limited", limit(bench, key = self.key))]
struct Limited {
    key: usize,
    text: String,
}

impl Limited {
    fn new(key: usize) -> Self {
        Limited { key, text: "x".repeat(70) }
    }
}

/// The same limit, on another node.
#[derive(Serialize, Deserialize, Job)]
#[job(kind = "other", limit(bench, key = "0"))]
struct Other {}

pub(crate) fn run(options: &Options) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let report = Report::new("limits", &options.store, options.json);
    let place = Place::new(&options.store, options.dir.as_deref())?;
    let wanted = |regime| options.regime.is_none_or(|only| only == regime);
    runtime.block_on(async {
        let drains = [
            (Regime::Fresh, "one job per key", options.jobs, 10),
            (Regime::Deep, "10,000 keys", KEYS, 10),
            (Regime::Saturated, "1,000 keys of one at a time", FULL_KEYS, 1),
            (Regime::Hot, "one key", 1, 1_000_000),
        ];
        for (regime, name, keys, max) in drains {
            if wanted(regime) {
                drains_compared(options, &place, &report, (name, keys, max)).await?;
            }
        }
        if wanted(Regime::Hot) && place.server().is_some() {
            held_snapshot(options, &place, &report).await?;
        }
        if wanted(Regime::Two) {
            followers(&place, &report, 1).await?;
            followers(&place, &report, 2).await?;
        }
        if wanted(Regime::Beside) {
            beside(options, &place, &report).await?;
        }
        Ok(())
    })
}

/// Fills a store with jobs of so many keys, each of which lets in so many at once.
async fn fill_limited(engine: &Engine, jobs: usize, keys: usize, max: u32) -> Result<()> {
    engine.limits().set(LIMIT).max(max).await?;
    let mut at = 0;
    while at < jobs {
        let count = (jobs - at).min(100_000);
        engine.enqueue_many((at..at + count).map(|n| Limited::new(n % keys))).await?;
        at += count;
    }
    Ok(())
}

/// Drains so many jobs; jobs per second.
async fn drain(engine: &Engine, jobs: usize, slots: u32) -> Result<f64> {
    let done = Arc::new(AtomicUsize::new(0));
    let (told, mut tell) = mpsc::unbounded_channel();
    let began = Instant::now();
    let node = engine
        .node()
        .handle(|_: Context, _: Noop| async { mainspring::HandlerResult::Ok(()) })
        .handle(|_: Context, _: Limited| async { mainspring::HandlerResult::Ok(()) })
        .queue("default", slots)
        .on_outcome(move |_, _| {
            if done.fetch_add(1, Ordering::Relaxed) + 1 == jobs {
                let _gone = told.send(Instant::now());
            }
        })
        .start()
        .await?;
    let ended = tell.recv().await.context("the node stopped")?;
    node.shutdown().await;
    Ok(jobs as f64 / (ended - began).as_secs_f64())
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or_default()
}

async fn drained(options: &Options, place: &Place, limited: Option<(usize, u32)>) -> Result<f64> {
    let database = place.database("limits")?;
    let engine = database.open().await?;
    match limited {
        Some((keys, max)) => fill_limited(&engine, options.jobs, keys, max).await?,
        None => drop(fill(&engine, options.jobs).await?),
    }
    database.settle()?;
    let rate = drain(&engine, options.jobs, options.slots).await?;
    engine.close().await;
    Ok(rate)
}

async fn drains_compared(
    options: &Options,
    place: &Place,
    report: &Report,
    (name, keys, max): (&str, usize, u32),
) -> Result<()> {
    let (mut plain, mut limited) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds.max(1) {
        plain.push(drained(options, place, None).await?);
        limited.push(drained(options, place, Some((keys, max))).await?);
    }
    let (plain, limited) = (median(plain), median(limited));
    report.figure(&format!("{name}: plain drain"), plain, "jobs/s");
    report.figure(&format!("{name}: drain"), limited, "jobs/s");
    report.figure(&format!("{name}: ratio"), limited / plain, "ratio");
    Ok(())
}

/// A hot key, with and without a snapshot that keeps its old versions alive.
async fn held_snapshot(options: &Options, place: &Place, report: &Report) -> Result<()> {
    let (mut free, mut held) = (Vec::new(), Vec::new());
    for round in 0..2 * options.rounds.max(1) {
        let database = place.database("hot")?;
        let engine = database.open().await?;
        fill_limited(&engine, options.jobs, 1, 1_000_000).await?;
        database.settle()?;
        let snapshot = if round % 2 == 1 { Some(database.hold().await?) } else { None };
        let rate = drain(&engine, options.jobs, options.slots).await?;
        if snapshot.is_some() {
            held.push(rate);
        } else {
            free.push(rate);
        }
        drop(snapshot);
        engine.close().await;
    }
    report.figure("one key under a held snapshot: ratio", median(held) / median(free), "ratio");
    Ok(())
}

/// Jobs that follow each other through a limit of one, on one node or on two by turns: from one start to the next.
async fn followers(place: &Place, report: &Report, nodes: usize) -> Result<()> {
    let database = place.database("followers")?;
    let first = database.open().await?;
    let second = second(&database, &first, nodes).await?;
    first.limits().set(LIMIT).max(1).await?;
    let (told, mut tell) = mpsc::unbounded_channel();
    let start = move || {
        let _gone = told.send(Instant::now());
        async { mainspring::HandlerResult::Ok(()) }
    };
    let (limited, other) = (start.clone(), start);
    let here =
        first.node().handle(move |_: Context, _: Limited| limited()).queue("default", 4).start().await?;
    let there = second.node().handle(move |_: Context, _: Other| other()).queue("default", 4).start().await?;
    first.limits().pause(LIMIT).await?;
    for _ in 0..FOLLOWERS / 2 {
        first.enqueue(Limited::new(0)).await?;
        if nodes == 2 {
            first.enqueue(Other {}).await?;
        } else {
            first.enqueue(Limited::new(0)).await?;
        }
    }
    first.limits().resume(LIMIT).await?;
    let mut starts = Vec::new();
    while starts.len() < FOLLOWERS {
        starts.push(tell.recv().await.context("the nodes stopped")?);
    }
    let mut gaps: Vec<Duration> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let place = if nodes == 1 { "on one node" } else { "on two nodes by turns" };
    report.latencies(&format!("next one in after a release, {place}"), &mut gaps);
    here.shutdown().await;
    there.shutdown().await;
    if nodes == 2 {
        second.close().await;
    }
    first.close().await;
    Ok(())
}

/// The engine of the second node: a handle of its own on the database.
async fn second(database: &Database, first: &Engine, nodes: usize) -> Result<Engine> {
    if nodes == 2 { database.open().await } else { Ok(first.clone()) }
}

/// Claims of plain jobs, with and without very many beside them that a limit holds back.
async fn beside(options: &Options, place: &Place, report: &Report) -> Result<()> {
    let mut tails = Vec::new();
    for held_back in [0, options.held_back] {
        let database = place.database("beside")?;
        let engine = database.open().await?;
        fill_limited(&engine, held_back, KEYS, 0).await?;
        fill(&engine, CLAIMS).await?;
        database.settle()?;
        let mut bare = Bare::join(&engine).await?;
        let mut latencies = Vec::new();
        for _ in 0..CLAIMS {
            let began = Instant::now();
            let claimed = bare.claim(100).await?;
            latencies.push(began.elapsed());
            if claimed.jobs.len() != 100 {
                bail!("claimed {} of {CLAIMS} plain jobs", claimed.jobs.len());
            }
            bare.finish(&claimed, &Outcome::Release).await?;
        }
        report.latencies(&format!("claim of 100 plain jobs beside {held_back} held back"), &mut latencies);
        tails.push(percentile(&mut latencies, 0.99).as_secs_f64());
        bare.leave().await?;
        engine.close().await;
    }
    report.figure("plain claims beside those held back: p99 ratio", tails[1] / tails[0], "ratio");
    Ok(())
}
