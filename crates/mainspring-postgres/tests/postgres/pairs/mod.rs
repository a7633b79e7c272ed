//! Pairs of operations on two handles of one Postgres, in every interleaving of their statements.
//!
//! What comes of each is held against the model, which does one after the other, in either order. Where a store need not
//! wait for what somebody else holds (a claim steps over locked jobs, a sweep leaves them for the next time), the pair
//! says what may happen instead.
#![expect(clippy::print_stdout, reason = "a run tells how many interleavings there were")]

mod limits;
mod orders;
mod plain_jobs;
mod random_batches;
mod stepping;
mod two_handles;
mod workflows;

use orders::{Pair, PairDatabase, run_all};

use crate::support::database;

/// Every so many of these pairs.
fn some(pairs: Vec<Pair>, (number, of): (usize, usize)) {
    let mine = pairs.into_iter().enumerate().filter(|(at, _)| at % of == number);
    run_all(PairDatabase::new(database()), mine.map(|(_, pair)| pair).collect());
}

/// Some of the interleavings of one of these pairs.
fn some_of(pairs: Vec<Pair>, pair: usize, (number, of): (usize, usize)) {
    let pair = pairs.into_iter().nth(pair).expect("a pair").part(number, of);
    run_all(PairDatabase::new(database()), vec![pair]);
}

/// Tests that do a group's work together, each its part of it, beside each other.
macro_rules! parts {
    ($($group:ident: $run:expr => $($part:ident)+;)+) => {
        $(
            mod $group {
                use super::*;

                const PARTS: &[&str] = &[$(stringify!($part)),+];

                $(
                    #[test]
                    fn $part() {
                        let number = PARTS.iter().position(|part| *part == stringify!($part));
                        $run((number.expect("one of them"), PARTS.len()));
                    }
                )+
            }
        )+
    };
}

// None takes more than about fifteen seconds on a machine that does nothing else.
parts! {
    claims_meet_others_as_if_one_after_the_other: |part| some(plain_jobs::of_claims(), part) => one two three;
    outcomes_meet_others_as_if_one_after_the_other: |part| some(plain_jobs::of_outcomes(), part) => all;
    nodes_meet_their_judges_as_if_one_after_the_other: |part| some(plain_jobs::of_nodes(), part) => all;
    keys_are_taken_and_released_as_if_one_after_the_other: |part| some(plain_jobs::of_keys(), part) => one two;
    waiting_jobs_change_as_if_one_after_the_other: |part| some(plain_jobs::of_waiting(), part) => one two;
    messages_meet_others_as_if_one_after_the_other: |part| some(workflows::of_messages(), part) => one two;
    records_meet_others_as_if_one_after_the_other: |part| some(workflows::of_records(), part) => all;
    families_meet_as_if_one_after_the_other: |part| some(workflows::of_families(), part) => one two;
    cancelled_parents_meet_ends_of_children_as_if_one_after_the_other:
        |part| some_of(workflows::of_cancelled_parents(), 0, part) => one two three four;
    cancelled_parents_meet_waits_of_children_as_if_one_after_the_other:
        |part| some_of(workflows::of_cancelled_parents(), 1, part) => all;
    cancelled_parents_meet_claims_of_children_as_if_one_after_the_other:
        |part| some_of(workflows::of_cancelled_parents(), 2, part) => one two;
    cancelled_parents_meet_cancelled_children_as_if_one_after_the_other:
        |part| some_of(workflows::of_cancelled_parents(), 3, part) => one two three four five six seven eight;
    ended_parents_meet_ends_of_children_as_if_one_after_the_other:
        |part| some_of(workflows::of_ended_parents(), 0, part) => one two;
    ended_parents_meet_claims_of_children_as_if_one_after_the_other:
        |part| some_of(workflows::of_ended_parents(), 1, part) => all;
    retries_from_a_step_meet_others_as_if_one_after_the_other: |part| some(workflows::of_rewinds(), part) => all;
    retries_from_a_step_meet_ends_of_children_as_if_one_after_the_other:
        |part| some_of(workflows::of_rewound_parents(), 0, part) => all;
    retries_from_a_step_meet_cancelled_children_as_if_one_after_the_other:
        |part| some_of(workflows::of_rewound_parents(), 1, part) => one two;
    limits_hold_whatever_interleaves: limits::run => one two three four five six seven eight;
    batches_of_every_kind_meet_without_a_deadlock: |part| random_batches::run(database(), part) => one two three four;
}

/// Pairs whose interleavings are shared out by their place in a group are all there are in it.
#[test]
fn every_pair_has_its_tests() {
    let groups =
        [workflows::of_cancelled_parents(), workflows::of_ended_parents(), workflows::of_rewound_parents()];
    assert_eq!(groups.map(|group| group.len()), [4, 2, 2]);
}
