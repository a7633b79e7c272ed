//! The project's own commands: `cargo xtask test`, `tidy`, `docs`, `bench`, and the rigs.
//!
//! Few dependencies, so that a fresh clone reaches its first test quickly. Every command runs from the repository's root
//! and ends with an exit code that a script can trust.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line speaks through its streams")]

mod cargo;
mod debian;
mod docs;
mod fuzz;
mod mutants;
mod postgres;
mod test;
mod tidy;

use std::process::{Command, ExitCode};

const HELP: &str = "\
The project's own commands.

Usage: cargo xtask <command>

  test [--only <step>]...   everything that must hold: fmt, tidy, clippy, doc, nextest, planted,
                            interleavings, doctest
  quick                     fmt, tidy, clippy, unit tests, and the conformance suite on memory and SQLite
  tidy                      the project's own rules on sources, dependencies and documents
  docs                      links, snippets, the reference, and pages held against the program
  bench <name> [args]...    build and run one benchmark, for example: bench queue --store sqlite --json
  fuzz [target] [--seconds <n>]
                            look for inputs that break a property, led by coverage; all targets if none is named
  mutants [--shard <k>/<n>] [--file <glob>]... [--re <regex>]...
                            change the core in one place at a time: does a test notice?
  torture --store <store> --cycles <n> [--seed <n>] [--only <fault>]...
                            real processes that are killed, stopped and starved while they work
  sim [--seed <n>] [--seeds <a>..<b>] [--store memory|sqlite] [--trace]
                            whole clusters in simulated time, with faults; `sim --help` tells more
  help                      this text
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> anyhow::Result<ExitCode> {
    let Some((command, rest)) = args.split_first() else {
        print!("{HELP}");
        return Ok(ExitCode::SUCCESS);
    };
    match command.as_str() {
        "test" => test::run(rest),
        "quick" => test::quick(rest),
        "tidy" => tidy::run(rest),
        "docs" => docs::run(rest),
        "bench" => bench(rest),
        "fuzz" => fuzz::run(rest),
        "mutants" => mutants::run(rest),
        "torture" => torture(rest),
        "sim" => sim(rest),
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(ExitCode::SUCCESS)
        }
        unknown => {
            eprintln!("error: unknown command `{unknown}`\n\n{HELP}");
            // The usual code for wrong usage, distinct from a command that failed.
            Ok(ExitCode::from(2))
        }
    }
}

/// Runs one benchmark in a release build and passes its exit code through.
fn bench(args: &[String]) -> anyhow::Result<ExitCode> {
    let mut command = cargo::command();
    command.args(["run", "--release", "--quiet", "--package", "mainspring-bench", "--"]).args(args);
    passed(&mut command)
}

/// How the rigs are built: quick, and with failure points.
const RIGS: [&str; 5] = ["--profile", "sim", "--quiet", "--package", "mainspring-testkit"];

/// Simulates whole clusters.
fn sim(args: &[String]) -> anyhow::Result<ExitCode> {
    let mut command = cargo::command();
    command.arg("run").args(RIGS).args(["--bin", "mainspring-sim", "--"]).args(args);
    passed(&mut command)
}

/// Tortures a store with real processes.
fn torture(args: &[String]) -> anyhow::Result<ExitCode> {
    debian::ensure_strace()?;
    // Its victims are programs of their own, which `run` alone would not build.
    let built = cargo::command().arg("build").args(RIGS).arg("--bins").status()?;
    if !built.success() {
        return Ok(ExitCode::FAILURE);
    }
    let mut command = cargo::command();
    command.arg("run").args(RIGS).args(["--bin", "mainspring-torture", "--"]).args(args);
    passed(&mut command)
}

/// Runs a program and passes its exit code through.
fn passed(command: &mut Command) -> anyhow::Result<ExitCode> {
    let status = command.status()?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
