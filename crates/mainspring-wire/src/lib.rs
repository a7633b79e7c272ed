//! JSON and text about jobs, nodes and queues, for programs and people. The command line prints it, and a server can
//! send it.
//! [`json`] has the shapes that `docs/json.md` describes. [`timeline`] puts a job's past into words, [`why`] adds the
//! command that helps a waiting job, and [`text`] escapes text from a store for a terminal.
//!
//! # Invariants
//! - Within a major version a field keeps its name, its type and its meaning.
//! - Nothing here reads a store: callers pass in what they have read.

pub mod json;
pub mod text;
pub mod timeline;
pub mod why;
