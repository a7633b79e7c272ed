//! Sweeps: timers, deadlines, retention.

use std::time::Duration;

use mainspring_core::bounds;
use mainspring_core::id::JobId;
use mainspring_core::job::{Reason, State, Verb, When};
use mainspring_core::store::{Changed, Filter, Finished, QueueChange, Receipt, Retention};

use crate::clock::START;
use crate::harness::{
    Harness, MICRO, SECOND, because, cancel, claimed_ids, fail, just_before, plain, priority, queue, retry,
    succeed,
};

async fn put_later(h: &Harness, delay: Duration) -> JobId {
    h.put(h.job_with(|job| job.run = Some(When::After(delay)))).await
}

async fn put_until(h: &Harness, deadline: Duration) -> JobId {
    h.put(h.job_with(|job| job.deadline = Some(When::After(deadline)))).await
}

/// Jobs become ready when their time has come, and the sweep tells the next time.
pub async fn due_jobs_are_promoted(h: &Harness) {
    let start = h.now();
    let first = put_later(h, SECOND).await;
    let second = put_later(h, SECOND * 3).await;
    h.advance(just_before(SECOND));
    let swept = h.store.promote(10).await.expect("promote");
    assert_eq!((swept.now, swept.moved, swept.next), (h.now(), 0, Some(start.after(SECOND))));
    h.advance(MICRO);
    let swept = h.store.promote(10).await.expect("promote");
    assert_eq!((swept.moved, swept.next), (1, Some(start.after(SECOND * 3))));
    let summary = h.get(first).await.summary;
    assert_eq!((summary.status, summary.run_at), (plain(State::Ready), None));
    assert_eq!(h.status(second).await, plain(State::Scheduled));
    h.advance(SECOND * 5);
    let swept = h.store.promote(10).await.expect("promote");
    assert_eq!((swept.moved, swept.next), (1, None));
}

/// A sweep moves no more than it was asked to, the longest due first, and says that more is due.
pub async fn promotion_is_limited(h: &Harness) {
    let late = put_later(h, SECOND * 3).await;
    let early = put_later(h, SECOND).await;
    let middle = put_later(h, SECOND * 2).await;
    let due = h.now().after(SECOND * 3);
    h.advance(SECOND * 10);
    let swept = h.store.promote(2).await.expect("promote");
    assert_eq!((swept.moved, swept.next), (2, Some(due)));
    assert_eq!(h.status(early).await, plain(State::Ready));
    assert_eq!(h.status(middle).await, plain(State::Ready));
    assert_eq!(h.status(late).await, plain(State::Scheduled));
}

/// A promoted job is fresh: it stands behind those that became ready before it, of its own priority.
pub async fn promoted_job_stands_in_line(h: &Harness) {
    let promoted = put_later(h, SECOND).await;
    h.advance(SECOND);
    let before = h.put_one().await;
    h.advance(SECOND);
    assert_eq!(h.promote().await, 1);
    h.advance(SECOND);
    let after = h.put_one().await;
    let urgent = h.put(h.job_with(|job| job.priority = priority(1))).await;
    let node = h.node().await;
    assert_eq!(claimed_ids(&h.claim(node, 10).await), [urgent, before, promoted, after]);
}

/// A sweep of an empty store tells nothing to come.
pub async fn empty_sweeps_have_no_next(h: &Harness) {
    h.put_one().await;
    for swept in [h.store.promote(10).await, h.store.expire(10).await] {
        let swept = swept.expect("sweep");
        assert_eq!((swept.now, swept.moved, swept.next), (h.now(), 0, None));
    }
    assert_eq!(h.prune().await, 0);
}

/// A deadline fails whatever waits: ready, scheduled, held and quarantined jobs.
pub async fn deadline_fails_waiting_jobs(h: &Harness) {
    let quarantined = put_until(h, Duration::from_hours(1)).await;
    h.crash(3).await;
    let left = Duration::from_hours(1).saturating_sub(h.now().since(START));
    let ready = put_until(h, left).await;
    let scheduled = h
        .put(h.job_with(|job| {
            job.run = Some(When::After(left * 2));
            job.deadline = Some(When::After(left));
        }))
        .await;
    let held = put_until(h, left).await;
    h.apply(held, Verb::Hold { why: String::new() }).await;
    h.advance(just_before(left));
    assert_eq!(h.expire().await, 0);
    h.advance(MICRO);
    assert_eq!(h.expire().await, 4);
    for id in [ready, scheduled, held, quarantined] {
        let record = h.get(id).await;
        assert_eq!(record.summary.status, because(State::Failed, Reason::Expired));
        assert_eq!((record.summary.finished_at, record.summary.run_at), (Some(h.now()), None));
        assert_eq!((record.summary.failures, record.note), (0, None));
    }
    let node = h.node().await;
    assert!(h.claim(node, 10).await.is_empty());
    h.advance(left * 2);
    assert_eq!(h.promote().await, 0);
}

/// A running job is its node's business, also for the time of the next sweep; when it waits again, it is not.
pub async fn deadline_leaves_running_jobs_alone(h: &Harness) {
    let id = put_until(h, SECOND).await;
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    h.advance(SECOND * 2);
    let swept = h.store.expire(10).await.expect("expire");
    assert_eq!((swept.moved, swept.next), (0, None));
    assert_eq!(h.status(id).await, plain(State::Running));
    h.end(node, claim, retry(SECOND)).await;
    assert_eq!(h.expire().await, 1);
    let summary = h.get(id).await.summary;
    assert_eq!((summary.status, summary.failures), (because(State::Failed, Reason::Expired), 1));
}

/// The sweep of deadlines goes in their order, is limited, and tells the next.
pub async fn expiry_is_limited_and_tells_the_next(h: &Harness) {
    let start = h.now();
    let (second, first) = (put_until(h, SECOND * 2).await, put_until(h, SECOND).await);
    let third = put_until(h, SECOND * 30).await;
    h.advance(SECOND * 10);
    let swept = h.store.expire(1).await.expect("expire");
    assert_eq!((swept.moved, swept.next), (1, Some(start.after(SECOND * 2))));
    assert_eq!(h.status(first).await, because(State::Failed, Reason::Expired));
    assert_eq!(h.status(second).await, plain(State::Ready));
    let swept = h.store.expire(10).await.expect("expire");
    assert_eq!((swept.moved, swept.next), (1, Some(start.after(SECOND * 30))));
    h.apply(third, cancel("")).await;
    assert_eq!(h.store.expire(10).await.expect("expire").next, None);
}

/// Ended jobs are kept for as long as their state and queue say, and not a moment less.
pub async fn ended_jobs_are_kept_for_their_retention(h: &Harness) {
    let (good, bad) = (Duration::from_mins(10), Duration::from_mins(30));
    let change =
        QueueChange { retain_succeeded: Some(good), retain_failed: Some(bad), ..QueueChange::default() };
    h.store.configure(queue("q"), change).await.expect("configure");
    let ids = h.put_many(3).await;
    let node = h.node().await;
    for outcome in [succeed(), fail()] {
        let claim = h.claim_one(node).await;
        h.end(node, claim, outcome).await;
    }
    h.apply(ids[2], cancel("")).await;
    h.advance(just_before(good));
    assert_eq!(h.prune().await, 0);
    h.advance(MICRO);
    assert_eq!(h.prune().await, 1);
    assert_eq!(h.find(ids[0]).await, None);
    h.advance(just_before(bad.saturating_sub(good)));
    assert_eq!(h.prune().await, 0);
    h.advance(MICRO);
    assert_eq!(h.prune().await, 2);
    assert!(h.counts().await.0.is_empty());
}

/// Each queue has its own retention, and what sets none has the default.
pub async fn each_queue_has_its_own_retention(h: &Harness) {
    let minute = Duration::from_mins(1);
    let change = QueueChange { retain_succeeded: Some(minute), ..QueueChange::default() };
    h.store.configure(queue("q"), change).await.expect("configure");
    h.put_one().await;
    let kept = h.put(h.job_with(|job| job.queue = queue("q2"))).await;
    let node = h.node().await;
    let mut request = h.request(node, 0);
    request.queues = vec![(queue("q"), 1), (queue("q2"), 1)];
    for job in h.claim_as(request).await {
        h.end(node, job.claim, succeed()).await;
    }
    h.advance(minute);
    assert_eq!(h.prune().await, 1);
    assert_eq!(h.ids(&Filter::default()).await, [kept]);
    h.advance(Retention::default().succeeded.0);
    assert_eq!(h.prune().await, 1);
}

/// A changed retention counts for jobs that ended before.
pub async fn changed_retention_counts_for_ended_jobs(h: &Harness) {
    let (node, claim) = h.running().await;
    h.end(node, claim, succeed()).await;
    h.advance(Duration::from_mins(5));
    assert_eq!(h.prune().await, 0);
    let change = QueueChange { retain_succeeded: Some(Duration::from_mins(1)), ..QueueChange::default() };
    h.store.configure(queue("q"), change).await.expect("configure");
    assert_eq!(h.prune().await, 1);
}

/// One call removes no more than it was asked to.
pub async fn pruning_is_limited(h: &Harness) {
    for id in h.put_many(5).await {
        h.apply(id, cancel("")).await;
    }
    h.advance(Retention::default().failed.0);
    let prune = async |limit| h.store.prune(limit).await.expect("prune");
    assert_eq!((prune(2).await, prune(2).await, prune(2).await, prune(2).await), (2, 2, 1, 0));
}

/// A pruned job is gone from everywhere, and its id may be used as if it had never been.
pub async fn pruned_job_is_gone(h: &Harness) {
    let job = h.job_with(|job| job.options.tags = vec![crate::harness::tag("t")]);
    let id = h.put(job.clone()).await;
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    h.end(node, claim, fail()).await;
    h.advance(Retention::default().failed.0);
    assert_eq!(h.prune().await, 1);
    assert_eq!(h.find(id).await, None);
    assert!(h.ids(&Filter::default()).await.is_empty());
    assert!(h.counts().await.0.is_empty());
    assert_eq!(h.change(id, Verb::Retry).await, Changed::NotFound);
    assert_eq!(h.finish(node, claim, fail()).await, Finished::LeaseLost);
    assert_eq!(h.enqueue(job).await, Receipt::Created);
    let record = h.get(id).await;
    assert_eq!((record.summary.status, record.summary.claim), (plain(State::Ready), 0));
    assert!(record.errors.is_empty());
    let claim = h.claim_one(node).await;
    assert_eq!((claim.id, claim.number), (id, 1));
}

/// What has not ended is never removed, and neither is what was run again.
pub async fn only_ended_jobs_are_pruned(h: &Harness) {
    let ready = h.put_one().await;
    let later = put_later(h, Duration::from_hours(24 * 365 * 5)).await;
    let held = h.put_one().await;
    h.apply(held, Verb::Hold { why: String::new() }).await;
    let revived = h.put_one().await;
    h.apply(revived, cancel("")).await;
    h.apply(revived, Verb::Retry).await;
    let (_, claim) = h.running().await;
    h.advance(Duration::from_hours(24 * 365));
    assert_eq!(h.prune().await, 0);
    for id in [ready, later, held, revived, claim.id] {
        assert!(h.find(id).await.is_some());
    }
}

/// Nodes that went are remembered for a while; those that live, always.
pub async fn nodes_that_went_are_forgotten(h: &Harness) {
    let (expired, _) = h.running().await;
    h.lose(expired).await;
    let (live, retired) = (h.node().await, h.node().await);
    h.store.retire(retired).await.expect("retire");
    h.advance(bounds::NODE_RETENTION.saturating_sub(SECOND));
    h.prune().await;
    let known = async || -> Vec<_> {
        let nodes = h.store.nodes().await.expect("nodes");
        nodes.into_iter().map(|node| node.no).collect()
    };
    assert!(known().await.contains(&retired));
    h.advance(SECOND);
    h.prune().await;
    assert_eq!(known().await, [live]);
    h.renew(live).await;
}
