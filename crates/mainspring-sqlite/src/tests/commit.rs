//! Group commit: what happens when it fails, and what is not written.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use mainspring_core::Error;
use mainspring_core::job::{State, Verb};
use mainspring_core::seam::{Clock, Pending};
use mainspring_core::store::{Nodes, Operators, Producers, Rescue, Store};
use mainspring_core::time::Timestamp;

use super::support::{Fixture, block_on, claim, job, registration};
use crate::read::Reader;
use crate::writer::{Tx, Weight};

fn version(conn: &rusqlite::Connection) -> i64 {
    conn.query_row("PRAGMA data_version", [], |row| row.get(0)).expect("a version")
}

#[test]
fn what_finds_nothing_to_do_writes_nothing() {
    let it = Fixture::new();
    let node = block_on(it.store.register(registration(&it.seams))).expect("a node").no;
    block_on(it.store.enqueue(vec![job(&it.seams)])).expect("enqueued");
    let claimed = block_on(it.store.claim(claim(node, 1))).expect("claimed").jobs;
    let outcome = mainspring_core::job::Outcome::Succeed { result: None };
    let finish = mainspring_core::store::Finish { claim: claimed[0].claim, outcome };
    block_on(it.store.finish(node, vec![finish.clone()])).expect("finished");

    let watcher = it.raw();
    let before = version(&watcher);
    let rescue = Rescue { by: node, steady: Duration::from_mins(1), seen: Timestamp::MAX };
    for batch in 2..5 {
        assert!(block_on(it.store.claim(claim(node, batch))).expect("a claim").jobs.is_empty());
        assert_eq!(block_on(it.store.promote(100)).expect("promoted").moved, 0);
        assert_eq!(block_on(it.store.expire(100)).expect("expired").moved, 0);
        assert_eq!(block_on(it.store.prune(100)).expect("pruned"), 0);
        assert!(block_on(it.store.rescue(rescue)).expect("rescued").expired.is_empty());
        block_on(it.store.finish(node, vec![finish.clone()])).expect("repeated");
        block_on(it.store.disown(node, mainspring_core::id::ClaimBatchNo(9), Vec::new())).expect("disowned");
        block_on(it.store.progress(node, Vec::new())).expect("no progress");
        block_on(it.store.change(vec![claimed[0].claim.id], Verb::Delete, true)).expect("a dry run");
    }
    assert_eq!(version(&watcher), before);
    block_on(it.store.enqueue(vec![job(&it.seams)])).expect("enqueued");
    assert_ne!(version(&watcher), before, "a commit shows");
}

#[test]
fn full_disk_refuses_everything_and_recovers_by_itself() {
    let it = Fixture::new();
    let limit = |pages: &'static str| {
        let set = move |tx: &mut Tx<'_>| {
            Ok(tx.conn.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))?)
        };
        block_on(it.store.write(Weight::rows(1), set)).expect("a pragma");
    };
    block_on(it.store.enqueue(vec![job(&it.seams)])).expect("enqueued");
    // Lower than what is in use means: not a page more.
    limit("1");
    let large = || {
        let mut job = job(&it.seams);
        job.input = vec![b' '; 1 << 20];
        job
    };
    let refused = block_on(it.store.enqueue(vec![job(&it.seams), large(), job(&it.seams)]));
    assert!(matches!(refused, Err(Error::DiskFull)), "{refused:?}");
    assert_eq!(block_on(it.store.counts()).expect("counts").total(State::Ready), 1);
    limit("1000000");
    block_on(it.store.enqueue(vec![large()])).expect("enqueued again");
    assert_eq!(block_on(it.store.counts()).expect("counts").total(State::Ready), 2);
    it.assert_sound();
}

#[test]
fn failed_fsync_poisons_the_store_until_it_is_reopened() {
    let it = Fixture::new();
    it.store.env.fail_commit.store(true, Ordering::Release);
    let unknown = block_on(it.store.enqueue(vec![job(&it.seams)]));
    assert!(matches!(unknown, Err(Error::OutcomeUnknown { .. })), "{unknown:?}");
    let poisoned = block_on(it.store.enqueue(vec![job(&it.seams)]));
    assert!(matches!(poisoned, Err(Error::Poisoned { .. })), "{poisoned:?}");
    assert!(matches!(block_on(it.store.counts()), Err(Error::Poisoned { .. })));
    let again = it.other();
    block_on(again.enqueue(vec![job(&it.seams)])).expect("works again");
    assert_eq!(block_on(again.check()).expect("a check"), []);
}

#[test]
fn broken_invariant_stops_the_store_and_leaves_nobody_waiting() {
    let it = Fixture::new();
    let broken = it.store.write(Weight::rows(1), |tx: &mut Tx<'_>| -> crate::error::Result<()> {
        tx.conn.execute("DELETE FROM mainspring_meta", [])?;
        panic!("a planted break")
    });
    assert!(matches!(block_on(broken), Err(Error::OutcomeUnknown { .. })));
    block_on(it.store.close());
    assert!(matches!(block_on(it.store.enqueue(vec![job(&it.seams)])), Err(Error::Poisoned { .. })));
    let again = it.other();
    block_on(again.enqueue(vec![job(&it.seams)])).expect("rolled back and works again");
}

#[test]
fn request_that_fails_spares_its_neighbours() {
    let it = Fixture::new();
    // Holds the writer until all three wait, so that they share a transaction.
    let (release, released) = mpsc::channel::<()>();
    let held = it.store.write(Weight::rows(1), move |_: &mut Tx<'_>| {
        let _ = released.recv();
        Ok(())
    });
    let first = it.store.enqueue(vec![job(&it.seams)]);
    let bad = it.store.write(Weight::rows(1), |tx: &mut Tx<'_>| {
        tx.conn.execute("INSERT INTO mainspring_meta (key, value) VALUES ('version', 1)", [])?;
        Ok(())
    });
    let second = it.store.enqueue(vec![job(&it.seams)]);
    // Also lets it go when its transaction is run again.
    drop(release);
    block_on(held).expect("held");
    block_on(first).expect("the one before");
    assert!(matches!(block_on(bad), Err(Error::Corrupt { .. })));
    block_on(second).expect("the one after");
    assert_eq!(block_on(it.store.counts()).expect("counts").total(State::Ready), 2);
    it.assert_sound();
}

#[test]
fn nothing_is_written_after_a_failed_fsync_in_the_middle_of_a_batch() {
    let it = Fixture::new();
    let (release, released) = mpsc::channel::<()>();
    let held = it.store.write(Weight::rows(1), move |_: &mut Tx<'_>| {
        let _ = released.recv();
        Ok(())
    });
    // Has all of them run again, each in a transaction of its own.
    let bad = it.store.write(Weight::rows(1), |tx: &mut Tx<'_>| {
        tx.conn.execute("INSERT INTO mainspring_meta (key, value) VALUES ('version', 1)", [])?;
        Ok(())
    });
    let env = Arc::clone(&it.store.env);
    let unsynced = it.store.write(Weight::rows(1), move |_: &mut Tx<'_>| {
        env.fail_commit.store(true, Ordering::Release);
        Ok(())
    });
    let after = it.store.enqueue(vec![job(&it.seams)]);
    drop(release);
    block_on(held).expect("held");
    assert!(matches!(block_on(bad), Err(Error::Corrupt { .. })));
    assert!(matches!(block_on(unsynced), Err(Error::OutcomeUnknown { .. })));
    assert!(matches!(block_on(after), Err(Error::Poisoned { .. })));
    assert_eq!(block_on(it.other().counts()).expect("counts").total(State::Ready), 0);
}

#[test]
fn request_that_meets_a_corrupt_row_changes_nothing_and_spares_its_neighbours() {
    let it = Fixture::new();
    let node = block_on(it.store.register(registration(&it.seams))).expect("a node").no;
    let jobs = vec![job(&it.seams), job(&it.seams)];
    let ids = jobs.iter().map(|job| job.id).collect();
    block_on(it.store.enqueue(jobs)).expect("enqueued");
    it.raw().execute("DELETE FROM mainspring_ready WHERE no = 2", []).expect("damaged");

    let (release, released) = mpsc::channel::<()>();
    let held = it.store.write(Weight::rows(1), move |_: &mut Tx<'_>| {
        let _ = released.recv();
        Ok(())
    });
    // The first job is moved by the time that the second one is looked for.
    let changed = it.store.change(ids, Verb::Hold { why: String::new() }, false);
    let stored = it.store.enqueue(vec![job(&it.seams)]);
    drop(release);
    block_on(held).expect("held");
    let refused = block_on(changed);
    assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
    block_on(stored).expect("stored");
    let counts = block_on(it.store.counts()).expect("counts");
    assert_eq!((counts.total(State::Ready), counts.total(State::Suspended)), (3, 0));
    assert_eq!(block_on(it.store.claim(claim(node, 2))).expect("claimed").jobs.len(), 2, "nothing is held");
}

#[test]
fn request_that_is_refused_spares_its_neighbours() {
    let it = Fixture::new();
    let (release, released) = mpsc::channel::<()>();
    let held = it.store.write(Weight::rows(1), move |_: &mut Tx<'_>| {
        let _ = released.recv();
        Ok(())
    });
    let lost = it.store.claim(claim(mainspring_core::id::NodeNo(77), 1));
    let stored = it.store.enqueue(vec![job(&it.seams)]);
    // Also lets it go when its transaction is run again.
    drop(release);
    block_on(held).expect("held");
    assert!(matches!(block_on(lost), Err(Error::LeaseLost)));
    block_on(stored).expect("stored");
    it.assert_sound();
}

#[test]
fn busy_database_is_unavailable_and_nothing_is_lost() {
    let it = Fixture::new();
    let quick = crate::Options::new(&it.path).busy_timeout(Duration::from_millis(20));
    let store = crate::Sqlite::open(quick, it.seams.clone()).expect("opened");
    let other = it.raw();
    other.execute_batch("BEGIN IMMEDIATE").expect("locked");
    let refused = block_on(store.enqueue(vec![job(&it.seams)]));
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    other.execute_batch("ROLLBACK").expect("unlocked");
    block_on(store.enqueue(vec![job(&it.seams)])).expect("enqueued");
    assert_eq!(block_on(store.counts()).expect("counts").total(State::Ready), 1);
}

/// A clock that goes on by a second each time somebody looks.
struct Hasty(AtomicU64);

impl Clock for Hasty {
    fn now(&self) -> Timestamp {
        Timestamp::EPOCH
    }

    fn monotonic(&self) -> Duration {
        Duration::from_secs(self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn sleep(&self, _: Duration) -> Pending<'static, ()> {
        Box::pin(std::future::pending())
    }
}

#[test]
fn read_that_takes_too_long_is_given_up() {
    let it = Fixture::new();
    let clock = Arc::new(Hasty(AtomicU64::new(0)));
    let mut reader = Reader::new(it.raw(), clock, Duration::from_secs(5)).expect("a reader");
    let count = |reader: &mut Reader, rows: i64| {
        reader.run(Duration::ZERO, |reader| {
            let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
                SELECT count(*) FROM n";
            Ok(reader.conn.query_row(endless, [rows], |row| row.get::<_, i64>(0))?)
        })
    };
    let refused = count(&mut reader, i64::MAX);
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    assert_eq!(count(&mut reader, 10).expect("a short one"), 10);
}

#[test]
fn numbers_of_jobs_and_outcomes_are_never_reused() {
    let it = Fixture::new();
    let highest = |it: &Fixture| -> i64 {
        it.raw().query_row("SELECT max(no) FROM mainspring_jobs", [], |row| row.get(0)).expect("a number")
    };
    let (first, second) = (job(&it.seams), job(&it.seams));
    block_on(it.store.enqueue(vec![first.clone(), second.clone()])).expect("enqueued");
    assert_eq!(highest(&it), 2);
    block_on(it.store.change(vec![second.id], Verb::Delete, false)).expect("deleted");
    block_on(it.store.enqueue(vec![job(&it.seams)])).expect("enqueued");
    assert_eq!(highest(&it), 3);

    // The same in another handle, which has not seen the number that is gone.
    let third = job(&it.seams);
    block_on(it.store.enqueue(vec![third.clone()])).expect("enqueued");
    block_on(it.store.change(vec![third.id], Verb::Delete, false)).expect("deleted");
    block_on(it.other().enqueue(vec![job(&it.seams)])).expect("enqueued");
    assert_eq!(highest(&it), 5);

    let cancel = Verb::Cancel { why: String::new() };
    block_on(it.store.change(vec![first.id], cancel.clone(), false)).expect("cancelled");
    let seq = || it.raw().query_row("SELECT max(seq) FROM mainspring_done", [], |row| row.get::<_, i64>(0));
    assert_eq!(seq().expect("a number"), 1);
    block_on(it.store.change(vec![first.id], Verb::Delete, false)).expect("deleted");
    let fourth = job(&it.seams);
    block_on(it.store.enqueue(vec![fourth.clone()])).expect("enqueued");
    block_on(it.other().change(vec![fourth.id], cancel, false)).expect("cancelled");
    assert_eq!(seq().expect("a number"), 2);
    it.assert_sound();
}
