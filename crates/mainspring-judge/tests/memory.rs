//! The conformance suite on the memory store.

use std::sync::Arc;

use mainspring_core::memory::Memory;
use mainspring_judge::clock::ManualClock;
use mainspring_judge::harness::{Harness, Repair};

fn memory() -> Harness {
    let clock = ManualClock::new();
    let memory = Memory::new(Arc::new(clock.clone()));
    let damaged = memory.another();
    Harness::new(clock, move || Arc::new(memory.another()))
        .damaged_by(move |id, what, mend| damaged.damage(id, (mend == Repair::No).then_some(what.word())))
}

mainspring_judge::conformance_tests!(memory);

/// The model against itself: in no life does it break its own rules.
#[test]
fn model_is_sound() {
    mainspring_judge::model::agrees_with_the_model(50, memory);
}
