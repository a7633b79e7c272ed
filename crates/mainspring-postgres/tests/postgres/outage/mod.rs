//! A database that fails under an engine: down, restarted, locked, silent, full; and claims and ends whose answer is lost.

#![expect(clippy::disallowed_methods, reason = "a real database lives on the real clock")]

mod failover;
mod families_not_told;
mod lost_claim_answers;
mod many_handles;
mod network;
mod server;
mod support;
