//! What the queue programs beside this file share: what they are asked, and how they answer.
//!
//! A program is started with the address of a database, the name of a setting, a task, a number of jobs, the seconds that
//! the task may take, and the statement that counts the jobs which have not ended. The answer is one JSON line per figure.
//! Anything else is a failure, and its reason is on stderr.
//!
//! | task | what is measured |
//! |---|---|
//! | `enqueue` | jobs per second into an empty database, by the quickest call for many jobs that is documented |
//! | `drain` | jobs per second from the start of the worker until the tables say that all have ended |
//! | `idle` | from the call that enqueues one job to its handler, while nothing else is going on |
//!
//! A task that does not end in time is told by how far it came.

use std::error::Error;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

pub(crate) type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// What a program is asked.
pub(crate) struct Asked {
    pub(crate) address: String,
    pub(crate) setting: String,
    pub(crate) task: String,
    pub(crate) jobs: usize,
    /// How long the task may take.
    pub(crate) limit: Duration,
    /// Counts the jobs that have not ended.
    pub(crate) left: &'static str,
}

impl Asked {
    pub(crate) fn read(args: impl IntoIterator<Item = String>) -> Result<Self> {
        let args: Vec<String> = args.into_iter().collect();
        let [address, setting, task, jobs, limit, left] = args.as_slice() else {
            return Err("expected <address> <setting> <task> <jobs> <seconds> <statement>".into());
        };
        Ok(Asked {
            address: address.clone(),
            setting: setting.clone(),
            task: task.clone(),
            jobs: jobs.parse()?,
            limit: Duration::from_secs(limit.parse()?),
            // Some clients take only texts that live as long as the program.
            left: Box::leak(left.clone().into_boxed_str()),
        })
    }

    /// Whether the setting is the one that the documentation starts with.
    pub(crate) fn as_started(&self) -> Result<bool> {
        match self.setting.as_str() {
            "start" => Ok(true),
            "tuned" => Ok(false),
            unknown => Err(format!("no setting is named `{unknown}`").into()),
        }
    }
}

/// What every job carries: about a hundred bytes as JSON, together with a number.
pub(crate) fn text() -> String {
    "x".repeat(70)
}

/// Handlers that were called.
static SEEN: AtomicUsize = AtomicUsize::new(0);
/// Who wants to know when.
static TOLD: OnceLock<mpsc::UnboundedSender<Instant>> = OnceLock::new();

/// What every handler does, and all that it does.
pub(crate) fn seen() {
    SEEN.fetch_add(1, Ordering::Relaxed);
    if let Some(told) = TOLD.get() {
        let _gone = told.send(Instant::now());
    }
}

/// A queue whose database is open and has its tables.
pub(crate) trait Queue {
    /// Enqueues many jobs.
    async fn fill(&self, jobs: usize) -> Result<()>;

    /// Enqueues many jobs while nobody measures.
    async fn preload(&self, jobs: usize) -> Result<()> {
        self.fill(jobs).await
    }

    /// Enqueues one job.
    async fn enqueue(&self) -> Result<()>;

    /// Starts the worker, which then runs as long as the program.
    async fn work(&self) -> Result<()>;

    /// Jobs that have not ended, by its tables.
    async fn left(&self, statement: &'static str) -> Result<usize>;
}

/// Does what is asked, and tells the figures.
pub(crate) async fn answer(asked: &Asked, queue: &impl Queue) -> Result<()> {
    match asked.task.as_str() {
        "enqueue" => enqueue(asked, queue).await,
        "drain" => drain(asked, queue).await,
        "idle" => idle(asked, queue).await,
        unknown => Err(format!("no task is named `{unknown}`").into()),
    }
}

/// Jobs between two looks at the clock.
const PART: usize = 20_000;

async fn enqueue(asked: &Asked, queue: &impl Queue) -> Result<()> {
    let began = Instant::now();
    let mut done = 0;
    while done < asked.jobs && began.elapsed() < asked.limit {
        let part = PART.min(asked.jobs - done);
        queue.fill(part).await?;
        done += part;
    }
    tell("bulk enqueue", done as f64 / began.elapsed().as_secs_f64(), "jobs/s");
    if done < asked.jobs {
        queue.preload(asked.jobs - done).await?;
    }
    Ok(())
}

/// Between two looks at the counter of handlers.
const LOOK: Duration = Duration::from_millis(2);

async fn drain(asked: &Asked, queue: &impl Queue) -> Result<()> {
    let began = Instant::now();
    queue.work().await?;
    loop {
        tokio::time::sleep(LOOK).await;
        let late = began.elapsed() >= asked.limit;
        // The tables are asked only when they may have good news: to count disturbs.
        if SEEN.load(Ordering::Relaxed) < asked.jobs && !late {
            continue;
        }
        let spent = began.elapsed();
        let left = queue.left(asked.left).await?;
        if left == 0 || late {
            let done = asked.jobs.saturating_sub(left) as f64;
            tell("drain", done / spent.as_secs_f64(), "jobs/s");
            tell("ended", done, "jobs");
            return Ok(());
        }
    }
}

/// Jobs before the measured ones.
const WARM: usize = 5;

async fn idle(asked: &Asked, queue: &impl Queue) -> Result<()> {
    let (told, mut tell_me) = mpsc::unbounded_channel();
    let _first = TOLD.set(told);
    queue.work().await?;
    let (began, mut latencies) = (Instant::now(), Vec::new());
    for sample in 0..asked.jobs + WARM {
        // Long enough for all to fall asleep, and not in step with anybody's timer.
        tokio::time::sleep(Duration::from_millis(20 + (sample as u64 * 17) % 31)).await;
        let sent = Instant::now();
        queue.enqueue().await?;
        let left = asked.limit.saturating_sub(began.elapsed());
        let Ok(started) = tokio::time::timeout(left, tell_me.recv()).await else { break };
        if sample >= WARM {
            latencies.push(started.ok_or("no handler")?.saturating_duration_since(sent));
        }
    }
    if latencies.len() < asked.jobs / 2 {
        return Err(format!("{} of {} jobs were started in time", latencies.len(), asked.jobs).into());
    }
    latencies.sort_unstable();
    for (name, share) in [("p50", 50), ("p99", 99)] {
        let at = (latencies.len() * share / 100).min(latencies.len() - 1);
        tell(&format!("idle {name}"), latencies[at].as_secs_f64() * 1e3, "ms");
    }
    Ok(())
}

/// One figure; no text in it needs to be escaped.
fn tell(metric: &str, value: f64, unit: &str) {
    println!(r#"{{"metric":"{metric}","value":{value},"unit":"{unit}"}}"#);
}
