//! What nodes do for their queues, as they see it themselves.
//!
//! A node sends a short report with each renewal, and the store keeps the last one with the node. So everybody can see
//! what a node of another process claimed last, and why it claims nothing now.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::name::QueueName;
use crate::time::Timestamp;

/// A node's activity for one of its queues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueActivity {
    /// The queue.
    pub queue: QueueName,
    /// The node's slots for it.
    pub slots: u32,
    /// Slots in which a handler runs.
    pub running: u32,
    /// Jobs that the node claimed ahead, and that wait for a slot.
    pub waiting: u32,
    /// Jobs whose outcome the store does not have yet.
    pub unstored: u32,
    /// Jobs in claims that the store has not answered yet.
    pub asking: u32,
    /// The last claim that the store answered.
    pub last_claim: Option<LastClaim>,
    /// How long until the node looks for jobs again, unless a hint comes first.
    pub next_look: Duration,
}

/// The last claim of a node for a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastClaim {
    /// How many jobs the node asked for, at most.
    pub asked: u32,
    /// How many jobs it got.
    pub got: u32,
    /// When, by the store's time.
    pub at: Timestamp,
}

/// A node's report about its queues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ActivityReport {
    /// The time of the report: the node's last renewal, or now for a node of this process.
    pub at: Timestamp,
    /// Its queues.
    pub queues: Vec<QueueActivity>,
}

impl ActivityReport {
    /// The queues that its node serves, and the slots for each. `None` if it says nothing of queues.
    ///
    /// Slots change while a node runs. What it registered with holds until its first report; one with 0 slots is not served any
    /// more, and running jobs of it end.
    pub fn serves(&self) -> Option<Vec<(QueueName, u32)>> {
        let served = self.queues.iter().filter(|one| one.slots > 0);
        (!self.queues.is_empty()).then(|| served.map(|one| (one.queue.clone(), one.slots)).collect())
    }

    /// Returns the activity for a queue.
    pub fn of(&self, queue: &QueueName) -> Option<&QueueActivity> {
        self.queues.iter().find(|one| one.queue == *queue)
    }
}
