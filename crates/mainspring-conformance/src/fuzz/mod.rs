//! Fuzz targets: what must hold for any input, however hostile.
//!
//! A target is one function over bytes that panics where one of its properties does not hold. The normal suite runs
//! each over its corpus and over random inputs ([`check`]); `cargo xtask fuzz` runs the same functions under a fuzzer
//! that is led by coverage. The targets of the core are here; those of what a crate keeps to itself are in the module
//! `fuzz` of that crate, behind its feature of the same name.
//!
//! # Invariants
//! - A target depends on its bytes alone.
//! - What a fuzzer has found is in the corpus, and runs first from then on.

mod byte_source;
mod corpus;
mod jobs;
mod names;
mod outcomes;
mod rules;
mod times;

pub use corpus::corpus;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestError, TestRunner};

/// A name, which is also that of the corpus, and what must not panic.
pub type Target = (&'static str, fn(&[u8]));

/// The targets of the core.
pub const TARGETS: [Target; 11] = [
    ("names", names::names),
    ("ids", names::ids),
    ("times", times::times),
    ("spans", times::spans),
    ("backoffs", times::backoffs),
    ("outcomes", outcomes::outcomes),
    ("keys", jobs::keys),
    ("options", jobs::options),
    ("jobs", jobs::jobs),
    ("codes", jobs::codes),
    ("rules", rules::rules),
];

/// Random inputs of one target. All targets together take some seconds.
const CASES: u32 = 2_000;

/// Bytes of one random input.
const LENGTH: usize = 256;

/// The seed of every run, so that a run can be repeated; another is taken from `PROPTEST_RNG_SEED`.
const SEED: u64 = 20_261_115;

/// Runs a target over its corpus, then over random inputs, many of which are changed ones of the corpus.
/// `PROPTEST_CASES` asks for another number.
///
/// # Panics
/// With the shortest input found for which the target panics, as it would be written in its corpus.
pub fn check(name: &str, target: fn(&[u8])) {
    let corpus = corpus(name);
    assert!(!corpus.is_empty(), "target `{name}` has no corpus");
    for input in &corpus {
        target(input);
    }
    let set = |name: &str| std::env::var_os(name).is_some();
    let mut config = Config { failure_persistence: None, ..Config::default() };
    if !set("PROPTEST_CASES") {
        config.cases = CASES;
    }
    if !set("PROPTEST_RNG_SEED") {
        config.rng_seed = RngSeed::Fixed(SEED);
    }
    let outcome = TestRunner::new(config).run(&inputs(corpus), |input| {
        target(&input);
        Ok(())
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(why, input)) => panic!("{why}\nfor the input {}", input.escape_ascii()),
        Err(TestError::Abort(why)) => panic!("no input could be made: {why}"),
    }
}

/// Any bytes, or an input of the corpus with a few changes: only those reach far into a parser.
fn inputs(corpus: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let changed = (any::<prop::sample::Index>(), vec(change(), 0..4)).prop_map(move |(index, changes)| {
        let mut input = corpus[index.index(corpus.len())].clone();
        for (at, removed, added) in changes {
            let from = at.index(input.len() + 1);
            let to = from.saturating_add(removed).min(input.len());
            input.splice(from..to, added);
        }
        input
    });
    prop_oneof![1 => vec(any::<u8>(), 0..LENGTH), 3 => changed]
}

/// Where, how many bytes are taken out, and what comes in their place.
fn change() -> impl Strategy<Value = (prop::sample::Index, usize, Vec<u8>)> {
    (any::<prop::sample::Index>(), 0..4_usize, vec(any::<u8>(), 0..4))
}
