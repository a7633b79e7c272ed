//! `jobs`: list jobs, or change all that match.

use clap::Subcommand;
use mainspring::admin::{PagePosition, Summary, Verb};
use mainspring::time::Timestamp;
use mainspring::{Engine, Reason, State, bounds};
use serde_json::{Value, json};

use super::{filter, queue, verb};
use crate::output::Out;
use crate::report::Refused;
use crate::{color, text};
use mainspring_wire::json as shape;

/// What it takes.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Option<Many>,
    #[command(flatten)]
    filter: filter::JobFilter,
    /// How many jobs to list, at most.
    #[arg(long, default_value_t = 20, value_name = "N")]
    limit: usize,
    /// Where the previous page ended, as it printed.
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
}

#[cfg(any(test, feature = "fuzz"))]
impl Args {
    /// The conditions of a listing.
    pub(crate) fn conditions(&self) -> &filter::JobFilter {
        &self.filter
    }
}

/// The verbs.
#[derive(Debug, Subcommand)]
enum Many {
    /// End waiting jobs as cancelled, and ask running ones to stop.
    Cancel {
        #[command(flatten)]
        jobs: verb::Many,
        #[command(flatten)]
        because: verb::Reasoned,
    },
    /// Run failed, cancelled or skipped jobs again, and scheduled ones now.
    Retry(verb::Many),
    /// Set waiting jobs aside.
    Hold {
        #[command(flatten)]
        jobs: verb::Many,
        #[command(flatten)]
        because: verb::Reasoned,
    },
    /// Resume suspended jobs; a handler that waits checks its wait again.
    Resume(verb::Many),
    /// End suspended jobs as failed.
    Fail {
        #[command(flatten)]
        jobs: verb::Many,
        #[command(flatten)]
        because: verb::Reasoned,
    },
    /// Remove jobs that are not running, with all their data.
    Delete(verb::Many),
    /// Give waiting jobs another priority.
    SetPriority {
        /// From 0 (claimed first) to 9 (last).
        #[arg(long, value_name = "N")]
        to: u8,
        #[command(flatten)]
        jobs: verb::Many,
    },
}

pub(crate) async fn run(args: Args, engine: &Engine, out: Out) -> anyhow::Result<()> {
    let (jobs, verb) = match args.verb {
        None => return list(&args, engine, out).await,
        Some(Many::Cancel { jobs, because }) => (jobs, Verb::Cancel { why: because.why }),
        Some(Many::Retry(jobs)) => (jobs, Verb::Retry),
        Some(Many::Hold { jobs, because }) => (jobs, Verb::Hold { why: because.why }),
        Some(Many::Resume(jobs)) => (jobs, Verb::Resume),
        Some(Many::Fail { jobs, because }) => (jobs, Verb::Fail { why: because.why }),
        Some(Many::Delete(jobs)) => (jobs, Verb::Delete),
        Some(Many::SetPriority { to, jobs }) => (jobs, verb::set_priority(to)?),
    };
    verb::many(engine, &jobs, verb, out).await
}

async fn list(args: &Args, engine: &Engine, out: Out) -> anyhow::Result<()> {
    if args.limit == 0 || args.limit > bounds::PAGE {
        let message = format!("a limit of {} is not between 1 and {}", args.limit, bounds::PAGE);
        return Err(Refused::usage(message, "read page by page with `--after CURSOR`").into());
    }
    let now = engine.seams().clock.now();
    let after = args.after.clone().map(PagePosition);
    let listing = engine.jobs().list(args.filter.filter(now)?).after(after).limit(args.limit).await?;
    if out.is_json() {
        let jobs: Vec<Value> = listing.jobs.iter().map(shape::summary).collect();
        out.value(&json!({ "jobs": jobs, "next": listing.next.map(|cursor| cursor.0) }))?;
        return Ok(());
    }
    if listing.jobs.is_empty() {
        let missing = match args.filter.queue() {
            Some(name) => queue::missing(engine, name).await?.map(|close| (name, close)),
            None => None,
        };
        out.line(match missing {
            Some((name, close)) => {
                let hint = text::plain(close.trim_end_matches([';', ' ']));
                format!("no jobs match: there is no queue `{}`\nhint: {hint}", text::plain(name))
            }
            None => "no jobs match".to_owned(),
        })?;
    } else {
        let rows: Vec<_> = listing.jobs.iter().map(|job| row(job, now)).collect();
        let colors: Vec<_> = listing.jobs.iter().map(|job| color::of(job.status.state)).collect();
        let headers = ["ID", "STATE", "KIND", "WHEN", "ATTEMPT", "QUEUE"];
        out.line(out.table_in_colors(&headers, &rows, "STATE", &colors))?;
    }
    if let Some(next) = listing.next {
        out.line(format!("\nmore: --after {}", text::plain(&next.0)))?;
    }
    Ok(())
}

fn row(job: &Summary, now: Timestamp) -> Vec<String> {
    vec![
        job.id.to_string(),
        state(job),
        job.kind.to_string(),
        when(job, now),
        attempt(job),
        job.queue.to_string(),
    ]
}

/// The state, with what is special about it.
pub(crate) fn state(job: &Summary) -> String {
    let mut text = job.status.to_string();
    if job.stuck {
        text.push_str(", stuck");
    }
    if job.foreign {
        text.push_str(", foreign await");
    }
    if job.unreadable.is_some() && job.status.reason != Some(Reason::Unreadable) {
        text.push_str(", unreadable");
    }
    if job.cancelling {
        text.push_str(", cancelling");
    }
    if job.crashes > 0 && !job.status.state.is_terminal() {
        text.push_str(", ");
        text.push_str(&text::crashes(job.crashes));
    }
    text
}

/// "2/10".
pub(crate) fn attempt(job: &Summary) -> String {
    format!("{}/{}", job.attempt(), job.options.max_attempts)
}

/// The time that matters most in its state.
pub(crate) fn when(job: &Summary, now: Timestamp) -> String {
    let at = match job.status.state {
        State::Running => job.claimed_at,
        State::Scheduled => job.run_at,
        State::Suspended if job.status.reason.is_some_and(Reason::awaits) => job.run_at,
        _ => job.finished_at,
    };
    match at {
        Some(at) if job.status.state == State::Running => format!("for {}", text::duration(now.since(at))),
        Some(at) => text::relative(at, now),
        None => text::relative(job.created_at, now),
    }
}
