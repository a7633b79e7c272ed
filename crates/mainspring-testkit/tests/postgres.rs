//! The conformance suite and the model test on Postgres.

use std::sync::Arc;

use mainspring_core::store::Store;
use mainspring_postgres::{Options, Postgres, Time};
use mainspring_testkit::clock::ManualClock;
use mainspring_testkit::executor::block_on;
use mainspring_testkit::harness::{Damage, Harness, Mend};
use mainspring_testkit::model::agrees_with_the_model;
use mainspring_testkit::postgres::{Database, Server};
use mainspring_testkit::seams::seams;

/// A database with a migrated schema.
fn database() -> Database {
    let server = Server::shared().expect("a server");
    let template = server.template(&format!("mainspring_v{}", mainspring_postgres::SCHEMA_VERSION), |url| {
        let options = Options::new(url)?;
        block_on(Postgres::migrate(&options, &seams(&ManualClock::new(), 1))).map(drop)
    });
    template.and_then(|template| template.database()).expect("a database")
}

fn postgres() -> Harness {
    let clock = ManualClock::new();
    let database = Arc::new(database());
    let damaged = Arc::clone(&database);
    let seams = seams(&clock, 1);
    Harness::new(clock, move || -> Arc<dyn Store> {
        let options = Options::new(&database.url()).expect("an address").time(Time::Clock);
        Arc::new(block_on(Postgres::open(options, seams.clone())).expect("the store opens"))
    })
    .damaged_by(move |id, damage, mend| {
        let job = format!("(SELECT no FROM mainspring.jobs WHERE id = '{id}')");
        damaged.sql(&harm(&job, damage, mend)).expect("damage");
    })
}

/// What damages a job, or mends it.
fn harm(job: &str, damage: Damage, mend: Mend) -> String {
    let (options, claim, kind) = match mend {
        Mend::No => (r#"'{"max_attempts": "many"}'"#, -7, 99),
        Mend::Yes => ("NULL", 1, 0),
    };
    match damage {
        Damage::Options => format!("UPDATE mainspring.jobs SET options = {options} WHERE no = {job}"),
        Damage::Claim => format!(
            "UPDATE mainspring.ready SET claim = {claim} WHERE no = {job};
             UPDATE mainspring.suspended SET claim = {claim} WHERE no = {job}"
        ),
        Damage::Journal => format!("UPDATE mainspring.steps SET kind = {kind} WHERE no = {job}"),
    }
}

mainspring_testkit::conformance_tests!(postgres);

/// Random lives.
#[test]
fn postgres_agrees_with_the_model() {
    agrees_with_the_model(16, postgres);
}
