//! One PostgreSQL for all tests of a run.
//!
//! The testkit knows how to find, start and stop a server; its binary is built together with the tests, so this costs
//! no build of its own and xtask needs no dependency for it. What is missing on a Debian machine gets installed.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{cargo, debian};

/// Where tests look for the server of the run.
pub(crate) const VARIABLE: &str = "MAINSPRING_TEST_POSTGRES";

/// The testkit's binary.
const PROGRAM: &str = "mainspring-temp-postgres";

/// Debian's packages with what the tests need.
const PACKAGES: [&str; 3] = ["postgresql", "postgresql-contrib", "pgbouncer"];

/// A server that runs until this is dropped.
pub(crate) struct Server {
    process: Child,
    /// For [`VARIABLE`].
    pub(crate) address: String,
}

impl Server {
    /// Builds all tests, as nextest would do next, and starts the server that is built with them.
    pub(crate) fn start() -> Result<Server> {
        let program = build()?;
        ensure_installed(&program)?;
        let mut process = Command::new(&program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("{} could not be started", program.display()))?;
        let mut address = String::new();
        let output = process.stdout.take().expect("standard output is a pipe");
        BufReader::new(output).read_line(&mut address).context("reading the server's address")?;
        let address = address.trim().to_owned();
        if address.is_empty() {
            bail!("the temporary PostgreSQL did not start: {}", process.wait()?);
        }
        Ok(Server { process, address })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The end of its input is the sign to stop. Were it not to, it would end with this process all the same.
        drop(self.process.stdin.take());
        let _status = self.process.wait();
    }
}

/// Builds the tests of the workspace and returns the path of [`PROGRAM`].
fn build() -> Result<PathBuf> {
    let mut command = cargo::command();
    command.args(["test", "--workspace", "--no-run", "--message-format", "json-render-diagnostics"]);
    let output = command.stderr(Stdio::inherit()).output().context("cargo could not be started")?;
    if !output.status.success() {
        bail!("the tests could not be built: {}", output.status);
    }
    let messages = String::from_utf8(output.stdout).context("cargo's messages are not UTF-8")?;
    executable(&messages).with_context(|| format!("cargo did not build `{PROGRAM}`"))
}

/// The path of [`PROGRAM`] in cargo's messages, one JSON object per line.
fn executable(messages: &str) -> Option<PathBuf> {
    messages.lines().find_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        // The same target is also built as a test of itself.
        let is_it = message["target"]["name"] == PROGRAM && message["profile"]["test"] == false;
        is_it.then(|| message["executable"].as_str().map(PathBuf::from))?
    })
}

/// Installs what the tests need if it is missing and this is a Debian machine on which we may.
fn ensure_installed(program: &Path) -> Result<()> {
    let check = || Command::new(program).arg("--check").output().context("looking for PostgreSQL");
    let missing = check()?;
    if missing.status.success() {
        return Ok(());
    }
    let missing = String::from_utf8_lossy(&missing.stderr).trim().to_owned();
    let packages = PACKAGES.join(" ");
    println!("{missing}");
    debian::install(&PACKAGES)
        .with_context(|| format!("{missing}; `apt-get install {packages}` was tried in vain"))?;
    let missing = check()?;
    if !missing.status.success() {
        bail!("still after the installation: {}", String::from_utf8_lossy(&missing.stderr).trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_is_told_from_the_test_of_itself() {
        let line = |name: &str, test: bool, path: &str| {
            serde_json::json!({
                "reason": "compiler-artifact", "target": { "name": name },
                "profile": { "test": test }, "executable": path,
            })
            .to_string()
        };
        let other = line("other", false, "/other");
        let messages = [other, line(PROGRAM, true, "/test"), line(PROGRAM, false, "/program")].join("\n");
        assert_eq!(executable(&messages), Some(PathBuf::from("/program")));
        assert_eq!(executable("not json\n{}"), None);
    }
}
