//! What the Postgres store does beyond the conformance suite: jobs and records in callers' own transactions, open transactions that
//! stall nobody, late committers, migrations, roles, poolers, notifications and durability.

mod client;
mod durability;
mod late;
mod migrations;
mod notify;
mod open;
mod pooler;
mod recording;
mod records;
mod role;
mod schemas;
mod step;
mod support;
mod transaction;
