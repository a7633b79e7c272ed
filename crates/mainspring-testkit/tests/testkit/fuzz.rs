//! The fuzz targets of the stores and of the engine on their corpora and on random inputs.

use mainspring_testkit::fuzz::{Target, check};

fn all(targets: impl IntoIterator<Item = Target>) {
    for (name, target) in targets {
        check(name, target);
    }
}

#[test]
fn targets_of_the_engine_hold() {
    all(mainspring::fuzz::TARGETS);
}

#[test]
fn targets_of_the_sqlite_store_hold() {
    all(mainspring_sqlite::fuzz::TARGETS);
}

#[test]
fn targets_of_the_postgres_store_hold() {
    all(mainspring_postgres::fuzz::TARGETS);
}
