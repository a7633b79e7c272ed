//! What went wrong: `error:` with its causes, a `hint:`, and an exit code.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use mainspring::{Error, bounds};
use tracing_subscriber::EnvFilter;

use crate::color::{self, Color};
use crate::text;

/// The command failed.
pub(crate) const FAILED: u8 = 1;
/// The command line or the input is wrong.
pub(crate) const USAGE: u8 = 2;
/// There is no such job.
pub(crate) const NOT_FOUND: u8 = 3;
/// The store cannot be opened.
pub(crate) const NO_STORE: u8 = 4;

/// Something that the command line itself refuses.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Refused {
    code: u8,
    message: String,
    hint: String,
}

impl Refused {
    /// Wrong input: nothing was done.
    pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Refused { code: USAGE, message: message.into(), hint: hint.into() }
    }

    /// Something that could not be done.
    pub(crate) fn failed(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Refused { code: FAILED, message: message.into(), hint: hint.into() }
    }
}

/// What is let through if `RUST_LOG` says nothing: warnings, that an outage is over, and what the children of pools say.
const REPORTS: &str = "warn,mainspring::outage=info,mainspring::child=info";

/// Lets the engine's own reports through to standard error, as far as `RUST_LOG` says.
/// `bare` leaves out what the reader of a child process knows better.
pub(crate) fn log(bare: bool) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(REPORTS));
    let format = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    // A second subscriber in one process is refused, which is of no consequence here.
    if bare {
        drop(format.with_ansi(false).without_time().with_target(false).try_init());
    } else {
        drop(format.with_ansi(color::wanted(io::stderr().is_terminal())).try_init());
    }
}

/// How clap ends its messages.
const MORE: &str = "For more information, try '--help'.";

/// Tells about a command line that was not understood. Help and version come this way too.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // Nobody reading the help is no failure.
        drop(error.print());
        return ExitCode::SUCCESS;
    }
    if let Some(span) = negative(error) {
        tell(&format!(
            "error: `{span}` is negative\nhint: a duration begins with a digit, such as 250ms, 30s or 2h\n"
        ));
        return ExitCode::from(USAGE);
    }
    let text = error.render().to_string();
    let hint = "hint: try `--help` after the command to see what it takes";
    tell(&if text.contains(MORE) { text.replace(MORE, hint) } else { format!("{text}\n{hint}\n") });
    ExitCode::from(USAGE)
}

/// The word of the command line that was taken for an option although it is a negative duration.
fn negative(error: &clap::Error) -> Option<String> {
    let ContextValue::String(option) = error.get(ContextKind::InvalidArg)? else { return None };
    let digit = option.strip_prefix('-')?.starts_with(|c: char| c.is_ascii_digit());
    let unknown = digit && error.kind() == ErrorKind::UnknownArgument;
    unknown.then(|| std::env::args().find(|word| word.starts_with(option.as_str())).unwrap_or(option.clone()))
}

/// Tells about a command that failed.
pub(crate) fn failure(error: &anyhow::Error) -> ExitCode {
    if is_closed_pipe(error) {
        return ExitCode::SUCCESS;
    }
    let mark = |mark: &str, color: Color| {
        if color::wanted(io::stderr().is_terminal()) { color.paint(mark) } else { mark.to_owned() }
    };
    let mut message = format!("{} {}", mark("error:", Color::Red), text::plain(&error.to_string()));
    let mut told = error.to_string();
    for cause in error.chain().skip(1).take(bounds::SOURCES).map(ToString::to_string) {
        // Some errors repeat their cause; once is enough.
        if !told.contains(&cause) {
            message.push_str(&text::plain(&format!("\n  caused by: {cause}")));
        }
        told = cause;
    }
    let (code, hint) = judge(error);
    if let Some(hint) = hint {
        message.push('\n');
        message.push_str(&mark("hint:", Color::Cyan));
        message.push(' ');
        message.push_str(&text::plain(&hint));
    }
    message.push('\n');
    tell(&message);
    ExitCode::from(code)
}

/// Tells that a command has created the store that it was to use: the path may be misspelt.
pub(crate) fn created(location: &str, others: u32) {
    let beside = match others {
        0 => String::new(),
        1 => ", beside another table of the same file".to_owned(),
        others => format!(", beside {others} other tables of the same file"),
    };
    tell(&format!("created a new store at {}{beside}\n", text::plain(location)));
}

/// Prints to standard error; there is nobody to tell if that fails.
fn tell(text: &str) {
    drop(io::stderr().lock().write_all(text.as_bytes()));
}

/// Whether the reader of our output has gone, as `head` does.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let mut causes =
        error.chain().take(bounds::SOURCES).filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

fn judge(error: &anyhow::Error) -> (u8, Option<String>) {
    for cause in error.chain().take(bounds::SOURCES) {
        if let Some(refused) = cause.downcast_ref::<Refused>() {
            return (refused.code, Some(refused.hint.clone()));
        }
        if let Some(error) = cause.downcast_ref::<Error>() {
            return judge_engine(error);
        }
    }
    (FAILED, None)
}

/// The exit code for an error of the engine, and what a person can do about it.
fn judge_engine(error: &Error) -> (u8, Option<String>) {
    let code = match error {
        Error::NotFound(_) | Error::NoSchedule(_) => NOT_FOUND,
        error if error.is_bad_input() => USAGE,
        Error::Open { .. } => NO_STORE,
        _ => FAILED,
    };
    let here = match error {
        Error::Conflict { existing } => {
            Some(format!("see it with `mainspring job {existing}`, or use `--on-conflict keep` or `replace`"))
        }
        Error::NodeSetup { .. } => Some("for example `mainspring work --queue default:10`".to_owned()),
        _ => error.hint(),
    };
    let usage = || (code == USAGE).then(|| "nothing was done; see `--help`".to_owned());
    (code, here.or_else(usage))
}
