//! `cargo xtask test`: everything that must hold before a commit reaches the main branch.
//!
//! The steps run from the quickest to the slowest and the first failure ends the run. A person and continuous
//! integration run the same command.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{cargo, debian, docs, postgres, tidy};

/// One step: its name for `--only`, and what it runs.
struct Step {
    name: &'static str,
    run: fn() -> Result<()>,
}

const FMT: Step = Step { name: "fmt", run: || cargo_step(&["fmt", "--all", "--check"]) };
const TIDY: Step = Step { name: "tidy", run: tidy::check };
const CLIPPY: Step = Step {
    name: "clippy",
    run: || cargo_step(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
};

/// Everything.
const STEPS: [Step; 8] = [
    FMT,
    TIDY,
    CLIPPY,
    Step { name: "doc", run: doc },
    Step { name: "nextest", run: nextest },
    Step { name: "planted", run: planted },
    Step { name: "interleavings", run: interleavings },
    Step { name: "doctest", run: docs::snippets },
];

/// What a person runs after each edit: no server, no processes that are killed, no second build.
const QUICK: [Step; 4] = [FMT, TIDY, CLIPPY, Step { name: "unit", run: unit }];

/// Runs all steps, or those named with `--only`.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    let only = only(args)?;
    run_steps(STEPS.iter().filter(|step| only.is_empty() || only.contains(&step.name)))
}

/// Runs the steps that a person wants after each edit.
pub(crate) fn quick(args: &[String]) -> Result<ExitCode> {
    if let Some(arg) = args.first() {
        bail!("`quick` takes no arguments, found `{arg}`");
    }
    run_steps(QUICK.iter())
}

/// Runs steps in order, stops at the first failure, and prints how long each step took.
fn run_steps<'a>(steps: impl Iterator<Item = &'a Step>) -> Result<ExitCode> {
    let total = Stopwatch::start();
    let mut took = Vec::new();
    for step in steps {
        println!("\n== {} ==", step.name);
        let stopwatch = Stopwatch::start();
        let outcome = (step.run)();
        let seconds = stopwatch.elapsed().as_secs_f64();
        outcome.with_context(|| format!("step `{}` failed after {seconds:.1} s", step.name))?;
        println!("== {}: ok in {seconds:.1} s ==", step.name);
        took.push((step.name, seconds));
    }
    println!("\nstep          seconds");
    for (name, seconds) in &took {
        println!("{name:<12} {seconds:>8.1}");
    }
    println!("all {} steps passed in {:.1} s", took.len(), total.elapsed().as_secs_f64());
    Ok(ExitCode::SUCCESS)
}

/// The names after each `--only`.
fn only(args: &[String]) -> Result<Vec<&str>> {
    let mut only = Vec::new();
    let mut args = args.iter();
    while let Some(flag) = args.next() {
        let name = match (flag.as_str(), args.next()) {
            ("--only", Some(name)) => name.as_str(),
            _ => bail!("expected `--only <step>`, found `{flag}`"),
        };
        if !STEPS.iter().any(|step| step.name == name) {
            bail!("no step is named `{name}`, there are {}", STEPS.map(|step| step.name).join(", "));
        }
        only.push(name);
    }
    Ok(only)
}

/// Runs cargo.
pub(crate) fn cargo_step(args: &[&str]) -> Result<()> {
    run_step(cargo::command().args(args))
}

/// What is written for people, as far as it can be read: pages, and the reference. Their snippets are a step of their own.
fn doc() -> Result<()> {
    docs::pages()?;
    docs::reference()
}

/// Runs a command that cargo made.
pub(crate) fn run_step(command: &mut Command) -> Result<()> {
    let status = command.status().context("cargo could not be started")?;
    if !status.success() {
        let args: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy()).collect();
        bail!("`cargo {}` ended with {status}", args.join(" "));
    }
    Ok(())
}

fn ensure_nextest() -> Result<()> {
    let probe = cargo::command().args(["nextest", "--version"]).output();
    if probe.is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    println!("cargo-nextest is missing and gets installed now");
    cargo_step(&["install", "cargo-nextest", "--locked"])
}

/// Unit tests, and the conformance suite on memory and SQLite.
fn unit() -> Result<()> {
    ensure_nextest()?;
    // One cargo invocation over the whole workspace: `-p` would select other features and build everything twice.
    let of = ["--workspace", "--lib", "--bins", "--test", "memory", "--test", "conformance"];
    cargo_step(&[&["nextest", "run"], &of[..]].concat())
}

/// All tests, on one PostgreSQL for the whole run: the caller's own if there is one, or a temporary one.
fn nextest() -> Result<()> {
    ensure_nextest()?;
    debian::ensure_strace()?;
    let run = ["nextest", "run", "--workspace"];
    if std::env::var_os(postgres::VARIABLE).is_some() {
        return cargo_step(&run);
    }
    let server = postgres::Server::start()?;
    run_step(cargo::command().args(run).env(postgres::VARIABLE, &server.address))
}

/// Bugs that are planted, and must be found: a build of its own, so that they are in no other. Clippy sees it here, as it
/// never does otherwise.
fn planted() -> Result<()> {
    let of = ["-p", "mainspring-testkit", "--features", "planted", "--test", "planted"];
    cargo_step(&[&["clippy"], &of[..], &["--", "-D", "warnings"]].concat())?;
    ensure_nextest()?;
    cargo_step(&[&["nextest", "run"], &of[..]].concat())
}

/// What is concurrent, under the interleavings of shuttle. A build of its own, because its locks work nowhere else; of all
/// tests only those that are made for it run. Clippy sees this build here, as it never does otherwise.
fn interleavings() -> Result<()> {
    let of = ["-p", "mainspring", "-p", "mainspring-sqlite", "--features", "shuttle"];
    cargo_step(&[&["clippy", "--lib", "--profile", "test"], &of[..], &["--", "-D", "warnings"]].concat())?;
    ensure_nextest()?;
    cargo_step(&[&["nextest", "run", "--lib"], &of[..], &["-E", "test(/(^|::)interleavings::/)"]].concat())
}

struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "a person wants to see how long a step took")]
    fn start() -> Self {
        Self(Instant::now())
    }

    #[expect(clippy::disallowed_methods, reason = "a person wants to see how long a step took")]
    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::only;

    fn args(args: &[&str]) -> Vec<String> {
        args.iter().map(|&arg| arg.to_owned()).collect()
    }

    #[test]
    fn no_filter_means_every_step() {
        assert!(only(&[]).expect("valid").is_empty());
    }

    #[test]
    fn filters_add_up() {
        assert_eq!(only(&args(&["--only", "clippy", "--only", "doc"])).expect("valid"), ["clippy", "doc"]);
    }

    #[test]
    fn unknown_step_lists_the_known_ones() {
        let error = only(&args(&["--only", "lint"])).expect_err("no such step").to_string();
        assert_eq!(
            error,
            "no step is named `lint`, there are fmt, tidy, clippy, doc, nextest, planted, interleavings, doctest"
        );
        assert!(only(&args(&["clippy"])).is_err());
        assert!(only(&args(&["--only"])).is_err());
    }
}
