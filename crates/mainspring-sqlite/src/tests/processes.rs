//! Several processes on one file: this test binary starts itself again in other roles.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use mainspring_core::job::State;
use mainspring_core::store::{Nodes, Operators, Producers, Rescue, Store};
use mainspring_core::time::Timestamp;

use super::support::{Fixture, block_on, claim, job, registration, seams};
use crate::{Options, Sqlite, migrate, open};

const ROLE: &str = "MAINSPRING_SQLITE_TEST_ROLE";
const FILE: &str = "MAINSPRING_SQLITE_TEST_FILE";
/// What a child prints when it is where its parent wants it.
const HERE: &str = "== here ==";

fn start(role: &str, path: &Path) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "tests::processes::role", "--nocapture", "--test-threads", "1"])
        .env(ROLE, role)
        .env(FILE, path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("a process")
}

/// Waits until a child is where it should be.
fn await_here(child: &mut Child) {
    let output = BufReader::new(child.stdout.as_mut().expect("piped"));
    let here = output.lines().map_while(Result::ok).any(|line| line.contains(HERE));
    assert!(here, "the child ended before");
}

fn here() {
    println!("{HERE}");
    std::io::stdout().flush().expect("printed");
}

/// Blocks until the parent closes the pipe.
fn await_parent() {
    let _ = std::io::stdin().read(&mut [0]);
}

/// What a child does. Without a role this is an empty test.
#[test]
fn role() {
    let (Ok(role), Ok(file)) = (std::env::var(ROLE), std::env::var(FILE)) else { return };
    let path = PathBuf::from(file);
    let (seams, _) = seams();
    match role.split_once(':').unwrap_or((&role, "")) {
        ("enqueue", _) => {
            here();
            await_parent();
            let store = Sqlite::open(Options::new(&path), seams.clone()).expect("opened");
            block_on(store.enqueue(vec![job(&seams)])).expect("enqueued");
            block_on(store.close());
        }
        ("die-migrating", steps) => {
            let mut left: u32 = steps.parse().expect("a number of steps");
            let mut conn = open::writer(&Options::new(&path), &*seams.clock).expect("opened");
            let die = move || {
                left = left.saturating_sub(1);
                if left == 0 { std::process::abort() } else { false }
            };
            conn.progress_handler(1, Some(die)).expect("a handler");
            migrate::run(&mut conn, &path, &*seams.rng).expect("migrated");
        }
        ("hold", _) => {
            let store = Sqlite::open(Options::new(&path), seams.clone()).expect("opened");
            let node = block_on(store.register(registration(&seams))).expect("a node").no;
            assert_eq!(block_on(store.claim(claim(node, 1))).expect("claimed").jobs.len(), 1);
            here();
            await_parent();
            std::process::abort();
        }
        other => panic!("no such role: {other:?}"),
    }
}

#[test]
fn five_processes_open_a_new_file_at_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("app.db");
    let mut children: Vec<Child> = (0..5).map(|_| start("enqueue", &path)).collect();
    children.iter_mut().for_each(await_here);
    for child in &mut children {
        drop(child.stdin.take());
    }
    for mut child in children {
        assert!(child.wait().expect("it ends").success());
    }
    let store = Sqlite::open(Options::new(&path), seams().0).expect("opened");
    assert_eq!(block_on(store.counts()).expect("counts").total(State::Ready), 5);
    assert_eq!(block_on(store.check()).expect("a check"), []);
}

#[test]
fn process_that_dies_while_migrating_leaves_before_or_after() {
    // Steps of SQLite's machine, from the first statement to beyond the last.
    for steps in [1, 20, 60, 120, 250, 500, 750, 1_000, 1_500, 2_000, 3_000] {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("app.db");
        let mut child = start(&format!("die-migrating:{steps}"), &path);
        child.wait().expect("it ends");
        let conn = rusqlite::Connection::open(&path).expect("a connection");
        let found = migrate::version(&conn, &path).expect("a version");
        assert!(found == 0 || found == crate::SCHEMA_VERSION, "{found}");
        let (seams, _) = seams();
        let store = Sqlite::open(Options::new(&path), seams.clone()).expect("opened");
        block_on(store.enqueue(vec![job(&seams)])).expect("enqueued");
        assert_eq!(block_on(store.check()).expect("a check"), []);
    }
}

#[test]
fn jobs_of_a_process_that_died_are_rescued_at_once_and_of_a_live_one_never() {
    let it = Fixture::new();
    block_on(it.store.enqueue(vec![job(&it.seams)])).expect("enqueued");
    let mut child = start("hold", &it.path);
    await_here(&mut child);
    let node = block_on(it.store.register(registration(&it.seams))).expect("a node").no;
    // Not steady at all: only proof counts.
    let rescue = Rescue { by: node, steady: Duration::ZERO, seen: Timestamp::MAX };
    let rescued = block_on(it.store.rescue(rescue)).expect("a rescue");
    assert!(rescued.expired.is_empty(), "it lives");
    child.kill().expect("killed");
    child.wait().expect("it ends");
    let rescued = block_on(it.store.rescue(rescue)).expect("a rescue");
    assert_eq!((rescued.expired.len(), rescued.returned), (1, 1));
    assert_eq!(block_on(it.store.counts()).expect("counts").total(State::Ready), 1);
    let entries = std::fs::read_dir(it.path.parent().expect("a directory")).expect("listed");
    let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    let locks: Vec<String> = names.filter(|name| name.contains("-node-")).collect();
    assert_eq!(locks.len(), 1, "only our own lock file is left: {locks:?}");
    it.assert_sound();
}
