//! Jobs that were claimed and cannot be read are set aside.
//!
//! A claim is sent whole and its rows are read after its commit, so this is a transaction of its own. If the process dies
//! before it, or its answer is lost, the job is in `lease` like any other: it is rescued (and one crash is counted, which
//! says nothing, because nobody runs it), or adopted by the repeated claim; and the next claim finds it again.
//!
//! # Invariants
//! - A claim that was asked to cancel never goes back to waiting.

use std::collections::BTreeSet;

use mainspring_core::bounds;
use mainspring_core::id::NodeNo;
use mainspring_core::job::{Input, Reason, State, Status, cut, transition};
use mainspring_core::store::Hint;

use super::limits::settle::{self, Count};
use super::places::{count, enter_suspended, fence, leave_lease};
use super::release::{self, Returned, give_back};
use super::{Op, node, now};
use crate::connection::Conn;
use crate::error::Result;
use crate::names;
use crate::shared::Shared;
use crate::sql::{Present, Query, statement};

statement! {
    /// Primary key of `lease`, in order of the numbers: claim number and node are the fence. Counts stay as they are, for
    /// whoever mends them.
    pub(crate) SetJobsAside<'a> = "unreadable.set_aside", by ["lease_pkey"],
    (at: Present, node: i32, nos: Vec<i64>, claims: Vec<i32>, notes: Vec<String>) -> AsideJob { line: i32 };
    concat!(
    "WITH ",
    now!(),
    leave_lease!(
        "d",
        concat!(fence!(), " AND l.cancel IS NULL"),
        "l.no, l.line, l.claim, least(greatest(l.priority, 0), {priority.last}) AS priority, l.failures, l.crashes,
            l.crashed, (l.flags & ~{flag.keeps})::smallint AS flags, ($5::text[])[width_bucket(l.no, $3::bigint[])] AS note"
    ),
    enter_suspended!(
        "(SELECT d.*, NULL::timestamptz AS due, {reason.unreadable} AS reason, NULL::jsonb AS waits FROM d) e"
    ),
    count!("d", "running", "suspended"),
    " SELECT d.line FROM d CROSS JOIN t"
)
}
statement! {
    /// The same rows: those that are left have been flagged, and are cancelled by this.
    pub(crate) CancelFlagged<'a> = "unreadable.cancel", by ["lease_pkey"],
    (at: Present, node: i32, nos: Vec<i64>, claims: Vec<i32>) -> Returned;
    give_back!(
    concat!(
        "SELECT l.no FROM mainspring.lease l WHERE ",
        fence!(),
        " AND l.cancel IS NOT NULL ORDER BY l.no FOR UPDATE"
    ),
    "l.crashes",
    "l.crashed",
    "returned",
    ""
)
}

/// A claimed job that cannot be read.
#[derive(Debug, Clone)]
pub(crate) struct Unreadable {
    pub(crate) no: i64,
    pub(crate) claim: i32,
    pub(crate) why: String,
}

/// Sets jobs of a node aside.
pub(crate) struct SetAside {
    node: NodeNo,
    jobs: Vec<Unreadable>,
}

impl SetAside {
    pub(crate) fn new(node: NodeNo, mut jobs: Vec<Unreadable>) -> Self {
        jobs.sort_by_key(|job| job.no);
        SetAside { node, jobs }
    }
}

impl Op for SetAside {
    type Answer = ();
    const MOVES: bool = true;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<()> {
        debug_assert_eq!(
            transition(Status::plain(State::Running), Input::Unreadable),
            Ok(Status::because(State::Suspended, Reason::Unreadable))
        );
        let (at, node) = (shared.at(), node::number(self.node)?);
        let nos: Vec<i64> = self.jobs.iter().map(|job| job.no).collect();
        let claims: Vec<i32> = self.jobs.iter().map(|job| job.claim).collect();
        let notes: Vec<String> =
            self.jobs.iter().map(|job| cut(job.why.clone(), bounds::WHY_BYTES)).collect();
        let aside = SetJobsAside { at: &at, node: &node, nos: &nos, claims: &claims, notes: &notes };
        let cancel = CancelFlagged { at: &at, node: &node, nos: &nos, claims: &claims };
        // Limit keys are the last locks.
        let count = Count::new(shared, &at);
        let [lock, count] = count.calls();
        let rows = conn.commit(shared, &[aside.call(), cancel.call(), lock, count]).await?;
        let [aside, cancelled, _, counted] = rows.as_slice() else { return Ok(()) };
        settle::announce(conn, shared, counted).await;
        release::announce(conn, shared, &CancelFlagged::rows(cancelled)?).await;
        // Others may wait behind them.
        let aside = SetJobsAside::rows(aside)?;
        names::learn_for_hints(conn, shared, aside.iter().map(|job| job.line)).await;
        let queues: BTreeSet<_> = {
            let names = shared.names();
            let lines = aside.iter().filter_map(|job| names.line(job.line).ok());
            lines.map(|line| line.queue_name.clone()).collect()
        };
        shared.tell(&Hint::Ready(queues.into_iter().collect()));
        Ok(())
    }
}
