//! Errors of the engine and of the stores.
//! A variant says what the caller can do. *Handlers* return another type:
//! [`Failure`](crate::failure::Failure).

mod hint;

use std::error::Error as StdError;

use crate::bounds;
use crate::id::JobId;
use crate::job::{Differs, Reason, State, Status};
use crate::name::{Key, LimitName, QueueName, ScheduleName};

/// A boxed cause.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// `Result` with the engine's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Returns an error and its sources, at most [`bounds::SOURCES`] of them, because a chain may lead back to itself.
pub fn chain<'e>(error: &'e (dyn StdError + 'static)) -> impl Iterator<Item = &'e (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error: &&'e (dyn StdError + 'static)| (*error).source())
        .take(1 + bounds::SOURCES)
}

/// The error of the engine, its handles and its stores.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The node or claim no longer owns the job. The store changed nothing.
    #[error("lease lost: the job or the node has another owner now")]
    LeaseLost,
    /// The job does not exist, or its retention is over.
    #[error("job {0} not found")]
    NotFound(JobId),
    /// Another job holds the unique key, and the caller asked for a refusal.
    #[error("job {existing} holds the unique key")]
    Conflict {
        /// The job that holds the key.
        existing: JobId,
    },
    /// The chosen id belongs to another job. Nothing was stored.
    #[error("job id {id} is taken: the stored job {differs}")]
    IdTaken {
        /// The id, and so the job that has it.
        id: JobId,
        /// How the stored job differs from the new one.
        differs: Differs,
    },
    /// The verb does not apply to the job in its present state. Nothing was changed.
    #[error("cannot {verb} job {id}: it {}", is(*.status))]
    Illegal {
        /// The job.
        id: JobId,
        /// What the caller asked for.
        verb: &'static str,
        /// The status of the job.
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
    /// The schedule does not exist.
    #[error("schedule `{0}` not found")]
    NoSchedule(ScheduleName),
    /// The caller ran a schedule by hand, but its previous job has not ended. Nothing was enqueued.
    #[error("schedule `{name}` does not allow overlap, and its job {job} has not ended")]
    ScheduleHeld {
        /// The schedule.
        name: ScheduleName,
        /// The job that has not ended.
        job: JobId,
    },
    /// A limit that nobody has defined. Nothing was stored.
    #[error("unknown limit `{limit}`")]
    UnknownLimit {
        /// The limit.
        limit: LimitName,
        /// The one that was probably meant.
        similar: Option<LimitName>,
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
    /// A value is invalid. Nothing was stored.
    #[error("invalid {what}: {why}")]
    Invalid {
        /// What is wrong.
        what: &'static str,
        /// Why.
        why: String,
    },
    /// An input, a result or a recorded value does not convert to or from JSON.
    #[error("cannot convert {what}")]
    Convert {
        /// What could not be converted.
        what: &'static str,
        /// The cause.
        #[source]
        source: BoxError,
    },
    /// The job ended without the result that the caller waits for.
    #[error("job {id} {}", ended(*.status, .message))]
    Ended {
        /// The job.
        id: JobId,
        /// How it ended.
        status: Status,
        /// The last error or the reason that was given; empty if there is none.
        message: String,
    },
    /// The store is unreachable or too busy. Nothing was changed; try again.
    #[error("store unavailable: {why}")]
    Unavailable {
        /// What is in the way.
        why: String,
        /// The cause, if there is one.
        #[source]
        source: Option<BoxError>,
    },
    /// The disk is full. Nothing was changed; the store works again once there is room.
    #[error("disk full: nothing was stored")]
    DiskFull,
    /// The store sent a commit and lost the answer, so it may or may not be applied. Repeating the call is safe.
    #[error("outcome unknown: the store may or may not have applied the commit")]
    OutcomeUnknown {
        /// The cause, if there is one.
        #[source]
        source: Option<BoxError>,
    },
    /// The engine split a large call, and a part failed after the store took earlier ones.
    #[error("only the first {stored} jobs were stored")]
    Partial {
        /// How many of the jobs, from the first on, are stored.
        stored: usize,
        /// What happened to the rest.
        #[source]
        source: Box<Error>,
    },
    /// The store does not open with these options.
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
    /// The store holds invalid data. Needs a person.
    #[error("store corrupt: {why}")]
    Corrupt {
        /// What was found.
        why: String,
    },
    /// The store accepts no writes until you reopen it, because a write may be lost: a write to stable storage failed,
    /// or its file was removed or replaced.
    #[error("store poisoned: {why}")]
    Poisoned {
        /// What has happened, and what to do.
        why: String,
    },
    /// The engine or the store has been closed.
    #[error("the engine or its store is closed")]
    Closed,
    /// The caller's transaction is on another database than the engine's.
    #[error("the transaction is not on this engine's store: {why}")]
    ForeignTransaction {
        /// How that was noticed.
        why: String,
    },
    /// The call is not possible inside a caller's transaction.
    #[error("{what} is not possible inside a caller's transaction")]
    NotInTransaction {
        /// What the caller asked for.
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
    /// Two durable operations of one scope have the same key, or would have it depending on timing. Nothing was done.
    #[error(
        "ambiguous step name `{key}`: it was used concurrently, so replay could not tell the calls apart; add .key(…) or use a branch"
    )]
    DuplicateKey {
        /// The key.
        key: Key,
    },
    /// The handler called a durable operation inside the body of a step. Nothing was done.
    #[error("`{key}` was called inside the body of a step; call it from the handler itself")]
    Nested {
        /// The key of the operation.
        key: Key,
    },
    /// Another task than the handler's called a durable operation. Nothing was done.
    #[error(
        "`{key}` was called from another task; call it from the handler's own task, with join! or a branch"
    )]
    Detached {
        /// The key of the operation.
        key: Key,
    },
    /// A step that must not run twice began in an earlier attempt and did not finish. Nobody knows how far it got.
    #[error("`{key}` began in an earlier attempt and did not finish; it does not run twice")]
    Interrupted {
        /// Its key.
        key: Key,
    },
    /// The token for a signal is invalid: it was used, has expired, or never existed. Nothing was sent.
    #[error("the token is invalid: it was used, has expired, or never existed")]
    Token,
    /// A node cannot start with its setup.
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
    /// The store does not exist, and the options do not create it.
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
    /// A newer version wrote the store, and this version must not touch it.
    #[error("it needs schema version {needed}, and this program knows only {known}")]
    TooNew {
        /// The lowest schema version that may touch it.
        needed: u32,
        /// The highest schema version that this program knows.
        known: u32,
    },
    /// A development build made the store, and its tables differ from those of this version.
    #[error("a development build made it: its tables are not those of schema version {version}")]
    DevelopmentBuild {
        /// The version that both call by the same number.
        version: u32,
    },
    /// Its schema is older than this program needs.
    #[error("{}", too_old(*.found, *.needed))]
    TooOld {
        /// The version found.
        found: u32,
        /// The version needed.
        needed: u32,
    },
    /// Its address is invalid.
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
    /// No server answers there.
    #[error("it cannot be reached")]
    Unreachable,
    /// The database refuses the login, or a right that the store needs.
    #[error("it refuses access")]
    Refused,
    /// The connection cannot be encrypted, or the server not be trusted, as the address demands.
    #[error("the connection cannot be made secure")]
    Insecure,
    /// The database acknowledges before data is on stable storage, and the options do not allow that.
    #[error("it is not durable: `{setting}` is off")]
    NotDurable {
        /// The setting.
        setting: &'static str,
    },
    /// Another problem, which the cause names.
    #[error("it failed to open")]
    Other,
}

impl Error {
    /// Returns whether the same call may work later, although nobody changes anything.
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
            | Error::UnknownLimit { .. }
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

    /// The `what` of [`Error::TooLarge`] if a job has more unread signals than [`bounds::INBOX`].
    pub const INBOX: &'static str = "inbox";

    /// Returns whether the caller's input is at fault: the same call fails again until the input changes.
    pub fn is_bad_input(&self) -> bool {
        match self {
            Error::TooLarge { what, .. } => *what != Error::INBOX,
            Error::Invalid { .. }
            | Error::Convert { .. }
            | Error::NodeSetup { .. }
            | Error::UnknownLimit { .. } => true,
            Error::Open { problem, .. } => *problem == OpenProblem::Address,
            _ => false,
        }
    }

    /// Creates an [`Error::Unavailable`] without a cause.
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
    // A handler's own verdict begins with its reason.
    let said = status.reason.map(|reason| format!("{reason}: "));
    let message = said.and_then(|said| message.strip_prefix(&said)).unwrap_or(message);
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
            Error::UnknownLimit { limit: LimitName::new("gpu").expect("a name"), similar: None },
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
            (
                Error::UnknownLimit { limit: LimitName::new("gpu").expect("a name"), similar: None },
                "limit `gpu`",
            ),
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
        let kinds: Vec<_> = errors.iter().map(|(error, _)| discriminant(error)).collect();
        assert!(kinds.iter().enumerate().all(|(at, kind)| !kinds[..at].contains(kind)), "one of each");
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
        let discarded = Status::because(State::Failed, Reason::Discarded);
        assert_eq!(
            told(discarded, Some("discarded: no such user")),
            format!("job {ID} failed (discarded): no such user")
        );
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
