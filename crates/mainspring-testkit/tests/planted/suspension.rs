//! What the exhaustive model of signals, cancellations and suspensions finds.

use mainspring_core::planted::{self, Defect};
use mainspring_testkit::exhaustive;

/// Within how many states: the whole model has thirty thousand.
const STATES: u64 = 1_000;

#[expect(clippy::print_stdout, reason = "the story of a bug that was found is worth reading")]
fn found(defect: Defect) {
    planted::choose(Some(defect));
    let report = exhaustive::run_suspension();
    let states = report.states;
    println!("{defect:?}: {states} of at most {STATES} states\n{report}");
    assert!(!report.violations.is_empty(), "{defect:?} was not noticed in any of {states} states");
    assert!(states <= STATES, "{defect:?} was noticed after {states} states, not {STATES}");
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
