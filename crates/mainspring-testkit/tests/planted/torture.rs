//! Real processes with a planted bug: torture tells of it.

use std::sync::Arc;

use mainspring_core::planted::Defect;
use mainspring_testkit::torture::sqlite::Sqlite;
use mainspring_testkit::torture::{Plan, run};

/// Tortures a store whose victims have a defect, and sees this rule broken.
fn found(defect: Defect, rule: &str, cycles: usize, only: &[&str]) {
    let mut plan = Plan::new(env!("CARGO_BIN_EXE_mainspring-victim"), cycles, 1).only(only);
    plan.planted = Some(format!("{defect:?}"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let stage = Arc::new(Sqlite::new().expect("a store"));
    let outcome = runtime.expect("a runtime").block_on(run(stage, &plan)).expect("a run that ends");
    let told = outcome.report.violations.iter().any(|violation| violation.rule == rule);
    assert!(told, "{defect:?} was not found: {outcome}");
    if let Some(kept) = &outcome.kept {
        std::fs::remove_dir_all(kept).expect("removed");
    }
}

#[test]
fn an_answer_before_the_commit_is_found() {
    found(Defect::EarlyAnswer, "nothing acknowledged is lost", 12, &["point sqlite.committing"]);
}

#[test]
fn a_finish_that_nobody_checks_is_found() {
    found(Defect::ClaimIgnored, "only the owner can write", 4, &["stop"]);
}
