//! What went wrong: `error:` with its causes, a `hint:`, and an exit code.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use mainspring::error::OpenProblem;
use mainspring::{Error, JobId, State, bounds};
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

/// What is let through if `RUST_LOG` says nothing: warnings, and that an outage is over.
const REPORTS: &str = "warn,mainspring::outage=info";

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

/// What a person can do about an error of the engine.
fn judge_engine(error: &Error) -> (u8, Option<String>) {
    let (code, hint) = match error {
        Error::Conflict { existing } => {
            let hint =
                format!("see it with `mainspring job {existing}`, or use `--on-conflict keep` or `replace`");
            return (FAILED, Some(hint));
        }
        Error::IdTaken { id, .. } => {
            return (FAILED, Some(format!("see it with `mainspring job {id}`, or use another id")));
        }
        Error::Illegal { id, verb: "signal", .. } => {
            return (FAILED, Some(format!("nobody would read it; `mainspring job {id}` shows how it ended")));
        }
        Error::Illegal { id, status, .. } => return (FAILED, Some(illegal(*id, status.state))),
        Error::QueueNotEmpty { queue, .. } => {
            let hint = format!(
                "`mainspring jobs --queue {queue}` lists them, and `mainspring jobs delete --queue {queue}` removes those that do not \
                 run; ended jobs go by themselves when their retention is over"
            );
            return (FAILED, Some(hint));
        }
        Error::Ended { id, .. } => {
            let hint =
                format!("`mainspring job {id}` shows every error; `mainspring job {id} retry` runs it again");
            return (FAILED, Some(hint));
        }
        Error::Open { problem: OpenProblem::Address, location, .. } if is_path(location) => {
            return (USAGE, Some(format!("did you mean `sqlite:{}`?", location.trim_matches('`'))));
        }
        Error::Open { problem, location, .. } => judge_open(problem, location.starts_with("postgres:")),
        Error::NotFound(_) => {
            (NOT_FOUND, "list jobs with `mainspring jobs`; those that ended are removed after a while")
        }
        Error::TooLarge { what: "input", .. } => {
            (USAGE, "store the data elsewhere and enqueue a reference to it")
        }
        Error::TooLarge { what: "signal", .. } => {
            (USAGE, "store the data elsewhere and send a reference to it")
        }
        Error::TooLarge { what: "inbox", .. } => {
            (FAILED, "its handler reads none of them; `mainspring job ID` shows which ones wait")
        }
        Error::TooLarge { .. } | Error::Convert { .. } => (USAGE, "nothing was done; see `--help`"),
        Error::Invalid { what, .. } => (USAGE, invalid(what)),
        Error::Unavailable { source: Some(source), .. } if source.to_string().ends_with(NO_RIGHT) => {
            (FAILED, "grant it to the role; the guide \"Running on Postgres\" has all that an engine needs")
        }
        Error::Unavailable { .. } => {
            (FAILED, "try again; if it persists, see whether the database runs or a program holds the file")
        }
        Error::DiskFull => (FAILED, "make room and try again: nothing that was acknowledged is lost"),
        Error::OutcomeUnknown { .. } => {
            (FAILED, "repeat it: the same `--id` is the same job, the same `--sender` the same signal")
        }
        Error::Corrupt { .. } => (FAILED, "keep a copy of the store, then run `mainspring doctor`"),
        Error::NodeSetup { .. } => (USAGE, "for example `mainspring work --queue default:10`"),
        _ => return (FAILED, None),
    };
    (code, Some(hint.to_owned()))
}

/// What a person can do about a job to which a verb does not apply.
fn illegal(id: JobId, state: State) -> String {
    match state {
        State::Succeeded | State::Skipped => {
            format!("its end is final; `mainspring job {id} fork` runs it again as a new job")
        }
        State::Failed | State::Cancelled => {
            format!("it has ended; `mainspring job {id} retry` runs it again")
        }
        State::Running => format!("it runs; `mainspring job {id} cancel` asks it to stop"),
        _ => format!("`mainspring why {id}` says what it is waiting for"),
    }
}

/// What a person can do about a store that does not open. `postgres`: whether it is on Postgres.
fn judge_open(problem: &OpenProblem, postgres: bool) -> (u8, &'static str) {
    let hint = match problem {
        OpenProblem::Address => return (USAGE, ADDRESS),
        OpenProblem::Missing if postgres => "create the database first, with `createdb` or CREATE DATABASE",
        OpenProblem::Missing => {
            "name it with `--store sqlite:PATH` or `--store postgres://…`; `mainspring migrate` creates the file, not its directory"
        }
        OpenProblem::ReadOnly if postgres => "it is a standby or set to read-only: name the primary",
        OpenProblem::ReadOnly => "its file and its directory must be writable: SQLite keeps a log beside it",
        OpenProblem::Locked => "close the program that holds it, and try again",
        OpenProblem::NotAStore if postgres => "name another schema with `schema=NAME` in the address",
        OpenProblem::NotAStore => {
            "name another file with `--store sqlite:PATH`; `mainspring migrate` makes a store of one that has other tables"
        }
        OpenProblem::TooNew { .. } => "install the version of mainspring that wrote it",
        OpenProblem::DevelopmentBuild { .. } if postgres => {
            "open it with the build that made it, or name another schema with `schema=NAME` in the address"
        }
        OpenProblem::DevelopmentBuild { .. } => {
            "open it with the build that made it, or name another file with `--store sqlite:PATH`"
        }
        OpenProblem::TooOld { found: 0, .. } if postgres => {
            "run `mainspring migrate` with the same `--store`, as the role that is to own the schema; if that was done, \
            check the database and `schema=` of the address"
        }
        OpenProblem::TooOld { .. } => {
            "run `mainspring migrate` with the same `--store`, as the role that owns the schema"
        }
        OpenProblem::Database { .. } => "upgrade the database server",
        OpenProblem::Unreachable => {
            "check host, port or socket directory, and that the server runs: `pg_isready` asks it"
        }
        OpenProblem::Refused => {
            "check user, password, database and the role's rights; the guide \"Running on Postgres\" has the grants"
        }
        OpenProblem::Insecure => {
            "check `sslmode` and `sslrootcert` in the address, and the server's certificate"
        }
        OpenProblem::NotDurable { .. } => {
            "turn it on, or accept the loss by name with `--relaxed-durability`"
        }
        _ => "`mainspring doctor` may know more",
    };
    (NO_STORE, hint)
}

/// Whether what was named as a store looks like a file: its location is shown only if it has no scheme.
fn is_path(location: &str) -> bool {
    let path = location.trim_matches('`');
    !path.contains(':') && (path.contains(['/', '.']) || std::path::Path::new(path).exists())
}

/// How Postgres's complaint about a missing right ends: its SQLSTATE.
const NO_RIGHT: &str = "(42501)";

/// How stores are named.
const ADDRESS: &str = "a store is named `sqlite:PATH`, `postgres://USER@HOST/DATABASE` (or libpq's `key=value` words) or `memory:`";

fn invalid(what: &str) -> &'static str {
    match what {
        "queue name" | "kind" => "names are 1 to 128 of the characters A-Z a-z 0-9 . _ : -",
        "signal name" => "names are 1 to 128 bytes without control characters, `/` and `#`",
        "sender" => "1 to 256 bytes of text; leave it out, and each call is a signal of its own",
        "priority" => "0 is claimed first, 9 last; 5 is the default",
        "run_at" | "deadline" | "delay" => "at most ten years ahead",
        "job id" | "id" => "copy the whole id, as `mainspring jobs` prints it",
        _ => "nothing was done; see `--help`",
    }
}
