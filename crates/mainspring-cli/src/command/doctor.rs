//! `doctor`: look for what is wrong with the store, its nodes and its queues.
//!
//! It tries a write that leaves nothing behind, and goes through the jobs part by part, within a time of its own.
//!
//! What the store must not hold, and jobs in the hands of a silent node, are problems: the exit code is 1. Other things
//! worth knowing are notes: what surrounds the store and may hurt it, and what makes jobs wait.

use std::process::ExitCode;

use mainspring::admin::{Counts, Filter, Node, NodeState, Queue, Why};
use mainspring::store::CheckPart;
use mainspring::store::job::stranded;
use mainspring::time::{Span, Timestamp};
use mainspring::{Engine, Error, State};
use serde_json::{Value, json};

use crate::color::Color;
use crate::output::Out;
use crate::progress::Progress;
use crate::report::FAILED;
use crate::{json as shape, text};

/// Something found.
struct Finding {
    problem: bool,
    what: String,
    hint: String,
}

/// What `doctor` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How long it may look at the jobs. What it has not seen by then is said.
    #[arg(long, value_name = "SPAN", default_value = "10m")]
    within: Span,
}

pub(crate) async fn run(args: &Args, engine: &Engine, out: Out) -> anyhow::Result<ExitCode> {
    let store = engine.describe();
    let mut findings: Vec<Finding> = writes(engine).await.into_iter().collect();
    findings.extend(check(args, engine, out).await);
    let around = engine.store().diagnose().await?.into_iter();
    findings.extend(around.map(|found| Finding { problem: false, what: found.what, hint: found.hint }));
    let nodes = engine.nodes().await?;
    let queues = engine.queues().list().await?;
    let counts = engine.jobs().counts().await?;
    let now = engine.seams().clock.now();
    findings.extend(silent(&nodes, now));
    findings.extend(unserved(&queues, &nodes, &counts, now));
    findings.extend(unhandled(engine, &nodes, now).await?);
    findings.extend(quarantined(engine).await?);
    findings.extend(unreadable(engine).await?);
    if !store.durable {
        let what = "what is acknowledged may be lost when the power fails".to_owned();
        findings.push(Finding { problem: false, what, hint: "open it without relaxed durability".into() });
    }
    let problems = findings.iter().filter(|finding| finding.problem).count();
    out.either(
        || {
            let findings: Vec<Value> = findings
                .iter()
                .map(|found| json!({ "problem": found.problem, "what": found.what, "hint": found.hint }))
                .collect();
            json!({ "store": shape::store(&store), "problems": problems, "findings": findings })
        },
        || {
            let live = nodes.iter().filter(|node| node.state == NodeState::Live).count();
            let silent = nodes.iter().filter(|node| is_silent(node, now)).count();
            let mut lines = vec![
                format!(
                    "{} ({} {}, schema {})",
                    text::plain(&store.location),
                    store.backend,
                    text::plain(&store.version),
                    store.schema
                ),
                format!("{}, {} live", text::count(nodes.len(), "node"), live - silent),
            ];
            for finding in &findings {
                let (mark, color) =
                    if finding.problem { ("problem:", Color::Red) } else { ("note:", Color::Yellow) };
                let mark = out.paint(color, mark);
                lines.push(format!("{mark} {}", text::plain(&finding.what)));
                lines.push(format!("  hint: {}", text::plain(&finding.hint)));
            }
            let notes = findings.len() - problems;
            lines.push(match (problems, notes) {
                (0, 0) => out.paint(Color::Green, "all is well"),
                (0, _) => format!("no problems, {}", text::count(notes, "note")),
                (_, 0) => text::count(problems, "problem"),
                _ => format!("{}, {}", text::count(problems, "problem"), text::count(notes, "note")),
            });
            lines.join("\n")
        },
    )?;
    Ok(if problems == 0 { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

/// Whether nobody has said that it is gone, and its lease has lapsed.
fn is_silent(node: &Node, now: Timestamp) -> bool {
    node.state == NodeState::Live && node.lease_until <= now
}

/// Why nothing could be written now, if a write that leaves nothing behind does not work.
async fn writes(engine: &Engine) -> Option<Finding> {
    let error = engine.store().try_write().await.err()?;
    let mut what = format!("nothing can be written: {error}");
    for cause in mainspring::error::chain(&error).skip(1) {
        what = format!("{what}: {cause}");
    }
    let hint = match &error {
        Error::DiskFull => {
            "make room: no job is stored, claimed or ended before; nothing acknowledged is lost"
        }
        _ => {
            "no job is stored, claimed or ended while this lasts: see who locks the store, whether it is read-only, and \
              what the user may write"
        }
    };
    Some(Finding { problem: true, what, hint: hint.into() })
}

/// The store's self-check, part by part, as far as the time goes.
async fn check(args: &Args, engine: &Engine, out: Out) -> Vec<Finding> {
    let clock = &engine.seams().clock;
    let begun = clock.monotonic();
    let (mut next, mut findings) = (Some(CheckPart::default()), Vec::new());
    let (mut done, mut total) = (0, 0);
    // Before the jobs come the tables, and after them what can only be asked of everything at once: parts that have no measure and
    // may take long each, so they are counted.
    let mut progress = Progress::new(engine, out, "checking tables", None);
    let (mut measured, mut parts) = (false, 0);
    progress.show(parts);
    while let Some(part) = next {
        if clock.monotonic().saturating_sub(begun) >= args.within.0 {
            findings.push(Finding {
                problem: true,
                what: format!(
                    "the self-check did not finish within {}: {}",
                    args.within,
                    reached(done, total)
                ),
                hint: "give it more time: `mainspring doctor --within 1h`".into(),
            });
            break;
        }
        let checked = match engine.store().check_part(part).await {
            Ok(checked) => checked,
            Err(error) => {
                findings.push(Finding {
                    problem: true,
                    what: format!("the self-check did not finish: {error}"),
                    hint: "nothing is known of what it had not looked at; the error says why".into(),
                });
                break;
            }
        };
        let whole = usize::try_from(checked.total).ok().filter(|total| *total > 1);
        if whole.is_some() != measured {
            measured = whole.is_some();
            parts = 0;
            let what = if measured { "checking jobs" } else { "checking what all jobs have in common" };
            progress = Progress::new(engine, out, what, whole);
        }
        if measured {
            (done, total) = (checked.done, checked.total);
            progress.show(usize::try_from(done).unwrap_or(usize::MAX));
        } else {
            parts += 1;
            progress.show(parts);
        }
        let found = checked.findings.into_iter();
        findings.extend(found.map(|found| Finding { problem: true, what: found.what, hint: found.hint }));
        next = checked.next;
    }
    findings
}

/// How far a self-check got that did not finish.
fn reached(done: u64, total: u64) -> String {
    match (done, total) {
        (_, 0) => "it had not begun with the jobs; nothing is known of them".into(),
        (done, total) if done == total => {
            "it had looked at every job, and not yet at what all have in common, such as counts and keys"
                .into()
        }
        _ => format!("it got to job number {done} of {total}; nothing is known of the rest"),
    }
}

/// Nodes that hold claims and have not renewed their lease: their jobs wait until another node rescues them.
fn silent(nodes: &[Node], now: Timestamp) -> Vec<Finding> {
    let silent = nodes.iter().filter(|node| is_silent(node, now));
    silent
        .map(|node| match usize::try_from(node.claims).unwrap_or(usize::MAX) {
            0 => Finding {
                problem: false,
                what: format!(
                    "node {} is silent: its lease expired at {}; it holds no jobs",
                    node.name, node.lease_until
                ),
                hint: "it has died or cannot reach the store; no job waits for it".into(),
            },
            claims => Finding {
                problem: true,
                what: format!(
                    "node {} has been silent since {} and holds {}",
                    node.name,
                    node.renewed_at,
                    text::count(claims, "job")
                ),
                hint: "any live node takes its jobs over; start one if there is none".into(),
            },
        })
        .collect()
}

/// Queues whose jobs wait and that nobody serves, or that are paused.
fn unserved(queues: &[Queue], nodes: &[Node], counts: &Counts, now: Timestamp) -> Vec<Finding> {
    let mut findings = Vec::new();
    for queue in queues {
        let waiting = counts.of(&queue.name, State::Ready);
        let served = nodes.iter().any(|node| {
            node.state == NodeState::Live
                && !is_silent(node, now)
                && node.queues.iter().any(|(name, _)| *name == queue.name)
        });
        let jobs = text::count(usize::try_from(waiting).unwrap_or(usize::MAX), "job");
        if waiting > 0 && queue.settings.paused {
            findings.push(Finding {
                problem: false,
                what: format!("queue {} is paused with {jobs} waiting", queue.name),
                hint: format!("let it go on with `mainspring queue resume {}`", queue.name),
            });
        } else if waiting > 0 && !served {
            findings.push(Finding {
                problem: false,
                what: format!("no live node serves queue {}, with {jobs} waiting", queue.name),
                hint: format!("start one: `mainspring work --queue {}:10`, or your application", queue.name),
            });
        }
    }
    findings
}

/// Kinds of waiting jobs that no live node of their queue can run.
async fn unhandled(engine: &Engine, nodes: &[Node], now: Timestamp) -> anyhow::Result<Vec<Finding>> {
    let lines = engine.store().lines().await?;
    let found = lines.iter().filter_map(|line| {
        let why = stranded(line, nodes, now)?;
        // That nobody serves a queue is told for all its kinds at once.
        (!matches!(why, Why::NoNode { .. })).then(|| Finding {
            problem: false,
            what: format!("jobs of kind {} wait in queue {}: {why}", line.kind, line.queue),
            hint: why.hint().unwrap_or_default(),
        })
    });
    Ok(found.collect())
}

/// Jobs that kept killing their nodes.
async fn quarantined(engine: &Engine) -> anyhow::Result<Option<Finding>> {
    let filter = Filter {
        states: vec![State::Suspended],
        reason: Some(mainspring::Reason::Quarantine),
        ..Filter::default()
    };
    let found = engine.jobs().list(filter).limit(1).await?;
    Ok((!found.jobs.is_empty()).then(|| Finding {
        problem: false,
        what: "there are quarantined jobs: the nodes that ran them kept dying".into(),
        hint: "see them with `mainspring jobs --reason quarantine`, then resume or fail them".into(),
    }))
}

/// Jobs that were set aside because they cannot be read.
async fn unreadable(engine: &Engine) -> anyhow::Result<Option<Finding>> {
    let filter = Filter {
        states: vec![State::Suspended],
        reason: Some(mainspring::Reason::Unreadable),
        ..Filter::default()
    };
    let found = engine.jobs().list(filter).limit(1).await?;
    Ok((!found.jobs.is_empty()).then(|| Finding {
        problem: false,
        what: "there are jobs that could not be read and were set aside".into(),
        hint:
            "see them with `mainspring jobs --reason unreadable`, and what is wrong with `mainspring why ID`"
                .into(),
    }))
}
