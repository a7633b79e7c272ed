//! The model test: a store and the memory store live through the same random life.
//!
//! proptest makes sequences of operations over a small universe (three nodes, three queues, three kinds, eight keys,
//! twenty jobs, of which eight are children only), so that operations meet each other often. Each is applied to the store and to the memory store; the
//! answers must agree, and so must everything that can be seen of both afterwards. Where stores may differ, the model
//! is a relation: which of several jobs of one level and one moment is claimed first is the store's own affair, and the
//! model follows. How much of a job's past comes with a claim is the store's affair too, and so is in which order the ends
//! of one call reach their families: what belongs together is ended call by call. Numbers of nodes, rows and messages are
//! each store's own.
//!
//! # Invariants
//! - After every operation listing, ends of jobs, counts, queues, nodes and self-check agree; at the end every record and every
//!   timeline does.
//! - A failure is shrunk to a short sequence, which is printed as it would be written in a test.

mod life;
mod limits;
mod op;
mod view;
mod workflow;

pub use op::{ClaimRef, End, HandlerWork, JobDraft, JournalNote, MessageSubject, Op, Pause};

use proptest::test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner};

use crate::executor::block_on;
use crate::harness::Harness;

/// Operations in one life, at most.
const LENGTH: usize = 100;

/// The seed of every run, so that a run can be repeated; another is taken from `PROPTEST_RNG_SEED`.
const SEED: u64 = 20_260_731;

/// Lives through so many random lives, each with a fresh store. `PROPTEST_CASES` asks for another number.
///
/// # Panics
/// With the shortest life found in which the store and the model differ.
pub fn agrees_with_the_model(cases: u32, factory: impl Fn() -> Harness) {
    run(cases, false, factory);
}

/// The same with lives in which jobs have limits, and somebody changes limits and totals.
///
/// # Panics
/// With the shortest life found in which the store and the model differ.
pub fn agrees_with_the_model_about_limits(cases: u32, factory: impl Fn() -> Harness) {
    run(cases, true, factory);
}

fn run(cases: u32, limits: bool, factory: impl Fn() -> Harness) {
    let set = |name: &str| std::env::var_os(name).is_some();
    let mut config = Config { failure_persistence: None, ..Config::default() };
    if !set("PROPTEST_MAX_SHRINK_ITERS") {
        config.max_shrink_iters = 4_000;
    }
    if !set("PROPTEST_CASES") {
        config.cases = cases;
    }
    if !set("PROPTEST_RNG_SEED") {
        config.rng_seed = RngSeed::Fixed(SEED);
    }
    let outcome = TestRunner::new(config)
        .run(&op::lives(LENGTH, limits), |ops| lived(&factory(), &ops, limits).map_err(TestCaseError::fail));
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(why, ops)) => panic!("{why}\nin the life {ops:#?}"),
        Err(TestError::Abort(why)) => panic!("no life could be made: {why}"),
    }
}

/// Lives through one life.
///
/// # Errors
/// What differs, and after which operation.
pub fn replay(harness: &Harness, ops: &[Op]) -> Result<(), String> {
    lived(harness, ops, false)
}

/// The same with limits.
///
/// # Errors
/// What differs, and after which operation.
pub fn replay_with_limits(harness: &Harness, ops: &[Op]) -> Result<(), String> {
    lived(harness, ops, true)
}

fn lived(harness: &Harness, ops: &[Op], limits: bool) -> Result<(), String> {
    block_on(async {
        let mut life = life::Life::new(harness, limits);
        life.begin().await?;
        for (index, op) in ops.iter().enumerate() {
            life.live(op).await.map_err(|why| format!("operation {index}, {op:?}: {why}"))?;
        }
        life.end().await.map_err(|why| format!("at the end: {why}"))
    })
}
