//! The tests of the Postgres store: one program, because each program is linked by itself.
//!
//! `conformance` is the suite that every store passes, `pairs` meets two operations in every interleaving, `plans` looks at
//! what each call costs with a million jobs, `outage` takes the database away, `store` and `tls` test what only Postgres has.

mod client;
mod conformance;
mod conformance_pooler;
mod limits;
mod outage;
mod pairs;
mod plans;
mod store;
mod support;
mod tls;
