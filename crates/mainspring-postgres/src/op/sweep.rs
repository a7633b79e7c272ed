//! Sweeps: what time alone does to jobs.

use mainspring_core::store::Swept;
use mainspring_core::time::Timestamp;
use tokio_postgres::Row;

use super::limits::define;
use super::limits::settle::{self, LockDue, OpenKeys};
use super::places::{
    count, end_waiting, enter, is_limited, leave_suspended, leave_timers, leave_waiting, level, lock_waiting,
};
use super::{Op, family, now};
use crate::connection::Conn;
use crate::error::Result;
use crate::hint::Hints;
use crate::names;
use crate::shared::Shared;
use crate::sql::{At, Present, Query, statement};

statement! {
    /// Index `timers_due` and partial index `suspended_due`, stepping over what others hold; of both together those that are
    /// longest due. Appends to `ready`.
    pub(crate) PromoteDue<'a> = "sweep.promote", by ["timers_due", "suspended_due"],
    (at: Present, limit: i64)
    -> Promoted {
        now: At, line: Option<i32>, level: Option<i16>, first: Option<i64>, count: Option<i64>, limited: Option<bool>,
    };
    concat!(
    "WITH ",
    now!(),
    ", xm AS MATERIALIZED (SELECT m.ctid AS tid, m.due, m.no, {state.scheduled} AS was FROM mainspring.timers m
        WHERE m.due <= (SELECT now FROM t) ORDER BY m.due, m.no LIMIT $2 FOR UPDATE SKIP LOCKED)
    , xs AS MATERIALIZED (SELECT s.ctid AS tid, s.due, s.no, {state.suspended} AS was FROM mainspring.suspended s
        WHERE s.reason <= {reasons.last_awaiting} AND s.due IS NOT NULL AND s.due <= (SELECT now FROM t)
        ORDER BY s.due, s.no LIMIT $2 FOR UPDATE SKIP LOCKED)
    , x AS MATERIALIZED (SELECT y.tid, y.was FROM (SELECT * FROM xm UNION ALL SELECT * FROM xs) y
        ORDER BY y.due, y.no LIMIT $2)",
    leave_timers!("ctid = ANY(ARRAY(SELECT x.tid FROM x WHERE x.was = {state.scheduled}))"),
    leave_suspended!("ctid = ANY(ARRAY(SELECT x.tid FROM x WHERE x.was = {state.suspended}))"),
    "
    , e AS (SELECT m.*, ({level.fresh} + m.priority)::smallint AS level FROM from_timers m
        UNION ALL SELECT s.*, ",
    level!("returned"),
    " FROM from_suspended s)",
    enter!("e"),
    "
    , counted AS (INSERT INTO mainspring.count_deltas (line, state, n)
        SELECT line, was, -count(*) FROM e GROUP BY line, was
        UNION ALL SELECT line, {state.ready}, count(*) FROM e GROUP BY line)
    SELECT t.now, g.line, g.level, g.first, g.n, g.limited FROM t LEFT JOIN (
        SELECT line, level, min(no) AS first, count(*) AS n, ",
    is_limited!("flags"),
    " AS limited FROM e GROUP BY line, level, limited) g ON true"
)
}
statement! {
    /// Index `timers_due` and partial index `suspended_due`, their first entries; and the first end that is to be told of.
    /// Beside them the first entry of the partial index `schedules_next`; and when limit keys are to be looked at: by the first entry of
    /// `limit_keys_due`, or at once if somebody has left something to be counted or swept.
    pub(crate) NextDue = "sweep.next_due", by [
        "timers_due", "suspended_due", "ends_pkey", "schedules_next", "limit_keys_due", "returned_units_pkey", "limits_unswept",
    ],
    () -> NextTimes { at: Option<At>, fire: Option<At>, keys: Option<At> };
    "SELECT least(
    (SELECT m.due FROM mainspring.timers m ORDER BY m.due, m.no LIMIT 1),
    (SELECT s.due FROM mainspring.suspended s WHERE s.reason <= {reasons.last_awaiting} AND s.due IS NOT NULL
        ORDER BY s.due, s.no LIMIT 1),
    (SELECT e.at + interval '1 s' FROM mainspring.ends e ORDER BY e.no LIMIT 1)),
    (SELECT c.next_at FROM mainspring.schedules c WHERE c.next_at IS NOT NULL ORDER BY c.next_at, c.name LIMIT 1),
    least((SELECT k.due FROM mainspring.limit_keys k WHERE k.due IS NOT NULL ORDER BY k.due, k.no LIMIT 1),
        (SELECT timestamptz 'epoch' FROM mainspring.returned_units u ORDER BY u.no LIMIT 1),
        (SELECT timestamptz 'epoch' FROM mainspring.limits l WHERE NOT l.swept ORDER BY l.no LIMIT 1))"
}
const _: () = assert!(family::PATIENCE == 1_000_000, "the statement names it");

statement! {
    /// Index `deadlines_at`, stepping over running jobs by the primary key of `lease`; then the primary keys of the places.
    /// Rows that others hold are left for the next time.
    pub(crate) ExpireLate<'a> = "sweep.expire",
    by ["deadlines_at", "lease_pkey", "ready_pkey", "limited_pkey", "timers_pkey", "suspended_pkey", "keys_no", "deadlines_pkey"],
    (at: Present, limit: i64)
    -> ExpiredJobs { now: At, count: i64, told_nos: Vec<i64>, told_flags: Vec<i16>, flags: Option<i16> };
    concat!(
    "WITH ",
    now!(),
    ", x AS MATERIALIZED (SELECT z.no FROM mainspring.deadlines z WHERE z.at <= (SELECT now FROM t)
        AND NOT EXISTS (SELECT 1 FROM mainspring.lease l WHERE l.no = z.no) ORDER BY z.at, z.no LIMIT $2)",
    lock_waiting!("FOR UPDATE SKIP LOCKED"),
    leave_waiting!(
        "ARRAY(SELECT in_ready.no FROM in_ready)",
        "ARRAY(SELECT in_limited.no FROM in_limited)",
        "ARRAY(SELECT in_timers.no FROM in_timers)",
        "ARRAY(SELECT in_suspended.no FROM in_suspended)"
    ),
    // Their deadlines are where they were found.
    "
    , e AS (SELECT w.was, w.no, w.line, w.claim, w.priority, w.failures, w.crashes,
            (w.flags | {flag.deadline})::smallint AS flags, {state.failed} AS state, {reason.expired} AS reason,
            NULL::text AS note, NULL::bytea AS result FROM w)",
    end_waiting!("e"),
    count!("e"),
    " SELECT t.now, (SELECT count(*) FROM e), ARRAY(SELECT e.no FROM e WHERE e.flags & {flags.told} <> 0 ORDER BY e.no),
        ARRAY(SELECT e.flags FROM e WHERE e.flags & {flags.told} <> 0 ORDER BY e.no), (SELECT bit_or(e.flags) FROM e) FROM t"
)
}
statement! {
    /// Index `deadlines_at`, its first entry that is not of a running job.
    pub(crate) NextDeadline = "sweep.next_deadline", by ["deadlines_at", "lease_pkey"], () -> Due { at: Option<At> };
    "SELECT z.at FROM mainspring.deadlines z
    WHERE NOT EXISTS (SELECT 1 FROM mainspring.lease l WHERE l.no = z.no) ORDER BY z.at, z.no LIMIT 1"
}

/// Moves jobs whose time has come to `ready`.
pub(crate) struct Promote(pub(crate) usize);

impl Op for Promote {
    type Answer = Swept;
    const MOVES: bool = true;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Swept> {
        let (at, limit) = (shared.at(), i64::try_from(self.0).unwrap_or(i64::MAX));
        let promote = PromoteDue { at: &at, limit: &limit }.call();
        let rows = conn.commit(shared, &[promote, NextDue.call()]).await?;
        let [moved, next] = rows.as_slice() else {
            return Err(crate::error::corrupt("a sweep without an answer"));
        };
        let moved = PromoteDue::rows(moved)?;
        let now = moved.first().map(|row| row.now.0).unwrap_or_default();
        names::learn_for_hints(conn, shared, moved.iter().filter_map(|row| row.line)).await;
        let mut hints = Hints::default();
        let mut count = 0_i64;
        for row in &moved {
            if let (Some(line), Some(level), Some(first)) = (row.line, row.level, row.first) {
                hints.enter(row.limited == Some(true), (line, level), (now, first));
                count += row.count.unwrap_or(0);
            }
        }
        hints.send(conn, shared).await;
        let mut next = next_times(next)?;
        if next.keys.is_some_and(|keys| keys <= now) {
            open_keys(conn, shared, self.0).await?;
            next = next_times(&conn.send(&NextDue.call()).await?)?;
        }
        let (fire, next) = (next.fire, next.job.into_iter().chain(next.keys).min());
        if next.is_some_and(|next| next <= now) {
            // Or there is more than a sweep moves.
            if let Err(fault) = family::notify_overdue(conn, shared, family::PATIENCE).await {
                conn.roll_back().await;
                tracing::debug!(?fault, "cannot notify families; trying again later");
            }
        }
        Ok(Swept { now, moved: usize::try_from(count).unwrap_or(0), next, fire })
    }
}

/// When something is due next.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Times {
    /// A job, or the end of one that is to be told.
    pub(crate) job: Option<Timestamp>,
    /// A schedule.
    pub(crate) fire: Option<Timestamp>,
    /// Limit keys.
    pub(crate) keys: Option<Timestamp>,
}

/// The answer to [`NextDue`].
pub(crate) fn next_times(rows: &[Row]) -> Result<Times> {
    let time = |at: Option<At>| at.map(|at| at.0);
    let next = NextDue::first(rows)?;
    Ok(next.map_or_else(Times::default, |next| Times {
        job: time(next.at),
        fire: time(next.fire),
        keys: time(next.keys),
    }))
}

/// Gives turns to groups whose limit keys have a token by now; and makes up for what others have left uncounted and unswept.
async fn open_keys(conn: &mut Conn, shared: &Shared, limit: usize) -> Result<()> {
    let (at, limit) = (shared.at(), i64::try_from(limit).unwrap_or(i64::MAX));
    let calls = [LockDue { at: &at, limit: &limit }.call(), OpenKeys { at: &at }.call()];
    let rows = conn.commit(shared, &calls).await?;
    settle::announce(conn, shared, rows.last().map_or(&[], Vec::as_slice)).await;
    settle::settle_all(conn, shared).await;
    define::sweep_all(conn, shared).await;
    Ok(())
}

/// The answer to [`NextDeadline`].
pub(crate) fn first_deadline(rows: &[Row]) -> Result<Option<Timestamp>> {
    Ok(NextDeadline::first(rows)?.and_then(|due| due.at).map(|at| at.0))
}

/// Fails waiting jobs whose deadline has passed.
pub(crate) struct Expire(pub(crate) usize);

impl Op for Expire {
    type Answer = Swept;
    const MOVES: bool = true;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Swept> {
        let (at, limit) = (shared.at(), i64::try_from(self.0).unwrap_or(i64::MAX));
        let expire = ExpireLate { at: &at, limit: &limit }.call();
        let rows = conn.commit(shared, &[expire, NextDeadline.call()]).await?;
        let [moved, next] = rows.as_slice() else {
            return Err(crate::error::corrupt("a sweep without an answer"));
        };
        let expired = ExpireLate::first(moved)?;
        let expired = expired.ok_or_else(|| crate::error::corrupt("a sweep without an answer"))?;
        let next = first_deadline(next)?;
        conn.note_ended(expired.flags.unwrap_or(0));
        let unsent = expired.told_nos.into_iter().zip(expired.told_flags);
        family::notify(conn, shared, unsent.collect()).await;
        Ok(Swept { now: expired.now.0, moved: usize::try_from(expired.count).unwrap_or(0), next, fire: None })
    }
}
