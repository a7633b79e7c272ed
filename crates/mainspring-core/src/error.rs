//! What the engine and the stores return when something does not work.
//!
//! A variant says what the caller can do about it. What *handlers* return is another type:
//! [`Failure`](crate::failure::Failure).

mod hint;

use std::error::Error as StdError;

use crate::bounds;
use crate::id::JobId;
use crate::job::{Differs, Reason, State, Status};
use crate::name::{Key, QueueName, ScheduleName};

/// A boxed cause.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// `Result` with the engine's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error and its sources, at most [`bounds::SOURCES`] of them: nothing keeps a chain from leading back to itself.
pub fn chain<'e>(error: &'e (dyn StdError + 'static)) -> impl Iterator<Item = &'e (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error: &&'e (dyn StdError + 'static)| (*error).source())
        .take(1 + bounds::SOURCES)
}

/// What the engine, its handles and its stores return.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The node or claim that wrote is not the owner any more; nothing was changed.
    #[error("lease lost: the job or the node has another owner now")]
    LeaseLost,
    /// There is no such job.
    #[error("job {0} not found")]
    NotFound(JobId),
    /// A unique key is held by another job, and the caller asked for a refusal.
    #[error("job {existing} holds the unique key")]
    Conflict {
        /// The job that holds the key.
        existing: JobId,
    },
    /// An id that was chosen for a job belongs to another one. Nothing was stored.
    #[error("job id {id} is taken: the stored job {differs}")]
    IdTaken {
        /// The id, and so the job that has it.
        id: JobId,
        /// In what that job differs from the one that was to be stored.
        differs: Differs,
    },
    /// A verb does not apply to a job in its present state.
    #[error("cannot {verb} job {id}: it {}", is(*.status))]
    Illegal {
        /// The job.
        id: JobId,
        /// What was asked for.
        verb: &'static str,
        /// What the job is.
        status: Status,
    },
    /// A queue that has jobs cannot be deleted. Nothing was changed.
    #[error("queue `{queue}` is not empty: {}", inside(*.waiting, *.running, *.ended))]
    QueueNotEmpty {
        /// The queue.
        queue: QueueName,
        /// Its jobs that wait: blocked, scheduled, ready or suspended.
        waiting: u64,
        /// Its jobs that run.
        running: u64,
        /// Its jobs that have ended and are still kept.
        ended: u64,
    },
    /// There is no such schedule.
    #[error("schedule `{0}` not found")]
    NoSchedule(ScheduleName),
    /// A schedule was to be run by hand, but the job of the fire before has not ended. Nothing was enqueued.
    #[error("schedule `{name}` does not allow overlap, and its job {job} has not ended")]
    ScheduleHeld {
        /// The schedule.
        name: ScheduleName,
        /// The job that has not ended.
        job: JobId,
    },
    /// A value is longer or larger than its bound. Nothing was stored.
    #[error("{what} is too large: {size} exceeds the bound of {limit}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size.
        size: usize,
        /// The bound.
        limit: usize,
    },
    /// A value is not acceptable. Nothing was stored.
    #[error("invalid {what}: {why}")]
    Invalid {
        /// What is wrong.
        what: &'static str,
        /// Why.
        why: String,
    },
    /// An input, result or recorded value could not be written as or read from JSON.
    #[error("cannot convert {what}")]
    Convert {
        /// What could not be converted.
        what: &'static str,
        /// The cause.
        #[source]
        source: BoxError,
    },
    /// The job whose result was asked for ended without one.
    #[error("job {id} {}", ended(*.status, .message))]
    Ended {
        /// The job.
        id: JobId,
        /// How it ended.
        status: Status,
        /// The last error or the reason that was given; empty if there is none.
        message: String,
    },
    /// The store cannot be reached or is too busy; nothing was changed. Try again.
    #[error("store unavailable: {why}")]
    Unavailable {
        /// What is in the way.
        why: String,
        /// The cause, if there is one.
        #[source]
        source: Option<BoxError>,
    },
    /// The disk is full; nothing was changed. Works again once there is room.
    #[error("disk full: nothing was stored")]
    DiskFull,
    /// A commit was sent and its answer lost: it may or may not have been applied. Repeating the call is safe.
    #[error("outcome unknown: the store may or may not have applied the commit")]
    OutcomeUnknown {
        /// The cause, if there is one.
        #[source]
        source: Option<BoxError>,
    },
    /// A large call was split, and a later part failed after earlier ones were stored.
    #[error("only the first {stored} jobs were stored")]
    Partial {
        /// How many of the jobs, from the first on, are stored.
        stored: usize,
        /// What happened to the rest.
        #[source]
        source: Box<Error>,
    },
    /// The store could not be opened as asked.
    #[error("cannot open {location}: {problem}")]
    Open {
        /// Which store.
        location: String,
        /// What is wrong with it.
        problem: OpenProblem,
        /// The cause, if there is one.
        #[source]
        source: Option<BoxError>,
    },
    /// The store holds something that must not be there. Needs a person.
    #[error("store corrupt: {why}")]
    Corrupt {
        /// What was found.
        why: String,
    },
    /// What the store writes may be lost, so it writes nothing more until it is reopened: a write to stable storage failed, or
    /// its file was removed or replaced.
    #[error("store poisoned: {why}")]
    Poisoned {
        /// What has happened, and what to do.
        why: String,
    },
    /// The engine or the store has been closed.
    #[error("the engine or its store is closed")]
    Closed,
    /// A caller's transaction is on another database than the engine's.
    #[error("the transaction is not on this engine's store: {why}")]
    ForeignTransaction {
        /// How that was noticed.
        why: String,
    },
    /// What was asked for cannot be done inside a caller's transaction.
    #[error("{what} is not possible inside a caller's transaction")]
    NotInTransaction {
        /// What was asked for.
        what: &'static str,
    },
    /// A step of a handler failed, now or when it was recorded.
    #[error("step `{key}` failed")]
    Step {
        /// Its key.
        key: Key,
        /// What went wrong.
        #[source]
        source: BoxError,
    },
    /// Two durable operations of one scope have the same key, or would have it or not depending on who is faster. Nothing
    /// was done.
    #[error(
        "ambiguous step name `{key}`: it was used concurrently, so replay could not tell the calls apart; add .key(…) or use a branch"
    )]
    DuplicateKey {
        /// The key.
        key: Key,
    },
    /// A durable operation was called inside the body of a step. Nothing was done.
    #[error("`{key}` was called inside the body of a step; call it from the handler itself")]
    Nested {
        /// The key of the operation.
        key: Key,
    },
    /// A durable operation was called from another task than its handler's. Nothing was done.
    #[error(
        "`{key}` was called from another task; call it from the handler's own task, with join! or a branch"
    )]
    Detached {
        /// The key of the operation.
        key: Key,
    },
    /// A step that must not run twice was begun before and never came to its end: nobody knows how far it got.
    #[error("`{key}` began in an earlier attempt and did not finish; it does not run twice")]
    Interrupted {
        /// Its key.
        key: Key,
    },
    /// A token for one signal is not good: it was used, has expired, or was never made. Nothing was sent.
    #[error("the token is invalid: it was used, has expired, or never existed")]
    Token,
    /// A node could not start as it was set up.
    #[error("cannot start the node: {why}")]
    NodeSetup {
        /// What is missing or wrong.
        why: String,
    },
}

/// Why a store could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenProblem {
    /// Nothing is there, and it was not to be created.
    #[error("it does not exist")]
    Missing,
    /// It can be read but not written.
    #[error("it is read-only")]
    ReadOnly,
    /// Another program keeps it locked.
    #[error("another program has it locked")]
    Locked,
    /// It is something else than a store of ours.
    #[error("it is not a Mainspring store")]
    NotAStore,
    /// A newer version has written it and says that this one must not touch it.
    #[error("it needs schema version {needed}, and this program knows only {known}")]
    TooNew {
        /// The lowest schema version that may touch it.
        needed: u32,
        /// The highest schema version that this program knows.
        known: u32,
    },
    /// A development build has made it, whose tables differ from those of this version.
    #[error("a development build made it: its tables are not those of schema version {version}")]
    DevelopmentBuild {
        /// The version that both call by the same number.
        version: u32,
    },
    /// It has not been migrated to the version that this program needs.
    #[error("{}", too_old(*.found, *.needed))]
    TooOld {
        /// The version found.
        found: u32,
        /// The version needed.
        needed: u32,
    },
    /// Its address is not understood.
    #[error("its address is invalid")]
    Address,
    /// The database library is older than what is known to be safe.
    #[error("the database library is version {found}; {needed} or later is needed")]
    Library {
        /// The version found.
        found: String,
        /// The version needed.
        needed: String,
    },
    /// The database is too old.
    #[error("the database is version {found}; {needed} or later is needed")]
    Database {
        /// The version found.
        found: String,
        /// The version needed.
        needed: String,
    },
    /// Nobody answers there.
    #[error("it cannot be reached")]
    Unreachable,
    /// The database does not let us in, or not do what we must.
    #[error("it refuses access")]
    Refused,
    /// The connection cannot be encrypted, or the other end not be trusted, as the address demands.
    #[error("the connection cannot be made secure")]
    Insecure,
    /// The database acknowledges before data is on stable storage, and nobody asked for that.
    #[error("it is not durable: `{setting}` is off")]
    NotDurable {
        /// The setting.
        setting: &'static str,
    },
    /// Something else, told by the cause.
    #[error("it failed to open")]
    Other,
}

impl Error {
    /// Whether the same call may work later without anybody changing anything.
    ///
    /// [`Error::OutcomeUnknown`] is retryable because ids and claim numbers make every call safe to repeat.
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::Unavailable { .. } | Error::DiskFull | Error::OutcomeUnknown { .. } => true,
            Error::Open { problem, .. } => matches!(problem, OpenProblem::Locked | OpenProblem::Unreachable),
            Error::LeaseLost
            | Error::NotFound(_)
            | Error::Conflict { .. }
            | Error::IdTaken { .. }
            | Error::Illegal { .. }
            | Error::QueueNotEmpty { .. }
            | Error::NoSchedule(_)
            | Error::ScheduleHeld { .. }
            | Error::TooLarge { .. }
            | Error::Invalid { .. }
            | Error::Convert { .. }
            | Error::Ended { .. }
            | Error::Corrupt { .. }
            | Error::Poisoned { .. }
            | Error::Closed
            | Error::ForeignTransaction { .. }
            | Error::NotInTransaction { .. }
            | Error::NodeSetup { .. }
            | Error::Step { .. }
            | Error::DuplicateKey { .. }
            | Error::Nested { .. }
            | Error::Detached { .. }
            | Error::Interrupted { .. }
            | Error::Token
            // Its first part would be stored twice.
            | Error::Partial { .. } => false,
        }
    }

    /// What is too large if a job has more unread signals than [`bounds::INBOX`].
    pub const INBOX: &'static str = "inbox";

    /// Whether what the caller gave is at fault: the same call fails again until the caller gives something else.
    pub fn is_bad_input(&self) -> bool {
        match self {
            Error::TooLarge { what, .. } => *what != Error::INBOX,
            Error::Invalid { .. } | Error::Convert { .. } | Error::NodeSetup { .. } => true,
            Error::Open { problem, .. } => *problem == OpenProblem::Address,
            _ => false,
        }
    }

    /// An [`Error::Unavailable`] without a cause.
    pub fn unavailable(why: impl Into<String>) -> Self {
        Error::Unavailable { why: why.into(), source: None }
    }
}

/// "2 jobs wait, 1 runs, 20 have ended"; what there is none of is left out.
fn inside(waiting: u64, running: u64, ended: u64) -> String {
    let counts = [(waiting, "waits", "wait"), (running, "runs", "run"), (ended, "has ended", "have ended")];
    let there = counts.iter().filter(|(n, ..)| *n > 0);
    let parts = there.enumerate().map(|(index, (n, one, many))| {
        let (noun, verb) = if *n == 1 { (" job", one) } else { (" jobs", many) };
        format!("{n}{} {verb}", if index == 0 { noun } else { "" })
    });
    parts.collect::<Vec<_>>().join(", ")
}

fn too_old(found: u32, needed: u32) -> String {
    match found {
        0 => "there is no store in it yet".into(),
        _ => format!("its schema is at version {found} and this program needs {needed}"),
    }
}

/// "failed (exhausted): no route to host".
fn ended(status: Status, message: &str) -> String {
    let mut text = match (status.state, status.reason) {
        (state, Some(Reason::Exhausted) | None) => state.to_string(),
        (state, Some(reason)) => format!("{state} ({reason})"),
    };
    if !message.is_empty() {
        text.push_str(": ");
        text.push_str(message);
    }
    text
}

/// What a job is, after "it".
fn is(status: Status) -> String {
    match status.state {
        State::Succeeded | State::Failed => format!("has {status}"),
        _ => format!("is {status}"),
    }
}

#[cfg(test)]
mod tests {
    use std::mem::discriminant;

    use super::*;
    use crate::job::State;

    const ID: JobId = JobId::from_bytes([7; 16]);

    fn open(problem: OpenProblem) -> Error {
        Error::Open { location: "here".into(), problem, source: None }
    }

    fn nightly() -> ScheduleName {
        ScheduleName::new("nightly").expect("a name")
    }

    fn full(waiting: u64, running: u64, ended: u64) -> Error {
        let queue = QueueName::new("mail").expect("a name");
        Error::QueueNotEmpty { queue, waiting, running, ended }
    }

    #[test]
    fn only_what_passes_by_itself_is_retryable() {
        let unknown = Error::OutcomeUnknown { source: None };
        for passing in [
            Error::unavailable("busy"),
            Error::DiskFull,
            unknown,
            open(OpenProblem::Locked),
            open(OpenProblem::Unreachable),
        ] {
            assert!(passing.is_retryable(), "{passing}");
        }
        let status = Status::plain(State::Running);
        let key = Key::new("charge").expect("a key");
        for lasting in [
            Error::Step { key: key.clone(), source: "declined".into() },
            Error::DuplicateKey { key: key.clone() },
            Error::Nested { key: key.clone() },
            Error::Detached { key: key.clone() },
            Error::Interrupted { key },
            Error::Token,
            Error::LeaseLost,
            Error::NotFound(ID),
            Error::Conflict { existing: ID },
            Error::IdTaken { id: ID, differs: Differs::Kind },
            Error::Illegal { id: ID, verb: "delete", status },
            full(1, 0, 0),
            Error::NoSchedule(nightly()),
            Error::ScheduleHeld { name: nightly(), job: ID },
            Error::TooLarge { what: "input", size: 2, limit: 1 },
            Error::Invalid { what: "kind", why: "empty".into() },
            Error::Convert { what: "input", source: "not JSON".into() },
            Error::Ended { id: ID, status, message: String::new() },
            Error::Corrupt { why: "9 is not a state".into() },
            Error::Poisoned { why: "replaced".into() },
            Error::Closed,
            Error::ForeignTransaction { why: "another store".into() },
            Error::NotInTransaction { what: "replacing a job" },
            Error::NodeSetup { why: "no handler".into() },
            Error::Partial { stored: 1, source: Box::new(Error::DiskFull) },
            open(OpenProblem::Missing),
            open(OpenProblem::ReadOnly),
            open(OpenProblem::NotAStore),
            open(OpenProblem::DevelopmentBuild { version: 1 }),
            open(OpenProblem::Address),
            open(OpenProblem::Refused),
            open(OpenProblem::Insecure),
            open(OpenProblem::Other),
        ] {
            assert!(!lasting.is_retryable(), "{lasting}");
        }
    }

    /// One error of each kind, with the thing that its message has to name.
    fn every() -> Vec<(Error, &'static str)> {
        let key = || Key::new("charge").expect("a key");
        let status = Status::plain(State::Running);
        let id = "job 07070707";
        vec![
            (Error::LeaseLost, "lease"),
            (Error::NotFound(ID), id),
            (Error::Conflict { existing: ID }, id),
            (Error::IdTaken { id: ID, differs: Differs::Kind }, "job id 07070707"),
            (Error::Illegal { id: ID, verb: "delete", status }, id),
            (full(1, 0, 0), "queue `mail`"),
            (Error::NoSchedule(nightly()), "schedule `nightly`"),
            (Error::ScheduleHeld { name: nightly(), job: ID }, "schedule `nightly`"),
            (Error::TooLarge { what: "input", size: 2, limit: 1 }, "input"),
            (Error::Invalid { what: "kind", why: "empty".into() }, "kind"),
            (Error::Convert { what: "input", source: "not JSON".into() }, "input"),
            (Error::Ended { id: ID, status, message: String::new() }, id),
            (Error::unavailable("busy"), "store"),
            (Error::DiskFull, "disk"),
            (Error::OutcomeUnknown { source: None }, "commit"),
            (Error::Partial { stored: 1, source: Box::new(Error::DiskFull) }, "jobs"),
            (open(OpenProblem::Missing), "here"),
            (Error::Corrupt { why: "9 is not a state".into() }, "store"),
            (Error::Poisoned { why: "replaced".into() }, "store"),
            (Error::Closed, "engine"),
            (Error::ForeignTransaction { why: "another store".into() }, "transaction"),
            (Error::NotInTransaction { what: "replacing a job" }, "replacing a job"),
            (Error::Step { key: key(), source: "declined".into() }, "`charge`"),
            (Error::DuplicateKey { key: key() }, "`charge`"),
            (Error::Nested { key: key() }, "`charge`"),
            (Error::Detached { key: key() }, "`charge`"),
            (Error::Interrupted { key: key() }, "`charge`"),
            (Error::Token, "token"),
            (Error::NodeSetup { why: "it has no handler".into() }, "node"),
        ]
    }

    #[test]
    fn every_message_is_lower_case_without_a_full_stop_and_names_its_thing() {
        let errors = every();
        let kinds: std::collections::HashSet<_> =
            errors.iter().map(|(error, _)| discriminant(error)).collect();
        assert_eq!(kinds.len(), errors.len(), "one of each");
        for (error, thing) in errors {
            let text = error.to_string();
            assert!(text.starts_with(|first: char| first.is_lowercase() || first == '`'), "{text}");
            assert!(!text.ends_with('.'), "{text}");
            assert!(text.contains(thing), "{text} does not name {thing}");
        }
    }

    #[test]
    fn messages_name_the_thing() {
        let told = |status, message: Option<&str>| {
            Error::Ended { id: ID, status, message: message.unwrap_or_default().to_owned() }.to_string()
        };
        let taken = Error::IdTaken { id: ID, differs: Differs::Kind }.to_string();
        assert_eq!(taken, format!("job id {ID} is taken: the stored job is of another kind"));
        let exhausted = Status::because(State::Failed, Reason::Exhausted);
        assert_eq!(told(exhausted, Some("no route")), format!("job {ID} failed: no route"));
        let cancelled = Status::because(State::Cancelled, Reason::Operator);
        assert_eq!(told(cancelled, None), format!("job {ID} cancelled (operator)"));
        let status = Status::plain(State::Running);
        let error = Error::Illegal { id: ID, verb: "delete", status };
        assert_eq!(error.to_string(), format!("cannot delete job {ID}: it is running"));
        let not_empty = |waiting, running, ended| full(waiting, running, ended).to_string();
        assert_eq!(not_empty(2, 1, 20), "queue `mail` is not empty: 2 jobs wait, 1 runs, 20 have ended");
        assert_eq!(not_empty(0, 0, 1), "queue `mail` is not empty: 1 job has ended");
        let old = |found| OpenProblem::TooOld { found, needed: 3 }.to_string();
        assert_eq!(old(0), "there is no store in it yet");
        assert_eq!(old(2), "its schema is at version 2 and this program needs 3");
    }
}
