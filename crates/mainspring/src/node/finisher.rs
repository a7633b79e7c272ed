//! The finisher: stores outcomes, many in one commit.
//!
//! An outcome is kept and offered again until the store has taken or refused it. A refusal is final: the claim was not
//! ours any more.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mainspring_core::job::Outcome;
use mainspring_core::store::{Finish, Finished};
use mainspring_core::{bounds, fault};
use tokio::sync::mpsc;

use super::{Phase, Shared, broken};
use crate::context::Run;

/// What it is called in logs.
const PART: &str = "finish";
/// Waits after a failed flush: first and longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// An outcome on its way to the store.
pub(super) struct Entry {
    pub(super) run: Arc<Run>,
    pub(super) finish: Finish,
}

pub(super) async fn run(shared: Arc<Shared>, mut entries: mpsc::UnboundedReceiver<Entry>) {
    let mut batch = Vec::new();
    loop {
        tokio::select! {
            biased;
            received = entries.recv_many(&mut batch, bounds::BATCH) => if received == 0 { return },
            () = shared.reached(Phase::Stopped) => return,
        }
        // Outcomes of an earlier membership are told apart by their node: the store refuses them under the new one.
        while !batch.is_empty() {
            let node = batch[0].run.node;
            let (mine, rest): (Vec<_>, Vec<_>) =
                batch.drain(..).partition(|entry: &Entry| entry.run.node == node);
            batch = rest;
            flush(&shared, mine).await;
        }
    }
}

async fn flush(shared: &Shared, entries: Vec<Entry>) {
    let node = entries[0].run.node;
    store_progress(shared, &entries).await;
    let mut wait = BACKOFF.0;
    let answers = loop {
        let finishes = entries.iter().map(|entry| entry.finish.clone()).collect();
        fault::point!("node.finishing");
        match shared.store().finish(node, finishes).await {
            Ok(answers) => {
                fault::point!("node.finished");
                shared.answered(PART);
                break Some(answers);
            }
            Err(error) if error.is_retryable() && shared.phase() < Phase::Stopped => {
                shared.failed(PART, &error);
                shared.clock().sleep(wait).await;
                wait = (wait * 2).min(BACKOFF.1);
            }
            Err(error) => {
                // These outcomes are lost, and the next ones would be. Stopping gives the jobs back instead of holding
                // them for as long as the lease is renewed.
                broken(&error);
                shared.advance(Phase::Stopping);
                break None;
            }
        }
    };
    shared.held.leave(entries.iter().map(|entry| &entry.run.claim));
    for entry in entries.iter().filter(|entry| entry.run.suspect) {
        shared.desk.cleared(&entry.run.claim);
    }
    for (entry, answer) in entries.iter().zip(answers.into_iter().flatten()) {
        if matches!(entry.finish.outcome, Outcome::Suspend(_)) {
            shared.parked.answered(&entry.run.claim, answer == Finished::Applied);
        }
        match answer {
            Finished::Applied => stored(shared, entry),
            Finished::LeaseLost => {
                tracing::warn!(job = %entry.run.info.id, "outcome refused: the lease was lost");
            }
        }
    }
    shared.unsettled.fetch_sub(entries.len(), Ordering::Relaxed);
    shared.desk.wake.notify_one();
}

/// What a handler last said of its progress is stored before its outcome.
async fn store_progress(shared: &Shared, entries: &[Entry]) {
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

fn stored(shared: &Shared, entry: &Entry) {
    shared.hooks.stored(&entry.run.info, &entry.finish.outcome);
    if matches!(entry.finish.outcome, Outcome::Succeed { .. } | Outcome::Fail { .. } | Outcome::Cancel { .. })
    {
        shared.engine.waiters().ended(entry.run.info.id);
    }
}
