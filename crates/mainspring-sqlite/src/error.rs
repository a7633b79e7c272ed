//! From what SQLite says to what a caller can do about it: the one place that knows result codes.

use std::path::Path;

use mainspring_core::Error;
use mainspring_core::error::{BoxError, OpenProblem};
use rusqlite::ErrorCode;

/// Why an operation inside a transaction did not work.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The request is refused and has changed nothing; its neighbours are not concerned.
    Refused(Error),
    /// The database failed: the transaction cannot go on.
    Sql(rusqlite::Error),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Fault::Sql(error)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Fault::Refused(error)
    }
}

/// `Result` of an operation inside a transaction.
pub(crate) type Result<T, E = Fault> = std::result::Result<T, E>;

/// What a failed statement means for the transaction that it was part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Severity {
    /// Another process is writing.
    Busy,
    /// There is no room.
    Full,
    /// Reading from or writing to storage failed.
    Io,
    /// The file is damaged.
    Corrupt,
    /// Anything else: most likely this one statement.
    Other,
}

/// What a failed statement means.
pub(crate) fn severity(error: &rusqlite::Error) -> Severity {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Severity::Busy,
        Some(ErrorCode::DiskFull) => Severity::Full,
        Some(ErrorCode::SystemIoFailure) => Severity::Io,
        // No statement of ours breaks a constraint, unless an index or a table has lost rows.
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::ConstraintViolation) => {
            Severity::Corrupt
        }
        // Nor does one ask a column for another type than it was written with.
        _ if is_mistyped(error) => Severity::Corrupt,
        _ => Severity::Other,
    }
}

/// Whether a column holds what nobody writes there: another type, a number out of range, text that is no UTF-8.
pub(crate) fn is_mistyped(error: &rusqlite::Error) -> bool {
    use rusqlite::Error::{FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType, Utf8Error};
    matches!(
        error,
        FromSqlConversionFailure(..) | IntegralValueOutOfRange(..) | InvalidColumnType(..) | Utf8Error(..)
    )
}

/// What the caller of a transaction that was rolled back is told.
pub(crate) fn rolled_back(error: &rusqlite::Error) -> Error {
    match severity(error) {
        Severity::Busy => unavailable("another process keeps the database locked", error),
        Severity::Full => Error::DiskFull,
        Severity::Corrupt => Error::Corrupt { why: error.to_string() },
        Severity::Io => unavailable("the database's storage failed", error),
        Severity::Other => match error.sqlite_error_code() {
            Some(ErrorCode::OperationInterrupted) => unavailable("the read took too long", error),
            Some(ErrorCode::TooBig) => Error::Invalid { what: "value", why: "too big for SQLite".into() },
            _ => unavailable("the database refused a statement", error),
        },
    }
}

/// An [`Error::Unavailable`] with its cause. The cause is told in words: one failure may concern many callers.
fn unavailable(why: &str, cause: &rusqlite::Error) -> Error {
    Error::Unavailable { why: why.into(), source: Some(cause.to_string().into()) }
}

/// What was found in the middle of a request that may have changed something already: its transaction must not commit.
pub(crate) fn damaged(error: Error) -> rusqlite::Error {
    let why = match error {
        Error::Corrupt { why } => why,
        other => other.to_string(),
    };
    rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT), Some(why))
}

/// What a row says that cannot be read, apart from whatever else may have gone wrong while it was read.
pub(crate) fn legible<T>(read: Result<T>) -> Result<std::result::Result<T, String>> {
    match read {
        Ok(value) => Ok(Ok(value)),
        Err(Fault::Refused(Error::Corrupt { why })) => Ok(Err(why)),
        Err(Fault::Sql(error)) if is_mistyped(&error) => Ok(Err(error.to_string())),
        Err(fault) => Err(fault),
    }
}

/// A row that says what no row may say.
pub(crate) fn corrupt(why: impl Into<String>) -> Fault {
    Fault::Refused(Error::Corrupt { why: why.into() })
}

/// Why a file could not be opened.
pub(crate) fn open(path: &Path, error: rusqlite::Error) -> Error {
    // The first to open a store makes the index of its log, and a full disk does not let it grow.
    if error.sqlite_error().is_some_and(|error| error.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE) {
        return Error::DiskFull;
    }
    let problem = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => OpenProblem::Locked,
        // `CannotOpen` is all that SQLite says when it may not create a file.
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => {
            OpenProblem::ReadOnly
        }
        Some(ErrorCode::NotADatabase) => OpenProblem::NotAStore,
        Some(ErrorCode::DiskFull) => return Error::DiskFull,
        Some(ErrorCode::DatabaseCorrupt) => return Error::Corrupt { why: error.to_string() },
        _ => OpenProblem::Other,
    };
    problem_with(path, problem, Some(error.into()))
}

/// An [`Error::Open`].
pub(crate) fn problem_with(path: &Path, problem: OpenProblem, source: Option<BoxError>) -> Error {
    Error::Open { location: path.display().to_string(), problem, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_on_a_full_disk_is_told_so_when_it_is_opened() {
        let failure = |code| rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None);
        let opened = |code| open(Path::new("a.db"), failure(code));
        for code in [rusqlite::ffi::SQLITE_FULL, rusqlite::ffi::SQLITE_IOERR_SHMSIZE] {
            assert!(matches!(opened(code), Error::DiskFull), "{code}");
        }
        let other = opened(rusqlite::ffi::SQLITE_IOERR_READ);
        assert!(matches!(other, Error::Open { problem: OpenProblem::Other, .. }), "{other}");
    }
}
