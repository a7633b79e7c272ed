//! `cargo xtask tidy`: the project's own rules, those that no compiler or linter knows.
//!
//! A rule is a pure function from a file (or the workspace's packages) to its findings, one module per concern. All
//! rules run on every file that git would commit, and all findings are printed, sorted, before the command fails.

mod dependencies;
mod dependency_list;
mod determinism;
mod facade;
mod file;
mod file_form;
mod packages;
mod publishing;
mod retired_words;
mod sql;
mod statements;
mod unfinished;

use std::fmt;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use crate::cargo;
use file::File;

/// One place that breaks a rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    pub(crate) path: String,
    /// From 1; 0 when the finding is about the whole file.
    pub(crate) line: usize,
    pub(crate) message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.message),
            line => write!(f, "{}:{line}: {}", self.path, self.message),
        }
    }
}

/// The rules that look at one file at a time.
const FILE_RULES: [fn(&File) -> Vec<Finding>; 6] = [
    determinism::check,
    file_form::check,
    retired_words::check,
    unfinished::check,
    sql::check,
    statements::check,
];

/// The command.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    if let Some(argument) = args.first() {
        bail!("tidy takes no arguments, found `{argument}`");
    }
    check()?;
    Ok(ExitCode::SUCCESS)
}

/// Prints every finding; fails if there is one.
pub(crate) fn check() -> Result<()> {
    let paths = paths()?;
    let files: Vec<File> = texts(&paths).iter().map(|(path, text)| File::new(path, text)).collect();
    let packages = packages::read()?;
    let mut findings: Vec<Finding> =
        files.iter().flat_map(|file| FILE_RULES.iter().flat_map(|rule| rule(file))).collect();
    findings.extend(dependencies::check(&packages));
    findings.extend(dependency_list::check(&files, &packages));
    findings.extend(publishing::check(&packages, &paths));
    findings.extend(facade::check(&files));
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        bail!("tidy found {} places to fix", findings.len());
    }
    println!("tidy: {} files and {} packages are in order", files.len(), packages.len());
    Ok(())
}

/// Every file that is committed or would be: what `.gitignore` names is left out.
pub(crate) fn paths() -> Result<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(cargo::root())
        .output()
        .context("git could not be started")?;
    if !output.status.success() {
        bail!("git ls-files failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let names = String::from_utf8(output.stdout).context("a file's name is not UTF-8")?;
    Ok(names.split('\0').filter(|path| !path.is_empty()).map(ToOwned::to_owned).collect())
}

/// The texts among them. A file can be deleted but not yet committed as such, or be a picture: neither has lines to look at.
pub(crate) fn texts(paths: &[String]) -> Vec<(&str, String)> {
    let root = cargo::root();
    let text = |path: &String| std::fs::read_to_string(root.join(path)).ok();
    paths.iter().filter_map(|path| Some((path.as_str(), text(path)?))).collect()
}
