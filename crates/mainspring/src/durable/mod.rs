//! Durable operations: what makes a job a workflow.
//!
//! A handler runs from its top each time. Each durable operation has a key; if something is recorded under it, that is its
//! result, and nothing is done. Otherwise it is done, and recorded before the handler sees it. A handler that waits for
//! nothing but durable operations is suspended: one commit records what it waits for and gives the claim back.
//!
//! - [`operation`]: what all operations have in common; [`key`]: names, scopes, and what tells repeats apart.
//! - [`session`]: what one handler shares with its operations, in parts: [`replay`], [`deferred_writes`], [`inbox`],
//!   [`open_waits`], [`under_way`].
//! - [`activation`]: how a handler is polled; [`next_action`]: when it is suspended, set aside or left in its slot.
//! - [`polled_code`]: which code is being polled, so that operations in the wrong place are refused before any effect.
//! - [`drift`]: whether what is recorded still fits the code.
//! - [`dropped`]: operations that are dropped before their end, such as the losers of a `select!`.
//! - [`step`], [`wait`], [`child`], [`recorded_value`]: the operations; [`keep`]: waits that keep units of limits.
//! - [`output`]: what handlers and bodies push meanwhile.
//! - [`branch`], [`race`], [`map`], [`iterate`]: scopes of several operations; [`scope_end`]: how they end.
//!
//! # Invariants
//! - Nothing that a step's body may have seen is lost when the body's effect is not: what came from outside is recorded
//!   before the next body begins.
//! - A result is recorded before the handler sees it, or nothing depends on it.
//! - An operation that was dropped does not win when the handler runs again.
//! - A handler is suspended only if nothing but a durable operation can wake it.

pub(crate) mod activation;
pub(crate) mod branch;
pub(crate) mod child;
mod deferred_writes;
pub(crate) mod drift;
pub(crate) mod dropped;
pub(crate) mod error;
mod inbox;
pub(crate) mod iterate;
pub(crate) mod join_all;
mod keep;
pub(crate) mod key;
pub(crate) mod map;
mod next_action;
mod open_waits;
mod operation;
pub(crate) mod output;
pub(crate) mod polled_code;
pub(crate) mod pool_transaction;
mod probe_hooks;
pub(crate) mod race;
pub(crate) mod recorded_value;
pub(crate) mod recorder;
mod replay;
pub(crate) mod scope_end;
pub(crate) mod session;
pub(crate) mod signal;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite_transaction;
pub(crate) mod step;
pub(crate) mod token;
mod under_way;
pub(crate) mod wait;
