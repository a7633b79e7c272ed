//! Fuzz targets: what a damaged file can do to this store.
//!
//! A small world with a job in every place lives in memory. An input writes values of any type into some of its columns
//! and then goes through everything that reads them, in a transaction that is undone in the end.
//!
//! # Invariants
//! - A read of a damaged row is answered, or refused as corrupt: nothing panics, and nothing is to be tried again.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arbitrary::Unstructured;
use mainspring_core::id::{Claim, ClaimBatchNo, JobId, NodeNo, Row};
use mainspring_core::job::{
    Fault as Trouble, FaultKind, New, Options, Outcome, Priority, Reason, Unique, Verb, When,
};
use mainspring_core::journal::{
    Child, Entry, EntryKind, OnClose, Recording, Signal, Subject, Suspension, Wait, Writes,
};
use mainspring_core::limit::{Change, KeyChange, LimitUse, Total};
use mainspring_core::name::{Key, Kind, Label, LimitName, QueueName, SignalName, Tag};
use mainspring_core::output::{Ask, Push};
use mainspring_core::seam::{Clock, Pending, Rng};
use mainspring_core::store::{
    ClaimRequest, Filter, Finish, Mark, Page, PagePosition, QueueChange, Renewal, Rescue,
};
use mainspring_core::time::Timestamp;
use mainspring_core::{Error, bounds};
use rusqlite::Connection;
use rusqlite::types::Value;

use crate::error::{Fault, Result, rolled_back};
use crate::names::Names;
use crate::op::row_numbers::Numbers;
use crate::read::{self, Reader};
use crate::writer::{State, Tx};
use crate::{migrate, op};

/// The name of a target, and what it does with bytes.
pub type Target = (&'static str, fn(&[u8]));

/// Names, and what must not panic.
pub const TARGETS: [Target; 2] = [("sqlite_rows", rows), ("sqlite_cursors", cursors)];

/// Jobs in every place: 1 ready, 2 scheduled, 3 held, 4 running, 5 ended, 6 set aside, with 4 as its child; 7 and 8 limited, with 4 in
/// their group, at a level that has a turn and at one that is blocked. All hold a key and have a deadline.
const WORLD: &str = r#"
INSERT INTO mainspring_queues VALUES (1, 'q', 0, 'fixed:5s', 86400000000, 86400000000, 0);
INSERT INTO mainspring_kinds VALUES (1, 'k');
INSERT INTO mainspring_lines VALUES (1, 1, 1, '["gpu"]');
INSERT INTO mainspring_jobs SELECT no, zeroblob(15) || CAST(char(no) AS BLOB), 1, 5, 1000000, 9000000,
    '{"max_attempts":3,"tags":["t"],"labels":["gpu"],"unique":{"key":"key"}}', CAST('{}' AS BLOB)
    FROM (SELECT value AS no FROM json_each('[1,2,3,4,5,6,7,8]'));
INSERT INTO mainspring_ready VALUES (1, 1, 37, 1000000, 0, 0, 0, 0, 3);
UPDATE mainspring_jobs SET options = '{"labels":["gpu"],"limits":[{"limit":"l","key":"a"}]}' WHERE no IN (4, 7, 8);
INSERT INTO mainspring_limits VALUES (1, 0, 'l', '{"name":"l","max":1}'), (2, 1, 'q', '{"max":5}');
INSERT INTO mainspring_limit_keys VALUES (1, 1, 'a', 1, NULL, 0, 1000000, 1000000), (2, 2, '', 1, NULL, 0, NULL, NULL);
INSERT INTO mainspring_limit_groups VALUES (1, 1, '[[1,1]]');
INSERT INTO mainspring_limit_key_groups VALUES (1, 1);
INSERT INTO mainspring_limit_holders VALUES (4, 1);
INSERT INTO mainspring_limited VALUES (7, 1, 1, 37, 1000000, 0, 0, 0, 0, 131), (8, 1, 1, 53, 1000000, 0, 0, 0, 0, 131);
INSERT INTO mainspring_group_turns VALUES (1, 37, 1000000, 1);
INSERT INTO mainspring_blocked_groups VALUES (1, 1, 53, 1, 1000000, 1);
INSERT INTO mainspring_timers VALUES (2, 1, 5, 1500000, 1, 1, 0, 0, 3);
INSERT INTO mainspring_suspended VALUES (3, 1, 5, 8, 1500000, 1, 1, 0, 0, 3, NULL, NULL),
    (6, 1, 5, 2, 1500000, 1, 1, 0, 0, 27, '[["s:go",2],["c:00000000-0000-0000-0000-000000000004",1]]', 'note');
INSERT INTO mainspring_lease VALUES (4, 1, 1, 1, 1000000, 1, 5, 0, 2, 10, 171, 0, NULL);
INSERT INTO mainspring_done VALUES (1, 5, 1, 6, 16, 1000000, 5, 1, 0, 0, 8, 500000, 1, 'why', CAST('1' AS BLOB));
INSERT INTO mainspring_errors VALUES (4, 1, 500000, 1, 1000000, 5, 'lost'), (5, 1, 500000, 1, 1000000, 1, 'panic');
INSERT INTO mainspring_keys SELECT 1, 'key' || no, no, id, 2, 1000, NULL FROM mainspring_jobs;
INSERT INTO mainspring_deadlines SELECT no, deadline FROM mainspring_jobs WHERE no <> 5;
INSERT INTO mainspring_steps SELECT no, no, 'a', 0, 0, 1, 1000000, 7, CAST('1' AS BLOB) FROM mainspring_jobs WHERE no > 3;
INSERT INTO mainspring_inbox VALUES (1, 4, 's:go', 'me', 1000000, 0, NULL, NULL, NULL, CAST('1' AS BLOB)),
    (2, 4, 'c:00000000-0000-0000-0000-000000000009', '', 1000000, 0, 6, 16, 'no route', NULL),
    (3, 6, 's:go', 'me', 1000000, 0, NULL, NULL, NULL, CAST('1' AS BLOB));
INSERT INTO mainspring_output VALUES (1, 4, 1, 1, 1, 1000000, 0, NULL, 'a', CAST('1' AS BLOB)),
    (2, 4, 2, 1, 2, 1000000, 1, 1, 'a', NULL);
INSERT INTO mainspring_children VALUES (4, 6, 0);
INSERT INTO mainspring_tags SELECT 't', no FROM mainspring_jobs;
INSERT INTO mainspring_progress VALUES (4, 1, 1, 2, 'half');
INSERT INTO mainspring_nodes
    (no, id, name, version, pid, lock, abilities, queues, lease, started_at, renewed_at, lease_until, state, drained)
VALUES
    (1, zeroblob(16), 'n', 'v', 7, '', '{"kinds":["k"],"labels":["gpu"],"later":[["build=1",9]]}', '[["q",1]]',
        15000000, 1, 1, 15000000, 0, 1),
    (2, zeroblob(15) || x'01', 'm', 'v', 8, '', '{"kinds":[],"labels":[]}', '[]', 15000000, 1, 1, 2, 0, 1);
INSERT INTO mainspring_counts VALUES (1, 1, 1), (1, 2, 3), (1, 3, 1), (1, 4, 2), (1, 6, 1);
INSERT INTO mainspring_meta VALUES ('last_no', 8), ('last_seq', 1), ('settings', 1);
"#;

/// What is damaged, by table. Row numbers of jobs are left alone: SQLite itself sees to it that they are whole numbers.
const DAMAGES: [(&str, &str); 27] = [
    ("queues", "name paused backoff retain_succeeded retain_failed deleted no"),
    ("kinds", "name no"),
    ("lines", "queue kind labels no"),
    ("jobs", "line priority created_at deadline options input"),
    ("ready", "line level ready_at claim failures crashes crashed flags"),
    ("limited", "limit_group line level ready_at claim failures crashes crashed flags"),
    ("limits", "scope name definition no"),
    ("limit_keys", "limit_no key in_use max paused next_free due no"),
    ("limit_groups", "line uses no"),
    ("limit_holders", "limit_group"),
    ("group_turns", "line level at limit_group"),
    ("blocked_groups", "limit_key line level units at limit_group"),
    ("timers", "line priority due claim failures crashes crashed flags"),
    ("suspended", "line priority reason due claim failures crashes flags waits note"),
    ("lease", "claim node batch claimed_at line priority failures crashes crashed flags stuck cancel"),
    (
        "done",
        "claim state reason finished_at priority failures crashes superseded flags note result seq claimed_at node",
    ),
    ("errors", "at kind message claim claimed_at node"),
    ("steps", "key kind overlapped claim at value took"),
    ("inbox", "subject sender at read state reason note body"),
    ("output", "position claim number at before void_from step body"),
    ("children", "parent on_close"),
    ("keys", "until period expires_at id"),
    ("deadlines", "at"),
    ("progress", "done note"),
    ("nodes", "abilities queues lease lease_until"),
    ("counts", "n"),
    ("meta", "value"),
];

/// A clock that stands still.
struct Still;

impl Clock for Still {
    fn now(&self) -> Timestamp {
        NOW
    }

    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep(&self, _: Duration) -> Pending<'static, ()> {
        Box::pin(std::future::pending())
    }
}

impl Rng for Still {
    fn next_u64(&self) -> u64 {
        0
    }
}

const NOW: Timestamp = Timestamp::from_micros(2_000_000);

thread_local! {
    static READER: RefCell<Reader> = RefCell::new(reader());
    /// One that nothing has damaged.
    static WHOLE: RefCell<Reader> = RefCell::new(reader());
}

fn reader() -> Reader {
    let mut conn = Connection::open_in_memory().expect("memory");
    migrate::run(&mut conn, Path::new("memory"), &Still).expect("a schema");
    conn.execute_batch(WORLD).expect("a world");
    Reader::new(conn, Arc::new(Still), Duration::MAX).expect("a reader")
}

/// Damages some columns and reads everything.
fn rows(bytes: &[u8]) {
    READER.with_borrow_mut(|reader| {
        reader.conn.execute_batch("BEGIN").expect("a transaction");
        damage(&reader.conn, bytes);
        looks(reader);
        for act in ACTS {
            reader.conn.execute_batch("SAVEPOINT act").expect("a savepoint");
            // What became of it is the store's affair; that it comes to an end is ours.
            let _refused = acted(&reader.conn, act);
            reader.conn.execute_batch("ROLLBACK TO act; RELEASE act").expect("the savepoint");
        }
        reader.conn.execute_batch("ROLLBACK").expect("the transaction");
    });
}

/// Writes a value into a column of all rows of a table; what the table itself refuses does not count.
fn damage(conn: &Connection, bytes: &[u8]) {
    let mut draw = Unstructured::new(bytes);
    for _ in 0..3 {
        let Ok([table, column]) = draw.arbitrary::<[u8; 2]>() else { return };
        let (table, columns) = DAMAGES[usize::from(table) % DAMAGES.len()];
        let columns: Vec<&str> = columns.split(' ').collect();
        let column = columns[usize::from(column) % columns.len()];
        let value = match draw.arbitrary::<u8>().unwrap_or_default() % 6 {
            0 => Value::Null,
            1 => Value::Integer(draw.arbitrary().unwrap_or_default()),
            2 => Value::Integer(draw.arbitrary::<i8>().unwrap_or_default().into()),
            3 => Value::Real(draw.arbitrary().unwrap_or_default()),
            4 => Value::Text(text(&mut draw)),
            _ => Value::Blob(draw.arbitrary().unwrap_or_default()),
        };
        // Bytes that are not UTF-8 can stand in a text as well.
        let cast = if draw.arbitrary().unwrap_or_default() { "CAST(?1 AS TEXT)" } else { "?1" };
        let sql = format!("UPDATE mainspring_{table} SET {column} = {cast}");
        let _refused = conn.execute(&sql, [value]);
    }
}

fn text(draw: &mut Unstructured<'_>) -> String {
    draw.arbitrary::<&str>().unwrap_or_default().to_owned()
}

/// Everything that only reads. A damaged row is corrupt, and not a store that may work again in a while.
fn looks(reader: &mut Reader) {
    let mut names = Names::default();
    if answered(names.refresh(&reader.conn)).is_none() {
        return;
    }
    reader.names = names;
    for no in 0..9 {
        answered(read::obstacle(reader, id(no)));
        answered(read::get(reader, id(no)));
        answered(read::timeline(reader, id(no)));
        answered(read::job_ends(reader, &[id(no)]));
    }
    answered(read::values(reader, claim().id, &[key()]));
    answered(read::inboxes(reader, &[(claim(), 0)]));
    answered(read::outputs(reader, &[Ask { id: claim().id, after: 0, limit: 10 }]));
    let filters = [
        Filter::default(),
        Filter { queue: Some(queue()), ..Filter::default() },
        Filter { tag: Tag::new("t").ok(), ..Filter::default() },
        Filter { reason: Some(Reason::Exhausted), ..Filter::default() },
    ];
    for filter in filters {
        answered(read::list(reader, &filter, &Page { after: None, limit: 10 }));
    }
    answered(read::limits(reader));
    answered(read::limit_keys(reader, &limit(), None, 10));
    match read::limit_key(reader, &limit(), "a") {
        // Its name is what was damaged.
        Err(Fault::Refused(Error::UnknownLimit { .. })) => {}
        answer => drop(answered(answer)),
    }
    answered(read::totals(reader));
    answered(read::counts(reader));
    answered(read::queues(reader));
    answered(read::nodes(reader));
    answered(read::check_all(reader));
}

fn answered<T>(answer: Result<T>) -> Option<T> {
    match answer {
        Ok(answer) => Some(answer),
        Err(fault) => {
            let error = match fault {
                Fault::Refused(error) => error,
                Fault::Sql(error) => rolled_back(&error),
            };
            assert!(matches!(error, Error::Corrupt { .. }), "{error:?}");
            None
        }
    }
}

/// Something that writes, and reads what it needs for that.
type Act = fn(&mut Tx<'_>) -> Result<()>;

const ACTS: [Act; 27] = [
    |tx| op::claim::run(tx, &request(2)).map(drop),
    |tx| op::claim::run(tx, &request(1)).map(drop),
    |tx| op::finish::run(tx, NODE, &[finish(Outcome::Succeed { result: None })]).map(drop),
    |tx| op::finish::run(tx, NODE, &[finish(retry())]).map(drop),
    |tx| op::finish::run(tx, NODE, &[finish(Outcome::Release)]).map(drop),
    |tx| op::finish::run(tx, NODE, &[finish(suspend())]).map(drop),
    |tx| op::journal::record(tx, NODE, &[recording()]).map(drop),
    |tx| op::inbox::signal(tx, &[signal(4), signal(6)]).map(drop),
    |tx| op::finish::disown(tx, NODE, ClaimBatchNo(1), &[]).map(drop),
    |tx| op::node::renew(tx, &renewal()).map(drop),
    |tx| op::node::retire(tx, NODE).map(drop),
    |tx| op::due::promote(tx, 10).map(drop),
    |tx| op::due::expire(tx, 10).map(drop),
    |tx| op::prune::run(tx, 10).map(drop),
    |tx| op::rescue::run(tx, Rescue { by: NODE, steady: bounds::DELAY, seen: NOW }).map(drop),
    |tx| verbs(tx, &Verb::Cancel { why: "why".into() }),
    |tx| {
        verbs(tx, &Verb::Retry)
            .and(verbs(tx, &Verb::Hold { why: String::new() }))
            .and(verbs(tx, &Verb::Resume))
    },
    |tx| verbs(tx, &Verb::Delete),
    |tx| op::settings::configure(tx, &queue(), &QueueChange::default()).map(drop),
    |tx| op::settings::delete(tx, &queue()).map(drop),
    |tx| op::enqueue::run(tx, &[new()]).map(drop),
    |tx| op::limits::change::set(tx, &limit(), raised(), "me").map(drop),
    |tx| {
        op::limits::change::set_key(tx, &limit(), "a", KeyChange { max: Some(Some(3)), paused: None }, "me")
            .map(drop)
    },
    |tx| op::limits::change::delete(tx, &limit(), "me").map(drop),
    |tx| op::limits::change::set_total(tx, &Total::Queue(queue()), None, "me"),
    |tx| op::limits::change::set_total(tx, &Total::Kind(new().kind), Some(1), "me"),
    |tx| {
        op::claim::run(tx, &request(3))
            .and_then(|_| op::finish::run(tx, NODE, &[finish(suspend())]))
            .map(drop)
    },
];

const NODE: NodeNo = NodeNo(1);

fn acted(conn: &Connection, act: Act) -> Result<()> {
    let mut state = State { numbers: Numbers::load(conn)?, ..State::default() };
    let mut tx = Tx::new(conn, &mut state, NOW);
    tx.settings_changed()?;
    act(&mut tx)?;
    tx.enlisted()
}

fn verbs(tx: &mut Tx<'_>, verb: &Verb) -> Result<()> {
    let ids: Vec<JobId> = (0..9).map(id).collect();
    op::change::run(tx, &ids, verb, false).map(drop)
}

fn id(no: u8) -> JobId {
    let mut bytes = [0; 16];
    bytes[15] = no;
    JobId::from_bytes(bytes)
}

fn queue() -> QueueName {
    QueueName::new("q").expect("a queue")
}

fn limit() -> LimitName {
    LimitName::new("l").expect("a limit")
}

fn raised() -> Change {
    Change { max: Some(Some(2)), ..Change::default() }
}

fn claim() -> Claim {
    Claim { id: id(4), row: Row(4), number: 1 }
}

fn request(batch: u64) -> ClaimRequest {
    ClaimRequest {
        ahead: Vec::new(),
        node: NODE,
        batch: ClaimBatchNo(batch),
        queues: vec![(queue(), 10)],
        suspects: 1,
    }
}

fn finish(outcome: Outcome) -> Finish {
    Finish { claim: claim(), outcome }
}

fn retry() -> Outcome {
    let fault = Trouble::new(FaultKind::Error, "no route");
    Outcome::Retry { after: Duration::from_secs(1), fault }
}

fn key() -> Key {
    Key::new("a").expect("a key")
}

fn writes() -> Writes {
    let entry =
        Entry { key: key(), kind: EntryKind::Value, overlapped: false, value: b"1".to_vec(), took: None };
    let said = |number, step| Push { number, step, body: Some(b"1".to_vec()) };
    let output = vec![said(3, None), said(4, Some(key())), Push { number: 5, step: None, body: None }];
    Writes { entries: vec![entry], read: vec![1, 2], forget: vec![key()], output, idle: false }
}

fn suspend() -> Outcome {
    let wait = Wait { subject: Subject::Signal(SignalName::new("go").expect("a name")), need: 2 };
    Outcome::Suspend(Box::new(Suspension {
        reason: Reason::Signal,
        waits: vec![wait],
        until: None,
        keep: true,
        writes: writes(),
        note: None,
    }))
}

fn recording() -> Recording {
    let options = Options { unique: None, ..new().options };
    let child = Child { job: New { options, ..new() }, on_close: OnClose::Cancel };
    Recording { claim: claim(), writes: writes(), children: vec![child] }
}

fn signal(no: u8) -> Signal {
    let name = SignalName::new("go").expect("a name");
    Signal { job: id(no), name, sender: "you".into(), body: b"1".to_vec() }
}

fn renewal() -> Renewal {
    Renewal {
        marks: vec![(claim(), Mark::Foreign), (claim(), Mark::Stuck), (claim(), Mark::Cleared)],
        backed_up: true,
        ..Renewal::new(NODE)
    }
}

fn new() -> New {
    let labels = vec![Label::new("gpu").expect("a label")];
    New {
        id: id(9),
        kind: Kind::new("k").expect("a kind"),
        queue: queue(),
        priority: Priority::default(),
        input: b"{}".to_vec(),
        run: Some(When::After(Duration::ZERO)),
        deadline: Some(When::After(bounds::DELAY)),
        options: Options {
            unique: Some(Unique::new("key1").replace()),
            labels,
            limits: vec![LimitUse::new(limit()).key("a")],
            ..Options::default()
        },
        journal: Vec::new(),
    }
}

/// A text as the cursor of a listing: refused, or one that this store could have given out.
fn cursors(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    WHOLE.with_borrow_mut(|reader| {
        let page = Page { after: Some(PagePosition(text.to_owned())), limit: 10 };
        let own = text.parse::<i64>().is_ok_and(|no| no > 0 && no.to_string() == text);
        let answer = read::list(reader, &Filter { queue: Some(queue()), ..Filter::default() }, &page);
        assert_eq!(answer.is_ok(), own, "{text:?}: {answer:?}");
        if let Err(fault) = answer {
            assert!(matches!(fault, Fault::Refused(Error::Invalid { what: "cursor", .. })), "{fault:?}");
        }
    });
}
