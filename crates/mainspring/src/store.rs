//! The layer beneath the engine: the [`Store`] trait, everything that crosses it, and the nouns of the core.
//!
//! For tools that look beneath [`Engine::store`](crate::Engine::store). Applications need none of it.

pub use mainspring_core::store::*;
pub use mainspring_core::{backoff, failure, id, job, journal, memory, output};
