//! Durable operations, through the public surface: in memory, on a clock moved by hand.
//!
//! What depends on whether a suspended handler is still in memory is tried both ways.

mod backoffs;
mod careless_handlers;
mod children;
mod drift;
mod forbidden_places;
mod forks;
mod numbers;
#[cfg(feature = "sqlite")]
mod on_real_stores;
mod output;
mod random;
mod scope_and_drift_regressions;
mod scopes;
mod steps;
mod support;
mod tokens;
#[cfg(feature = "sqlite")]
mod transactions;
mod trials;
mod unfit_signals;
mod waits;
