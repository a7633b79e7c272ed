//! `cargo xtask mutants`: is every line of the core needed by some test?
//!
//! cargo-mutants changes the core in one place at a time, and runs the tests that judge it, the quick ones first: its own,
//! then, for what those do not notice, those of `mainspring-conformance` without the slow ones, then all of these. A change that no
//! test notices survives. Survivors are compared with the list in `crates/mainspring-core/mutants.txt`, where each has its
//! justification: one that is not listed needs a test, and one that is listed and now caught leaves the list.
//!
//! # Invariants
//! - A mutant is named by its file and what was done to it, without the line: edits elsewhere do not touch the list.
//! - The tests pass on the core as it is before any change to it is judged.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use crate::cargo;

const LIST: &str = "crates/mainspring-core/mutants.txt";
/// The form of its output is known of this version.
const VERSION: &str = "^27";
const JUDGES: [&str; 2] = ["mainspring-core", "mainspring-conformance"];
/// Seams for tests alone, which are nothing in a build without them.
const NOT_JUDGED: [&str; 3] = [
    "crates/mainspring-core/src/fault.rs",
    "crates/mainspring-core/src/planted.rs",
    "crates/mainspring-core/src/memory/planted.rs",
];
/// Mutants that cannot compile: a pinned box is not made of its contents.
const NOT_MADE: &str = "with Pending::";
/// Who judges a mutant, in turn, each only what those before did not notice: a package, the random cases of each of its
/// properties, the seconds after which a test run is given up (many times what it takes), and whether slow tests are left
/// out. The third takes ten times as long as the second.
const TURNS: [(&str, &str, &str, bool); 3] =
    [(JUDGES[0], "200", "20", false), (JUDGES[1], "20", "30", true), (JUDGES[1], "200", "100", false)];
/// Tests that take longer than all others together, or would wait for long before they fail.
const SLOW: [&str; 5] = [
    "handles::",
    "journal::value_of_the_largest_size_survives",
    "list::rare_job_is_found_behind_many_others",
    "model_is_sound",
    "signal::unread_signals_are_bounded",
];
/// Mutants that are judged at once: much of the work of one is a chain.
const JOBS: &str = "2";

/// How often each mutant occurs; several changes to one function may bear one name.
type Tally = BTreeMap<String, usize>;

/// Changes the core, or the part of it that is named.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    let passed = parse(args)?;
    let listed = listed(&fs::read_to_string(cargo::root().join(LIST)).context(LIST)?)?;
    let tool = tool()?;
    baseline()?;
    let home = cargo::target().join("mutants");
    fs::create_dir_all(&home)?;
    drop(fs::remove_dir_all(home.join("mutants.out")));
    let out = |which: &str| home.join(format!("mutants.out/{which}.txt"));
    let read = |which| fs::read_to_string(out(which)).unwrap_or_default();
    let [mut caught, mut timeout, mut unviable, mut missed] = [const { String::new() }; 4];
    for (turn, (judge, cases, seconds, quick)) in TURNS.iter().enumerate() {
        let mut command = Command::new(&tool);
        command.current_dir(cargo::root()).arg("mutants").args(["--package", "mainspring-core"]);
        command.args(["--test-package", judge, "--cargo-arg=--tests", "--jobs", JOBS]);
        command.args(["--baseline", "skip", "--timeout", seconds]).arg("--output").arg(&home);
        if turn > 0 {
            command.arg("--iterate");
        }
        for file in NOT_JUDGED {
            command.args(["--exclude", file]);
        }
        command.args(["--exclude-re", NOT_MADE]);
        // Each copy of the tree is built beside itself, so that what was built for one mutant serves the next, whatever the
        // environment says. Without debug information a build takes two thirds of the time; fewer random cases find nearly
        // the same; and nobody reads the shortest life that shows a mutant.
        command.args(&passed).env_remove("CARGO_TARGET_DIR");
        command.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_INCREMENTAL", "1");
        command.env("PROPTEST_CASES", cases).env("PROPTEST_MAX_SHRINK_ITERS", "0");
        if *quick {
            command.args(["--", "--"]).args(SLOW.iter().flat_map(|test| ["--skip", *test]));
        }
        let status = command.status().context("cargo-mutants could not be started")?;
        // 2: some were missed; 3: some ran into the time limit.
        if !matches!(status.code(), Some(0 | 2 | 3)) {
            bail!("cargo-mutants ended with {status}");
        }
        // What ran into the time limit was noticed; the next turn would wait for it once more.
        fs::write(out("caught"), read("caught") + &read("timeout"))?;
        timeout += &read("timeout");
        caught += &read("caught");
        unviable += &read("unviable");
        missed = read("missed");
        if missed.is_empty() {
            break;
        }
    }
    let count = |text: &str| text.lines().count();
    println!(
        "{} caught, {} ran into the time limit, {} do not compile, {} survived",
        count(&caught) - count(&timeout),
        count(&timeout),
        count(&unviable),
        count(&missed)
    );
    let sharded = passed.iter().any(|arg| arg == "--shard" || arg == "--re");
    let faults = faults(&listed, &tally(&missed), &tally(&caught), sharded);
    for fault in &faults {
        println!("{fault}");
    }
    Ok(if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What is passed on: `--shard k/n`, and any number of `--file F` and `--re R`.
fn parse(args: &[String]) -> Result<Vec<String>> {
    for pair in args.chunks(2) {
        match pair {
            [flag, _] if ["--shard", "--file", "--re"].contains(&flag.as_str()) => {}
            _ => bail!(
                "expected `--shard <k>/<n>`, `--file <glob>` or `--re <regex>`, found `{}`",
                pair.join(" ")
            ),
        }
    }
    Ok(args.to_vec())
}

/// Where cargo-mutants is; it is installed if it is missing.
fn tool() -> Result<PathBuf> {
    let home = cargo::target().join("tools");
    let tool = home.join("bin/cargo-mutants");
    if !tool.exists() {
        println!("cargo-mutants is missing and gets installed into {}", home.display());
        let mut install = cargo::command();
        install.args(["install", "cargo-mutants", "--locked", "--version", VERSION, "--root"]).arg(&home);
        if !install.status()?.success() {
            bail!("cargo-mutants cannot be installed");
        }
    }
    Ok(tool)
}

/// The tests pass without any change: otherwise each would seem to be caught.
fn baseline() -> Result<()> {
    let mut command = cargo::command();
    command.args(["test", "--quiet", "--tests"]);
    command.args(JUDGES.iter().flat_map(|package| ["--package", *package]));
    if !command.status()?.success() {
        bail!("the tests fail on the core as it is");
    }
    Ok(())
}

/// The list: a mutant and, after ` -- `, why no test can or need tell it from the core.
fn listed(text: &str) -> Result<Tally> {
    let mut tally = Tally::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.split_once(" -- ") {
            Some((mutant, why)) if !why.trim().is_empty() => {
                *tally.entry(mutant.trim().to_owned()).or_default() += 1;
            }
            _ => bail!("{LIST}: `{line}` has no justification after ` -- `"),
        }
    }
    Ok(tally)
}

/// Mutants as cargo-mutants names them, without line and column.
fn tally(text: &str) -> Tally {
    let mut tally = Tally::new();
    for line in text.lines() {
        *tally.entry(name(line)).or_default() += 1;
    }
    tally
}

/// `crates/mainspring-core/src/id.rs:82:51: replace * with + in mint` becomes `id.rs: replace * with + in mint`.
fn name(line: &str) -> String {
    let line = line.strip_prefix("crates/mainspring-core/src/").unwrap_or(line);
    match (line.split_once(':'), line.split_once(": ")) {
        (Some((file, _)), Some((_, what))) => format!("{file}: {what}"),
        _ => line.to_owned(),
    }
}

/// Survivors that are not listed, and listed ones that are caught. Of a shard the latter are not told: others of the same
/// name may be in another.
fn faults(listed: &Tally, missed: &Tally, caught: &Tally, sharded: bool) -> Vec<String> {
    let count = |tally: &Tally, mutant: &str| tally.get(mutant).copied().unwrap_or(0);
    let new = missed.iter().filter(|(mutant, times)| **times > count(listed, mutant));
    let mut faults: Vec<String> =
        new.map(|(mutant, _)| format!("survived, and is not listed: {mutant}")).collect();
    if !sharded {
        let stale = listed
            .iter()
            .filter(|(mutant, times)| **times > count(missed, mutant) && caught.contains_key(*mutant));
        faults.extend(stale.map(|(mutant, _)| format!("is caught; strike it from {LIST}: {mutant}")));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "crates/mainspring-core/src/id.rs:82:51: replace * with + in mint\n\
        crates/mainspring-core/src/id.rs:83:51: replace * with + in mint\n";

    #[test]
    fn mutants_are_named_without_their_line() {
        assert_eq!(tally(RUN), Tally::from([("id.rs: replace * with + in mint".to_owned(), 2)]));
    }

    #[test]
    fn every_listed_survivor_is_justified() {
        assert_eq!(
            listed("# why\n\na.rs: x -- no need\na.rs: x -- nor here\n").expect("a list")["a.rs: x"],
            2
        );
        assert!(listed("a.rs: x\n").is_err());
        assert!(listed("a.rs: x -- \n").is_err());
    }

    #[test]
    fn list_and_run_must_agree() {
        let (one, none) = (tally(RUN), Tally::new());
        assert_eq!(faults(&none, &one, &none, false).len(), 1);
        assert!(faults(&one, &one, &none, false).is_empty());
        assert_eq!(faults(&one, &none, &one, false).len(), 1);
        assert!(faults(&one, &none, &one, true).is_empty(), "another shard may have missed it");
        assert!(faults(&one, &none, &none, false).is_empty(), "not part of this run");
    }

    #[test]
    fn committed_list_is_well_formed() {
        let text = fs::read_to_string(cargo::root().join(LIST)).expect("the list");
        assert!(listed(&text).is_ok());
    }

    #[test]
    fn only_parts_can_be_asked_for() {
        let args = |args: &[&str]| args.iter().map(|&arg| arg.to_owned()).collect::<Vec<_>>();
        assert!(parse(&args(&["--shard", "1/4", "--file", "time.rs"])).is_ok());
        assert!(parse(&args(&["--shard"])).is_err());
        assert!(parse(&args(&["--jobs", "4"])).is_err());
    }
}
