//! Options of jobs, as they are stored: a text, or none for the defaults.

use std::sync::OnceLock;

use crate::job::Options;
use crate::{Error, Result};

/// Options as they are stored.
///
/// # Errors
/// [`Error::Corrupt`] if they cannot be written.
pub fn options_text(options: &Options) -> Result<Option<String>> {
    if is_default(options) {
        return Ok(None);
    }
    serde_json::to_string(options).map(Some).map_err(|error| corrupt(&error))
}

/// Options from what is stored.
///
/// # Errors
/// [`Error::Corrupt`] if they cannot be read.
pub fn read_options(text: Option<&[u8]>) -> Result<Options> {
    text.map_or_else(|| Ok(Options::default()), serde_json::from_slice).map_err(|error| corrupt(&error))
}

fn corrupt(error: &serde_json::Error) -> Error {
    Error::Corrupt { why: format!("options: {error}") }
}

/// Cheaper than to compare with a default that would have to be made.
fn is_default(options: &Options) -> bool {
    let Options { max_attempts, backoff, timeout, unique, tags, labels, limits, headers, parent, forked } =
        options;
    *max_attempts == default_attempts()
        && backoff.is_none()
        && timeout.is_none()
        && unique.is_none()
        && tags.is_empty()
        && labels.is_empty()
        && limits.is_empty()
        && headers.is_empty()
        && parent.is_none()
        && forked.is_none()
}

fn default_attempts() -> u16 {
    static ATTEMPTS: OnceLock<u16> = OnceLock::new();
    *ATTEMPTS.get_or_init(|| Options::default().max_attempts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::Tag;

    #[test]
    fn only_defaults_are_stored_as_nothing() {
        assert_eq!(options_text(&Options::default()).ok(), Some(None));
        let options = Options { tags: vec![Tag::new("t").expect("a tag")], ..Options::default() };
        let text = options_text(&options).expect("a text").expect("not the defaults");
        assert_eq!(read_options(Some(text.as_bytes())).ok(), Some(options));
        assert_eq!(read_options(None).ok(), Some(Options::default()));
        assert!(matches!(read_options(Some(b"{")), Err(Error::Corrupt { .. })));
    }
}
