//! The conformance suite on SQLite.

use std::sync::Arc;

use mainspring_core::store::Store;
use mainspring_sqlite::{Options, Sqlite};
use mainspring_testkit::clock::ManualClock;
use mainspring_testkit::harness::Harness;
use mainspring_testkit::seams::seams;

fn sqlite() -> Harness {
    let clock = ManualClock::new();
    let directory = tempfile::tempdir().expect("a directory");
    let seams = seams(&clock, 1);
    Harness::new(clock, move || -> Arc<dyn Store> {
        let options = Options::new(directory.path().join("store.db"));
        Arc::new(Sqlite::open(options, seams.clone()).expect("the store opens"))
    })
}

mainspring_testkit::conformance_tests!(sqlite);
