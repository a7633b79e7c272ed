//! What can be wrong with an address.
//!
//! # Invariants
//! - A fault names a parameter or a file and never shows a value: where a value is expected, a password may stand.

use std::io;

use mainspring_core::Error;
use mainspring_core::error::OpenProblem;

/// The longest name of a parameter that is repeated in an error.
const SHOWN_NAME: usize = 40;

/// What is wrong with an address.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// A name that is no parameter.
    #[error("unknown parameter `{name}`")]
    Unknown { name: String },
    /// Text that cannot be read as an address.
    #[error("{0}")]
    Form(&'static str),
    /// A value that a parameter cannot have.
    #[error("`{parameter}` {why}")]
    Value { parameter: &'static str, why: &'static str },
    /// A file that the address names and that cannot be read.
    #[error("cannot read {what} `{path}`")]
    File {
        what: &'static str,
        path: String,
        #[source]
        source: io::Error,
    },
    /// A service that is in no service file.
    #[error("`service` is in no service file")]
    NoService,
}

impl Fault {
    /// A name that is no parameter. It is shown unless it may be a piece of a password that was not quoted.
    pub(super) fn unknown(name: &str, may_be_secret: bool) -> Fault {
        let plain =
            name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'));
        if may_be_secret {
            return Fault::Form(
                "unknown parameter; special characters in a password must be quoted or percent-encoded",
            );
        }
        if name.is_empty() || name.len() > SHOWN_NAME || !plain {
            return Fault::Form("unknown parameter with an impossible name");
        }
        Fault::Unknown { name: name.to_owned() }
    }

    pub(super) fn value(parameter: &'static str, why: &'static str) -> Fault {
        Fault::Value { parameter, why }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        // The address itself is not repeated: what could not be read may hold a password anywhere.
        Error::Open {
            location: "the Postgres store".to_owned(),
            problem: OpenProblem::Address,
            source: Some(fault.into()),
        }
    }
}
