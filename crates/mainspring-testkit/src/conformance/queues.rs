//! Queues: their names, settings and counts.

use mainspring_core::backoff::Backoff;
use mainspring_core::job::{State, Verb, When};
use mainspring_core::store::{Counts, Queue, QueueChange, Settings};
use mainspring_core::{Error, bounds};

use crate::harness::{Harness, MICRO, SECOND, cancel, fail, just_before, queue, retry, succeed};

async fn names(h: &Harness) -> Vec<String> {
    let queues = h.store.queues().await.expect("queues");
    queues.into_iter().map(|queue| queue.name.to_string()).collect()
}

/// A queue is known once a job, a node or a setting has named it; sorted by name.
pub async fn queue_is_known_once_it_was_named(h: &Harness) {
    assert!(names(h).await.is_empty());
    h.put(h.job_with(|job| job.queue = queue("by-job"))).await;
    h.node_with(|node| node.queues = vec![(queue("by-node"), 1)]).await;
    h.store.configure(queue("a-setting"), QueueChange::default()).await.expect("configure");
    assert_eq!(names(h).await, ["a-setting", "by-job", "by-node"]);
    let queues = h.store.queues().await.expect("queues");
    assert!(queues.iter().all(|queue| queue.settings == Settings::default()));
}

/// A queue whose jobs are all gone is still known.
pub async fn empty_queue_is_still_known(h: &Harness) {
    let id = h.put_one().await;
    h.apply(id, Verb::Delete).await;
    assert_eq!(names(h).await, ["q"]);
}

/// A setting that is not changed stays, and the answer is what is stored.
pub async fn settings_change_one_by_one(h: &Harness) {
    let mut expected = Settings::default();
    let backoff = Some(Some(Backoff::Fixed(SECOND)));
    let changes = [
        QueueChange { paused: Some(true), ..QueueChange::default() },
        QueueChange { backoff, ..QueueChange::default() },
        QueueChange { retain_succeeded: Some(bounds::RETENTION_MIN), ..QueueChange::default() },
        QueueChange { retain_failed: Some(bounds::DELAY), ..QueueChange::default() },
        QueueChange::default(),
        QueueChange { paused: Some(false), backoff: Some(None), ..QueueChange::default() },
    ];
    for change in changes {
        change.apply(&mut expected);
        let queue = Queue { name: queue("q"), settings: expected.clone() };
        assert_eq!(h.store.configure(queue.name.clone(), change).await.expect("configure"), queue);
        assert_eq!(h.store.queues().await.expect("queues"), [queue]);
    }
}

/// Settings of one queue are no other's.
pub async fn settings_belong_to_one_queue(h: &Harness) {
    h.put(h.job_with(|job| job.queue = queue("q2"))).await;
    let change = QueueChange { paused: Some(true), ..QueueChange::default() };
    h.store.configure(queue("q"), change).await.expect("configure");
    let queues = h.store.queues().await.expect("queues");
    assert_eq!((queues[0].settings.paused, queues[1].settings.paused), (true, false));
}

/// A retention outside of its bounds is refused, and nothing is changed.
pub async fn bad_retention_is_refused(h: &Harness) {
    let too_short = Some(just_before(bounds::RETENTION_MIN));
    let too_long = Some(bounds::DELAY + MICRO);
    for retention in [too_short, too_long] {
        let good = QueueChange { paused: Some(true), retain_succeeded: retention, ..QueueChange::default() };
        let bad = QueueChange { paused: Some(true), retain_failed: retention, ..QueueChange::default() };
        for change in [good, bad] {
            let answer = h.store.configure(queue("q"), change).await;
            assert!(matches!(answer, Err(Error::Invalid { .. })), "{answer:?}");
        }
    }
    assert!(names(h).await.is_empty());
}

/// A backoff whose first delay is above its longest is refused: no store could read it back.
pub async fn bad_backoff_is_refused(h: &Harness) {
    let falling = Backoff::Exponential { base: SECOND * 2, max: SECOND };
    let change = QueueChange { backoff: Some(Some(falling)), ..QueueChange::default() };
    let answer = h.store.configure(queue("q"), change).await;
    assert!(matches!(answer, Err(Error::Invalid { .. })), "{answer:?}");
    assert!(names(h).await.is_empty());
}

/// Pausing a queue leaves its running jobs alone.
pub async fn pausing_leaves_running_jobs_alone(h: &Harness) {
    let (node, claim) = h.running().await;
    let change = QueueChange { paused: Some(true), ..QueueChange::default() };
    h.store.configure(queue("q"), change).await.expect("pause");
    let summary = h.get(claim.id).await.summary;
    assert_eq!((summary.status.state, summary.cancelling), (State::Running, false));
    assert!(h.renew(node).await.cancel.is_empty());
    h.end(node, claim, succeed()).await;
}

/// Jobs may be enqueued into a paused queue, and promoted within it.
pub async fn paused_queue_takes_jobs(h: &Harness) {
    let change = QueueChange { paused: Some(true), ..QueueChange::default() };
    h.store.configure(queue("q"), change).await.expect("pause");
    h.put_one().await;
    h.put(h.job_with(|job| job.run = Some(When::After(SECOND)))).await;
    h.advance(SECOND);
    assert_eq!(h.promote().await, 1);
    assert_eq!(h.counts().await.total(State::Ready), 2);
    let node = h.node().await;
    assert!(h.claim(node, 10).await.is_empty());
}

/// Counts are exact after every move of a job's life, per queue and state.
pub async fn counts_are_exact_through_a_life(h: &Harness) {
    let expect = async |states: &[(State, u64)]| {
        let mut expected = Counts::default();
        if !states.is_empty() {
            expected.0.insert(queue("q"), states.iter().copied().collect());
        }
        assert_eq!(h.counts().await, expected);
    };
    expect(&[]).await;
    let id = h.put(h.job_with(|job| job.run = Some(When::After(SECOND)))).await;
    expect(&[(State::Scheduled, 1)]).await;
    h.put_one().await;
    expect(&[(State::Scheduled, 1), (State::Ready, 1)]).await;
    h.advance(SECOND);
    h.promote().await;
    expect(&[(State::Ready, 2)]).await;
    let node = h.node().await;
    let claims = h.claim(node, 2).await;
    expect(&[(State::Running, 2)]).await;
    h.end(node, claims[0].claim, succeed()).await;
    expect(&[(State::Running, 1), (State::Succeeded, 1)]).await;
    assert_eq!(claims[1].claim.id, id);
    h.end(node, claims[1].claim, retry(SECOND)).await;
    expect(&[(State::Scheduled, 1), (State::Succeeded, 1)]).await;
    h.apply(id, Verb::Hold { why: String::new() }).await;
    expect(&[(State::Suspended, 1), (State::Succeeded, 1)]).await;
    h.apply(id, Verb::Fail { why: String::new() }).await;
    expect(&[(State::Failed, 1), (State::Succeeded, 1)]).await;
    h.apply(id, Verb::Retry).await;
    h.apply(id, cancel("")).await;
    expect(&[(State::Cancelled, 1), (State::Succeeded, 1)]).await;
    h.apply(id, Verb::Delete).await;
    h.apply(claims[0].claim.id, Verb::Delete).await;
    expect(&[]).await;
}

/// Queues are counted apart.
pub async fn counts_are_per_queue(h: &Harness) {
    h.put_many(3).await;
    let other = h.put(h.job_with(|job| job.queue = queue("q2"))).await;
    h.apply(other, cancel("")).await;
    let counts = h.counts().await;
    assert_eq!((counts.of(&queue("q"), State::Ready), counts.of(&queue("q2"), State::Ready)), (3, 0));
    assert_eq!(counts.of(&queue("q2"), State::Cancelled), 1);
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    h.end(node, claim, fail()).await;
    assert_eq!(h.counts().await.total(State::Failed), 1);
}
