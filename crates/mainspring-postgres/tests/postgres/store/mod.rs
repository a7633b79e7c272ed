//! What the Postgres store does beyond the conformance suite: jobs and records in callers' own transactions, open transactions that
//! stall nobody, late committers, migrations, roles, poolers, notifications and durability.

mod callers_records;
mod callers_transactions;
mod durability;
mod late_commits;
mod migrations;
mod notify;
mod open_transactions;
mod pooler;
mod record_cost;
mod role;
mod schemas;
mod shared_server;
mod statements;
mod transaction_steps;
