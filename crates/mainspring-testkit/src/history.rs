//! Histories: what a rig saw, in order, in one form for all rigs.
//!
//! Callers note what they asked for and what they were told; handlers note that they began and ended; a
//! [`WatchedStore`](crate::watch::WatchedStore) store notes what it said to its node; whoever breaks things notes what he broke.
//! The [`checker`](crate::checker) reads nothing else, besides what the store holds in the end.
//!
//! # Invariants
//! - What is asked is noted before it is sent, what is told after it came: between the two, anything may have happened.
//! - An event is one line of JSON, so that it can be written by one `write` call and read by people.

mod schedules;

use std::time::Duration;

use mainspring_core::id::{JobId, NodeNo};
use mainspring_core::job::{Outcome, Status, Unique};
use mainspring_core::journal::{Entry, EntryKind, Message, MessageBody, Signalled, Value, Writes, Written};
use mainspring_core::name::{Key, QueueName};
use mainspring_core::store::{Abilities, Finished, Receipt};
use mainspring_core::time::Timestamp;
use serde::{Deserialize, Serialize};

pub use schedules::{LookedSchedule, ScheduleChange, ScheduledJob};

/// Somebody who takes part: the number of a process, or of one life of a simulated node.
pub type Actor = u32;

/// Takes events down. Shared by everybody who sees something.
pub trait Recorder: Send + Sync + 'static {
    /// Notes a fact, as seen now by this actor.
    fn note(&self, by: Actor, fact: Fact);
}

/// Something that was seen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// When, by the rig's own clock.
    pub at: Timestamp,
    /// By whom.
    pub by: Actor,
    /// What.
    #[serde(flatten)]
    pub fact: Fact,
}

/// What can be seen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Fact {
    // Producers.
    /// An enqueue is about to be sent.
    Asked {
        /// The job.
        id: JobId,
        /// Its unique key, if it has one.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        unique: Option<Unique>,
        /// How long it is to wait, in microseconds.
        #[serde(skip_serializing_if = "is_zero", default)]
        delay: u64,
    },
    /// What is asked for next must have ended in time.
    Bounded {
        /// The job.
        id: JobId,
        /// How long after it is stored, in microseconds.
        deadline: u64,
    },
    /// The enqueue was acknowledged.
    Acknowledged {
        /// The job that was asked for.
        id: JobId,
        /// What became of it.
        told: EnqueueAnswer,
    },
    /// The enqueue was refused: nothing was stored by it.
    Refused {
        /// The job.
        id: JobId,
    },
    /// The caller does not know what became of the enqueue.
    Unknown {
        /// The job.
        id: JobId,
    },

    /// An id was asked for once more, and answered. What it is asked for is noted apart from what was asked for first.
    Reused {
        /// The job that has the id.
        id: JobId,
        /// Whether for the same kind and input.
        same: bool,
        /// Whether the caller was told that it is stored; or else that it belongs to another job.
        stored: bool,
    },

    /// A caller begins to wait for the end of a job.
    Awaits {
        /// The job.
        id: JobId,
    },
    /// He waits no longer.
    Answered {
        /// The job.
        id: JobId,
        /// What he was told that it is; nothing if he was told something else.
        status: Option<Status>,
    },

    // Operators.
    /// Claims from a queue are stopped, or go on.
    Paused {
        /// The queue.
        queue: QueueName,
        /// Whether they are stopped.
        paused: bool,
    },
    /// A verb is about to be sent.
    Ordered {
        /// The job.
        id: JobId,
        /// The verb.
        verb: String,
    },
    /// The verb was applied.
    Obeyed {
        /// The job.
        id: JobId,
        /// The verb.
        verb: String,
        /// What it was before.
        from: Status,
        /// What it is now; nothing if it was deleted.
        to: Option<Status>,
    },

    /// A verb that was applied has taken back what the job had recorded from a step on.
    Rewound {
        /// The job.
        id: JobId,
        /// The step.
        from: Key,
        /// The number of its last claim before that.
        claim: u32,
    },
    /// What is asked for next shares these records with another job.
    Shares {
        /// The job.
        id: JobId,
        /// What is stored with it.
        writes: JournalWrites,
    },

    // Handlers.
    /// A handler began.
    Began {
        /// The job.
        id: JobId,
        /// The number of the claim.
        claim: u32,
    },
    /// A handler came to its end, and its effect is there.
    Ended {
        /// The job.
        id: JobId,
        /// The number of the claim.
        claim: u32,
    },

    /// A handler is over, however it ended: its slot is free.
    Stopped {
        /// The job.
        id: JobId,
        /// The number of the claim.
        claim: u32,
    },

    // Nodes, as the store sees them.
    /// A node has joined, or joined anew.
    Joined {
        /// Its number.
        node: NodeNo,
        /// Its lease, in microseconds.
        lease: u64,
    },
    /// What the node that has just joined can do.
    Abilities {
        /// Its number.
        node: NodeNo,
        /// Its queues, with its slots for each.
        queues: Vec<(QueueName, u32)>,
        /// What it can run.
        abilities: Abilities,
    },
    /// A node has left in good order.
    Left {
        /// Its number.
        node: NodeNo,
    },
    /// A node has given back claims that it did not know of.
    Disowned {
        /// Its number.
        node: NodeNo,
    },
    /// A rescuer has expired these nodes.
    Expired {
        /// Their numbers.
        nodes: Vec<NodeNo>,
    },
    /// A job was claimed.
    Claimed {
        /// By which node.
        node: NodeNo,
        /// The job.
        id: JobId,
        /// The number of the claim.
        claim: u32,
        /// How often the job has crashed so far.
        crashes: u16,
        /// How long its longest crashed claim took, in microseconds.
        crashed: u64,
        /// Whether it was claimed for a slot that was not free.
        ahead: bool,
        /// The store's time.
        now: Timestamp,
    },
    /// A claim is about to be ended.
    Finishing {
        /// By which node.
        node: NodeNo,
        /// The job.
        id: JobId,
        /// The number of the claim.
        claim: u32,
        /// How.
        how: EndKind,
    },
    /// The end of that claim asks for another, not before some time has passed.
    Deferred {
        /// The job.
        id: JobId,
        /// The number of the claim.
        claim: u32,
        /// How long, in microseconds.
        after: u64,
    },
    /// The store has answered to that.
    Finished {
        /// By which node.
        node: NodeNo,
        /// The job.
        id: JobId,
        /// The number of the claim.
        claim: u32,
        /// How.
        how: EndKind,
        /// Whether it was applied, or refused as stale.
        applied: bool,
    },

    // Workflows.
    /// Something is about to be recorded.
    Recording {
        /// By which node.
        node: NodeNo,
        /// The job.
        id: JobId,
        /// The number of the claim.
        claim: u32,
    },
    /// The store has answered to that.
    Recorded {
        /// By which node.
        node: NodeNo,
        /// The job.
        id: JobId,
        /// The number of the claim.
        claim: u32,
        /// Whether it was stored, or refused as stale.
        stored: bool,
        /// What was recorded.
        writes: JournalWrites,
    },
    /// A job starts with a record of another.
    Belongs {
        /// The child.
        id: JobId,
        /// Its parent.
        parent: JobId,
        /// Whether it goes on when its parent has ended.
        abandoned: bool,
    },
    /// What the claim that is about to be ended by a suspension leaves behind.
    Suspending {
        /// The job.
        id: JobId,
        /// The number of the claim.
        claim: u32,
        /// Subjects that may wake it, and how many messages of each.
        waits: Vec<(String, u32)>,
        /// When it is woken at the latest.
        until: Option<Timestamp>,
        /// What is recorded with it.
        writes: JournalWrites,
    },
    /// What a claim was given of its job's past.
    Remembers {
        /// The job.
        id: JobId,
        /// The number of the claim.
        claim: u32,
        /// All records.
        entries: Vec<Line>,
        /// Unread messages.
        inbox: Vec<InboxMessage>,
        /// Whether there are more of these.
        more: bool,
    },
    /// What a look into the inbox gave.
    Delivered {
        /// The job.
        id: JobId,
        /// The number of the claim.
        claim: u32,
        /// Unread messages.
        inbox: Vec<InboxMessage>,
    },
    /// The store has answered to a signal.
    Signalled {
        /// The job.
        id: JobId,
        /// Its subject.
        subject: String,
        /// Its sender.
        sender: String,
        /// What became of it.
        answer: SignalAnswer,
    },
    /// An operator has dropped unread signals.
    Dropped {
        /// The job.
        id: JobId,
        /// Their subject.
        subject: String,
        /// Their sender; nobody if those of all senders were dropped.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        sender: Option<String>,
        /// How many there were.
        count: usize,
    },
    /// A wait of a handler failed, because a signal is not what it asks for.
    Unfit {
        /// The job.
        id: JobId,
        /// The claim under which the handler began.
        since: u32,
        /// The key of the wait.
        key: String,
    },
    /// The body of a step begins.
    Entered {
        /// The job.
        id: JobId,
        /// The number of the claim.
        claim: u32,
        /// The claim under which its handler began.
        since: u32,
        /// The key of the step.
        key: String,
        /// Whether it must not run twice.
        #[serde(skip_serializing_if = "std::ops::Not::not", default)]
        once: bool,
    },
    /// The body of a step came to its end, and its effect is there.
    Ran {
        /// The job.
        id: JobId,
        /// The number of the claim.
        claim: u32,
        /// The key of the step.
        key: String,
    },
    /// A handler goes on with a result.
    Saw {
        /// The job.
        id: JobId,
        /// The claim under which the handler began.
        since: u32,
        /// The key of the operation.
        key: String,
        /// A number that stands for the result, if that is easily told.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        digest: Option<u64>,
        /// Whether it is recorded only when the next body is to begin.
        #[serde(skip_serializing_if = "std::ops::Not::not", default)]
        rides: bool,
    },
    /// What a workflow may return, whatever happens to its nodes.
    Expects {
        /// The job.
        id: JobId,
        /// Numbers that stand for these results.
        results: Vec<u64>,
    },
    /// What a workflow says until it succeeds, whatever happens to its nodes.
    Says {
        /// The job.
        id: JobId,
        /// All of it, in order.
        words: Vec<OutputFrame>,
    },
    /// A handler goes on with the way that one of several took.
    Decided {
        /// The job.
        id: JobId,
        /// The number of the claim, as far as the handler knows.
        claim: u32,
        /// The key of the race.
        key: String,
        /// A number that stands for the winner and its result.
        digest: u64,
    },
    /// From some time on the code of a workflow calls one of its steps otherwise.
    Renamed {
        /// The job.
        id: JobId,
        /// What it was called.
        from: String,
        /// What it is called.
        to: String,
        /// Whether the code says so.
        declared: bool,
    },
    /// Somebody came with a token.
    Redeemed {
        /// The job that it is of.
        id: JobId,
        /// The key of the step that made it.
        key: String,
        /// Whether he was told that it was good.
        good: bool,
    },
    /// What the claim that is about to be ended by success returns.
    Returns {
        /// The job.
        id: JobId,
        /// The number of the claim.
        claim: u32,
        /// A number that stands for the result.
        result: u64,
    },

    // Schedules.
    /// The store was asked which schedules are due.
    AskedWhatIsDue {
        /// The store's time.
        now: Timestamp,
    },
    /// A change of a schedule was accepted.
    Scheduled(ScheduleChange),
    /// What a schedule was when all that was due had had time enough.
    LookedAtSchedule(LookedSchedule),

    /// The row of a job was damaged.
    Damaged {
        /// The job.
        id: JobId,
        /// The number of its latest claim then.
        claim: u32,
    },
    /// It is about to be mended.
    Mended {
        /// The job.
        id: JobId,
    },
    /// What a job was when somebody looked at it: one that is about to be mended, or one that had time enough to end while
    /// others were damaged.
    Looked {
        /// The job.
        id: JobId,
        /// What it was.
        status: Status,
        /// The number of its latest claim.
        claim: u32,
        /// How many crashes were counted.
        crashes: u16,
    },
    /// Something went wrong, on purpose.
    Fault {
        /// What.
        kind: String,
        /// Whom it hit; nobody in particular if it hit all.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        on: Option<Actor>,
        /// When it was over, if that is known by now.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        until: Option<Timestamp>,
    },
    /// From here on nothing goes wrong on purpose, and all is to end well.
    Calm,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What a caller was told of an enqueue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnqueueAnswer {
    /// It is stored.
    Created,
    /// Its key is held by this job.
    Existing(JobId),
}

impl EnqueueAnswer {
    /// What a receipt tells; nothing if it says that nothing was stored.
    pub fn of(receipt: Receipt) -> Option<EnqueueAnswer> {
        match receipt {
            Receipt::Created | Receipt::Repeated => Some(EnqueueAnswer::Created),
            Receipt::Existing(id) => Some(EnqueueAnswer::Existing(id)),
            Receipt::Rejected(_) | Receipt::Contended | Receipt::Taken(_) => None,
        }
    }
}

/// What is written into a journal at once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalWrites {
    /// Entries.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub entries: Vec<Line>,
    /// Numbers of messages that have been read.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub read: Vec<i64>,
    /// What is removed: errors that are taken back, and what scopes recorded on their way.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub forget: Vec<Key>,
    /// Whether it is no progress of its job.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub idle: bool,
}

impl JournalWrites {
    /// What these writes write.
    pub fn of(writes: &Writes) -> Self {
        JournalWrites {
            entries: writes.entries.iter().map(Line::new).collect(),
            read: writes.read.clone(),
            forget: writes.forget.clone(),
            idle: writes.idle,
        }
    }
}

/// A frame of a job's output, without its words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputFrame {
    /// The step whose body says it; nothing if the handler itself does.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub step: Option<String>,
    /// A number that stands for it.
    pub digest: u64,
}

/// One record of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Its key.
    pub key: Key,
    /// What it is.
    pub kind: EntryKind,
    /// A number that stands for its value; nothing if the value was left where it is.
    pub digest: Option<u64>,
}

impl Line {
    /// A record as it is stored.
    pub fn new(entry: &Entry) -> Self {
        Line { key: entry.key.clone(), kind: entry.kind, digest: Some(digest(&entry.value)) }
    }

    /// A record as a claim is given it.
    pub fn old(entry: &Written) -> Self {
        let digest = match &entry.value {
            Value::Here(value) => Some(digest(value)),
            Value::There(_) => None,
        };
        Line { key: entry.key.clone(), kind: entry.kind, digest }
    }
}

/// A message in an inbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InboxMessage {
    /// The store's number for it.
    pub no: i64,
    /// What it is about.
    pub subject: String,
    /// Who sent it; nobody if it is the end of a child.
    pub sender: String,
}

impl InboxMessage {
    /// A message without its words.
    pub fn of(message: &Message) -> Self {
        let Message { no, body, .. } = message;
        let sender = match body {
            MessageBody::Signal { sender, .. } => sender.clone(),
            MessageBody::Ended { .. } => String::new(),
        };
        InboxMessage { no: *no, subject: body.subject().to_string(), sender }
    }
}

/// What became of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalAnswer {
    /// It is stored.
    Stored,
    /// It was stored before.
    Repeated,
    /// It was not stored.
    Refused,
}

impl SignalAnswer {
    /// What a store's answer says.
    pub fn of(answer: Signalled) -> Self {
        match answer {
            Signalled::Stored => SignalAnswer::Stored,
            Signalled::Repeated => SignalAnswer::Repeated,
            Signalled::NotFound | Signalled::Ended(_) | Signalled::Full => SignalAnswer::Refused,
        }
    }
}

/// A number that stands for a value: FNV-1a, the same in every process.
pub fn digest(value: &[u8]) -> u64 {
    value
        .iter()
        .fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3))
}

/// How a claim is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndKind {
    /// The job succeeded.
    Succeed,
    /// It runs again; counts a failure.
    Retry,
    /// It failed for good; counts a failure.
    Fail,
    /// It runs again.
    Snooze,
    /// It goes back.
    Release,
    /// It is cancelled.
    Cancel,
    /// It is set aside until something happens.
    Suspend,
}

impl EndKind {
    /// How an outcome ends a claim.
    pub fn of(outcome: &Outcome) -> EndKind {
        match outcome {
            Outcome::Succeed { .. } => EndKind::Succeed,
            Outcome::Retry { .. } => EndKind::Retry,
            Outcome::Fail { .. } => EndKind::Fail,
            Outcome::Snooze { .. } => EndKind::Snooze,
            Outcome::Release => EndKind::Release,
            Outcome::Cancel { .. } => EndKind::Cancel,
            Outcome::Suspend(_) => EndKind::Suspend,
        }
    }

    /// Whether the job ends with it.
    pub fn ends(self) -> bool {
        matches!(self, EndKind::Succeed | EndKind::Fail | EndKind::Cancel)
    }

    /// Whether it counts as a failure.
    pub fn fails(self) -> bool {
        matches!(self, EndKind::Retry | EndKind::Fail)
    }
}

impl Fact {
    /// The fact of an answer to a finish.
    pub fn finished(node: NodeNo, id: JobId, claim: u32, how: EndKind, answer: Finished) -> Fact {
        Fact::Finished { node, id, claim, how, applied: answer == Finished::Applied }
    }

    /// A fault that hits one actor, or all, until some time.
    pub fn fault(kind: impl Into<String>, on: Option<Actor>, until: Option<Timestamp>) -> Fact {
        Fact::Fault { kind: kind.into(), on, until }
    }

    /// The job that a fact is about.
    pub fn job(&self) -> Option<JobId> {
        match self {
            Fact::Asked { id, .. }
            | Fact::Bounded { id, .. }
            | Fact::Reused { id, .. }
            | Fact::Awaits { id }
            | Fact::Answered { id, .. }
            | Fact::Deferred { id, .. }
            | Fact::Acknowledged { id, .. }
            | Fact::Refused { id }
            | Fact::Unknown { id }
            | Fact::Ordered { id, .. }
            | Fact::Obeyed { id, .. }
            | Fact::Rewound { id, .. }
            | Fact::Shares { id, .. }
            | Fact::Began { id, .. }
            | Fact::Ended { id, .. }
            | Fact::Stopped { id, .. }
            | Fact::Claimed { id, .. }
            | Fact::Recording { id, .. }
            | Fact::Recorded { id, .. }
            | Fact::Belongs { id, .. }
            | Fact::Suspending { id, .. }
            | Fact::Remembers { id, .. }
            | Fact::Delivered { id, .. }
            | Fact::Signalled { id, .. }
            | Fact::Dropped { id, .. }
            | Fact::Unfit { id, .. }
            | Fact::Entered { id, .. }
            | Fact::Ran { id, .. }
            | Fact::Saw { id, .. }
            | Fact::Expects { id, .. }
            | Fact::Says { id, .. }
            | Fact::Decided { id, .. }
            | Fact::Renamed { id, .. }
            | Fact::Redeemed { id, .. }
            | Fact::Returns { id, .. }
            | Fact::Damaged { id, .. }
            | Fact::Mended { id }
            | Fact::Looked { id, .. }
            | Fact::Finishing { id, .. }
            | Fact::Finished { id, .. } => Some(*id),
            Fact::Joined { .. }
            | Fact::Abilities { .. }
            | Fact::Paused { .. }
            | Fact::Left { .. }
            | Fact::Disowned { .. }
            | Fact::Expired { .. }
            | Fact::AskedWhatIsDue { .. }
            | Fact::Scheduled(_)
            | Fact::LookedAtSchedule(_)
            | Fact::Fault { .. }
            | Fact::Calm => None,
        }
    }
}

/// Microseconds of a duration, as facts carry them.
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
