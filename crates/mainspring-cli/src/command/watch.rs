//! `watch`: a store's figures, nodes and jobs, live.

use mainspring::Engine;
use mainspring::time::Span;

use crate::dev;
use crate::output::Out;
use crate::report::Refused;

/// Shown under `watch --help`.
const AFTER_HELP: &str = "\
On a terminal it is a view of the whole window, until q or Ctrl-C. Elsewhere, or with --json, it prints a line for
whatever happens, and the figures whenever they have changed. It only shows jobs; `work` or your application runs them.";

/// What it takes.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// How often to read the store, from 100ms to 1h.
    #[arg(long, value_name = "SPAN", default_value = "1s")]
    every: Span,
    /// End after this long.
    #[arg(long = "for", value_name = "SPAN")]
    span: Option<Span>,
}

/// The shortest and the longest time between two looks, in milliseconds.
const EVERY: std::ops::RangeInclusive<u128> = 100..=3_600_000;

pub(crate) async fn run(args: &Args, engine: &Engine, out: Out) -> anyhow::Result<()> {
    if !EVERY.contains(&args.every.0.as_millis()) {
        let message = format!("{} is not between 100ms and 1h", args.every);
        return Err(
            Refused::usage(message, "a look costs the store a few reads; once a second will do").into()
        );
    }
    dev::watch(engine, args.every.0, args.span.map(|span| span.0), out).await
}
