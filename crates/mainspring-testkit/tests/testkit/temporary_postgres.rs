//! The temporary PostgreSQL itself: it starts, keeps its data, can be shared, and leaves nothing behind. What stands in front of it
//! bounces, cuts and counts.
//!
//! Some facts need a second process. It is this test binary again, with one test selected and [`ROLE`] set.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mainspring_testkit::patience::PATIENCE;
use mainspring_testkit::postgres::{
    Bouncer, Counts, Cut, Database, Options, Proxy, SERVER_VARIABLE, Server, Signal, Stop,
};
use postgres::{Client, NoTls};

/// Set in a second process; the value is what that process needs to know.
const ROLE: &str = "MAINSPRING_TEST_ROLE";

/// Waits for a condition.
#[expect(clippy::disallowed_methods, reason = "other processes live on the real clock")]
fn wait(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

/// One value of one row.
fn value(rows: &[Vec<Option<String>>]) -> &str {
    let [row] = rows else { panic!("one row, not {rows:?}") };
    row[0].as_deref().expect("a value")
}

/// This binary, with one of its tests, as a second process.
fn again(test: &str, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args(["--exact", &format!("temporary_postgres::{test}"), "--nocapture"])
        .env(ROLE, role)
        .stdin(Stdio::null());
    command
}

fn start(options: &Options) -> Server {
    Server::start(options).expect("a server")
}

fn home(server: &Server) -> PathBuf {
    server.socket_dir().expect("a socket").to_owned()
}

/// The first process of the server in a directory.
fn postmaster(home: &Path) -> String {
    let file = std::fs::read_to_string(home.join("postgres.pid")).expect("a process id");
    file.trim().to_owned()
}

/// Whether a process is there and has not ended.
fn is_alive(pid: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}

#[test]
fn nothing_is_left_after_the_last_handle() {
    let server = start(&Options::new());
    let (home, pid) = (home(&server), postmaster(&home(&server)));
    let database = server.database().expect("a database");
    assert!(is_alive(&pid));
    drop(server);
    assert_eq!(value(&database.sql("SELECT 1").expect("a database keeps its server")), "1");
    drop(database);
    assert!(!is_alive(&pid));
    assert!(!home.exists());
}

#[test]
fn nothing_is_left_after_a_panic() {
    let panicked = std::thread::scope(|scope| {
        let doomed = scope.spawn(|| -> () {
            let server = start(&Options::new());
            std::panic::panic_any(home(&server));
        });
        doomed.join().expect_err("it panics")
    });
    let home = panicked.downcast::<PathBuf>().expect("the directory");
    assert!(!home.exists());
}

#[test]
fn nothing_is_left_after_the_process_was_killed() {
    if std::env::var_os(ROLE).is_some() {
        let server = start(&Options::new());
        println!("\nhome={}", home(&server).display());
        // Until killed.
        loop {
            std::thread::park();
        }
    }
    let mut child: Child = again("nothing_is_left_after_the_process_was_killed", "server")
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let lines = BufReader::new(child.stdout.take().expect("its output")).lines().map_while(Result::ok);
    let home = lines.into_iter().find_map(|line| line.strip_prefix("home=").map(PathBuf::from));
    let home = home.expect("the directory");
    let pid = postmaster(&home);
    assert!(is_alive(&pid));
    child.kill().and_then(|()| child.wait()).expect("its end");
    wait("the watchdog has cleaned up", || !home.exists() && !is_alive(&pid));
}

#[test]
fn nothing_is_left_after_the_server_was_killed() {
    let server = start(&Options::new());
    let lock = std::fs::read_to_string(home(&server).join("data/postmaster.pid")).expect("a lock file");
    let segment = lock.lines().nth(6).and_then(|line| line.split_whitespace().last()).expect("its memory");
    let segments = || {
        let table = std::fs::read_to_string("/proc/sysvipc/shm").expect("the kernel's table");
        let id = |line: &str| line.split_whitespace().nth(1).map(str::to_owned);
        table.lines().filter_map(id).collect::<Vec<_>>()
    };
    assert!(segments().iter().any(|id| id == segment));
    server.signal(Signal::KILL).expect("a signal");
    drop(server);
    // It goes when the last of the server's children has noticed.
    wait("the memory is gone", || segments().iter().all(|id| id != segment));
}

#[test]
fn data_survives_stops_and_crashes() {
    let server = start(&Options::new().tcp());
    let url = server.tcp_url("postgres").expect("a port");
    server.sql("postgres", "CREATE TABLE t (n int)").expect("a table");
    let stops: [fn(&Server); 3] = [
        |server| server.stop(Stop::Fast).expect("a stop"),
        |server| server.stop(Stop::Immediate).expect("a stop"),
        |server| server.signal(Signal::KILL).expect("a crash"),
    ];
    for stop in stops {
        server.sql("postgres", "INSERT INTO t VALUES (1)").expect("a row");
        stop(&server);
        wait("the server is gone", || server.sql("postgres", "SELECT 1").is_err());
        server.start_again().expect("a start");
        assert_eq!(server.tcp_url("postgres").as_ref(), Some(&url));
    }
    let there = Server::at(&url).expect("an address");
    assert_eq!(value(&there.sql("postgres", "SELECT count(*) FROM t").expect("an answer")), "3");
    assert!(there.stop(Stop::Fast).is_err(), "who did not start it does not stop it");
}

#[test]
fn frozen_server_does_not_hold_up_the_end() {
    let server = start(&Options::new());
    let database = server.database().expect("a database");
    server.signal(Signal::STOP).expect("a signal");
    drop(database);
    server.signal(Signal::STOP).expect("a signal");
    let home = home(&server);
    drop(server);
    assert!(!home.exists());
}

#[test]
fn failed_start_shows_the_log() {
    let error = Server::start(&Options::new().setting("shared_buffers", "plenty")).expect_err("a refusal");
    assert!(format!("{error:?}").contains("invalid value for parameter \"shared_buffers\""), "{error:?}");
}

#[test]
fn server_is_durable_and_configurable() {
    let options = Options::new()
        .file("more.conf", "work_mem = '7MB'")
        .setting("include", "more.conf")
        .setting("cluster_name", "it's")
        .access("local all stranger reject");
    let server = start(&options);
    let show = |name: &str| value(&server.sql("postgres", &format!("SHOW {name}")).expect(name)).to_owned();
    assert_eq!(["fsync", "synchronous_commit", "listen_addresses"].map(show), ["on", "on", ""]);
    assert_eq!(["work_mem", "cluster_name"].map(show), ["7MB", "it's"]);
    server.sql("postgres", "CREATE ROLE stranger LOGIN").expect("a role");
    let stranger = Server::at(&server.url("postgres").replace("//postgres@", "//stranger@"));
    let refused = stranger.expect("an address").sql("postgres", "SELECT 1").expect_err("no entry");
    assert!(format!("{refused:?}").contains("rejects connection"), "{refused:?}");
}

#[test]
fn template_is_made_once_for_all_processes() {
    let test = "template_is_made_once_for_all_processes";
    if let Some(notes) = std::env::var_os(ROLE) {
        let server = Server::shared().expect("the server of the run");
        let template = server.template("once", |url| {
            // Two notes at once would show that two prepared it.
            std::fs::File::options().create_new(true).write(true).open(&notes)?;
            let made = Server::at(url).and_then(|draft| draft.sql("once in the making", "CREATE TABLE t ()"));
            made.map_err(|error| std::io::Error::other(format!("{error:?}")))?;
            Ok::<(), std::io::Error>(())
        });
        let database = template.expect("a template").database().expect("a copy");
        assert!(database.sql("TABLE t").expect("the template's table").is_empty());
        return;
    }
    let server = start(&Options::new());
    let dir = tempfile::tempdir().expect("a directory");
    let notes = dir.path().join("prepared");
    let process = |_| {
        let mut command = again(test, notes.to_str().expect("a plain path"));
        command.env(SERVER_VARIABLE, server.url("postgres")).stdout(Stdio::null());
        command.spawn().expect("a process")
    };
    let processes: Vec<Child> = (0..4).map(process).collect();
    for mut process in processes {
        assert!(process.wait().expect("its end").success());
    }
    assert!(notes.exists());
    let left = server.sql("postgres", "SELECT datname FROM pg_database WHERE datname LIKE 'test%'");
    assert!(left.expect("databases").is_empty(), "the copies are removed");
}

#[test]
fn failed_template_is_made_again() {
    let server = start(&Options::new());
    let failed = server.template("t", |_| Err("not today")).expect_err("a failure");
    assert_eq!(format!("{failed:?}"), "template `t` could not be prepared: not today");
    // Who prepares it may forget to disconnect.
    let mut connected = None;
    let template = server.template("t", |url| {
        connected = Some(Client::connect(url, NoTls)?);
        Ok::<(), postgres::Error>(())
    });
    drop(template.expect("a template").database().expect("a copy"));
}

#[tokio::test]
async fn all_of_it_works_inside_of_a_runtime() {
    let server = Server::shared().expect("a server");
    let template = server.template("runtime", |_| {
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        runtime.block_on(async { Ok::<(), std::io::Error>(()) })
    });
    let database = template.expect("a template").database().expect("a database");
    assert_eq!(value(&database.sql("SELECT 1").expect("an answer")), "1");
}

#[test]
fn bouncer_hands_each_transaction_a_connection() {
    let server = Server::shared().expect("a server");
    let database = server.database().expect("a database");
    let bouncer = Bouncer::start_with(&server, &[("default_pool_size", "1")]).expect("a bouncer");
    let url = bouncer.url(database.name());
    let connect = || Client::connect(&url, NoTls).expect("a client");
    let (mut one, mut two) = (connect(), connect());
    let pid = |client: &mut Client| {
        let rows = client.simple_query("SELECT pg_backend_pid()").expect("an answer");
        rows.iter().find_map(|row| match row {
            postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        })
    };
    assert_eq!(pid(&mut one), pid(&mut two), "two clients share the one connection");
    let home = Server::at(&url).expect("an address").socket_dir().expect("a socket").to_owned();
    drop(bouncer);
    assert!(!home.exists());
}

/// A database with an empty table and a proxy in front of it.
fn rig() -> (Database, Proxy) {
    let database = Server::shared().and_then(|server| server.database()).expect("a database");
    database.sql("CREATE TABLE t (n int)").expect("a table");
    let proxy = Proxy::start(database.server()).expect("a proxy");
    (database, proxy)
}

fn connect(database: &Database, proxy: &Proxy) -> Client {
    Client::connect(&proxy.url(database.name()), NoTls).expect("a client")
}

/// How many rows are committed, asked past the proxy.
fn count(database: &Database) -> usize {
    database.sql("SELECT n FROM t").expect("an answer").len()
}

/// A client's way to insert a row and commit it.
type Way = fn(&mut Client) -> Result<(), postgres::Error>;

const INSERT: &str = "INSERT INTO t VALUES (1)";

/// With `COMMIT` as a simple query, as one of several statements, and as a prepared statement.
const WAYS: [Way; 3] = [
    |client| {
        let mut transaction = client.transaction()?;
        transaction.execute(INSERT, &[])?;
        transaction.commit()
    },
    |client| client.batch_execute(&format!("BEGIN; {INSERT}; COMMIT")),
    |client| {
        client.batch_execute("BEGIN")?;
        client.execute(INSERT, &[])?;
        client.execute("COMMIT", &[]).map(drop)
    },
];

#[test]
fn commit_is_lost_before_and_kept_after() {
    let (database, proxy) = rig();
    for (done, way) in (1..).zip(WAYS) {
        for cut in [Cut::Before, Cut::After] {
            let before = count(&database);
            let mut client = connect(&database, &proxy);
            proxy.on_commit(cut, 1);
            let error = way(&mut client).expect_err("the connection is cut");
            assert!(error.is_closed() || error.code().is_none(), "no word from the server: {error:?}");
            let kept = usize::from(cut == Cut::After);
            assert_eq!(count(&database), before + kept, "way {done}, {cut:?}");
        }
        let counts = proxy.counts();
        assert_eq!((counts.commits, counts.cuts), (2 * done, 2 * done));
    }
    let mut client = connect(&database, &proxy);
    WAYS[0](&mut client).expect("the plan is used up");
}

#[test]
fn statement_without_a_transaction_is_cut_by_its_batch() {
    let (database, proxy) = rig();
    for (cut, kept) in [(Cut::Before, 0), (Cut::After, 1)] {
        let mut client = connect(&database, &proxy);
        let insert = client.prepare(INSERT).expect("a statement");
        proxy.on_batch(cut, 2);
        client.batch_execute("SELECT 1").expect("the first passes");
        client.execute(&insert, &[]).expect_err("the second is cut");
        assert_eq!(count(&database), kept, "{cut:?}");
    }
}

#[test]
fn cut_connections_fail_and_new_ones_work() {
    let (database, proxy) = rig();
    let mut clients = [connect(&database, &proxy), connect(&database, &proxy)];
    assert_eq!(proxy.cut_all(), 2);
    for client in &mut clients {
        client.batch_execute("SELECT 1").expect_err("a cut connection");
    }
    assert_eq!(proxy.cut_all(), 0);
    connect(&database, &proxy).batch_execute("SELECT 1").expect("a new connection");
    assert_eq!(proxy.counts().cuts, 2);
}

#[test]
fn held_bytes_arrive_after_all() {
    let (_database, proxy) = rig();
    let port = Server::at(&proxy.url("postgres")).expect("an address").port();
    proxy.hold();
    let mut client =
        TcpStream::connect(("127.0.0.1", port)).expect("accepted, as by a network that is silent");
    // The question for encryption, which a server without it answers with one letter.
    client.write_all(&[0, 0, 0, 8, 4, 210, 22, 47]).expect("bytes are taken");
    client.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
    let mut answer = [0];
    client.read(&mut answer).expect_err("no answer");
    proxy.resume();
    client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    client.read_exact(&mut answer).expect("the answer");
    assert_eq!(answer, *b"N");
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the delay is one of the real clock")]
fn slow_connection_takes_its_time_and_round_trips_are_counted() {
    let (database, proxy) = rig();
    let mut client = connect(&database, &proxy);
    let insert = client.prepare(INSERT).expect("a statement");
    let before = proxy.counts();
    proxy.slow(Duration::from_millis(20));
    let start = Instant::now();
    client.execute(&insert, &[]).expect("a row");
    client.batch_execute("BEGIN; SELECT 1; COMMIT").expect("an answer");
    assert!(start.elapsed() >= Duration::from_millis(40));
    let expected = Counts {
        batches: before.batches + 2,
        commits: before.commits + 1,
        round_trips: before.round_trips + 2,
        ..before
    };
    assert_eq!(proxy.counts(), expected);
    assert_eq!((before.connections, before.batches, before.round_trips), (1, 1, 1));
}
