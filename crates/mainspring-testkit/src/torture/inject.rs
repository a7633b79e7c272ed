//! System calls that fail: a victim runs under `strace`, which lets the Nth call of a sort fail, or kills there.
//!
//! The tracer runs beside the victim (`-D`), so that the process which was started is the victim itself. It counts the
//! calls of each thread for itself. What it saw, it writes into a file, and marks there what it did.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Error, Result, WriteCalls};

/// What happens at a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyscallFault {
    /// The process is killed there.
    Kill,
    /// The call is not made, and fails with this error, so often.
    Fail(&'static str, u32),
}

impl fmt::Display for SyscallFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SyscallFault::Kill => f.write_str("KILL"),
            SyscallFault::Fail(error, 1) => f.write_str(error),
            SyscallFault::Fail(error, times) => write!(f, "{error} x{times}"),
        }
    }
}

/// One system call that goes wrong.
#[derive(Debug, Clone)]
pub struct Injection {
    /// Which.
    pub call: &'static str,
    /// The files that it must concern; all if there are none.
    pub files: Vec<PathBuf>,
    /// What happens.
    pub harm: SyscallFault,
    /// At which call of its thread, from 1.
    pub index: u32,
    /// Where calls are written down.
    pub trace: PathBuf,
}

impl Injection {
    /// The `index`th call of a sort goes wrong.
    pub fn new(
        calls: &WriteCalls,
        call: &'static str,
        harm: SyscallFault,
        index: u32,
        trace: PathBuf,
    ) -> Self {
        Injection { call, files: calls.files.clone(), harm, index, trace }
    }

    /// What runs a program with this injection; its arguments are still to come.
    pub(super) fn command(&self, program: &Path) -> Command {
        let Injection { call, harm, index, .. } = self;
        let what = match harm {
            SyscallFault::Kill => format!("inject={call}:signal=KILL:when={index}"),
            SyscallFault::Fail(error, times) => {
                format!("inject={call}:error={error}:when={index}..{}", index + times - 1)
            }
        };
        let mut command = Command::new("strace");
        command.args(["-D", "-f", "-qq", "-o"]).arg(&self.trace);
        command.arg("-e").arg(format!("trace={call}")).arg("-e").arg(what);
        for file in &self.files {
            command.arg("-P").arg(file);
        }
        command.arg("--").arg(program);
        command
    }
}

/// Whether a trace tells of a call that was made to fail.
pub(super) fn fired(trace: &Path) -> bool {
    std::fs::read_to_string(trace).is_ok_and(|text| text.contains("(INJECTED)"))
}

/// Makes sure that there is a `strace` that may trace.
///
/// # Errors
/// What is missing, and what to do about it.
pub fn check() -> Result<()> {
    let hint = "system calls fail by `strace`: install that package, and allow ptrace";
    let status = Command::new("strace")
        .args(["-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=none", "true"])
        .stdin(Stdio::null())
        .status()
        .map_err(Error::io(hint))?;
    if status.success() { Ok(()) } else { Err(Error::Unexpected(format!("{hint}: it ended with {status}"))) }
}
