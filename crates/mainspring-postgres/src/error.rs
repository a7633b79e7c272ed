//! From what the database says to what callers are told.

use mainspring_core::Error;
use tokio_postgres::error::{Severity, SqlState};

/// Why an operation did not work.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The operation itself refused; the connection is sound.
    Refused(Error),
    /// A statement or the connection failed.
    Db(tokio_postgres::Error),
}

pub(crate) type Result<T, E = Fault> = std::result::Result<T, E>;

impl Fault {
    /// Whether a statement took longer than it may.
    pub(crate) fn is_timeout(&self) -> bool {
        matches!(self, Fault::Db(error) if error.code() == Some(&SqlState::QUERY_CANCELED))
    }

    /// What the caller is told. `unknown`: whether a commit may be on its way.
    pub(crate) fn into_error(self, unknown: bool) -> Error {
        match self {
            Fault::Refused(error) => error,
            Fault::Db(error) => into_error(error, unknown),
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Fault::Refused(error)
    }
}

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Self {
        Fault::Db(error)
    }
}

/// A row that says what no row may say.
pub(crate) fn corrupt(why: impl Into<String>) -> Fault {
    Fault::Refused(Error::Corrupt { why: why.into() })
}

/// What a row says that cannot be read, apart from whatever else may have gone wrong while it was read.
pub(crate) fn legible<T>(read: Result<T>) -> Result<std::result::Result<T, String>> {
    match read {
        Ok(value) => Ok(Ok(value)),
        Err(Fault::Refused(Error::Corrupt { why })) => Ok(Err(why)),
        Err(fault) => Err(fault),
    }
}

/// Whether the database answered, and so has rolled the transaction back.
pub(crate) fn answered(error: &tokio_postgres::Error) -> bool {
    match error.as_db_error() {
        // A session that is ended in the middle of a commit says so too, and does not say what became of it. A pooler that
        // has lost its server says that in fewer words.
        Some(error) => match error.parsed_severity() {
            Some(severity) => !matches!(severity, Severity::Fatal | Severity::Panic),
            None => !matches!(error.severity(), "FATAL" | "PANIC"),
        },
        None => false,
    }
}

/// Whether the same transaction may work at once if it is begun anew.
pub(crate) fn passing(error: &tokio_postgres::Error) -> bool {
    matches!(error.code(), Some(&SqlState::T_R_DEADLOCK_DETECTED | &SqlState::T_R_SERIALIZATION_FAILURE))
}

/// What the caller is told of a failed statement. `unknown`: whether a commit may be on its way.
pub(crate) fn into_error(error: tokio_postgres::Error, unknown: bool) -> Error {
    if !answered(&error) {
        return if unknown {
            Error::OutcomeUnknown { source: Some(error.into()) }
        } else {
            unavailable("the connection to the database was lost", error)
        };
    }
    match error.as_db_error() {
        Some(db) => refusal(db.code().code(), db.message()),
        None => unavailable("the database refused a statement", error),
    }
}

/// Whether an SQLSTATE says that the connection or the server went away, or that nobody knows how a statement ended.
pub(crate) fn is_loss(code: &str) -> bool {
    code.starts_with("08") || code.starts_with("57P0") || code == "40003"
}

/// The database's own words for why it refused a statement.
#[derive(Debug, thiserror::Error)]
#[error("{message} ({code})")]
struct Refusal {
    code: String,
    message: String,
}

/// Whether a statement was refused, other than because its row is stored already.
pub(crate) fn is_refusal(error: &Error) -> bool {
    match error {
        Error::DiskFull => true,
        Error::Unavailable { source: Some(source), .. } => {
            source.downcast_ref::<Refusal>().is_some_and(|refusal| {
                !is_loss(&refusal.code) && refusal.code != SqlState::UNIQUE_VIOLATION.code()
            })
        }
        _ => false,
    }
}

/// What a statement's refusal means, by its SQLSTATE; the database's words are the cause.
pub(crate) fn refusal(code: &str, message: &str) -> Error {
    let words = Refusal { code: code.to_owned(), message: message.to_owned() };
    let why = match SqlState::from_code(code) {
        SqlState::DISK_FULL => return Error::DiskFull,
        SqlState::DATA_CORRUPTED | SqlState::INDEX_CORRUPTED => {
            return Error::Corrupt { why: words.to_string() };
        }
        SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED => {
            "another transaction came first; begin this one again"
        }
        SqlState::IN_FAILED_SQL_TRANSACTION => "an earlier statement of the transaction failed",
        SqlState::QUERY_CANCELED | SqlState::LOCK_NOT_AVAILABLE => "the database took too long",
        SqlState::UNIQUE_VIOLATION => "it is stored already",
        SqlState::READ_ONLY_SQL_TRANSACTION => "the database is read-only",
        SqlState::UNDEFINED_TABLE | SqlState::UNDEFINED_COLUMN | SqlState::INVALID_SCHEMA_NAME => {
            "the store's tables are missing or of another version"
        }
        // Statements that we have prepared are another session's now, or another's are ours.
        SqlState::INVALID_SQL_STATEMENT_NAME | SqlState::DUPLICATE_PSTATEMENT => {
            "a pooler gives each transaction another session, and the address does not say so: add `pooler=transaction`"
        }
        _ => "the database refused a statement",
    };
    Error::Unavailable { why: why.into(), source: Some(words.into()) }
}

/// An [`Error::Unavailable`] with its cause.
pub(crate) fn unavailable(why: &str, cause: tokio_postgres::Error) -> Error {
    Error::Unavailable { why: why.into(), source: Some(cause.into()) }
}

/// The database's own words: the driver's `Display` has none of them.
pub(crate) fn words(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(db) => format!("{} ({})", db.message(), db.code().code()),
        None => error.to_string(),
    }
}
