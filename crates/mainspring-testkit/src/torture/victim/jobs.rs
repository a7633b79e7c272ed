//! What victims work on.

use mainspring::Job;
use serde::{Deserialize, Serialize};

/// The queues. Operators pause the second now and then.
pub const QUEUES: [&str; 2] = ["default", "side"];

/// A job that takes a while and leaves its traces.
#[derive(Debug, Clone, Default, Serialize, Deserialize, Job)]
#[job(kind = "work", result = String)]
pub struct Work {
    /// What it returns.
    pub number: u64,
    /// How long it takes.
    pub millis: u64,
    /// How often it fails before it succeeds.
    pub fails: u16,
    /// Under how many claims it puts itself off.
    pub snoozes: u32,
    /// Jobs that it enqueues before it ends.
    pub children: u16,
    /// Bytes of what it returns, at least.
    #[serde(default)]
    pub returns: usize,
}

/// The queue of jobs that take their processes down, with a slot of its own: nobody claims them ahead. The death of one that was
/// claimed ahead counts for its neighbors and not for itself, so an innocent neighbor could reach the third crash first.
pub const CRASHER_QUEUE: &str = "crashers";

/// A job that takes its process down.
#[derive(Debug, Serialize, Deserialize, Job)]
#[job(kind = "poison")]
pub struct Crasher {}
