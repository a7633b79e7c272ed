//! `completions`: scripts for shells, made from the same declaration as the parser.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::output::Out;

/// What it takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell.
    shell: Shell,
}

pub(crate) fn run(args: &Args, out: Out) -> anyhow::Result<()> {
    let mut script = Vec::new();
    let mut command = crate::args::Args::command();
    clap_complete::generate(args.shell, &mut command, "mainspring", &mut script);
    let script = String::from_utf8(script)?;
    out.either(
        || serde_json::json!({ "shell": args.shell.to_string(), "script": script }),
        || script.trim_end().to_owned(),
    )?;
    Ok(())
}
