//! Counts, queues and nodes.

use std::collections::BTreeMap;

use mainspring_core::id::{NodeId, NodeNo};
use mainspring_core::job::State;
use mainspring_core::name::{Kind, QueueName};
use mainspring_core::store::{ActivityReport, Counts, Line, Node, NodeState, Queue};
use tokio_postgres::Row;
use uuid::Uuid;

use super::get::{state_of, time_of};
use crate::connection::Conn;
use crate::error::{Result, corrupt};
use crate::names::read_queue;
use crate::op::Op;
use crate::shared::Shared;
use crate::sql::{At, Call};

/// The whole of four small tables: their size does not depend on the number of jobs. One statement sees one moment, so
/// what is being folded is counted once.
const COUNTS: &str = "SELECT q.name, c.state, sum(c.n)::bigint FROM (
        SELECT line, state, n FROM mainspring.counts
        UNION ALL SELECT line, state, n FROM mainspring.count_deltas) c
    LEFT JOIN mainspring.lines l ON l.no = c.line LEFT JOIN mainspring.queues q ON q.no = l.queue
    GROUP BY q.name, c.state HAVING sum(c.n) <> 0";
/// The whole of a small table; of the three others, which are as small, only if a queue was deleted. The collation sorts bytes,
/// as names are compared.
const QUEUES: &str = "SELECT no, name, paused, backoff, retain_succeeded, retain_failed
    FROM mainspring.queues WHERE NOT deleted OR no IN (
        SELECT l.queue FROM (SELECT line, n FROM mainspring.counts UNION ALL SELECT line, n FROM mainspring.count_deltas) c
        JOIN mainspring.lines l ON l.no = c.line GROUP BY l.queue HAVING sum(c.n) > 0)
    ORDER BY name";
/// The whole of a table whose size is bounded, and for each of its rows the index of `ready`, once.
const LINES: &str = "SELECT q.name, k.name, l.labels FROM mainspring.lines l
    JOIN mainspring.queues q ON q.no = l.queue JOIN mainspring.kinds k ON k.no = l.kind
    CROSS JOIN LATERAL (SELECT 1 FROM mainspring.ready r WHERE r.line = l.no LIMIT 1) r";
/// The whole of two tables whose size is bounded by the nodes and their slots.
const NODES: &str = "SELECT n.no, n.id, n.name, n.version, n.pid, n.abilities::text, n.queues::text, n.state,
        n.started_at, n.renewed_at, n.lease_until, coalesce(c.claims, 0), n.backed_up, n.reported_at, n.activity::text
    FROM mainspring.nodes n
    LEFT JOIN (SELECT node, count(*) AS claims FROM mainspring.lease GROUP BY node) c ON c.node = n.no
    ORDER BY n.no DESC";

/// How many jobs each queue has in each state.
pub(crate) struct CountsOp;

impl Op for CountsOp {
    type Answer = Counts;

    const WRITES: bool = false;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Counts> {
        let mut counts: BTreeMap<_, BTreeMap<State, u64>> = BTreeMap::new();
        for row in all(conn, shared, COUNTS).await? {
            let (name, state, n): (Option<String>, i16, i64) = (row.get(0), row.get(1), row.get(2));
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
        let rows = all(conn, shared, QUEUES).await?;
        rows.iter().map(|row| Ok(read_queue(row)?.1)).collect()
    }
}

/// The lines that have ready jobs, sorted.
pub(crate) struct LinesOp;

impl Op for LinesOp {
    type Answer = Vec<Line>;

    const WRITES: bool = false;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Vec<Line>> {
        let rows = all(conn, shared, LINES).await?;
        let bad = |what: String| corrupt(format!("a line: {what}"));
        let line = |row: &Row| {
            Ok(Line {
                queue: QueueName::new(row.get::<_, &str>(0)).map_err(|error| bad(error.to_string()))?,
                kind: Kind::new(row.get::<_, &str>(1)).map_err(|error| bad(error.to_string()))?,
                labels: serde_json::from_str(row.get(2)).map_err(|error| bad(error.to_string()))?,
            })
        };
        let mut lines = rows.iter().map(line).collect::<Result<Vec<_>>>()?;
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
        all(conn, shared, NODES).await?.iter().map(read_node).collect()
    }
}

fn read_node(row: &Row) -> Result<Node> {
    let no = NodeNo(row.get::<_, i32>(0).into());
    let id: Uuid = row.get(1);
    let bad = |error: serde_json::Error| corrupt(format!("node {no}: {error}"));
    let state = u8::try_from(row.get::<_, i16>(7)).ok().and_then(NodeState::from_code);
    let report = match row.get::<_, Option<At>>(13).zip(row.get(14)) {
        Some((at, queues)) => {
            Some(ActivityReport { at: at.0, queues: serde_json::from_str(queues).map_err(bad)? })
        }
        None => None,
    };
    Ok(Node {
        no,
        id: NodeId::from_bytes(*id.as_bytes()),
        name: row.get(2),
        version: row.get(3),
        pid: u32::try_from(row.get::<_, i64>(4)).unwrap_or(0),
        abilities: serde_json::from_str(row.get(5)).map_err(bad)?,
        queues: serde_json::from_str(row.get(6)).map_err(bad)?,
        state: state.ok_or_else(|| corrupt(format!("node {no} is in a state that is none")))?,
        started_at: time_of(row, 8),
        renewed_at: time_of(row, 9),
        lease_until: time_of(row, 10),
        claims: u64::try_from(row.get::<_, i64>(11)).unwrap_or(0),
        backed_up: row.get(12),
        report,
    })
}

/// The rows of one statement without arguments.
async fn all(conn: &mut Conn, shared: &Shared, sql: &'static str) -> Result<Vec<Row>> {
    Ok(conn.commit(shared, &[Call::new(sql, Vec::new())]).await?.pop().unwrap_or_default())
}
