//! `job`: everything about one job, or a verb on it.

use std::io::{self, Write};

use clap::Subcommand;
use mainspring::admin::{Node, NodeNo, Record, Verb, Why};
use mainspring::enqueue::Origin;
use mainspring::store::output::Ask;
use mainspring::time::Timestamp;
use mainspring::workflow::Timeline;
use mainspring::{Engine, JobId};

use super::filter::id;
use super::{fork, jobs, signal, tail, verb, why};
use crate::color::{self, Color};
use crate::output::Out;
use crate::text;
use mainspring_wire::{json, timeline};

/// What it takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The job.
    id: String,
    #[command(subcommand)]
    verb: Option<One>,
}

/// The verbs.
#[derive(Debug, Subcommand)]
enum One {
    /// Cancel the job, or ask its node to stop it.
    Cancel(verb::Reasoned),
    /// Run the job again if it has ended, with all its records; run it now if it is scheduled.
    Retry {
        /// Remove the records from this step on, such as `charge` or `goods/pack#2`, and run these steps again.
        #[arg(long, value_name = "STEP")]
        from: Option<String>,
        /// Only show how much this would remove.
        #[arg(long, requires = "from")]
        dry_run: bool,
    },
    /// Make a new job that shares this one's records, up to a step.
    Fork(fork::Args),
    /// Set the job aside: neither time nor signals start it.
    Hold(verb::Reasoned),
    /// Resume the job. If its handler waits for something that has not come, it waits again.
    Resume,
    /// Fail the job if it is suspended: held, in quarantine, drifted or waiting.
    Fail(verb::Reasoned),
    /// Resume a job held for drift, and accept the new step.
    Accept,
    /// Resume a job held for drift: the code calls NEW what the records call OLD.
    Rename {
        /// The step's name in the records.
        old: String,
        /// The step's name in the code.
        new: String,
    },
    /// Drop signals that the job has not read.
    DropSignal {
        /// The name of the signals.
        name: String,
        /// Only those of this sender.
        #[arg(long, value_name = "KEY")]
        sender: Option<String>,
    },
    /// Show the one reason that the job is not running; `why ID` is the same.
    Why,
    /// Show the job's output live; `job tail ID` is the same.
    Tail(tail::Args),
    /// Remove the job, with all its data.
    Delete,
    /// Give the job another priority: from 0 (claimed first) to 9 (last).
    SetPriority {
        /// The priority.
        priority: u8,
    },
}

pub(crate) async fn run(args: Args, engine: &Engine, out: Out) -> anyhow::Result<()> {
    let id = id(&args.id)?;
    let verb = match args.verb {
        None => {
            let job = engine.jobs().get(id).await?;
            let why = engine.jobs().why(id).await?;
            let timeline = engine.jobs().timeline(id).await?;
            let nodes = engine.nodes().await?;
            let now = engine.seams().clock.now();
            let said = engine.store().output(vec![Ask { id, after: 0, limit: 0 }]).await?;
            let said = said.into_iter().flatten().map(|output| output.last).next().unwrap_or(0);
            out.either(
                || shown_to_programs(&job, &timeline, &why, said),
                || shown_to_people(&job, &timeline, &nodes, &why, said, now, out),
            )?;
            return Ok(());
        }
        Some(One::Why) => return why::shown(id, engine, out).await,
        Some(One::Tail(args)) => return tail::run(&args, id, engine, out).await,
        Some(One::Accept) => {
            engine.jobs().accept_drift(id).await?;
            return verb::said(out, "accept");
        }
        Some(One::Rename { old, new }) => {
            engine.jobs().rename_step(id, &old, &new).await?;
            return verb::said(out, "rename");
        }
        Some(One::DropSignal { name, sender }) => {
            return signal::drop_unread(id, &name, sender.as_deref(), engine, out).await;
        }
        Some(One::Cancel(because)) => Verb::Cancel { why: because.why },
        Some(One::Fork(args)) => return fork::run(engine, id, args, out).await,
        Some(One::Retry { from: Some(from), dry_run }) => {
            return fork::retry(engine, id, &from, dry_run, out).await;
        }
        Some(One::Retry { from: None, .. }) => return retry(engine, id, out).await,
        Some(One::Hold(because)) => Verb::Hold { why: because.why },
        Some(One::Resume) => Verb::Resume,
        Some(One::Fail(because)) => Verb::Fail { why: because.why },
        Some(One::Delete) => Verb::Delete,
        Some(One::SetPriority { priority }) => verb::set_priority(priority)?,
    };
    verb::one(engine, id, verb, out).await
}

/// Runs a job again, and says what it may meet: children that ended with it.
async fn retry(engine: &Engine, id: JobId, out: Out) -> anyhow::Result<()> {
    let lost = engine.jobs().lost_children(id).await?;
    verb::one(engine, id, Verb::Retry, out).await?;
    if let Some(first) = lost.first() {
        let children = match lost.len() {
            1 => "1 child stays cancelled".to_owned(),
            count => format!("{count} children stay cancelled"),
        };
        let ids: Vec<String> = lost.iter().take(SHOWN_CHILDREN).map(|child| child.id.to_string()).collect();
        let more = if lost.len() > ids.len() { ", …" } else { "" };
        let step = timeline::words(first.step.as_str());
        let note = format!(
            "note: {children} since it ended: {}{more}\nhint: if it needs their results, start them again with `mainspring job {id} retry --from \
             '{}'`, the step {step}",
            ids.join(", "),
            first.step,
        );
        writeln!(io::stderr(), "{}", text::plain(&note))?;
    }
    Ok(())
}

/// Children that a note names.
const SHOWN_CHILDREN: usize = 5;

fn shown_to_programs(job: &Record, timeline: &Timeline, why: &Why, said: u64) -> serde_json::Value {
    let mut value = json::record(job);
    json::add_timeline(&mut value, timeline);
    value["why"] = why.to_string().into();
    value["said"] = said.into();
    value
}

/// Facts in two columns, then the timeline, then the payloads.
fn shown_to_people(
    job: &Record,
    timeline: &Timeline,
    nodes: &[Node],
    why: &Why,
    said: u64,
    now: Timestamp,
    out: Out,
) -> String {
    let summary = &job.summary;
    let title = out.paint(Color::Bold, &format!("{} {}", summary.kind, summary.id));
    let mut lines = vec![title, String::new()];
    let mut fact = |name: &str, value: String| lines.push(format!("  {name:<13}{value}"));
    fact("state", out.paint(color::of(summary.status.state), &jobs::state(summary)));
    fact("why", text::plain(&why.to_string()));
    if let Some(hint) = mainspring_wire::why::hint(why, summary.id) {
        fact("hint", text::plain(&hint));
    }
    fact("queue", format!("{}, priority {}", summary.queue, summary.priority));
    fact("attempt", format!("{}, claim {}", jobs::attempt(summary), summary.claim));
    if let Some(progress) = &job.progress {
        let note = text::line(&progress.note, 200);
        fact("progress", format!("{}/{} {note}", progress.done, progress.total).trim_end().to_owned());
    }
    if said > 0 {
        let frames = text::count(usize::try_from(said).unwrap_or(usize::MAX), "frame");
        fact("said", format!("{frames}; `mainspring job tail {}` shows them", summary.id));
    }
    if let Some(note) = &job.note {
        fact("note", text::line(note, 1_000));
    }
    for (name, value) in options(job) {
        fact(name, value);
    }
    lines.push(String::new());
    lines.extend(timeline_lines(job, timeline, nodes, now));
    lines.push(format!("\n  input\n{}", payload(&job.input)));
    if let Some(result) = &job.result {
        lines.push(format!("\n  result\n{}", payload(result)));
    }
    lines.join("\n")
}

/// What was set when it was enqueued.
fn options(job: &Record) -> Vec<(&'static str, String)> {
    let options = &job.summary.options;
    let mut facts = Vec::new();
    if let Some(parent) = options.parent {
        facts.push(("parent", parent.to_string()));
    }
    if let Some(Origin { job, step }) = &options.forked {
        let before = step.as_ref().map(|step| format!(" before {}", timeline::words(step.as_str())));
        facts.push(("forked from", format!("{job}{}", before.unwrap_or_default())));
    }
    if let Some(timeout) = options.timeout {
        facts.push(("timeout", text::span(timeout)));
    }
    if let Some(backoff) = options.backoff {
        facts.push(("backoff", backoff.to_string()));
    }
    if let Some(unique) = &options.unique {
        facts.push(("unique", text::line(&unique.key, 300)));
    }
    let words = |words: Vec<&str>| text::line(&words.join(", "), 1_000);
    if !options.tags.is_empty() {
        facts.push(("tags", words(options.tags.iter().map(AsRef::as_ref).collect())));
    }
    if !options.labels.is_empty() {
        facts.push(("labels", words(options.labels.iter().map(AsRef::as_ref).collect())));
    }
    for (name, value) in &options.headers {
        facts.push(("header", text::line(&format!("{name}: {value}"), 1_000)));
    }
    facts
}

/// Lines at the beginning and at the end of a long timeline that are shown; `--json` has all.
const LINES: (usize, usize) = (50, 150);

/// What happened and will happen, oldest first.
fn timeline_lines(job: &Record, timeline: &Timeline, nodes: &[Node], now: Timestamp) -> Vec<String> {
    let summary = &job.summary;
    let mut events = vec![(summary.created_at, "enqueued".to_owned())];
    events.extend(timeline::events(timeline, summary.status.state.is_terminal()));
    let began = |claim: u32, no: NodeNo| match nodes.iter().find(|node| node.no == no) {
        Some(node) => format!("claim {claim} began on node {}", text::line(&node.name, 100)),
        None => format!("claim {claim} began on node number {no}, which the store no longer knows"),
    };
    for error in &job.errors {
        events.push((error.claimed_at, began(error.claim, error.node)));
        let message = text::line(&error.message, 600);
        events.push((error.at, format!("claim {}: {}: {message}", error.claim, error.kind.as_str())));
    }
    if let (Some(at), Some(node)) = (summary.claimed_at, summary.node)
        && job.errors.iter().all(|error| error.claim != summary.claim)
    {
        events.push((at, began(summary.claim, node)));
    }
    if let Some(at) = summary.run_at {
        let what = match summary.status.reason {
            Some(reason) if reason.awaits() && job.waits.is_empty() => "wakes",
            Some(reason) if reason.awaits() => "wakes, if nothing wakes it before",
            _ => "due",
        };
        events.push((at, what.to_owned()));
    }
    if let Some(at) = summary.deadline {
        events.push((at, "deadline".to_owned()));
    }
    if let Some(at) = summary.finished_at {
        events.push((at, summary.status.to_string()));
    }
    // Stable, so that what happens in one instant stays in order.
    events.sort_by_key(|(at, _)| *at);
    let line = |(at, what)| format!("  {at}  {:>14}  {what}", text::relative(at, now));
    let mut lines: Vec<String> = events.into_iter().map(line).collect();
    if lines.len() > LINES.0 + LINES.1 {
        let left_out = lines.len() - LINES.0 - LINES.1;
        let more = if timeline.more { " at least" } else { "" };
        lines
            .splice(LINES.0..LINES.0 + left_out, [format!("  … {left_out}{more} more; `--json` shows them")]);
    }
    lines
}

/// Payload bytes shown on a terminal; `--json` has all.
const SHOWN: usize = 4_000;

fn payload(bytes: &[u8]) -> String {
    let pretty = format!("{:#}", json::payload(bytes));
    let mut shown = text::plain(&pretty);
    if shown.len() > SHOWN {
        shown.truncate(shown.floor_char_boundary(SHOWN));
        shown.push_str("…\n(cut; `--json` shows all)");
    }
    shown.lines().map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n")
}
