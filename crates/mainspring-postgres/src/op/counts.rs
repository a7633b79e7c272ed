//! Counts of jobs per line and state.
//!
//! Every move appends what it changes; a fold takes what was appended and adds it to the counts.
//!
//! # Invariants
//! - `counts` plus `count_deltas` equals what is in the places, at every commit.
//! - One transaction at a time folds, and nobody waits for it: nobody else writes `counts`.

use super::Op;
use crate::connection::Conn;
use crate::error::Result;
use crate::shared::Shared;
use crate::sql::{Query, statement};

/// Rows that one statement folds: some tens of milliseconds.
const ROWS: i64 = 20_000;
/// Statements of one fold, at most.
const ROUNDS: usize = 50;

statement! {
    /// Advisory lock, without waiting: another folder does the same work. Primary key of `count_deltas`, from its beginning;
    /// rows of open transactions are not visible and stay. Primary key of `counts`, which only the holder of the lock writes.
    /// Should its snapshot be older than the fold before it, rows that were folded then are found deleted and not counted
    /// twice.
    pub(crate) FoldDeltas<'a> = "counts.fold", by ["count_deltas_pkey", "counts_pkey"],
    (class: i32, limit: i64) -> Folded { count: i64 };
    "WITH g AS MATERIALIZED (SELECT pg_try_advisory_xact_lock($1, -2) AS got)
    , d AS (DELETE FROM mainspring.count_deltas WHERE ctid = ANY(ARRAY(
            SELECT c.ctid FROM mainspring.count_deltas c WHERE (SELECT got FROM g) ORDER BY c.no LIMIT $2))
        RETURNING line, state, n)
    , i AS (INSERT INTO mainspring.counts AS c (line, state, n)
        SELECT line, state, sum(n) FROM d GROUP BY line, state HAVING sum(n) <> 0 ORDER BY line, state
        ON CONFLICT (line, state) DO UPDATE SET n = c.n + excluded.n)
    SELECT count(*) FROM d"
}

/// Moves what was appended into the counts.
pub(crate) struct Fold;

impl Op for Fold {
    type Answer = ();

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<()> {
        fold(conn, shared).await
    }
}

/// Moves what was appended into the counts, in transactions of its own.
pub(crate) async fn fold(conn: &mut Conn, shared: &Shared) -> Result<()> {
    let class = shared.class();
    // Whoever folds has other work in the same call; what is left is for the next.
    let end = shared.monotonic() + shared.timeout() / 4;
    for _ in 0..ROUNDS {
        let fold = FoldDeltas { class: &class, limit: &ROWS }.call();
        let folded = FoldDeltas::first(&conn.commit(shared, &[fold]).await?.pop().unwrap_or_default())?;
        if folded.is_none_or(|row| row.count < ROWS) || shared.monotonic() >= end {
            break;
        }
    }
    Ok(())
}
