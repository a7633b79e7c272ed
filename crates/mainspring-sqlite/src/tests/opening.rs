//! Opening: what is refused, in which words, and what is let be.

use std::path::Path;
use std::time::Duration;

use mainspring_core::Error;
use mainspring_core::error::OpenProblem;
use mainspring_core::store::{Operators, Producers, Store};
use rusqlite::Connection;

use super::support::{Fixture, block_on, job, seams};
use crate::{Durability, Options, SCHEMA_VERSION, Sqlite};

fn problem(options: Options) -> OpenProblem {
    match Sqlite::open(options, seams().0) {
        Err(Error::Open { problem, .. }) => problem,
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("it was opened"),
    }
}

fn with(path: &Path, sql: &str) {
    Connection::open(path).and_then(|conn| conn.execute_batch(sql)).expect("the statement works");
}

#[test]
fn file_that_is_no_database_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("notes.txt");
    let text = "Buy milk. ".repeat(1_000);
    std::fs::write(&path, &text).expect("written");
    assert_eq!(problem(Options::new(&path)), OpenProblem::NotAStore);
    assert_eq!(std::fs::read_to_string(&path).expect("read"), text);
}

#[test]
fn directory_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    assert_eq!(problem(Options::new(dir.path())), OpenProblem::NotAStore);
}

#[test]
fn missing_file_is_created_only_if_asked_for() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("app.db");
    assert_eq!(problem(Options::new(&path).create(false)), OpenProblem::Missing);
    assert!(!path.exists());
    assert_eq!(problem(Options::new(dir.path().join("no/such/dir/app.db"))), OpenProblem::Missing);
    Sqlite::open(Options::new(&path), seams().0).expect("created");
    Sqlite::open(Options::new(&path).create(false), seams().0).expect("opened");
}

/// Waits until no thread of a store that was dropped has its file open: the last one removes the log.
fn wait_until_closed(path: &Path) {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    while Path::new(&log).exists() {
        std::thread::yield_now();
    }
}

/// All files of a directory, and what is in them.
fn files(dir: &Path) -> std::collections::BTreeMap<std::ffi::OsString, Vec<u8>> {
    let entries = std::fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry"));
    entries.map(|entry| (entry.file_name(), std::fs::read(entry.path()).expect("read"))).collect()
}

#[test]
fn foreign_file_is_left_as_it_is_unless_a_store_is_to_be_created_in_it() {
    for mode in ["DELETE", "WAL"] {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("crm.db");
        with(&path, &format!("PRAGMA journal_mode = {mode}; CREATE TABLE customers (x); CREATE TABLE a (x)"));
        let before = files(dir.path());
        assert_eq!(problem(Options::new(&path).create(false)), OpenProblem::NotAStore);
        assert_eq!(files(dir.path()), before, "{mode}");
        let created = Sqlite::open(Options::new(&path), seams().0).expect("created");
        assert_eq!(created.describe().created, Some(2));
        drop(created);
        let opened = Sqlite::open(Options::new(&path).create(false), seams().0).expect("opened");
        assert_eq!(opened.describe().created, None);
    }
}

#[test]
fn foreign_file_whose_owner_died_keeps_its_log() {
    let (dir, copy) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let path = dir.path().join("crm.db");
    let owner = Connection::open(&path).expect("a connection");
    owner.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE customers (x)").expect("a table");
    for name in ["crm.db", "crm.db-wal"] {
        std::fs::copy(dir.path().join(name), copy.path().join(name)).expect("copied");
    }
    let before = files(copy.path());
    assert_eq!(problem(Options::new(copy.path().join("crm.db")).create(false)), OpenProblem::NotAStore);
    let after = files(copy.path());
    assert!(before.iter().all(|(name, bytes)| after.get(name) == Some(bytes)), "{:?}", after.keys());
}

#[test]
fn empty_file_is_no_store() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("app.db");
    std::fs::write(&path, "").expect("written");
    assert_eq!(problem(Options::new(&path).create(false)), OpenProblem::NotAStore);
    assert_eq!(std::fs::metadata(&path).expect("a file").len(), 0);
}

#[test]
fn file_that_another_program_keeps_locked_is_told_as_such() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("app.db");
    let other = Connection::open(&path).expect("a connection");
    other.execute_batch("BEGIN EXCLUSIVE; CREATE TABLE theirs (a)").expect("locked");
    let options = Options::new(&path).busy_timeout(Duration::from_millis(20));
    assert_eq!(problem(options.clone()), OpenProblem::Locked);
    drop(other);
    Sqlite::open(options, seams().0).expect("opened");
}

#[test]
fn read_only_file_is_told_as_such() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("app.db");
    drop(Sqlite::open(Options::new(&path), seams().0).expect("created"));
    let mut permissions = std::fs::metadata(&path).expect("metadata").permissions();
    permissions.set_readonly(true);
    std::fs::set_permissions(&path, permissions).expect("set");
    // A superuser may write anyway: nothing is read-only to him.
    if std::fs::OpenOptions::new().write(true).open(&path).is_err() {
        assert_eq!(problem(Options::new(&path)), OpenProblem::ReadOnly);
    }
}

#[test]
fn store_of_a_newer_version_is_refused_if_it_says_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("app.db");
    drop(Sqlite::open(Options::new(&path), seams().0).expect("created"));
    with(&path, "UPDATE mainspring_meta SET value = 99 WHERE key = 'version'");
    drop(Sqlite::open(Options::new(&path), seams().0).expect("a newer version that older ones may use"));
    with(&path, "UPDATE mainspring_meta SET value = 98 WHERE key = 'min_version'");
    let refused = OpenProblem::TooNew { needed: 98, known: SCHEMA_VERSION };
    assert_eq!(problem(Options::new(&path)), refused);
}

#[test]
fn store_of_a_development_build_is_refused_and_left_alone() {
    let made_by = [
        "UPDATE mainspring_meta SET value = 'x' WHERE key = 'schema_1'",
        "DELETE FROM mainspring_meta WHERE key = 'schema_1'",
    ];
    for other in made_by {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("app.db");
        drop(Sqlite::open(Options::new(&path), seams().0).expect("created"));
        drop(Sqlite::open(Options::new(&path), seams().0).expect("made by this build"));
        wait_until_closed(&path);
        with(&path, other);
        let before = files(dir.path());
        for create in [false, true] {
            let refused = problem(Options::new(&path).create(create));
            assert_eq!(refused, OpenProblem::DevelopmentBuild { version: 1 }, "{other}");
            assert!(refused.to_string().contains("a development build made it"), "{refused}");
        }
        assert_eq!(files(dir.path()), before, "{other}");
    }
}

#[test]
fn tables_of_an_application_are_left_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("app.db");
    with(&path, "CREATE TABLE jobs (title TEXT); INSERT INTO jobs VALUES ('plumber')");
    let (seams, _) = seams();
    let store = Sqlite::open(Options::new(&path), seams.clone()).expect("opened");
    block_on(store.enqueue(vec![job(&seams)])).expect("enqueued");
    let conn = Connection::open(&path).expect("a connection");
    let title: String = conn.query_row("SELECT title FROM jobs", [], |row| row.get(0)).expect("a row");
    assert_eq!(title, "plumber");
    let others = "SELECT count(*) FROM sqlite_schema WHERE name NOT LIKE 'mainspring_%'
        AND name NOT LIKE 'sqlite_%' AND name <> 'jobs'";
    assert_eq!(conn.query_row(others, [], |row| row.get::<_, i64>(0)).expect("a count"), 0);
}

#[test]
fn migrating_tells_the_version_that_was_found() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = Options::new(dir.path().join("app.db"));
    let (seams, _) = seams();
    assert_eq!(Sqlite::migrate(&options, &seams).expect("migrated"), 0);
    assert_eq!(Sqlite::migrate(&options, &seams).expect("migrated"), SCHEMA_VERSION);
}

#[test]
fn durability_is_what_was_asked_for() {
    let it = Fixture::new();
    assert!(it.store.describe().durable);
    let synchronous = |store: &Sqlite| {
        let read = |tx: &mut crate::writer::Tx<'_>| {
            Ok(tx.conn.query_row("PRAGMA synchronous", [], |row| row.get::<_, i64>(0))?)
        };
        block_on(store.write(crate::writer::Weight::rows(1), read)).expect("a pragma")
    };
    assert_eq!(synchronous(&it.store), 2, "FULL");
    let relaxed = Options::new(&it.path).durability(Durability::Relaxed);
    let relaxed = Sqlite::open(relaxed, it.seams.clone()).expect("opened");
    assert!(!relaxed.describe().durable);
    assert_eq!(synchronous(&relaxed), 1, "NORMAL");
}

#[test]
fn closed_store_refuses_and_can_be_opened_again() {
    let it = Fixture::new();
    block_on(it.store.enqueue(vec![job(&it.seams)])).expect("enqueued");
    block_on(it.store.close());
    block_on(it.store.close());
    assert!(matches!(block_on(it.store.enqueue(vec![job(&it.seams)])), Err(Error::Closed)));
    assert!(matches!(block_on(it.store.counts()), Err(Error::Closed)));
    let again = it.other();
    assert_eq!(block_on(again.counts()).expect("counts").total(mainspring_core::job::State::Ready), 1);
}

#[test]
fn closing_leaves_the_database_file_alone() {
    for _ in 0..20 {
        let it = Fixture::new();
        block_on(it.store.enqueue(vec![job(&it.seams)])).expect("enqueued");
        block_on(it.store.counts()).expect("a read");
        block_on(it.store.close());
        // The last connection takes the log with it: what is left can be copied or removed as one file.
        for suffix in ["-wal", "-shm"] {
            let beside = it.path.with_file_name(format!("app.db{suffix}"));
            assert!(!beside.exists(), "{suffix} is still there");
        }
    }
}
