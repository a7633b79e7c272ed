//! Rescue: the dead are expired, and their jobs given back.
//!
//! # Invariants
//! - A node is expired only after its lease and with claims, by a rescuer that was steady for at least that lease.
//! - Its lock is held from before that is decided until it is done: no claim of it is on its way then.

use std::time::Duration;

use mainspring_core::id::NodeNo;
use mainspring_core::store::{NodeState, Rescue, Rescued};
use mainspring_core::time::{Timestamp, micros};
use mainspring_core::{Error, bounds, fault};
use tokio_postgres::Row;

use super::limits::settle::{self, Count};
use super::places::keep_errors;
use super::release::{self, Returned, give_back};
use super::{Op, node, now};
use crate::connection::Conn;
use crate::error::{Result, corrupt};
use crate::shared::Shared;
use crate::sql::{At, Call, Present, Query, statement};

statement! {
    /// A small table as a whole: the living, and the dead whose claims are still to be moved. For those that have lapsed,
    /// `lease` up to the first match.
    pub(crate) Look<'a> = "rescue.look", whole ("`nodes` is small, and `lease` has no more rows than all nodes have slots"),
    (at: Present)
    -> Seen {
        now: At, no: Option<i32>, state: Option<i16>, lease: Option<i64>, lapsed: Option<bool>, until: Option<At>,
    };
    concat!(
    "WITH ",
    now!(),
    "SELECT t.now, n.no, n.state, n.lease,
        n.lease_until <= t.now AND EXISTS (SELECT 1 FROM mainspring.lease l WHERE l.node = n.no), n.lease_until
    FROM t LEFT JOIN mainspring.nodes n ON n.state = {node.live} OR NOT n.drained ORDER BY n.no"
)
}
statement! {
    /// Primary key of `nodes`, rows in order; `lease` as a whole, up to the first match, for those that have lapsed. All that
    /// was judged before is judged again: the node's lock is held now. A row that is being renewed is waited for.
    pub(crate) ExpireNodes<'a> = "rescue.expire", by ["nodes_pkey"],
    (at: Present, dead: Vec<i32>, steady: i64, seen: i64) -> Expired { no: i32 };
    concat!(
    "WITH ",
    now!(),
    "UPDATE mainspring.nodes n SET state = {node.expired}, drained = false FROM t
    WHERE n.no = ANY($2) AND n.state = {node.live} AND n.lease_until <= t.now AND n.lease <= $3
        AND extract(epoch FROM t.now) * 1000000 - $4 <= n.lease / 2
        AND EXISTS (SELECT 1 FROM mainspring.lease l WHERE l.node = n.no)
    RETURNING n.no"
)
}
statement! {
    /// Primary key: only who lives judges others.
    pub(crate) StillLive<'a> = "rescue.still_live", by ["nodes_pkey"], (no: i32);
    "SELECT 1 FROM mainspring.nodes WHERE no = $1 AND state = {node.live} FOR SHARE"
}
statement! {
    /// `lease` as a whole, whose size is bounded by the slots of all nodes; only for dead nodes. What an outcome is just
    /// ending is left for the next time. What was only claimed ahead counts no crash.
    pub(crate) Move<'a> = "rescue.move", whole ("`lease` has no more rows than all nodes have slots"),
    (at: Present, limit: i64) -> Returned;
    give_back!(
    "SELECT l.no FROM mainspring.lease l JOIN mainspring.nodes n ON n.no = l.node
    WHERE n.state = {node.expired} AND NOT n.drained ORDER BY l.no LIMIT $2 FOR UPDATE OF l SKIP LOCKED",
    "(CASE WHEN l.cancel IS NULL AND l.flags & {flag.ahead} = 0 THEN least(l.crashes + 1, 32767)
        ELSE l.crashes END)::smallint",
    "CASE WHEN l.cancel IS NULL AND l.flags & {flag.ahead} = 0 THEN greatest(l.crashed,
        (extract(epoch FROM (SELECT t.now FROM t) - l.claimed_at) * 1000000)::bigint) ELSE l.crashed END",
    "lost",
    keep_errors!(
        "(SELECT * FROM e WHERE e.crashes > e.crashes_before) e",
        "{fault.crashed}",
        "'the node was lost while it ran the job'"
    )
)
}
statement! {
    /// The same tables: the dead who hold nothing any more.
    pub(crate) Drained = "rescue.drained", whole ("`nodes` is small"), ();
    "UPDATE mainspring.nodes n SET drained = true WHERE n.state = {node.expired} AND NOT n.drained
    AND NOT EXISTS (SELECT 1 FROM mainspring.lease l WHERE l.node = n.no)"
}
statement! {
    pub(crate) More = "rescue.more", whole ("`nodes` is small"), () -> AreMore { more: bool };
    "SELECT EXISTS (SELECT 1 FROM mainspring.nodes WHERE state = {node.expired} AND NOT drained)"
}

/// Expires the dead and moves their jobs.
pub(crate) struct RescueOp(pub(crate) Rescue);

impl Op for RescueOp {
    type Answer = Rescued;
    const MOVES: bool = true;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Rescued> {
        let at = shared.at();
        let rows = conn.send(&Look { at: &at }.call()).await?;
        let living = Living::read(&rows)?;
        let by = node::number(self.0.by)?;
        if !living.nodes.iter().any(|node| node.no == by) {
            return Err(Error::LeaseLost.into());
        }
        let dead = living.dead(self.0);
        if dead.is_empty() && !living.undrained {
            return Ok(living.rescued(&[]));
        }
        self.judge(conn, shared, &living, &dead).await
    }
}

impl RescueOp {
    async fn judge(
        &self,
        conn: &mut Conn,
        shared: &Shared,
        living: &Living,
        dead: &Vec<i32>,
    ) -> Result<Rescued> {
        let (at, class, by) = (shared.at(), shared.class(), node::number(self.0.by)?);
        let locks = dead.iter().map(|no| node::Lock { class: &class, no }.call());
        let mut calls: Vec<Call<'_>> = locks.collect();
        let (steady, seen) = (micros(self.0.steady), self.0.seen.as_micros());
        let limit = i64::try_from(bounds::BATCH).unwrap_or(i64::MAX);
        calls.push(StillLive { no: &by }.call());
        let begun = conn.begin(shared, "", &calls).await?;
        if begun.last().is_none_or(Vec::is_empty) {
            return Err(Error::LeaseLost.into());
        }
        fault::point!("postgres.rescue.locked");
        // Limit keys are the last locks.
        let count = Count::new(shared, &at);
        let mut last = vec![
            ExpireNodes { at: &at, dead, steady: &steady, seen: &seen }.call(),
            Move { at: &at, limit: &limit }.call(),
            Drained.call(),
            More.call(),
        ];
        last.extend(count.calls());
        let rows = conn.end(&last).await?;
        fault::point!("postgres.rescue.moved");
        let [expired, moved, _, more, _, counted] = rows.as_slice() else {
            return Err(corrupt("a rescue without an answer"));
        };
        let expired: Vec<i32> = ExpireNodes::rows(expired)?.into_iter().map(|node| node.no).collect();
        let moved = Move::rows(moved)?;
        release::announce(conn, shared, &moved).await;
        settle::announce(conn, shared, counted).await;
        {
            let mut nodes = shared.nodes();
            for no in &expired {
                nodes.remove(no);
            }
        }
        let quarantined = moved.iter().filter(|job| job.quarantined).count();
        let returned = moved.iter().filter(|job| job.level.is_some()).count();
        let more = More::first(more)?.is_some_and(|row| row.more);
        let mut rescued = living.rescued(&expired);
        (rescued.returned, rescued.quarantined, rescued.more) = (returned, quarantined, more);
        Ok(rescued)
    }
}

/// The nodes that live, as one look saw them.
#[derive(Debug, Clone)]
pub(crate) struct Living {
    /// The store's time of the look.
    pub(crate) now: Timestamp,
    nodes: Vec<Alive>,
    /// Whether claims of nodes that were expired before are still to be moved.
    undrained: bool,
}

#[derive(Debug, Clone, Copy)]
struct Alive {
    no: i32,
    lease: i64,
    until: Timestamp,
    /// Whether its lease has lapsed while it holds claims.
    lapsed: bool,
}

impl Living {
    /// From the rows of [`Look`].
    pub(crate) fn read(rows: &[Row]) -> Result<Self> {
        let rows = Look::rows(rows)?;
        let first = rows.first().ok_or_else(|| corrupt("a look at the nodes without an answer"))?;
        let mut living = Living { now: first.now.0, nodes: Vec::new(), undrained: false };
        for node in rows {
            let (Some(no), Some(lease), Some(until)) = (node.no, node.lease, node.until) else { continue };
            if node.state != Some(NodeState::Live.code().into()) {
                living.undrained = true;
                continue;
            }
            let lapsed = node.lapsed.unwrap_or(false);
            living.nodes.push(Alive { no, lease, until: until.0, lapsed });
        }
        Ok(living)
    }

    /// Nodes that look dead to this rescuer, in order.
    fn dead(&self, rescue: Rescue) -> Vec<i32> {
        let silence = micros(self.now.since(rescue.seen));
        let judged = |node: &&Alive| {
            let lease = node.lease;
            node.lapsed
                && i64::from(node.no) != rescue.by.0
                && lease <= micros(rescue.steady)
                && silence <= lease / 2
        };
        self.nodes.iter().filter(judged).map(|node| node.no).collect()
    }

    /// Whether nobody needs to be rescued at this time, and this rescuer lives.
    pub(crate) fn all_well(&self, by: NodeNo, now: Timestamp) -> bool {
        // Who has lapsed without claims can only get some by renewing first.
        let doubtful = |node: &Alive| node.lapsed || (node.until > self.now && node.until <= now);
        !self.undrained
            && self.nodes.iter().any(|node| i64::from(node.no) == by.0)
            && !self.nodes.iter().any(|node| i64::from(node.no) != by.0 && doubtful(node))
    }

    /// What a rescue answers that has expired these.
    pub(crate) fn rescued(&self, expired: &[i32]) -> Rescued {
        let live = self.nodes.iter().filter(|node| !expired.contains(&node.no));
        let shortest = live.map(|node| node.lease).min();
        let shortest_lease = shortest
            .map_or(bounds::LEASE_MAX, |lease| Duration::from_micros(u64::try_from(lease).unwrap_or(0)));
        Rescued {
            now: self.now,
            expired: expired.iter().map(|no| NodeNo(i64::from(*no))).collect(),
            returned: 0,
            quarantined: 0,
            more: false,
            shortest_lease,
        }
    }
}
