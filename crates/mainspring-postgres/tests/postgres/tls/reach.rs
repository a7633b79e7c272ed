//! Trying an address: what becomes of it, and whether the server says that it was encrypted.

use std::error::Error as _;
use std::sync::atomic::{AtomicU32, Ordering};

use mainspring_core::Error;
use mainspring_core::error::OpenProblem;
use mainspring_postgres::{Address, Options, Postgres};
use mainspring_testkit::clock::ManualClock;
use mainspring_testkit::postgres::Server;
use mainspring_testkit::seams::seams;

/// What became of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reached {
    /// The store is open, and the connection in the clear.
    Plain,
    /// The store is open, and the connection encrypted.
    Tls,
    Unreachable,
    Refused,
    Missing,
    Insecure,
}

/// The next attempt: its number is in the name by which the server's log tells attempts apart.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Opens a store; what became of it, and why it did not work.
pub(crate) async fn reach(server: &Server, address: &str) -> (Reached, String) {
    let name = format!("attempt-{}-", NEXT.fetch_add(1, Ordering::Relaxed));
    let address =
        Address::parse(&format!("{address} application_name={name}"), &|_| None).expect("an address");
    let options = Options::at(address).migrate(true);
    match Postgres::open(options, seams(&ManualClock::new(), 1)).await {
        Ok(_store) => (if encrypted(server, &name) { Reached::Tls } else { Reached::Plain }, String::new()),
        Err(error) => (problem(&error), told(&error)),
    }
}

fn problem(error: &Error) -> Reached {
    match error {
        Error::Open { problem: OpenProblem::Unreachable, .. } => Reached::Unreachable,
        Error::Open { problem: OpenProblem::Refused, .. } => Reached::Refused,
        Error::Open { problem: OpenProblem::Missing, .. } => Reached::Missing,
        Error::Open { problem: OpenProblem::Insecure, .. } => Reached::Insecure,
        _ => panic!("an unexpected problem: {}", told(error)),
    }
}

/// The error with all of its causes.
fn told(error: &Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

/// What the server's log says about the connections that were let in under a name; they must agree.
fn encrypted(server: &Server, name: &str) -> bool {
    let log = server.log().expect("the server's log");
    let application = format!("application_name={name}");
    let of_name = |line: &&str| line.contains("connection authorized:") && line.contains(&application);
    let encrypted: Vec<bool> = log.lines().filter(of_name).map(|line| line.contains("SSL enabled")).collect();
    let first = *encrypted.first().expect("the server logs whom it lets in");
    assert!(
        encrypted.iter().all(|one| *one == first),
        "some connections are encrypted and some are not: {log}"
    );
    first
}
