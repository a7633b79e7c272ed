//! Real processes with a planted bug: torture tells of it.

use std::sync::Arc;

use mainspring_core::planted::Defect;
use mainspring_testkit::torture::sqlite::Sqlite;
use mainspring_testkit::torture::{Plan, run};

/// Within how many tries: whether a fault meets what it aims at is a matter of moments, in real processes. Most often the first
/// one does.
const TRIES: u64 = 20;

/// Tortures a store whose victims have a defect, until this rule is seen broken.
#[expect(clippy::print_stdout, reason = "how much it takes is to stay far below the bound")]
fn found(defect: Defect, rule: &str, cycles: usize, only: &[&str]) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let told = (1..=TRIES).find(|seed| {
        let seed = *seed;
        let mut plan = Plan::new(env!("CARGO_BIN_EXE_mainspring-victim"), cycles, seed).only(only);
        plan.planted = Some(format!("{defect:?}"));
        let stage = Arc::new(Sqlite::new().expect("a store"));
        let outcome = runtime.block_on(run(stage, &plan)).expect("a run that ends");
        if let Some(kept) = &outcome.kept {
            std::fs::remove_dir_all(kept).expect("removed");
        }
        outcome.report.violations.iter().any(|violation| violation.rule == rule)
    });
    let tries = told.unwrap_or_else(|| panic!("{defect:?} was not found in {TRIES} tries"));
    println!("{defect:?}: {tries} of at most {TRIES} tries");
}

#[test]
fn an_answer_before_the_commit_is_found() {
    found(Defect::EarlyAnswer, "nothing acknowledged is lost", 12, &["point sqlite.committing"]);
}

#[test]
fn a_finish_that_nobody_checks_is_found() {
    found(Defect::ClaimIgnored, "only the owner can write", 4, &["stop"]);
}
