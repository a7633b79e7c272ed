//! Victims as the rig sees them: processes to be started, stopped, killed and dismissed.

use std::fs::{OpenOptions, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::inject::Injection;
use super::{Error, Result};
use crate::history::Actor;

/// Who has no rights but those that everybody has.
const NOBODY: u32 = 65_534;

/// What a victim does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Runs jobs.
    Worker,
    /// Enqueues them.
    Producer,
    /// Applies verbs to them.
    Operator,
}

impl Role {
    /// The word for it on a command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Role::Worker => "worker",
            Role::Producer => "producer",
            Role::Operator => "operator",
        }
    }
}

/// What a victim is started with.
#[derive(Debug, Clone, Default)]
pub struct VictimOptions {
    /// A failure point to die at, and at which visit.
    pub die_at: Option<(String, u32)>,
    /// A system call that fails, or kills.
    pub inject: Option<Injection>,
    /// It runs as somebody for whom permissions count: root writes whatever it likes.
    pub unprivileged: bool,
}

/// What all victims of a world are told.
#[derive(Debug, Clone)]
pub(super) struct VictimSettings {
    pub(super) program: PathBuf,
    pub(super) address: String,
    pub(super) ledger: PathBuf,
    pub(super) lease: Duration,
    /// A defect to plant into them.
    pub(super) planted: Option<String>,
}

/// A victim. Its process ends when this is dropped.
#[derive(Debug)]
pub struct Victim {
    process: Child,
    /// What it does.
    pub role: Role,
    /// Where its system calls are written down, if one of them is to fail.
    pub trace: Option<PathBuf>,
}

impl VictimSettings {
    /// Where everybody may reach the program, and the ledger beside it.
    fn opened(&self) -> Result<PathBuf> {
        let failed = |error| Error::io("letting everybody at the program")(error);
        let folder = self.ledger.parent().unwrap_or(Path::new("."));
        let program = folder.join("victim");
        if !program.exists() {
            std::fs::copy(&self.program, &program).map_err(failed)?;
        }
        let set = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode));
        set(folder, 0o711).and_then(|()| set(&self.ledger, 0o666)).map_err(failed)?;
        Ok(program)
    }
}

impl Victim {
    pub(super) fn start(
        setting: &VictimSettings,
        role: Role,
        seed: u64,
        orders: &VictimOptions,
    ) -> Result<Self> {
        let mut arguments: Vec<String> =
            vec![role.as_str().into(), setting.address.clone(), setting.ledger.display().to_string()];
        arguments.extend([format!("{}ms", setting.lease.as_millis()), seed.to_string()]);
        if let Some((point, visit)) = &orders.die_at {
            arguments.extend(["--die-at".into(), format!("{point}:{visit}")]);
        }
        if let Some(defect) = &setting.planted {
            arguments.extend(["--plant".into(), defect.clone()]);
        }
        let mut command = match &orders.inject {
            Some(injection) => injection.command(&setting.program),
            None if orders.unprivileged && rustix::process::geteuid().is_root() => {
                let mut command = Command::new(setting.opened()?);
                command.uid(NOBODY).gid(NOBODY);
                command
            }
            None => Command::new(&setting.program),
        };
        // What it says is kept beside the ledger, for the run that fails.
        let said = OpenOptions::new().create(true).append(true).open(setting.ledger.with_extension("stderr"));
        let process = command
            .args(arguments)
            .stdin(Stdio::piped())
            .stderr(said.map_err(Error::io("opening the file of what victims say"))?)
            .spawn()
            .map_err(Error::io(format!("starting {}", setting.program.display())))?;
        Ok(Victim { process, role, trace: orders.inject.as_ref().map(|injection| injection.trace.clone()) })
    }

    /// The number of its process: who it is in the ledger.
    pub fn number(&self) -> Actor {
        self.process.id()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// [`Error::Io`] if it is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let sent = kill_process(self.pid(), signal).map_err(std::io::Error::from);
        sent.map_err(Error::io(format!("sending a signal to {}", self.number())))
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.process.try_wait().map_err(Error::io("asking for a victim's end"))
    }

    /// Tells it to leave in good order, by the end of its input.
    pub fn dismiss(&mut self) {
        drop(self.process.stdin.take());
    }

    /// Whether every thread of it is stopped: one that is inside of a system call finishes it first.
    ///
    /// # Errors
    /// [`Error::Io`] if it is gone.
    pub fn is_stopped(&self) -> Result<bool> {
        let tasks = PathBuf::from(format!("/proc/{}/task", self.number()));
        let tasks = std::fs::read_dir(tasks).map_err(Error::io("looking at a stopped victim"))?;
        Ok(tasks.flatten().filter_map(|task| state(&task.path())).all(|state| "TtZX".contains(state)))
    }
}

/// The state of a thread, as one letter.
fn state(task: &Path) -> Option<char> {
    let stat = std::fs::read_to_string(task.join("stat")).ok()?;
    // The name before the state is in parentheses and may hold anything.
    stat.rsplit_once(") ")?.1.chars().next()
}

impl Drop for Victim {
    fn drop(&mut self) {
        // It may be gone already.
        let _gone = kill_process(self.pid(), Signal::CONT);
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
