//! Verbs: what operators do to jobs, one or many.

use std::io::{self, BufRead, IsTerminal, Write};

use mainspring::admin::{ChangeReport, Target, Verb};
use mainspring::{Engine, JobId, Priority};
use serde_json::json;

use super::filter;
use crate::output::Out;
use crate::progress::Progress;
use crate::report::Refused;
use crate::text;

/// Which jobs a verb is for.
#[derive(Debug, clap::Args)]
pub(crate) struct Many {
    /// Jobs by id; or give filters instead.
    ids: Vec<String>,
    #[command(flatten)]
    filter: filter::JobFilter,
    /// Only count the jobs that this would change.
    #[arg(long)]
    dry_run: bool,
    /// Do not ask.
    #[arg(long, short)]
    yes: bool,
}

/// Why; the store keeps the text with the job.
#[derive(Debug, clap::Args)]
pub(crate) struct Reasoned {
    /// Why; the store keeps the text with the job.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) why: String,
}

impl Many {
    fn target(&self, engine: &Engine) -> anyhow::Result<Target> {
        match (self.ids.is_empty(), self.filter.is_empty()) {
            (true, true) => Err(Refused::usage(
                "no job is named",
                "give ids, or a filter such as `--state failed` or `--queue mail`",
            )
            .into()),
            (false, false) => {
                Err(Refused::usage("both ids and a filter are given", "give one or the other").into())
            }
            (false, true) => {
                let ids = self.ids.iter().map(|text| filter::id(text)).collect::<Result<Vec<JobId>, _>>()?;
                Ok(Target::Ids(ids))
            }
            (true, false) => Ok(Target::Filter(self.filter.filter(engine.seams().clock.now())?)),
        }
    }
}

/// Applies a verb to many jobs. Over a filter it shows how many that are, and asks.
pub(crate) async fn many(engine: &Engine, args: &Many, verb: Verb, out: Out) -> anyhow::Result<()> {
    let target = args.target(engine)?;
    let name = verb.name();
    let mut total = if let Target::Ids(ids) = &target { Some(ids.len()) } else { None };
    if matches!(target, Target::Filter(_)) || args.dry_run {
        let mut progress = Progress::new(engine, out, "counting", None);
        let counted = engine.jobs().change(target.clone(), verb.clone()).dry_run();
        let would = counted.watched(|so_far| progress.show(so_far.changed)).await?;
        drop(progress);
        total = Some(would.changed);
        if args.dry_run {
            return message(out, name, &would, true);
        }
        if would.changed > 0 && !args.yes && !confirmed(name, &would, out)? {
            return Err(
                Refused::failed("nothing was changed", "add `--yes` to do it without being asked").into()
            );
        }
    }
    let mut progress = Progress::new(engine, out, name, total);
    let change = engine.jobs().change(target, verb).watched(|so_far| progress.show(so_far.changed));
    let report = change.await?;
    drop(progress);
    message(out, name, &report, false)
}

/// Applies a verb to one job.
pub(crate) async fn one(engine: &Engine, id: JobId, verb: Verb, out: Out) -> anyhow::Result<()> {
    let name = verb.name();
    message(out, name, &engine.jobs().change(id, verb).await?, false)
}

/// Tells that one job was changed.
pub(crate) fn said(out: Out, verb: &str) -> anyhow::Result<()> {
    message(out, verb, &ChangeReport { changed: 1, ..ChangeReport::default() }, false)
}

/// Asks a person; a program has to say `--yes`.
fn confirmed(verb: &str, would: &ChangeReport, out: Out) -> anyhow::Result<bool> {
    let jobs = text::count(would.changed, "job");
    if out.is_json() || !io::stdin().is_terminal() {
        let message = format!("this would {verb} {jobs}, and there is no terminal to ask on");
        return Err(Refused::usage(message, "add `--yes` to do it, or `--dry-run` to only count").into());
    }
    write!(io::stderr(), "{verb} {jobs}? [y/N] ")?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn message(out: Out, verb: &str, report: &ChangeReport, dry_run: bool) -> anyhow::Result<()> {
    out.either(
        || {
            json!({
                "verb": verb,
                "dry_run": dry_run,
                "changed": report.changed,
                "refused": report.refused,
                "missing": report.missing,
            })
        },
        || {
            let jobs = text::count(report.changed, "job");
            let done = if dry_run { format!("would {verb} {jobs}") } else { format!("{verb}: {jobs}") };
            let not = |count: usize, why: &str| match count {
                0 => String::new(),
                count => format!(", {count} {why}"),
            };
            let refused = not(report.refused, "left as they are: their state does not allow it");
            let missing = not(report.missing, "not found");
            format!("{done}{refused}{missing}")
        },
    )?;
    Ok(())
}

/// A priority from the command line.
pub(crate) fn set_priority(priority: u8) -> mainspring::Result<Verb> {
    Priority::new(priority).map(Verb::SetPriority)
}
