//! `bench`: how fast jobs get in and out on this machine, on this disk or this server.
//!
//! It measures the engine as an application uses it: jobs that do nothing, enqueued one by one by many callers, then in bulk, then
//! drained by a node in this process; and one job at a time on an idle node, for the delay.
//!
//! # Invariants
//! - The user's jobs are not touched. On SQLite the store is a file of its own beside the one that is named, on the same disk,
//!   and is removed at the end. On Postgres it is a queue of its own in the named store, whose jobs are removed at the end, and at
//!   the beginning of the next run if this one is killed.

use std::future::IntoFuture;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mainspring::admin::Filter;
use mainspring::name::QueueName;
use mainspring::seam::Clock;
use mainspring::{Context, Engine, Job, Node, State, bounds, shutdown_signal};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::output::Out;
use crate::progress::Progress;
use crate::report::Refused;
use crate::store::{Open, Target};
use crate::text;
use mainspring_wire::json as shape;

/// The queue and the kind: nobody else has either.
const NAME: &str = "mainspring-bench";

/// Shown under `bench --help`.
const AFTER_HELP: &str = "\
Your jobs are not touched. On SQLite it uses a file of its own beside the one that --store names, and removes it. On
Postgres it uses the queue `mainspring-bench` of the store, and deletes its jobs; the name of the queue stays.
Figures drift with the machine: compare runs that were made together.";

/// What it takes.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Jobs to enqueue one by one, and again in bulk.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    jobs: usize,
    /// Callers that enqueue at a time.
    #[arg(long, value_name = "N", default_value_t = 64)]
    producers: usize,
    /// Jobs that the node runs at a time.
    #[arg(long, value_name = "N", default_value_t = 64)]
    slots: u32,
    /// Bytes of each job's input.
    #[arg(long, value_name = "N", default_value_t = 100)]
    bytes: usize,
}

/// Jobs that are run one at a time, for the delay.
const ALONE: usize = 100;
/// Callers, at most.
const PRODUCERS: usize = 1_024;
/// Between two looks at what is left.
const LOOK: Duration = Duration::from_millis(2);

/// A job that does nothing.
#[derive(Debug, Clone, Serialize, Deserialize, Job)]
#[job(kind = "mainspring-bench", queue = "mainspring-bench")]
struct Idle {
    payload: String,
}

/// What was found out.
struct Figures {
    enqueue: f64,
    bulk: f64,
    drain: f64,
    /// From the call of enqueue to the beginning of the handler.
    start: Vec<Duration>,
    /// To the stored end.
    done: Vec<Duration>,
}

impl Args {
    fn check(&self) -> Result<(), Refused> {
        let within = |what: &str, value: usize, most: usize| match value {
            value if (1..=most).contains(&value) => Ok(()),
            value => {
                let message = format!("{value} {what} are not between 1 and {most}");
                Err(Refused::usage(message, "see `mainspring bench --help`"))
            }
        };
        within("jobs", self.jobs, bounds::BULK)?;
        within("producers", self.producers, PRODUCERS)?;
        within("slots", usize::try_from(self.slots).unwrap_or(usize::MAX), bounds::SLOTS as usize)?;
        // Quotes and braces of the input are beside it.
        within("bytes", self.bytes.max(1), bounds::INPUT_BYTES / 2)
    }
}

/// Measures, and leaves nothing behind.
pub(crate) async fn run(args: &Args, target: Target<'_>, out: Out) -> anyhow::Result<()> {
    args.check()?;
    let file = target.address.strip_prefix("sqlite:").map(Scratch::beside);
    let address = file.as_ref().map(|file| format!("sqlite:{}", file.0.display()));
    let own = Target { address: address.as_deref().unwrap_or(target.address), ..target };
    let engine = own.open(if file.is_some() { Open::Create } else { Open::Existing }).await?;
    let mut running = None;
    let measured = tokio::select! {
        biased;
        () = shutdown_signal() => Err(Refused::failed("interrupted", "nothing of it is left behind").into()),
        measured = measure(args, &engine, &mut running, out) => measured,
    };
    if let Some(node) = running {
        node.shutdown().await;
    }
    let swept = sweep(&engine).await;
    let store = engine.describe();
    engine.close().await;
    drop(file);
    let figures = measured?;
    swept?;
    let location = text::plain(&shown(target, &store.location));
    out.either(
        || to_programs(args, &figures, &shape::store(&store)),
        || {
            let durable = if store.durable { "durable" } else { "not durable" };
            let head = format!("{location} ({} {}, {durable})", store.backend, text::plain(&store.version));
            format!("{head}\n\n{}", to_people(args, &figures, out))
        },
    )?;
    Ok(())
}

/// The store as the user named it: the file that was measured is gone. An address with a password is not shown.
fn shown(target: Target<'_>, described: &str) -> String {
    match target.address.strip_prefix("sqlite:") {
        Some(path) => format!("beside {path}"),
        None => described.to_owned(),
    }
}

/// The node is left to the caller, who stops it whatever happens.
async fn measure(
    args: &Args,
    engine: &Engine,
    running: &mut Option<Node>,
    out: Out,
) -> anyhow::Result<Figures> {
    sweep(engine).await?;
    let clock = Arc::clone(&engine.seams().clock);
    let since = |begun: Duration| clock.monotonic().saturating_sub(begun).as_secs_f64().max(1e-6);
    let per_second = |jobs: usize, begun: Duration| jobs as f64 / since(begun);
    let job = Idle { payload: "x".repeat(args.bytes) };

    let begun = clock.monotonic();
    enqueue(args, engine, &job, out).await?;
    let enqueue = per_second(args.jobs, begun);

    let begun = clock.monotonic();
    engine.enqueue_many(std::iter::repeat_n(job.clone(), args.jobs)).await?;
    let bulk = per_second(args.jobs, begun);

    let latest = Arc::new(AtomicU64::new(0));
    let begun = clock.monotonic();
    *running = Some(node(engine, args.slots, &clock, &latest).await?);
    drain(engine, 2 * args.jobs, out).await?;
    let drain = per_second(2 * args.jobs, begun);
    let (start, done) = alone(engine, &job, &clock, &latest, out).await?;
    Ok(Figures { enqueue, bulk, drain, start, done })
}

/// Enqueues one by one, by many callers.
async fn enqueue(args: &Args, engine: &Engine, job: &Idle, out: Out) -> anyhow::Result<()> {
    let mut progress = Progress::new(engine, out, "enqueue", Some(args.jobs));
    let mut callers = tokio::task::JoinSet::new();
    let next = Arc::new(AtomicU64::new(0));
    let all = u64::try_from(args.jobs).unwrap_or(u64::MAX);
    for _ in 0..args.producers {
        let (engine, job, next) = (engine.clone(), job.clone(), Arc::clone(&next));
        callers.spawn(async move {
            while next.fetch_add(1, Ordering::Relaxed) < all {
                engine.enqueue(job.clone()).await?;
            }
            Ok::<(), mainspring::Error>(())
        });
    }
    loop {
        tokio::select! {
            biased;
            ended = callers.join_next() => match ended {
                Some(ended) => ended??,
                None => return Ok(()),
            },
            () = engine.seams().clock.sleep(Duration::from_millis(50)) => {
                progress.show(usize::try_from(next.load(Ordering::Relaxed)).unwrap_or(usize::MAX));
            }
        }
    }
}

/// A node that runs our jobs, and notes when the latest began.
async fn node(
    engine: &Engine,
    slots: u32,
    clock: &Arc<dyn Clock>,
    latest: &Arc<AtomicU64>,
) -> anyhow::Result<Node> {
    let (clock, latest) = (Arc::clone(clock), Arc::clone(latest));
    let handler = move |_ctx: Context, _job: Idle| {
        let micros = u64::try_from(clock.monotonic().as_micros()).unwrap_or(u64::MAX);
        latest.store(micros, Ordering::Relaxed);
        std::future::ready(mainspring::HandlerResult::<()>::Ok(()))
    };
    Ok(engine.node().handle(handler).queue(NAME, slots).prefix("bench").start().await?)
}

/// Waits until every job has ended.
async fn drain(engine: &Engine, jobs: usize, out: Out) -> anyhow::Result<()> {
    let queue = QueueName::new(NAME)?;
    let mut progress = Progress::new(engine, out, "drain", Some(jobs));
    loop {
        let counts = engine.jobs().counts().await?;
        let open = State::ALL.iter().filter(|state| !state.is_terminal());
        let left: u64 = open.map(|state| counts.of(&queue, *state)).sum();
        if left == 0 {
            return Ok(());
        }
        progress.show(jobs.saturating_sub(usize::try_from(left).unwrap_or(usize::MAX)));
        engine.seams().clock.sleep(LOOK).await;
    }
}

/// One job at a time on a node that has nothing else to do.
async fn alone(
    engine: &Engine,
    job: &Idle,
    clock: &Arc<dyn Clock>,
    latest: &AtomicU64,
    out: Out,
) -> anyhow::Result<(Vec<Duration>, Vec<Duration>)> {
    let mut progress = Progress::new(engine, out, "one at a time", Some(ALONE));
    let (mut start, mut done) = (Vec::with_capacity(ALONE), Vec::with_capacity(ALONE));
    for number in 0..ALONE {
        let begun = clock.monotonic();
        let job = engine.enqueue(job.clone()).await?;
        engine.result(&job).await?;
        done.push(clock.monotonic().saturating_sub(begun));
        start.push(Duration::from_micros(latest.load(Ordering::Relaxed)).saturating_sub(begun));
        progress.show(number + 1);
    }
    start.sort_unstable();
    done.sort_unstable();
    Ok((start, done))
}

/// Removes every job of ours that does not run.
async fn sweep(engine: &Engine) -> anyhow::Result<()> {
    let ours = Filter { queue: Some(QueueName::new(NAME)?), ..Filter::default() };
    engine.jobs().delete(ours).into_future().await?;
    Ok(())
}

/// Of durations in order.
fn quantile(sorted: &[Duration], of_hundred: usize) -> Duration {
    let last = sorted.len().saturating_sub(1);
    sorted.get(last * of_hundred / 100).copied().unwrap_or_default()
}

fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e5).round() / 1e2
}

fn to_programs(args: &Args, figures: &Figures, store: &Value) -> Value {
    let spread = |of: &[Duration]| json!({ "p50": milliseconds(quantile(of, 50)), "p99": milliseconds(quantile(of, 99)) });
    json!({
        "store": store,
        "jobs": args.jobs,
        "bytes": args.bytes,
        "producers": args.producers,
        "slots": args.slots,
        "enqueue_per_second": figures.enqueue.round(),
        "bulk_per_second": figures.bulk.round(),
        "drain_per_second": figures.drain.round(),
        "start_ms": spread(&figures.start),
        "done_ms": spread(&figures.done),
    })
}

fn to_people(args: &Args, figures: &Figures, out: Out) -> String {
    let row = |what: &str, figure: String| vec![what.to_owned(), figure];
    let rate = |rate: f64| format!("{rate:.0} jobs/s");
    let spread = |of: &[Duration]| {
        format!("{} ms p50, {} ms p99", milliseconds(quantile(of, 50)), milliseconds(quantile(of, 99)))
    };
    let rows = [
        row(&format!("enqueue, {} at a time", args.producers), rate(figures.enqueue)),
        row("enqueue in bulk", rate(figures.bulk)),
        row(&format!("drain with {} slots", args.slots), rate(figures.drain)),
        row("idle: enqueue to start", spread(&figures.start)),
        row("idle: enqueue to done", spread(&figures.done)),
    ];
    let header = format!("{} JOBS OF {} BYTES", args.jobs, args.bytes);
    out.table(&[&header, ""], &rows)
}

/// A store's file that is removed with all that belongs to it.
struct Scratch(PathBuf);

impl Scratch {
    /// Beside another, so that it is on the same disk.
    fn beside(path: &str) -> Self {
        Scratch(PathBuf::from(format!("{path}-bench-{}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let Some(name) = self.0.file_name().and_then(|name| name.to_str()) else { return };
        let dir = self.0.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let Ok(entries) = std::fs::read_dir(dir) else { return };
        for entry in entries.flatten() {
            if entry.file_name().to_str().is_some_and(|found| found.starts_with(name)) {
                // A file that cannot be removed is small and has its purpose in its name.
                let _left = std::fs::remove_file(entry.path());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_what_was_measured() {
        let of = |n: u64| Duration::from_millis(n);
        let hundred: Vec<Duration> = (1..=100).map(of).collect();
        assert_eq!((quantile(&hundred, 50), quantile(&hundred, 99)), (of(50), of(99)));
        assert_eq!(quantile(&[of(7)], 99), of(7));
        assert_eq!(quantile(&[], 50), Duration::ZERO);
    }
}
