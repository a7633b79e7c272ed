//! A memory store whose calls take their time, fail, lose their answers or never end.

use std::time::Duration;

use mainspring_core::memory::Memory;
use mainspring_core::seam::{Clock, Pending};
use mainspring_core::store::Store;
use mainspring_core::store::decorator::{Call, Decorator};
use mainspring_core::{Error, Result};
use mainspring_testkit::clock::ManualClock;

use super::yield_point;

/// What happens to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    /// It is done and answered.
    Answered,
    /// It is done and answered after a time.
    Late(Duration),
    /// It is not done, and its error says so.
    Failed,
    /// It is done, and its answer is lost.
    Lost,
    /// It is done, and never answered.
    Silent,
}

pub(crate) struct FailingStore {
    memory: Memory,
    clock: ManualClock,
    outcome: Box<dyn Fn(&'static str) -> CallOutcome + Send + Sync>,
}

impl FailingStore {
    pub(crate) fn new(
        memory: Memory,
        clock: ManualClock,
        outcome: impl Fn(&'static str) -> CallOutcome + Send + Sync + 'static,
    ) -> Self {
        FailingStore { memory, clock, outcome: Box::new(outcome) }
    }
}

impl Decorator for FailingStore {
    fn inner(&self) -> &dyn Store {
        &self.memory
    }

    fn around<C: Call>(&self, call: C) -> Pending<'_, Result<C::Answer>> {
        let outcome = (self.outcome)(C::METHOD.name);
        Box::pin(async move {
            yield_point();
            if outcome == CallOutcome::Failed {
                return Err(Error::unavailable("the interleaving has it so"));
            }
            let answer = call.make(&self.memory).await;
            yield_point();
            match outcome {
                CallOutcome::Answered | CallOutcome::Failed => answer,
                CallOutcome::Late(time) => {
                    self.clock.sleep(time).await;
                    answer
                }
                CallOutcome::Lost => Err(Error::OutcomeUnknown { source: None }),
                CallOutcome::Silent => std::future::pending().await,
            }
        })
    }
}
