//! Tests of what is private to SQLite; behaviour that all stores share is the conformance suite's.

pub(crate) mod support;
