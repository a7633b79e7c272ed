//! The worker of `dev`: a child process that can be killed without harm.
//!
//! It is this program again, as `work`, with a pipe to its standard input: when the pipe closes, because `dev` asks it
//! to drain or because `dev` is gone, it shuts down. What it prints on standard error becomes events.

use std::ffi::OsString;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc::UnboundedSender;

use crate::command::pool::PoolArgs;
use crate::command::work::QueueSlots;
use crate::store::Target;

/// The worker's lease: short, so that recovery can be watched.
pub(super) const LEASE: Duration = Duration::from_secs(3);
/// How long its running jobs may take to end when `dev` ends.
pub(super) const DRAIN: Duration = Duration::from_secs(5);

/// How to start the worker.
#[derive(Debug)]
pub(super) struct WorkerCommand {
    arguments: Vec<OsString>,
    /// The store's address: in the environment, because everybody can read a command line, and it may hold a password.
    store: HiddenValue,
}

/// What is not to be printed.
struct HiddenValue(OsString);

impl std::fmt::Debug for HiddenValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

impl WorkerCommand {
    pub(super) fn new(store: Target<'_>, queues: &[QueueSlots], allow_exec: bool, pools: &PoolArgs) -> Self {
        let mut arguments: Vec<OsString> = ["work", "--samples", "--watch-stdin"].map(OsString::from).into();
        if store.relaxed {
            arguments.push("--relaxed-durability".into());
        }
        arguments.extend(["--lease".into(), mainspring::time::Span(LEASE).to_string().into()]);
        arguments.extend(["--drain".into(), mainspring::time::Span(DRAIN).to_string().into()]);
        for queue in queues {
            arguments.extend(["--queue".into(), queue.to_string().into()]);
        }
        if allow_exec {
            arguments.push("--allow-exec".into());
        }
        arguments.extend(pools.words());
        WorkerCommand { arguments, store: HiddenValue(store.address.into()) }
    }

    /// Starts it. `lines` gets what it prints on standard error.
    pub(super) fn start(&self, lines: UnboundedSender<String>) -> std::io::Result<Worker> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(&self.arguments)
            .env("MAINSPRING_STORE", &self.store.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Ctrl-C is for `dev`, which then closes the pipe.
            .process_group(0)
            .spawn()?;
        let pipe = child.stdin.take();
        if let Some(stderr) = child.stderr.take() {
            let reader = async move {
                let mut reader = BufReader::new(stderr).lines();
                while let Ok(Some(line)) = reader.next_line().await {
                    if lines.send(line).is_err() {
                        break;
                    }
                }
            };
            forward(reader);
        }
        Ok(Worker { child, pipe })
    }
}

#[expect(clippy::disallowed_methods, reason = "part of the process, not of the engine")]
fn forward(reader: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(reader);
}

/// A worker that was started.
#[derive(Debug)]
pub(super) struct Worker {
    child: Child,
    pipe: Option<ChildStdin>,
}

impl Worker {
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Sends SIGKILL.
    pub(super) fn kill(&mut self) {
        // Fails only if it is gone already.
        drop(self.child.start_kill());
    }

    /// Lets it end its jobs and go.
    pub(super) fn drain(&mut self) {
        self.pipe = None;
    }

    /// Waits until it has ended. May be given up and called again.
    pub(super) async fn ended(&mut self) -> Option<ExitStatus> {
        self.child.wait().await.ok()
    }
}
