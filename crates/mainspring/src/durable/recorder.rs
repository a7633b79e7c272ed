//! The recorder: stores what handlers record, many in one commit.
//!
//! A recording is offered again until the store has taken or refused it, or the node is gone. A refusal is final: the
//! claim was not ours any more. A flush that failed is offered again in halves: it may have been too much for one call.
//!
//! # Invariants
//! - No job's recording keeps those of others from being stored: one that fails alone lets them go first.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use mainspring_core::id::{JobId, NodeNo};
use mainspring_core::journal::{Recorded, Recording};
use mainspring_core::seam::Seams;
use mainspring_core::store::Store;
use mainspring_core::{Error, Result, fault};

use tokio::sync::oneshot;

use crate::batch::{Batcher, FlushSize, Told, Weight, fitting};
use crate::sync::{Mutex, MutexGuard};

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

    fn lane(&self) -> i64 {
        self.recording.claim.row.0
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

/// What one flush tells the next.
struct Pace {
    size: FlushSize,
    state: Mutex<Trouble>,
}

struct Trouble {
    /// How long to wait after the next flush that fails.
    wait: Duration,
    /// Jobs whose recordings failed alone while others were stored: they are offered last, and each alone.
    alone: BTreeSet<i64>,
}

impl Pace {
    fn new() -> Self {
        let state = Mutex::new(Trouble { wait: BACKOFF.0, alone: BTreeSet::new() });
        Pace { size: FlushSize::default(), state }
    }

    fn lock(&self) -> MutexGuard<'_, Trouble> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long to wait this time.
    fn wait(&self) -> Duration {
        let wait = &mut self.lock().wait;
        std::mem::replace(wait, (*wait * 2).min(BACKOFF.1))
    }

    /// Which of those that are left are offered next: what is of the first one's node and fits into a flush, in order.
    fn piece(&self, items: &[Item], left: &[usize]) -> Vec<usize> {
        let trouble = self.lock();
        let others = left.iter().copied().filter(|&at| !trouble.alone.contains(&items[at].lane()));
        let others: Vec<usize> = others.collect();
        let Some(&first) = others.first() else { return left.iter().copied().take(1).collect() };
        // Recordings of an earlier membership are told apart by their node: the store refuses them.
        let mine = || others.iter().copied().filter(|&at| items[at].node == items[first].node);
        let count = fitting(mine().map(|at| &items[at]), self.size.get());
        mine().take(count).collect()
    }
}

fn batcher(
    part: &'static str,
    store: Arc<dyn Store>,
    seams: &Seams,
    watch: Arc<dyn Watch>,
) -> Batcher<Item, Result<Recorded>> {
    let clock = Arc::clone(&seams.clock);
    let pace = Arc::new(Pace::new());
    Batcher::handing_back(Arc::clone(&seams.spawn), move |items: Vec<Item>| {
        let (store, clock, watch) = (Arc::clone(&store), Arc::clone(&clock), Arc::clone(&watch));
        let pace = Arc::clone(&pace);
        Box::pin(async move {
            let mut answers: Vec<Option<Result<Recorded>>> = items.iter().map(|_| None).collect();
            let (mut failed, mut stored) = (BTreeSet::new(), false);
            loop {
                let is_left = |&at: &usize| answers[at].is_none() && !failed.contains(&items[at].lane());
                let left: Vec<usize> = (0..items.len()).filter(is_left).collect();
                let piece = pace.piece(&items, &left);
                let Some(&first) = piece.first() else { break };
                let lane = items[first].lane();
                let began = clock.monotonic();
                match offer(&*store, (part, &*watch), items[first].node, &items, &piece).await {
                    Ok(told) => {
                        pace.size.stored(clock.monotonic().saturating_sub(began));
                        stored = true;
                        let mut trouble = pace.lock();
                        trouble.wait = BACKOFF.0;
                        trouble.alone.remove(&lane);
                        for (&at, answer) in piece.iter().zip(told) {
                            answers[at] = Some(Ok(answer));
                        }
                    }
                    Err(error) if error.is_retryable() && !watch.is_gone() => {
                        watch.failed(part, &error);
                        // What is known to fail alone says nothing of the others.
                        if !pace.lock().alone.contains(&lane) {
                            pace.size.failed(piece.len());
                        }
                        if piece.len() == 1 {
                            failed.insert(lane);
                        }
                        let wait = pace.wait();
                        clock.sleep(wait).await;
                    }
                    // One that the store refuses does not take the others with it.
                    Err(Error::TooLarge { .. } | Error::Invalid { .. }) if piece.len() > 1 => {
                        pace.size.failed(piece.len());
                    }
                    Err(error @ (Error::TooLarge { .. } | Error::Invalid { .. })) => {
                        pace.lock().alone.remove(&lane);
                        answers[first] = Some(Err(error));
                    }
                    Err(error) => {
                        let node = items[first].node;
                        for (answer, item) in answers.iter_mut().zip(&items) {
                            if item.node == node && answer.is_none() {
                                *answer = Some(Err(crate::batch::meaning(&error)));
                            }
                        }
                        answers[first] = Some(Err(error));
                    }
                }
            }
            if stored {
                pace.lock().alone.extend(failed);
            }
            let told = answers.into_iter().zip(items).map(|(answer, item)| {
                let Some(answer) = answer else { return Told::Back(item) };
                if !item.recording.writes.output.is_empty() {
                    watch.said(item.recording.claim.id);
                }
                Told::Answered(answer)
            });
            Ok(told.collect())
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
