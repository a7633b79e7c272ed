//! A database that fails under an engine: down, restarted, locked, silent, full; and claims and ends whose answer is lost.

#![expect(clippy::disallowed_methods, reason = "a real database lives on the real clock")]

mod claims;
mod crowd;
mod failover;
mod families;
mod network;
mod server;
mod support;
