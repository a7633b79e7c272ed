//! What can be asked for on the command line.

use clap::{Parser, Subcommand};

use crate::command::{
    bench, completions, doctor, enqueue, job, jobs, kind, limit, man, migrate, queue, schedule, signal,
    watch, why, work,
};
use crate::dev;

/// Shown under every `--help` of the program itself.
const AFTER_HELP: &str = "\
Exit codes:
  0  it worked
  1  the command failed, or `doctor` found a problem
  2  the command line or the input is wrong; nothing was stored
  3  there is no such job
  4  the store cannot be opened

Try it: `mainspring dev` runs sample jobs in ./mainspring.db and shows them live.";

/// A durable work engine: jobs that survive crashes, in one SQLite file or on Postgres.
#[derive(Debug, Parser)]
#[command(name = "mainspring", version, after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// The store: `sqlite:PATH`, `postgres://USER@HOST/DATABASE`, or `memory:`. [env: MAINSPRING_STORE] [default:
    /// sqlite:mainspring.db]
    // An address may hold a password: help must not show what is in the environment. Clap would show the option as one that
    // is needed, were it told of the variable.
    #[arg(long, global = true, help_heading = "Everywhere", value_name = "URL")]
    #[arg(default_value_t = store(), hide_default_value = true)]
    pub(crate) store: String,
    /// Acknowledge before data is on stable storage: a power failure may lose the last seconds.
    #[arg(long, global = true, help_heading = "Everywhere")]
    pub(crate) relaxed_durability: bool,
    /// Print JSON, for programs.
    #[arg(long, global = true, help_heading = "Everywhere")]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The store of those who name none.
fn store() -> String {
    std::env::var("MAINSPRING_STORE").unwrap_or_else(|_| "sqlite:mainspring.db".to_owned())
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run sample jobs and watch them live; `k` kills the worker, and its jobs come back.
    Dev(dev::Args),
    /// Run jobs of the built-in kinds: noop, sleep and, if allowed, exec. Link the library to run your own.
    Work(work::Args),
    /// Enqueue a job, or many of the same.
    Enqueue(Box<enqueue::Args>),
    /// List jobs, or change all that match: cancel, retry, hold, resume, fail, delete, set-priority.
    Jobs(Box<jobs::Args>),
    /// Show everything about one job, or change it.
    Job(job::Args),
    /// Send a signal to a job whose handler waits for it, now or later.
    Signal(signal::Args),
    /// Show the one reason that a job is not running.
    Why(why::Args),
    /// List, pause, resume, change and delete queues.
    Queue(queue::Args),
    /// List limits, who holds them and who waits; change, pause and resume them.
    Limit(limit::Args),
    /// List and set how many jobs of a kind run at once.
    Kind(kind::Args),
    /// List, define, pause and resume schedules, and run them by hand.
    Schedule(schedule::Args),
    /// List the nodes that run jobs.
    Nodes,
    /// Watch a store's figures, nodes and jobs live.
    Watch(watch::Args),
    /// Create the store, or migrate it to this version's schema.
    Migrate(migrate::Args),
    /// Find problems of the store, its nodes and its queues.
    Doctor(doctor::Args),
    /// Measure how fast this store takes and runs jobs. Leaves your jobs alone.
    Bench(bench::Args),
    /// Print a manual page, or write the pages of all commands.
    Man(man::Args),
    /// Print a completion script for a shell.
    Completions(completions::Args),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_declaration_is_sound() {
        Args::command().debug_assert();
    }
}
