//! The faults that tests inject into a Postgres and into the way to it: each does what it says, and no more.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mainspring_testkit::patience::PATIENCE;
use mainspring_testkit::postgres::{Cut, Database, Options, Proxy, Server, Stop};
use postgres::{Client, NoTls};

/// Waits for a condition.
#[expect(clippy::disallowed_methods, reason = "other processes live on the real clock")]
fn wait(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

/// Does something on a thread of its own.
fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    std::thread::Builder::new().spawn(work).expect("a thread")
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

fn count(server: &Server, database: &str) -> usize {
    server.sql(database, "SELECT n FROM t").expect("an answer").len()
}

#[test]
fn a_message_full_of_rows_is_cut_in_its_middle() {
    let (database, proxy) = rig();
    let rows: Vec<i32> = (0..1000).collect();
    let insert = "INSERT INTO t SELECT unnest($1::int[])";
    let mut client = connect(&database, &proxy);
    client.execute(insert, &[&vec![1]]).expect("a row");
    proxy.on_rows(1000);
    client.execute(insert, &[&vec![2]]).expect("few bytes are none of its business");
    client.execute(insert, &[&rows]).expect_err("a cut connection");
    assert_eq!((count(database.server(), database.name()), proxy.counts().cuts), (2, 1));

    let mut client = connect(&database, &proxy);
    proxy.on_rows(1000);
    let mut copy = client.copy_in("COPY t FROM STDIN").expect("a copy");
    let text = rows.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    let written = copy.write_all(text.as_bytes()).and_then(|()| copy.flush());
    let failed = written.is_err() || copy.finish().is_err();
    assert!(failed, "copied data is rows too");
    assert_eq!((count(database.server(), database.name()), proxy.counts().cuts), (2, 2));
}

#[test]
fn half_a_commit_is_none() {
    let (database, proxy) = rig();
    let mut client = connect(&database, &proxy);
    proxy.on_commit(Cut::Inside, 1);
    client.batch_execute("BEGIN").expect("begun");
    client.execute("INSERT INTO t VALUES (1)", &[]).expect("a row");
    client.batch_execute("COMMIT").expect_err("a cut connection");
    assert_eq!(count(database.server(), database.name()), 0);
}

/// Its client may never say another word on that connection, and so never swallow or cut anything that could be counted.
#[test]
fn a_lost_batch_counts_when_it_is_lost() {
    let (database, proxy) = rig();
    let mut client = connect(&database, &proxy);
    proxy.on_batch(Cut::Lost, 1);
    let lost = apart(move || client.batch_execute("INSERT INTO t VALUES (1)"));
    wait("it was met", || proxy.counts().hits == 1);
    assert_eq!((proxy.counts().cuts, count(database.server(), database.name())), (0, 0));
    proxy.cut_all();
    lost.join().expect("a thread").expect_err("the connection is gone");
}

#[test]
fn only_who_listens_is_cut() {
    let (database, proxy) = rig();
    let (mut deaf, mut ear) = (connect(&database, &proxy), connect(&database, &proxy));
    ear.batch_execute("LISTEN news").expect("it listens");
    assert_eq!(proxy.cut_listeners(), 1);
    ear.batch_execute("SELECT 1").expect_err("a cut connection");
    deaf.batch_execute("SELECT 1").expect("not cut");
}

#[test]
fn a_black_hole_takes_everything_and_gives_nothing_back() {
    let (database, proxy) = rig();
    let (mut idle, mut busy) = (connect(&database, &proxy), connect(&database, &proxy));
    proxy.swallow(true);
    let lost = apart(move || busy.batch_execute("INSERT INTO t VALUES (1)"));
    let mut fresh = TcpStream::connect(("127.0.0.1", proxy.port())).expect("new ones are welcome");
    // The question for encryption, which a server answers with one letter.
    fresh.write_all(&[0, 0, 0, 8, 4, 210, 22, 47]).expect("bytes are taken");
    // The statement alone has 30.
    wait("both were swallowed", || proxy.counts().swallowed > 30);
    proxy.swallow(false);
    fresh.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
    fresh.read(&mut [0]).expect_err("lost for good");
    idle.batch_execute("SELECT 1").expect("who said nothing has lost nothing");
    connect(&database, &proxy).batch_execute("SELECT 1").expect("a new connection");
    assert!(!lost.is_finished());
    proxy.cut_all();
    lost.join().expect("a thread").expect_err("never answered");
    assert_eq!(count(database.server(), database.name()), 0);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the delay is one of the real clock")]
fn bytes_take_their_time() {
    let (database, proxy) = rig();
    let mut client = connect(&database, &proxy);
    proxy.drag(Duration::from_millis(20));
    let began = Instant::now();
    let text = "x".repeat(4096);
    client.batch_execute(&format!("SELECT '{text}'")).expect("an answer");
    // Four kilobytes there and four back.
    assert!(began.elapsed() >= Duration::from_millis(160), "{:?}", began.elapsed());
}

#[test]
fn a_killed_session_takes_all_others_with_it_and_the_server_recovers() {
    let server = Server::start(&Options::new()).expect("a server");
    let mut bystander = Client::connect(&server.url("postgres"), NoTls).expect("a client");
    let mut victim = Client::connect(&server.url("postgres"), NoTls).expect("a client");
    let pid: i32 = victim.query_one("SELECT pg_backend_pid()", &[]).expect("an answer").get(0);
    assert!(server.sessions("postgres", "true").expect("sessions").contains(&pid));
    assert!(server.kill_session(pid).expect("a signal"));
    wait("the others are ended", || bystander.batch_execute("SELECT 1").is_err());
    wait("it is back", || server.sql("postgres", "SELECT 1").is_ok());
    let mut other = Client::connect(&server.url("postgres"), NoTls).expect("a client");
    let pid: i32 = other.query_one("SELECT pg_backend_pid()", &[]).expect("an answer").get(0);
    assert_eq!(server.end_sessions(&[pid]).expect("an answer"), 1);
    wait("it was ended", || other.batch_execute("SELECT 1").is_err());
}

#[test]
fn a_standby_has_all_that_was_acknowledged_and_takes_over() {
    let primary = Server::start(&Options::new().with_standby()).expect("a server");
    primary.sql("postgres", "CREATE TABLE t (n int)").expect("a table");
    let standby = primary.standby(&Options::new()).expect("a standby");
    primary.wait_for_standby().expect("synchronous");
    let proxy = Proxy::start(&primary).expect("a proxy");
    primary.sql("postgres", "INSERT INTO t VALUES (1)").expect("acknowledged");
    assert!(standby.sql("postgres", "INSERT INTO t VALUES (2)").is_err(), "a standby is read only");

    standby.stop(Stop::Fast).expect("stopped");
    let mut client = Client::connect(&proxy.url("postgres"), NoTls).expect("a client");
    let waits = apart(move || client.batch_execute("INSERT INTO t VALUES (3)"));
    let waiting = "wait_event = 'SyncRep'";
    wait("the commit waits", || !primary.sessions("postgres", waiting).expect("sessions").is_empty());
    standby.start_again().expect("started");
    waits.join().expect("a thread").expect("acknowledged when the standby was back");
    wait("it follows again", || primary.has_standby().expect("an answer"));

    primary.sql("postgres", "INSERT INTO t VALUES (4)").expect("acknowledged");
    primary.crash().expect("a crash");
    assert!(primary.sql("postgres", "SELECT 1").is_err());
    standby.promote().expect("promoted");
    assert_eq!(count(&standby, "postgres"), 3);
    proxy.lead_to(&standby);
    let mut client = Client::connect(&proxy.url("postgres"), NoTls).expect("a client");
    client.batch_execute("INSERT INTO t VALUES (5)").expect("it waits for nobody");

    // A new standby of the new primary.
    let next = standby.standby(&Options::new()).expect("a standby");
    standby.wait_for_standby().expect("synchronous");
    standby.sql("postgres", "INSERT INTO t VALUES (6)").expect("acknowledged");
    standby.crash().expect("a crash");
    next.promote().expect("promoted");
    assert_eq!(count(&next, "postgres"), 5);
}
