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

use crate::batch::{Batcher, FlushSize, Flushed, Weight, fitting};
use crate::sync::{Mutex, MutexGuard};

/// What its two batchers are called in logs.
const PARTS: [&str; 2] = ["record, even jobs", "record, odd jobs"];
/// Waits after a failed flush: first and longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));

/// Something to be recorded by a node.
#[derive(Debug, Clone)]
pub(crate) struct NodeRecording {
    pub(crate) node: NodeNo,
    pub(crate) recording: Recording,
}

impl Weight for NodeRecording {
    fn bytes(&self) -> usize {
        let children = self.recording.children.iter().map(|child| child.job.input.len());
        self.recording.writes.bytes() + children.sum::<usize>()
    }

    fn order_key(&self) -> i64 {
        self.recording.claim.row.0
    }
}

/// Two batchers, each for half of the jobs: while one half's commit is on its way, the handlers of the other run. All that
/// one job records goes through one batcher, and so is stored in order.
pub(crate) struct Recorder([Batcher<NodeRecording, Result<Recorded>>; 2]);

impl Recorder {
    fn batcher_of(&self, item: &NodeRecording) -> &Batcher<NodeRecording, Result<Recorded>> {
        &self.0[usize::from(item.recording.claim.row.0 & 1 == 1)]
    }

    /// Records, and waits until it is stored.
    pub(crate) async fn send(&self, item: NodeRecording) -> Result<Result<Recorded>> {
        self.batcher_of(&item).send(item).await
    }

    /// Records; the answer comes when it is stored. What one job hands in is stored in that order.
    pub(crate) fn post(&self, item: NodeRecording) -> Result<oneshot::Receiver<Result<Result<Recorded>>>> {
        self.batcher_of(&item).post(item)
    }
}

/// What the recorder asks its node.
pub(crate) trait RecorderHost: Send + Sync + 'static {
    /// Whether the node is gone, so that it is no use to go on.
    fn is_gone(&self) -> bool;
    /// A flush failed, and is tried again.
    fn failed(&self, part: &'static str, error: &Error);
    /// A flush was answered.
    fn answered(&self, part: &'static str);
    /// A job has pushed output.
    fn has_output(&self, job: JobId);
}

/// A recorder of a node.
pub(crate) fn start(store: &Arc<dyn Store>, seams: &Seams, host: &Arc<dyn RecorderHost>) -> Recorder {
    Recorder(PARTS.map(|part| batcher(part, Arc::clone(store), seams, Arc::clone(host))))
}

/// What one flush tells the next.
struct FlushPacing {
    size: FlushSize,
    state: Mutex<Trouble>,
}

struct Trouble {
    /// How long to wait after the next flush that fails.
    wait: Duration,
    /// Jobs whose recordings failed alone while others were stored: they are offered last, and each alone.
    alone: BTreeSet<i64>,
}

impl FlushPacing {
    fn new() -> Self {
        let state = Mutex::new(Trouble { wait: BACKOFF.0, alone: BTreeSet::new() });
        FlushPacing { size: FlushSize::default(), state }
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
    fn piece(&self, items: &[NodeRecording], left: &[usize]) -> Vec<usize> {
        let trouble = self.lock();
        let others = left.iter().copied().filter(|&at| !trouble.alone.contains(&items[at].order_key()));
        let others: Vec<usize> = others.collect();
        let Some(&first) = others.first() else { return left.iter().copied().take(1).collect() };
        // Recordings of an earlier membership go under its number: the store refuses them.
        let mine = || others.iter().copied().filter(|&at| items[at].node == items[first].node);
        let count = fitting(mine().map(|at| &items[at]), self.size.get());
        mine().take(count).collect()
    }
}

fn batcher(
    part: &'static str,
    store: Arc<dyn Store>,
    seams: &Seams,
    host: Arc<dyn RecorderHost>,
) -> Batcher<NodeRecording, Result<Recorded>> {
    let clock = Arc::clone(&seams.clock);
    let pacing = Arc::new(FlushPacing::new());
    Batcher::handing_back(Arc::clone(&seams.spawn), move |items: Vec<NodeRecording>| {
        let (store, clock, host) = (Arc::clone(&store), Arc::clone(&clock), Arc::clone(&host));
        let pacing = Arc::clone(&pacing);
        Box::pin(async move {
            let mut answers: Vec<Option<Result<Recorded>>> = items.iter().map(|_| None).collect();
            let (mut failed, mut stored) = (BTreeSet::new(), false);
            loop {
                let is_left = |&at: &usize| answers[at].is_none() && !failed.contains(&items[at].order_key());
                let left: Vec<usize> = (0..items.len()).filter(is_left).collect();
                let piece = pacing.piece(&items, &left);
                let Some(&first) = piece.first() else { break };
                let order_key = items[first].order_key();
                let began = clock.monotonic();
                match offer(&*store, (part, &*host), items[first].node, &items, &piece).await {
                    Ok(recorded) => {
                        pacing.size.stored(clock.monotonic().saturating_sub(began));
                        stored = true;
                        let mut trouble = pacing.lock();
                        trouble.wait = BACKOFF.0;
                        trouble.alone.remove(&order_key);
                        for (&at, answer) in piece.iter().zip(recorded) {
                            answers[at] = Some(Ok(answer));
                        }
                    }
                    Err(error) if error.is_retryable() && !host.is_gone() => {
                        host.failed(part, &error);
                        // What is known to fail alone says nothing of the others.
                        if !pacing.lock().alone.contains(&order_key) {
                            pacing.size.failed(piece.len());
                        }
                        if piece.len() == 1 {
                            failed.insert(order_key);
                        }
                        let wait = pacing.wait();
                        clock.sleep(wait).await;
                    }
                    // One that the store refuses does not take the others with it.
                    Err(Error::TooLarge { .. } | Error::Invalid { .. }) if piece.len() > 1 => {
                        pacing.size.failed(piece.len());
                    }
                    Err(error @ (Error::TooLarge { .. } | Error::Invalid { .. })) => {
                        pacing.lock().alone.remove(&order_key);
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
                pacing.lock().alone.extend(failed);
            }
            let flushed = answers.into_iter().zip(items).map(|(answer, item)| {
                let Some(answer) = answer else { return Flushed::Back(item) };
                if !item.recording.writes.output.is_empty() {
                    host.has_output(item.recording.claim.id);
                }
                Flushed::Answered(answer)
            });
            Ok(flushed.collect())
        })
    })
}

/// Offers some of these recordings to the store. They are copied for it; one flush is bounded.
async fn offer(
    store: &dyn Store,
    (part, host): (&'static str, &dyn RecorderHost),
    node: NodeNo,
    items: &[NodeRecording],
    piece: &[usize],
) -> Result<Vec<Recorded>> {
    fault::point!("step.recording");
    let answers = store.record(node, piece.iter().map(|&at| items[at].recording.clone()).collect()).await?;
    fault::point!("step.recorded");
    host.answered(part);
    Ok(answers)
}
