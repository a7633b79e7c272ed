//! A directory with programs that run in it, and a watchdog that ends both if nobody else does.
//!
//! The watchdog is a shell which reads from a pipe that only this process holds. However this process ends, the pipe
//! ends with it; then the shell ends the programs and removes the directory. Each program writes its process id into the
//! directory before it starts, so there is no moment at which the watchdog would miss one.

use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::user::User;
use super::{Error, Result, wait};

/// Short, because the path of a Unix socket has at most 107 bytes, and open to the user that the server runs as.
const SHORT: &str = "/tmp";

/// How many lines of a log an error shows.
const TAIL: usize = 30;

/// How long a program has to end by itself before it is killed. A server kills its own children after 5 s.
const PATIENCE: Duration = Duration::from_secs(10);

/// Ends all programs of the directory `$1` and removes it, once the standard input has ended. A process that nobody
/// reaps counts as ended; the rest is killed after 10 s (200 looks). A server that was killed leaves its lock file, whose
/// seventh line names the shared memory that it leaves as well.
const WATCHDOG: &str = r#"
while read -r _; do :; done
alive() { kill -0 "$1" 2>&- && ! grep -qs '^State:.*Z' "/proc/$1/status"; }
pids=$(cat "$1"/*.pid)
for pid in $pids; do kill -QUIT "$pid"; kill -CONT "$pid"; done
for _ in $(seq 200); do
    left=
    for pid in $pids; do alive "$pid" && left=1; done
    [ -z "$left" ] && break
    sleep 0.05
done
for pid in $pids; do alive "$pid" && kill -KILL "$pid"; done
segment=$(sed -n '7s/.* //p' "$1/data/postmaster.pid")
[ -n "$segment" ] && ipcrm -m "$segment"
for _ in $(seq 200); do
    rm -rf "$1"
    [ -e "$1" ] || exit 0
    sleep 0.05
done
"#;

/// Writes the process id to the file `$0` and becomes the program.
const BECOME: &str = r#"echo $$ >"$0" && exec "$@""#;

/// A private directory, and whom its programs run as.
#[derive(Debug)]
pub(super) struct GuardedDirectory {
    path: PathBuf,
    user: Option<User>,
    watchdog: Child,
}

impl GuardedDirectory {
    /// Makes a directory and sets the watchdog on it.
    pub(super) fn new() -> Result<GuardedDirectory> {
        let base = if Path::new(SHORT).is_dir() { PathBuf::from(SHORT) } else { std::env::temp_dir() };
        let user = User::unprivileged()?;
        let path = tempfile::Builder::new()
            .prefix("mainspring-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(&base)
            .map_err(Error::io(format!("making a directory in {}", base.display())))?
            .keep();
        if let Some(user) = user {
            user.own(&path)?;
        }
        let mut watchdog = Command::new("/bin/sh");
        watchdog.args(["-c", WATCHDOG, "watchdog"]).arg(&path);
        become_quiet(&mut watchdog, user, Path::new("/"));
        watchdog.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let watchdog = watchdog.spawn().map_err(Error::io("starting /bin/sh"))?;
        Ok(GuardedDirectory { path, user, watchdog })
    }

    /// The directory.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file that only the programs' user can read.
    pub(super) fn write(&self, name: &str, contents: &[u8]) -> Result<()> {
        let path = self.path.join(name);
        let what = format!("writing {}", path.display());
        std::fs::write(&path, contents).map_err(Error::io(&what))?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).map_err(Error::io(&what))?;
        self.user.map_or(Ok(()), |user| user.own(&path))
    }

    /// Runs a program to its end, which must be a good one.
    pub(super) fn run(&self, program: &Path, args: &[&str]) -> Result<()> {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null());
        become_quiet(&mut command, self.user, &self.path);
        let output = command.output().map_err(Error::io(format!("starting {}", program.display())))?;
        if output.status.success() {
            return Ok(());
        }
        let text = [output.stdout, output.stderr].concat();
        Err(Error::Program {
            program: program.display().to_string(),
            what: format!("ended with {}", output.status),
            output: tail(&String::from_utf8_lossy(&text)),
        })
    }

    /// Starts a program that stays, under a name for its files.
    pub(super) fn start(&self, name: &'static str, program: &Path, args: &[OsString]) -> Result<Running> {
        let log = self.path.join(format!("{name}.log"));
        let opened = File::options().create(true).append(true).open(&log);
        let output = opened.map_err(Error::io(format!("opening {}", log.display())))?;
        let errors = output.try_clone().map_err(Error::io("copying a file handle"))?;
        let pid = self.path.join(format!("{name}.pid"));
        let mut command = Command::new("/bin/sh");
        command.args(["-c", BECOME]).arg(&pid).arg(program).args(args);
        become_quiet(&mut command, self.user, &self.path);
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        let child = command.spawn().map_err(Error::io(format!("starting {}", program.display())))?;
        Ok(Running { name, child, pid, log })
    }
}

impl Drop for GuardedDirectory {
    fn drop(&mut self) {
        // The programs are gone by now. The watchdog does the rest, so that there is one way to clean up, used each time.
        drop(self.watchdog.stdin.take());
        let ended = wait::until(PATIENCE, || Ok(self.watchdog.try_wait().unwrap_or_default()));
        if !matches!(ended, Ok(Some(status)) if status.success()) {
            let _killed = self.watchdog.kill().and_then(|()| self.watchdog.wait());
            let _removed = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// In a group of its own, so that an interrupt at the terminal ends the test and not its server, and without the
/// variables by which a person configures clients.
fn become_quiet(command: &mut Command, user: Option<User>, dir: &Path) {
    command.process_group(0).current_dir(dir).env("LC_ALL", "C");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
        command.env_remove(name);
    }
    if let Some(user) = user {
        user.run(command);
    }
}

/// A program that runs in a [`GuardedDirectory`]. It is killed when dropped.
#[derive(Debug)]
pub(super) struct Running {
    name: &'static str,
    child: Child,
    pid: PathBuf,
    log: PathBuf,
}

impl Running {
    /// The process id.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.child), signal)
            .map_err(|error| Error::io(format!("signalling `{}`", self.name))(error.into()))
    }

    /// The status, if it has ended.
    pub(super) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().map_err(Error::io(format!("waiting for `{}`", self.name)))
    }

    /// Waits until a look finds it ready; fails with the end of its log if it ends first, or takes too long.
    pub(super) fn ready(&mut self, patience: Duration, mut look: impl FnMut() -> bool) -> Result<()> {
        let ready = wait::until(patience, || {
            if let Some(status) = self.ended()? {
                return Err(self.failed(&format!("ended with {status}")));
            }
            Ok(look().then_some(()))
        })?;
        ready.ok_or_else(|| self.failed(&format!("was not ready after {} s", patience.as_secs())))
    }

    /// Asks it to end, and waits. What does not end in time is killed, and that is an error.
    pub(super) fn end(&mut self, signal: Signal, patience: Duration) -> Result<()> {
        if self.ended()?.is_none() {
            self.signal(signal)?;
            // One that a test has stopped hears nothing else.
            self.signal(Signal::CONT)?;
            if wait::until(patience, || self.ended())?.is_none() {
                let failed = self.failed(&format!("did not end within {} s", patience.as_secs()));
                let _killed = self.child.kill().and_then(|()| self.child.wait());
                return Err(failed);
            }
        }
        // A number that belongs to nobody must not be signalled later.
        let _removed = std::fs::remove_file(&self.pid);
        Ok(())
    }

    fn failed(&self, what: &str) -> Error {
        let log = std::fs::read(&self.log).unwrap_or_default();
        Error::Program {
            program: self.name.to_owned(),
            what: what.to_owned(),
            output: tail(&String::from_utf8_lossy(&log)),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // An error here has nobody to go to; the process is gone in either case.
        let _ended = self.end(Signal::QUIT, PATIENCE);
    }
}

/// The last lines of a text.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL)..].join("\n")
}
