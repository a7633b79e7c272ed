//! Claiming and finishing: what goes over the seam.

use std::fmt;

use crate::id::{Claim, ClaimBatchNo, NodeNo};
use crate::job::{Options, Outcome, Priority};
use crate::journal::{Journal, Value};
use crate::name::{Kind, QueueName};
use crate::time::Timestamp;

/// A node's request for jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRequest {
    /// The node that asks.
    pub node: NodeNo,
    /// The number of this claim batch: one higher than the last, or the same for a repeat, which may come after later ones.
    pub batch: ClaimBatchNo,
    /// How many jobs of each queue, in the order in which the node serves them.
    pub queues: Vec<(QueueName, usize)>,
    /// How many of a queue's jobs are ahead, for slots that are not free yet. A missing queue has none.
    pub ahead: Vec<(QueueName, usize)>,
    /// How many suspects at most.
    pub suspects: usize,
}

impl ClaimRequest {
    /// Returns how many of a queue's jobs are for free slots: the first ones of the answer. The others are claimed
    /// ahead, except those of [`Class::Suspect`] and [`Class::Lost`].
    pub fn free(&self, queue: &QueueName) -> usize {
        let of = |list: &[(QueueName, usize)]| {
            list.iter().find(|(name, _)| name == queue).map_or(0, |(_, count)| *count)
        };
        of(&self.queues).saturating_sub(of(&self.ahead))
    }

    /// Returns how many jobs with limits a queue gives at most: one per free slot, and one if no slot is free. A job that
    /// waits for a slot would keep its units idle. But a queue that is always busy must give some.
    pub fn limited(&self, queue: &QueueName) -> usize {
        self.free(queue).max(1)
    }

    /// Returns how many jobs of [`Class::Lost`] a queue gives at most: one per free slot, and one if no slot is free.
    /// Otherwise a queue that is always busy would never give any.
    pub fn lost(&self, queue: &QueueName) -> usize {
        self.free(queue).max(1)
    }
}

/// The jobs that a claim returned.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimedBatch {
    /// The store's time of the claim.
    pub now: Timestamp,
    /// The jobs, in the order in which the node should start them.
    pub jobs: Vec<Claimed>,
}

/// A job that a node now owns.
#[derive(Debug, Clone, PartialEq)]
pub struct Claimed {
    /// The claim.
    pub claim: Claim,
    /// Its kind.
    pub kind: Kind,
    /// Its queue.
    pub queue: QueueName,
    /// Its priority.
    pub priority: Priority,
    /// Its input as JSON. Above [`CLAIM_INPUT_BYTES`](crate::bounds::CLAIM_INPUT_BYTES) only the size, so that claims
    /// are bounded in bytes.
    pub input: Value,
    /// How often it has failed before.
    pub failures: u16,
    /// How many nodes were lost while they ran it, since it last made progress.
    pub crashes: u16,
    /// The longest of its claims that ended with the loss of a node, in microseconds, counted up to the rescue: what
    /// outlives this has outlived the crash.
    pub crashed_micros: i64,
    /// When it was enqueued.
    pub created_at: Timestamp,
    /// When it fails if it has not ended.
    pub deadline: Option<Timestamp>,
    /// Its options. If the job sets no backoff, this has its queue's.
    pub options: Options,
    /// Whether the node claimed it for a slot that is not free yet. If the node dies then, the job counts no crash.
    pub ahead: bool,
    /// Its records and messages. `None` if it has none, or if the store could not tell at once.
    pub journal: Option<Box<Journal>>,
}

impl Claimed {
    /// Returns whether the job is a suspect. A node runs one suspect at a time.
    pub fn is_suspect(&self) -> bool {
        self.crashes >= crate::bounds::SUSPECT_CRASHES
    }
}

/// Why a job waits in `ready`. Nodes claim lower classes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Class {
    /// It was running when at least two nodes were lost.
    Suspect = 0,
    /// Its node was lost. Nodes claim it for a free slot and not ahead: if the next node is lost too, the job may be
    /// the cause.
    Lost = 1,
    /// It was claimed before, and released or woken.
    Returned = 2,
    /// It became due in the ordinary way.
    Fresh = 3,
}

/// The order of claims within a line: class first, then priority. One number, so that one index serves both.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Level(u8);

impl Level {
    /// How many levels there are: codes are below this.
    pub const COUNT: u8 = 64;
    /// The bits of a code that are the priority; the bits above them are the class.
    pub const PRIORITY_BITS: u8 = 0xF;

    /// Creates the level of a class and a priority.
    pub const fn new(class: Class, priority: Priority) -> Self {
        // Four bits hold ten priorities.
        Level((class as u8) << 4 | priority.get())
    }

    /// Returns the number that stores keep for it.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Returns the level of a number; `None` if there is none.
    pub fn from_code(code: u8) -> Option<Self> {
        Priority::new(code & 0xF).ok().filter(|_| code < Level::COUNT).map(|_| Level(code))
    }

    /// Returns whether nodes claim jobs of this level for free slots only.
    pub fn is_for_free_slots(self) -> bool {
        matches!(self.class(), Class::Suspect | Class::Lost)
    }

    /// Its class.
    pub fn class(self) -> Class {
        match self.0 >> 4 {
            0 => Class::Suspect,
            1 => Class::Lost,
            2 => Class::Returned,
            _ => Class::Fresh,
        }
    }

    /// Its priority.
    pub fn priority(self) -> Priority {
        Priority::new(self.0 & 0xF).unwrap_or_default()
    }
}

impl fmt::Debug for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}/{}", self.class(), self.priority())
    }
}

/// The end of one claim.
#[derive(Debug, Clone, PartialEq)]
pub struct Finish {
    /// The claim.
    pub claim: Claim,
    /// The outcome of its attempt.
    pub outcome: Outcome,
}

/// The answer of a store to a [`Finish`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finished {
    /// It is stored.
    Applied,
    /// The claim was not the node's any more; nothing was changed.
    LeaseLost,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds;
    use crate::id::{JobId, Row};

    #[test]
    fn a_claimed_job_is_a_suspect_from_the_bound_on() {
        let crashed = |crashes| Claimed {
            ahead: false,
            claim: Claim { row: Row(1), id: JobId::from_bytes([7; 16]), number: 1 },
            kind: Kind::new("k").expect("a kind"),
            queue: QueueName::new("q").expect("a queue"),
            priority: Priority::default(),
            input: Value::Here(Vec::new()),
            failures: 9,
            crashes,
            crashed_micros: 0,
            created_at: Timestamp::EPOCH,
            deadline: None,
            options: Options::default(),
            journal: None,
        };
        let suspect = |crashes| crashed(crashes).is_suspect();
        assert!(!suspect(0) && !suspect(bounds::SUSPECT_CRASHES - 1));
        assert!(suspect(bounds::SUSPECT_CRASHES) && suspect(bounds::SUSPECT_CRASHES + 1));
    }

    #[test]
    fn a_level_is_shown_by_its_parts() {
        let level = Level::new(Class::Returned, Priority::HIGHEST);
        assert_eq!(format!("{level:?}"), "Returned/0");
    }

    #[test]
    fn levels_sort_by_class_then_priority_and_round_trip() {
        let mut levels = Vec::new();
        for class in [Class::Suspect, Class::Lost, Class::Returned, Class::Fresh] {
            for priority in 0..=9 {
                let level = Level::new(class, Priority::new(priority).expect("a priority"));
                assert_eq!((level.class(), level.priority().get()), (class, priority));
                assert_eq!(Level::from_code(level.code()), Some(level));
                levels.push(level);
            }
        }
        assert!(levels.is_sorted());
        assert_eq!((0..=u8::MAX).filter(|&code| Level::from_code(code).is_some()).count(), levels.len());
    }
}
