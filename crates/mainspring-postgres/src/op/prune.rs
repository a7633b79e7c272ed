//! Prune: ended jobs whose retention is over, and what is left of nodes and keys.
//!
//! # Invariants
//! - A job is removed only by its row of `done`, which is locked first; so never while it is in another place.
//! - Whatever somebody else holds is left for the next time: a prune never waits, so it can be part of no deadlock.
//! - A prune that finds nothing writes nothing.

use mainspring_core::bounds;
use mainspring_core::time::micros;

use super::places::remove;
use super::{Op, counts, now};
use crate::connection::Conn;
use crate::error::Result;
use crate::shared::Shared;
use crate::sql::{Present, Query, statement};

statement! {
    /// The whole of `lines`, which is bounded, with the settings of their queues as they are now; for each of them index
    /// `done_kept`, from its beginning. Locks rows of `done`, stepping over those that others hold, and then removes what
    /// belongs to these jobs by primary keys, `tags_no` and `children_parent`: nobody else touches the rows of a job that has ended without
    /// holding its row of `done`. One whose family is still to be told of its end is left for the next time. A unique key that outlives its job has an expiry and goes with [`PruneKeys`].
    pub(crate) PruneJobs<'a> = "prune.jobs", by ["done_kept", "ends_pkey", "jobs_pkey", "tags_no", "children_parent"],
    (at: Present, limit: i64) -> Pruned { count: i64 };
    concat!(
    "WITH ",
    now!(),
    ", x AS MATERIALIZED (SELECT o.no FROM mainspring.lines l
        CROSS JOIN LATERAL (SELECT q.retain_succeeded, q.retain_failed FROM mainspring.queues q
            WHERE q.no = l.queue OFFSET 0) q
        CROSS JOIN LATERAL (VALUES (false, q.retain_succeeded), (true, q.retain_failed)) AS w(bad, kept)
        CROSS JOIN LATERAL (SELECT d.no FROM mainspring.done d WHERE d.line = l.no AND d.bad = w.bad
                AND d.finished_at <= (SELECT now FROM t) - w.kept * interval '1 us'
                AND (d.flags & {flags.told} = 0 OR NOT EXISTS (SELECT 1 FROM mainspring.ends x WHERE x.no = d.no))
            ORDER BY d.finished_at LIMIT $2 FOR UPDATE SKIP LOCKED) o
        LIMIT $2)
    , e AS (DELETE FROM mainspring.done d WHERE d.no = ANY(ARRAY(SELECT x.no FROM x))
        RETURNING d.no, d.line, d.state AS was, d.flags)",
    remove!(),
    " SELECT count(*) FROM e"
)
}
statement! {
    /// Partial index `keys_expiry`, from its beginning, stepping over what others hold: whoever frees such a key for himself
    /// holds its row.
    pub(crate) PruneKeys<'a> = "prune.keys", by ["keys_expiry"], (at: Present, limit: i64);
    concat!(
    "WITH ",
    now!(),
    "DELETE FROM mainspring.keys WHERE ctid = ANY(ARRAY(
        SELECT k.ctid FROM mainspring.keys k WHERE k.expires_at <= (SELECT now FROM t)
        ORDER BY k.expires_at LIMIT $2 FOR UPDATE SKIP LOCKED))"
)
}
statement! {
    /// The whole of a small table: nodes are few, and this is their broom. Only for those that are over it looks through
    /// `lease`, to be sure. A node that is gone never comes back, so nothing is added to it meanwhile.
    pub(crate) PruneNodes<'a> = "prune.nodes", whole ("`nodes` is small, and `lease` has no more rows than all nodes have slots"),
    (at: Present, kept: i64);
    concat!(
    "WITH ",
    now!(),
    "DELETE FROM mainspring.nodes WHERE ctid = ANY(ARRAY(
        SELECT n.ctid FROM mainspring.nodes n WHERE n.state <> {node.live} AND n.drained
            AND n.renewed_at <= (SELECT now FROM t) - $2 * interval '1 us'
            AND NOT EXISTS (SELECT 1 FROM mainspring.lease l WHERE l.node = n.no)
        FOR UPDATE OF n SKIP LOCKED))"
)
}

/// Removes what is over. Answers how many jobs were removed.
pub(crate) struct Prune(pub(crate) usize);

impl Op for Prune {
    type Answer = usize;
    const MOVES: bool = true;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<usize> {
        let (at, limit) = (shared.at(), i64::try_from(self.0).unwrap_or(i64::MAX));
        let keys = i64::try_from(bounds::BATCH).unwrap_or(i64::MAX);
        let kept = micros(bounds::NODE_RETENTION);
        let rows = conn
            .commit(
                shared,
                &[
                    PruneJobs { at: &at, limit: &limit }.call(),
                    PruneKeys { at: &at, limit: &keys }.call(),
                    PruneNodes { at: &at, kept: &kept }.call(),
                ],
            )
            .await?;
        let removed = PruneJobs::first(rows.first().map_or(&[], Vec::as_slice))?.map_or(0, |row| row.count);
        // What was removed is; the counts are right either way, and the next fold makes up for this one.
        if let Err(fault) = counts::fold(conn, shared).await {
            tracing::debug!(?fault, "cannot fold counts; trying again later");
        }
        Ok(usize::try_from(removed).unwrap_or(0))
    }
}
