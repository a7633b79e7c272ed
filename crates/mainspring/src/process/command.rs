//! A command that runs once, inside a handler.

use std::collections::BTreeMap;
use std::time::Duration;

use mainspring_core::failure::{Failure, cancel, discard};
use mainspring_core::time::Span;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;

use super::guard::{Ended, Spec};
use super::guarded::{Guarded, Pipes};
use super::tail::Tail;
use crate::context::Context;

/// How long a group may take to end after SIGTERM before it gets SIGKILL.
const GRACE: Duration = Duration::from_secs(2);
/// How long the guard may take to answer after it was told to end the command: its own grace and a little more.
const PATIENCE: Duration = Duration::from_secs(GRACE.as_secs() + 1);
/// How long to wait for the rest of the output once the group is gone: on some systems, a process that left it may hold it open.
const LEFTOVER: Duration = Duration::from_millis(200);
/// Bytes of standard output and standard error that are kept, each.
const KEPT: usize = 64 << 10;
/// Bytes of standard error in the message of a failure: the rest of the message must fit its bound too.
const STDERR_SHOWN: usize = 8 << 10;

/// A command that ends with the handler that runs it.
///
/// When the job is cancelled or times out, when the node drains no longer, and when this process dies, the command and all that it
/// started end: first SIGTERM, after two seconds SIGKILL.
///
/// ```no_run
/// # use mainspring::Context;
/// async fn thumbnail(ctx: Context, path: String) -> mainspring::HandlerResult<()> {
///     let command = mainspring::process::Command::new(["convert", &path, "-resize", "200x", "small.png"]);
///     command.run(&ctx).await?.succeeded()?;
///     Ok(())
/// }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a command does nothing until it is run"]
pub struct Command {
    spec: Spec,
    stdin: Option<String>,
    timeout: Option<Duration>,
}

/// How a command ended, and the last 64 KiB of each of its streams.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Output {
    /// The exit status; `None` if a signal ended it.
    pub status: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Whether the beginning of a stream is missing.
    pub truncated: bool,
    #[serde(skip)]
    program: String,
}

impl Command {
    /// A program and its arguments. No shell is involved unless it is the program.
    pub fn new(argv: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let argv = argv.into_iter().map(Into::into).collect();
        let grace_ms = u64::try_from(GRACE.as_millis()).unwrap_or(0);
        Command { spec: Spec { argv, grace_ms, env: BTreeMap::new(), cwd: None }, stdin: None, timeout: None }
    }

    /// Sets a variable, besides those of this process.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.spec.env.insert(name.into(), value.into());
        self
    }

    /// Sets where it runs. Default: where this process runs.
    pub fn cwd(mut self, directory: impl Into<String>) -> Self {
        self.spec.cwd = Some(directory.into());
        self
    }

    /// Sets what it reads on its standard input. Default: nothing.
    pub fn stdin(mut self, text: impl Into<String>) -> Self {
        self.stdin = Some(text.into());
        self
    }

    /// Sets how long it may take. Default: as long as the job's attempt.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Runs it to its end, whatever its status is. When it is cancelled or times out, it has ended when this returns.
    ///
    /// # Errors
    /// It could not be started, was stopped because the job was cancelled, or timed out.
    pub async fn run(self, ctx: &Context) -> crate::HandlerResult<Output> {
        let program = match self.spec.argv.first() {
            Some(program) if !program.is_empty() => program.clone(),
            _ => return Err(discard("argv names no program").into()),
        };
        let clock = ctx.engine().seams().clock.clone();
        let (mut guarded, pipes) = Guarded::start(&self.spec).await?;
        let time_out = async {
            match self.timeout {
                Some(timeout) => clock.sleep(timeout).await,
                None => std::future::pending().await,
            }
        };
        let (mut stdout, mut stderr) = (Tail::new(KEPT), Tail::new(KEPT));
        let mut streams = Box::pin(pass(pipes, self.stdin, &mut stdout, &mut stderr));
        let mut read = false;
        let ended = {
            let run = async {
                let mut ended = std::pin::pin!(guarded.ended());
                loop {
                    tokio::select! {
                        biased;
                        () = &mut streams, if !read => read = true,
                        ended = &mut ended => return ended,
                    }
                }
            };
            tokio::select! {
                biased;
                ended = run => ended.map_err(|why| Failure::from(format!("`{program}` {why}"))),
                () = ctx.cancelled() => Err(Failure::from(cancel("the command was stopped"))),
                () = time_out => {
                    let span = self.timeout.map(|timeout| Span(timeout).to_string()).unwrap_or_default();
                    Err(Failure::from(format!("`{program}` timed out after {span}")))
                }
            }
        };
        let Ended { status, signal } = match ended {
            Ok(ended) => ended,
            Err(stopped) => {
                guarded.stop();
                tokio::select! {
                    biased;
                    _ = guarded.ended() => {}
                    () = clock.sleep(PATIENCE) => guarded.kill(),
                }
                return Err(stopped);
            }
        };
        if !read {
            tokio::select! {
                biased;
                () = &mut streams => {}
                () = clock.sleep(LEFTOVER) => {}
            }
        }
        drop(streams);
        let (stdout, cut_out) = stdout.take();
        let (stderr, cut_err) = stderr.take();
        Ok(Output { status, signal, stdout, stderr, truncated: cut_out || cut_err, program })
    }
}

/// Writes the standard input and reads the other two to their end.
async fn pass(pipes: Pipes, input: Option<String>, stdout: &mut Tail, stderr: &mut Tail) {
    let Pipes { mut stdin, stdout: out, stderr: err } = pipes;
    let write = async move {
        if let Some(input) = input {
            // A command that does not read its input is none of our business.
            drop(stdin.write_all(input.as_bytes()).await);
        }
    };
    tokio::join!(write, stdout.read(out), stderr.read(err));
}

impl Output {
    /// Returns it if the status is 0.
    ///
    /// # Errors
    /// A failure with the status or signal, and the end of standard error.
    pub fn succeeded(self) -> crate::HandlerResult<Output> {
        if self.status == Some(0) {
            return Ok(self);
        }
        let how = Ended { status: self.status, signal: self.signal };
        Err(format!("`{}` {how}{}", self.program, last_words(&self.stderr)).into())
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.status, self.signal) {
            (Some(status), _) => write!(f, "exited with status {status}"),
            (None, Some(signal)) => write!(f, "was killed by signal {signal}"),
            (None, None) => f.write_str("ended in an unknown way"),
        }
    }
}

/// The end of standard error, to stand behind a message.
pub(super) fn last_words(stderr: &str) -> String {
    let stderr = stderr.trim();
    let start = stderr.ceil_char_boundary(stderr.len().saturating_sub(STDERR_SHOWN));
    let separator = if stderr.is_empty() { "" } else { ": " };
    format!("{separator}{}", &stderr[start..])
}
