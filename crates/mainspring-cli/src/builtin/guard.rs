//! The guard: one small process between the worker and a command of an `exec` job.
//!
//! A worker can be killed at any moment, and then cannot kill what it started. So it starts this program once more, as
//! `exec-guard`, with a pipe to its standard input. The first line on the pipe says what to run; after that nothing is
//! sent, and its end means that the worker has dropped the job or is gone, however that came about. The guard answers
//! on its standard output with two lines: the process that it started, and how that ended.
//!
//! # Invariants
//! - The command leads a process group of its own; no process of that group outlives the command or the worker.
//! - The group is killed before its leader is reaped, so its number cannot have passed on to somebody else.
//! - Output is kept in bounded memory, however much there is.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use serde::{Deserialize, Serialize};

use super::tail::Tail;

/// The first argument that makes the binary a guard.
pub(crate) const COMMAND: &str = "exec-guard";
/// How long a group may take to end after SIGTERM before it gets SIGKILL.
pub(super) const GRACE: Duration = Duration::from_secs(2);
/// How long to wait for the rest of the output once the group is gone: a process that left the group may hold it open.
const LEFTOVER: Duration = Duration::from_millis(200);

/// What to run.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Spec {
    pub(super) argv: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) cwd: Option<String>,
    pub(super) stdin: Option<String>,
}

/// What the guard says, one per line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum GuardMessage {
    /// The command runs as this process, which leads its group.
    Started(i32),
    /// The command could not be started.
    Unstartable(String),
    /// The command has ended.
    Ended(Report),
}

/// How a command ended.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) status: Option<i32>,
    pub(super) signal: Option<i32>,
    pub(super) stdout: String,
    pub(super) stderr: String,
    pub(super) truncated: bool,
}

/// What the guard waits for.
enum Event {
    /// The command has ended.
    Ended,
    /// The worker has closed the pipe.
    Alone,
}

/// The hidden command `exec-guard`.
pub(crate) fn run() -> ExitCode {
    let mut stdin = BufReader::new(io::stdin());
    let mut line = Vec::new();
    let spec = match stdin.read_until(b'\n', &mut line) {
        Ok(read) if read > 0 => serde_json::from_slice::<Spec>(&line),
        // The worker was gone before it could say anything.
        _ => return ExitCode::FAILURE,
    };
    let message = match spec.map_err(|error| error.to_string()).and_then(start) {
        Ok((child, input)) => supervise(child, input, stdin),
        Err(why) => GuardMessage::Unstartable(why),
    };
    send_message(&message);
    ExitCode::SUCCESS
}

/// Tells the worker; if it is gone, there is nobody to tell.
fn send_message(message: &GuardMessage) {
    if let Ok(mut line) = serde_json::to_vec(message) {
        line.push(b'\n');
        let mut stdout = io::stdout().lock();
        drop(stdout.write_all(&line).and_then(|()| stdout.flush()));
    }
}

/// Starts the command, in a group of its own.
fn start(spec: Spec) -> Result<(Child, Option<String>), String> {
    let (program, arguments) = spec.argv.split_first().ok_or("argv is empty")?;
    let mut command = Command::new(program);
    command.args(arguments).envs(&spec.env).process_group(0);
    command.stdin(if spec.stdin.is_some() { Stdio::piped() } else { Stdio::null() });
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some(cwd) = &spec.cwd {
        // Said here, because the system's own words would be the same as for a missing program.
        if !std::path::Path::new(cwd).is_dir() {
            return Err(format!("the directory `{cwd}` does not exist"));
        }
        command.current_dir(cwd);
    }
    let child = command.spawn().map_err(|error| format!("cannot start `{program}`: {error}"))?;
    Ok((child, spec.stdin))
}

/// Waits until the command ends or the worker is gone, and ends the whole group.
fn supervise(mut child: Child, input: Option<String>, pipe: BufReader<io::Stdin>) -> GuardMessage {
    let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) else {
        return GuardMessage::Unstartable("its process id makes no sense".into());
    };
    send_message(&GuardMessage::Started(group.as_raw_nonzero().get()));
    let (events, inbox) = channel();
    if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
        // A command that does not read its input is none of our business.
        thread("stdin", move || drop(stdin.write_all(input.as_bytes())));
    }
    let stdout = collect("stdout", child.stdout.take());
    let stderr = collect("stderr", child.stderr.take());
    let alone = events.clone();
    thread("pipe", move || watch(pipe, &alone));
    thread("wait", move || {
        // Looks without reaping.
        while waitid(WaitId::Pid(group), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
            .is_err_and(|error| error == rustix::io::Errno::INTR)
        {}
        drop(events.send(Event::Ended));
    });
    end_group(group, &inbox);
    let status = child.wait();
    let (status, signal) = match status {
        Ok(status) => (status.code(), status.signal()),
        Err(_) => (None, None),
    };
    let (stdout, cut_out) = stdout.finish();
    let (stderr, cut_err) = stderr.finish();
    GuardMessage::Ended(Report { status, signal, stdout, stderr, truncated: cut_out || cut_err })
}

/// Waits for the command to end, or makes it end; then kills what is left of its group.
fn end_group(group: Pid, inbox: &Receiver<Event>) {
    if !matches!(inbox.recv(), Ok(Event::Ended)) {
        // Fails only if there is nobody left.
        let _ = kill_process_group(group, Signal::TERM);
        // Only the end of the leader can still be told.
        match inbox.recv_timeout(GRACE) {
            Ok(_) | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
    }
    let _ = kill_process_group(group, Signal::KILL);
}

/// Reads the pipe from the worker until it is closed.
fn watch(mut pipe: impl Read, events: &Sender<Event>) {
    let mut buffer = [0_u8; 64];
    loop {
        match pipe.read(&mut buffer) {
            Ok(0) => break,
            Err(error) if error.kind() != io::ErrorKind::Interrupted => break,
            Ok(_) | Err(_) => {}
        }
    }
    drop(events.send(Event::Alone));
}

/// A stream that is being read.
struct Collected {
    tail: Arc<Mutex<Tail>>,
    done: Receiver<()>,
}

fn collect(name: &str, stream: Option<impl Read + Send + 'static>) -> Collected {
    let tail = Arc::new(Mutex::new(Tail::default()));
    let (finished, done) = channel();
    if let Some(stream) = stream {
        let tail = Arc::clone(&tail);
        thread(name, move || {
            Tail::read(stream, |bytes| tail.lock().unwrap_or_else(PoisonError::into_inner).push(bytes));
            let _ = finished.send(());
        });
    }
    Collected { tail, done }
}

impl Collected {
    /// What has been read by the end of the stream, or soon.
    fn finish(self) -> (String, bool) {
        let _ = self.done.recv_timeout(LEFTOVER);
        std::mem::take(&mut *self.tail.lock().unwrap_or_else(PoisonError::into_inner)).finish()
    }
}

/// Starts a thread. Without one the guard is of no use, and its end is what the worker notices.
fn thread(name: &str, body: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().name(name.to_owned()).spawn(body).map(drop).expect("a thread for the guard");
}
