//! Counts, queues and nodes.

use std::collections::BTreeMap;

use mainspring_core::id::{NodeId, NodeNo};
use mainspring_core::job::State;
use mainspring_core::store::{ActivityReport, Counts, Line, Node, NodeState, Queue};
use mainspring_core::time::Timestamp;

use super::Reader;
use crate::error::{Result, corrupt};
use crate::names::read_queue;

/// The whole of two small tables: their size does not depend on the number of jobs.
const COUNTS: &str = "SELECT queue, state, sum(n) FROM (
    SELECT queue, state, n FROM mainspring_counts UNION ALL SELECT queue, state, n FROM mainspring_count_deltas)
    GROUP BY queue, state";
/// The whole of a small table; of the two others, which are as small, only for queues that were deleted.
const QUEUES: &str = "SELECT no, name, paused, backoff, retain_succeeded, retain_failed
    FROM mainspring_queues q WHERE deleted = 0 OR 0 < (SELECT sum(n) FROM (
        SELECT n FROM mainspring_counts WHERE queue = q.no
        UNION ALL SELECT n FROM mainspring_count_deltas WHERE queue = q.no))
    ORDER BY name";
/// The index of `ready`, once, and of `limited`, if there is nothing.
pub(crate) const BUSY: &str = "SELECT 1 FROM mainspring_ready WHERE line = ?1
    UNION ALL SELECT 1 FROM mainspring_limited WHERE line = ?1 LIMIT 1";
/// The whole of two tables whose size is bounded by the nodes and their slots.
const NODES: &str =
    "SELECT n.no, n.id, n.name, n.version, n.pid, n.abilities, n.queues, n.state, n.started_at,
        n.renewed_at, n.lease_until, coalesce(c.claims, 0), n.backed_up, n.reported_at, n.activity
    FROM mainspring_nodes n
    LEFT JOIN (SELECT node, count(*) AS claims FROM mainspring_lease GROUP BY node) c ON c.node = n.no
    ORDER BY n.no DESC";

/// How many jobs each queue has in each state.
pub(crate) fn counts(reader: &mut Reader) -> Result<Counts> {
    let mut statement = reader.conn.prepare_cached(COUNTS)?;
    let mut rows = statement.query([])?;
    let mut counts: BTreeMap<_, BTreeMap<State, u64>> = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let (queue, state, n): (i64, u8, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        if n == 0 {
            continue;
        }
        let state = State::from_code(state).ok_or_else(|| corrupt(format!("{state} is not a state")))?;
        let n = u64::try_from(n).map_err(|_| corrupt(format!("a count of {n}")))?;
        counts.entry(reader.names.queue(queue)?.name.clone()).or_default().insert(state, n);
    }
    Ok(Counts(counts))
}

/// All queues, sorted.
pub(crate) fn queues(reader: &mut Reader) -> Result<Vec<Queue>> {
    let mut statement = reader.conn.prepare_cached(QUEUES)?;
    let mut rows = statement.query([])?;
    let mut queues = Vec::new();
    while let Some(row) = rows.next()? {
        queues.push(read_queue(row)?.1);
    }
    Ok(queues)
}

/// The lines that have ready jobs, sorted.
pub(crate) fn lines(reader: &mut Reader) -> Result<Vec<Line>> {
    let mut busy = reader.conn.prepare_cached(BUSY)?;
    let mut lines = Vec::new();
    for (no, line) in reader.names.lines() {
        if busy.exists([no])? {
            let queue = reader.names.queue(line.queue)?.name.clone();
            lines.push(Line { queue, kind: line.kind_name.clone(), labels: line.labels.clone() });
        }
    }
    lines.sort();
    Ok(lines)
}

/// All nodes, newest first.
pub(crate) fn nodes(reader: &mut Reader) -> Result<Vec<Node>> {
    let mut statement = reader.conn.prepare_cached(NODES)?;
    let mut rows = statement.query([])?;
    let mut nodes = Vec::new();
    while let Some(row) = rows.next()? {
        let no = NodeNo(row.get(0)?);
        let bad = |error: serde_json::Error| corrupt(format!("node {no}: {error}"));
        let text = |column| row.get::<_, String>(column);
        let report = match row.get::<_, Option<i64>>(13)?.zip(row.get::<_, Option<String>>(14)?) {
            Some((at, queues)) => Some(ActivityReport {
                at: Timestamp::from_micros(at),
                queues: serde_json::from_str(&queues).map_err(bad)?,
            }),
            None => None,
        };
        let queues = match report.as_ref().and_then(ActivityReport::serves) {
            Some(served) => served,
            None => serde_json::from_str(&text(6)?).map_err(bad)?,
        };
        nodes.push(Node {
            no,
            id: NodeId::from_bytes(row.get(1)?),
            name: text(2)?,
            version: text(3)?,
            pid: row.get(4)?,
            abilities: serde_json::from_str(&text(5)?).map_err(bad)?,
            queues,
            state: NodeState::from_code(row.get(7)?).ok_or_else(|| corrupt("an unknown state of a node"))?,
            started_at: Timestamp::from_micros(row.get(8)?),
            renewed_at: Timestamp::from_micros(row.get(9)?),
            lease_until: Timestamp::from_micros(row.get(10)?),
            claims: u64::try_from(row.get::<_, i64>(11)?).unwrap_or(0),
            backed_up: row.get(12)?,
            report,
        });
    }
    Ok(nodes)
}
