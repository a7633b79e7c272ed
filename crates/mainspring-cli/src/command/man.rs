//! `man`: the manual page, made from the same declaration as the parser.

use std::path::PathBuf;

use clap::CommandFactory;
use serde_json::json;

use crate::output::Out;
use crate::report::Refused;

/// What it takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The command that the page is about, such as `jobs`; the page is about all of them if not said.
    command: Option<String>,
    /// Write all pages into this directory instead, one per command: `mainspring.1`, `mainspring-jobs.1`, …
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    dir: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, out: Out) -> anyhow::Result<()> {
    let mut program = crate::args::Args::command();
    program.build();
    if let Some(dir) = &args.dir {
        clap_mangen::generate_to(crate::args::Args::command(), dir).map_err(|error| {
            let message = format!("cannot write to {}: {error}", dir.display());
            Refused::failed(message, "name a directory that exists and can be written to")
        })?;
        let dir = dir.display().to_string();
        out.either(|| json!({ "dir": dir }), || format!("written to {dir}"))?;
        return Ok(());
    }
    let command = match &args.command {
        None => &program,
        Some(name) => {
            program.find_subcommand(name).filter(|command| !command.is_hide_set()).ok_or_else(|| {
                Refused::usage(format!("there is no command `{name}`"), "`mainspring --help` lists them")
            })?
        }
    };
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    let page = String::from_utf8(page)?;
    out.either(|| json!({ "name": command.get_name(), "page": page }), || page.trim_end().to_owned())?;
    Ok(())
}
