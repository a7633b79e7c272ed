//! Pairs of operations on two handles of one Postgres, in every interleaving of their statements.
//!
//! What comes of each is held against the model, which does one after the other, in either order. Where a store need not
//! wait for what somebody else holds (a claim steps over locked jobs, a sweep leaves them for the next time), the pair
//! says what may happen instead.
#![expect(clippy::print_stdout, reason = "a run tells how many interleavings there were")]

mod explore;
mod pairs;
mod stage;
mod storm;
mod workflows;
mod world;

use explore::{Theatre, run_all};
use mainspring_postgres::{Options, Postgres};
use mainspring_testkit::clock::ManualClock;
use mainspring_testkit::executor::block_on;
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

#[test]
fn claims_meet_others_as_if_one_after_the_other() {
    run_all(Theatre::new(database()), pairs::of_claims());
}

#[test]
fn outcomes_meet_others_as_if_one_after_the_other() {
    run_all(Theatre::new(database()), pairs::of_outcomes());
}

#[test]
fn nodes_meet_their_judges_as_if_one_after_the_other() {
    run_all(Theatre::new(database()), pairs::of_nodes());
}

#[test]
fn keys_are_taken_and_released_as_if_one_after_the_other() {
    run_all(Theatre::new(database()), pairs::of_keys());
}

#[test]
fn waiting_jobs_change_as_if_one_after_the_other() {
    run_all(Theatre::new(database()), pairs::of_waiting());
}

#[test]
fn messages_meet_others_as_if_one_after_the_other() {
    run_all(Theatre::new(database()), workflows::of_messages());
}

#[test]
fn records_meet_others_as_if_one_after_the_other() {
    run_all(Theatre::new(database()), workflows::of_records());
}

#[test]
fn families_meet_as_if_one_after_the_other() {
    run_all(Theatre::new(database()), workflows::of_families());
}

#[test]
fn cancelled_parents_meet_their_children_as_if_one_after_the_other() {
    run_all(Theatre::new(database()), workflows::of_cancelled_parents());
}

#[test]
fn ended_parents_meet_ends_of_children_as_if_one_after_the_other() {
    let [ends, _] = workflows::of_ended_parents();
    run_all(Theatre::new(database()), vec![ends]);
}

#[test]
fn ended_parents_meet_claims_of_children_as_if_one_after_the_other() {
    let [_, claims] = workflows::of_ended_parents();
    run_all(Theatre::new(database()), vec![claims]);
}

#[test]
fn batches_of_every_kind_meet_without_a_deadlock() {
    storm::run(database());
}

#[test]
fn retries_from_a_step_meet_others_as_if_one_after_the_other() {
    run_all(Theatre::new(database()), workflows::of_rewinds());
}

#[test]
fn retries_from_a_step_meet_children_as_if_one_after_the_other() {
    run_all(Theatre::new(database()), workflows::of_rewound_parents());
}
