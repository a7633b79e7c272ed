//! `job ID fork` and `job ID retry --from`: from a step on, in a new job or in the same.

use mainspring::name::Key;
use mainspring::workflow::{Timeline, Written};
use mainspring::{Engine, JobId};
use serde_json::{Value, json};

use super::verb;
use crate::output::Out;
use crate::report::Refused;
use crate::text;
use mainspring_wire::timeline::words;

/// What a fork takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The step before which the fork begins, such as `charge`, `goods/pack#2` or `mail#=ada`. Without it, the fork shares
    /// all records.
    #[arg(long, value_name = "STEP")]
    from: Option<String>,
    /// Another input for the fork.
    #[arg(long, value_name = "JSON")]
    input: Option<String>,
    /// Another result of a shared step, or of the step before which the fork begins. May be given several times.
    #[arg(long, value_name = "STEP=JSON")]
    result: Vec<String>,
    /// The id of the new job: the same id twice is the same fork.
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// Only show what the fork would share.
    #[arg(long)]
    dry_run: bool,
}

/// Forks a job.
pub(crate) async fn run(engine: &Engine, id: JobId, args: Args, out: Out) -> anyhow::Result<()> {
    let timeline = engine.jobs().timeline(id).await?;
    let mut fork = engine.jobs().fork(id);
    if let Some(from) = &args.from {
        fork = fork.from(step(&timeline, from));
    }
    if let Some(input) = &args.input {
        fork = fork.input(&parsed(input)?);
    }
    for result in &args.result {
        let (name, value) = assigned(result)?;
        fork = fork.result(step(&timeline, name), &value);
    }
    if let Some(id) = &args.id {
        fork = fork.id(super::filter::id(id)?);
    }
    if args.dry_run {
        fork = fork.dry_run();
    }
    let forked = fork.await?;
    out.either(
        || {
            json!({
                "id": if args.dry_run { Value::Null } else { forked.id.to_string().into() },
                "dry_run": args.dry_run,
                "shared": forked.shared,
                "restarted": forked.restarted,
            })
        },
        || {
            let message = if args.dry_run {
                format!("would share {}", records(&forked.shared))
            } else {
                format!("{}\nshares {}", forked.id, text::count(forked.shared.len(), "record"))
            };
            match forked.restarted.as_slice() {
                [] => message,
                again => format!("{message}; started again: {}", named(again)),
            }
        },
    )?;
    Ok(())
}

/// Retries a job from a step.
pub(crate) async fn retry(
    engine: &Engine,
    id: JobId,
    from: &str,
    dry_run: bool,
    out: Out,
) -> anyhow::Result<()> {
    let timeline = engine.jobs().timeline(id).await?;
    let retry = engine.jobs().retry_from(id, step(&timeline, from));
    let retried = if dry_run { retry.dry_run().await? } else { retry.await? };
    if !dry_run {
        return verb::said(out, "retry");
    }
    out.either(
        || json!({ "verb": "retry", "dry_run": true, "removed": retried.removed }),
        || format!("would remove {}", records(&retried.removed)),
    )?;
    Ok(())
}

/// How many records, and of what.
fn records(keys: &[Key]) -> String {
    let count = text::count(keys.len(), "record");
    if keys.is_empty() { count } else { format!("{count}: {}", named(keys)) }
}

/// What was recorded, in the words of `job`.
fn named(keys: &[Key]) -> String {
    let names: Vec<String> = keys.iter().map(|key| words(key.as_str())).collect();
    text::line(&names.join(", "), 600)
}

/// The key of a step, given so or in the words of `job`.
fn step(timeline: &Timeline, given: &str) -> String {
    let mut steps = timeline.entries.iter().map(Written::operation);
    steps.find(|step| !step.is_empty() && words(step) == given).unwrap_or(given).to_owned()
}

fn parsed(text: &str) -> anyhow::Result<Value> {
    serde_json::from_str(text).map_err(|error| {
        Refused::usage(format!("not JSON: {error}"), "text needs quotes of its own: '\"text\"'").into()
    })
}

/// A step and its value. Keys have `=` in them, too.
fn assigned(text: &str) -> anyhow::Result<(&str, Value)> {
    let splits = text.match_indices('=').filter(|(at, _)| !text[..*at].ends_with('#'));
    for (at, _) in splits {
        if let Ok(value) = serde_json::from_str(&text[at + 1..]) {
            return Ok((&text[..at], value));
        }
    }
    Err(Refused::usage(
        format!("`{}` is not STEP=JSON", text::line(text, 200)),
        "text needs quotes of its own: 'charge=\"paid\"'",
    )
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_taken_apart_where_the_json_begins() {
        let taken = |text: &str| assigned(text).map(|(step, value)| (step.to_owned(), value)).ok();
        assert_eq!(taken("a=1"), Some(("a".into(), json!(1))));
        assert_eq!(taken(r#"mail#=ada="x=y""#), Some(("mail#=ada".into(), json!("x=y"))));
        assert_eq!(taken(r#"mail#=a=b={"c":"="}"#), Some(("mail#=a=b".into(), json!({ "c": "=" }))));
        for bad in ["a", "a=", "a=x", "=", "mail#=1"] {
            assert_eq!(taken(bad), None, "{bad}");
        }
    }
}
