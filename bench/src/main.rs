//! `cargo xtask bench <name>`: benchmarks are programs, never timed tests.
//!
//! Each prints a table for people, or with `--json` one line per figure. Absolute figures drift with the machine; what
//! counts are ratios within one run.

#![expect(clippy::print_stdout, reason = "a program whose purpose is to print")]
#![expect(clippy::print_stderr, reason = "and to say how far it is")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the real clock and starts real tasks")]

mod bare_commits;
mod bare_node;
mod comparison;
mod database;
mod limits;
mod peers;
mod postgres;
mod program;
mod queue;
mod report;
mod scopes;
mod steps;

use clap::{Parser, Subcommand};

/// Benchmarks of Mainspring.
#[derive(Parser)]
#[command(name = "cargo xtask bench")]
struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// The job queue: enqueue, drain, both at once, latencies, cost of being idle.
    Queue(queue::Options),
    /// Durable operations: steps, waits, wakes, and what it costs to wait.
    Steps(steps::Options),
    /// Limits: what a job with a limit costs beside plain ones, and how soon the next one is let in.
    Limits(limits::Options),
    /// What `queue --peers` asks of us, as it asks others.
    #[command(hide = true)]
    Ours { args: Vec<String> },
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().bench {
        Bench::Queue(options) => queue::run(&options),
        Bench::Steps(options) => steps::run(&options),
        Bench::Limits(options) => limits::run(&options),
        Bench::Ours { args } => comparison::ours::run(&args).map_err(anyhow::Error::from_boxed),
    }
}
