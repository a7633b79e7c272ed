//! The rigs at the size that every run of the tests can afford, and the servers that tests start.
//!
//! The step `planted` runs the rigs against bugs that are built in for it: `tests/planted`.

mod damaged_schedules;
mod exhaustive;
mod fuzz;
mod lessons;
mod postgres_faults;
mod sim;
mod temporary_postgres;
mod torture_postgres;
mod torture_sqlite;
