//! Reads: on threads and connections of their own, so that they never wait for the writer nor hold it up.
//!
//! # Invariants
//! - One call sees one moment of the database: it runs in one read transaction.
//! - No read takes longer than its time; a reader's open snapshot would keep the write-ahead log from being reused.

mod admin;
mod check;
mod journal;
mod limits;
mod list;
mod output;
mod schedules;
mod summary;

pub(crate) use admin::{counts, lines, nodes, queues};
#[cfg(feature = "fuzz")]
pub(crate) use check::check_all;
pub(crate) use check::{PATIENCE as CHECK_PATIENCE, check};
pub(crate) use journal::{inboxes, inputs, job_ends, timeline, values};
pub(crate) use limits::{limit_key, limit_keys, limits, obstacle, totals};
pub(crate) use list::list;
pub(crate) use output::outputs;
pub(crate) use schedules::{audit, due_schedules, find_schedules, list_schedules};
pub(crate) use summary::get;

/// Statements whose plans are tested.
#[cfg(test)]
pub(crate) mod plans {
    pub(crate) use super::journal::{CHILDREN, ENDING, VALUE};
    pub(crate) use super::limits::{
        FIRST as FIRST_OF_GROUP, HOLDERS, KEY as LIMIT_KEY, KEYS as LIMIT_KEYS, WAITING,
    };
    pub(crate) use super::list::{FAULTY, JOBS, RARE, READY, TAGGED};
    pub(crate) use super::output::PAGE;
    pub(crate) use super::schedules::{AUDIT_OF, DUE, FIND, LIST};
}

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use mainspring_core::Error;
use mainspring_core::seam::Clock;
use rusqlite::Connection;

use crate::error::{Fault, Result, rolled_back};
use crate::names::Names;
use crate::oneshot::{Receiver, channel};
use crate::sync::{Condvar, Mutex, MutexGuard};

/// Reads that may wait.
const WAITING: usize = 10_000;
/// Steps of SQLite's machine between two looks at the clock: some tens of microseconds.
const STEPS: i32 = 10_000;

type Read = Box<dyn FnOnce(Option<&mut Reader>) + Send>;

/// One reading connection and what it has cached.
pub(crate) struct Reader {
    pub(crate) conn: Connection,
    pub(crate) names: Names,
    clock: Arc<dyn Clock>,
    /// When the read under way has to be over, in microseconds of monotonic time.
    deadline: Arc<AtomicU64>,
    patience: Duration,
}

impl Reader {
    /// Makes a reader of a connection.
    pub(crate) fn new(
        mut conn: Connection,
        clock: Arc<dyn Clock>,
        patience: Duration,
    ) -> rusqlite::Result<Self> {
        let deadline = Arc::new(AtomicU64::new(u64::MAX));
        let (watched, watch) = (Arc::clone(&deadline), Arc::clone(&clock));
        // Not every version of rusqlite that we accept needs it to be mutable.
        let connection = &mut conn;
        connection.progress_handler(
            STEPS,
            Some(move || micros(watch.monotonic()) > watched.load(Ordering::Relaxed)),
        )?;
        Ok(Reader { conn, names: Names::default(), clock, deadline, patience })
    }

    /// Runs one read in one transaction and within its time, which is `patience` if that is longer.
    pub(crate) fn run<T>(
        &mut self,
        patience: Duration,
        body: impl FnOnce(&mut Reader) -> Result<T>,
    ) -> mainspring_core::Result<T> {
        let end = self.clock.monotonic().saturating_add(self.patience.max(patience));
        self.deadline.store(micros(end), Ordering::Relaxed);
        let outcome = self.conn.execute_batch("BEGIN").map_err(Fault::from).and_then(|()| {
            self.refresh()?;
            body(self)
        });
        self.deadline.store(u64::MAX, Ordering::Relaxed);
        if !self.conn.is_autocommit()
            && let Err(error) = self.conn.execute_batch("COMMIT")
        {
            tracing::debug!(%error, "cannot end a read transaction");
        }
        outcome.map_err(|fault| match fault {
            Fault::Refused(error) => error,
            Fault::Sql(error) => rolled_back(&error),
        })
    }

    /// Names that were interned since the last read.
    fn refresh(&mut self) -> Result<()> {
        let mut names = std::mem::take(&mut self.names);
        let refreshed = names.refresh(&self.conn);
        if refreshed.is_ok() {
            self.names = names;
        }
        refreshed
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[derive(Default)]
struct Inner {
    waiting: VecDeque<Read>,
    closed: bool,
}

/// Reads on their way to the readers.
#[derive(Default)]
pub(crate) struct Pool {
    inner: Mutex<Inner>,
    filled: Condvar,
}

impl Pool {
    /// A thread's body: reads until the pool is closed and empty.
    pub(crate) fn serve(&self, mut reader: Reader) {
        while let Some(read) = self.next() {
            // A read changes nothing, so what broke in one concerns no other; its caller is answered by the drop of
            // the request.
            let body = AssertUnwindSafe(|| read(Some(&mut reader)));
            if std::panic::catch_unwind(body).is_err() {
                tracing::error!("read panicked");
            }
        }
    }

    /// Hands in a read.
    pub(crate) fn read<T: Send + 'static>(
        &self,
        patience: Duration,
        body: impl FnOnce(&mut Reader) -> Result<T> + Send + 'static,
    ) -> Receiver<mainspring_core::Result<T>> {
        let (sender, receiver) = channel();
        let read: Read = Box::new(move |reader| {
            sender.send(match reader {
                Some(reader) => reader.run(patience, body),
                None => Err(Error::unavailable("too many reads are waiting")),
            });
        });
        let mut inner = self.lock();
        if inner.closed {
            drop(inner);
            // Dropping the request answers it: there is nobody to read.
            return receiver;
        }
        if inner.waiting.len() >= WAITING {
            drop(inner);
            read(None);
            return receiver;
        }
        inner.waiting.push_back(read);
        drop(inner);
        self.filled.notify_one();
        receiver
    }

    /// Lets nothing in any more; what waits is still read.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_all();
    }

    fn next(&self) -> Option<Read> {
        let mut inner = self.lock();
        loop {
            if let Some(read) = inner.waiting.pop_front() {
                return Some(read);
            }
            if inner.closed {
                return None;
            }
            inner = self.filled.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
