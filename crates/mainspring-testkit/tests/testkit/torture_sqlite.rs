//! Real processes on one SQLite file, tortured: a shorter version of `cargo xtask torture --store sqlite`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use mainspring_testkit::torture::sqlite::Sqlite;
use mainspring_testkit::torture::{LongRun, Outcome, Plan, StoreUnderTest, inject, marathon, points, run};

/// Tortures a fresh store; everything must be as promised.
#[expect(clippy::print_stdout, reason = "what was done is told in figures")]
fn torture(plan: &Plan) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let stage = Arc::new(Sqlite::new().expect("a store"));
    let outcome = runtime.expect("a runtime").block_on(run(stage, plan)).expect("a run that ends");
    println!("{outcome}");
    outcome.assert_clean();
    outcome
}

fn plan(cycles: usize, only: &[&str]) -> Plan {
    Plan::new(PathBuf::from(env!("CARGO_BIN_EXE_mainspring-victim")), cycles, 1).only(only)
}

#[test]
fn twenty_kills_and_stops_lose_and_double_nothing() {
    let outcome = torture(&plan(20, &["kill", "stop"]));
    assert!(outcome.report.figures.stale > 0, "no worker that woke up had anything to write");
}

/// One worker that is killed again and again finishes every workflow, and does again only what was lost.
#[test]
fn workflows_survive_twenty_kills_of_their_only_worker() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let stage = Arc::new(Sqlite::new().expect("a store"));
    let course = LongRun { flows: 80, steps: 20, millis: 100 };
    let plan = plan(20, &[]);
    let run = marathon(stage, &plan, course);
    let outcome = runtime.expect("a runtime").block_on(run).expect("a run that ends");
    println!("{outcome}");
    outcome.assert_clean();
}

#[test]
fn a_job_that_kills_its_process_is_quarantined_alone() {
    torture(&plan(3, &["poison"]));
}

#[test]
fn jobs_that_were_claimed_ahead_are_not_blamed_for_deaths() {
    torture(&plan(2, &["rush"]));
}

#[test]
fn a_death_at_any_failure_point_loses_and_doubles_nothing() {
    let store = Sqlite::new().expect("a store");
    let mine = points::ALL.iter().filter(|point| store.reaches(point));
    let names: BTreeSet<String> = mine.map(|point| format!("point {}", point.name)).collect();
    let outcome = torture(&plan(names.len(), &["point "]));
    assert_eq!(outcome.faults.keys().cloned().collect::<BTreeSet<_>>(), names);
    assert!(outcome.faults.values().all(|tally| tally.hit == 1), "every point is reached: {outcome}");
}

#[test]
fn sixty_system_calls_that_fail_or_kill_lose_and_double_nothing() {
    inject::check().expect("a tracer");
    torture(&plan(60, &["pwrite64 ", "fdatasync "]));
}

#[test]
fn a_log_that_is_cut_opens_at_an_earlier_commit() {
    torture(&plan(5, &["wal cut"]));
}

#[test]
fn a_damaged_file_is_told_as_such() {
    torture(&plan(6, &["page flip"]));
}

#[test]
fn lock_files_that_are_removed_expire_nobody() {
    torture(&plan(3, &["locks removed"]));
}

#[test]
fn jobs_whose_rows_are_damaged_are_set_aside_alone() {
    let outcome = torture(&plan(3, &["rows damaged"]));
    assert_eq!(outcome.faults["rows damaged"].hit, 3, "{outcome}");
}

#[test]
fn nothing_is_acknowledged_into_a_file_that_was_replaced() {
    torture(&plan(3, &["file replaced"]));
}

#[test]
fn a_disk_that_is_full_or_read_only_is_waited_out() {
    torture(&plan(3, &["disk full", "read-only"]));
}
