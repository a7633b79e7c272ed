//! `doctor`: look for what is wrong with the store, its nodes and its queues.
//!
//! The engine knows how: see [`Engine::diagnose`]. With a problem, the exit code is 1.

use std::process::ExitCode;

use mainspring::Engine;
use mainspring::admin::{CheckProgress, Finding};
use mainspring::time::Span;
use mainspring_wire::json as shape;
use serde_json::{Value, json};

use crate::color::Color;
use crate::output::Out;
use crate::progress::Progress;
use crate::report::FAILED;
use crate::text;

/// What `doctor` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How long the check may read jobs. The report names the part that it did not reach.
    #[arg(long, value_name = "SPAN", default_value = "10m")]
    within: Span,
}

pub(crate) async fn run(args: &Args, engine: &Engine, out: Out) -> anyhow::Result<ExitCode> {
    let mut bar = Bar::new(engine, out);
    let diagnosis = engine.diagnose().within(args.within.0).watched(|progress| bar.show(progress)).await?;
    drop(bar);
    let now = engine.seams().clock.now();
    let (problems, notes) = (diagnosis.problems.len(), diagnosis.notes.len());
    out.either(
        || {
            let finding = |problem: bool| move |found: &Finding| json!({ "problem": problem, "what": found.what, "hint": found.hint });
            let findings: Vec<Value> = diagnosis
                .problems
                .iter()
                .map(finding(true))
                .chain(diagnosis.notes.iter().map(finding(false)))
                .collect();
            json!({ "store": shape::store(&diagnosis.store), "problems": problems, "findings": findings })
        },
        || {
            let store = &diagnosis.store;
            let mut lines = vec![
                format!(
                    "{} ({} {}, schema {})",
                    text::plain(&store.location),
                    store.backend,
                    text::plain(&store.version),
                    store.schema
                ),
                format!("{}, {} live", text::count(diagnosis.nodes.len(), "node"), diagnosis.live_nodes(now)),
            ];
            let mut add = |findings: &[Finding], mark: String| {
                for finding in findings {
                    lines.push(format!("{mark} {}", text::plain(&finding.what)));
                    lines.push(format!("  hint: {}", text::plain(&finding.hint)));
                }
            };
            add(&diagnosis.problems, out.paint(Color::Red, "problem:"));
            add(&diagnosis.notes, out.paint(Color::Yellow, "note:"));
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

/// How far the self-check has come. What has no measure is counted in parts.
struct Bar<'a> {
    engine: &'a Engine,
    out: Out,
    stage: &'static str,
    parts: usize,
    progress: Progress,
}

impl<'a> Bar<'a> {
    fn new(engine: &'a Engine, out: Out) -> Self {
        let stage = "checking tables";
        Bar { engine, out, stage, parts: 0, progress: Progress::new(engine, out, stage, None) }
    }

    fn show(&mut self, progress: CheckProgress) {
        let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let (stage, done, total) = match progress {
            CheckProgress::Jobs { done, total } => ("checking jobs", Some(size(done)), Some(size(total))),
            CheckProgress::Common => ("checking what all jobs have in common", None, None),
            _ => ("checking tables", None, None),
        };
        if stage != self.stage {
            (self.stage, self.parts) = (stage, 1);
            self.progress = Progress::new(self.engine, self.out, stage, total);
        }
        self.progress.show(done.unwrap_or(self.parts));
        self.parts += 1;
    }
}
