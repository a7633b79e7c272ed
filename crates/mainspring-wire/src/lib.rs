//! What Mainspring tells programs and people about jobs, nodes and queues. The command line prints it, and a server can send it.
//!
//! [`json`] has the shapes that `docs/json.md` describes, [`timeline`] a job's past in words, [`why`] what a person can do about a
//! job that does not run, and [`text`] makes what comes from a store harmless.
//!
//! # Invariants
//! - Within a major version a field keeps its name, its type and its meaning.
//! - Nothing here asks a store: who has read something hands it over.

pub mod json;
pub mod text;
pub mod timeline;
pub mod why;
