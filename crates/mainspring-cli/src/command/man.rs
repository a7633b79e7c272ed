//! `man`: the manual page, made from the same declaration as the parser.
//!
//! The synopsis is the usage that `--help` prints, with all options in place of `[OPTIONS]`.

use std::path::PathBuf;

use clap::{Arg, ArgAction, Command, CommandFactory};
use serde_json::json;

use crate::output::Out;
use crate::report::Refused;

/// What it takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The command to describe, such as `jobs`; all commands by default.
    command: Option<String>,
    /// Write all pages into this directory instead, one per command: `mainspring.1`, `mainspring-jobs.1`, …
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    dir: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, out: Out) -> anyhow::Result<()> {
    let program = program();
    if let Some(dir) = &args.dir {
        clap_mangen::generate_to(program, dir).map_err(|error| {
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

/// The program with all its commands, each with its synopsis.
fn program() -> Command {
    // A page about `help` of each command says nothing.
    let mut program = crate::args::Args::command().disable_help_subcommand(true);
    program.build();
    with_synopsis(program)
}

/// Writes out a command's synopsis, and those of its own commands. The one that `clap_mangen` makes itself has options without
/// what they take, and `mainspring job retry ID` where the parser wants `mainspring job ID retry`.
fn with_synopsis(mut command: Command) -> Command {
    let options: Vec<String> = command
        .get_arguments()
        .filter(|arg| is_optional(arg))
        .map(|arg| format!("[{}]", form(arg)))
        .collect();
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").replace("[OPTIONS]", &options.join(" "));
    command.mut_subcommands(with_synopsis).override_usage(usage)
}

/// Whether an argument is one of those that the usage sums up as `[OPTIONS]`.
fn is_optional(arg: &Arg) -> bool {
    !arg.is_positional() && !arg.is_hide_set() && !arg.is_required_set()
}

/// An option as it is typed: `-y|--yes`, `--delay <SPAN>`, `--tag <TAG>...`.
fn form(arg: &Arg) -> String {
    let short = match arg.get_short() {
        Some(short) if arg.get_long().is_some() => format!("-{short}|"),
        _ => String::new(),
    };
    let repeated = if matches!(arg.get_action(), ArgAction::Append | ArgAction::Count) { "..." } else { "" };
    format!("{short}{}{repeated}", arg.to_string().trim_end_matches("..."))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The synopsis of a page as a reader sees it.
    fn synopsis(command: &Command) -> String {
        let mut page = Vec::new();
        clap_mangen::Man::new(command.clone()).render_synopsis_section(&mut page).expect("a page");
        String::from_utf8(page).expect("UTF-8").replace("\\-", "-").replace("\\fB", "").replace("\\fR", "")
    }

    fn commands(command: &Command) -> Vec<&Command> {
        command.get_subcommands().flat_map(commands).chain([command]).collect()
    }

    #[test]
    fn a_synopsis_has_every_option_with_what_it_takes() {
        let program = program();
        for command in commands(&program) {
            let synopsis = synopsis(command);
            assert!(!synopsis.contains("OPTIONS"), "{synopsis}");
            for arg in command.get_arguments().filter(|arg| is_optional(arg)) {
                assert!(synopsis.contains(&format!("[{}]", form(arg))), "{arg}: {synopsis}");
            }
            for arg in command.get_positionals() {
                let name = arg.get_value_names().and_then(|names| names.first()).expect("a name");
                assert!(synopsis.contains(name.as_str()), "{name}: {synopsis}");
            }
        }
    }

    #[test]
    fn a_synopsis_is_in_the_order_that_the_parser_takes() {
        let program = program();
        let job = program.find_subcommand("job").expect("a command");
        let retry = synopsis(job.find_subcommand("retry").expect("a verb"));
        assert!(retry.contains("mainspring job <ID> retry [--from <STEP>] [--dry-run] "), "{retry}");
        let enqueue = synopsis(program.find_subcommand("enqueue").expect("a command"));
        assert!(enqueue.contains("[--delay <SPAN>]") && enqueue.contains("[--tag <TAG>...]"), "{enqueue}");
    }
}
