//! The rigs that are programs of their own: they are built as quick as a release, with failure points.

use std::process::ExitCode;

use anyhow::Result;

use crate::cargo;

/// Builds and runs a program of the testkit, and passes its exit code through.
pub(crate) fn run(program: &str, args: &[String]) -> Result<ExitCode> {
    let mut command = cargo::command();
    command.args([
        "run",
        "--profile",
        "sim",
        "--quiet",
        "--package",
        "mainspring-testkit",
        "--bin",
        program,
        "--",
    ]);
    let status = command.args(args).status()?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
