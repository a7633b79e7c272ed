//! Two nodes and two jobs: every state that can be reached.

use mainspring_testkit::exhaustive::{self, Report};

/// Figures below which a search has lost its way: it would be green as well.
const DEEP: (u64, u32) = (248_000, 28);
const WIDE: (u64, u32) = (216_000, 22);
const MET: (u64, u32) = (30_000, 17);

fn assert_sound(report: &Report, (states, depth): (u64, u32)) {
    assert!(report.violations.is_empty(), "{report}");
    assert!(report.states >= states && report.depth >= depth, "the search ended early\n{report}");
}

#[test]
fn three_claims_of_two_jobs_keep_every_promise() {
    let report = exhaustive::deep();
    println!("{report}");
    assert_sound(&report, DEEP);
}

#[test]
fn every_end_of_two_claims_keeps_every_promise() {
    let report = exhaustive::wide();
    println!("{report}");
    assert_sound(&report, WIDE);
}

#[test]
fn a_signal_a_cancellation_and_a_suspension_always_meet() {
    let report = exhaustive::run_suspension();
    println!("{report}");
    assert_sound(&report, MET);
}

/// Whatever happens to limited jobs, counters are the sums of claims, nobody is let in beyond a maximum, and all come to their end.
#[test]
fn limits_hold_in_every_state() {
    let report = exhaustive::run_limits();
    assert!(report.violations.is_empty(), "{report}");
    assert!(report.states > 5_000, "the search has become blind: {report}");
}
