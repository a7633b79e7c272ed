//! The rigs find every planted bug.
//!
//! What a rig may need is counted in work: seeds of the simulator, states of the model, runs of real processes. How fast the
//! machine is plays no part. Each test prints how much it needed, which is to stay far below its bound: a bug that comes near
//! it is made likelier in the simulator, by worlds and workloads that favour it, not by more seeds.
//!
//! Built with the feature `planted` alone; see `mainspring_core::planted`.
#![cfg(feature = "planted")]

mod limits;
mod simulated;
mod suspension;
mod torture;
