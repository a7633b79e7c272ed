//! Giving claims back: by their node, or by whoever rescues them.
//!
//! # Invariants
//! - A claim that was asked to cancel never goes back to waiting.

use crate::connection::Conn;
use crate::hint::Hints;
use crate::op::family;
use crate::shared::Shared;
use crate::sql::At;
use crate::sql::statement::row;

/// Takes the claims that a query chooses out of `lease` and puts each where it belongs: cancelled if it was flagged,
/// quarantined at the third crash, and otherwise into `ready` as what comes back. The query locks what it chooses.
/// Crashes and the longest crashed claim are expressions on `l`; the class is that of all but suspects; then what is kept of that
/// as errors, if anything. Returns number, line,
/// level (NULL if it is not in `ready`), time, whether it is quarantined, and what families are to be told of its end.
macro_rules! give_back {
    ($chosen:expr, $crashes:expr, $crashed:expr, $class:literal, $errors:expr) => {
        concat!(
            "WITH ",
            $crate::op::now!(),
            ", x AS MATERIALIZED (",
            $chosen,
            ")",
            $crate::op::places::leave_lease!(
                "d",
                "l.no = ANY(ARRAY(SELECT x.no FROM x))",
                concat!(
                    "l.no, l.line, l.priority, l.claim, l.failures, (l.flags & ~{flag.keeps})::smallint AS flags, l.cancel, l.crashes AS crashes_before, ",
                    $crashes,
                    " AS crashes, ",
                    $crashed,
                    " AS crashed"
                )
            ),
            "
    , e AS (SELECT d.*, CASE WHEN cancel IS NOT NULL THEN {state.cancelled}
                WHEN crashes >= {bound.quarantine_crashes} THEN {state.suspended} ELSE {state.ready} END AS state, ",
            $crate::op::places::level!($class),
            " AS level FROM d)",
            $crate::op::places::enter!("(SELECT * FROM e WHERE e.state = {state.ready}) e"),
            $crate::op::places::enter_suspended!(
                "(SELECT e.*, NULL::timestamptz AS due, {reason.quarantine} AS reason, NULL::jsonb AS waits,
                    NULL::text AS note FROM e WHERE e.state = {state.suspended}) e"
            ),
            $crate::op::places::end!(concat!(
                "(SELECT no, line, claim, state, ",
                $crate::op::places::canceller!(),
                " AS reason, priority, failures, crashes_before AS crashes, flags, cancel AS note, NULL::bytea AS result,
                    claimed_at, node
                    FROM e WHERE state = {state.cancelled}) e"
            )),
            $errors,
            $crate::op::places::count!("e", "running"),
            " SELECT e.no, e.line, CASE WHEN e.state = {state.ready} THEN e.level END, t.now,
                e.state = {state.suspended}, ",
            $crate::op::places::told!(),
            ", ",
            $crate::op::places::is_limited!("e.flags"),
            " FROM e, t"
        )
    };
}
pub(crate) use give_back;

row! {
    /// A claim that was given back.
    pub(crate) Returned {
        no: i64, line: i32, level: Option<i16>, now: At, quarantined: bool, told: i16, limited: bool,
    }
}

/// Tells where released jobs can be claimed again.
pub(crate) async fn announce(conn: &mut Conn, shared: &Shared, returned: &[Returned]) {
    crate::names::learn_for_hints(conn, shared, returned.iter().map(|job| job.line)).await;
    let mut hints = Hints::default();
    for job in returned {
        if let Some(level) = job.level {
            hints.enter(job.limited, (job.line, level), (job.now.0, job.no));
        }
    }
    hints.send(conn, shared).await;
    let unsent = returned.iter().map(|job| (job.no, job.told)).filter(|(_, told)| *told != 0);
    family::notify(conn, shared, unsent.collect()).await;
}
