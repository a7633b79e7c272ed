//! Storing jobs: batches, repeats, and jobs that a batch must not wait for.
//!
//! A batch is one commit. If its answer is lost it is repeated: ids make that harmless. A job whose unique key is in the
//! hands of somebody's open transaction comes back [`Contended`](Receipt::Contended) and is asked for again by itself,
//! on its own caller's time: nobody knows when that transaction ends, and the rest of the batch must not wait for it.

use std::sync::Arc;
use std::time::Duration;

use mainspring_core::job::New;
use mainspring_core::planted::{self, Defect};
use mainspring_core::seam::Clock;
use mainspring_core::store::{Receipt, Store};
use mainspring_core::{Error, Result, fault};

use crate::batch::Weight;

/// Tries of an enqueue whose answer was lost, before the caller gets the error.
const REPEATS: usize = 3;
/// Waits before a contended job is asked for again: first and longest. Most transactions end within milliseconds.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));
/// How long a caller waits for an open transaction that has his key.
const PATIENCE: Duration = Duration::from_secs(5);

impl Weight for New {
    fn bytes(&self) -> usize {
        New::bytes(self)
    }
}

/// Stores a batch, repeating it if the answer is lost. What a repeat is refused with says nothing of the first try, which
/// stays unknown. What a repeat finds stored was stored by the first try, as far as anybody can tell.
pub(crate) async fn flush(store: &dyn Store, jobs: &[New]) -> Result<Vec<Receipt>> {
    let mut unknown = None;
    for left in (0..REPEATS).rev() {
        match store.enqueue(jobs.to_vec()).await {
            Err(error @ Error::OutcomeUnknown { .. }) if left > 0 => unknown = Some(error),
            Err(error) => return Err(unknown.unwrap_or(error)),
            Ok(receipts) if unknown.is_none() => return Ok(receipts),
            Ok(receipts) => return Ok(receipts.into_iter().map(own).collect()),
        }
    }
    Err(unknown.unwrap_or(Error::OutcomeUnknown { source: None }))
}

/// What a receipt says to whoever has asked for the same before, and was not answered.
fn own(receipt: Receipt) -> Receipt {
    if receipt == Receipt::Repeated { Receipt::Created } else { receipt }
}

/// Stores jobs of different callers: one that the store refuses does not take the others with it.
pub(crate) async fn flush_each(store: Arc<dyn Store>, jobs: Vec<New>) -> Result<Vec<Result<Receipt>>> {
    if planted::is(Defect::EarlyAnswer) {
        let count = jobs.len();
        drop(store.enqueue(jobs).await);
        return Ok((0..count).map(|_| Ok(Receipt::Created)).collect());
    }
    match flush(&*store, &jobs).await {
        Ok(receipts) => {
            fault::point!("engine.enqueued");
            Ok(receipts.into_iter().map(Ok).collect())
        }
        Err(Error::TooLarge { .. } | Error::Invalid { .. } | Error::UnknownLimit { .. })
            if jobs.len() > 1 =>
        {
            let mut answers = Vec::with_capacity(jobs.len());
            for job in jobs.chunks(1) {
                let answer = flush(&*store, job).await;
                answers.push(answer.map(|receipts| only(&receipts)));
            }
            Ok(answers)
        }
        Err(error) => Err(error),
    }
}

/// How long contended jobs are still asked for: all of one call share one time.
pub(crate) struct ContendedRetry {
    until: Option<Duration>,
}

impl ContendedRetry {
    pub(crate) fn new() -> Self {
        ContendedRetry { until: None }
    }

    /// Asks for a contended job by itself, until the store says what became of it or the time is up; then it is still
    /// contended.
    pub(crate) async fn ask(&mut self, store: &dyn Store, clock: &dyn Clock, job: &New) -> Result<Receipt> {
        let mut wait = BACKOFF.0;
        let until = *self.until.get_or_insert_with(|| clock.monotonic() + PATIENCE);
        loop {
            let left = until.saturating_sub(clock.monotonic());
            if left.is_zero() {
                return Ok(Receipt::Contended);
            }
            clock.sleep(wait.min(left)).await;
            match only(&flush(store, std::slice::from_ref(job)).await?) {
                Receipt::Contended => wait = (wait * 2).min(BACKOFF.1),
                receipt => return Ok(receipt),
            }
        }
    }
}

/// The answer for the only job of a call.
pub(crate) fn only(receipts: &[Receipt]) -> Receipt {
    receipts.first().copied().unwrap_or(Receipt::Created)
}
