//! Files that are removed, replaced or linked under an open store.

use std::path::{Path, PathBuf};
#[cfg(unix)]
use std::sync::Arc;

use mainspring_core::Error;
use mainspring_core::job::State;
use mainspring_core::store::{Nodes, Operators, Producers, Store};

use super::support::{Fixture, block_on, claim, job, registration};
#[cfg(unix)]
use super::transaction_step::Log;

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Nothing is acknowledged any more, and the error says what has happened.
fn assert_poisoned(it: &Fixture, what: &str) {
    let first = block_on(it.store.enqueue(vec![job(&it.seams)]));
    assert!(matches!(first, Err(Error::OutcomeUnknown { .. })), "{first:?}");
    let later = block_on(it.store.enqueue(vec![job(&it.seams)])).expect_err("refused");
    assert!(matches!(&later, Error::Poisoned { .. }) && !later.is_retryable(), "{later:?}");
    assert!(later.to_string().contains(what), "{later}");
    assert!(matches!(block_on(it.store.counts()), Err(Error::Poisoned { .. })));
}

#[test]
fn nothing_is_acknowledged_into_a_file_that_was_removed() {
    for ending in ["", "-wal", "-shm"] {
        let it = Fixture::new();
        block_on(it.store.enqueue(vec![job(&it.seams)])).expect("enqueued");
        let path = beside(&it.path, ending);
        std::fs::remove_file(&path).expect("removed");
        assert_poisoned(&it, &format!("{}` was removed", path.display()));
    }
}

#[test]
fn nothing_is_acknowledged_into_a_file_that_was_replaced() {
    let it = Fixture::new();
    block_on(it.store.enqueue(vec![job(&it.seams)])).expect("enqueued");
    let backup = it.path.with_file_name("backup.db");
    it.raw().execute("VACUUM INTO ?1", [backup.to_str()]).expect("a backup");
    block_on(it.store.enqueue(vec![job(&it.seams)])).expect("enqueued");
    std::fs::rename(&backup, &it.path).expect("restored");
    assert_poisoned(&it, "was replaced");
}

#[test]
fn a_claim_from_a_file_that_was_renamed_is_not_answered() {
    let it = Fixture::new();
    let node = block_on(it.store.register(registration(&it.seams))).expect("a node").no;
    block_on(it.store.enqueue(vec![job(&it.seams)])).expect("enqueued");
    std::fs::rename(&it.path, it.path.with_file_name("aside.db")).expect("renamed");
    assert!(matches!(block_on(it.store.claim(claim(node, 1))), Err(Error::OutcomeUnknown { .. })));
    assert!(matches!(block_on(it.store.claim(claim(node, 2))), Err(Error::Poisoned { .. })));
}

#[test]
fn closing_a_store_whose_file_was_replaced_leaves_the_new_one_alone() {
    let it = Fixture::new();
    let fresh = Fixture::new();
    block_on(it.store.enqueue(vec![job(&it.seams)])).expect("enqueued");
    block_on(fresh.store.enqueue(vec![job(&it.seams), job(&it.seams)])).expect("enqueued");
    for ending in ["", "-wal", "-shm"] {
        std::fs::rename(beside(&fresh.path, ending), beside(&it.path, ending)).expect("moved");
    }
    assert_poisoned(&it, "was replaced");
    block_on(it.store.close());
    // What it had was in its log alone.
    assert!(beside(&it.path, "-wal").exists(), "the log is another store's");
    let again = it.other();
    assert_eq!(block_on(again.counts()).expect("counts").total(State::Ready), 2);
    assert_eq!(block_on(again.check()).expect("a check"), []);
}

/// How often it was said, while something is done on this thread and those that it starts, that a file has several names.
#[cfg(unix)]
fn told_of_names(log: &Log) -> usize {
    log.0.lock().expect("a lock").iter().filter(|line| line.contains("several names")).count()
}

#[cfg(unix)]
#[test]
fn a_file_with_a_second_name_is_opened_and_told_of() {
    let it = Fixture::new();
    let told = || {
        let log = Arc::new(Log::default());
        let dispatch = tracing::Dispatch::from(Arc::clone(&log));
        let store = tracing::dispatcher::with_default(&dispatch, || it.other());
        block_on(store.enqueue(vec![job(&it.seams)])).expect("enqueued");
        (told_of_names(&log), block_on(store.diagnose()).expect("a look").len())
    };
    assert_eq!(told(), (0, 0));
    std::fs::hard_link(&it.path, it.path.with_file_name("second.db")).expect("linked");
    assert_eq!(told(), (1, 1));
}

#[cfg(unix)]
#[test]
fn a_second_name_that_comes_later_is_told_of_once_and_harms_nothing() {
    let it = Fixture::new();
    let files = crate::open_files::Files::of(&it.path);
    let log = Arc::new(Log::default());
    let second = it.path.with_file_name("second.db");
    // The look of a group commit, on this thread: a subscriber hears one thread.
    let look = || {
        let dispatch = tracing::Dispatch::from(Arc::clone(&log));
        tracing::dispatcher::with_default(&dispatch, || files.misplaced())
    };
    let enqueue = || block_on(it.store.enqueue(vec![job(&it.seams)])).expect("enqueued");
    assert_eq!((look(), told_of_names(&log)), (None, 0));
    std::fs::hard_link(&it.path, &second).expect("linked");
    for _ in 0..2 {
        enqueue();
        assert_eq!((look(), told_of_names(&log)), (None, 1));
    }
    let found = block_on(it.store.diagnose()).expect("a look");
    assert!(found.len() == 1 && found[0].what.contains("several names"), "{found:?}");
    std::fs::remove_file(&second).expect("removed");
    assert_eq!((look(), block_on(it.store.diagnose()).expect("a look")), (None, Vec::new()));
    std::fs::hard_link(&it.path, &second).expect("linked again");
    assert_eq!((look(), told_of_names(&log)), (None, 2));
    enqueue();
}
