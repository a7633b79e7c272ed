//! Units that come back: they are counted as free, and blocked groups have their turn.
//!
//! Whatever ends a claim leaves a row in `returned_units`, in the same statement. Two more statements of the same transaction lock
//! the limit keys of these units and write them; what a crash or another path left there is done by the next promotion. The same
//! statements serve keys whose next token has come, and keys whose limit has changed.

use std::collections::BTreeSet;

use super::{key_columns, leave_keys, limit_key, lock_keys};
use crate::connection::Conn;
use crate::error::Result;
use crate::hint::Hints;
use crate::names;
use crate::op::now;
use crate::shared::Shared;
use crate::sql::{At, Call, Present, Query, statement};
use tokio_postgres::Row;

statement! {
    /// Primary key of `returned_units`, behind what this handle has seen; then limit keys, in order. The transaction remembers the rows.
    pub(crate) LockReturned<'a> = "limits.lock_returned", by ["returned_units_pkey", "limit_keys_pkey"], (after: i64, limit: i64);
    concat!(
    "WITH r AS MATERIALIZED (SELECT no, units FROM mainspring.returned_units WHERE no > $1 ORDER BY no LIMIT $2)
    , k AS MATERIALIZED (SELECT DISTINCT u.limit_key FROM r CROSS JOIN LATERAL unnest(r.units) AS u(limit_key) ORDER BY u.limit_key)",
    lock_keys!(),
    " SELECT set_config('mainspring_limits.returned', (SELECT coalesce(array_agg(r.no), '{}') FROM r)::text, true),
        (SELECT count(*) FROM locked)"
)
}

/// What [`leave_keys`] has done: turns, and totals that had no room before.
macro_rules! told {
    () => {
        "
    , turned AS (INSERT INTO mainspring.group_turns (line, level, at, limit_group)
        SELECT i.line, i.level, t.now, i.limit_group FROM let_in i, t RETURNING line, level)
    SELECT t.now, (SELECT array_agg(y.line ORDER BY y.line, y.level) FROM (SELECT DISTINCT line, level FROM turned) y),
        (SELECT array_agg(y.level ORDER BY y.line, y.level) FROM (SELECT DISTINCT line, level FROM turned) y),
        (SELECT min(due) FROM written), (SELECT array_agg(kk.limit_key) FROM kk WHERE kk.is_total AND kk.free > 0), "
    };
}

statement! {
    /// Primary keys: the rows that were locked go, and what they say is written to their keys, which are locked.
    pub(crate) CountReturned<'a> = "limits.count_returned", by ["returned_units_pkey", "limit_keys_pkey", "limits_pkey", "blocked_groups_pkey"],
    (at: Present)
    -> LetIn {
        now: At, lines: Option<Vec<i32>>, levels: Option<Vec<i16>>, due: Option<At>, totals: Option<Vec<i64>>, last: Option<i64>,
    };
    concat!(
    "WITH ",
    now!(),
    ", c AS MATERIALIZED (SELECT (extract(epoch FROM t.now) * 1000000)::bigint AS us FROM t)
    , r AS (DELETE FROM mainspring.returned_units
        WHERE no = ANY(nullif(current_setting('mainspring_limits.returned', true), '')::bigint[]) RETURNING no, units)
    , z AS MATERIALIZED (SELECT u.limit_key, count(*) AS n FROM r CROSS JOIN LATERAL unnest(r.units) AS u(limit_key) GROUP BY u.limit_key)
    , kk AS MATERIALIZED (SELECT k.*, 0::bigint AS taken, z.n AS given, 0::bigint AS spent, 0::bigint AS more, 0 AS more_line
        FROM z CROSS JOIN LATERAL (SELECT coalesce(l.scope, 0) <> 0 AS is_total, ",
    key_columns!("(x.in_use - z.n)"),
    " FROM c",
    limit_key!("z.limit_key"),
    ") k)",
    leave_keys!(),
    told!(),
    "(SELECT max(r.no) FROM r) FROM t"
)
}

statement! {
    /// Partial index `limit_keys_due`, stepping over what others hold: keys whose next token has come. The transaction remembers them.
    pub(crate) LockDue<'a> = "limits.lock_due", by ["limit_keys_due"], (at: Present, limit: i64);
    concat!(
    "WITH ",
    now!(),
    ", x AS MATERIALIZED (SELECT k.no FROM mainspring.limit_keys k WHERE k.due <= (SELECT now FROM t) ORDER BY k.due, k.no LIMIT $2)
    , k AS MATERIALIZED (SELECT x.no AS limit_key FROM x ORDER BY x.no)",
    lock_keys!(),
    " SELECT set_config('mainspring_limits.keys', (SELECT coalesce(array_agg(locked.no), '{}') FROM locked)::text, true)"
)
}
statement! {
    /// Limit keys by their numbers, in order. The transaction remembers them.
    pub(crate) LockKeys<'a> = "limits.lock_keys", by ["limit_keys_pkey"], (nos: Vec<i64>);
    concat!(
    "WITH k AS MATERIALIZED (SELECT DISTINCT u.no AS limit_key FROM unnest($1::bigint[]) AS u(no) ORDER BY u.no)",
    lock_keys!(),
    " SELECT set_config('mainspring_limits.keys', (SELECT coalesce(array_agg(locked.no), '{}') FROM locked)::text, true)"
)
}
statement! {
    /// Primary keys: blocked groups of the keys that were locked have a turn, as far as there is room now.
    pub(crate) OpenKeys<'a> = "limits.open", by ["limit_keys_pkey", "limits_pkey", "blocked_groups_pkey"], (at: Present) -> LetIn;
    concat!(
    "WITH ",
    now!(),
    ", c AS MATERIALIZED (SELECT (extract(epoch FROM t.now) * 1000000)::bigint AS us FROM t)
    , kk AS MATERIALIZED (SELECT k.*, 0::bigint AS taken, 0::bigint AS given, 0::bigint AS spent, 0::bigint AS more, 0 AS more_line
        FROM unnest(nullif(current_setting('mainspring_limits.keys', true), '')::bigint[]) AS z(limit_key)
        CROSS JOIN LATERAL (SELECT coalesce(l.scope, 0) <> 0 AS is_total, ",
    key_columns!("x.in_use"),
    " FROM c",
    limit_key!("z.limit_key"),
    ") k)",
    leave_keys!(),
    told!(),
    "NULL::bigint FROM t"
)
}

/// Rows of units that one transaction counts.
const ROWS: i64 = 1_000;

/// The statements that count what this transaction, and whoever left something behind `after`, has returned.
pub(crate) struct Count<'a> {
    pub(crate) at: &'a Present,
    pub(crate) after: i64,
}

impl<'a> Count<'a> {
    pub(crate) fn new(shared: &Shared, at: &'a Present) -> Self {
        Count { at, after: shared.last_returned() }
    }

    pub(crate) fn calls(&self) -> [Call<'_>; 2] {
        [LockReturned { after: &self.after, limit: &ROWS }.call(), CountReturned { at: self.at }.call()]
    }
}

/// Adds to hints what was let in.
pub(crate) async fn hints(conn: &mut Conn, shared: &Shared, rows: &[Row], hints: &mut Hints) -> Result<()> {
    let Some(told) = CountReturned::first(rows)? else { return Ok(()) };
    if let Some(last) = told.last {
        shared.note_returned(last);
    }
    let (lines, levels) = (told.lines.unwrap_or_default(), told.levels.unwrap_or_default());
    names::learn_for_hints(conn, shared, lines.iter().copied()).await;
    for pair in lines.into_iter().zip(levels) {
        hints.turn(pair, told.now.0);
    }
    told.due.into_iter().for_each(|due| hints.due(due.0));
    let totals: BTreeSet<i64> = told.totals.unwrap_or_default().into_iter().collect();
    if !totals.is_empty() {
        for queue in shared.names().queues_of_totals(&totals) {
            hints.queue(queue);
        }
    }
    Ok(())
}

/// The same, and tells it. What is counted is committed: a failure is not worth a word.
pub(crate) async fn announce(conn: &mut Conn, shared: &Shared, rows: &[Row]) {
    let mut told = Hints::default();
    if let Err(fault) = hints(conn, shared, rows, &mut told).await {
        tracing::debug!(?fault, "groups that were let in were not told of");
    }
    told.send(conn, shared).await;
}

/// Counts what was returned by this handle and is not counted yet. A failure is not worth a word: the next promotion makes up for it.
pub(crate) async fn settle(conn: &mut Conn, shared: &Shared) {
    let at = shared.at();
    count(conn, shared, &Count::new(shared, &at)).await;
}

/// The same of all handles, however long ago.
pub(crate) async fn settle_all(conn: &mut Conn, shared: &Shared) {
    let at = shared.at();
    count(conn, shared, &Count { at: &at, after: 0 }).await;
}

async fn count(conn: &mut Conn, shared: &Shared, count: &Count<'_>) {
    match conn.commit(shared, &count.calls()).await {
        Ok(rows) => announce(conn, shared, rows.last().map_or(&[], Vec::as_slice)).await,
        Err(fault) => {
            conn.roll_back().await;
            tracing::debug!(?fault, "returned units were not counted");
        }
    }
}
