//! Counts of jobs per queue and state.
//!
//! # Invariants
//! - `counts` plus `count_deltas` equals what is in the places, at every commit.

use std::collections::BTreeMap;

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

/// Changes of one transaction, by the number of the queue. A map, because a damaged number may be any.
#[derive(Debug, Default)]
pub(crate) struct Deltas(BTreeMap<i64, [i64; STATES]>);

impl Deltas {
    /// Adds jobs to a state, or takes them away.
    pub(crate) fn add(&mut self, queue: i64, state: State, n: i64) {
        self.0.entry(queue).or_insert([0; STATES])[usize::from(state.code())] += n;
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
        for (queue, states) in &self.0 {
            for (state, n) in State::ALL.iter().zip(states).filter(|(_, n)| **n != 0) {
                conn.prepare_cached(sql)?.execute(params![queue, state.code(), n])?;
                written = true;
            }
        }
        Ok(written)
    }
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
