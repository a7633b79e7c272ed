//! Append: one more entry of claims that have recorded before.
//!
//! Nearly all that is ever recorded is that. The row of `lease` says already that there is a journal and counts no crash, so
//! it is locked and stays as it is. One statement locks, compares and inserts, and knows nothing else. It takes a batch as a
//! whole or not at all: what it does not take, because a claim has ended or its row says something else, is for
//! [`record`](super::record), which knows every case.
//!
//! # Invariants
//! - Nothing is written for a claim but under the lock of its row of `lease`, as for all records.
//! - What is remembered of claims only chooses the statement: that checks what it relies on.

use std::collections::BTreeMap;
use std::sync::Mutex;

use mainspring_core::journal::Recording;
use mainspring_core::time::millis;

use super::node::number_of;
use super::now;
use super::record::is_repeat;
use crate::connection::Conn;
use crate::error::Result;
use crate::shared::{Shared, lock};
use crate::sql::{Present, Query, statement};

statement! {
    /// Primary key of `lease`, in order of the numbers, and a lock on each row; then appends, if all claims are held and say that
    /// they have recorded. In that order the claims' numbers are those of `$4`, or else nothing is appended. Whether it was.
    pub(crate) AppendMany<'a> = "append.many", by ["lease_pkey"],
    (
        at: Present, node: i32, nos: Vec<i64>, claims: Vec<i32>, entry_nos: Vec<i64>, entry_claims: Vec<i32>,
        kinds: Vec<i16>, overlapped: Vec<bool>, took: Vec<Option<i32>>, keys: Vec<&'a str>, values: Vec<&'a [u8]>,
    )
    -> Held { held: bool };
    concat!(
    "WITH ",
    now!(),
    ", s AS (SELECT l.claim FROM mainspring.lease l
        WHERE l.no = ANY($3::bigint[]) AND l.node = $2 AND l.flags & {flag.journal} <> 0 AND l.crashes = 0 AND l.crashed = 0
        FOR NO KEY UPDATE)
    , h AS MATERIALIZED (SELECT coalesce(array_agg(s.claim) = $4::int[], false) AS held FROM s)
    , i AS (INSERT INTO mainspring.steps (no, at, claim, kind, overlapped, took, key, value)
        SELECT e.no, (SELECT t.now FROM t), e.claim, e.kind, e.overlapped, e.took, e.key, e.value
        FROM unnest($5::bigint[], $6::int[], $7::smallint[], $8::boolean[], $9::int[], $10::text[], $11::bytea[])
            AS e(no, claim, kind, overlapped, took, key, value)
        WHERE (SELECT h.held FROM h))
    SELECT h.held FROM h"
)
}

statement! {
    /// The same for one entry of one claim, as a workflow has it that records by itself: the shortest plan, for the least latency.
    pub(crate) AppendOne<'a> = "append.one", by ["lease_pkey"],
    (
        at: Present, node: i32, no: i64, claim: i32, kind: i16, overlapped: bool, took: Option<i32>, key: &'a str, value: &'a [u8],
    )
    -> Held;
    concat!(
    "WITH ",
    now!(),
    "INSERT INTO mainspring.steps (no, at, claim, kind, overlapped, took, key, value)
    SELECT l.no, (SELECT t.now FROM t), l.claim, $5::smallint, $6::boolean, $7::int, $8::text, $9::bytea
    FROM (SELECT l.no, l.claim FROM mainspring.lease l
        WHERE l.no = $3 AND l.claim = $4 AND l.node = $2 AND l.flags & {flag.journal} <> 0 AND l.crashes = 0 AND l.crashed = 0
        FOR NO KEY UPDATE) l
    RETURNING true"
)
}

/// Claims that are remembered at most. Who is forgotten is recorded by the longer statement once more.
const REMEMBERED: usize = 16_384;

/// Claims that have recorded: the last one of each job, by the job's number.
#[derive(Default)]
pub(crate) struct RecordedClaims(Mutex<BTreeMap<i64, i32>>);

impl RecordedClaims {
    /// Remembers claims that have recorded.
    pub(crate) fn note(&self, claims: impl Iterator<Item = (i64, i32)>) {
        let mut begun = lock(&self.0);
        if begun.len() > REMEMBERED {
            begun.clear();
        }
        begun.extend(claims);
    }

    /// Whether these only add entries, under claims that have recorded.
    fn cover(&self, recordings: &[Recording]) -> bool {
        let begun = lock(&self.0);
        let covers = |recording: &Recording| {
            let Recording { claim, writes, children } = recording;
            let adds = writes.read.is_empty() && writes.forget.is_empty() && !writes.entries.is_empty();
            let adds = adds && writes.output.is_empty();
            adds && children.is_empty() && begun.get(&claim.row.0) == Some(&number_of(claim))
        };
        recordings.iter().all(covers)
    }
}

/// Entries as arguments, one column each; jobs in order of their numbers, each once.
#[derive(Default)]
struct Columns<'a> {
    nos: Vec<i64>,
    claims: Vec<i32>,
    entry_nos: Vec<i64>,
    entry_claims: Vec<i32>,
    kinds: Vec<i16>,
    overlapped: Vec<bool>,
    took: Vec<Option<i32>>,
    keys: Vec<&'a str>,
    values: Vec<&'a [u8]>,
}

impl<'a> Columns<'a> {
    fn new(recordings: &'a [Recording]) -> Self {
        let mut sorted: Vec<&Recording> = recordings.iter().collect();
        // Stable: what one job records keeps its order.
        sorted.sort_by_key(|recording| recording.claim.row);
        let mut columns = Columns::default();
        for Recording { claim, writes, .. } in sorted {
            let (no, number) = (claim.row.0, number_of(claim));
            if columns.nos.last() != Some(&no) {
                columns.nos.push(no);
                columns.claims.push(number);
            }
            for entry in &writes.entries {
                columns.entry_nos.push(no);
                columns.entry_claims.push(number);
                columns.kinds.push(entry.kind.code().into());
                columns.overlapped.push(entry.overlapped);
                columns.took.push(entry.took.map(millis));
                columns.keys.push(entry.key.as_str());
                columns.values.push(&entry.value);
            }
        }
        columns
    }
}

/// Stores all of a batch, if it is one that only adds to journals. Whether it did; or else nothing has happened.
pub(crate) async fn append(
    conn: &mut Conn,
    shared: &Shared,
    node: i32,
    recordings: &[Recording],
) -> Result<bool> {
    if recordings.is_empty() || !shared.recorded_claims.cover(recordings) {
        return Ok(false);
    }
    let at = shared.at();
    let stored = match recordings {
        [Recording { claim, writes, .. }] if writes.entries.len() == 1 => {
            let (no, number, entry) = (claim.row.0, number_of(claim), &writes.entries[0]);
            let (kind, took) = (i16::from(entry.kind.code()), entry.took.map(millis));
            let (key, value) = (entry.key.as_str(), entry.value.as_slice());
            let one = AppendOne {
                at: &at,
                node: &node,
                no: &no,
                claim: &number,
                kind: &kind,
                overlapped: &entry.overlapped,
                took: &took,
                key: &key,
                value: &value,
            };
            conn.commit(shared, &[one.call()]).await
        }
        _ => {
            let columns = Columns::new(recordings);
            let many = AppendMany {
                at: &at,
                node: &node,
                nos: &columns.nos,
                claims: &columns.claims,
                entry_nos: &columns.entry_nos,
                entry_claims: &columns.entry_claims,
                kinds: &columns.kinds,
                overlapped: &columns.overlapped,
                took: &columns.took,
                keys: &columns.keys,
                values: &columns.values,
            };
            conn.commit(shared, &[many.call()]).await
        }
    };
    match stored {
        Ok(rows) => {
            let held = rows.first().map(|rows| AppendMany::first(rows)).transpose()?.flatten();
            Ok(held.is_some_and(|row| row.held))
        }
        // Some of it is there already.
        Err(fault) if is_repeat(&fault) => Ok(false),
        Err(fault) => Err(fault),
    }
}
