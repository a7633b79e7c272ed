//! Fuzz targets: addresses, the files beside them, and what the columns of a damaged table say.
//!
//! # Invariants
//! - Nothing that is shown of an address, accepted or refused, has a piece of its password.

use mainspring_core::Error;
use mainspring_core::job::{Options, Status};
use mainspring_core::store::PagePosition;

use crate::address::{self, Address};
use crate::error::Fault;
use crate::read;

/// The name of a target, and what it does with bytes.
pub type Target = (&'static str, fn(&[u8]));

/// Names, and what must not panic.
pub const TARGETS: [Target; 4] = [
    ("postgres_addresses", addresses),
    ("postgres_secrets", secrets),
    ("postgres_files", address::fuzz::files),
    ("postgres_columns", columns),
];

/// An address, and after a line break variables of the environment, each `NAME=value` on a line.
fn addresses(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (text, env) = text.split_once('\n').unwrap_or((text, ""));
    let env = |name: &str| {
        // Files are not what is looked at here, and those of whoever runs this would make a difference.
        let is_file = ["HOME", "PGSERVICE", "PGSERVICEFILE", "PGSYSCONFDIR"].contains(&name);
        let mut lines = env.lines().filter_map(|line| line.split_once('='));
        lines.find(|(variable, _)| *variable == name && !is_file).map(|(_, value)| value.to_owned())
    };
    match Address::parse(text, &env) {
        Ok(address) => whole(&address),
        Err(error) => {
            let shown = shown(&error);
            assert!(matches!(error, Error::Open { .. }), "{shown}");
            assert!(!shown.chars().any(char::is_control), "an error can be shown: {shown:?}");
        }
    }
}

/// An address that was accepted can be shown, and leads to the same place when it is read again.
fn whole(address: &Address) {
    let shown = address.location();
    assert!(!shown.chars().any(char::is_control), "{shown:?}");
    assert!(!address.hosts().is_empty());
    // What is encoded is up to three times as long, and an address has a bound.
    if shown.len() > 8 << 10 {
        return;
    }
    let again = Address::parse(&shown, &|_| None).unwrap_or_else(|error| panic!("{shown}: {error:?}"));
    assert_eq!(again.location(), shown);
    assert_eq!((again.schema(), again.hosts().len()), (address.schema(), address.hosts().len()));
    for host in address.hosts() {
        let _made = address.config(host, None);
    }
    if let Some(listening) = address.for_listening() {
        assert!(!listening.is_pooled() && !listening.hosts().is_empty());
    }
}

fn shown(error: &Error) -> String {
    let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    format!("{error}: {cause}")
}

/// Stands for a password: no name of a parameter and no message has it.
const SECRET: &str = "hunter2";

/// Text before and after a password, in every form that has one.
fn secrets(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (before, after) = text.split_once('\n').unwrap_or((text, ""));
    // With an equals sign what follows may be the value of another parameter, and no password at all.
    if [before, after].iter().any(|part| part.contains(SECRET) || part.contains('=')) {
        return;
    }
    let texts = [
        format!("postgres://u:{before}{SECRET}{after}@h/d"),
        format!("postgres://u@h/d?password={before}{SECRET}{after}"),
        format!("host=h password='{before}{SECRET}{after}'"),
        format!("host=h password={before}{SECRET}{after}"),
    ];
    for text in texts {
        let told = match Address::parse(&text, &|_| None) {
            Ok(address) => {
                let config = address.config(&address.hosts()[0], None);
                format!("{address} {address:?} {config:?}")
            }
            Err(error) => format!("{} {error:?}", shown(&error)),
        };
        assert!(!told.contains(SECRET), "{text}: {told}");
    }
}

/// Numbers and texts as columns of a job.
fn columns(bytes: &[u8]) {
    let number = |at: usize| bytes.get(at..at + 2).map_or(0, |pair| i16::from_le_bytes([pair[0], pair[1]]));
    let reason = (number(4) & 1 == 1).then(|| number(2));
    if let Ok(Status { state, reason: read }) = corrupt_or(read::fuzz::status(number(0), reason)) {
        assert_eq!(i16::from(state.code()), number(0));
        assert_eq!(read.map(|read| i16::from(read.code())), reason);
    }
    if let Ok(priority) = corrupt_or(read::fuzz::priority(number(0))) {
        assert_eq!(i16::from(priority.get()), number(0));
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let own = text.parse::<i64>().is_ok_and(|no| no > 0 && no.to_string() == text);
    assert_eq!(PagePosition(text.to_owned()).no().is_ok(), own, "{text:?}");
    let _read: Result<Options, _> = serde_json::from_str(text);
}

/// What is refused is refused as corrupt.
fn corrupt_or<T>(answer: crate::error::Result<T>) -> Result<T, ()> {
    answer.map_err(|fault| assert!(matches!(fault, Fault::Refused(Error::Corrupt { .. })), "{fault:?}"))
}
