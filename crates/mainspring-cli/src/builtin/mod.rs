//! The handlers that the binary has by itself: `exec`, `noop` and `sleep`.

pub(crate) mod exec;
pub(crate) mod guard;
mod simple;
mod tail;

use mainspring::NodeBuilder;

/// The kinds, as `work` names them.
pub(crate) const KINDS: [&str; 3] = ["exec", "noop", "sleep"];

/// Adds all of them to a node. `exec` runs whatever somebody enqueues, so it must be allowed.
pub(crate) fn register(node: NodeBuilder, allow_exec: bool) -> NodeBuilder {
    node.handle(simple::noop).handle(simple::sleep).handle(exec::exec).state(exec::Allowed(allow_exec))
}
