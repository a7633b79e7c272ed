//! Other systems as programs of their own: building them, asking them, and not waiting for ever.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

/// The folder of a program below `bench/peers`.
fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(name)
}

/// The version of a crate that the program in a folder is built with.
pub(crate) fn version(name: &str, package: &str) -> Result<String> {
    let lock = std::fs::read_to_string(folder(name).join("Cargo.lock"))?;
    let found = lock
        .split_once(&format!("name = \"{package}\"\nversion = \""))
        .and_then(|(_, rest)| rest.split_once('"'))
        .map(|(version, _)| version.to_owned());
    found.context("no version in the lock file")
}

/// Builds a program with one of its features, or says that it does not build.
pub(crate) fn build(name: &str, features: &[&str]) -> Result<Result<PathBuf, String>> {
    let bench = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = bench.parent().context("the benchmark is a directory of the root")?;
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
    let target = target.join("peers");
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .args(["build", "--release", "--locked", "--quiet", "--manifest-path"])
        .arg(folder(name).join("Cargo.toml"))
        .args(features.iter().flat_map(|feature| ["--features", feature]))
        .env("CARGO_TARGET_DIR", &target)
        // SQLite is built as it is for ours, wherever this is called from.
        .current_dir(root)
        // Figures are read from there.
        .stdout(Stdio::null());
    // What `cargo run` says about this package is not about theirs.
    for (key, _) in std::env::vars_os() {
        let name = key.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&key);
        }
    }
    let built = command.status()?.success();
    Ok(if built {
        Ok(target.join("release").join(format!("peer-{name}")))
    } else {
        Err("does not build".to_owned())
    })
}

/// What a program says.
#[derive(Deserialize)]
pub(crate) struct Figure {
    pub(crate) metric: String,
    pub(crate) value: f64,
    pub(crate) unit: String,
}

/// Runs a program and reads its figures.
pub(crate) async fn ask(program: &Path, args: &[String], limit: Duration) -> Result<Vec<Figure>> {
    // Files, because nobody reads while it runs, and a pipe would fill up.
    let (mut out, mut err) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(err.try_clone()?)
        .spawn()?;
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if began.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            bail!("did not end within {} s", limit.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    if !status.success() {
        let text = text(&mut err)?;
        bail!(
            "failed: {}",
            text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("without a word")
        );
    }
    // Some write a log to the same place.
    Ok(text(&mut out)?.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

fn text(file: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
