//! Giving claims back: by their node, or by whoever rescues them.
//!
//! # Invariants
//! - A claim that was asked to cancel never goes back to waiting.

use tokio_postgres::Row;

use crate::connection::Conn;
use crate::error::Result;
use crate::hint::Hints;
use crate::op::family;
use crate::shared::Shared;
use crate::sql::At;

/// Takes the claims that a query chooses out of `lease` and puts each where it belongs: cancelled if it was flagged,
/// quarantined at the third crash, and otherwise into `ready` as what comes back. The query locks what it chooses.
/// Crashes and the longest crashed claim are expressions on `l`; the class is that of all but suspects, times 16. Returns number, line, level (NULL if it is not in `ready`),
/// time, whether it is quarantined, and what families are to be told of its end.
macro_rules! give_back {
    ($chosen:expr, $crashes:expr, $crashed:expr, $class:literal) => {
        concat!(
            "WITH ",
            now!(),
            ", x AS MATERIALIZED (",
            $chosen,
            "), d AS (DELETE FROM mainspring.lease l USING t WHERE l.no = ANY(ARRAY(SELECT x.no FROM x))
                RETURNING l.no, l.line, l.priority, l.claim, l.failures,
                    (l.flags & 16383)::smallint AS flags, l.cancel, l.crashes AS crashes_before,
                    ",
            $crashes,
            " AS crashes, ",
            $crashed,
            " AS crashed)
            , e AS (SELECT d.*, CASE WHEN cancel IS NOT NULL THEN 7 WHEN crashes >= 3 THEN 4 ELSE 2 END AS state,
                (CASE WHEN crashes >= 2 THEN 0 ELSE ",
            $class,
            " END + priority)::smallint AS level FROM d)
            , r AS (INSERT INTO mainspring.ready
                    (no, ready_at, crashed, line, claim, level, failures, crashes, flags)
                SELECT e.no, t.now, e.crashed, e.line, e.claim, e.level, e.failures, e.crashes, e.flags
                FROM e, t WHERE e.state = 2)
            , s AS (INSERT INTO mainspring.suspended
                    (no, crashed, line, claim, priority, reason, failures, crashes, flags)
                SELECT e.no, e.crashed, e.line, e.claim, e.priority, 7, e.failures, e.crashes, e.flags
                FROM e WHERE e.state = 4)
            , f AS (INSERT INTO mainspring.done
                    (no, finished_at, line, claim, state, reason, priority, failures, crashes, flags, bad, note)
                SELECT e.no, t.now, e.line, e.claim, 7, CASE WHEN e.flags & 64 = 0 THEN 19 ELSE 22 END, e.priority,
                    e.failures, e.crashes_before, e.flags & 56, true, nullif(e.cancel, '')
                FROM e, t WHERE e.state = 7)",
            $crate::op::family::ends!("(SELECT no, flags FROM e WHERE state = 7)", "48"),
            "
            , k AS (DELETE FROM mainspring.keys k
                WHERE k.no = ANY(ARRAY(SELECT e.no FROM e WHERE e.state = 7 AND e.flags & 1 <> 0)) AND k.until <> 2)
            , k2 AS (UPDATE mainspring.keys k SET expires_at = t.now + k.period * interval '1 us' FROM t
                WHERE k.no = ANY(ARRAY(SELECT e.no FROM e WHERE e.state = 7 AND e.flags & 1 <> 0)) AND k.until = 2
                AND k.expires_at IS NULL)
            , z AS (DELETE FROM mainspring.deadlines z
                WHERE z.no = ANY(ARRAY(SELECT e.no FROM e WHERE e.state = 7 AND e.flags & 2 <> 0)))
            , c AS (INSERT INTO mainspring.count_deltas (line, state, n)
                SELECT line, 3, -count(*) FROM e GROUP BY line
                UNION ALL SELECT line, state, count(*) FROM e GROUP BY line, state)
            SELECT e.no, e.line, CASE WHEN e.state = 2 THEN e.level END, t.now, e.state = 4,
                CASE WHEN e.state = 7 THEN e.flags & 48 ELSE 0 END::smallint FROM e, t"
        )
    };
}
pub(crate) use give_back;

/// Tells where released jobs can be claimed again.
pub(crate) async fn announce(conn: &mut Conn, shared: &Shared, rows: &[Row]) -> Result<()> {
    crate::names::learn_for_hints(conn, shared, rows.iter().map(|row| row.get(1))).await;
    let mut hints = Hints::default();
    for row in rows {
        if let Some(level) = row.get::<_, Option<i16>>(2) {
            hints.ready((row.get(1), level), (row.get::<_, At>(3).0, row.get(0)));
        }
    }
    hints.send(conn, shared).await;
    let unsent = rows.iter().map(|row| (row.get(0), row.get::<_, i16>(5))).filter(|(_, flags)| *flags != 0);
    family::notify(conn, shared, unsent.collect()).await;
    Ok(())
}
