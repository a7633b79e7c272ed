//! The conformance suite, and random lives, on the memory store; the fuzz targets of the core.

mod fuzz;

use std::sync::Arc;

use mainspring_conformance::clock::ManualClock;
use mainspring_conformance::harness::{Harness, Repair};
use mainspring_core::memory::Memory;

fn memory() -> Harness {
    let clock = ManualClock::new();
    let memory = Memory::new(Arc::new(clock.clone()));
    let damaged = memory.another();
    Harness::new(clock, move || Arc::new(memory.another()))
        .damaged_by(move |id, what, mend| damaged.damage(id, (mend == Repair::No).then_some(what.word())))
}

mainspring_conformance::conformance_tests!(memory);
mainspring_conformance::limit_conformance_tests!(memory);

/// The model against itself: in no life does it break its own rules.
#[test]
fn model_is_sound() {
    mainspring_conformance::model::agrees_with_the_model(50, memory);
}

/// The same with limits.
#[test]
fn model_is_sound_with_limits() {
    mainspring_conformance::model::agrees_with_the_model_about_limits(200, memory);
}
