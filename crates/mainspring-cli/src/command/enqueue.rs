//! `enqueue`: one job, or many of the same.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use mainspring::enqueue::{Enqueue, EnqueueMany, Json};
use mainspring::time::Span;
use mainspring::{Backoff, Engine, JobId, OnConflict, Unique, Until, bounds};
use serde_json::{Value, json};

use super::filter;
use super::tail::passed;
use crate::output::Out;
use crate::report::Refused;
use crate::text;
use crate::time_point::TimePoint;

/// What it takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The kind of work, which decides the handler.
    kind: String,
    /// The handler's input, as JSON; `-` reads it from standard input; `null` by default.
    #[arg(conflicts_with = "input_file")]
    input: Option<String>,
    /// Read the input from this file.
    #[arg(long, value_name = "PATH")]
    input_file: Option<PathBuf>,
    /// The queue of the job.
    #[arg(long, value_name = "NAME", default_value = "default")]
    queue: String,
    /// From 0 (claimed first) to 9 (last).
    #[arg(long, value_name = "N", default_value_t = 5, allow_negative_numbers = true)]
    priority: u8,
    /// How long the job waits before it may run.
    #[arg(long, value_name = "SPAN", conflicts_with = "run_at")]
    delay: Option<Span>,
    /// When the job may run: a time such as 2026-11-15T08:30:00Z, or a duration from now.
    #[arg(long, value_name = "WHEN")]
    run_at: Option<TimePoint>,
    /// How many attempts the job has before it fails.
    #[arg(long, value_name = "N", default_value_t = 10)]
    max_attempts: u16,
    /// How long to wait after a failure: `exponential:1s..1h`, `linear:10s..5m` or `fixed:30s`.
    #[arg(long)]
    backoff: Option<Backoff>,
    /// How long one attempt may take.
    #[arg(long, value_name = "SPAN")]
    timeout: Option<Span>,
    /// When the job fails if it has not ended: a time, or a duration from now.
    #[arg(long, value_name = "WHEN")]
    deadline: Option<TimePoint>,
    /// At most one job of its kind with this key at a time.
    #[arg(long, value_name = "KEY")]
    unique: Option<String>,
    /// What happens if another job holds the key.
    #[arg(long, value_enum, requires = "unique", default_value = "keep")]
    on_conflict: Conflict,
    /// How long the job holds the key: until it is `started`, `finished`, or this long after it finished.
    #[arg(long, value_name = "started|finished|SPAN", requires = "unique", default_value = "finished")]
    unique_until: String,
    /// A word to find the job by; up to 16.
    #[arg(long)]
    tag: Vec<String>,
    /// A label that a node must have to run the job; up to 16.
    #[arg(long)]
    label: Vec<String>,
    /// A limit that the job takes part in; up to 8. It takes UNITS, 1 by default, under KEY.
    #[arg(long, value_name = "NAME[*UNITS][=KEY]")]
    limit: Vec<String>,
    /// Text that travels with the job, unchanged; up to 16.
    #[arg(long, value_name = "NAME=VALUE")]
    header: Vec<String>,
    /// Enqueue this many of the same, at most 100,000.
    #[arg(long, value_name = "N", conflicts_with_all = ["unique", "id", "wait"])]
    count: Option<usize>,
    /// The id of the job: the same id twice is the same job.
    #[arg(long)]
    id: Option<String>,
    /// Wait until the job has ended, and print its result; fail if the job fails.
    #[arg(long)]
    wait: bool,
    /// Wait no longer than this; then the command fails, and the job continues.
    #[arg(long = "for", value_name = "SPAN", requires = "wait")]
    span: Option<Span>,
}

/// What happens if another job holds the key.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Conflict {
    /// Enqueue nothing, and print the id of the other job.
    Keep,
    /// Cancel the other job if it still waits, and enqueue this one.
    Replace,
    /// Enqueue nothing, and fail.
    Reject,
}

/// Sets what single and bulk builders have in common.
macro_rules! with_options {
    ($builder:expr, $args:expr) => {{
        let mut builder =
            $builder.queue(&$args.queue).priority($args.priority).max_attempts($args.max_attempts);
        if let Some(when) = $args.delay.map(|delay| delay.0.into()).or($args.run_at.map(TimePoint::ahead)) {
            builder = builder.run_at(when);
        }
        if let Some(when) = $args.deadline {
            builder = builder.deadline(when.ahead());
        }
        if let Some(backoff) = $args.backoff {
            builder = builder.backoff(backoff);
        }
        if let Some(timeout) = $args.timeout {
            builder = builder.timeout(timeout.0);
        }
        for tag in &$args.tag {
            builder = builder.tag(tag);
        }
        for label in &$args.label {
            builder = builder.label(label);
        }
        for (name, units, key) in $args.limits()? {
            builder = builder.limit(name).units(units).key(key);
        }
        for (name, value) in $args.headers()? {
            builder = builder.header(name, value);
        }
        builder
    }};
}

impl Args {
    /// Reads the input and enqueues the job in memory, where everything that is wrong with it comes to light: no store
    /// is created for nothing.
    pub(crate) async fn rehearse(&self) -> anyhow::Result<Value> {
        if self.count.is_some_and(|count| count == 0 || count > bounds::BULK) {
            let message =
                format!("a count of {} is not between 1 and {}", self.count.unwrap_or(0), bounds::BULK);
            return Err(Refused::usage(message, "more than that takes several calls").into());
        }
        let input = self.value()?;
        let stage = Engine::open("memory:").await?;
        // Whether the store knows it will turn out there.
        for (name, ..) in self.limits()? {
            stage.limits().set(name).no_max().await?;
        }
        self.builder(&stage, &input)?.await?;
        Ok(input)
    }

    fn builder<'a>(&self, engine: &'a Engine, input: &Value) -> anyhow::Result<Enqueue<'a, Json>> {
        let mut job = with_options!(engine.enqueue_json(&self.kind, input), self);
        if let Some(key) = self.key()? {
            job = job.unique(key);
        }
        if let Some(id) = self.id.as_deref().map(filter::id).transpose()? {
            job = job.id(id);
        }
        Ok(job)
    }

    /// What can be wrong with the texts of the command line, all at once.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn texts(&self) -> anyhow::Result<()> {
        self.headers()?;
        self.limits()?;
        self.key()?;
        if self.input_file.is_none() && self.input.as_deref() != Some("-") {
            self.value()?;
        }
        Ok(())
    }

    /// Names, units and keys of limits.
    fn limits(&self) -> Result<Vec<(&str, u16, &str)>, Refused> {
        fn read(text: &str) -> Option<(&str, u16, &str)> {
            let (name, key) = text.split_once('=').unwrap_or((text, ""));
            match name.split_once('*') {
                None => Some((name, 1, key)),
                Some((name, units)) => Some((name, units.parse().ok()?, key)),
            }
        }
        let refused = |text: &String| {
            let hint = "write it as `--limit gpu`, `--limit gpu*4` or `--limit tenant=acme`";
            Refused::usage(format!("`{text}` is not a limit"), hint)
        };
        self.limit.iter().map(|text| read(text).ok_or_else(|| refused(text))).collect()
    }

    fn headers(&self) -> Result<Vec<(&str, &str)>, Refused> {
        let split = |text: &'_ String| {
            Refused::usage(format!("`{text}` is not a header"), "write it as `--header name=value`")
        };
        self.header.iter().map(|text| text.split_once('=').ok_or_else(|| split(text))).collect()
    }

    fn key(&self) -> anyhow::Result<Option<Unique>> {
        let Some(key) = &self.unique else { return Ok(None) };
        let until = match self.unique_until.as_str() {
            "started" => Until::Started,
            "finished" => Until::Finished,
            span => Until::after(span.parse::<Span>()?.0),
        };
        let on_conflict = match self.on_conflict {
            Conflict::Keep => OnConflict::Keep,
            Conflict::Replace => OnConflict::Replace,
            Conflict::Reject => OnConflict::Reject,
        };
        Ok(Some(Unique { key: key.clone(), until, on_conflict }))
    }

    /// The input, wherever it comes from. No more is read than could be stored.
    fn value(&self) -> anyhow::Result<Value> {
        let bytes = match (&self.input_file, self.input.as_deref()) {
            (Some(path), _) => {
                let file = std::fs::File::open(path).map_err(|error| {
                    Refused::usage(
                        format!("cannot read {}: {error}", path.display()),
                        "name a file that can be read",
                    )
                })?;
                read(file)?
            }
            (None, Some("-")) => read(std::io::stdin().lock())?,
            (None, Some(text)) => text.as_bytes().to_vec(),
            (None, None) => return Ok(Value::Null),
        };
        if bytes.len() > bounds::PAYLOAD_BYTES_MAX {
            let (what, size, limit) = ("input", bytes.len(), bounds::INPUT_BYTES);
            return Err(mainspring::Error::TooLarge { what, size, limit }.into());
        }
        serde_json::from_slice(&bytes).map_err(|error| {
            Refused::usage(
                format!("the input is not JSON: {error}"),
                "quote it for the shell: '{\"user\": 7}'",
            )
            .into()
        })
    }
}

/// Reads an input, up to one byte more than any store takes.
pub(super) fn read(from: impl Read) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(bounds::PAYLOAD_BYTES_MAX).unwrap_or(u64::MAX) + 1;
    from.take(limit).read_to_end(&mut bytes).context("cannot read the input")?;
    Ok(bytes)
}

/// Enqueues what was rehearsed.
pub(crate) async fn run(args: &Args, input: Value, engine: &Engine, out: Out) -> anyhow::Result<()> {
    match args.count {
        Some(count) => many(args, engine, input, count, out).await,
        None => one(args, engine, &input, out).await,
    }
}

/// How long a wait is silent before it says what it waits for.
const SILENCE: Duration = Duration::from_secs(2);

/// Waits for a job to end, and tells on standard error what is in its way whenever that changes.
async fn ended(engine: &Engine, id: JobId) -> anyhow::Result<Value> {
    let mut result = std::pin::pin!(engine.result_json(id));
    let mut message = String::new();
    loop {
        tokio::select! {
            biased;
            result = &mut result => return Ok(result?),
            () = engine.seams().clock.sleep(SILENCE) => {}
        }
        let Ok(why) = engine.jobs().why(id).await else { continue };
        let text = why.to_string();
        if text != message {
            let hint = why.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
            // Nobody may be reading it; the wait goes on all the same.
            let _unread = writeln!(std::io::stderr(), "{}", text::plain(&format!("waiting: {text}{hint}")));
            message = text;
        }
    }
}

/// What is told when the time that was given is over.
async fn still_waiting(engine: &Engine, id: JobId, span: Option<Span>) -> anyhow::Error {
    let why = engine.jobs().why(id).await.map(|why| format!(": {why}")).unwrap_or_default();
    let waited = span.map(|span| format!(" after {span}")).unwrap_or_default();
    let message = format!("job {id} has not ended{waited}{why}");
    Refused::failed(message, format!("the job continues; `mainspring job {id}` shows its state")).into()
}

async fn one(args: &Args, engine: &Engine, input: &Value, out: Out) -> anyhow::Result<()> {
    let job = args.builder(engine, input)?.await?;
    if args.wait {
        let result = tokio::select! {
            biased;
            result = ended(engine, job.id) => result?,
            () = passed(engine, args.span) => return Err(still_waiting(engine, job.id, args.span).await),
        };
        out.either(
            || json!({ "id": job.id.to_string(), "existing": job.existing, "result": result }),
            || text::plain(&format!("{result:#}")),
        )?;
        return Ok(());
    }
    out.either(
        || json!({ "id": job.id.to_string(), "existing": job.existing }),
        || if job.existing { format!("{} existing", job.id) } else { job.id.to_string() },
    )?;
    Ok(())
}

async fn many(args: &Args, engine: &Engine, input: Value, count: usize, out: Out) -> anyhow::Result<()> {
    let inputs = std::iter::repeat_n(input, count);
    let jobs: EnqueueMany<'_, Json> = with_options!(engine.enqueue_many_json(&args.kind, inputs), args);
    let ids: Vec<JobId> = jobs.await?.into_iter().map(|job| job.id).collect();
    out.either(
        || {
            let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
            json!({ "count": ids.len(), "ids": ids })
        },
        || format!("enqueued {} of kind {}", text::count(ids.len(), "job"), args.kind),
    )?;
    Ok(())
}
