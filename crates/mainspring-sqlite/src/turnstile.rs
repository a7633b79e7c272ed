//! Taking turns: fairness between processes that write to one file.
//!
//! SQLite lets whoever asks at the right moment write next. A process that writes without a break is nearly always the
//! one, and others wait until their time-out. So a writer first takes a turnstile, a lock file that all handles share,
//! and lets go of it once it holds SQLite's own lock: while somebody waits for that, he holds the turnstile, and the one
//! who writes cannot begin again before him.
//!
//! # Invariants
//! - Nothing but fairness depends on the turnstile: without it, writing goes on as SQLite allows.

use std::cell::Cell;
use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::time::Duration;

use mainspring_core::seam::Clock;
use rusqlite::{Connection, ErrorCode};

use crate::sync::pause;

/// Between two tries: about as long as a short transaction takes.
const PAUSE: Duration = Duration::from_micros(300);

/// How long to wait for the turnstile itself. Who holds it waits for a short transaction; if it takes longer, he was
/// stopped there, and nobody should wait for that.
const TURNSTILE_WAIT: Duration = Duration::from_millis(250);

/// The turnstile of one handle.
pub(crate) struct Turnstile {
    file: Option<File>,
    timeout: Duration,
    /// Whether it was waited for in vain: until it is found free it is not waited for again, so that a stopped process
    /// costs everybody one wait and not one with every transaction.
    stalled: Cell<bool>,
}

impl Turnstile {
    /// Opens the turnstile beside a database.
    pub(crate) fn open(database: &Path, timeout: Duration) -> Self {
        let mut name = database.as_os_str().to_owned();
        name.push("-turnstile.lock");
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(name);
        let file =
            file.map_err(|error| tracing::warn!(%error, "cannot open the turnstile; processes do not take turns in writing")).ok();
        Turnstile { file, timeout, stalled: Cell::new(false) }
    }

    /// Begins a transaction that writes, when it is our turn.
    pub(crate) fn begin(&self, conn: &Connection, clock: &dyn Clock) -> rusqlite::Result<()> {
        let begin = clock.monotonic();
        let mut turn = Patience { begin, pauses: 0, timeout: self.timeout.min(TURNSTILE_WAIT) };
        let taken = self.file.as_ref().filter(|file| {
            loop {
                match file.try_lock() {
                    Ok(()) => {
                        self.stalled.set(false);
                        return true;
                    }
                    Err(TryLockError::WouldBlock) if !self.stalled.get() && turn.pause(clock) => {}
                    Err(_) => {
                        self.stalled.set(true);
                        return false;
                    }
                }
            }
        });
        let mut patience = Patience { begin, pauses: 0, timeout: self.timeout };
        let begun = loop {
            match conn.prepare_cached("BEGIN IMMEDIATE").and_then(|mut begin| begin.execute([])) {
                Err(error)
                    if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                        && patience.pause(clock) => {}
                begun => break begun.map(drop),
            }
        };
        if let Some(Err(error)) = taken.map(File::unlock) {
            tracing::warn!(%error, "cannot unlock the turnstile");
        }
        begun
    }
}

/// How long to go on waiting.
struct Patience {
    begin: Duration,
    pauses: u32,
    timeout: Duration,
}

impl Patience {
    /// Waits a moment; `false` if it has been long enough. Counts its pauses too, because the clock may be one that
    /// stands still.
    fn pause(&mut self, clock: &dyn Clock) -> bool {
        self.pauses += 1;
        let waited = clock.monotonic().saturating_sub(self.begin).max(PAUSE * self.pauses);
        if waited >= self.timeout {
            return false;
        }
        pause(PAUSE);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::support::TestClock;

    #[test]
    fn a_turnstile_that_is_not_let_go_is_waited_for_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let database = dir.path().join("app.db");
        let conn = Connection::open(&database).expect("a database");
        let begin = |turnstile: &Turnstile| {
            turnstile.begin(&conn, &TestClock::default()).expect("begun");
            conn.execute_batch("ROLLBACK").expect("rolled back");
            turnstile.stalled.get()
        };
        let stopped = Turnstile::open(&database, Duration::from_secs(5));
        let other = Turnstile::open(&database, Duration::from_secs(5));
        assert!(!begin(&other));
        let file = stopped.file.as_ref().expect("a file");
        file.lock().expect("a lock");
        assert!(begin(&other), "writing goes on without it");
        assert!(begin(&other));
        file.unlock().expect("unlocked");
        assert!(!begin(&other), "and with it, once it is free");
    }
}
