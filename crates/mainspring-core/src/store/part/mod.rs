//! The parts of a [`Store`](super::Store): one trait per client.
//!
//! A client takes the part that it needs, and a capability adds a part of its own. Every method of a part that can fail
//! has a row in the table of [`decorator`](super::decorator).

mod journals;
mod limits;
mod nodes;
mod operators;
mod producers;
mod schedules;

pub use journals::Journals;
pub use limits::Limits;
pub use nodes::Nodes;
pub use operators::Operators;
pub use producers::Producers;
pub use schedules::Schedules;
