//! The conformance suite and the model test on SQLite.

use std::sync::Arc;
use std::time::Duration;

use mainspring_conformance::clock::ManualClock;
use mainspring_conformance::harness::{Damage, Harness, Repair};
use mainspring_conformance::model::{agrees_with_the_model, agrees_with_the_model_about_limits};
use mainspring_conformance::seams::seams;
use mainspring_core::store::Store;
use mainspring_sqlite::rusqlite::Connection;
use mainspring_sqlite::{Durability, Options, Sqlite};

fn sqlite() -> Harness {
    open(Durability::Full)
}

fn open(durability: Durability) -> Harness {
    let clock = ManualClock::new();
    let directory = tempfile::tempdir().expect("a directory");
    let seams = seams(&clock, 1);
    let path = directory.path().join("store.db");
    Harness::new(clock, move || -> Arc<dyn Store> {
        let options = Options::new(directory.path().join("store.db")).durability(durability);
        Arc::new(Sqlite::open(options, seams.clone()).expect("the store opens"))
    })
    .damaged_by(move |id, damage, mend| {
        let job =
            format!("(SELECT no FROM mainspring_jobs WHERE id = x'{}')", id.to_string().replace('-', ""));
        let conn = Connection::open(&path).expect("the file");
        conn.busy_timeout(Duration::from_secs(30)).expect("patience");
        conn.execute_batch(&harm(&job, damage, mend)).expect("damage");
    })
}

/// What damages a job, or mends it.
fn harm(job: &str, damage: Damage, mend: Repair) -> String {
    let (options, claim, kind) = match mend {
        Repair::No => ("CAST(x'FF' AS TEXT)", "'many'", 99),
        Repair::Yes => ("NULL", "1", 0),
    };
    match damage {
        Damage::Options => format!("UPDATE mainspring_jobs SET options = {options} WHERE no = {job}"),
        Damage::Claim => format!(
            "UPDATE mainspring_ready SET claim = {claim} WHERE no = {job};
             UPDATE mainspring_limited SET claim = {claim} WHERE no = {job};
             UPDATE mainspring_suspended SET claim = {claim} WHERE no = {job}"
        ),
        Damage::Journal => format!("UPDATE mainspring_steps SET kind = {kind} WHERE no = {job}"),
    }
}

mainspring_conformance::conformance_tests!(sqlite);
mainspring_conformance::limit_conformance_tests!(sqlite);

/// Random lives; not flushed to the disk, because what is compared is what the store says.
#[test]
fn sqlite_agrees_with_the_model() {
    agrees_with_the_model(200, || open(Durability::Relaxed));
}

#[test]
fn sqlite_agrees_with_the_model_about_limits() {
    agrees_with_the_model_about_limits(200, || open(Durability::Relaxed));
}
