//! The binary `mainspring`: see, feed and run a store from the command line. A library so that fuzz targets reach it.
//!
//! `args` says what can be asked for, `command` has one file per command, `builtin` the handlers that the binary
//! runs by itself, `dev` the live view. `report` turns whatever went wrong into `error:`, `hint:` and an exit code.
//!
//! # Invariants
//! - All output goes through `output::Out`, so that a closed pipe ends the program quietly.
//! - Text that comes from a store is escaped (`text::plain`) before it reaches a terminal.

mod args;
mod builtin;
mod color;
mod command;
mod dev;
#[cfg(test)]
mod documents;
#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;
mod output;
mod progress;
mod report;
mod store;
mod text;
mod time_point;

use std::process::ExitCode;

use clap::Parser;

/// The program.
pub fn main() -> ExitCode {
    // The program is also the guard of its child processes; then this does not return.
    mainspring::process::guard();
    let args = match args::Args::try_parse_from(command::tail::in_order(std::env::args_os().collect())) {
        Ok(args) => args,
        Err(error) => return report::usage(&error),
    };
    match run(args) {
        Ok(code) => code,
        Err(error) => report::failure(&error),
    }
}

fn run(args: args::Args) -> anyhow::Result<ExitCode> {
    report::log(matches!(&args.command, args::Command::Work(work) if work.is_child()));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(command::run(args));
    // A reader of standard input, for one, blocks for as long as nobody types: it does not hold up the end.
    runtime.shutdown_background();
    result
}
