//! The conformance suite and the model test on SQLite.

use std::sync::Arc;

use mainspring_core::store::Store;
use mainspring_sqlite::{Durability, Options, Sqlite};
use mainspring_testkit::clock::ManualClock;
use mainspring_testkit::harness::Harness;
use mainspring_testkit::model::agrees_with_the_model;
use mainspring_testkit::seams::seams;

fn sqlite() -> Harness {
    open(Durability::Full)
}

fn open(durability: Durability) -> Harness {
    let clock = ManualClock::new();
    let directory = tempfile::tempdir().expect("a directory");
    let seams = seams(&clock, 1);
    Harness::new(clock, move || -> Arc<dyn Store> {
        let options = Options::new(directory.path().join("store.db")).durability(durability);
        Arc::new(Sqlite::open(options, seams.clone()).expect("the store opens"))
    })
}

mainspring_testkit::conformance_tests!(sqlite);

/// Random lives; not flushed to the disk, because what is compared is what the store says.
#[test]
fn sqlite_agrees_with_the_model() {
    agrees_with_the_model(200, || open(Durability::Relaxed));
}
