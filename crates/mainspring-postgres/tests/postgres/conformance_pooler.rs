//! The conformance suite behind a PgBouncer in transaction mode.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use mainspring_core::store::Store;
use mainspring_postgres::{Options, Postgres, Time};
use mainspring_testkit::clock::ManualClock;
use mainspring_testkit::executor::block_on;
use mainspring_testkit::harness::Harness;
use mainspring_testkit::postgres::{Bouncer, Server};
use mainspring_testkit::seams::seams;

use crate::support::database;

/// The pooler of all tests that run at once.
static POOLER: Mutex<Weak<Bouncer>> = Mutex::new(Weak::new());

/// A pooler with fewer sessions for each database than a store has connections: they are shared.
fn pooler(server: &Server) -> Arc<Bouncer> {
    let mut pooler = POOLER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(running) = pooler.upgrade() {
        return running;
    }
    let started = Arc::new(Bouncer::start_with(server, &[("default_pool_size", "4")]).expect("a pooler"));
    *pooler = Arc::downgrade(&started);
    started
}

fn pooled() -> Harness {
    let clock = ManualClock::new();
    let database = Arc::new(database());
    let damaged = Arc::clone(&database);
    let bouncer = pooler(database.server());
    let seams = seams(&clock, 1);
    Harness::new(clock, move || -> Arc<dyn Store> {
        let url = format!("{}?pooler=transaction", bouncer.url(database.name()));
        let options = Options::new(&url).expect("an address").time(Time::Clock);
        Arc::new(block_on(Postgres::open(options, seams.clone())).expect("the store opens"))
    })
    .damaged_by(move |id, damage, mend| damaged.damage(id, damage, mend).expect("damage"))
}

mainspring_testkit::conformance_tests!(pooled);
