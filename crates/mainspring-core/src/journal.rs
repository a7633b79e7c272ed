//! The journal: what makes a job a workflow.
//!
//! A handler runs from its top each time; what it has *recorded* is not done again. An [`Entry`] is one recorded fact
//! under a [`Key`] that the handler's code names. What comes from outside (signals, the ends of children) is a
//! [`Message`] in the job's inbox until the job records that it has read it. A job that waits is suspended with the
//! [`Wait`]s that may wake it.
//!
//! # Invariants
//! - An entry is written by the owner of a claim only, and never changes. Its owner may remove it: an error whose
//!   operation is to run again, or what a scope recorded on the way to its result.
//! - A message is stored once per sender and subject, and read once.
//! - A suspended job whose wait is over does not exist: whoever comes second, the message or the suspension, sees the
//!   other and wakes the job.

mod cut;

pub use cut::{Ended, Line, Rewind, TURN, Unread, cut, operation, rewind};

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::bounds;
use crate::id::{Claim, JobId};
use crate::job::{Differs, New, Reason, Status};
use crate::name::{Key, SignalName};
use crate::output::Push;
use crate::time::Timestamp;
use crate::{Error, Result};

/// The kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum EntryKind {
    /// The result of an operation.
    Value = 0,
    /// An operation failed, and the handler went on.
    Error = 1,
    /// An operation that must not run twice has begun.
    Begun = 2,
    /// A wait that ends at this time was begun.
    Until = 3,
    /// A child was started; the value is its id.
    Child = 4,
    /// A wait for signals is over; the value is the list of their senders and bodies, empty if the time was up.
    Received = 5,
}

impl EntryKind {
    /// All of them, in the order of their codes.
    pub const ALL: &'static [EntryKind] = &[
        EntryKind::Value,
        EntryKind::Error,
        EntryKind::Begun,
        EntryKind::Until,
        EntryKind::Child,
        EntryKind::Received,
    ];

    /// The number that stands for it in a store. Never changes.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The one that a number stands for.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|one| one.code() == code)
    }
}

/// Something to be recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Which operation of the handler it belongs to.
    pub key: Key,
    /// The kind of the entry.
    pub kind: EntryKind,
    /// Whether the operation overlapped another one of its scope, so that a repeat of its name says nothing.
    pub overlapped: bool,
    /// How long its body ran, as the engine measured it, if it has one. Stores keep whole
    /// [milliseconds](crate::time::millis).
    pub took: Option<Duration>,
    /// As JSON.
    pub value: Vec<u8>,
}

/// A record of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The key of its operation.
    pub key: Key,
    /// Its kind.
    pub kind: EntryKind,
    /// Whether the operation ran beside another one of its scope.
    pub overlapped: bool,
    /// How long its body ran, in whole milliseconds; `None` if it has none.
    pub took: Option<Duration>,
    /// The claim that recorded it.
    pub claim: u32,
    /// When it was recorded.
    pub at: Timestamp,
    /// The value, or its size.
    pub value: Value,
}

/// A recorded value or an input, or only its size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// The value.
    Here(Vec<u8>),
    /// Its size in bytes. [`Journals::values`](crate::store::Journals::values) reads it, or for an input
    /// [`Nodes::inputs`](crate::store::Nodes::inputs).
    There(usize),
}

/// The subject of a message.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// A signal of this name.
    Signal(SignalName),
    /// The end of this child.
    Child(JobId),
}

/// As stores keep it: `s:name` or `c:id`.
impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Signal(name) => write!(f, "s:{name}"),
            Subject::Child(id) => write!(f, "c:{id}"),
        }
    }
}

impl FromStr for Subject {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_at_checked(2) {
            Some(("s:", name)) => SignalName::new(name).map(Subject::Signal),
            Some(("c:", id)) => id.parse().map(Subject::Child),
            _ => Err(Error::Invalid { what: "subject", why: format!("{text:?} is none") }),
        }
    }
}

/// A wait of a suspended job: for a number of unread messages of one subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// The subject.
    pub subject: Subject,
    /// The number of messages; one at least.
    pub need: u32,
}

/// A message in a job's inbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The store's number for it; later ones are higher.
    pub no: i64,
    /// When it came.
    pub at: Timestamp,
    /// Its content.
    pub body: MessageBody,
}

/// The content of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageBody {
    /// Somebody sent a signal.
    Signal {
        /// Its name.
        name: SignalName,
        /// Who sent it, or what the engine called that.
        sender: String,
        /// As JSON.
        body: Vec<u8>,
    },
    /// A child ended.
    Ended {
        /// The child.
        child: JobId,
        /// How it ended.
        status: Status,
        /// What its handler returned, as JSON.
        result: Option<Vec<u8>>,
        /// The reason that was given, or the last error.
        message: Option<String>,
    },
}

impl MessageBody {
    /// What it is about.
    pub fn subject(&self) -> Subject {
        match self {
            MessageBody::Signal { name, .. } => Subject::Signal(name.clone()),
            MessageBody::Ended { child, .. } => Subject::Child(*child),
        }
    }

    /// Whom a store knows it by, beside its subject.
    pub fn sender(&self) -> &str {
        match self {
            MessageBody::Signal { sender, .. } => sender,
            MessageBody::Ended { .. } => "",
        }
    }

    /// Bytes of payload.
    pub fn bytes(&self) -> usize {
        match self {
            MessageBody::Signal { body, .. } => body.len(),
            MessageBody::Ended { result, message, .. } => {
                result.as_ref().map_or(0, Vec::len) + message.as_ref().map_or(0, String::len)
            }
        }
    }
}

/// The part of a job's past that comes with its claim.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Journal {
    /// All entries, in the order in which they were recorded. Values beyond a budget are left where they are.
    pub entries: Vec<Written>,
    /// The first unread messages, in the order of their numbers. What comes with all jobs of a claim together is within
    /// [`bounds::BATCH_BYTES`]: also a first message is left where it is if it does not fit.
    pub inbox: Inbox,
}

/// Unread messages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inbox {
    /// The first of them, in the order of their numbers.
    pub messages: Vec<Message>,
    /// Whether there are more.
    pub more: bool,
}

/// One write into a journal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Writes {
    /// Entries, in their order. One whose key is there already changes nothing.
    pub entries: Vec<Entry>,
    /// Messages that have been read.
    pub read: Vec<i64>,
    /// Entries that are removed, before those above are written.
    pub forget: Vec<Key>,
    /// The frames of output, in order. A frame that the store has under its claim and number changes nothing.
    pub output: Vec<Push>,
    /// Whether this is no progress of the job: crashes are not reset.
    pub idle: bool,
}

impl Writes {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.read.is_empty() && self.forget.is_empty() && self.output.is_empty()
    }

    /// Adds what is written after it.
    pub fn append(&mut self, mut later: Writes) {
        self.entries.append(&mut later.entries);
        self.read.append(&mut later.read);
        self.forget.append(&mut later.forget);
        self.output.append(&mut later.output);
        self.idle &= later.idle;
    }

    /// Bytes of payload.
    pub fn bytes(&self) -> usize {
        let output: usize = self.output.iter().map(Push::bytes).sum();
        output + self.entries.iter().map(|entry| entry.value.len()).sum::<usize>()
    }
}

/// A request to record, by the owner of a claim.
#[derive(Debug, Clone, PartialEq)]
pub struct Recording {
    /// The claim.
    pub claim: Claim,
    /// What is recorded.
    pub writes: Writes,
    /// Children that start with it. Their ids are among the entries' values.
    pub children: Vec<Child>,
}

impl Recording {
    /// The key of the entry that says that this child was started; `None` if there is none.
    pub fn start_of(&self, child: JobId) -> Option<&Key> {
        let starts = |entry: &&Entry| {
            entry.kind == EntryKind::Child
                && serde_json::from_slice::<JobId>(&entry.value).is_ok_and(|id| id == child)
        };
        self.writes.entries.iter().find(starts).map(|entry| &entry.key)
    }
}

/// A job that starts with a record of another, and belongs to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Child {
    /// The job. It has no unique key: the record makes it unique.
    pub job: New,
    /// What happens to it when its parent ends first.
    pub on_close: OnClose,
}

/// What happens to a child when its parent ends first, or is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum OnClose {
    /// It is cancelled.
    #[default]
    Cancel = 0,
    /// It goes on by itself.
    Abandon = 1,
}

/// The answer of a store to a [`Recording`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// It is stored.
    Stored,
    /// The claim was not the node's any more; nothing was changed.
    LeaseLost,
    /// The id of a child belongs to another job, or to a child of another entry; nothing was changed.
    Taken {
        /// The id.
        child: JobId,
        /// In what the job that has it differs.
        differs: Differs,
    },
}

/// Why and how a claim ends without an end of its job.
#[derive(Debug, Clone, PartialEq)]
pub struct Suspension {
    /// The first reason, for people.
    pub reason: Reason,
    /// What may wake it.
    pub waits: Vec<Wait>,
    /// When it is woken at the latest; `None`: not by time.
    pub until: Option<Timestamp>,
    /// Whether it keeps the units that its claim took of the job's limits, until it is claimed again or ends. They are given
    /// back otherwise.
    pub keep: bool,
    /// What is recorded with it.
    pub writes: Writes,
    /// What there is to say to people, if anything. Bounded by [`bounds::ERROR_BYTES`].
    pub note: Option<String>,
}

/// A signal to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signal {
    /// For this job.
    pub job: JobId,
    /// Its name.
    pub name: SignalName,
    /// Who sends it: a second signal of one name and sender is the first one again.
    pub sender: String,
    /// As JSON.
    pub body: Vec<u8>,
}

impl Signal {
    /// Checks every bound. Called before it reaches a store.
    ///
    /// # Errors
    /// [`Error::TooLarge`] or [`Error::Invalid`].
    pub fn check(&self) -> Result<()> {
        let at_most = |what, size, limit| {
            if size > limit { Err(Error::TooLarge { what, size, limit }) } else { Ok(()) }
        };
        at_most("signal", self.body.len(), bounds::SIGNAL_BYTES)?;
        at_most("sender", self.sender.len(), bounds::KEY_BYTES)?;
        if self.sender.is_empty() || self.sender.contains('\0') {
            return Err(Error::Invalid { what: "sender", why: "empty, or with a NUL".into() });
        }
        Ok(())
    }
}

/// The answer of a store to a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signalled {
    /// It is stored.
    Stored,
    /// It was stored before: the same name and sender.
    Repeated,
    /// There is no such job; nothing was stored.
    NotFound,
    /// The job has ended; nothing was stored.
    Ended(Status),
    /// The job has [`bounds::INBOX`] unread signals; nothing was stored.
    Full,
}

/// The history of a job, for people.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Timeline {
    /// The first records, in their order. Long values have only their size.
    pub entries: Vec<Written>,
    /// Whether there are more than [`bounds::TIMELINE`].
    pub more: bool,
    /// The first unread messages.
    pub inbox: Inbox,
    /// Its children that the store still has, in the order of their starts.
    pub children: Vec<ChildSummary>,
}

/// A child, as its parent's timeline shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildSummary {
    /// The child.
    pub id: JobId,
    /// Its state.
    pub status: Status,
    /// What happens to it when its parent ends first.
    pub on_close: OnClose,
}

/// The state of a job for a caller that waits for its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobEnd {
    /// There is no such job (any more).
    Missing,
    /// It has not ended.
    Open,
    /// It has.
    Ended {
        /// How.
        status: Status,
        /// What its handler returned, as JSON.
        result: Option<Vec<u8>>,
        /// The reason that was given, or the last error.
        message: Option<String>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::State;

    #[test]
    fn topics_round_trip_and_never_meet() {
        let id = JobId::from_bytes([7; 16]);
        let signal = |name: &str| Subject::Signal(SignalName::new(name).expect("a name"));
        for subject in [signal("approved"), signal(&format!("c:{id}")), signal("s:s:"), Subject::Child(id)] {
            assert_eq!(subject.to_string().parse::<Subject>().expect("a subject"), subject);
        }
        assert_ne!(signal(&format!("c:{id}")).to_string(), Subject::Child(id).to_string());
        for bad in ["", "s", "s:", "c:", "c:x", "x:y", "é:"] {
            assert!(bad.parse::<Subject>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn codes_round_trip() {
        for &kind in EntryKind::ALL {
            assert_eq!(EntryKind::from_code(kind.code()), Some(kind));
        }
        assert_eq!(EntryKind::from_code(6), None);
    }

    #[test]
    fn a_signal_is_known_by_its_sender_and_the_end_of_a_child_by_the_child_alone() {
        let name = SignalName::new("go").expect("a name");
        let signal = MessageBody::Signal { name: name.clone(), sender: "ada".into(), body: Vec::new() };
        assert_eq!((signal.subject(), signal.sender()), (Subject::Signal(name), "ada"));
        let child = JobId::from_bytes([7; 16]);
        let status = Status::plain(State::Succeeded);
        let ended = MessageBody::Ended { child, status, result: None, message: Some("ada".into()) };
        assert_eq!((ended.subject(), ended.sender()), (Subject::Child(child), ""));
    }

    fn entry(key: &str, bytes: usize) -> Entry {
        Entry {
            key: Key::new(key).expect("a key"),
            kind: EntryKind::Value,
            overlapped: false,
            value: vec![b' '; bytes],
            took: None,
        }
    }

    fn push(number: u32, bytes: usize) -> Push {
        Push { number, step: None, body: Some(vec![b' '; bytes]) }
    }

    #[test]
    fn there_is_something_to_write_if_any_part_of_it_has_something() {
        assert!(Writes::default().is_empty());
        assert!(Writes { idle: true, ..Writes::default() }.is_empty());
        let key = Key::new("a").expect("a key");
        for writes in [
            Writes { entries: vec![entry("a", 0)], ..Writes::default() },
            Writes { read: vec![7], ..Writes::default() },
            Writes { forget: vec![key], ..Writes::default() },
            Writes { output: vec![push(1, 0)], ..Writes::default() },
        ] {
            assert!(!writes.is_empty(), "{writes:?}");
        }
    }

    #[test]
    fn what_is_written_later_comes_after_and_is_weighed_with_the_rest() {
        let key = |key: &str| Key::new(key).expect("a key");
        let writes = |name: &str, number, idle| Writes {
            entries: vec![entry(name, 3)],
            read: vec![i64::from(number)],
            forget: vec![key(name)],
            output: vec![push(number, 5)],
            idle,
        };
        let mut both = writes("a", 1, true);
        both.append(writes("b", 2, true));
        assert_eq!(both.entries, [entry("a", 3), entry("b", 3)]);
        assert_eq!((&both.read, &both.forget), (&vec![1, 2], &vec![key("a"), key("b")]));
        assert_eq!(both.output, [push(1, 5), push(2, 5)]);
        assert_eq!(both.bytes(), 16);
        // It is idle only if all of it is.
        let idle = |first, later| {
            let mut both = writes("a", 1, first);
            both.append(writes("b", 2, later));
            both.idle
        };
        assert_eq!((idle(true, true), idle(true, false), idle(false, true)), (true, false, false));
    }

    #[test]
    fn signals_are_bounded() {
        let signal = |sender: &str, bytes| Signal {
            job: JobId::from_bytes([7; 16]),
            name: SignalName::new("go").expect("a name"),
            sender: sender.to_owned(),
            body: vec![b' '; bytes],
        };
        assert!(signal("a", bounds::SIGNAL_BYTES).check().is_ok());
        assert!(matches!(signal("a", bounds::SIGNAL_BYTES + 1).check(), Err(Error::TooLarge { .. })));
        assert!(signal(&"a".repeat(bounds::KEY_BYTES), 0).check().is_ok());
        assert!(signal(&"a".repeat(bounds::KEY_BYTES + 1), 0).check().is_err());
        assert!(signal("", 0).check().is_err());
        assert!(signal("a\0", 0).check().is_err());
    }
}
