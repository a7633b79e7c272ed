//! `cargo xtask fuzz`: the fuzz targets under libFuzzer, led by coverage.
//!
//! The targets are functions of the workspace, and every test run already gives them their corpora and some thousand
//! random inputs; this command is for hours. It builds `fuzz/`, which is no member of the workspace, with the
//! instrumentation that LLVM has on any toolchain, a stable one too, so neither a nightly compiler nor cargo-fuzz is
//! needed. What the fuzzer learns stays in the target directory and is gone on from the next time.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use crate::cargo;

/// Seconds per target if nobody says otherwise.
const SECONDS: u64 = 60;

/// What libFuzzer reads: a counter and an address per edge, and the operands of comparisons.
const INSTRUMENTED: [&str; 6] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

/// Runs one target, or all of them one after another.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    let (named, seconds) = parse(args)?;
    let all = targets()?;
    let chosen = match named {
        None => all,
        Some(name) if all.iter().any(|target| target == name) => vec![name.to_owned()],
        Some(name) => bail!("no target is named `{name}`, there are {}", all.join(", ")),
    };
    let home = cargo::target().join("fuzz");
    let program = build(&home)?;
    let mut failed = Vec::new();
    for target in chosen {
        if !one(&program, &home, &target, seconds)? {
            failed.push(target);
        }
    }
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    println!("a property does not hold in {}", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

/// The name of a target, if there is one, and the seconds for each.
fn parse(args: &[String]) -> Result<(Option<&str>, u64)> {
    let (mut target, mut seconds) = (None, SECONDS);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--seconds" {
            let value = args.next().context("expected a number after `--seconds`")?;
            seconds = value.parse().with_context(|| format!("`{value}` are no seconds"))?;
        } else if arg.starts_with('-') || target.is_some() {
            bail!("expected `[target] [--seconds <n>]`, found `{arg}`");
        } else {
            target = Some(arg.as_str());
        }
    }
    Ok((target, seconds))
}

/// Each target has a corpus, which is named like it.
fn targets() -> Result<Vec<String>> {
    let folder = cargo::root().join("fuzz/corpus");
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).context("fuzz/corpus cannot be read")? {
        let path = entry?.path();
        names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
    }
    names.sort();
    Ok(names)
}

/// Builds the program and tells where it is.
fn build(home: &Path) -> Result<PathBuf> {
    let version = Command::new("rustc").arg("-vV").output().context("rustc could not be started")?;
    let version = String::from_utf8(version.stdout)?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc names no host")?;
    // A target is named so that build scripts and macros are not instrumented: they are not linked with the fuzzer.
    let status = cargo::command()
        .args(["build", "--release", "--locked", "--manifest-path", "fuzz/Cargo.toml", "--target", host])
        .env("CARGO_TARGET_DIR", home)
        .env("RUSTFLAGS", INSTRUMENTED.join(" "))
        .status()?;
    if !status.success() {
        bail!("the fuzz targets cannot be built");
    }
    Ok(home.join(host).join("release/fuzz"))
}

/// Fuzzes one target; whether everything held.
fn one(program: &Path, home: &Path, target: &str, seconds: u64) -> Result<bool> {
    let [corpus, found] = ["corpus", "found"].map(|folder| home.join(folder).join(target));
    fs::create_dir_all(&corpus)?;
    // What an earlier run found is in the committed corpus by now, or was not worth it; there may be nothing.
    let _absent = fs::remove_dir_all(&found);
    fs::create_dir_all(&found)?;
    let log = home.join(format!("{target}.log"));
    println!("{target}: {seconds} s, {}", log.display());
    let status = Command::new(program)
        .env("FUZZ_TARGET", target)
        .env("FUZZ_SEEDS", &corpus)
        .arg(format!("-max_total_time={seconds}"))
        // An input that takes longer than this is a loop, whatever the machine.
        .args(["-timeout=10", "-print_final_stats=1"])
        .arg(format!("-artifact_prefix={}/", found.display()))
        .arg(&corpus)
        .stderr(File::create(&log)?)
        .status()
        .context("the fuzzer could not be started")?;
    let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    if status.success() {
        println!("{target}: {} executions, every property held", executions(&text).unwrap_or("?"));
        return Ok(true);
    }
    let said = text.lines().filter(|line| line.contains("panicked at") || line.starts_with("==")).take(2);
    println!("{target}: {}", said.collect::<Vec<_>>().join("; "));
    for entry in fs::read_dir(&found)? {
        println!("add this line to fuzz/corpus/{target}.txt, and why it is there:");
        println!("{}", written(&fs::read(entry?.path())?));
    }
    Ok(false)
}

fn executions(log: &str) -> Option<&str> {
    log.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:")).map(str::trim)
}

/// An input as a line of a corpus.
fn written(input: &[u8]) -> String {
    if input.is_empty() { "\\".to_owned() } else { input.escape_ascii().to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(args: &[&str]) -> Vec<String> {
        args.iter().map(|&arg| arg.to_owned()).collect()
    }

    #[test]
    fn target_and_seconds_are_optional() {
        assert_eq!(parse(&[]).expect("all"), (None, SECONDS));
        assert_eq!(parse(&args(&["names"])).expect("one"), (Some("names"), SECONDS));
        assert_eq!(parse(&args(&["--seconds", "5", "names"])).expect("both"), (Some("names"), 5));
        for bad in [&["a", "b"][..], &["--seconds"], &["--seconds", "x"], &["--fast"]] {
            assert!(parse(&args(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn every_corpus_is_a_target() {
        let targets = targets().expect("the corpora");
        assert!(targets.contains(&"names".to_owned()) && targets.is_sorted(), "{targets:?}");
    }

    #[test]
    fn figures_and_inputs_are_told() {
        assert_eq!(executions("a\nstat::number_of_executed_units: 17\n"), Some("17"));
        assert_eq!(executions(""), None);
        assert_eq!((written(b""), written(b"a\n\xff")), ("\\".to_owned(), "a\\n\\xff".to_owned()));
    }
}
