//! The handlers that the binary has by itself: `exec`, `noop` and `sleep`.

pub(crate) mod exec;
mod simple;

use mainspring::NodeBuilder;

/// The kinds that a node runs, as `work` names them.
pub(crate) fn kinds(allow_exec: bool) -> &'static [&'static str] {
    if allow_exec { &["exec", "noop", "sleep"] } else { &["noop", "sleep"] }
}

/// Adds them to a node. `exec` runs whatever somebody enqueues, so it must be allowed; a node that does not allow it
/// does not know it either, and leaves its jobs to nodes that do.
pub(crate) fn register(node: NodeBuilder, allow_exec: bool) -> NodeBuilder {
    let node = node.handle(simple::noop).handle(simple::sleep);
    if allow_exec { node.handle(exec::exec) } else { node }
}
