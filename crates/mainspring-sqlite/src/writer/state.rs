//! What the writer knows, and one transaction at work.
//!
//! # Invariants
//! - What is cached reflects the database at the begin of each transaction: another process's commit is noticed by
//!   `data_version`, and a rollback drops the cache.
//! - Counts in the database are exact at every commit: a transaction writes the sum of its changes as its last act.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use mainspring_core::job::State as JobState;
use mainspring_core::seam::{Clock, Rng, Spawn};
use mainspring_core::store::Abilities;
use mainspring_core::time::Timestamp;
use rusqlite::Connection;

use super::Queue;
use crate::error::Result;
use crate::hint::{Hints, Listeners};
use crate::names::Names;
use crate::op::row_numbers::Numbers;
use crate::op::{counts, limits};
use crate::open_files::Files;
use crate::process_lock::{Dead, Lock};
use crate::transaction_step::Guard;
use crate::turnstile::Turnstile;

/// What the writer and the handles share.
pub(crate) struct Env {
    pub(crate) path: PathBuf,
    /// What the path, and those of the log and its index, led to when the store was opened.
    pub(crate) files: Files,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) rng: Arc<dyn Rng>,
    pub(crate) queue: Queue,
    pub(crate) listeners: Listeners,
    pub(crate) spawn: Arc<dyn Spawn>,
    /// What the writer's connection is asked while an application's own code uses it.
    pub(crate) guard: Arc<Guard>,
    /// Makes the next commit fail as a failed fsync would.
    #[cfg(test)]
    pub(crate) fail_commit: std::sync::atomic::AtomicBool,
}

/// What the writer keeps between transactions.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) names: Names,
    pub(crate) limits: limits::Cache,
    pub(crate) numbers: Numbers,
    pub(crate) nodes: BTreeMap<i64, Local>,
    /// What proves that this handle lives: the last one for nodes to come, those before it for nodes that joined while their
    /// files were in place.
    pub(crate) locks: Vec<Lock>,
    /// How far `done` has been looked through, per retention in microseconds.
    pub(crate) pruned: BTreeMap<i64, i64>,
    /// Since when the last group waits that got a turn.
    pub(crate) last_turn: i64,
    /// How far limits have been looked through.
    pub(crate) limits_pruned: limits::prune::Positions,
    /// The settings that `pruned` belongs to.
    pub(crate) retentions: Vec<i64>,
    /// Where the store lives; `None` in a caller's own transaction, which registers and rescues nobody.
    pub(crate) home: Option<Arc<Env>>,
    /// Whether names and numbers reflect the database.
    pub(crate) loaded: bool,
    /// Whether another connection may have left deltas of counts to fold.
    pub(crate) unfolded: bool,
    /// What tells of other connections' commits; 0 before the first look.
    pub(crate) data_version: i64,
}

/// What a claim must know of its node.
#[derive(Debug, Default)]
pub(crate) struct Local {
    pub(crate) abilities: Abilities,
    /// The last claim batch; `None` if it has had none.
    pub(crate) batch: Option<u64>,
    /// Whether all that it holds was claimed through this handle.
    pub(crate) fresh: bool,
    /// Whether a line can be run, by its number, for all lines known when it was last looked at.
    pub(crate) runs: Vec<bool>,
    /// When lines can be run that could not when that was decided.
    pub(crate) grows: Option<Timestamp>,
}

impl State {
    /// Drops what a rolled back transaction may have put here.
    pub(super) fn forget(&mut self) {
        self.names = Names::default();
        self.limits = limits::Cache::default();
        self.numbers = Numbers::default();
        self.pruned.clear();
        self.loaded = false;
        for local in self.nodes.values_mut() {
            local.runs.clear();
        }
    }

    /// Whether another connection has committed since the last look.
    pub(super) fn foreign(&mut self, conn: &Connection) -> rusqlite::Result<bool> {
        let version: i64 = conn.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))?;
        let foreign = self.data_version != 0 && version != self.data_version;
        if foreign {
            self.loaded = false;
        }
        self.data_version = version;
        Ok(foreign)
    }
}

/// One transaction at work: the writer's, or a caller's own that takes jobs with it.
pub(crate) struct Tx<'a> {
    pub(crate) conn: &'a Connection,
    pub(crate) state: &'a mut State,
    /// The store's time, read anew for each request.
    pub(crate) now: Timestamp,
    pub(crate) hints: Hints,
    /// Proofs of death that end when the transaction has.
    pub(crate) dead: Vec<Dead>,
    /// Where a writer waits for its turn; `None` in a caller's own transaction.
    pub(crate) turnstile: Option<&'a Turnstile>,
    /// Counters of limit keys that this transaction has read.
    pub(crate) counters: limits::Counters,
    counts: counts::Deltas,
}

impl<'a> Tx<'a> {
    pub(crate) fn new(conn: &'a Connection, state: &'a mut State, now: Timestamp) -> Self {
        let (hints, counts) = (Hints::default(), counts::Deltas::default());
        let counters = limits::Counters::default();
        Tx { conn, state, now, hints, dead: Vec::new(), turnstile: None, counters, counts }
    }

    /// Brings what is cached up to date. Tells whether another connection has committed.
    pub(super) fn begin(&mut self) -> Result<bool> {
        let foreign = self.state.foreign(self.conn)?;
        if !self.state.loaded {
            self.settings_changed()?;
            self.state.numbers = Numbers::load(self.conn)?;
            self.state.loaded = true;
            // Also at the first transaction: others may have left something to fold.
            self.state.unfolded = true;
        }
        Ok(foreign)
    }

    /// Brings what is cached up to date after somebody else's code has used the connection.
    pub(crate) fn reload(&mut self) -> Result<()> {
        self.state.loaded = false;
        self.begin().map(drop)
    }

    /// Brings what is known of names and settings up to date.
    pub(crate) fn settings_changed(&mut self) -> Result<()> {
        let State { names, limits, .. } = &mut *self.state;
        names.refresh(self.conn)?;
        limits.refresh(self.conn, names)
    }

    /// Writes what is summed up, and hands out what to do after the commit.
    pub(super) fn finish(mut self) -> Result<(Hints, Vec<Dead>)> {
        limits::counters::save(&mut self)?;
        if self.counts.apply(self.conn)? && self.state.unfolded {
            counts::fold(self.conn)?;
            self.state.unfolded = false;
        }
        Ok((self.hints, self.dead))
    }

    /// Ends our part of a caller's own transaction: counts are appended.
    pub(crate) fn enlisted(mut self) -> Result<()> {
        limits::counters::save(&mut self)?;
        self.counts.append(self.conn).map(drop)
    }

    /// The store's time in microseconds.
    pub(crate) fn micros(&self) -> i64 {
        self.now.as_micros()
    }

    /// Counts jobs of a queue in or out of a state.
    pub(crate) fn count(&mut self, queue: i64, state: JobState, n: i64) {
        self.counts.add(queue, state, n);
    }
}
