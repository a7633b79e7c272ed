//! The rigs find every planted bug, in seconds.
//!
//! Built with the feature `planted` alone; see `mainspring_core::planted`.
#![cfg(feature = "planted")]

mod simulated;
mod torture;
