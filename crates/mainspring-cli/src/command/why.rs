//! `why`: the one reason that a job is not running.

use mainspring::admin::{NodeActivity, Why};
use mainspring::time::Timestamp;
use mainspring::{Engine, JobId};
use serde_json::json;

use super::filter::id;
use crate::output::Out;
use crate::{json as shape, text};

/// Nodes of which is shown what they do: enough to see what is going on.
const NODES: usize = 5;

/// What it takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The job.
    id: String,
}

pub(crate) async fn run(args: &Args, engine: &Engine, out: Out) -> anyhow::Result<()> {
    shown(id(&args.id)?, engine, out).await
}

/// Says why.
pub(crate) async fn shown(id: JobId, engine: &Engine, out: Out) -> anyhow::Result<()> {
    let why = engine.jobs().why(id).await?;
    out.either(
        || {
            let mut value = json!(why);
            if !why.activity().is_empty() {
                value["activity"] = shape::activities(why.activity());
            }
            value["id"] = id.to_string().into();
            value["text"] = why.to_string().into();
            value["hint"] = hint(&why, id).into();
            value
        },
        || {
            let mut lines = vec![text::plain(&why.to_string())];
            let now = engine.seams().clock.now();
            lines.extend(why.activity().iter().take(NODES).map(|node| activity(node, now)));
            if why.activity().len() > NODES {
                lines
                    .push(format!("and {} more nodes; see `mainspring nodes`", why.activity().len() - NODES));
            }
            lines.extend(hint(&why, id).map(|hint| format!("hint: {}", text::plain(&hint))));
            lines.join("\n")
        },
    )?;
    Ok(())
}

/// What a node does for the queue of the job, and how old that is.
fn activity(node: &NodeActivity, now: Timestamp) -> String {
    let name = text::line(&node.node, 60);
    match node.activity.as_ref().zip(node.as_of) {
        Some((activity, as_of)) => {
            let said = text::activity(activity, as_of, now);
            format!("{name}: {said} (as of {})", text::relative(as_of, now))
        }
        None => format!("{name}: it has just started, and says more with its next renewal"),
    }
}

/// What to do about it, with the command to do it.
pub(crate) fn hint(why: &Why, id: JobId) -> Option<String> {
    let command = match why {
        // Such a worker runs built-in kinds only: for most jobs it is not the answer.
        Why::NoNode { queue } => {
            let work =
                format!("your application, or for built-in kinds `mainspring work --queue {queue}:10`");
            return why.hint().map(|hint| format!("{hint}: {work}"));
        }
        Why::Paused { queue } => format!("mainspring queue resume {queue}"),
        Why::NoHandler { kind } if kind.as_str() == "exec" => "mainspring work --allow-exec …".into(),
        Why::Waiting { signals, .. } => match signals.first() {
            Some((name, _)) => format!("mainspring signal {id} {} JSON", quoted(name.as_str())),
            None => return why.hint(),
        },
        Why::Held { .. } | Why::Quarantined { .. } => format!("mainspring job {id} resume"),
        Why::Drifted { .. } => format!(
            "mainspring job {id} resume, accept, rename OLD NEW, fork --from STEP, retry --from STEP, or fail"
        ),
        Why::Ended { status } if status.state != mainspring::State::Succeeded => {
            format!("mainspring job {id} retry")
        }
        _ => return why.hint(),
    };
    Some(match why.hint() {
        Some(hint) => format!("{hint}: `{command}`"),
        None => format!("to run it again: `{command}`"),
    })
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    if word.chars().all(|c| c.is_ascii_alphanumeric() || "._:-".contains(c)) && !word.starts_with('-') {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn a_shell_takes_a_word_as_it_is_or_quoted() {
        assert_eq!(quoted("approved"), "approved");
        for (word, expected) in
            [("it's", r"'it'\''s'"), ("a b; rm *", "'a b; rm *'"), ("$(x)", "'$(x)'"), ("-f", "'-f'")]
        {
            assert_eq!(quoted(word), expected);
        }
    }
}
