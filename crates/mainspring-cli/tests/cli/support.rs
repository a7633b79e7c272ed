//! A directory with a store of its own, and ways to run the binary in it.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Between two looks at a condition.
const LOOK: Duration = Duration::from_millis(20);
/// Looks before a test gives up: three minutes and more.
const LOOKS: usize = 9_000;

/// Waits until there is something, or fails the test.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..LOOKS {
        if let Some(found) = look() {
            return found;
        }
        std::thread::park_timeout(LOOK);
    }
    panic!("waited in vain: {what}");
}

/// What a command printed, and how it ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Done {
    /// The output, if the command worked.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout.trim_end().to_owned()
    }

    /// The complaint, if the command ended with this code and gave a hint.
    #[track_caller]
    pub(crate) fn refused(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        // An `enqueue` that a store refuses may have created it before.
        let complaint = self.stderr.lines().find(|line| !line.starts_with("created a new store at "));
        assert!(complaint.is_some_and(|line| line.starts_with("error: ")), "{self:?}");
        assert!(self.stderr.contains("\nhint: "), "{self:?}");
        self.stderr
    }
}

/// A directory of a test's own.
pub(crate) struct Place {
    dir: TempDir,
    /// The store that commands use, if not the one in the directory.
    store: Option<String>,
}

impl Place {
    pub(crate) fn new() -> Self {
        Place { dir: tempfile::tempdir().expect("a directory"), store: None }
    }

    /// A directory whose commands use another store.
    pub(crate) fn at(store: &str) -> Self {
        Place { store: Some(store.to_owned()), ..Place::new() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn read(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.path(name)).ok().filter(|text| text.ends_with('\n'))
    }

    /// The binary in this directory, with nothing of ours in its environment.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mainspring"));
        command.current_dir(self.dir.path()).stdin(Stdio::null());
        for name in ["STORE", "QUEUES", "LABELS", "NODE_PREFIX", "VERSION", "LEASE"] {
            command.env_remove(format!("MAINSPRING_{name}"));
        }
        command.env_remove("RUST_LOG").env("RUST_BACKTRACE", "0");
        if let Some(store) = &self.store {
            command.env("MAINSPRING_STORE", store);
        }
        command
    }

    pub(crate) fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> Done {
        self.feed(args, None)
    }

    pub(crate) fn feed<S: AsRef<OsStr>>(&self, args: &[S], input: Option<&[u8]>) -> Done {
        let mut command = self.command();
        command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
        if input.is_some() {
            command.stdin(Stdio::piped());
        }
        let mut child = command.spawn().expect("the binary");
        if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
            // A command that refuses its input early does not read it to the end.
            let _ = stdin.write_all(input);
        }
        let output = child.wait_with_output().expect("its output");
        Done {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("UTF-8"),
            stderr: String::from_utf8(output.stderr).expect("UTF-8"),
        }
    }

    /// What a command says to programs.
    #[track_caller]
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let text = self.run(&[args, &["--json"]].concat()).ok();
        serde_json::from_str(&text).expect("JSON")
    }

    /// Enqueues a job and returns its id.
    #[track_caller]
    pub(crate) fn enqueue(&self, args: &[&str]) -> String {
        self.run(&[&["enqueue"], args].concat()).ok()
    }

    pub(crate) fn job(&self, id: &str) -> Value {
        self.json(&["job", id])
    }

    /// Waits until a job is in a state, and returns it.
    #[track_caller]
    pub(crate) fn job_in(&self, id: &str, state: &str) -> Value {
        until(&format!("job {id} to be {state}"), || Some(self.job(id)).filter(|job| job["state"] == state))
    }

    /// Starts a worker and waits until it has said so.
    pub(crate) fn work(&self, args: &[&str]) -> Running {
        let worker = self.start(&[&["work", "--queue", "default:8"], args].concat());
        worker.says("works on");
        worker
    }

    /// Starts a command that goes on.
    pub(crate) fn start(&self, args: &[&str]) -> Running {
        let mut command = self.command();
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (stdout, stderr) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
        collect(BufReader::new(stdout), &lines);
        collect(BufReader::new(stderr), &lines);
        let stdin = child.stdin.take();
        Running { child, lines, _stdin: stdin }
    }

    /// The process of the one live node.
    pub(crate) fn live_pid(&self) -> Option<u32> {
        let done = self.run(&["nodes", "--json"]);
        let nodes: Value = serde_json::from_str(&done.stdout).ok()?;
        let live = nodes["nodes"].as_array()?.iter().find(|node| node["state"] == "live")?;
        live["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok())
    }
}

fn collect(stream: impl BufRead + Send + 'static, lines: &Arc<Mutex<Vec<String>>>) {
    let lines = Arc::clone(lines);
    let body = move || {
        for line in stream.lines().map_while(Result::ok) {
            lines.lock().expect("lines").push(line);
        }
    };
    std::thread::Builder::new().spawn(body).expect("a thread");
}

/// A command that goes on. Killed at the end of the test.
pub(crate) struct Running {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    _stdin: Option<ChildStdin>,
}

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().expect("lines").clone()
    }

    /// Waits for a line that contains a text.
    #[track_caller]
    pub(crate) fn says(&self, text: &str) -> String {
        let found = || self.lines().into_iter().find(|line| line.contains(text));
        for _ in 0..LOOKS {
            if let Some(line) = found() {
                return line;
            }
            std::thread::park_timeout(LOOK);
        }
        panic!("it never said `{text}`: {:#?}", self.lines());
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal);
    }

    /// Sends a signal if it still runs. Whether it has ended.
    pub(crate) fn signal_if_running(&mut self, signal: Signal) -> bool {
        let ended = self.child.try_wait().expect("a child").is_some();
        if !ended {
            self.signal(signal);
        }
        ended
    }

    /// Waits until it has ended.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        until("the process to end", || self.child.try_wait().expect("a child"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn kill(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id");
    kill_process(pid, signal).expect("the process is there");
}

/// Whether a process runs. One that has ended and that nobody has reaped does not.
pub(crate) fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    let state = stat.ok().and_then(|stat| stat.rsplit(") ").next()?.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}
