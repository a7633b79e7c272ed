//! The benchmark of durable operations: steps, waits, wakes, and what it costs to wait.
//!
//! What a commit costs at all on this machine is measured in the same run (`raw.rs`).

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use mainspring::{Context, Engine, Enqueued, Job, Node, State};
use serde::{Deserialize, Serialize};
use tokio::sync::{Barrier, mpsc};

use crate::bare_commits::{self, Raw};
use crate::database::{Database, Place, number};
use crate::peers;
use crate::report::{Report, millis, percentile};
use crate::scopes;

/// Options of the benchmark.
#[derive(Args, Clone)]
pub(crate) struct Options {
    /// The store to measure.
    #[arg(long, default_value = "sqlite", value_parser = ["sqlite", "postgres"])]
    store: String,
    /// Steps of each measurement of throughput, over all workflows.
    #[arg(long, default_value_t = 100_000)]
    steps: usize,
    /// Workflows at the same time, in each measurement of throughput.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 64, 256, 1_000])]
    workflows: Vec<usize>,
    /// Workflows that sleep at the same time.
    #[arg(long, default_value_t = 100_000)]
    sleepers: usize,
    /// One JSON line per figure.
    #[arg(long)]
    json: bool,
    /// Where to put the databases of SQLite; a temporary directory if not given.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Turns of the loop without an end.
    #[arg(long, default_value_t = 100_000)]
    pub(crate) turns: usize,
    /// Only the parts whose name contains this.
    #[arg(long)]
    only: Option<String>,
    /// Beside other systems for durable workflows, which are built first.
    #[arg(long)]
    peers: bool,
}

/// What a step returns: 200 bytes.
pub(crate) const RESULT: usize = 198;
pub(crate) const MONTH: Duration = Duration::from_hours(24 * 30);

/// A workflow.
#[derive(Debug, Clone, Serialize, Deserialize, Job)]
#[job(kind = "flow")]
pub(crate) enum Flow {
    /// So many steps in a row.
    Steps(usize),
    /// So many steps, then signals for ever.
    Signals(usize),
    /// A sleep of a month.
    Sleep,
    /// A map over so many items, with a step each.
    Map(usize),
    /// So many turns of a loop with a step each, then turns that wait for a signal, for ever.
    Turns(usize),
    /// Races of a signal with a month, for ever.
    Races,
}

/// What handlers tell the benchmark.
#[derive(Clone)]
pub(crate) struct SignalSender {
    /// What a workflow waits at before its first step, until all are there.
    pub(crate) gate: Option<Arc<Barrier>>,
    /// When steps ended, of one workflow alone.
    latencies: Option<mpsc::UnboundedSender<Duration>>,
    /// Which signal was received and when; and how long it took to walk through the journal.
    pub(crate) rung: mpsc::UnboundedSender<ReceivedSignal>,
}

/// A signal that came. A handler that is run from its top tells the earlier ones again.
pub(crate) struct ReceivedSignal {
    pub(crate) signal: usize,
    pub(crate) at: Instant,
    pub(crate) walked: Duration,
}

pub(crate) async fn flow(ctx: Context, job: Flow) -> mainspring::HandlerResult<()> {
    let bell = ctx.state::<SignalSender>()?.clone();
    if let Some(gate) = &bell.gate {
        gate.wait().await;
    }
    let began = Instant::now();
    let steps = match job {
        Flow::Steps(steps) | Flow::Signals(steps) => steps,
        Flow::Sleep | Flow::Map(_) | Flow::Turns(_) | Flow::Races => 0,
    };
    for _ in 0..steps {
        let begun = Instant::now();
        ctx.step("step", async || Ok("x".repeat(RESULT))).await?;
        if let Some(latencies) = &bell.latencies {
            let _gone = latencies.send(begun.elapsed());
        }
    }
    match job {
        Flow::Steps(_) => {}
        Flow::Sleep => ctx.sleep("month", MONTH).await?,
        Flow::Map(items) => scopes::map(&ctx, items).await?,
        Flow::Turns(turns) => scopes::turns(&ctx, &bell, turns).await?,
        Flow::Races => scopes::races(&ctx, &bell).await?,
        Flow::Signals(_) => {
            for signal in 0.. {
                let walked = began.elapsed();
                ctx.signal::<()>("go").await?;
                let _gone = bell.rung.send(ReceivedSignal { signal, at: Instant::now(), walked });
            }
        }
    }
    Ok(())
}

pub(crate) fn run(options: &Options) -> Result<()> {
    // Before the first measurement: a build would disturb it.
    let peers = if options.peers { peers::build(&options.store)? } else { Vec::new() };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let report = Report::new("steps", &options.store, options.json);
    let place = Place::new(&options.store, options.dir.as_deref())?;
    let wanted = |part: &str| options.only.as_deref().is_none_or(|only| part.contains(only));
    runtime.block_on(async {
        let raw = bare_commits::run(&place, &report).await?;
        if wanted("sequential") {
            sequential(&place, &report, raw.commit).await?;
        }
        if wanted("throughput") {
            for &workflows in &options.workflows {
                throughput(options, &place, &report, &raw, workflows).await?;
            }
        }
        if wanted("signal") {
            signals(&place, &report).await?;
        }
        if wanted("activation") {
            activation(&place, &report).await?;
        }
        if wanted("memory") {
            memory(&place, &report).await?;
        }
        if wanted("scopes") {
            scopes::run(options, &place, &report).await?;
        }
        if wanted("sleepers") {
            sleepers(options, &place, &report).await?;
        }
        if options.peers {
            peers::run(&place, &report, &peers).await?;
        }
        Ok(())
    })
}

/// A node that runs workflows.
pub(crate) async fn node(engine: &Engine, slots: u32, cached: usize, bell: SignalSender) -> Result<Node> {
    Ok(engine.node().handle(flow).state(bell).queue("default", slots).cached_handlers(cached).start().await?)
}

pub(crate) fn bell() -> (SignalSender, mpsc::UnboundedReceiver<ReceivedSignal>) {
    let (rung, heard) = mpsc::unbounded_channel();
    (SignalSender { gate: None, latencies: None, rung }, heard)
}

/// How long a step of one workflow takes, when nothing else happens.
async fn sequential(place: &Place, report: &Report, raw: Duration) -> Result<()> {
    // The log of a fresh SQLite file grows for the first two thousand steps, and each that makes it longer has that
    // forced to disk as well. From then on it is written over.
    const YOUNG: usize = 2_000;
    let database = place.database("sequential")?;
    let engine = database.open().await?;
    let (latencies, mut told) = mpsc::unbounded_channel();
    let (bell, _heard) = bell();
    let node = node(&engine, 1, 0, SignalSender { latencies: Some(latencies), ..bell }).await?;
    let job = engine.enqueue(Flow::Steps(5 * YOUNG)).await?;
    engine.result(&job).await?;
    let mut latencies: Vec<Duration> = std::iter::from_fn(|| told.try_recv().ok()).collect();
    report.latencies(&format!("the first {YOUNG} steps of one workflow"), &mut latencies[..YOUNG]);
    report.latencies("a step of one workflow", &mut latencies);
    let ratio = millis(percentile(&mut latencies, 0.5)) / millis(raw);
    report.figure("a step of one workflow, p50 : a raw commit", ratio, "ratio");
    crate::queue::stop(node, engine).await;
    Ok(())
}

/// Steps per second of so many workflows at the same time.
async fn throughput(
    options: &Options,
    place: &Place,
    report: &Report,
    raw: &Raw,
    workflows: usize,
) -> Result<()> {
    let each = (options.steps / workflows).clamp(20, 5_000);
    let rate = drained(place, workflows, &Flow::Steps(each)).await? * each as f64;
    report.figure(&format!("{workflows} workflows x {each} steps"), rate, "steps/s");
    if let Some(rows) = raw.callers.get(&workflows) {
        report.figure(
            &format!("{workflows} workflows: share of so many raw callers"),
            100.0 * rate / rows,
            "%",
        );
    }
    Ok(())
}

/// How many workflows of a kind end in a second, if so many run at the same time.
pub(crate) async fn drained(place: &Place, workflows: usize, flow_of: &Flow) -> Result<f64> {
    let database = place.database("throughput")?;
    let engine = database.open().await?;
    let (done, counted) = (Arc::new(AtomicUsize::new(0)), workflows);
    let (told, mut tell) = mpsc::unbounded_channel();
    let count = Arc::clone(&done);
    let (bell, _heard) = bell();
    engine.enqueue_many((0..workflows).map(|_| flow_of.clone())).await?;
    let began = Instant::now();
    let node = engine
        .node()
        .handle(flow)
        .state(bell)
        .queue("default", u32::try_from(workflows)?)
        .on_outcome(move |_, _| {
            if count.fetch_add(1, Ordering::Relaxed) + 1 == counted {
                let _gone = told.send(Instant::now());
            }
        })
        .start()
        .await?;
    let end = tell.recv().await.context("the node stopped")?;
    let rate = workflows as f64 / (end - began).as_secs_f64();
    crate::queue::stop(node, engine).await;
    Ok(rate)
}

/// Waits until a signal has been received.
pub(crate) async fn rung(
    heard: &mut mpsc::UnboundedReceiver<ReceivedSignal>,
    signal: usize,
) -> Result<ReceivedSignal> {
    loop {
        let rung = heard.recv().await.context("the node stopped")?;
        if rung.signal == signal {
            return Ok(rung);
        }
    }
}

/// Waits until a job is suspended.
pub(crate) async fn suspended(engine: &Engine, job: &Enqueued<Flow>) -> Result<()> {
    while engine.jobs().get(job.id).await?.summary.status.state != State::Suspended {
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    Ok(())
}

/// How long it takes from a signal to the handler that waited for it, kept in memory and not.
async fn signals(place: &Place, report: &Report) -> Result<()> {
    const SIGNALS: usize = 300;
    for (cached, name) in [(1_000, "kept in memory"), (0, "from its records")] {
        let database = place.database("signal")?;
        let engine = database.open().await?;
        let (bell, mut heard) = bell();
        let node = node(&engine, 4, cached, bell).await?;
        let job = engine.enqueue(Flow::Signals(3)).await?;
        let mut latencies = Vec::new();
        for signal in 0..SIGNALS {
            suspended(&engine, &job).await?;
            let sent = Instant::now();
            engine.signal(job, "go", &()).await?;
            latencies.push(rung(&mut heard, signal).await?.at - sent);
        }
        report.latencies(&format!("signal → handler, {name}"), &mut latencies);
        crate::queue::stop(node, engine).await;
    }
    Ok(())
}

/// How long a handler takes to walk through a long journal, and to be woken with one.
async fn activation(place: &Place, report: &Report) -> Result<()> {
    const STEPS: usize = 1_000;
    const WAKES: usize = 30;
    let database = place.database("activation")?;
    let engine = database.open().await?;
    let (bell, mut heard) = bell();
    let node = node(&engine, 4, 0, bell).await?;
    let job = engine.enqueue(Flow::Signals(STEPS)).await?;
    let (mut wakes, mut walks) = (Vec::new(), Vec::new());
    for signal in 0..WAKES {
        suspended(&engine, &job).await?;
        let sent = Instant::now();
        engine.signal(job, "go", &()).await?;
        let rung = rung(&mut heard, signal).await?;
        wakes.push(rung.at - sent);
        walks.push(rung.walked);
    }
    report.latencies("journal of 1,000 steps: walked through", &mut walks);
    report.latencies("journal of 1,000 steps: signal → handler", &mut wakes);
    crate::queue::stop(node, engine).await;
    Ok(())
}

/// What a suspended workflow costs in memory.
async fn memory(place: &Place, report: &Report) -> Result<()> {
    const WORKFLOWS: usize = 10_000;
    let mut each = Vec::new();
    for (cached, name) in [(WORKFLOWS, "kept in memory"), (0, "suspended")] {
        let database = place.database("memory")?;
        let engine = database.open().await?;
        let (bell, _heard) = bell();
        // Once around, so that what the first jobs bring with them is not counted.
        let node = node(&engine, 64, cached, bell).await?;
        let warm = engine.enqueue(Flow::Signals(1)).await?;
        suspended(&engine, &warm).await?;
        let before = resident()?;
        engine.enqueue_many((0..WORKFLOWS).map(|_| Flow::Signals(1))).await?;
        all_suspended(&engine, WORKFLOWS + 1).await?;
        let bytes = (resident()? - before).max(0.0) / WORKFLOWS as f64;
        report.figure(&format!("memory per workflow, {name}"), bytes, "bytes");
        each.push(bytes);
        crate::queue::stop(node, engine).await;
    }
    // What a store keeps of the file or of statements is there in both.
    if let [kept, suspended] = each[..] {
        report.figure("memory per workflow, of its handler", kept - suspended, "bytes");
    }
    Ok(())
}

async fn all_suspended(engine: &Engine, count: usize) -> Result<()> {
    loop {
        let counts = engine.jobs().counts().await?;
        let suspended: u64 =
            counts.0.values().filter_map(|states| states.get(&State::Suspended)).copied().sum();
        if suspended >= count as u64 {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// What very many sleeping workflows cost.
async fn sleepers(options: &Options, place: &Place, report: &Report) -> Result<()> {
    const WATCH: Duration = Duration::from_secs(15);
    const COUNTED_LATE: Duration = Duration::from_secs(12);
    let database = place.database("sleepers")?;
    let engine = database.open().await?;
    let (bell, _heard) = bell();
    let began = Instant::now();
    engine.enqueue_many((0..options.sleepers).map(|_| Flow::Sleep)).await?;
    let node = node(&engine, 256, 0, bell).await?;
    all_suspended(&engine, options.sleepers).await?;
    let rate = options.sleepers as f64 / began.elapsed().as_secs_f64();
    report.figure(&format!("{} sleepers: put to sleep", options.sleepers), rate, "workflows/s");
    if let Database::Postgres(_) = &database {
        // An idle session tells its counts up to ten seconds later: what came before is not part of the watch.
        tokio::time::sleep(COUNTED_LATE).await;
    }
    let processor = processor_time()?;
    match &database {
        Database::Sqlite(_) => {
            report.figure("sleepers: writes per second", database.writes(WATCH).await?, "commits/s");
        }
        Database::Postgres(it) => {
            let sql =
                "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()";
            let before = number(it, sql)?;
            tokio::time::sleep(WATCH).await;
            report.figure(
                "sleepers: transactions per second",
                (number(it, sql)? - before) / WATCH.as_secs_f64(),
                "1/s",
            );
        }
    }
    let share = 100.0 * (processor_time()? - processor) / WATCH.as_secs_f64();
    report.figure("sleepers: processor", share, "% of a core");
    crate::queue::stop(node, engine).await;
    Ok(())
}

/// Memory of this process, in bytes.
pub(crate) fn resident() -> Result<f64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: f64 = statm.split_whitespace().nth(1).context("no figure")?.parse()?;
    Ok(pages * 4_096.0)
}

/// Time that this process has had on processors, in seconds.
fn processor_time() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let rest = stat.rsplit(')').next().context("no figure")?;
    let ticks: Vec<f64> =
        rest.split_whitespace().skip(11).take(2).filter_map(|text| text.parse().ok()).collect();
    Ok(ticks.iter().sum::<f64>() / 100.0)
}
