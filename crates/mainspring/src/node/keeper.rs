//! The lease keeper: renews the node's lease, on a thread of its own, whatever the executor is busy with.
//!
//! It also looks for handlers that block their threads ([`watchdog`](super::watchdog)), because its own cannot be blocked.
//!
//! Each renewal also learns which claims are to be cancelled. It tells what was noticed of them, what the node does for its queues, and
//! whether it claims nothing because its outcomes are not stored. Jobs that wait on the node for too long are given back. When the store says that the node was expired, everything it held is abandoned and
//! it joins anew under a fresh id.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mainspring_core::id::{Claim, NodeId};
use mainspring_core::store::{Mark, Renewal};
use mainspring_core::{Error, Result, fault};

use super::watchdog::Watchdog;
use super::{NodeShared, Phase, activity, finisher};
use crate::job_run::{JobRun, Stop};

/// What its two calls are called in logs.
const PART: &str = "renew";
const JOIN: &str = "join";
/// How often claims are looked at: for progress to store, and for what is stuck.
const LOOK: Duration = Duration::from_secs(1);
/// How long a handler may outlive its time-out before it is called stuck: dropping it takes a moment too.
const STUCK: Duration = Duration::from_secs(1);

pub(super) async fn run(shared: Arc<NodeShared>) {
    let interval = shared.options.lease / 3;
    let look = LOOK.min(interval);
    let mut renewed = shared.clock().monotonic();
    let (mut fresh, mut unanswered) = (None, false);
    let mut watchdog = Watchdog::default();
    // As the store has it.
    let mut told = false;
    loop {
        // An overdue renewal is one that failed: it is tried again at the next look.
        let rest = interval.saturating_sub(shared.clock().monotonic().saturating_sub(renewed));
        let wait = if rest.is_zero() { look } else { look.min(rest) };
        let asked = tokio::select! {
            biased;
            () = shared.reached(Phase::Stopped) => return leave_unconfirmed(&shared, fresh).await,
            () = shared.renew_now.notified() => true,
            () = shared.clock().idle(wait) => false,
        };
        if !shared.alive.load(Ordering::Relaxed) {
            return;
        }
        if !asked {
            shared.release(shared.slot_table.overdue());
        }
        let runs = shared.held.all();
        watchdog.look(&runs, shared.clock().monotonic());
        store_progress(&shared, &runs, look).await;
        let now = shared.clock().monotonic();
        if unanswered {
            shared.lease.tried(now);
        }
        let marks = marks(&runs, now);
        let backed_up = finisher::is_backed_up(&shared);
        if !(asked || !marks.is_empty() || backed_up != told || now.saturating_sub(renewed) >= interval) {
            continue;
        }
        let renewal = trying(&shared, look, &mut watchdog, renew(&shared, marks, backed_up)).await;
        unanswered = renewal.as_ref().is_err_and(|error| !matches!(error, Error::LeaseLost));
        match renewal {
            Ok(()) => {
                shared.lease.kept(now);
                fault::point!("node.renewed");
                shared.answered(PART);
                shared.outage.renewed(shared.clock().monotonic());
                (renewed, told) = (now, backed_up);
            }
            Err(Error::LeaseLost) => {
                shared.answered(PART);
                if rejoin(&shared, &mut fresh).await {
                    shared.lease.kept(now);
                    shared.outage.renewed(shared.clock().monotonic());
                    (renewed, told) = (now, false);
                }
            }
            Err(error) => {
                // Nobody is judged by his lease during an outage: running jobs go on.
                shared.lease.tried(shared.clock().monotonic());
                shared.outage.unrenewed(shared.clock().monotonic());
                if error.is_retryable() {
                    shared.failed(PART, &error);
                } else {
                    tracing::warn!(%error, "cannot renew the lease");
                }
            }
        }
    }
}

/// What is worth telling of the claims, each once.
fn marks(runs: &[Arc<JobRun>], now: Duration) -> Vec<(Claim, Mark)> {
    let mut marks = Vec::new();
    for run in runs {
        let Some(running) = run.running_for(now).filter(|_| !run.is_reading()) else { continue };
        // Who is asked to stop may take his time.
        let stuck = run.stop_reason().is_none()
            && run.info.timeout().is_some_and(|timeout| running > timeout + STUCK);
        let cleared = run.suspect && running > run.crashed;
        let foreign = run.is_foreign();
        let all = [
            (cleared, Mark::Cleared),
            (stuck, Mark::Stuck),
            (foreign, Mark::Foreign),
            (!foreign, Mark::GoesOn),
        ];
        for (holds, mark) in all {
            if holds && run.mark(mark, true) {
                marks.push((run.claim, mark));
            }
        }
    }
    marks
}

/// Waits for a renewal, however long that takes, and says meanwhile that the keeper runs.
async fn trying<T>(
    shared: &NodeShared,
    look: Duration,
    watchdog: &mut Watchdog,
    renewal: impl Future<Output = T>,
) -> T {
    let mut renewal = std::pin::pin!(renewal);
    loop {
        tokio::select! {
            biased;
            renewed = &mut renewal => return renewed,
            // Before this call, the keeper may have taken two looks' time.
            () = shared.clock().sleep(look / 2) => {
                let now = shared.clock().monotonic();
                shared.lease.tried(now);
                watchdog.look(&shared.held.all(), now);
            }
        }
    }
}

async fn renew(shared: &NodeShared, marks: Vec<(Claim, Mark)>, backed_up: bool) -> Result<()> {
    let node = shared.held.node();
    fault::point!("node.renewing");
    let queues = activity::report(shared);
    let renewed = match shared.store().renew(Renewal { node, marks: marks.clone(), backed_up, queues }).await
    {
        Ok(renewed) => renewed,
        Err(error) => {
            for (claim, mark) in marks {
                if let Some(run) = shared.held.get(&claim) {
                    run.mark(mark, false);
                }
            }
            return Err(error);
        }
    };
    for (claim, mark) in marks {
        match mark {
            Mark::Cleared => shared.slot_table.cleared(&claim),
            Mark::Stuck => {
                tracing::warn!(job_id = %claim.id, claim = claim.number, "handler exceeded its timeout and does not yield");
            }
            // The handler's own poll has said so.
            Mark::Foreign | Mark::GoesOn => {}
        }
    }
    for (claim, why) in renewed.cancel {
        if let Some(run) = shared.held.get(&claim) {
            run.stop(Stop::Cancel(why));
        }
    }
    Ok(())
}

/// Joins anew after the node was expired. `false` if that did not work yet; it is then repeated under the same id, because
/// it may have been the answer that was lost.
async fn rejoin(shared: &NodeShared, fresh: &mut Option<NodeId>) -> bool {
    if shared.is_closing() {
        return false;
    }
    let seams = shared.engine.seams();
    let mut registration = shared.registration.clone();
    registration.id = *fresh.get_or_insert_with(|| NodeId::mint(seams.clock.now(), &*seams.rng));
    registration.queues = shared.slot_table.serving();
    fault::point!("node.rejoin.expired");
    match shared.store().register(registration).await {
        Ok(member) => {
            fault::point!("node.rejoin.joined");
            *fresh = None;
            shared.answered(JOIN);
            tracing::warn!(node = %member.no, "node expired: it abandons all claims and joins again under this number");
            // First the claims, so that nothing of the old membership can start under the new number.
            shared.held.rejoin(member.no);
            shared.slot_table.forget_all_but(member.no);
            shared.hint_router.rejoin(member.no);
            shared.slot_table.expect_jobs(None);
            shared.rejoined.notify_waiters();
            // The supervisor may have left under the old number meanwhile.
            if shared.is_closing()
                && let Err(error) = shared.store().retire(member.no).await
            {
                tracing::warn!(%error, "cannot retire the node; its lease will expire");
            }
            true
        }
        Err(error) => {
            if error.is_retryable() {
                shared.failed(JOIN, &error);
            } else {
                tracing::warn!(%error, "cannot join again");
            }
            false
        }
    }
}

/// Leaves under an id whose registration may have been stored without an answer. Nobody else knows of it, and a member that
/// holds nothing is never found dead.
async fn leave_unconfirmed(shared: &NodeShared, fresh: Option<NodeId>) {
    let Some(id) = fresh else { return };
    let mut registration = shared.registration.clone();
    registration.id = id;
    let left = match shared.store().register(registration).await {
        Ok(member) => shared.store().retire(member.no).await.map(drop),
        Err(error) => Err(error),
    };
    if let Err(error) = left {
        tracing::warn!(%error, "registration outcome unknown; a stale node entry may remain until its lease expires");
    }
}

/// Stores what handlers say, unless that takes so long that it would be in the way of renewals.
async fn store_progress(shared: &NodeShared, runs: &[Arc<JobRun>], patience: Duration) {
    let progress: Vec<_> =
        runs.iter().filter_map(|run| run.take_progress().map(|progress| (run.claim, progress))).collect();
    if progress.is_empty() {
        return;
    }
    let stored = tokio::select! {
        biased;
        stored = shared.store().progress(shared.held.node(), progress.clone()) => stored,
        () = shared.clock().sleep(patience) => Err(Error::unavailable("it took too long")),
    };
    if let Err(error) = stored {
        // It is offered again at the next look; renewals tell if the store is lost.
        tracing::debug!(%error, "cannot store progress; trying again later");
        for (claim, said) in progress {
            if let Some(run) = shared.held.get(&claim) {
                run.keep_progress(said);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job_run::tests::claimed;

    #[test]
    fn a_handler_whose_input_is_read_is_not_looked_at() {
        let run = claimed(3);
        let marked = |second| marks(&[Arc::clone(&run)], Duration::from_secs(second)).len();
        run.begin(Duration::from_secs(1));
        run.read();
        assert_eq!(marked(60), 0);
        run.begin(Duration::from_mins(1));
        assert_eq!(marked(65), 0, "its time begins with it");
        assert_eq!(marked(72), 2, "cleared and stuck");
    }

    #[test]
    fn a_suspect_is_cleared_and_may_still_be_called_stuck() {
        let run = claimed(3);
        let marked = |second| {
            let marks = marks(&[Arc::clone(&run)], Duration::from_secs(second));
            marks.into_iter().map(|(_, mark)| mark).collect::<Vec<_>>()
        };
        assert!(marked(1).is_empty(), "it has not begun");
        run.begin(Duration::from_secs(1));
        assert!(marked(6).is_empty());
        assert_eq!(marked(7), [Mark::Cleared]);
        assert!(marked(8).is_empty(), "marked once");
        assert_eq!(marked(13), [Mark::Stuck]);
        assert!(marked(14).is_empty(), "marked once");
        run.set_foreign(true);
        assert_eq!(marked(15), [Mark::Foreign]);
        assert!(marked(16).is_empty(), "marked once");
        run.mark(Mark::Foreign, false);
        assert_eq!(marked(16), [Mark::Foreign], "the store did not hear it");
        run.set_foreign(false);
        assert_eq!(marked(17), [Mark::GoesOn]);
        assert!(marked(18).is_empty(), "marked once");
        run.mark(Mark::GoesOn, false);
        assert_eq!(marked(18), [Mark::GoesOn], "the store did not hear it");
    }
}
