//! Transaction steps: all of it or nothing, and nobody else is harmed.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use mainspring_core::id::{Claim, NodeNo};
use mainspring_core::job::{Outcome, State};
use mainspring_core::journal::{Entry, EntryKind, Recording, Writes};
use mainspring_core::name::Key;
use mainspring_core::seam::{Clock, Pending, Seams, Spawn, Task};
use mainspring_core::store::{
    EnlistSync, Finish, Journals, NodeState, Nodes, Operators, Producers, Renewal, Rescue,
};
use mainspring_core::time::Timestamp;
use rusqlite::ErrorCode;

use super::support::{Fixture, block_on, claim, job, registration};
use crate::transaction_step::{Done, Error, LIMIT, Request, Sql};
use crate::{Options, Sqlite};

/// A store with an account, and a claimed job.
struct World {
    it: Fixture,
    node: NodeNo,
    claim: Claim,
}

impl World {
    fn new() -> Self {
        let it = Fixture::new();
        it.raw()
            .execute_batch("CREATE TABLE account (no INTEGER PRIMARY KEY, sum INTEGER)")
            .expect("a table");
        let (node, claim) = claimed(&it.store, &it.seams);
        World { it, node, claim }
    }

    fn request(&self) -> Request {
        let key = Key::new("pay").expect("a key");
        Request {
            name: "pay".into(),
            limit: LIMIT,
            node: self.node,
            recording: Recording { claim: self.claim, writes: Writes::default(), children: Vec::new() },
            entry: Entry { key, kind: EntryKind::Value, overlapped: false, value: Vec::new(), took: None },
        }
    }

    fn accounts(&self) -> i64 {
        self.it.raw().query_row("SELECT count(*) FROM account", [], |row| row.get(0)).expect("a count")
    }

    /// Nothing of the closure is there, nothing is recorded, and the writer works.
    fn assert_untouched(&self) {
        assert_eq!(self.accounts(), 0);
        let timeline = block_on(self.it.store.timeline(self.claim.id)).expect("a timeline").expect("a job");
        assert_eq!(timeline.entries, []);
        block_on(self.it.store.enqueue(vec![job(&self.it.seams)])).expect("the writer works");
        let paid = block_on(self.it.store.transact(self.request(), pay)).expect("paid");
        assert_eq!((paid, self.accounts()), (Done::Now(7), 1));
        self.it.assert_sound();
    }
}

fn claimed(store: &Sqlite, seams: &Seams) -> (NodeNo, Claim) {
    let node = block_on(store.register(registration(seams))).expect("a node").no;
    block_on(store.enqueue(vec![job(seams)])).expect("enqueued");
    (node, block_on(store.claim(claim(node, 1))).expect("claimed").jobs[0].claim)
}

type Paid = Result<(i32, Vec<u8>), mainspring_core::error::BoxError>;

fn pay(sql: &mut Sql<'_>) -> Paid {
    sql.execute("INSERT INTO account VALUES (1, ?1)", [7])?;
    let sum: i32 = sql.query_row("SELECT sum FROM account", [], |row| row.get(0))?;
    let all: Vec<i32> = sql.query_map("SELECT sum FROM account", [], |row| row.get(0))?;
    assert_eq!((all, sql.last_insert_rowid()), (vec![7], 1));
    Ok((sum, b"7".to_vec()))
}

#[test]
fn sql_and_record_are_one_commit_and_happen_once() {
    let w = World::new();
    assert_eq!(block_on(w.it.store.transact(w.request(), pay)).expect("paid"), Done::Now(7));
    let keys = vec![Key::new("pay").expect("a key")];
    assert_eq!(block_on(w.it.store.values(w.claim.id, keys)).expect("values"), [Some(b"7".to_vec())]);
    let again =
        block_on(w.it.store.transact(w.request(), |_: &mut Sql<'_>| -> Paid { panic!("it ran again") }));
    assert_eq!(again.expect("recorded"), Done::Before(b"7".to_vec()));
    assert_eq!(w.accounts(), 1);
    w.it.assert_sound();
}

#[test]
fn a_stale_claim_runs_nothing() {
    let w = World::new();
    let mut stale = w.request();
    stale.recording.claim.number += 1;
    let lost = block_on(w.it.store.transact(stale, |_: &mut Sql<'_>| -> Paid { panic!("it ran") }));
    assert!(matches!(lost, Err(Error::Store(mainspring_core::Error::LeaseLost))), "{lost:?}");
    w.assert_untouched();
}

#[test]
fn a_closure_that_fails_leaves_nothing() {
    let w = World::new();
    let failed = block_on(w.it.store.transact(w.request(), |sql| {
        pay(sql)?;
        Err::<((), Vec<u8>), _>("no money".into())
    }));
    assert!(matches!(&failed, Err(Error::Failed(cause)) if cause.to_string() == "no money"), "{failed:?}");
    w.assert_untouched();
}

#[test]
fn a_closure_that_panics_leaves_nothing_and_a_writer_that_works() {
    let w = World::new();
    let panicked = block_on(w.it.store.transact(w.request(), |sql| -> Paid {
        pay(sql)?;
        panic!("out of {}", "luck")
    }));
    assert!(matches!(&panicked, Err(Error::Panicked(message)) if message == "out of luck"), "{panicked:?}");
    w.assert_untouched();
}

#[test]
fn the_transaction_is_not_the_closures_to_end_nor_the_connection_to_change() {
    let w = World::new();
    let denied = block_on(w.it.store.transact(w.request(), |sql| {
        for statement in [
            "BEGIN",
            "COMMIT",
            "END",
            "ROLLBACK",
            "SAVEPOINT s",
            "ATTACH ':memory:' AS other",
            "DETACH main",
            "PRAGMA synchronous = OFF",
            "PRAGMA journal_mode = DELETE",
            "PRAGMA wal_checkpoint",
            "ANALYZE",
            "CREATE TEMP TABLE mainspring_jobs (no)",
            "CREATE TABLE mainspring_mine (no)",
            "INSERT INTO mainspring_meta VALUES ('a', 1)",
            "UPDATE Mainspring_Meta SET value = 1",
            "DELETE FROM mainspring_meta",
            "DROP TABLE mainspring_meta",
            "CREATE TRIGGER t AFTER INSERT ON mainspring_jobs BEGIN SELECT 1; END",
            "CREATE INDEX i ON mainspring_jobs (line)",
            "ALTER TABLE mainspring_jobs RENAME TO jobs",
            "CREATE VIEW mainspring_v AS SELECT 1",
            "CREATE TEMP VIEW mainspring_jobs AS SELECT 1",
            "CREATE TEMP TRIGGER t AFTER INSERT ON account BEGIN SELECT 1; END",
            "CREATE INDEX Mainspring_i ON account (sum)",
            "CREATE TRIGGER mainspring_t AFTER INSERT ON account BEGIN SELECT 1; END",
            "CREATE VIRTUAL TABLE mainspring_f USING fts5(a)",
            "CREATE TABLE mainspring_copy AS SELECT * FROM account",
            "DROP INDEX mainspring_ready_claim",
        ] {
            let refused = sql.execute_batch(statement);
            let code = refused.as_ref().err().and_then(rusqlite::Error::sqlite_error_code);
            assert_eq!(code, Some(ErrorCode::AuthorizationForStatementDenied), "{statement}: {refused:?}");
        }
        sql.execute_batch("CREATE TABLE mine (a); CREATE INDEX i ON mine (a); INSERT INTO mine VALUES (1)")?;
        let columns = sql.query_map("PRAGMA table_info(mine)", [], |row| row.get::<_, String>(1))?;
        assert_eq!(columns, ["a"]);
        let jobs: i64 = sql.query_row("SELECT count(*) FROM mainspring_jobs", [], |row| row.get(0))?;
        Ok((jobs, Vec::new()))
    }));
    assert_eq!(denied.expect("the rest is committed"), Done::Now(1));
    block_on(w.it.store.enqueue(vec![job(&w.it.seams)])).expect("our own statements are not asked");
    w.it.assert_sound();
}

#[test]
fn no_table_of_a_closures_own_gets_a_name_of_the_stores() {
    let w = World::new();
    for statement in [
        "ALTER TABLE account RENAME TO mainspring_zzz",
        "ALTER TABLE account RENAME TO 'Mainspring_zzz'",
        "ALTER TABLE main.account RENAME TO a; ALTER TABLE a RENAME TO mainspring_zzz",
    ] {
        let renamed = block_on(w.it.store.transact(w.request(), move |sql| {
            sql.execute_batch(statement)?;
            Ok((1, Vec::new()))
        }));
        let Err(Error::Failed(cause)) = renamed else { panic!("{statement}: {renamed:?}") };
        assert!(cause.to_string().contains("begins with `mainspring_`"), "{cause}");
    }
    w.assert_untouched();
    let mut again = w.request();
    again.entry.key = Key::new("rename").expect("a key");
    let done = block_on(w.it.store.transact(again, |sql| {
        sql.execute_batch("ALTER TABLE account ADD COLUMN name; ALTER TABLE account RENAME TO accounts")?;
        Ok((2, Vec::new()))
    }));
    assert_eq!(done.expect("any other name will do"), Done::Now(2));
}

#[test]
fn a_transaction_that_sqlite_ends_takes_everything_with_it() {
    let w = World::new();
    let raising = "CREATE TRIGGER no AFTER INSERT ON account WHEN new.sum < 0
        BEGIN SELECT RAISE(ROLLBACK, 'no'); END";
    w.it.raw().execute_batch(raising).expect("a trigger");
    let path = w.it.path.clone();
    let lost = block_on(w.it.store.transact(w.request(), move |sql| {
        pay(sql)?;
        assert!(sql.execute("INSERT INTO account VALUES (2, -1)", []).is_err());
        assert!(sql.execute("INSERT INTO account VALUES (3, 1)", []).is_err(), "it would be alone");
        let other = rusqlite::Connection::open(&path)?;
        other.busy_timeout(Duration::ZERO)?;
        assert!(
            other.execute_batch("BEGIN IMMEDIATE").is_err(),
            "the lock is held until the closure returns"
        );
        Ok(((), Vec::new()))
    }));
    assert!(matches!(lost, Err(Error::Lost)), "{lost:?}");
    w.assert_untouched();
}

/// A clock that goes on by a second each time somebody looks, once it is told to.
struct Hasty {
    hurries: AtomicBool,
    seconds: AtomicU64,
}

impl Clock for Hasty {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(1_800_000_000_000_000)
    }

    fn monotonic(&self) -> Duration {
        let step = u64::from(self.hurries.load(Ordering::Relaxed));
        Duration::from_secs(self.seconds.fetch_add(step, Ordering::Relaxed))
    }

    fn sleep(&self, _: Duration) -> Pending<'static, ()> {
        Box::pin(std::future::pending())
    }
}

const ENDLESS: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT";

#[test]
fn sql_that_takes_too_long_is_interrupted_whether_it_reads_or_writes() {
    let mut w = World::new();
    let clock = Arc::new(Hasty { hurries: AtomicBool::new(false), seconds: AtomicU64::new(0) });
    let seams = Seams { clock: clock.clone(), ..w.it.seams.clone() };
    w.it.store = Sqlite::open(Options::new(&w.it.path), seams).expect("a store");
    for (statement, writes) in [
        (format!("{ENDLESS} count(*) FROM n"), false),
        (format!("INSERT INTO account (sum) {ENDLESS} i FROM n"), true),
    ] {
        let (hasty, path) = (Arc::clone(&clock), w.it.path.clone());
        let late = block_on(w.it.store.transact(w.request(), move |sql| {
            pay(sql)?;
            hasty.hurries.store(true, Ordering::Relaxed);
            let interrupted = sql.execute_batch(&statement);
            let code = interrupted.as_ref().err().and_then(rusqlite::Error::sqlite_error_code);
            assert_eq!(code, Some(ErrorCode::OperationInterrupted), "{interrupted:?}");
            assert!(sql.execute("INSERT INTO account VALUES (2, 1)", []).is_err(), "its time is over");
            let other = rusqlite::Connection::open(&path)?;
            other.busy_timeout(Duration::ZERO)?;
            assert!(other.execute_batch("BEGIN IMMEDIATE").is_err(), "the lock is held: {writes}");
            Ok(((), Vec::new()))
        }));
        clock.hurries.store(false, Ordering::Relaxed);
        assert!(matches!(late, Err(Error::TooLong(LIMIT))), "{late:?}");
    }
    w.assert_untouched();
}

/// What somebody logged, with its fields.
#[derive(Default)]
pub(super) struct Log(pub(super) Mutex<Vec<String>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Fields(String);
        impl tracing::field::Visit for Fields {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                write!(self.0, "{field}={value:?} ").expect("text");
            }
        }
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        self.0.lock().expect("a lock").push(fields.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// Runs a task at once and to its end, as if its time had come.
struct Prompt;

impl Spawn for Prompt {
    fn spawn(&self, task: Pending<'static, ()>) -> Task {
        block_on(task);
        Task::new(|| {})
    }

    fn spawn_dedicated(&self, _: &str, task: Pending<'static, ()>) -> Task {
        self.spawn(task)
    }
}

/// A clock on which every wait is over.
struct Elapsed(Arc<dyn Clock>);

impl Clock for Elapsed {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }

    fn sleep(&self, _: Duration) -> Pending<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}

#[test]
fn a_closure_that_blocks_is_named_in_the_log_while_it_does_and_rolled_back_in_the_end() {
    let log = Arc::new(Log::default());
    let dispatch = tracing::Dispatch::from(Arc::clone(&log));
    tracing::dispatcher::set_global_default(dispatch).expect("the only one of this process");
    let mut w = World::new();
    let clock = Arc::new(Elapsed(Arc::clone(&w.it.seams.clock)));
    let seams = Seams { clock, spawn: Arc::new(Prompt), ..w.it.seams.clone() };
    w.it.store = Sqlite::open(Options::new(&w.it.path), seams).expect("a store");
    let (time, heard) = (Arc::clone(&w.it.clock), Arc::clone(&log));
    let late = block_on(w.it.store.transact(w.request(), move |sql| {
        pay(sql)?;
        let named = |line: &String| line.contains("name=\"pay\"") && line.contains("takes too long");
        assert!(heard.0.lock().expect("a lock").iter().any(named));
        time.advance(LIMIT + Duration::from_secs(1));
        Ok(((), Vec::new()))
    }));
    assert!(matches!(late, Err(Error::TooLong(LIMIT))), "{late:?}");
    w.assert_untouched();
}

#[test]
fn a_closure_that_blocks_expires_nobody() {
    let w = World::new();
    let lease = registration(&w.it.seams).lease;
    let quick = Options::new(&w.it.path).busy_timeout(Duration::from_millis(20));
    let other = Sqlite::open(quick, w.it.seams.clone()).expect("another process");
    let rescuer = block_on(other.register(registration(&w.it.seams))).expect("a node").no;
    let seen = w.it.seams.clock.now();
    let rescue = |seen, steady| block_on(other.rescue(Rescue { by: rescuer, steady, seen }));

    let (begun, has_begun) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let blocked = w.it.store.transact(w.request(), move |_: &mut Sql<'_>| {
        begun.send(())?;
        let _ = released.recv();
        Ok(((), Vec::new()))
    });
    has_begun.recv().expect("begun");
    let renewal = w.it.store.renew(Renewal::new(w.node));
    w.it.clock.advance(lease * 4);
    let refused = rescue(seen, lease * 9);
    assert!(matches!(refused, Err(mainspring_core::Error::Unavailable { .. })), "nobody can: {refused:?}");
    drop(release);
    assert!(matches!(block_on(blocked), Err(Error::TooLong(_))));
    block_on(renewal).expect("renewed, as the first thing");

    // Had the other come first: it was last answered before all this, or has only just begun to be answered.
    w.it.clock.advance(lease * 4);
    for (seen, steady) in [(seen, lease * 9), (w.it.seams.clock.now(), lease / 2)] {
        assert_eq!(rescue(seen, steady).expect("a rescue").expired, []);
    }
    let nodes = block_on(other.nodes()).expect("nodes");
    assert!(nodes.iter().all(|node| node.state == NodeState::Live));
    let outcome = Outcome::Succeed { result: None };
    let finished = block_on(w.it.store.finish(w.node, vec![Finish { claim: w.claim, outcome }]));
    assert_eq!(finished.expect("finished"), [mainspring_core::store::Finished::Applied]);
}

#[test]
fn neighbours_share_no_transaction_with_it() {
    let w = World::new();
    let (release, released) = mpsc::channel::<()>();
    let held = w.it.store.transact(w.request(), move |_: &mut Sql<'_>| -> Paid {
        let _ = released.recv();
        Err("held".into())
    });
    let before = w.it.store.enqueue(vec![job(&w.it.seams)]);
    let runs = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&runs);
    let failing = w.it.store.transact(w.request(), move |sql| -> Paid {
        counted.fetch_add(1, Ordering::Relaxed);
        let waiting: i64 = sql.query_row("SELECT count(*) FROM mainspring_ready", [], |row| row.get(0))?;
        assert_eq!(waiting, 1, "what came before is committed, what comes after is not there");
        pay(sql)?;
        Err("no".into())
    });
    let after = w.it.store.enqueue(vec![job(&w.it.seams)]);
    drop(release);
    assert!(matches!(block_on(held), Err(Error::Failed(_))));
    block_on(before).expect("stored");
    let failed = block_on(failing);
    assert!(matches!(&failed, Err(Error::Failed(cause)) if cause.to_string() == "no"), "{failed:?}");
    block_on(after).expect("stored");
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    assert_eq!(block_on(w.it.store.counts()).expect("counts").total(State::Ready), 2);
    w.assert_untouched();
}

#[test]
fn jobs_that_a_closure_enlists_are_there_with_it_and_not_without_it() {
    let w = World::new();
    let ticket = w.it.store.ticket();
    let enlist = |fails: bool| {
        let (ticket, jobs) = (ticket.clone(), vec![job(&w.it.seams), job(&w.it.seams)]);
        block_on(w.it.store.transact(w.request(), move |sql| {
            sql.enlist_sync(&ticket, jobs)?;
            pay(sql)?;
            if fails { Err("no".into()) } else { Ok(((), Vec::new())) }
        }))
    };
    assert!(enlist(true).is_err());
    assert_eq!(block_on(w.it.store.counts()).expect("counts").total(State::Ready), 0);
    enlist(false).expect("enlisted");
    assert_eq!(block_on(w.it.store.counts()).expect("counts").total(State::Ready), 2);
    block_on(w.it.store.enqueue(vec![job(&w.it.seams)])).expect("with a number of its own");
    let request = claim(w.node, 2);
    assert_eq!(block_on(w.it.store.claim(request)).expect("claimed").jobs.len(), 3);
    w.it.assert_sound();
}

#[test]
fn a_commit_that_may_have_failed_is_said_to_be_unknown() {
    let w = World::new();
    w.it.store.env.fail_commit.store(true, Ordering::Release);
    let unknown = block_on(w.it.store.transact(w.request(), pay));
    let expected = matches!(unknown, Err(Error::Store(mainspring_core::Error::OutcomeUnknown { .. })));
    assert!(expected, "{unknown:?}");
}
