//! A server: a data directory and the process on it.

use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustix::process::{Pid, Signal};

use super::endpoint::{Endpoint, SocketKind};
use super::guarded_directory::{GuardedDirectory, Running};
use super::options::Options;
use super::programs::Programs;
use super::{Error, Result, client, wait};
use crate::patience::PATIENCE;

/// The variable with the address of a server that all tests of a run share: a URL, or a string of `key=value`.
pub const SERVER_VARIABLE: &str = "MAINSPRING_TEST_POSTGRES";

/// The port that names the socket when nobody listens on TCP. The directory is private, so it is free.
const SOCKET_PORT: u16 = 5432;

/// How long a server that got a signal may take to end before another is started on its data: a killed one closes its
/// connections some time before it is gone.
const ENDING: Duration = Duration::from_mins(1);

/// What a server says that fails to start for a reason that passes: another process took the port in the meantime, or
/// the children of a killed predecessor have not noticed yet.
const PASSING: [&str; 2] = ["Address already in use", "pre-existing shared memory block"];

/// How a server is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Disconnects everybody, rolls back, writes everything out.
    Fast,
    /// As if the power went: the next start recovers from the log.
    Immediate,
}

/// A PostgreSQL server. Clones are the same server; it ends with the last of them and of its databases.
#[derive(Debug, Clone)]
pub struct Server {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    endpoint: Endpoint,
    /// Absent if somebody else started it.
    own: Option<OwnedProcess>,
}

/// What only the one who started a server has. The process ends before its directory: fields are dropped in order.
#[derive(Debug)]
pub(super) struct OwnedProcess {
    process: Mutex<Option<Running>>,
    pub(super) programs: Programs,
    port: u16,
    tcp: bool,
    home: GuardedDirectory,
}

/// The server that [`Server::shared`] started, while somebody uses it.
static SHARED: Mutex<Weak<Inner>> = Mutex::new(Weak::new());

impl Server {
    /// Starts a server on a new data directory and waits until it answers.
    pub fn start(options: &Options) -> Result<Server> {
        let programs = Programs::find()?;
        let home = GuardedDirectory::new()?;
        init(&home, &programs, options)?;
        Server::launch(home, programs, options)
    }

    /// Starts a server on a data directory that is complete, and waits until it answers.
    pub(super) fn launch(home: GuardedDirectory, programs: Programs, options: &Options) -> Result<Server> {
        let port = if options.tcp { free_port()? } else { SOCKET_PORT };
        let endpoint = Endpoint::superuser(SocketKind::Socket(home.path().to_owned()), port);
        let own = OwnedProcess { process: Mutex::default(), programs, port, tcp: options.tcp, home };
        own.start()?;
        Ok(Server { inner: Arc::new(Inner { endpoint, own: Some(own) }) })
    }

    /// The server that all tests share: the one that [`SERVER_VARIABLE`] names, or else one of this process, which is
    /// started by the first who asks and ends with the last handle.
    pub fn shared() -> Result<Server> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(inner) = shared.upgrade() {
            return Ok(Server { inner });
        }
        let server = match std::env::var(SERVER_VARIABLE) {
            Ok(address) => Server::at(&address)?,
            Err(_) => Server::start(&Options::new())?,
        };
        *shared = Arc::downgrade(&server.inner);
        Ok(server)
    }

    /// A server that somebody else started and will stop.
    pub fn at(address: &str) -> Result<Server> {
        let endpoint = Endpoint::parse(address)?;
        Ok(Server { inner: Arc::new(Inner { endpoint, own: None }) })
    }

    /// Stops it and waits until it is gone. A server that has ended already is no error.
    pub fn stop(&self, how: Stop) -> Result<()> {
        let Some(mut process) = self.own()?.lock().take() else { return Ok(()) };
        let signal = match how {
            Stop::Fast => Signal::INT,
            Stop::Immediate => Signal::QUIT,
        };
        process.end(signal, PATIENCE)
    }

    /// Starts a stopped or killed server on its old data, at its old address, and waits until it answers. If it is
    /// about to end because of a signal, that is waited for.
    pub fn start_again(&self) -> Result<()> {
        self.own()?.start()
    }

    /// Stops it and starts it again.
    pub fn restart(&self, how: Stop) -> Result<()> {
        self.stop(how)?;
        self.start_again()
    }

    /// Sends a signal to the server's first process: `STOP` so that nobody new is let in, `KILL` for a crash.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.own()?.lock().as_ref().ok_or(Error::Stopped)?.signal(signal)
    }

    /// The address of a database; through the Unix socket, if the server was started here.
    pub fn url(&self, database: &str) -> String {
        self.inner.endpoint.url(database)
    }

    /// The address of a database through TCP, if the server listens there.
    pub fn tcp_url(&self, database: &str) -> Option<String> {
        let endpoint = match &self.inner.own {
            Some(own) if own.tcp => {
                Endpoint::superuser(SocketKind::Tcp(Ipv4Addr::LOCALHOST.to_string()), own.port)
            }
            None if matches!(self.inner.endpoint.host, SocketKind::Tcp(_)) => self.inner.endpoint.clone(),
            _ => return None,
        };
        Some(endpoint.url(database))
    }

    /// The directory of the Unix socket, if there is one.
    pub fn socket_dir(&self) -> Option<&Path> {
        match &self.inner.endpoint.host {
            SocketKind::Socket(path) => Some(path),
            SocketKind::Tcp(_) => None,
        }
    }

    /// The port, which also names the file of the Unix socket.
    pub fn port(&self) -> u16 {
        self.inner.endpoint.port
    }

    /// The directory of the server's programs, such as `pg_dump`: those of the system if somebody else started it.
    pub fn bin(&self) -> Result<PathBuf> {
        self.inner.own.as_ref().map_or_else(|| Ok(Programs::find()?.bin), |own| Ok(own.programs.bin.clone()))
    }

    /// The major version of the server's programs.
    pub fn version(&self) -> Result<u32> {
        self.inner.own.as_ref().map_or_else(|| Ok(Programs::find()?.version), |own| Ok(own.programs.version))
    }

    /// All that the server has logged since its last start.
    pub fn log(&self) -> Result<String> {
        let path = self.own()?.home.path().join("postgres.log");
        let log = std::fs::read(&path).map_err(Error::io(format!("reading {}", path.display())))?;
        Ok(String::from_utf8_lossy(&log).into_owned())
    }

    /// Runs statements without arguments in a database; the rows of all of them, as text.
    pub fn sql(&self, database: &str, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
        client::visit(&self.inner.endpoint, database, |client| client::sql(client, sql))
    }

    /// Whether the server and all that is on it go away when this handle does.
    pub(super) fn ends_with_this_handle(&self) -> bool {
        self.inner.own.is_some() && Arc::strong_count(&self.inner) == 1
    }

    /// Where it listens.
    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.inner.endpoint
    }

    pub(super) fn own(&self) -> Result<&OwnedProcess> {
        self.inner.own.as_ref().ok_or(Error::NotOurs)
    }
}

impl OwnedProcess {
    fn lock(&self) -> MutexGuard<'_, Option<Running>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process that all others are children of, while it runs.
    pub(super) fn first_process(&self) -> Option<Pid> {
        let process = self.lock();
        Pid::from_raw(i32::try_from(process.as_ref()?.id()).ok()?)
    }

    /// Waits until the process that got a signal is gone.
    pub(super) fn gone(&self) -> Result<()> {
        let Some(mut process) = self.lock().take() else { return Ok(()) };
        process.end(Signal::KILL, ENDING)
    }

    /// Starts the process, once its predecessor has ended.
    fn start(&self) -> Result<()> {
        let mut process = self.lock();
        if let Some(mut running) = process.take()
            && wait::until(ENDING, || running.ended())?.is_none()
        {
            *process = Some(running);
            return Err(Error::Running);
        }
        let started = wait::until(PATIENCE, || match self.launch() {
            Err(Error::Program { output, .. }) if PASSING.iter().any(|reason| output.contains(reason)) => {
                Ok(None)
            }
            other => other.map(Some),
        })?;
        let started = started.ok_or_else(|| Error::Program {
            program: "postgres".to_owned(),
            what: format!("could not be started within {} s", PATIENCE.as_secs()),
            output: format!("port {} or the data directory is still in use", self.port),
        })?;
        *process = Some(started);
        Ok(())
    }

    fn launch(&self) -> Result<Running> {
        let home = self.home.path();
        let (data, lock_file) = (home.join("data"), home.join("data/postmaster.pid"));
        let listen = if self.tcp { Ipv4Addr::LOCALHOST.to_string() } else { String::new() };
        let args: Vec<OsString> = vec![
            "-D".into(),
            data.into(),
            "-p".into(),
            self.port.to_string().into(),
            "-k".into(),
            home.into(),
            "-c".into(),
            format!("listen_addresses={listen}").into(),
        ];
        // The log tells of this start alone, so that an error shows no older one.
        let _removed = std::fs::remove_file(home.join("postgres.log"));
        let mut process = self.home.start("postgres", &self.programs.bin.join("postgres"), &args)?;
        let id = process.id().to_string();
        process
            .ready(PATIENCE, || is_ready(&std::fs::read_to_string(&lock_file).unwrap_or_default(), &id))?;
        Ok(process)
    }
}

/// Makes the data directory.
fn init(home: &GuardedDirectory, programs: &Programs, options: &Options) -> Result<()> {
    let args = ["-D", "data", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C", "-A", "trust"];
    home.run(&programs.bin.join("initdb"), &args)?;
    let conf = home.path().join("data/postgresql.conf");
    let made = std::fs::read_to_string(&conf).map_err(Error::io(format!("reading {}", conf.display())))?;
    home.write("data/postgresql.conf", (made + &options.conf()).as_bytes())?;
    home.write("data/pg_hba.conf", options.hba().as_bytes())?;
    for (name, contents) in &options.files {
        home.write(&format!("data/{name}"), contents)?;
    }
    Ok(())
}

/// Whether a server's lock file is of this process and says that it lets clients in: its first and its eighth line.
fn is_ready(lock_file: &str, id: &str) -> bool {
    let mut lines = lock_file.lines().map(str::trim);
    lines.next() == Some(id) && lines.nth(6) == Some("ready")
}

/// A port that nobody listens on. Somebody else may take it before we do, so who uses it must try again.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Error::io("finding a free port"))?;
    Ok(listener.local_addr().map_err(Error::io("finding a free port"))?.port())
}

#[cfg(test)]
mod tests {
    use super::is_ready;

    #[test]
    fn lock_file_of_another_process_or_of_a_starting_server_is_not_ready() {
        let file = |id, status| format!("{id}\n/data\n1\n5432\n/tmp\n\n  1  2\n{status}\n");
        assert!(is_ready(&file("42", "ready   "), "42"));
        assert!(!is_ready(&file("41", "ready   "), "42"));
        assert!(!is_ready(&file("42", "starting"), "42"));
        assert!(!is_ready("42\n/data\n", "42"));
        assert!(!is_ready("", "42"));
    }
}
