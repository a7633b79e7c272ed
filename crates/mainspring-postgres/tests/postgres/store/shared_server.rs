//! What the settings of a database, a pooler or a busy neighbour on the same server can do to the store.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use mainspring_core::Error;
use mainspring_core::id::ClaimBatchNo;
use mainspring_core::job::Outcome;
use mainspring_core::seam::Threads;
use mainspring_core::store::{ClaimRequest, Finish, Finished, Hint, Listener, Receipt, Store};
use mainspring_postgres::{Options, Postgres};
use mainspring_testkit::clock::ManualClock;
use mainspring_testkit::executor::block_on;
use mainspring_testkit::harness::{Harness, kind, queue};
use mainspring_testkit::patience::PATIENCE;
use mainspring_testkit::postgres::Database;
use mainspring_testkit::seams::RealThreads;
use postgres::{Client, NoTls};

use crate::support::{database, now, real_seams, with};

/// Stores in the database's own time.
fn real(database: &Arc<Database>, url: String, change: fn(Options) -> Options) -> Harness {
    let owner = Arc::clone(database);
    Harness::new(ManualClock::new(), move || -> Arc<dyn Store> {
        let _while_somebody_is_connected = &owner;
        let options = change(Options::new(&url).expect("an address"));
        Arc::new(block_on(Postgres::open(options, real_seams())).expect("the store opens"))
    })
}

/// A session of somebody else.
fn session(database: &Database) -> Client {
    Client::connect(&database.url(), NoTls).expect("a session")
}

/// Waits for a condition.
fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = now();
    while !condition() {
        assert!(now() - start < PATIENCE, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

/// Somebody who wants to hear.
#[derive(Default)]
struct HintListener {
    foreign: Mutex<bool>,
    heard: Condvar,
}

impl Listener for HintListener {
    fn hint(&self, hint: &Hint) {
        if *hint == Hint::Foreign {
            *self.foreign.lock().unwrap_or_else(PoisonError::into_inner) = true;
            self.heard.notify_all();
        }
    }
}

/// Subscribes and waits until the store listens: the first thing it then tells is that anything may have happened.
fn subscribe(store: &dyn Store) -> Arc<HintListener> {
    let ears = Arc::new(HintListener::default());
    let listener: Arc<dyn Listener> = ears.clone();
    store.subscribe(Arc::downgrade(&listener));
    let foreign = ears.foreign.lock().unwrap_or_else(PoisonError::into_inner);
    let (foreign, timeout) = ears
        .heard
        .wait_timeout_while(foreign, PATIENCE, |foreign| !*foreign)
        .unwrap_or_else(PoisonError::into_inner);
    drop(foreign);
    assert!(!timeout.timed_out(), "it does not listen");
    ears
}

/// A claim that waits for the lock of its node sees what was committed by whoever held it, also where a database has
/// another default isolation and a pooler lets no session be set up.
#[test]
fn expired_node_claims_nothing_whatever_the_default_isolation() {
    for pooler in ["connect_timeout=10", "pooler=transaction"] {
        let database = Arc::new(database());
        let mut other = session(&database);
        let name = database.name();
        let alter =
            format!("ALTER DATABASE \"{name}\" SET default_transaction_isolation = 'repeatable read'");
        other.batch_execute(&alter).expect("a default");
        let h = real(&database, with(&database.url(), pooler), |options| options);
        block_on(h.put_one());
        let node = block_on(h.node());
        let class = "(('x' || left(value, 8))::bit(32)::int)";
        let judge = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED;
            SELECT pg_advisory_xact_lock({class}, {node}) FROM mainspring.meta WHERE key = 'store';
            UPDATE mainspring.nodes SET state = 2 WHERE no = {node}"
        );
        other.batch_execute(&judge).expect("a judge");
        std::thread::scope(|scope| {
            let request = h.request(node, 1);
            let claim = scope.spawn(|| block_on(h.try_claim(request)));
            let mut watcher = session(&database);
            eventually("the claim waits", || {
                let waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
                    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
                !watcher.query(waiting, &[]).expect("locks").is_empty()
            });
            other.batch_execute("COMMIT").expect("expired");
            let claimed = claim.join().expect("no panic");
            assert!(matches!(claimed, Err(Error::LeaseLost)), "{pooler}: {claimed:?}");
        });
    }
}

/// A node that is registered by a second handle adopts what it claimed through the first.
#[test]
fn batch_is_adopted_by_whoever_registers_the_node_again() {
    let database = Arc::new(database());
    let h = real(&database, database.url(), |options| options);
    block_on(h.put_many(4));
    let registration = h.registration();
    let node = block_on(h.store.register(registration.clone())).expect("register").no;
    let request = ClaimRequest {
        ahead: Vec::new(),
        node,
        batch: ClaimBatchNo(1),
        queues: vec![(queue("q"), 2)],
        suspects: usize::MAX,
    };
    let first = block_on(h.try_claim(request.clone())).expect("claim");
    assert_eq!(first.len(), 2);
    let other = h.other();
    assert_eq!(block_on(other.register(registration)).expect("register again").no, node);
    let again = block_on(other.claim(request)).expect("claim again").jobs;
    let claims = |jobs: &[mainspring_core::store::Claimed]| {
        let mut claims: Vec<_> = jobs.iter().map(|job| (job.claim.row.0, job.claim.number)).collect();
        claims.sort_unstable();
        claims
    };
    assert_eq!(claims(&first), claims(&again));
}

/// A claim that meets a job in somebody else's hands fills up from other lines, and does not take those for empty.
#[test]
fn job_in_other_hands_does_not_hide_other_lines() {
    let database = Arc::new(database());
    let h = real(&database, database.url(), |options| options);
    let node = block_on(h.node());
    let _ears = subscribe(&*h.store);
    block_on(h.put_one());
    for _ in 0..30 {
        block_on(h.put(h.job_with(|job| job.kind = kind("k2"))));
    }
    let mut other = session(&database);
    let mut held = other.transaction().expect("a transaction");
    held.execute("SELECT 1 FROM mainspring.ready ORDER BY no LIMIT 1 FOR UPDATE", &[]).expect("a lock");
    assert_eq!(block_on(h.claim(node, 10)).len(), 10, "there is enough for all");
    assert_eq!(block_on(h.claim(node, 10)).len(), 10, "and there is more");
}

/// What is committed is not said to have failed because of what comes after it.
#[test]
fn outcome_is_applied_though_its_hint_cannot_be_told() {
    let database = Arc::new(database());
    let h = real(&database, database.url(), |options| options.timeout(Duration::from_secs(1)));
    // It was opened before there was such a line.
    let other = h.other();
    let (node, claim) = block_on(h.running());
    let mut neighbour = session(&database);
    let mut locked = neighbour.transaction().expect("a transaction");
    locked.batch_execute("LOCK TABLE mainspring.queues").expect("a lock");
    let finished = block_on(other.finish(node, vec![Finish { claim, outcome: Outcome::Release }]));
    assert_eq!(finished.expect("it is committed"), [Finished::Applied]);
}

/// A lost commit is unknown also if it is a pooler that says so, in fewer words than a server.
#[test]
fn commit_that_a_pooler_lost_is_unknown() {
    let database = Arc::new(database());
    let proxy = Proxy::start(&database);
    let h = real(&database, proxy.url(&database), |options| options);
    block_on(h.put_one());
    proxy.armed.store(true, Ordering::SeqCst);
    let job = h.job();
    let lost = block_on(h.store.enqueue(vec![job.clone()]));
    assert!(matches!(lost, Err(Error::OutcomeUnknown { .. })), "{lost:?}");
    assert_eq!(block_on(h.store.enqueue(vec![job])).expect("again"), [Receipt::Repeated]);
    assert_eq!(
        database.sql("SELECT count(*) FROM mainspring.jobs").expect("a count")[0][0],
        Some("2".into())
    );
}

/// Passes everything on until it is armed: then it lets one commit through, and says only what a pooler says whose server
/// is gone.
struct Proxy {
    directory: PathBuf,
    armed: Arc<AtomicBool>,
}

impl Proxy {
    fn start(database: &Database) -> Proxy {
        let directory = PathBuf::from(format!("/tmp/attack-{}", database.name()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let listener = UnixListener::bind(directory.join(".s.PGSQL.5432")).expect("a socket");
        let server = database.server();
        let upstream = server.socket_dir().expect("a socket").join(format!(".s.PGSQL.{}", server.port()));
        let armed = Arc::new(AtomicBool::new(false));
        let trap = Arc::clone(&armed);
        let accept = move || {
            for client in listener.incoming() {
                let (client, upstream, trap) =
                    (client.expect("a client"), upstream.clone(), Arc::clone(&trap));
                thread(move || pass(&client, &upstream, &trap));
            }
        };
        thread(accept);
        Proxy { directory, armed }
    }

    fn url(&self, database: &Database) -> String {
        format!(
            "postgresql://postgres@/{}?host={}&port=5432&pooler=transaction",
            database.name(),
            self.directory.display()
        )
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.directory));
    }
}

fn thread(body: impl FnOnce() + Send + 'static) {
    Threads::spawn(&RealThreads, "proxy", Box::new(body)).expect("a thread");
}

fn pass(client: &UnixStream, upstream: &Path, armed: &AtomicBool) {
    let server = UnixStream::connect(upstream).expect("the server");
    let silent = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = vec![0; 1 << 16];
            while let Ok(count @ 1..) = (&server).read(&mut buffer) {
                if !silent.load(Ordering::SeqCst) && (&*client).write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
            if silent.load(Ordering::SeqCst) {
                let words = b"SFATAL\0C08P01\0Mserver conn crashed?\0\0";
                let mut message = vec![b'E'];
                message.extend(u32::try_from(words.len() + 4).expect("short").to_be_bytes());
                message.extend(words);
                drop((&*client).write_all(&message));
            }
            drop(client.shutdown(Shutdown::Both));
        });
        let mut buffer = vec![0; 1 << 16];
        while let Ok(count @ 1..) = (&*client).read(&mut buffer) {
            let commit = buffer[..count].windows(6).any(|window| window == b"COMMIT");
            if commit && armed.swap(false, Ordering::SeqCst) {
                silent.store(true, Ordering::SeqCst);
                drop((&server).write_all(&buffer[..count]));
                // Terminate: the server ends the session once it has done all that.
                drop((&server).write_all(&[b'X', 0, 0, 0, 4]));
                continue;
            }
            if (&server).write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        drop(server.shutdown(Shutdown::Both));
    });
}

/// Where dead rows pile up under an old snapshot, a look at all lines takes longer than a call may. Claims go on.
#[test]
fn look_that_takes_too_long_does_not_stop_claims() {
    let database = Arc::new(database());
    let mut other = session(&database);
    let mut old = session(&database);
    let h = real(&database, database.url(), |options| options.timeout(Duration::from_millis(100)));
    let mut node = None;
    eventually("a node", || {
        node = block_on(h.store.register(h.registration())).ok();
        node.is_some() && block_on(h.store.enqueue(vec![h.job()])).is_ok()
    });
    let node = node.expect("it was registered").no;
    let fill =
        "INSERT INTO mainspring.ready (no, ready_at, crashed, line, claim, level, failures, crashes, flags)
        SELECT 1000000 + g, 'epoch', 0, (SELECT max(no) FROM mainspring.lines), 0, 37, 0, 0, 0
        FROM generate_series(1, 2000000) g";
    other.batch_execute("SET synchronous_commit = off").expect("a setting");
    other.batch_execute(fill).expect("rows");
    let snapshot = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM mainspring.meta";
    old.batch_execute(snapshot).expect("a snapshot");
    other.batch_execute("DELETE FROM mainspring.ready WHERE no > 1000000").expect("dead rows");
    let _ears = subscribe(&*h.store);
    for _ in 0..3 {
        eventually("a claim", || {
            drop(block_on(h.store.enqueue(vec![h.job()])));
            let claimed = block_on(h.try_claim(h.request(node, 1)));
            claimed.is_ok_and(|jobs| !jobs.is_empty())
        });
    }
}

/// A renewal takes the pulse along, but does not fail with it: a lease must not lapse because somebody works on a table.
#[test]
fn locked_table_does_not_stop_renewals() {
    let database = Arc::new(database());
    let h = real(&database, database.url(), |options| options.timeout(Duration::from_millis(500)));
    let node = block_on(h.node());
    let _ears = subscribe(&*h.store);
    eventually("a renewal", || block_on(h.try_renew(node)).is_ok());
    let mut other = session(&database);
    let mut locked = other.transaction().expect("a transaction");
    locked.batch_execute("LOCK TABLE mainspring.timers").expect("a lock");
    let mut good = 0;
    eventually("renewals", || {
        let renewed = block_on(h.try_renew(node));
        good = if renewed.is_ok() { good + 1 } else { 0 };
        good == 200
    });
}

/// Whoever gives up opening a store leaves nothing behind.
#[test]
fn store_whose_opening_is_given_up_leaves_no_thread() {
    let directory = tempfile::tempdir().expect("a directory");
    let _silent = UnixListener::bind(directory.path().join(".s.PGSQL.5432")).expect("a socket");
    let url = format!("postgresql://postgres@/x?host={}&port=5432", directory.path().display());
    let ended = Arc::new(AtomicBool::new(false));
    let mut seams = real_seams();
    seams.threads = Arc::new(EndSignal(Arc::clone(&ended)));
    let mut open = Box::pin(Postgres::open(Options::new(&url).expect("an address"), seams));
    let polled = open.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    assert!(polled.is_pending(), "nobody answers");
    drop(open);
    eventually("the thread ends", || ended.load(Ordering::SeqCst));
}

/// Tells when a thread has ended.
struct EndSignal(Arc<AtomicBool>);

impl Threads for EndSignal {
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
        let ended = Arc::clone(&self.0);
        let body = Box::new(move || {
            body();
            ended.store(true, Ordering::SeqCst);
        });
        Threads::spawn(&RealThreads, name, body)
    }
}
