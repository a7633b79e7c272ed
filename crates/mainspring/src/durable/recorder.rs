//! The recorder: stores what handlers record, many in one commit.
//!
//! A recording is offered again until the store has taken or refused it, or the node is gone. A refusal is final: the
//! claim was not ours any more. A flush that failed is offered again in halves: it may have been too much for one call.

use std::sync::Arc;
use std::time::Duration;

use mainspring_core::id::{JobId, NodeNo};
use mainspring_core::journal::{Recorded, Recording};
use mainspring_core::seam::Seams;
use mainspring_core::store::Store;
use mainspring_core::{Error, Result, fault};

use tokio::sync::oneshot;

use crate::batch::{Batcher, FlushSize, Weight, fitting};

/// What its two ways are called in logs.
const PARTS: [&str; 2] = ["record", "record, second way"];
/// Waits after a failed flush: first and longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));

/// Something to be recorded by a node.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    pub(crate) node: NodeNo,
    pub(crate) recording: Recording,
}

impl Weight for Item {
    fn bytes(&self) -> usize {
        let children = self.recording.children.iter().map(|child| child.job.input.len());
        self.recording.writes.bytes() + children.sum::<usize>()
    }
}

/// Two ways to the store, each for half of the jobs: while one half's commit is on its way, the handlers of the other have
/// their turn. All that one job records goes one way, and so is stored in order.
pub(crate) struct Recorder([Batcher<Item, Result<Recorded>>; 2]);

impl Recorder {
    fn way(&self, item: &Item) -> &Batcher<Item, Result<Recorded>> {
        &self.0[usize::from(item.recording.claim.row.0 & 1 == 1)]
    }

    /// Records, and waits until it is stored.
    pub(crate) async fn send(&self, item: Item) -> Result<Result<Recorded>> {
        self.way(&item).send(item).await
    }

    /// Records; the answer comes when it is stored. What one job hands in is stored in that order.
    pub(crate) fn post(&self, item: Item) -> Result<oneshot::Receiver<Result<Result<Recorded>>>> {
        self.way(&item).post(item)
    }
}

/// What the recorder asks its node.
pub(crate) trait Watch: Send + Sync + 'static {
    /// Whether the node is gone, so that it is no use to go on.
    fn is_gone(&self) -> bool;
    /// A flush failed, and is tried again.
    fn failed(&self, part: &'static str, error: &Error);
    /// A flush was answered.
    fn answered(&self, part: &'static str);
    /// A job has said something.
    fn said(&self, job: JobId);
}

/// A recorder of a node.
pub(crate) fn start(store: &Arc<dyn Store>, seams: &Seams, watch: &Arc<dyn Watch>) -> Recorder {
    Recorder(PARTS.map(|part| batcher(part, Arc::clone(store), seams, Arc::clone(watch))))
}

fn batcher(
    part: &'static str,
    store: Arc<dyn Store>,
    seams: &Seams,
    watch: Arc<dyn Watch>,
) -> Batcher<Item, Result<Recorded>> {
    let clock = Arc::clone(&seams.clock);
    let size = Arc::new(FlushSize::default());
    Batcher::new(Arc::clone(&seams.spawn), move |items: Vec<Item>| {
        let (store, clock, watch) = (Arc::clone(&store), Arc::clone(&clock), Arc::clone(&watch));
        let size = Arc::clone(&size);
        Box::pin(async move {
            let mut answers: Vec<Option<Result<Recorded>>> = items.iter().map(|_| None).collect();
            let mut wait = BACKOFF.0;
            // Recordings of an earlier membership are told apart by their node: the store refuses them.
            while let Some(first) = answers.iter().position(Option::is_none) {
                let node = items[first].node;
                let mine: Vec<usize> = (first..items.len())
                    .filter(|&at| items[at].node == node && answers[at].is_none())
                    .collect();
                // In their order, so that what one job hands in is stored in that order.
                let piece = &mine[..fitting(mine.iter().map(|&at| &items[at]), size.get())];
                let began = clock.monotonic();
                match offer(&*store, (part, &*watch), node, &items, piece).await {
                    Ok(told) => {
                        size.stored(clock.monotonic().saturating_sub(began));
                        wait = BACKOFF.0;
                        for (&at, answer) in piece.iter().zip(told) {
                            answers[at] = Some(Ok(answer));
                        }
                    }
                    Err(error) if error.is_retryable() && !watch.is_gone() => {
                        watch.failed(part, &error);
                        size.failed(piece.len());
                        clock.sleep(wait).await;
                        wait = (wait * 2).min(BACKOFF.1);
                    }
                    // One that the store refuses does not take the others with it.
                    Err(Error::TooLarge { .. } | Error::Invalid { .. }) if piece.len() > 1 => {
                        size.failed(piece.len());
                    }
                    Err(error @ (Error::TooLarge { .. } | Error::Invalid { .. })) => {
                        answers[first] = Some(Err(error));
                    }
                    Err(error) => {
                        for &at in &mine {
                            answers[at] = Some(Err(crate::batch::meaning(&error)));
                        }
                        answers[mine[0]] = Some(Err(error));
                    }
                }
            }
            for Item { recording, .. } in items.iter().filter(|item| !item.recording.writes.output.is_empty())
            {
                watch.said(recording.claim.id);
            }
            Ok(answers.into_iter().map(|answer| answer.unwrap_or(Ok(Recorded::LeaseLost))).collect())
        })
    })
}

/// Offers some of these recordings to the store. They are copied for it; one flush is bounded.
async fn offer(
    store: &dyn Store,
    (part, watch): (&'static str, &dyn Watch),
    node: NodeNo,
    items: &[Item],
    piece: &[usize],
) -> Result<Vec<Recorded>> {
    fault::point!("step.recording");
    let answers = store.record(node, piece.iter().map(|&at| items[at].recording.clone()).collect()).await?;
    fault::point!("step.recorded");
    watch.answered(part);
    Ok(answers)
}
