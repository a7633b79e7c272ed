//! What the exhaustive model of signals, cancellations and suspensions finds.

use std::time::Duration;

use mainspring_core::planted::{self, Defect};
use mainspring_testkit::exhaustive;

use super::worked;

/// Within which time a rig must see that something is wrong, on a machine that does nothing else.
const BOUND: Duration = Duration::from_secs(10);

#[expect(clippy::print_stdout, reason = "the story of a bug that was found is worth reading")]
fn found(defect: Defect) {
    planted::choose(Some(defect));
    let report = exhaustive::rendezvous();
    println!("{defect:?} after {:?}\n{report}", worked());
    assert!(!report.violations.is_empty() && worked() < BOUND, "{defect:?} was not noticed in time");
}

#[test]
fn a_stale_record_is_found() {
    found(Defect::StaleRecord);
}

#[test]
fn a_suspension_that_does_not_look_into_the_inbox_is_found() {
    found(Defect::SuspendBlind);
}

#[test]
fn a_cancel_that_is_lost_when_it_meets_a_suspension_is_found() {
    found(Defect::SuspendUncancelled);
}

#[test]
fn a_message_that_is_read_twice_is_found() {
    found(Defect::ReadTwice);
}
