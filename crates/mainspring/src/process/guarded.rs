//! A child behind its guard, from the worker's side.
//!
//! # Invariants
//! - Dropping it closes the socket to the guard, and that ends the child and its group.

use std::io::{self, IoSlice, PipeReader, PipeWriter};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::Arc;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe;

use super::guard::{self, Ended, GUARD, GuardMessage, Spec};

/// Why a child could not be started.
pub(super) const NO_GUARD: &str = "`mainspring::process::guard()` was not called; call it first in `main`";

/// A child that runs behind its guard.
#[derive(Debug)]
pub(super) struct Guarded {
    /// Kept so that the guard is reaped.
    process: Option<tokio::process::Child>,
    /// Ends the child.
    switch: KillSwitch,
    answers: BufReader<tokio::net::UnixStream>,
    /// What has come of a line: kept here, because waiting for the rest may be given up and taken up again.
    line: Vec<u8>,
    /// The child's process group, while it may have members.
    group: Option<Pid>,
}

/// A guard that has not reported a start. Killed when this is dropped: it may be a program that is no guard, and goes on for ever.
struct Unstarted(Option<tokio::process::Child>);

impl Drop for Unstarted {
    fn drop(&mut self) {
        if let Some(process) = &mut self.0 {
            // Fails only if it has ended.
            drop(process.start_kill());
        }
    }
}

/// The child's standard input, output and error.
#[derive(Debug)]
pub(super) struct Pipes {
    pub(super) stdin: pipe::Sender,
    pub(super) stdout: pipe::Receiver,
    pub(super) stderr: pipe::Receiver,
}

/// Ends a child at once, from anywhere.
#[derive(Debug, Clone)]
pub(super) struct KillSwitch(Arc<UnixStream>);

impl KillSwitch {
    /// Closes the worker's direction of the socket.
    pub(super) fn pull(&self) {
        // Fails only if the guard is gone, and the child with it.
        let _ = self.0.shutdown(Shutdown::Write);
    }
}

impl Guarded {
    /// Starts a child. Returns when it runs, or the text why it does not.
    pub(super) async fn start(spec: &Spec) -> Result<(Guarded, Pipes), String> {
        let told = |error: io::Error| format!("cannot start a guard: {error}");
        let line = serde_json::to_vec(spec).map_err(|error| error.to_string())?;
        let (ours, theirs) = UnixStream::pair().map_err(told)?;
        let (stdio, pipes) = pipes().map_err(told)?;
        let program = guard::program().ok_or(NO_GUARD)?;
        let process = tokio::process::Command::new(program)
            .arg0(GUARD)
            .arg(GUARD)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C on the worker's terminal is for the worker, which then decides.
            .process_group(0)
            .spawn()
            .map_err(told)?;
        let mut process = Unstarted(Some(process));
        send_stdio(&ours, stdio).map_err(told)?;
        ours.set_nonblocking(true).map_err(told)?;
        let switch = KillSwitch(Arc::new(ours.try_clone().map_err(told)?));
        let mut answers = tokio::net::UnixStream::from_std(ours).map_err(told)?;
        answers.write_all(&line).await.map_err(told)?;
        answers.write_all(b"\n").await.map_err(told)?;
        let answers = BufReader::new(answers);
        let mut guarded = Guarded { process: None, switch, answers, line: Vec::new(), group: None };
        match guarded.message().await? {
            GuardMessage::Started(pid) => guarded.group = Pid::from_raw(pid),
            GuardMessage::Unstartable(why) => return Err(why),
            GuardMessage::Ended(_) => return Err("the guard reports an end before a start".into()),
        }
        guarded.process = process.0.take();
        Ok((guarded, pipes))
    }

    /// The child's process id.
    pub(super) fn pid(&self) -> Option<i32> {
        self.group.map(|group| group.as_raw_nonzero().get())
    }

    pub(super) fn switch(&self) -> KillSwitch {
        self.switch.clone()
    }

    /// Waits until the child and its group have ended. May be given up and called again, but not after it returned.
    pub(super) async fn ended(&mut self) -> Result<Ended, String> {
        if let Ok(GuardMessage::Ended(ended)) = self.message().await {
            self.group = None;
            return Ok(ended);
        }
        // Somebody killed the guard: what it guarded is ours to end.
        self.kill();
        Err("lost its guard".into())
    }

    /// Tells the guard to end the child.
    pub(super) fn stop(&self) {
        self.switch.pull();
    }

    /// Ends the child without the guard's help.
    pub(super) fn kill(&mut self) {
        if let Some(group) = self.group.take() {
            // Fails only if there is nobody left.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    async fn message(&mut self) -> Result<GuardMessage, String> {
        let read = self.answers.read_until(b'\n', &mut self.line).await;
        if !read.is_ok_and(|read| read > 0) || self.line.last() != Some(&b'\n') {
            return Err("its guard was killed".into());
        }
        serde_json::from_slice(&std::mem::take(&mut self.line)).map_err(|error| error.to_string())
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // Others may hold the switch, and with it the socket.
        self.switch.pull();
    }
}

/// The child's ends of three pipes, and ours.
fn pipes() -> io::Result<([OwnedFd; 3], Pipes)> {
    let (stdin, our_stdin): (PipeReader, PipeWriter) = io::pipe()?;
    let (our_stdout, stdout) = io::pipe()?;
    let (our_stderr, stderr) = io::pipe()?;
    let pipes = Pipes {
        stdin: pipe::Sender::from_owned_fd(our_stdin.into())?,
        stdout: pipe::Receiver::from_owned_fd(our_stdout.into())?,
        stderr: pipe::Receiver::from_owned_fd(our_stderr.into())?,
    };
    Ok(([stdin.into(), stdout.into(), stderr.into()], pipes))
}

/// Hands the child's ends to the guard; ours of them close here.
fn send_stdio(control: &UnixStream, stdio: [OwnedFd; 3]) -> io::Result<()> {
    let descriptors = stdio.each_ref().map(AsFd::as_fd);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)), "it has room for three");
    sendmsg(control, &[IoSlice::new(b"F")], &mut ancillary, SendFlags::empty())?;
    // Only the child is to have them: their end is how the other side notices.
    drop(stdio);
    Ok(())
}
