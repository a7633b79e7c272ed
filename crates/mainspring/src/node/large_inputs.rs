//! LargeInputs that are too large to come with their claims: read when their handlers start, many in one call.
//!
//! A claim brings the sizes of such inputs, so that a call can be bounded in bytes. A call that failed may have been too much
//! for its time, or one of its inputs cannot be read: the next one is half of it. Each handler asks again by itself until its
//! input is there.
//!
//! # Invariants
//! - The input of a job that does not run yet is in memory only if it is at most
//!   [`CLAIM_INPUT_BYTES`](mainspring_core::bounds::CLAIM_INPUT_BYTES).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mainspring_core::Result;
use mainspring_core::id::Claim;
use mainspring_core::seam::Seams;
use mainspring_core::store::Store;

use super::NodeShared;
use crate::batch::{Batcher, FlushSize, Weight, fitting, meaning};
use crate::job_run::JobRun;
use crate::sync::AtomicUsize;

/// What it is called in logs.
const PART: &str = "read inputs";
/// Waits before an input is asked for again: first and longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// An input that is asked for, and its size.
struct InputRequest {
    claim: Claim,
    bytes: usize,
}

impl Weight for InputRequest {
    fn bytes(&self) -> usize {
        self.bytes
    }
}

pub(super) struct LargeInputs {
    asks: Batcher<InputRequest, Result<Option<Vec<u8>>>>,
    /// How many handlers ask again, because the store did not answer.
    failing: AtomicUsize,
}

/// A handler that asks again. When the last of them leaves, nobody finds out any more whether the store answers.
struct FailingRead<'a>(&'a NodeShared);

impl<'a> FailingRead<'a> {
    fn new(shared: &'a NodeShared) -> Self {
        shared.inputs.failing.fetch_add(1, Ordering::Relaxed);
        FailingRead(shared)
    }
}

impl Drop for FailingRead<'_> {
    fn drop(&mut self) {
        if self.0.inputs.failing.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.answered(PART);
        }
    }
}

impl LargeInputs {
    pub(super) fn new(store: &Arc<dyn Store>, seams: &Seams) -> Self {
        let (store, clock) = (Arc::clone(store), Arc::clone(&seams.clock));
        let size = Arc::new(FlushSize::default());
        let asks = Batcher::new(Arc::clone(&seams.spawn), move |asks: Vec<InputRequest>| {
            let (store, clock, size) = (Arc::clone(&store), Arc::clone(&clock), Arc::clone(&size));
            Box::pin(async move {
                let mut answers = Vec::with_capacity(asks.len());
                while answers.len() < asks.len() {
                    let rest = &asks[answers.len()..];
                    let piece = &rest[..fitting(rest.iter(), size.get())];
                    let began = clock.monotonic();
                    match store.inputs(piece.iter().map(|ask| ask.claim).collect()).await {
                        Ok(inputs) => {
                            size.stored(clock.monotonic().saturating_sub(began));
                            answers.extend(inputs.into_iter().map(Ok));
                        }
                        // One that cannot be read does not take the others with it.
                        Err(error) if !error.is_retryable() && piece.len() > 1 => size.failed(piece.len()),
                        Err(error) if !error.is_retryable() => answers.push(Err(error)),
                        // Who asks again may find himself in other company.
                        Err(error) => {
                            size.failed(piece.len());
                            answers.extend(rest.iter().map(|_| Err(meaning(&error))));
                        }
                    }
                }
                Ok(answers)
            })
        });
        LargeInputs { asks, failing: AtomicUsize::new(0) }
    }

    /// Reads the input of a job, as often as it takes; `None` if the job is not there any more.
    pub(super) async fn read(
        &self,
        shared: &NodeShared,
        run: &JobRun,
        bytes: usize,
    ) -> Result<Option<Vec<u8>>> {
        let (mut wait, mut failing) = (BACKOFF.0, None);
        loop {
            match self.asks.send(InputRequest { claim: run.claim, bytes }).await.flatten() {
                Err(error) if error.is_retryable() => {
                    shared.failed(PART, &error);
                    failing.get_or_insert_with(|| FailingRead::new(shared));
                    shared.clock().sleep(wait).await;
                    wait = (wait * 2).min(BACKOFF.1);
                }
                answer => {
                    shared.answered(PART);
                    return answer;
                }
            }
        }
    }
}
