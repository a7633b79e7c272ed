//! Nodes: join, renew, retire; and what a handle knows of its own.

use std::collections::BTreeMap;

use mainspring_core::id::{Claim, ClaimBatchNo, JobId, NodeNo, Row as JobRow};
use mainspring_core::store::{Cancellation, Mark, Registered, Registration, Renewal, Renewed, flags};
use mainspring_core::time::micros;
use mainspring_core::{Error, fault};
use serde_json::{from_str, to_string};
use tokio_postgres::Row;
use uuid::Uuid;

use super::limits::settle::{self, Count};
use super::release::{self, Returned, give_back};
use super::{Op, now};
use crate::connection::Conn;
use crate::error::{Result, corrupt};
use crate::hint::Hints;
use crate::idle_poll::{self, PollInFlight};
use crate::names;
use crate::shared::{Local, Shared};
use crate::sql::{At, Call, Present, Query, statement};

statement! {
    /// Unique index of ids. A repeat meets the row that is there. The whole of `queues`, which is small: those that were deleted and
    /// are named again, in order of their numbers.
    pub(crate) RegisterNode<'a> = "node.register", by ["nodes_id_key"],
    (
        at: Present, id: Uuid, lease: i64, pid: i64, name: String, version: String, abilities: String, queues: String,
        named: Vec<&'a str>,
    )
    -> RegisteredNode { now: At, no: Option<i32>, new: bool };
    concat!(
    "WITH ",
    now!(),
    ", a AS (INSERT INTO mainspring.nodes
        (id, started_at, renewed_at, lease_until, lease, pid, name, version, abilities, queues)
        SELECT $2, t.now, t.now, t.now + $3 * interval '1 us', $3, $4, $5, $6, $7::text::jsonb, $8::text::jsonb FROM t
        ON CONFLICT (id) DO NOTHING RETURNING no)
    , q AS (UPDATE mainspring.queues SET deleted = false WHERE no IN (SELECT q.no FROM mainspring.queues q
            WHERE q.deleted AND q.name = ANY($9::text[]) AND EXISTS (SELECT 1 FROM a) ORDER BY q.no FOR UPDATE))
    SELECT t.now, coalesce((SELECT no FROM a), (SELECT no FROM mainspring.nodes WHERE id = $2)),
        EXISTS (SELECT 1 FROM a) FROM t"
)
}
statement! {
    /// Primary key.
    pub(crate) Know<'a> = "node.know", by ["nodes_pkey"], (no: i32) -> Known { abilities: String, settlements: i32 };
    "SELECT abilities::text, settlements FROM mainspring.nodes WHERE no = $1 AND state = {node.live}"
}
statement! {
    /// Exclusive advisory lock on the node: waits for its claims that are on their way. Each later statement sees them.
    pub(crate) Lock<'a> = "node.lock", whole ("it touches no table"), (class: i32, no: i32);
    "SELECT pg_advisory_xact_lock($1, $2)"
}
statement! {
    /// Primary key: whatever was sent before and is still on its way claims nothing.
    pub(crate) AddSettlement<'a> = "node.add_settlement", by ["nodes_pkey"], (no: i32) -> Settlements { count: i32 };
    "UPDATE mainspring.nodes SET settlements = settlements + 1 WHERE no = $1 AND state = {node.live}
    RETURNING settlements"
}
statement! {
    /// Primary key; then partial index `lease_cancel` and the primary key of `jobs`.
    pub(crate) RenewLease<'a> = "node.renew", by ["nodes_pkey", "lease_cancel", "jobs_pkey"],
    (at: Present, node: i32, backed_up: bool, activity: String)
    -> RenewedLease {
        now: At, id: Option<Uuid>, no: Option<i64>, claim: Option<i32>, why: Option<String>, flags: Option<i16>,
    };
    concat!(
    "WITH ",
    now!(),
    ", u AS (UPDATE mainspring.nodes n SET renewed_at = t.now, lease_until = t.now + n.lease * interval '1 us',
            backed_up = $3, reported_at = t.now, activity = $4::text::jsonb
        FROM t WHERE n.no = $2 AND n.state = {node.live} RETURNING n.no)
    SELECT t.now, f.id, f.no, f.claim, f.cancel, f.flags FROM t CROSS JOIN u LEFT JOIN LATERAL (
        SELECT j.id, l.no, l.claim, l.cancel, l.flags FROM mainspring.lease l
        CROSS JOIN LATERAL (SELECT id FROM mainspring.jobs WHERE no = l.no OFFSET 0) j
        WHERE l.node = $2 AND l.cancel IS NOT NULL ORDER BY l.no) f ON true"
)
}
statement! {
    /// Primary key, in order of the numbers; a stale claim meets no row. Of a handler that is stuck nothing else is said.
    pub(crate) MarkClaims<'a> = "node.mark", by ["lease_pkey"],
    (node: i32, nos: Vec<i64>, claims: Vec<i32>, stuck: Vec<Option<i16>>, cleared: Vec<bool>);
    "UPDATE mainspring.lease l
    SET stuck = CASE WHEN l.stuck = {stuck.blocked} THEN l.stuck
            ELSE coalesce(($4::smallint[])[width_bucket(l.no, $2::bigint[])], l.stuck) END,
        crashes = CASE WHEN ($5::boolean[])[width_bucket(l.no, $2::bigint[])] THEN least(l.crashes, 1) ELSE l.crashes END
    WHERE l.no = ANY($2::bigint[]) AND l.claim = ($3::int[])[width_bucket(l.no, $2::bigint[])] AND l.node = $1
        AND (l.stuck <> {stuck.blocked} AND ($4::smallint[])[width_bucket(l.no, $2::bigint[])] <> l.stuck
            OR ($5::boolean[])[width_bucket(l.no, $2::bigint[])] AND l.crashes > 1)"
}
statement! {
    /// Primary key.
    pub(crate) RetireNode<'a> = "node.retire", by ["nodes_pkey"], (no: i32);
    "UPDATE mainspring.nodes SET state = {node.retired} WHERE no = $1 AND state = {node.live} RETURNING no"
}
statement! {
    /// `lease` as a whole, whose size is bounded by the slots of all nodes; once in a node's life. The node's lock is held,
    /// so nothing is added meanwhile; rows that its own outcomes hold are waited for, in order.
    pub(crate) GiveBackAll<'a> = "node.give_back_all", whole ("`lease` has no more rows than all nodes have slots"),
    (at: Present, node: i32) -> Returned;
    give_back!(
    "SELECT l.no FROM mainspring.lease l WHERE l.node = $2 ORDER BY l.no FOR UPDATE",
    "l.crashes",
    "l.crashed",
    "returned",
    ""
)
}
statement! {
    /// The same, after a lost answer: what came from settled batches and is not kept.
    pub(crate) DisownClaims<'a> = "node.disown", whole ("`lease` has no more rows than all nodes have slots"),
    (at: Present, node: i32, settled: i64, nos: Vec<i64>, claims: Vec<i32>) -> Returned;
    give_back!(
    "SELECT l.no FROM mainspring.lease l WHERE l.node = $2 AND l.batch <= $3
        AND (($4::bigint[])[width_bucket(l.no, $4::bigint[])] IS DISTINCT FROM l.no
            OR ($5::int[])[width_bucket(l.no, $4::bigint[])] IS DISTINCT FROM l.claim)
    ORDER BY l.no FOR UPDATE",
    "l.crashes",
    "l.crashed",
    "returned",
    ""
)
}

/// What a claim's `stuck` says.
const BLOCKED: i16 = Mark::BLOCKED as i16;
const FOREIGN: i16 = Mark::FOREIGN as i16;

/// A node's number as the tables have it.
pub(crate) fn number(node: NodeNo) -> Result<i32> {
    // A number that does not fit is none of ours.
    i32::try_from(node.0).map_err(|_| Error::LeaseLost.into())
}

/// Makes sure that the handle knows a node.
pub(crate) async fn know(conn: &mut Conn, shared: &Shared, node: i32) -> Result<()> {
    if shared.nodes().contains_key(&node) {
        return Ok(());
    }
    let rows = conn.send(&Know { no: &node }.call()).await?;
    let known = Know::first(&rows)?.ok_or(Error::LeaseLost)?;
    let abilities = from_str(&known.abilities).map_err(|error| corrupt(format!("node {node}: {error}")))?;
    let local = Local { abilities, settlements: known.settlements, batch: None, fresh: false };
    shared.nodes().insert(node, local);
    Ok(())
}

/// The answer to a claim is here.
pub(crate) fn settled(shared: &Shared, node: i32, batch: u64) {
    if let Some(local) = shared.nodes().get_mut(&node) {
        local.batch = local.batch.max(Some(batch));
        local.fresh = true;
    }
}

/// Waits for claims of the node that are on their way and bars those that have not arrived; then runs statements in the
/// same transaction. The rows of all statements, the two first ones included.
pub(crate) async fn settle(
    conn: &mut Conn,
    shared: &Shared,
    node: i32,
    then: Vec<Call<'_>>,
) -> Result<Vec<Vec<Row>>> {
    let class = shared.class();
    let mut calls = vec![Lock { class: &class, no: &node }.call(), AddSettlement { no: &node }.call()];
    calls.extend(then);
    fault::point!("postgres.lost.settling");
    let rows = conn.commit(shared, &calls).await?;
    fault::point!("postgres.lost.settled");
    let settlements = AddSettlement::first(&rows[1])?.ok_or(Error::LeaseLost)?.count;
    if let Some(local) = shared.nodes().get_mut(&node) {
        local.settlements = settlements;
    }
    Ok(rows)
}

/// Makes a node known.
pub(crate) struct Register(pub(crate) Registration);

impl Op for Register {
    type Answer = Registered;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Registered> {
        let node = &self.0;
        shared.limit_timeout(node.lease);
        let named: Vec<&str> = node.queues.iter().map(|(queue, _)| queue.as_str()).collect();
        names::add_queues(conn, shared, &named).await?;
        let json = |error: serde_json::Error| corrupt(format!("registration: {error}"));
        let (at, id, lease, pid) =
            (shared.at(), Uuid::from_bytes(*node.id.as_bytes()), micros(node.lease), i64::from(node.pid));
        let abilities = to_string(&node.abilities).map_err(json)?;
        let queues = to_string(&node.queues).map_err(json)?;
        let register = RegisterNode {
            at: &at,
            id: &id,
            lease: &lease,
            pid: &pid,
            name: &node.name,
            version: &node.version,
            abilities: &abilities,
            queues: &queues,
            named: &named,
        };
        let rows = conn.commit(shared, &[register.call()]).await?.pop().unwrap_or_default();
        let row = RegisterNode::first(&rows)?;
        let row = row.ok_or_else(|| corrupt("a registration without an answer"))?;
        // None if another session registered the same id at the same moment; the repeat finds it.
        let no = row.no.ok_or_else(|| Error::unavailable("the same node is registering elsewhere"))?;
        // A repeat may follow claims that were made elsewhere: those are looked up when it claims.
        if row.new {
            shared.nodes().entry(no).or_insert_with(|| Local::new(node));
        }
        Ok(Registered { no: NodeNo(no.into()), now: row.now.0 })
    }
}

/// Renews a node's lease.
pub(crate) struct Renew(pub(crate) Renewal);

impl Op for Renew {
    type Answer = Renewed;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Renewed> {
        let node = number(self.0.node)?;
        let at = shared.at();
        let marks = Marks::new(&self.0.marks);
        let activity =
            to_string(&self.0.queues).map_err(|error| corrupt(format!("a report of queues: {error}")))?;
        let renew = RenewLease { at: &at, node: &node, backed_up: &self.0.backed_up, activity: &activity };
        let mut calls = vec![renew.call()];
        if !marks.nos.is_empty() {
            let Marks { nos, claims, stuck, cleared } = &marks;
            calls.push(MarkClaims { node: &node, nos, claims, stuck, cleared }.call());
        }
        // A renewal is a round trip anyhow; it takes the idle poll along.
        let poll =
            (shared.is_listening() && idle_poll::is_quick(shared)).then(|| PollInFlight::new(shared, true));
        let own = calls.len();
        calls.extend(poll.iter().flat_map(PollInFlight::calls));
        let mut answers = conn.commit(shared, &calls).await?;
        drop(calls);
        let polled = answers.split_off(own);
        if let Some(poll) = poll {
            poll.apply(conn, shared, &polled).await?;
        }
        let rows = RenewLease::rows(&answers.swap_remove(0))?;
        let Some(now) = rows.first().map(|row| row.now.0) else { return Err(Error::LeaseLost.into()) };
        let flagged = rows.into_iter().filter_map(|row| {
            let number = u32::try_from(row.claim?).unwrap_or(0);
            let claim = Claim { id: JobId::from_bytes(*row.id?.as_bytes()), row: JobRow(row.no?), number };
            Some((claim, Cancellation { reason: flags::canceller(row.flags?), why: row.why? }))
        });
        Ok(Renewed { now, cancel: flagged.collect() })
    }
}

/// Marks as arguments, one column each; jobs in order of their numbers, each once.
#[derive(Default)]
struct Marks {
    nos: Vec<i64>,
    claims: Vec<i32>,
    stuck: Vec<Option<i16>>,
    cleared: Vec<bool>,
}

impl Marks {
    fn new(marks: &[(Claim, Mark)]) -> Self {
        // Of several claims of one job all but the last are stale.
        let mut last: BTreeMap<i64, (i32, Option<i16>, bool)> = BTreeMap::new();
        for (claim, mark) in marks {
            let number = number_of(claim);
            let known = last.entry(claim.row.0).or_insert((number, None, false));
            if number > known.0 {
                *known = (number, None, false);
            }
            if number == known.0 {
                match mark {
                    Mark::Stuck => known.1 = Some(BLOCKED),
                    Mark::Foreign if known.1 != Some(BLOCKED) => known.1 = Some(FOREIGN),
                    Mark::GoesOn if known.1 != Some(BLOCKED) => known.1 = Some(0),
                    Mark::Foreign | Mark::GoesOn => {}
                    Mark::Cleared => known.2 = true,
                }
            }
        }
        let mut columns = Marks::default();
        for (no, (claim, stuck, cleared)) in last {
            columns.nos.push(no);
            columns.claims.push(claim);
            columns.stuck.push(stuck);
            columns.cleared.push(cleared);
        }
        columns
    }
}

/// A claim's number as the tables have it. One that does not fit is stale in any case.
pub(crate) fn number_of(claim: &Claim) -> i32 {
    i32::try_from(claim.number).unwrap_or(-1)
}

/// Gives back all that a node holds and takes it off the list of the living.
pub(crate) struct Retire(pub(crate) NodeNo);

impl Op for Retire {
    type Answer = usize;
    const MOVES: bool = true;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<usize> {
        let Ok(node) = number(self.0) else { return Ok(0) };
        let (at, class) = (shared.at(), shared.class());
        let lock = Lock { class: &class, no: &node }.call();
        let retire = RetireNode { no: &node }.call();
        let begun = conn.begin(shared, "", &[lock, retire]).await?;
        shared.nodes().remove(&node);
        if begun[1].is_empty() {
            conn.end(&[]).await?;
            return Ok(0);
        }
        let give = GiveBackAll { at: &at, node: &node }.call();
        fault::point!("postgres.leave.locked");
        // Limit keys are the last locks.
        let count = Count::new(shared, &at);
        let [lock, count] = count.calls();
        let rows = conn.end(&[give, lock, count]).await?;
        let [returned, _, counted] = rows.as_slice() else {
            return Err(corrupt("a retirement without an answer"));
        };
        let returned = GiveBackAll::rows(returned)?;
        release::announce(conn, shared, &returned).await;
        settle::announce(conn, shared, counted).await;
        Ok(returned.len())
    }
}

/// Releases claims of a node that it does not know of.
pub(crate) struct Disown {
    pub(crate) node: NodeNo,
    pub(crate) settled: ClaimBatchNo,
    pub(crate) keep: Vec<Claim>,
}

impl Op for Disown {
    type Answer = usize;
    const MOVES: bool = true;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<usize> {
        let Ok(node) = number(self.node) else { return Ok(0) };
        let (at, settled) = (shared.at(), i64::try_from(self.settled.0).unwrap_or(i64::MAX));
        // Sorted, and each job once: of several claims of one job only the newest can be held.
        let keep: BTreeMap<i64, i32> = self.keep.iter().fold(BTreeMap::new(), |mut keep, claim| {
            let number = keep.entry(claim.row.0).or_insert(-1);
            *number = number_of(claim).max(*number);
            keep
        });
        let (nos, claims): (Vec<i64>, Vec<i32>) = keep.into_iter().unzip();
        let disown = DisownClaims { at: &at, node: &node, settled: &settled, nos: &nos, claims: &claims };
        let count = Count::new(shared, &at);
        let [lock, counted] = count.calls();
        let rows = match settle(conn, shared, node, vec![disown.call(), lock, counted]).await {
            Ok(rows) => rows,
            // A node that is gone holds nothing, or is rescued.
            Err(crate::error::Fault::Refused(Error::LeaseLost)) => return Ok(0),
            Err(fault) => return Err(fault),
        };
        let [.., returned, _, counted] = rows.as_slice() else {
            return Err(corrupt("a settlement without an answer"));
        };
        let returned = DisownClaims::rows(returned)?;
        release::announce(conn, shared, &returned).await;
        settle::announce(conn, shared, counted).await;
        Ok(returned.len())
    }
}

/// Tells who listens that a claim of this node was flagged.
pub(crate) fn flagged(hints: &mut Hints, node: i32) {
    hints.cancel(NodeNo(node.into()));
}
