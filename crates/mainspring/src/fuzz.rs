//! Fuzz targets: addresses of stores, and settings from the environment.

use mainspring_core::{Error, bounds};

use crate::node::{labels, lease, queues};
use crate::open::{scheme, shown};

/// The name of a target, and what it does with bytes.
pub type Target = (&'static str, fn(&[u8]));

/// Names, and what must not panic.
pub const TARGETS: [Target; 2] = [("engine_settings", settings), ("engine_addresses", addresses)];

/// A text as the queues, the labels and the lease of a node.
fn settings(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match queues(text) {
        Ok(read) => {
            let again: Vec<String> = read.iter().map(|(name, slots)| format!("{name}:{slots}")).collect();
            assert_eq!(queues(&again.join(",")).ok(), Some(read), "what is read can be written");
        }
        Err(error) => refused(&error),
    }
    match labels(text) {
        Ok(read) => {
            assert!(read.iter().all(|label| label.as_str().len() <= bounds::TAG_BYTES));
            let again: Vec<&str> = read.iter().map(AsRef::as_ref).collect();
            assert_eq!(labels(&again.join(" , ")).ok().as_ref(), Some(&read));
        }
        Err(error) => refused(&error),
    }
    if let Err(error) = lease(text) {
        refused(&error);
    }
}

fn refused(error: &Error) {
    assert!(matches!(error, Error::Invalid { .. } | Error::TooLarge { .. }), "{error:?}");
}

/// A text as the address of a store: a password in it is not shown.
fn addresses(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (named, rest) = scheme(text);
    assert!(!named.contains([':', '=']) && text.ends_with(rest), "{named:?} {rest:?}");
    let shown = shown(text);
    match named {
        "" if !text.contains(':') => assert_eq!(shown, format!("`{text}`"), "most likely a path"),
        named => assert_eq!(shown, format!("`{named}:…`"), "no more than the scheme"),
    }
    // Whatever follows a scheme or an equals sign may be a secret.
    if let Some((_, secret)) = text.split_once(['=', ':']).filter(|(_, secret)| secret.len() > 3) {
        assert!(!shown.contains(secret), "{shown}");
    }
}
