//! `dev`: run sample jobs and watch them live. `watch` is the same view without a worker.
//!
//! This process only looks, enqueues samples and cancels one now and then; jobs run in a worker that is a child
//! process ([`worker`]). When the worker dies it is started again, and its jobs come back. On a terminal there is a
//! [`view`]; otherwise, events are printed as lines.
//!
//! # Invariants
//! - Nothing is known only here: killed at any moment and started again, `dev` goes on with the store as it is.

mod event;
mod recovery;
mod sample_work;
pub(crate) mod samples;
mod screen;
mod session;
mod summary;
mod view;
mod watch;
mod worker;

use std::time::Duration;

use mainspring::Engine;

use crate::command::pool::PoolArgs;
use crate::command::work::QueueSlots;
use crate::output::Out;
use crate::report::Refused;
use crate::store::Target;

/// What it takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Do not enqueue sample jobs.
    #[arg(long)]
    no_samples: bool,
    /// A queue that the worker serves, with how many of its jobs may run at a time. May be given several times.
    #[arg(long, value_name = "NAME:SLOTS", default_value = "default:8")]
    queue: Vec<QueueSlots>,
    /// Let the worker run `exec` jobs too, that is, any command that somebody enqueues.
    #[arg(long)]
    allow_exec: bool,
    #[command(flatten)]
    pools: PoolArgs,
}

/// Looks at a store, live, and does nothing else.
pub(crate) async fn watch(
    engine: &Engine,
    every: Duration,
    span: Option<Duration>,
    out: Out,
) -> anyhow::Result<()> {
    session::Session::onlooker(engine, every, out).ending_after(span).run("").await
}

/// Checks that the store can be shared with the worker.
pub(crate) fn check(store: &str) -> Result<(), Refused> {
    if store == "memory:" {
        return Err(Refused::usage(
            "a store in memory cannot be shared with the worker, which is a process of its own",
            "leave out `--store` to use ./mainspring.db",
        ));
    }
    Ok(())
}

pub(crate) async fn run(args: Args, store: Target<'_>, engine: &Engine, out: Out) -> anyhow::Result<()> {
    let recipe = worker::WorkerCommand::new(store, &args.queue, args.allow_exec, &args.pools);
    let queue = args.queue.first().map_or("default", |queue| queue.name.as_str());
    session::Session::new(engine, recipe, queue, !args.no_samples, out).run(&shown(store, engine)).await
}

/// How the store is named in what is printed: as it was given, unless that may hold a password.
fn shown(store: Target<'_>, engine: &Engine) -> String {
    let described = engine.describe();
    if described.backend == "postgres" { described.location } else { store.address.to_owned() }
}
