//! The rigs find every planted bug, in seconds.
//!
//! Built with the feature `planted` alone; see `mainspring_core::planted`.
#![cfg(feature = "planted")]

mod met;
mod simulated;
mod torture;

use std::time::Duration;

/// How long this thread has worked. Others that want the same processors do not make a rig any worse.
fn worked() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel tells");
    let nanos = stat.split_whitespace().next().and_then(|number| number.parse().ok());
    Duration::from_nanos(nanos.expect("a number"))
}
