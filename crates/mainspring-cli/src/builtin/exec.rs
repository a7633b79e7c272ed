//! `exec`: run a command.
//!
//! The command runs behind a guard, which ends it and everything that it started when the job is cancelled or times out, when the
//! worker drains no longer, and when the worker dies.

use std::collections::BTreeMap;

use mainspring::process::{Command, Output};
use mainspring::time::Span;
use mainspring::{Context, Job};
use serde::{Deserialize, Serialize};

/// A command to run.
#[derive(Debug, Serialize, Deserialize, Job)]
#[job(kind = "exec", result = Output)]
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

/// Success is status 0; anything else is a failure that tells what the command said last.
pub(crate) async fn exec(ctx: Context, job: Exec) -> mainspring::HandlerResult<Output> {
    let mut command = Command::new(job.argv);
    for (name, value) in job.env {
        command = command.env(name, value);
    }
    if let Some(directory) = job.cwd {
        command = command.cwd(directory);
    }
    if let Some(text) = job.stdin {
        command = command.stdin(text);
    }
    if let Some(timeout) = job.timeout {
        command = command.timeout(timeout.0);
    }
    command.run(&ctx).await?.succeeded()
}
