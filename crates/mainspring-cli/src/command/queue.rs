//! `queue`: see queues, pause and resume them, change their settings, delete them.

use clap::Subcommand;
use mainspring::admin::{Counts, Queue, QueueChange};
use mainspring::limit::{Total, TotalUse};
use mainspring::name::QueueName;
use mainspring::time::Span;
use mainspring::{Backoff, Engine, State};
use serde_json::{Value, json};

use super::limit::{Setting, optional};
use super::schedule::user;
use crate::output::Out;
use crate::report::Refused;
use crate::text;
use mainspring_wire::json as shape;

/// What it takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

/// What can be done with queues.
#[derive(Debug, Subcommand)]
enum Action {
    /// List all queues, with their jobs in each state.
    List,
    /// Stop claims from a queue. Running jobs continue.
    Pause(Name),
    /// Resume a queue.
    Resume(Name),
    /// Change settings of a queue. The others stay.
    Set(Set),
    /// Delete a queue that has no jobs, with its settings.
    Delete {
        /// The queue.
        name: String,
    },
}

/// A queue.
#[derive(Debug, clap::Args)]
struct Name {
    /// The queue.
    name: String,
    /// Make the queue if it does not exist.
    #[arg(long)]
    create: bool,
}

/// Settings of a queue.
#[derive(Debug, clap::Args)]
struct Set {
    #[command(flatten)]
    queue: Name,
    /// How long jobs without a backoff of their own wait after a failure: `exponential:1s..1h`, `linear:10s..5m`,
    /// `fixed:30s`, or `default`.
    #[arg(long)]
    backoff: Option<String>,
    /// How long the store keeps succeeded jobs.
    #[arg(long, value_name = "SPAN")]
    retain_succeeded: Option<Span>,
    /// How long the store keeps failed and cancelled jobs.
    #[arg(long, value_name = "SPAN")]
    retain_failed: Option<Span>,
    /// How many jobs of the queue run at once, over all nodes; `none` for as many as there are slots.
    #[arg(long, value_name = "N|none", value_parser = optional::<u32>)]
    max_running: Option<Setting<u32>>,
    /// Who makes the change: the audit remembers it. The user of the operating system if not set.
    #[arg(long = "as", value_name = "NAME")]
    who: Option<String>,
}

pub(crate) async fn run(args: Args, engine: &Engine, out: Out) -> anyhow::Result<()> {
    let queues = engine.queues();
    let (queue, what) = match args.action {
        Action::List => return list(engine, out).await,
        Action::Delete { name } => return delete(engine, &name, out).await,
        Action::Pause(queue) => {
            (queues.pause(queue.known(engine).await?).await?, "paused; running jobs continue")
        }
        Action::Resume(queue) => (queues.resume(queue.known(engine).await?).await?, "resumed"),
        Action::Set(set) => {
            let change = set.change()?;
            change.check()?;
            let name = set.queue.known(engine).await?;
            let queue = queues.change(name, change).await?;
            if let Some(Setting(max)) = set.max_running {
                let who = set.who.clone().unwrap_or_else(user);
                engine.queues().by(who).set_max_running(name, max).await?;
            }
            (queue, "set")
        }
    };
    let totals = engine.limits().totals().await?;
    let max = max_running(&totals, &queue);
    let line = || format!("queue {}: {what}{}", queue.name, settings(&queue, max));
    out.either(|| with_max_running(&queue, &totals), line)?;
    Ok(())
}

async fn delete(engine: &Engine, name: &str, out: Out) -> anyhow::Result<()> {
    if !engine.queues().delete(name).await? {
        // Another one of nearly that name is what is meant, if there is one.
        let close = missing(engine, name).await?.unwrap_or_default();
        let hint = close.trim_end_matches([';', ' ']);
        return Err(Refused::usage(format!("there is no queue `{name}`"), hint).into());
    }
    out.either(|| json!({ "queue": name, "deleted": true }), || format!("queue {name}: deleted"))?;
    Ok(())
}

impl Name {
    /// The name of a queue that is there, or is to be made: a misspelt one must not become a queue.
    async fn known(&self, engine: &Engine) -> anyhow::Result<&str> {
        QueueName::new(&self.name)?;
        if !self.create
            && let Some(close) = missing(engine, &self.name).await?
        {
            let hint = format!("{close}`--create` makes it");
            return Err(Refused::usage(format!("there is no queue `{}`", self.name), hint).into());
        }
        Ok(&self.name)
    }
}

/// What to say of a queue that is not there: which ones of nearly that name are. `None` if it is there.
pub(crate) async fn missing(engine: &Engine, name: &str) -> anyhow::Result<Option<String>> {
    let queues = engine.queues().list().await?;
    if queues.iter().any(|queue| queue.name.as_str() == name) {
        return Ok(None);
    }
    let close: Vec<_> = queues
        .iter()
        .filter(|queue| text::distance(queue.name.as_str(), name) <= CLOSE)
        .take(SHOWN)
        .map(|queue| format!("`{}`", queue.name))
        .collect();
    Ok(Some(if close.is_empty() {
        "`mainspring queue list` shows the queues; ".to_owned()
    } else {
        format!("did you mean {}? ", close.join(" or "))
    }))
}

/// How many letters a name may differ in to be meant.
const CLOSE: usize = 2;
/// Names that are shown.
const SHOWN: usize = 3;

impl Set {
    fn change(&self) -> anyhow::Result<QueueChange> {
        let backoff = match self.backoff.as_deref() {
            None => None,
            Some("default") => Some(None),
            Some(text) => Some(Some(text.parse::<Backoff>()?)),
        };
        let kept = self.retain_succeeded.or(self.retain_failed);
        if backoff.is_none() && kept.is_none() && self.max_running.is_none() {
            let hint =
                "name at least one of --backoff, --retain-succeeded, --retain-failed and --max-running";
            return Err(Refused::usage("no setting is named", hint).into());
        }
        Ok(QueueChange {
            backoff,
            retain_succeeded: self.retain_succeeded.map(|span| span.0),
            retain_failed: self.retain_failed.map(|span| span.0),
            ..QueueChange::default()
        })
    }
}

/// How many jobs of a queue may run at once, if that is bounded.
fn max_running(totals: &[TotalUse], queue: &Queue) -> Option<u32> {
    let of = |total: &&TotalUse| matches!(&total.total, Total::Queue(name) if *name == queue.name);
    totals.iter().find(of).map(|total| total.max)
}

fn with_max_running(queue: &Queue, totals: &[TotalUse]) -> Value {
    let mut value = shape::queue(queue);
    value["max_running"] = max_running(totals, queue).into();
    value
}

fn settings(queue: &Queue, max: Option<u32>) -> String {
    let most = max.map(|max| format!(", runs at most {max} jobs at once")).unwrap_or_default();
    let retention = &queue.settings.retention;
    let backoff = queue.settings.backoff.map_or_else(|| "default".to_owned(), |backoff| backoff.to_string());
    format!(
        "\n  backoff {backoff}, keeps succeeded jobs for {} and failed ones for {}{most}",
        text::span(retention.succeeded),
        text::span(retention.failed)
    )
}

/// States with a column of their own: those that are rare share one.
const COLUMNS: [State; 7] = [
    State::Ready,
    State::Scheduled,
    State::Running,
    State::Suspended,
    State::Succeeded,
    State::Failed,
    State::Cancelled,
];

async fn list(engine: &Engine, out: Out) -> anyhow::Result<()> {
    let queues = engine.queues().list().await?;
    let (counts, totals) = (engine.jobs().counts().await?, engine.limits().totals().await?);
    if out.is_json() {
        let queues: Vec<Value> = queues.iter().map(|queue| with_counts(queue, &counts, &totals)).collect();
        out.value(&json!({ "queues": queues }))?;
        return Ok(());
    }
    if queues.is_empty() {
        out.line("no queues yet: the first job or node makes one")?;
        return Ok(());
    }
    let rows = queues.iter().map(|queue| {
        let paused = if queue.settings.paused { "paused" } else { "open" };
        let mut row = vec![queue.name.to_string(), paused.to_owned()];
        row.push(max_running(&totals, queue).map_or_else(|| "-".to_owned(), |max| max.to_string()));
        row.extend(COLUMNS.iter().map(|state| counts.of(&queue.name, *state).to_string()));
        row
    });
    let headers = [
        "QUEUE",
        "",
        "MAX",
        "READY",
        "SCHEDULED",
        "RUNNING",
        "SUSPENDED",
        "SUCCEEDED",
        "FAILED",
        "CANCELLED",
    ];
    out.line(out.table(&headers, &rows.collect::<Vec<_>>()))?;
    Ok(())
}

fn with_counts(queue: &Queue, counts: &Counts, totals: &[TotalUse]) -> Value {
    let mut value = with_max_running(queue, totals);
    let states: serde_json::Map<String, Value> = State::ALL
        .iter()
        .map(|state| (state.as_str().to_owned(), counts.of(&queue.name, *state).into()))
        .collect();
    value["counts"] = states.into();
    value
}
