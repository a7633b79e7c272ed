//! `why`: the one reason that a job is not running.

use mainspring::admin::NodeActivity;
use mainspring::time::Timestamp;
use mainspring::{Engine, JobId};
use mainspring_wire::json;
use mainspring_wire::why::hint;

use super::filter::id;
use crate::output::Out;
use crate::text;

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
        || json::why(id, &why),
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
        None => format!("{name}: it has just started; it reports more with its next lease renewal"),
    }
}
