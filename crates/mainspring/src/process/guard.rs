//! The guard: one small process between the worker and a child.
//!
//! A worker can be killed at any moment, and then cannot kill what it started. So it starts this program once more, as
//! a guard whose standard input is a socket. Over it come three descriptors, which become the child's standard input, output and
//! error, and one line that says what to run. After that the worker sends nothing, and the end of the socket means that it has
//! dropped the child or is gone, however that came about. The guard answers on the socket with two lines: the process that it
//! started, and how that ended.
//!
//! # Invariants
//! - The child leads a process group of its own; no process of that group outlives the child or the worker.
//! - The group is killed before its leader is reaped, so its number cannot have passed on to somebody else.
//! - On Linux, what leaves the group is adopted by the guard when its parent ends, and killed with the group. The child itself
//!   dies with its guard.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use mainspring_core::seam::Threads;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};
use serde::{Deserialize, Serialize};

/// The first argument that makes the program a guard.
pub(super) const GUARD: &str = "mainspring-guard";
/// The first argument that makes it a child that dies with its guard; then follow the guard's process and the command.
#[cfg(target_os = "linux")]
const GUARDED: &str = "mainspring-guarded";
/// The status of a guard that could not begin.
const FAILED: i32 = 1;
/// The status of a command that could not be executed, as shells have it.
#[cfg(target_os = "linux")]
const NOT_EXECUTED: i32 = 127;
/// Rounds in which the guard kills what it has adopted: those that it kills may leave more.
const ADOPTIONS: usize = 1_000;

/// Where Linux lists the children of a thread.
const CHILDREN: &str = "/proc/thread-self/children";

/// The program that guards; unknown until [`guard`] or [`guard_program`] was called.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// The program to start as a guard, if the application has said which.
pub(super) fn program() -> Option<&'static Path> {
    PROGRAM.get().map(PathBuf::as_path)
}

/// Call this first in `main` of a program that uses a [`Pool`](super::Pool) or a [`Command`](super::Command).
///
/// The program starts itself as the guard of each child. In such a guard this function does the guard's work and does not return.
/// Otherwise it returns at once.
pub fn guard() {
    let mut args = std::env::args_os().skip(1);
    let first = args.next();
    let code = match first.as_ref().and_then(|first| first.to_str()) {
        Some(GUARD) => run(),
        #[cfg(target_os = "linux")]
        Some(GUARDED) => become_command(args),
        _ => {
            // The program may be replaced on disk while it runs; this name of it stays the same program.
            let own = Path::new("/proc/self/exe");
            let own = if own.exists() { Ok(own.to_path_buf()) } else { std::env::current_exe() };
            if let Ok(own) = own {
                PROGRAM.get_or_init(|| own);
            }
            return;
        }
    };
    #[expect(
        clippy::exit,
        reason = "a guard has no other work, and the application's `main` must not go on in it"
    )]
    std::process::exit(code);
}

/// Names another program whose `main` calls [`guard`] first, such as the binary `mainspring`. For processes whose `main` is not
/// yours, as in tests. The first call counts.
pub fn guard_program(path: impl Into<PathBuf>) {
    PROGRAM.get_or_init(|| path.into());
}

/// What to run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Spec {
    pub(super) argv: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) cwd: Option<String>,
    /// How long the group may take to end after SIGTERM before it gets SIGKILL; 0: it gets SIGKILL at once.
    pub(super) grace_ms: u64,
}

/// What the guard says, one per line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum GuardMessage {
    /// The child runs as this process, which leads its group.
    Started(i32),
    /// The child could not be started.
    Unstartable(String),
    /// The child has ended.
    Ended(Ended),
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ended {
    pub(super) status: Option<i32>,
    pub(super) signal: Option<i32>,
}

/// What the guard waits for.
enum Event {
    /// The child has ended.
    Ended,
    /// The worker has closed the socket.
    Alone,
}

/// The guard's work; the status with which it exits.
fn run() -> i32 {
    let Ok(control) = io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from) else {
        return FAILED;
    };
    // The worker may be gone before it could say anything.
    let Ok(stdio) = receive_stdio(&control) else { return FAILED };
    let Ok(answers) = control.try_clone() else { return FAILED };
    let mut control = BufReader::new(control);
    let mut line = Vec::new();
    let spec = match control.read_until(b'\n', &mut line) {
        Ok(read) if read > 0 => serde_json::from_slice::<Spec>(&line),
        _ => return FAILED,
    };
    let message = match spec.map_err(|error| error.to_string()) {
        Err(why) => GuardMessage::Unstartable(why),
        Ok(spec) => match start(&spec, stdio) {
            Err(why) => GuardMessage::Unstartable(why),
            Ok(child) => supervise(child, control, &answers, Duration::from_millis(spec.grace_ms)),
        },
    };
    send(&answers, &message);
    0
}

/// Takes the child's standard input, output and error from the socket.
fn receive_stdio(control: &UnixStream) -> io::Result<[OwnedFd; 3]> {
    #[cfg(target_os = "linux")]
    let flags = RecvFlags::CMSG_CLOEXEC;
    #[cfg(not(target_os = "linux"))]
    let flags = RecvFlags::empty();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0_u8; 1];
    recvmsg(control, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags)?;
    let mut received = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            received.extend(descriptors);
        }
    }
    for descriptor in &received {
        rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::CLOEXEC)?;
    }
    received.try_into().map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Tells the worker; if it is gone, there is nobody to tell.
fn send(mut answers: &UnixStream, message: &GuardMessage) {
    if let Ok(mut line) = serde_json::to_vec(message) {
        line.push(b'\n');
        drop(answers.write_all(&line));
    }
}

/// Starts the child, in a group of its own.
fn start(spec: &Spec, stdio: [OwnedFd; 3]) -> Result<Child, String> {
    let (program, arguments) = spec.argv.split_first().ok_or("argv is empty")?;
    // Said here, because the system's own words would be the same as for a missing program.
    if let Some(cwd) = spec.cwd.as_ref().filter(|cwd| !Path::new(cwd).is_dir()) {
        return Err(format!("the directory `{cwd}` does not exist"));
    }
    let mut command = command(program, spec)?;
    command.args(arguments).envs(&spec.env).process_group(0);
    let [stdin, stdout, stderr] = stdio.map(Stdio::from);
    command.stdin(stdin).stdout(stdout).stderr(stderr);
    if let Some(cwd) = &spec.cwd {
        command.current_dir(cwd);
    }
    command.spawn().map_err(|error| format!("cannot start `{program}`: {error}"))
}

/// The program by way of this one, so that it dies with its guard.
#[cfg(target_os = "linux")]
fn command(program: &str, spec: &Spec) -> Result<Command, String> {
    // What can still go wrong after this is a file that is executable and no program.
    find(program, spec).map_err(|error| format!("cannot start `{program}`: {error}"))?;
    if adopts() {
        // Without it, only the group ends with the child.
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    }
    let mut command = Command::new("/proc/self/exe");
    command.arg0(GUARDED).arg(GUARDED).arg(std::process::id().to_string()).arg(program);
    Ok(command)
}

#[cfg(not(target_os = "linux"))]
fn command(program: &str, _: &Spec) -> Result<Command, String> {
    Ok(Command::new(program))
}

/// Looks for a program as the system does: a name with a slash is a path, any other is looked for in `PATH`.
#[cfg(target_os = "linux")]
fn find(program: &str, spec: &Spec) -> io::Result<()> {
    let base = spec.cwd.as_deref().map_or_else(PathBuf::new, PathBuf::from);
    let check = |path: PathBuf| rustix::fs::access(base.join(path), rustix::fs::Access::EXEC_OK);
    if program.contains('/') {
        return Ok(check(PathBuf::from(program))?);
    }
    let path = spec.env.get("PATH").map(OsString::from).or_else(|| std::env::var_os("PATH"));
    let path = path.unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    let mut refused = rustix::io::Errno::NOENT;
    for directory in std::env::split_paths(&path) {
        match check(directory.join(program)) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::ACCESS) => refused = rustix::io::Errno::ACCESS,
            Err(_) => {}
        }
    }
    Err(refused.into())
}

/// Asks for death with the guard, and becomes the command.
#[cfg(target_os = "linux")]
fn become_command(mut args: impl Iterator<Item = OsString>) -> i32 {
    let guard = args.next().and_then(|guard| guard.to_str()?.parse::<u32>().ok());
    let (Some(guard), Some(program)) = (guard, args.next()) else { return FAILED };
    let asked = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    // The guard may have died before that was asked.
    if asked.is_err() || std::os::unix::process::parent_id() != guard {
        return FAILED;
    }
    let error = Command::new(&program).args(args).exec();
    drop(writeln!(io::stderr(), "cannot start `{}`: {error}", program.display()));
    NOT_EXECUTED
}

/// Waits until the child ends or the worker is gone, and ends the whole group.
fn supervise(
    mut child: Child,
    control: BufReader<UnixStream>,
    answers: &UnixStream,
    grace: Duration,
) -> GuardMessage {
    let Some(leader) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) else {
        return GuardMessage::Unstartable("its process id makes no sense".into());
    };
    send(answers, &GuardMessage::Started(leader.as_raw_nonzero().get()));
    let (events, inbox) = channel();
    let alone = events.clone();
    thread("control", move || watch(control, &alone));
    thread("wait", move || {
        wait_for(leader);
        drop(events.send(Event::Ended));
    });
    end_group(leader, &inbox, grace);
    kill_adopted(leader);
    let (status, signal) = match child.wait() {
        Ok(status) => (status.code(), status.signal()),
        Err(_) => (None, None),
    };
    GuardMessage::Ended(Ended { status, signal })
}

/// Waits for the leader's end without reaping it. Reaps what was adopted and has ended meanwhile.
fn wait_for(leader: Pid) {
    let watched = || if adopts() { WaitId::All } else { WaitId::Pid(leader) };
    loop {
        match waitid(watched(), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Ok(_) if has_ended(leader) => return,
            Ok(_) => reap_adopted(leader),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

fn has_ended(leader: Pid) -> bool {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    !matches!(waitid(WaitId::Pid(leader), look), Ok(None))
}

/// Whether the guard can adopt: it must be able to see its children.
fn adopts() -> bool {
    cfg!(target_os = "linux") && Path::new(CHILDREN).exists()
}

/// Reaps those that have ended, except for the leader.
fn reap_adopted(leader: Pid) {
    for adopted in adopted(leader) {
        let _ = waitid(WaitId::Pid(adopted), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }
}

/// The guard's children but the leader: what the child's descendants left behind.
fn adopted(leader: Pid) -> Vec<Pid> {
    let mut found = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        let pids = children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
        found.extend(pids.filter(|pid| *pid != leader));
    }
    found
}

/// Kills all that left the group, and what that leaves in turn.
fn kill_adopted(leader: Pid) {
    for _ in 0..ADOPTIONS {
        let adopted = adopted(leader);
        if adopted.is_empty() {
            return;
        }
        for pid in &adopted {
            // Fails only if it has ended.
            let _ = kill_process(*pid, Signal::KILL);
        }
        for pid in adopted {
            let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED);
        }
    }
}

/// Waits for the child to end, or makes it end; then kills what is left of its group.
fn end_group(group: Pid, inbox: &Receiver<Event>, grace: Duration) {
    if !matches!(inbox.recv(), Ok(Event::Ended)) && !grace.is_zero() {
        // Fails only if there is nobody left.
        let _ = kill_process_group(group, Signal::TERM);
        // Only the end of the leader can still be told.
        drop(inbox.recv_timeout(grace));
    }
    let _ = kill_process_group(group, Signal::KILL);
}

/// Reads the socket from the worker until it is closed.
fn watch(mut control: impl Read, events: &Sender<Event>) {
    let mut buffer = [0_u8; 64];
    loop {
        match control.read(&mut buffer) {
            Ok(0) => break,
            Err(error) if error.kind() != io::ErrorKind::Interrupted => break,
            Ok(_) | Err(_) => {}
        }
    }
    drop(events.send(Event::Alone));
}

/// Starts a thread. Without one the guard is of no use, and its end is what the worker notices.
fn thread(name: &str, body: impl FnOnce() + Send + 'static) {
    crate::seams::threads().spawn(name, Box::new(body)).expect("a thread for the guard");
}
