//! The conformance suite and the model test on Postgres.

use std::sync::Arc;

use mainspring_core::store::Store;
use mainspring_postgres::{Options, Postgres, Time};
use mainspring_testkit::clock::ManualClock;
use mainspring_testkit::executor::block_on;
use mainspring_testkit::harness::Harness;
use mainspring_testkit::model::{agrees_with_the_model, agrees_with_the_model_about_limits};
use mainspring_testkit::seams::seams;

use crate::support::database;

pub(crate) fn postgres() -> Harness {
    let clock = ManualClock::new();
    let database = Arc::new(database());
    let damaged = Arc::clone(&database);
    let seams = seams(&clock, 1);
    Harness::new(clock, move || -> Arc<dyn Store> {
        let options = Options::new(&database.url()).expect("an address").time(Time::Clock);
        Arc::new(block_on(Postgres::open(options, seams.clone())).expect("the store opens"))
    })
    .damaged_by(move |id, damage, mend| damaged.damage(id, damage, mend).expect("damage"))
}

mainspring_testkit::conformance_tests!(postgres);
mainspring_testkit::limit_conformance_tests!(postgres);

/// Random lives.
#[test]
fn postgres_agrees_with_the_model() {
    agrees_with_the_model(16, postgres);
}

#[test]
fn postgres_agrees_with_the_model_about_limits() {
    agrees_with_the_model_about_limits(16, postgres);
}
