//! Counts, queues and nodes.

use std::collections::BTreeMap;

use mainspring_core::id::{NodeId, NodeNo};
use mainspring_core::job::State;
use mainspring_core::name::{Kind, QueueName};
use mainspring_core::store::{ActivityReport, Counts, Line, Node, NodeState, Queue};
use uuid::Uuid;

use super::get::state_of;
use crate::connection::Conn;
use crate::error::{Result, corrupt};
use crate::names::QueueRow;
use crate::op::Op;
use crate::shared::Shared;
use crate::sql::{At, Call, Query, statement};

statement! {
    /// The whole of four small tables: their size does not depend on the number of jobs. One statement sees one moment, so
    /// what is being folded is counted once.
    pub(crate) CountAll = "admin.counts", whole ("all four tables are small"), ()
    -> QueueCount { queue: Option<String>, state: i16, count: i64 };
    "SELECT q.name, c.state, sum(c.n)::bigint FROM (
        SELECT line, state, n FROM mainspring.counts
        UNION ALL SELECT line, state, n FROM mainspring.count_deltas) c
    LEFT JOIN mainspring.lines l ON l.no = c.line LEFT JOIN mainspring.queues q ON q.no = l.queue
    GROUP BY q.name, c.state HAVING sum(c.n) <> 0"
}
statement! {
    /// The whole of a small table; of the three others, which are as small, only if a queue was deleted. The collation sorts bytes,
    /// as names are compared.
    pub(crate) AllQueues = "admin.queues", whole ("all four tables are small"), () -> QueueRow;
    "SELECT no, name, paused, backoff, retain_succeeded, retain_failed, deleted
    FROM mainspring.queues WHERE NOT deleted OR no IN (
        SELECT l.queue FROM (SELECT line, n FROM mainspring.counts UNION ALL SELECT line, n FROM mainspring.count_deltas) c
        JOIN mainspring.lines l ON l.no = c.line GROUP BY l.queue HAVING sum(c.n) > 0)
    ORDER BY name"
}
statement! {
    /// The whole of small tables, as for all counts: plain and limited jobs are counted alike.
    pub(crate) ReadyLines = "admin.lines", whole ("all five tables are small"), () -> ReadyLine { queue: String, kind: String, labels: String };
    "SELECT q.name, k.name, l.labels FROM (
        SELECT c.line FROM (SELECT line, state, n FROM mainspring.counts
            UNION ALL SELECT line, state, n FROM mainspring.count_deltas) c
        WHERE c.state = {state.ready} GROUP BY c.line HAVING sum(c.n) > 0) c
    JOIN mainspring.lines l ON l.no = c.line
    JOIN mainspring.queues q ON q.no = l.queue JOIN mainspring.kinds k ON k.no = l.kind"
}
statement! {
    /// The whole of two tables whose size is bounded by the nodes and their slots.
    pub(crate) AllNodes = "admin.nodes", whole ("`nodes` is small, and `lease` has no more rows than all nodes have slots"), ()
    -> NodeRow {
        no: i32, id: Uuid, name: String, version: String, pid: i64, abilities: String, queues: String, state: i16,
        started_at: At, renewed_at: At, lease_until: At, claims: i64, backed_up: bool,
        reported_at: Option<At>, activity: Option<String>,
    };
    "SELECT n.no, n.id, n.name, n.version, n.pid, n.abilities::text, n.queues::text, n.state,
        n.started_at, n.renewed_at, n.lease_until, coalesce(c.claims, 0), n.backed_up, n.reported_at, n.activity::text
    FROM mainspring.nodes n
    LEFT JOIN (SELECT node, count(*) AS claims FROM mainspring.lease GROUP BY node) c ON c.node = n.no
    ORDER BY n.no DESC"
}

/// How many jobs each queue has in each state.
pub(crate) struct CountsOp;

impl Op for CountsOp {
    type Answer = Counts;

    const WRITES: bool = false;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Counts> {
        let mut counts: BTreeMap<_, BTreeMap<State, u64>> = BTreeMap::new();
        for QueueCount { queue: name, state, count: n } in
            all(conn, shared, &CountAll, CountAll.call()).await?
        {
            let name = name.ok_or_else(|| corrupt("jobs are counted for a line that is missing"))?;
            let name = QueueName::new(name).map_err(|error| corrupt(error.to_string()))?;
            let n = u64::try_from(n).map_err(|_| corrupt(format!("a count of {n}")))?;
            counts.entry(name).or_default().insert(state_of(state)?, n);
        }
        Ok(Counts(counts))
    }
}

/// All queues, sorted.
pub(crate) struct QueuesOp;

impl Op for QueuesOp {
    type Answer = Vec<Queue>;

    const WRITES: bool = false;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Vec<Queue>> {
        let rows = all(conn, shared, &AllQueues, AllQueues.call()).await?;
        rows.into_iter().map(|row| Ok(row.read()?.1)).collect()
    }
}

/// The lines that have ready jobs, sorted.
pub(crate) struct LinesOp;

impl Op for LinesOp {
    type Answer = Vec<Line>;

    const WRITES: bool = false;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Vec<Line>> {
        let rows = all(conn, shared, &ReadyLines, ReadyLines.call()).await?;
        let bad = |what: String| corrupt(format!("a line: {what}"));
        let line = |ReadyLine { queue, kind, labels }: ReadyLine| {
            Ok(Line {
                queue: QueueName::new(queue).map_err(|error| bad(error.to_string()))?,
                kind: Kind::new(kind).map_err(|error| bad(error.to_string()))?,
                labels: serde_json::from_str(&labels).map_err(|error| bad(error.to_string()))?,
            })
        };
        let mut lines = rows.into_iter().map(line).collect::<Result<Vec<_>>>()?;
        lines.sort();
        Ok(lines)
    }
}

/// All nodes, newest first.
pub(crate) struct NodesOp;

impl Op for NodesOp {
    type Answer = Vec<Node>;

    const WRITES: bool = false;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Vec<Node>> {
        let nodes = all(conn, shared, &AllNodes, AllNodes.call()).await?;
        nodes.into_iter().map(read_node).collect()
    }
}

fn read_node(node: NodeRow) -> Result<Node> {
    let no = NodeNo(node.no.into());
    let bad = |error: serde_json::Error| corrupt(format!("node {no}: {error}"));
    let state = u8::try_from(node.state).ok().and_then(NodeState::from_code);
    let report = match node.reported_at.zip(node.activity) {
        Some((at, queues)) => {
            Some(ActivityReport { at: at.0, queues: serde_json::from_str(&queues).map_err(bad)? })
        }
        None => None,
    };
    let queues = match report.as_ref().and_then(ActivityReport::serves) {
        Some(served) => served,
        None => serde_json::from_str(&node.queues).map_err(bad)?,
    };
    Ok(Node {
        no,
        id: NodeId::from_bytes(*node.id.as_bytes()),
        name: node.name,
        version: node.version,
        pid: u32::try_from(node.pid).unwrap_or(0),
        abilities: serde_json::from_str(&node.abilities).map_err(bad)?,
        queues,
        state: state.ok_or_else(|| corrupt(format!("node {no} has an unknown state")))?,
        started_at: node.started_at.0,
        renewed_at: node.renewed_at.0,
        lease_until: node.lease_until.0,
        claims: u64::try_from(node.claims).unwrap_or(0),
        backed_up: node.backed_up,
        report,
    })
}

/// The rows of one statement without arguments.
async fn all<Q: Query>(conn: &mut Conn, shared: &Shared, _: &Q, call: Call<'_>) -> Result<Vec<Q::Row>> {
    Q::rows(&conn.commit(shared, &[call]).await?.pop().unwrap_or_default())
}
