//! The finisher: stores outcomes, many in one commit.
//!
//! An outcome is kept and offered again until the store has taken or refused it. A refusal is final: the claim was not
//! ours any more. A flush that failed is offered again in halves: it may have been too much for one call.
//!
//! # Invariants
//! - A flush has no more outcomes than [`bounds::BATCH`], and no more bytes than [`bounds::BATCH_BYTES`] unless it is one
//!   outcome alone.
//! - No outcome keeps others from being stored: one that fails alone lets them go first.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mainspring_core::job::Outcome;
use mainspring_core::store::{Finish, Finished};
use mainspring_core::{bounds, fault};
use tokio::sync::mpsc;

use super::slot_table::Backlog;
use super::{NodeShared, Phase, broken};
use crate::batch::{FlushSize, Weight, fitting};
use crate::job_run::JobRun;
use crate::sync::AtomicUsize;

/// What it is called in logs.
const PART: &str = "finish";
/// Waits after a failed flush: first and longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// An outcome on its way to the store.
pub(super) struct UnstoredOutcome {
    pub(super) run: Arc<JobRun>,
    pub(super) finish: Finish,
}

impl Weight for UnstoredOutcome {
    fn bytes(&self) -> usize {
        self.finish.outcome.bytes()
    }
}

/// Outcomes that are not stored yet, and their bytes.
#[derive(Default)]
pub(super) struct Unstored {
    count: AtomicUsize,
    bytes: AtomicUsize,
}

impl Unstored {
    pub(super) fn add(&self, outcome: &Outcome) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(outcome.bytes(), Ordering::Relaxed);
    }

    pub(super) fn remove<'a>(&self, outcomes: impl Iterator<Item = &'a Outcome>) {
        let (mut count, mut bytes) = (0, 0);
        for outcome in outcomes {
            count += 1;
            bytes += outcome.bytes();
        }
        self.count.fetch_sub(count, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether their bytes are more than may wait while a node claims.
    pub(super) fn is_heavy(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > bounds::UNSTORED_BYTES
    }
}

/// What waits to be stored, and whether the store has not taken the last that it was offered.
pub(super) fn backlog(shared: &NodeShared) -> Backlog {
    Backlog { count: shared.unstored.count(), stuck: shared.outage.is_failing(PART) }
}

/// Whether the node claims nothing because the store does not take its outcomes. What merely waits for its turn is no reason to
/// tell anybody.
pub(super) fn is_backed_up(shared: &NodeShared) -> bool {
    let backlog = backlog(shared);
    backlog.stuck && (shared.unstored.is_heavy() || !shared.slot_table.has_room(backlog))
}

pub(super) async fn run(shared: Arc<NodeShared>, mut entries: mpsc::UnboundedReceiver<UnstoredOutcome>) {
    let (mut waiting, mut received) = (VecDeque::new(), Vec::new());
    let (size, mut wait) = (FlushSize::default(), BACKOFF.0);
    while shared.phase() < Phase::Stopped {
        if waiting.is_empty() {
            tokio::select! {
                biased;
                received = entries.recv_many(&mut received, bounds::BATCH) => if received == 0 { return },
                () = shared.reached(Phase::Stopped) => return,
            }
            waiting.extend(received.drain(..));
        } else {
            // What has come meanwhile is stored with what is left.
            let came = std::iter::from_fn(|| entries.try_recv().ok());
            waiting.extend(came.take(bounds::BATCH.saturating_sub(waiting.len())));
        }
        // Outcomes of an earlier membership go under its number: the store refuses them.
        let node = waiting[0].run.node;
        let mine = waiting.iter().take_while(|entry: &&UnstoredOutcome| entry.run.node == node);
        let count = fitting(mine, size.get());
        let began = shared.clock().monotonic();
        if flush(&shared, waiting.make_contiguous().split_at(count).0).await {
            size.stored(shared.clock().monotonic().saturating_sub(began));
            wait = BACKOFF.0;
            waiting.drain(..count);
        } else {
            size.failed(count);
            if count == 1 {
                waiting.rotate_left(1);
            }
            tokio::select! {
                biased;
                () = shared.reached(Phase::Stopped) => {}
                () = shared.clock().sleep(wait) => {}
            }
            wait = (wait * 2).min(BACKOFF.1);
        }
    }
    // Nobody offers these again: their claims go back with the node.
    shared.held.remove(waiting.iter().map(|entry| &entry.run.claim));
    shared.unstored.remove(waiting.iter().map(|entry| &entry.finish.outcome));
}

/// Stores outcomes. `false` if they are to be offered again.
async fn flush(shared: &NodeShared, entries: &[UnstoredOutcome]) -> bool {
    let node = entries[0].run.node;
    store_progress(shared, entries).await;
    let finishes = entries.iter().map(|entry| entry.finish.clone()).collect();
    fault::point!("node.finishing");
    let answers = match shared.store().finish(node, finishes).await {
        Ok(answers) => {
            fault::point!("node.finished");
            shared.answered(PART);
            Some(answers)
        }
        Err(error) if error.is_retryable() && shared.phase() < Phase::Stopped => {
            shared.failed(PART, &error);
            return false;
        }
        Err(error) => {
            // These outcomes are lost, and the next ones would be. Stopping gives the jobs back instead of holding
            // them for as long as the lease is renewed.
            broken(&error);
            shared.advance(Phase::Stopping);
            None
        }
    };
    shared.held.remove(entries.iter().map(|entry| &entry.run.claim));
    for entry in entries.iter().filter(|entry| entry.run.suspect) {
        shared.slot_table.cleared(&entry.run.claim);
    }
    for (entry, answer) in entries.iter().zip(answers.into_iter().flatten()) {
        if matches!(entry.finish.outcome, Outcome::Suspend(_)) {
            shared.handler_cache.answered(&entry.run.claim, answer == Finished::Applied);
        }
        match answer {
            Finished::Applied => stored(shared, entry),
            Finished::LeaseLost => {
                let info = &entry.run.info;
                tracing::warn!(
                    job_id = %info.id, kind = %info.kind, queue = %info.queue, node = %shared.held.node(), claim = info.claim,
                    "outcome refused: lease lost"
                );
            }
        }
    }
    shared.unstored.remove(entries.iter().map(|entry| &entry.finish.outcome));
    shared.slot_table.wake.notify_one();
    true
}

/// What a handler last said of its progress is stored before its outcome.
async fn store_progress(shared: &NodeShared, entries: &[UnstoredOutcome]) {
    let said =
        entries.iter().filter_map(|entry| entry.run.take_progress().map(|said| (entry.run.claim, said)));
    let progress: Vec<_> = said.collect();
    if !progress.is_empty()
        && let Err(error) = shared.store().progress(entries[0].run.node, progress).await
    {
        // The outcome that follows says what became of the job, and tells if the store is lost.
        tracing::debug!(%error, "progress could not be stored");
    }
}

fn stored(shared: &NodeShared, entry: &UnstoredOutcome) {
    shared.hooks.stored(&entry.run.info, &entry.finish.outcome);
    if matches!(entry.finish.outcome, Outcome::Succeed { .. } | Outcome::Fail { .. } | Outcome::Cancel { .. })
    {
        shared.engine.waiters().ended(entry.run.info.id);
    }
}
