//! The writer: group commit, closing, poisoning and taking turns, whoever comes when.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use mainspring_core::Error;
use mainspring_core::id::JobId;
use mainspring_core::job::New;
use mainspring_core::store::{Hint, Listener, Operators, Producers, Receipt, Store};
use rusqlite::Connection;
use shuttle::future::block_on;
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;

use super::{INTERLEAVINGS, Rig, Template, explore};
use crate::error::Fault;
use crate::tests::support::job;
use crate::writer::{Tx, Weight};
use crate::{Sqlite, op};

/// Callers of a store, and calls of each.
const CALLERS: usize = 3;
const CALLS: usize = 2;

#[test]
fn calls_are_answered_after_their_commit_and_closing_loses_nothing() {
    let template = Template::new();
    explore(INTERLEAVINGS, move || {
        let rig = Rig::new(&template);
        let store = rig.open();
        // With a listener the writer waits for its calls with a time-out, without one for ever.
        let listener = thread_rng().gen_bool(0.5).then(|| subscribed(&store));
        let witness = thread_rng().gen_bool(0.5).then(|| Witness::new(&rig));
        let callers: Vec<_> = (0..CALLERS)
            .map(|_| {
                let caller = Caller { store: Arc::clone(&store), witness: witness.clone() };
                let jobs: Vec<_> = (0..CALLS).map(|_| job(&rig.seams)).collect();
                thread::spawn(move || jobs.into_iter().filter_map(|job| caller.any(job)).collect::<Vec<_>>())
            })
            .collect();
        let late = job(&rig.seams);
        let closing = thread_rng().gen_bool(0.7).then(|| {
            let store = Arc::clone(&store);
            let alone = witness.is_none();
            thread::spawn(move || closed(&store, late, alone))
        });
        drop(store);
        let stored: BTreeSet<_> =
            callers.into_iter().flat_map(|caller| caller.join().expect("a caller")).collect();
        if let Some(closing) = closing {
            closing.join().expect("a caller");
        }
        // Without a call to close, the drop of the last handle closes.
        rig.join();
        assert!(witness.is_some() || !has_log(&rig.path), "the log goes with the last connection");
        assert_eq!(present(&rig.raw()), stored);
        drop(listener);
    });
}

#[test]
fn nothing_is_written_after_a_failed_commit_and_nobody_is_left_waiting() {
    let template = Template::new();
    explore(INTERLEAVINGS / 5, move || {
        let rig = Rig::new(&template);
        let store = rig.open();
        let told = Arc::new(AtomicBool::new(false));
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let (store, told) = (Arc::clone(&store), Arc::clone(&told));
                let jobs: Vec<_> = (0..CALLS).map(|_| job(&rig.seams)).collect();
                thread::spawn(move || {
                    if caller == 0 {
                        store.env.fail_commit.store(true, Ordering::Release);
                    }
                    jobs.into_iter().filter_map(|job| until_poisoned(&store, &told, job)).collect::<Vec<_>>()
                })
            })
            .collect();
        let stored: BTreeSet<_> =
            callers.into_iter().flat_map(|caller| caller.join().expect("a caller")).collect();
        assert!(told.load(Ordering::SeqCst), "somebody's commit failed");
        block_on(store.close());
        rig.join();
        assert_eq!(present(&rig.raw()), stored);
    });
}

#[test]
fn handles_on_one_file_take_turns() {
    let template = Template::new();
    explore(INTERLEAVINGS / 10, move || {
        let rig = Rig::new(&template);
        let handles: Vec<_> = (0..2)
            .map(|_| {
                let store = rig.open();
                let jobs: Vec<_> = (0..CALLS).map(|_| job(&rig.seams)).collect();
                thread::spawn(move || {
                    let ids: Vec<_> = jobs.iter().map(|job| job.id).collect();
                    for job in jobs {
                        // In the middle of the transaction, the other may want to begin his.
                        let body = move |tx: &mut Tx<'_>| {
                            thread::yield_now();
                            op::enqueue::run(tx, std::slice::from_ref(&job))
                        };
                        block_on(store.write(Weight::rows(1), body)).expect("stored");
                    }
                    block_on(store.close());
                    ids
                })
            })
            .collect();
        let stored: BTreeSet<_> =
            handles.into_iter().flat_map(|handle| handle.join().expect("a caller")).collect();
        rig.join();
        assert_eq!(present(&rig.raw()), stored);
    });
}

/// Somebody with a handle on the store.
struct Caller {
    store: Arc<Sqlite>,
    witness: Option<Witness>,
}

impl Caller {
    /// One call of any kind; the job, if it is stored for good.
    fn any(&self, job: New) -> Option<JobId> {
        match thread_rng().gen_range(0..6) {
            0 => self.leaves(job),
            1 => self.is_refused(job),
            2 => self.fails(job),
            3 => self.stores(Weight { rows: 1, bytes: 0, urgent: true }, job),
            _ => self.stores(Weight::rows(1), job),
        }
    }

    /// Stores a job and waits for the answer.
    fn stores(&self, weight: Weight, job: New) -> Option<JobId> {
        let id = job.id;
        let body = move |tx: &mut Tx<'_>| op::enqueue::run(tx, std::slice::from_ref(&job));
        match block_on(self.store.write(weight, body)) {
            Ok(receipts) => assert_eq!(receipts, [Receipt::Created]),
            Err(Error::Closed) => return None,
            Err(error) => panic!("{error}"),
        }
        if let Some(witness) = &self.witness {
            assert!(witness.sees(id), "it was answered before its commit");
        }
        // Seldom, because it is what costs most here.
        if thread_rng().gen_range(0..8) == 0 {
            match block_on(self.store.get(id)) {
                Ok(record) => assert!(record.is_some(), "a read after the answer does not see it"),
                Err(error) => assert!(matches!(error, Error::Closed), "{error}"),
            }
        }
        Some(id)
    }

    /// Hands a job in and does not wait. If the store is still open afterwards, it is stored all the same.
    fn leaves(&self, job: New) -> Option<JobId> {
        let id = job.id;
        drop(self.store.enqueue(vec![job]));
        if self.store.env.queue.refusal().is_none() {
            return Some(id);
        }
        // Whether it came in time can only be seen.
        block_on(self.store.close());
        let raw = Connection::open(self.store.path()).expect("a connection");
        present(&raw).contains(&id).then_some(id)
    }

    /// A call that is refused after it has looked around.
    fn is_refused(&self, job: New) -> Option<JobId> {
        let refuse = |_: &mut Tx<'_>| -> crate::error::Result<()> { Err(Fault::Refused(Error::LeaseLost)) };
        let refused = block_on(self.store.write(Weight::rows(1), refuse));
        assert!(matches!(refused, Err(Error::LeaseLost | Error::Closed)), "{refused:?}");
        self.stores(Weight::rows(1), job)
    }

    /// A call whose statement fails, which has its neighbours run again.
    fn fails(&self, job: New) -> Option<JobId> {
        let fail = move |tx: &mut Tx<'_>| {
            op::enqueue::run(tx, std::slice::from_ref(&job))?;
            tx.conn.execute("INSERT INTO mainspring_meta (key, value) VALUES ('version', 1)", [])?;
            Ok(())
        };
        let failed = block_on(self.store.write(Weight::rows(1), fail));
        assert!(matches!(failed, Err(Error::Corrupt { .. } | Error::Closed)), "{failed:?}");
        None
    }
}

/// Closes a store. Its connections are closed then, and nothing gets in afterwards.
fn closed(store: &Sqlite, late: New, alone: bool) {
    block_on(store.close());
    assert!(!alone || !has_log(store.path()), "a connection is still open");
    let id = late.id;
    assert!(matches!(block_on(store.enqueue(vec![late])), Err(Error::Closed)));
    assert!(matches!(block_on(store.get(id)), Err(Error::Closed)));
    block_on(store.close());
}

/// Stores a job on a store whose commit fails some time; the job, if it was stored.
fn until_poisoned(store: &Sqlite, told: &AtomicBool, job: New) -> Option<JobId> {
    let id = job.id;
    let late = told.load(Ordering::SeqCst);
    match block_on(store.enqueue(vec![job])) {
        Ok(_) => {
            assert!(!late, "it was written after a failed commit");
            return Some(id);
        }
        Err(Error::OutcomeUnknown { .. }) => {
            assert!(!late, "only the calls of the failed commit are in doubt");
            told.store(true, Ordering::SeqCst);
        }
        Err(error) => assert!(matches!(error, Error::Poisoned { .. }), "{error}"),
    }
    assert!(matches!(block_on(store.get(id)), Err(Error::Poisoned { .. })));
    None
}

/// Somebody who listens and does nothing about it.
struct Deaf;

impl Listener for Deaf {
    fn hint(&self, _: &Hint) {}
}

fn subscribed(store: &Sqlite) -> Arc<dyn Listener> {
    let listener: Arc<dyn Listener> = Arc::new(Deaf);
    store.subscribe(Arc::downgrade(&listener));
    listener
}

/// A connection of somebody else's, who sees what is committed and nothing else.
#[derive(Clone)]
struct Witness(Arc<Mutex<Connection>>);

impl Witness {
    fn new(rig: &Rig) -> Self {
        Witness(Arc::new(Mutex::new(rig.raw())))
    }

    fn sees(&self, id: JobId) -> bool {
        present(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).contains(&id)
    }
}

/// Whether the write-ahead log of a file is still there, as it is while anybody has the file open.
fn has_log(path: &Path) -> bool {
    path.with_extension("db-wal").exists()
}

/// All jobs of a file.
fn present(conn: &Connection) -> BTreeSet<JobId> {
    let mut jobs = conn.prepare_cached("SELECT id FROM mainspring_jobs").expect("a statement");
    let ids = jobs.query_map([], |row| row.get(0)).expect("rows");
    ids.map(|id| JobId::from_bytes(id.expect("an id"))).collect()
}
