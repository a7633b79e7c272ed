//! What can go wrong with a temporary server.

use std::fmt;
use std::io;

/// The result of working with a temporary server.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a temporary server, or what stands in front of it, could not do its work.
///
/// Its debug form is its message and those of its causes, line breaks included: tests show errors through `expect`.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A program is not installed, or too old.
    #[error("{what} was not found; {hint}")]
    Missing {
        /// The program.
        what: String,
        /// What to install, or which variable to set.
        hint: String,
    },
    /// The process runs as root, which a server refuses, and there is nobody else to run it as.
    #[error(
        "a server does not run as root, and /etc/passwd has neither `postgres` nor `nobody` to run it as"
    )]
    NoUser,
    /// A program ended when it should not have, or did not get ready in time.
    #[error("`{program}` {what}; its output ends with:\n{output}")]
    Program {
        /// The program.
        program: String,
        /// What it did.
        what: String,
        /// The last lines of what it said.
        output: String,
    },
    /// The operating system refused something.
    #[error("{what} failed")]
    Io {
        /// What was tried.
        what: String,
        /// What it said.
        #[source]
        source: io::Error,
    },
    /// The server refused a connection or a statement.
    #[error("the server refused")]
    Server(#[from] ::postgres::Error),
    /// The address of a server cannot be understood.
    #[error("`{address}` is not the address of one server")]
    Address {
        /// What was given.
        address: String,
    },
    /// The server was started by somebody else, who alone may stop it or signal it.
    #[error("this server was started by somebody else; start one with `Server::start` to stop or signal it")]
    NotOurs,
    /// The server runs already.
    #[error("this server runs already")]
    Running,
    /// The server is not running.
    #[error("this server is stopped")]
    Stopped,
    /// The schema of a template could not be made.
    #[error("template `{name}` could not be prepared")]
    Prepare {
        /// The template.
        name: String,
        /// What the caller's function said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
    /// Names what was tried when the operating system refused.
    pub(super) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let what = what.into();
        move |source| Error::Io { what, source }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        mainspring_core::error::chain(self).skip(1).try_for_each(|cause| write!(f, ": {cause}"))
    }
}
