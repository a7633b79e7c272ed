//! `nodes`: who runs jobs.

use mainspring::Engine;
use mainspring::admin::{Node, NodeState};
use mainspring::time::Timestamp;
use serde_json::{Value, json};

use crate::color::Color;
use crate::output::Out;
use crate::text;
use mainspring_wire::json as shape;

pub(crate) async fn run(engine: &Engine, out: Out) -> anyhow::Result<()> {
    let nodes = engine.nodes().await?;
    if out.is_json() {
        let nodes: Vec<Value> = nodes.iter().map(shape::node).collect();
        out.value(&json!({ "nodes": nodes }))?;
        return Ok(());
    }
    if nodes.is_empty() {
        out.line(
            "no nodes; start your application, or for built-in kinds `mainspring work --queue default:10`",
        )?;
        return Ok(());
    }
    let now = engine.seams().clock.now();
    let rows = nodes.iter().map(|node| {
        let queues: Vec<String> = node.queues.iter().map(|(name, slots)| format!("{name}:{slots}")).collect();
        vec![
            text::line(&node.name, 60),
            lease(node, now),
            node.pid.to_string(),
            node.claims.to_string(),
            queues.join(","),
            last_claims(node, now),
            text::relative(node.started_at, now),
        ]
    });
    let colors: Vec<_> = nodes.iter().map(|node| color(node, now)).collect();
    let headers = ["NODE", "STATE", "PID", "CLAIMS", "QUEUES", "LAST CLAIMS", "STARTED"];
    out.line(out.table_in_colors(&headers, &rows.collect::<Vec<_>>(), "STATE", &colors))?;
    Ok(())
}

fn color(node: &Node, now: Timestamp) -> Color {
    match node.state {
        NodeState::Live if node.lease_until > now && !node.backed_up => Color::Green,
        NodeState::Live => Color::Red,
        NodeState::Retired | NodeState::Expired => Color::Faint,
    }
}

/// What a live node last asked for and got, per queue: `mail 0 of 10, 0.4s ago`.
fn last_claims(node: &Node, now: Timestamp) -> String {
    let report = node.report.iter().filter(|_| node.state == NodeState::Live);
    let claims = report.flat_map(|report| &report.queues).filter_map(|queue| {
        let claim = queue.last_claim?;
        let ago = text::relative(claim.at, now);
        Some(format!("{} {} of {}, {ago}", queue.queue, claim.got, claim.asked))
    });
    claims.collect::<Vec<_>>().join("; ")
}

/// A node's state, and for a live one its lease.
fn lease(node: &Node, now: Timestamp) -> String {
    match node.state {
        NodeState::Live if node.lease_until > now && node.backed_up => {
            "live, cannot store outcomes".to_owned()
        }
        NodeState::Live if node.lease_until > now => {
            format!("live, lease for {}", text::duration(node.lease_until.since(now)))
        }
        NodeState::Live => format!("silent, lease expired {}", text::relative(node.lease_until, now)),
        state => format!("{}, last seen {}", state.as_str(), text::relative(node.renewed_at, now)),
    }
}
