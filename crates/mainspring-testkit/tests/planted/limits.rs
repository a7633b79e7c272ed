//! What the exhaustive model of limits finds, and what takes more jobs or time and the conformance suite finds.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use mainspring_core::memory::Memory;
use mainspring_core::planted::{self, Defect};
use mainspring_testkit::clock::ManualClock;
use mainspring_testkit::harness::Harness;
use mainspring_testkit::{conformance, exhaustive};

/// Within how many states: the whole model has more than five thousand.
const STATES: u64 = 7_000;

#[expect(clippy::print_stdout, reason = "the story of a bug that was found is worth reading")]
fn found(defect: Defect) {
    planted::choose(Some(defect));
    let report = exhaustive::run_limits();
    let states = report.states;
    println!("{defect:?}: {states} of at most {STATES} states\n{report}");
    assert!(!report.violations.is_empty(), "{defect:?} was not noticed in any of {states} states");
    assert!(states <= STATES, "{defect:?} was noticed after {states} states");
}

fn memory() -> Harness {
    let clock = ManualClock::new();
    let memory = Memory::new(Arc::new(clock.clone()));
    Harness::new(clock, move || Arc::new(memory.another()))
}

#[test]
fn units_that_a_suspension_does_not_give_back_are_found() {
    planted::choose(Some(Defect::LimitKeptOnSuspend));
    let run = || conformance::run(memory, conformance::limit_ends::every_outcome_gives_back);
    assert!(catch_unwind(AssertUnwindSafe(run)).is_err(), "it was not noticed");
}

#[test]
fn units_that_a_rescue_does_not_give_back_are_found() {
    found(Defect::LimitKeptOnRescue);
}

#[test]
fn units_that_are_given_back_twice_are_found() {
    found(Defect::LimitGivenTwice);
}

#[test]
fn room_that_is_not_passed_on_is_found() {
    planted::choose(Some(Defect::RoomNotPassedOn));
    let run = || {
        conformance::run(memory, conformance::limit_claims::room_that_a_blocked_job_leaves_is_used_at_once);
    };
    assert!(catch_unwind(AssertUnwindSafe(run)).is_err(), "it was not noticed");
}

#[test]
fn turn_that_is_dropped_with_a_job_behind_it_is_found() {
    planted::choose(Some(Defect::TurnDropped));
    let run = || conformance::run(memory, conformance::limit_claims::claims_never_exceed_the_maximum);
    assert!(catch_unwind(AssertUnwindSafe(run)).is_err(), "it was not noticed");
}

#[test]
fn total_that_does_not_count_what_ran_before_is_found() {
    found(Defect::TotalUncounted);
}

#[test]
fn bucket_that_is_filled_twice_is_found() {
    planted::choose(Some(Defect::TokensTwice));
    let run = || {
        conformance::run(memory, conformance::limit_changes::rate_admits_its_burst_and_then_one_per_interval);
    };
    assert!(catch_unwind(AssertUnwindSafe(run)).is_err(), "it was not noticed");
}
