//! The writer: one thread, one connection, group commit.
//!
//! Requests wait in a [`queue`]. The writer takes all that wait, up to bounds, runs them in one `BEGIN IMMEDIATE …
//! COMMIT` and answers after the commit. While that is under way the next ones gather, so batches form by themselves
//! and an idle store answers at once.
//!
//! # Invariants
//! - Nothing is answered as done before its commit.
//! - A request that is refused has changed nothing, so its neighbours go on. If a statement fails in a way that is not
//!   the whole database's, the transaction is rolled back and each request runs in one of its own.
//! - After a commit that failed in storage, nothing is written any more.
//! - Nothing is answered unless the paths of the store's files led to what was written when its commit was over.

mod queue;
mod state;

pub(crate) use queue::{Call, Queue, Typed, Weight};
pub(crate) use state::{Env, Local, State, Tx};

use std::sync::Arc;
use std::time::Duration;

use mainspring_core::planted::{self, Defect};
use mainspring_core::store::Hint;
use mainspring_core::{Error, fault};
use rusqlite::Connection;

use crate::error::{Fault, Severity, damaged, rolled_back, severity};
use crate::turnstile::Turnstile;

/// How often an idle writer looks whether another process has committed, while anybody listens.
const WATCH: Duration = Duration::from_millis(50);
/// How often a commit is tried again when another connection stands in its way.
const COMMIT_TRIES: usize = 3;

/// Why a whole transaction came to nothing.
enum Failed {
    /// It was rolled back.
    RolledBack(rusqlite::Error),
    /// Its commit may or may not have happened.
    Unknown(rusqlite::Error),
    /// It was committed to a file that nobody will find again, for this reason.
    Misplaced(String),
}

/// The thread's body: works until the queue is closed and empty.
pub(crate) fn run(conn: Connection, turnstile: Turnstile, env: Arc<Env>) {
    // Dropped after the writer, whose end frees the lock and closes the database.
    let _end = End(Arc::clone(&env));
    let state = State { home: Some(Arc::clone(&env)), ..State::default() };
    let mut writer = Writer { conn, turnstile, state, env };
    loop {
        let watch = writer.env.listeners.any().then_some(WATCH);
        match writer.env.queue.take(watch) {
            queue::WriterWork::Calls(calls) => writer.work(calls),
            queue::WriterWork::Nothing => writer.watch(),
            queue::WriterWork::Closed => break,
        }
    }
    writer.leave();
    writer.env.queue.await_readers();
}

/// Tells of the writer's end, however it comes.
struct End(Arc<Env>);

impl Drop for End {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A broken invariant: the transaction under way was rolled back, and nobody is left to write.
            self.0.queue.poison("a broken invariant has stopped its writer; reopen it");
        }
        self.0.queue.ended();
    }
}

struct Writer {
    conn: Connection,
    turnstile: Turnstile,
    state: State,
    env: Arc<Env>,
}

impl Writer {
    /// Runs calls and answers them.
    fn work(&mut self, mut calls: Vec<Box<dyn Call>>) {
        match self.transaction(&mut calls) {
            Ok(()) => {
                fault::point!("sqlite.answering");
                calls.into_iter().for_each(Call::answer);
            }
            Err(Failed::Unknown(error)) => {
                tracing::error!(%error, "commit failed in storage; the store accepts no writes until you reopen it");
                self.env.queue.poison("a write to stable storage failed; reopen it");
                for call in calls {
                    call.refuse(Error::OutcomeUnknown { source: Some(error.to_string().into()) });
                }
            }
            Err(Failed::Misplaced(why)) => {
                self.misplaced(&why);
                for call in calls {
                    call.refuse(Error::OutcomeUnknown { source: Some(why.clone().into()) });
                }
            }
            Err(Failed::RolledBack(error))
                if calls.len() > 1 && matches!(severity(&error), Severity::Other | Severity::Corrupt) =>
            {
                tracing::warn!(%error, "statement failed; running its requests one by one");
                for call in calls {
                    match self.env.queue.refusal() {
                        Some(poisoned @ Error::Poisoned { .. }) => call.refuse(poisoned),
                        _ => self.work(vec![call]),
                    }
                }
            }
            Err(Failed::RolledBack(error)) => {
                for call in calls {
                    call.refuse(rolled_back(&error));
                }
            }
        }
    }

    /// One transaction around all calls.
    fn transaction(&mut self, calls: &mut Vec<Box<dyn Call>>) -> Result<(), Failed> {
        self.turnstile.begin(&self.conn, &*self.env.clock).map_err(Failed::RolledBack)?;
        fault::point!("sqlite.begun");
        let outcome = self.body(calls).and_then(|hints| {
            if planted::is(Defect::EarlyAnswer) {
                calls.drain(..).for_each(Call::answer);
                // Long enough for a caller to tell others.
                crate::sync::pause(Duration::from_millis(2));
            }
            fault::point!("sqlite.committing");
            self.commit()?;
            fault::point!("sqlite.committed");
            match self.env.files.misplaced() {
                None => Ok(hints),
                Some(why) => Err(Failed::Misplaced(why)),
            }
        });
        match outcome {
            Ok((hints, foreign, after)) => {
                for dead in after {
                    dead.bury();
                }
                if foreign {
                    self.env.listeners.tell(&Hint::Foreign);
                }
                hints.tell(&self.env.listeners);
                Ok(())
            }
            Err(failed) => {
                self.abandon();
                Err(failed)
            }
        }
    }

    fn body(
        &mut self,
        calls: &mut [Box<dyn Call>],
    ) -> Result<(crate::hint::Hints, bool, Vec<crate::process_lock::Dead>), Failed> {
        let failed = |fault: Fault| match fault {
            Fault::Sql(error) => Failed::RolledBack(error),
            Fault::Refused(error) => Failed::RolledBack(damaged(error)),
        };
        let mut tx = Tx::new(&self.conn, &mut self.state, self.env.clock.now());
        tx.turnstile = Some(&self.turnstile);
        let foreign = tx.begin().map_err(failed)?;
        for call in calls {
            tx.now = self.env.clock.now();
            call.run(&mut tx).map_err(Failed::RolledBack)?;
        }
        tx.finish().map_err(failed).map(|(hints, after)| (hints, foreign, after))
    }

    fn commit(&self) -> Result<(), Failed> {
        let mut tries = 0;
        loop {
            tries += 1;
            let error = match self.try_commit() {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            match severity(&error) {
                Severity::Busy if tries < COMMIT_TRIES => {}
                Severity::Busy | Severity::Full => return Err(Failed::RolledBack(error)),
                Severity::Io | Severity::Corrupt | Severity::Other => return Err(Failed::Unknown(error)),
            }
        }
    }

    #[cfg(not(test))]
    fn try_commit(&self) -> rusqlite::Result<()> {
        self.conn.prepare_cached("COMMIT")?.execute([]).map(drop)
    }

    /// In tests, a commit can be made to fail as a failed fsync would make it.
    #[cfg(test)]
    fn try_commit(&self) -> rusqlite::Result<()> {
        use std::sync::atomic::Ordering;
        if self.env.fail_commit.swap(false, Ordering::AcqRel) {
            let code = rusqlite::ffi::SQLITE_IOERR_FSYNC;
            return Err(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None));
        }
        self.conn.prepare_cached("COMMIT")?.execute([]).map(drop)
    }

    /// Undoes what is undone in memory too.
    fn abandon(&mut self) {
        if !self.conn.is_autocommit()
            && let Err(error) = self.conn.execute_batch("ROLLBACK")
        {
            tracing::warn!(%error, "cannot roll back");
        }
        self.state.forget();
    }

    /// Removes lock files that prove nothing any more. One that a live node refers to stays, and is proof once it is free.
    fn leave(&mut self) {
        for lock in std::mem::take(&mut self.state.locks) {
            match crate::op::node::refers_to(&self.conn, lock.name()) {
                Ok(false) => lock.remove(),
                Ok(true) => self.state.locks.push(lock),
                Err(error) => {
                    tracing::debug!(%error, "cannot remove the lock file");
                    self.state.locks.push(lock);
                }
            }
        }
    }

    /// Stops writing to a file that is not the store's any more. Its log is left as it is: it belongs to whatever is there now.
    fn misplaced(&self, why: &str) {
        tracing::error!(why, "the store accepts no writes until you reopen it");
        let kept = rusqlite::config::DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
        if let Err(error) = self.conn.set_db_config(kept, true) {
            tracing::warn!(%error, "cannot keep the write-ahead log; SQLite copies it back at close");
        }
        self.env.queue.poison(why);
    }

    /// Looks whether another process has committed, and whether the files are still in place.
    fn watch(&mut self) {
        if let Some(why) = self.env.files.misplaced() {
            return self.misplaced(&why);
        }
        if self.state.foreign(&self.conn).unwrap_or(false) {
            self.env.listeners.tell(&Hint::Foreign);
        }
    }
}
