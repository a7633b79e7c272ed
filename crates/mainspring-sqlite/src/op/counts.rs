//! Counts of jobs per queue and state.
//!
//! # Invariants
//! - `counts` plus `count_deltas` equals what is in the places, at every commit.

use mainspring_core::job::State;
use rusqlite::{Connection, params};

use crate::error::Result;

/// Primary key; once per queue and state of a transaction.
const APPLY: &str = "INSERT INTO mainspring_counts (queue, state, n) VALUES (?1, ?2, ?3)
    ON CONFLICT (queue, state) DO UPDATE SET n = n + excluded.n";
/// An append: a caller's transaction holds up nobody by it.
const APPEND: &str = "INSERT INTO mainspring_count_deltas (queue, state, n) VALUES (?1, ?2, ?3)";
/// A look at the first row.
const ANY: &str = "SELECT EXISTS (SELECT 1 FROM mainspring_count_deltas)";
/// The whole of a small table; the transaction sees the same rows in both statements. `WHERE true` tells the parser
/// that `ON CONFLICT` belongs to the insert.
const FOLD: &str = "INSERT INTO mainspring_counts (queue, state, n)
    SELECT queue, state, sum(n) FROM mainspring_count_deltas WHERE true GROUP BY queue, state
    ON CONFLICT (queue, state) DO UPDATE SET n = n + excluded.n";
/// As above.
const FOLDED: &str = "DELETE FROM mainspring_count_deltas";

/// States that there are.
const STATES: usize = State::ALL.len();

/// Changes of one transaction, by the number of the queue.
#[derive(Debug, Default)]
pub(crate) struct Deltas(Vec<[i64; STATES]>);

impl Deltas {
    /// Adds jobs to a state, or takes them away.
    pub(crate) fn add(&mut self, queue: i64, state: State, n: i64) {
        let index = usize::try_from(queue).unwrap_or(0);
        if self.0.len() <= index {
            self.0.resize(index + 1, [0; STATES]);
        }
        self.0[index][usize::from(state.code())] += n;
    }

    /// Writes the changes as the writer does. Tells whether there were any.
    pub(crate) fn apply(&self, conn: &Connection) -> Result<bool> {
        self.write(conn, APPLY)
    }

    /// Writes the changes as a caller's transaction does.
    pub(crate) fn append(&self, conn: &Connection) -> Result<bool> {
        self.write(conn, APPEND)
    }

    fn write(&self, conn: &Connection, sql: &str) -> Result<bool> {
        let mut written = false;
        for (queue, states) in self.0.iter().enumerate() {
            for (state, n) in states.iter().enumerate().filter(|(_, n)| **n != 0) {
                conn.prepare_cached(sql)?.execute(params![as_i64(queue), as_i64(state), n])?;
                written = true;
            }
        }
        Ok(written)
    }
}

fn as_i64(index: usize) -> i64 {
    i64::try_from(index).unwrap_or(i64::MAX)
}

/// Moves deltas into the counts. Tells whether there were any.
pub(crate) fn fold(conn: &Connection) -> Result<bool> {
    let any: bool = conn.prepare_cached(ANY)?.query_row([], |row| row.get(0))?;
    if any {
        conn.prepare_cached(FOLD)?.execute([])?;
        conn.prepare_cached(FOLDED)?.execute([])?;
    }
    Ok(any)
}
