//! `exec`: run a command.
//!
//! The command runs under a [`guard`](super::guard), which ends it and everything that it started when the job is
//! cancelled or times out, when the worker drains no longer, and when the worker dies.
//!
//! # Invariants
//! - Dropping the handler closes the pipe to the guard, and that ends the command.
//! - A cancelled or timed-out handler returns only when the command's processes are gone.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use mainspring::time::Span;
use mainspring::{Context, Failure, Job, cancel, discard};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::guard::{COMMAND, GRACE, GuardMessage, Report, Spec};

/// A command to run.
#[derive(Debug, Serialize, Deserialize, Job)]
#[job(kind = "exec", result = Done)]
#[serde(deny_unknown_fields)]
pub(crate) struct Exec {
    /// The program and its arguments. No shell is involved unless it is the program.
    argv: Vec<String>,
    /// Variables, besides those of the worker.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Where it runs; where the worker runs if not said.
    #[serde(default)]
    cwd: Option<String>,
    /// How long it may take.
    #[serde(default)]
    timeout: Option<Span>,
    /// What it reads on its standard input.
    #[serde(default)]
    stdin: Option<String>,
}

/// What is kept of a command that succeeded.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Done {
    status: Option<i32>,
    signal: Option<i32>,
    stdout: String,
    stderr: String,
    truncated: bool,
}

/// Bytes of standard error in the message of a failure: the rest of the message must fit its bound too.
const STDERR_SHOWN: usize = 8 << 10;
/// How long the guard may take to answer after it was told to end the command: its own grace and a little more.
const PATIENCE: Duration = Duration::from_secs(GRACE.as_secs() + 1);

pub(crate) async fn exec(ctx: Context, job: Exec) -> mainspring::HandlerResult<Done> {
    if job.argv.first().is_none_or(String::is_empty) {
        return Err(discard("argv names no program").into());
    }
    let clock = ctx.engine().seams().clock.clone();
    let timeout = job.timeout;
    let program = job.argv[0].clone();
    let mut guard = Guard::start(job).await?;
    let time_out = async {
        match timeout {
            Some(span) => clock.sleep(span.0).await,
            None => std::future::pending().await,
        }
    };
    let stopped = tokio::select! {
        biased;
        report = guard.report() => return judge(&program, report?),
        () = ctx.cancelled() => Failure::from(cancel("the command was stopped")),
        () = time_out => {
            let span = timeout.map(|span| span.to_string()).unwrap_or_default();
            Failure::from(format!("`{program}` timed out after {span}"))
        }
    };
    guard.stop();
    tokio::select! {
        biased;
        _ = guard.report() => {}
        () = clock.sleep(PATIENCE) => guard.kill(),
    }
    Err(stopped)
}

/// Success is status 0; anything else is a failure that tells what the command said last.
fn judge(program: &str, report: Report) -> mainspring::HandlerResult<Done> {
    if report.status == Some(0) {
        let Report { status, signal, stdout, stderr, truncated } = report;
        return Ok(Done { status, signal, stdout, stderr, truncated });
    }
    let how = match (report.status, report.signal) {
        (Some(status), _) => format!("exited with status {status}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended in an unknown way".to_owned(),
    };
    let stderr = report.stderr.trim();
    let start = stderr.ceil_char_boundary(stderr.len().saturating_sub(STDERR_SHOWN));
    let separator = if stderr.is_empty() { "" } else { ": " };
    Err(format!("`{program}` {how}{separator}{}", &stderr[start..]).into())
}

/// A guard that runs, from the worker's side.
struct Guard {
    /// Kept so that the guard is reaped.
    _process: Child,
    /// Closing it ends the command.
    pipe: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// What has come of a line: kept here, because waiting for the rest may be given up and taken up again.
    line: Vec<u8>,
    /// The command's process group, while it may have members.
    group: Option<Pid>,
}

impl Guard {
    async fn start(job: Exec) -> mainspring::HandlerResult<Guard> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg(COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // Ctrl-C on the worker's terminal is for the worker, which then decides.
            .process_group(0)
            .spawn()?;
        let mut pipe = process.stdin.take().ok_or("the guard has no standard input")?;
        let answers = BufReader::new(process.stdout.take().ok_or("the guard has no standard output")?);
        let spec = Spec { argv: job.argv, env: job.env, cwd: job.cwd, stdin: job.stdin };
        let mut line = serde_json::to_vec(&spec)?;
        line.push(b'\n');
        pipe.write_all(&line).await?;
        Ok(Guard { _process: process, pipe: Some(pipe), answers, line: Vec::new(), group: None })
    }

    /// Waits until the command has ended.
    async fn report(&mut self) -> mainspring::HandlerResult<Report> {
        loop {
            if self.answers.read_until(b'\n', &mut self.line).await? == 0 {
                // Somebody killed the guard: what it guarded is ours to end.
                self.kill();
                return Err("the guard of the command was killed".into());
            }
            match serde_json::from_slice(&std::mem::take(&mut self.line))? {
                GuardMessage::Started(pid) => self.group = Pid::from_raw(pid),
                GuardMessage::Unstartable(why) => return Err(why.into()),
                GuardMessage::Ended(report) => {
                    self.group = None;
                    return Ok(report);
                }
            }
        }
    }

    /// Tells the guard to end the command.
    fn stop(&mut self) {
        self.pipe = None;
    }

    /// Ends the command without the guard's help.
    fn kill(&mut self) {
        if let Some(group) = self.group.take() {
            // Fails only if there is nobody left.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}
