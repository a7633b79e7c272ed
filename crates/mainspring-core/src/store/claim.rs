//! Claiming and finishing: what goes over the seam.

use std::fmt;

use crate::id::{Claim, ClaimBatchNo, NodeNo};
use crate::job::{Options, Outcome, Priority};
use crate::journal::{Journal, Value};
use crate::name::{Kind, QueueName};
use crate::time::Timestamp;

/// A request for jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRequest {
    /// The node that asks.
    pub node: NodeNo,
    /// The number of this claim batch: one higher than the last, or the same for a repeat, which may come after later ones.
    pub batch: ClaimBatchNo,
    /// How many jobs of each queue, in the order in which they are to be served.
    pub queues: Vec<(QueueName, usize)>,
    /// How many of a queue's jobs are ahead: for slots that are not free yet. None of a queue that is not named.
    pub ahead: Vec<(QueueName, usize)>,
    /// How many suspects at most.
    pub suspects: usize,
}

impl ClaimRequest {
    /// How many of a queue's jobs are for slots that are free: the first ones of the answer. All others are claimed ahead,
    /// except those of [`Class::Suspect`] and [`Class::Lost`].
    pub fn free(&self, queue: &QueueName) -> usize {
        let of = |list: &[(QueueName, usize)]| {
            list.iter().find(|(name, _)| name == queue).map_or(0, |(_, count)| *count)
        };
        of(&self.queues).saturating_sub(of(&self.ahead))
    }

    /// How many jobs of [`Class::Lost`] a queue gives at most: one per free slot. Where none is free one of them waits for the
    /// next, or a queue that is always busy would never give any.
    pub fn lost(&self, queue: &QueueName) -> usize {
        self.free(queue).max(1)
    }
}

/// What a claim gave.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimedBatch {
    /// The store's time of the claim.
    pub now: Timestamp,
    /// The jobs, in the order in which they should be started.
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
    /// Its input as JSON; only its size if that is more than [`CLAIM_INPUT_BYTES`](crate::bounds::CLAIM_INPUT_BYTES), so that a
    /// claim and what is claimed ahead are bounded in bytes.
    pub input: Value,
    /// How often it has failed before.
    pub failures: u16,
    /// How many nodes were lost while running it, since it last made progress.
    pub crashes: u16,
    /// The longest of its claims that ended with the loss of a node, in microseconds, counted up to the rescue: what
    /// outlives this has outlived the crash.
    pub crashed_micros: i64,
    /// When it was enqueued.
    pub created_at: Timestamp,
    /// When it fails if it has not ended.
    pub deadline: Option<Timestamp>,
    /// What is rarely set; a backoff that the job does not set is its queue's.
    pub options: Options,
    /// Whether it was claimed for a slot that is not free yet: if its node dies, that is no crash of the job.
    pub ahead: bool,
    /// What it has recorded and been sent before; `None` if that is nothing, as far as the store could tell at once.
    pub journal: Option<Box<Journal>>,
}

impl Claimed {
    /// Whether the job is a suspect: a node runs one of these at a time.
    pub fn is_suspect(&self) -> bool {
        self.crashes >= crate::bounds::SUSPECT_CRASHES
    }
}

/// Why a job waits in `ready`. Lower classes are claimed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Class {
    /// It was running when nodes were lost, twice at least.
    Suspect = 0,
    /// Its node was lost. It is claimed for a free slot and not ahead: if that node is lost as well, the job may be why.
    Lost = 1,
    /// It was claimed before, and released or woken.
    Returned = 2,
    /// It has become due in the ordinary way.
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

    /// The level of a class and a priority.
    pub const fn new(class: Class, priority: Priority) -> Self {
        // Four bits hold ten priorities.
        Level((class as u8) << 4 | priority.get())
    }

    /// The number that stands for it in a store.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The level that a number stands for.
    pub fn from_code(code: u8) -> Option<Self> {
        Priority::new(code & 0xF).ok().filter(|_| code < Level::COUNT).map(|_| Level(code))
    }

    /// Whether jobs of this level are never claimed ahead.
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
    /// What came of it.
    pub outcome: Outcome,
}

/// What a store says to a [`Finish`].
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
