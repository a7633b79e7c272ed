//! Why a torture ended before its time.

use std::io;

/// What went wrong with a run, as opposed to what the checker finds wrong with a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Something that must come to pass did not, in all of the patience.
    #[error("waited in vain until {0}")]
    InVain(String),
    /// A store, a victim or a fault did what it must not.
    #[error("{0}")]
    Unexpected(String),
    /// The operating system refused something.
    #[error("{what}")]
    Io {
        /// What was tried.
        what: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The store refused something.
    #[error("{what}")]
    Store {
        /// What was tried.
        what: String,
        /// The cause.
        #[source]
        source: mainspring_core::Error,
    },
}

/// `Result` of a torture.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Turns an error of the operating system into one that says what was tried.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let what = what.into();
        move |source| Error::Io { what, source }
    }

    /// Turns an error of a store into one that says what was tried.
    pub fn store(what: impl Into<String>) -> impl FnOnce(mainspring_core::Error) -> Error {
        let what = what.into();
        move |source| Error::Store { what, source }
    }
}
