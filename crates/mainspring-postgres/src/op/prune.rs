//! Prune: ended jobs whose retention is over, and what is left of nodes and keys.
//!
//! # Invariants
//! - A job is removed only by its row of `done`, which is locked first; so never while it is in another place.
//! - Whatever somebody else holds is left for the next time: a prune never waits, so it can be part of no deadlock.
//! - A prune that finds nothing writes nothing.

use mainspring_core::bounds;
use mainspring_core::time::micros;

use super::limits::groups::UNUSED;
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

statement! {
    /// Primary key, so many from one on; of those, the groups that were not used for long and have no jobs, stepping over what others hold.
    /// One whose key has blocked groups stays: a turn that is not visited any more passes no room on.
    pub(crate) PruneGroups<'a> = "prune.groups", by ["limit_groups_pkey", "limited_jobs_group", "limit_keys_pkey"],
    (at: Present, after: i32, limit: i64, unused: i64) -> Looked { last: Option<i64> };
    concat!(
    "WITH ",
    now!(),
    ", x AS MATERIALIZED (SELECT g.no, g.units, g.used_at FROM mainspring.limit_groups g WHERE g.no > $2 ORDER BY g.no LIMIT $3)
    , gone AS (DELETE FROM mainspring.limit_groups WHERE ctid = ANY(ARRAY(
        SELECT g.tid FROM x CROSS JOIN LATERAL (SELECT ctid AS tid FROM mainspring.limit_groups g WHERE g.no = x.no
            AND g.used_at < (SELECT t.now FROM t) - $4 * interval '1 us' FOR UPDATE SKIP LOCKED) g
        WHERE x.used_at < (SELECT t.now FROM t) - $4 * interval '1 us'
            AND NOT EXISTS (SELECT 1 FROM mainspring.limited_jobs y WHERE y.limit_group = x.no)
            AND NOT EXISTS (SELECT 1 FROM unnest(x.units) AS u(limit_key)
                CROSS JOIN LATERAL (SELECT 1 FROM mainspring.limit_keys k WHERE k.no = u.limit_key AND k.blocked > 0) k))))
    SELECT CASE WHEN count(*) = $3 THEN max(x.no)::bigint END FROM x"
)
}
statement! {
    /// Primary key, so many from one on: locks those that nobody uses and of which nothing was set, stepping over what others hold. The
    /// transaction remembers them.
    pub(crate) LockIdleKeys<'a> = "prune.lock_keys", by ["limit_keys_pkey", "limits_pkey"],
    (at: Present, after: i64, limit: i64, unused: i64) -> Looked;
    concat!(
    "WITH ",
    now!(),
    ", x AS MATERIALIZED (SELECT k.no FROM mainspring.limit_keys k WHERE k.no > $2 ORDER BY k.no LIMIT $3)
    , y AS MATERIALIZED (SELECT k.no FROM x CROSS JOIN LATERAL (
        SELECT k.no, k.limit_no FROM mainspring.limit_keys k WHERE k.no = x.no AND k.in_use = 0 AND k.max IS NULL AND NOT k.paused
            AND k.blocked = 0 AND k.used_at < (SELECT t.now FROM t) - $4 * interval '1 us'
            AND coalesce(k.next_free, 0) <= extract(epoch FROM (SELECT t.now FROM t)) * 1000000
        FOR UPDATE SKIP LOCKED) k
        WHERE EXISTS (SELECT 1 FROM mainspring.limits l WHERE l.no = k.limit_no AND l.scope = {limit_scope.limit}))
    SELECT (SELECT CASE WHEN count(*) = $3 THEN max(x.no) END FROM x) FROM (
        SELECT set_config('mainspring_limits.keys', (SELECT coalesce(array_agg(y.no), '{}') FROM y)::text, true)) c"
)
}
statement! {
    /// Primary key; index `limit_groups_units`: those that no group names. Whoever interns a group waits for the lock of its keys.
    pub(crate) PruneLimitKeys = "prune.limit_keys", by ["limit_keys_pkey"], ();
    "DELETE FROM mainspring.limit_keys k WHERE k.no = ANY(nullif(current_setting('mainspring_limits.keys', true), '')::bigint[])
        AND NOT EXISTS (SELECT 1 FROM mainspring.limit_groups g WHERE g.units @> ARRAY[k.no])"
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
        if let Err(fault) = prune_limits(conn, shared).await {
            conn.roll_back().await;
            tracing::debug!(?fault, "limit groups were not pruned");
        }
        // What was removed is; the counts are right either way, and the next fold makes up for this one.
        if let Err(fault) = counts::fold(conn, shared).await {
            tracing::debug!(?fault, "cannot fold counts; trying again later");
        }
        Ok(usize::try_from(removed).unwrap_or(0))
    }
}

/// Groups and limit keys that one prune looks at.
const LOOKED: i64 = 1_000;

/// Removes groups and limit keys that nobody names any more, of some after those that the last prune of this handle has looked at.
async fn prune_limits(conn: &mut Conn, shared: &Shared) -> Result<()> {
    let (at, unused) = (shared.at(), micros(UNUSED));
    let (group, key) = shared.pruned();
    let after = i32::try_from(group).unwrap_or(0);
    let calls = [
        PruneGroups { at: &at, after: &after, limit: &LOOKED, unused: &unused }.call(),
        LockIdleKeys { at: &at, after: &key, limit: &LOOKED, unused: &unused }.call(),
        PruneLimitKeys.call(),
    ];
    let rows = conn.commit(shared, &calls).await?;
    let last = |at: usize| -> Result<i64> {
        let looked = PruneGroups::first(rows.get(at).map_or(&[], Vec::as_slice))?;
        // From the beginning again.
        Ok(looked.and_then(|row| row.last).unwrap_or(0))
    };
    shared.note_pruned((last(0)?, last(1)?));
    Ok(())
}
