//! Durable operations, through the public surface: in memory, on a clock moved by hand.
//!
//! What depends on whether a suspended handler is still in memory is tried both ways.

mod attack;
mod attack2;
mod backoffs;
mod children;
mod drift;
mod forks;
mod numbers;
mod output;
mod places;
mod random;
#[cfg(feature = "sqlite")]
mod real;
mod scopes;
mod steps;
mod support;
mod tokens;
#[cfg(feature = "sqlite")]
mod transactions;
mod trials;
mod unfit;
mod waits;
