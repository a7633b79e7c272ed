//! `kind`: how many jobs of a kind run at once.

use clap::Subcommand;
use mainspring::Engine;
use mainspring::limit::{Total, TotalUse};
use mainspring::name::Kind;
use serde_json::{Value, json};

use super::limit::{Setting, optional};
use super::schedule::user;
use crate::output::Out;
use mainspring_wire::json as shape;

/// What it takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
    /// Who makes the change: the audit remembers it. The user of the operating system if not set.
    #[arg(long = "as", value_name = "NAME", global = true)]
    who: Option<String>,
}

/// What can be done with kinds.
#[derive(Debug, Subcommand)]
enum Action {
    /// List the kinds of which only so many jobs may run at once.
    List,
    /// Change settings of a kind.
    Set {
        /// The kind.
        kind: String,
        /// How many of its jobs run at once, over all nodes and queues; `none` for as many as there are slots.
        #[arg(long, value_name = "N|none", value_parser = optional::<u32>, required = true)]
        max_running: Setting<u32>,
    },
}

pub(crate) async fn run(args: Args, engine: &Engine, out: Out) -> anyhow::Result<()> {
    match args.action {
        Action::List => {
            let totals = engine.limits().totals().await?;
            let totals: Vec<_> = totals.into_iter().filter(|it| matches!(it.total, Total::Kind(_))).collect();
            let shape = || {
                let totals: Vec<Value> = totals.iter().map(shape::total).collect();
                json!({ "kinds": totals })
            };
            let lines = || match totals.as_slice() {
                [] => "no kind has a maximum: `mainspring kind set KIND --max-running N` gives it one"
                    .to_owned(),
                totals => totals.iter().map(running).collect::<Vec<_>>().join("\n"),
            };
            out.either(shape, lines)?;
        }
        Action::Set { kind, max_running: Setting(max) } => {
            let kind = Kind::new(&kind)?;
            let kinds = engine.kinds().by(args.who.unwrap_or_else(user));
            kinds.set_max_running(kind.as_str(), max).await?;
            let shape = || json!({ "kind": kind, "max_running": max });
            let most = max.map_or_else(
                || "any number of its jobs".to_owned(),
                |max| format!("at most {max} of its jobs"),
            );
            out.either(shape, || format!("kind {kind}: {most} run at once"))?;
        }
    }
    Ok(())
}

/// "queue mail: 3 of at most 5 jobs run".
pub(crate) fn running(total: &TotalUse) -> String {
    let (what, name) = match &total.total {
        Total::Queue(queue) => ("queue", queue.as_str()),
        Total::Kind(kind) => ("kind", kind.as_str()),
    };
    format!("{what} {name}: {} of at most {} jobs run", total.in_use, total.max)
}
