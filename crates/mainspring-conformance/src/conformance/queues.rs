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

/// Deletes the queue of most jobs, which is empty. Whether there was one.
async fn deleted(h: &Harness) -> bool {
    h.store.delete_queue(queue("q")).await.expect("an empty queue")
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

/// What is deleted is not listed any more, and whoever names it again gets a queue that is not paused. A repeat changes nothing.
pub async fn deleted_queue_is_gone_with_its_settings(h: &Harness) {
    assert!(!deleted(h).await, "nobody has named it");
    let node = h.node().await;
    let change = QueueChange {
        paused: Some(true),
        backoff: Some(Some(Backoff::Fixed(SECOND))),
        retain_failed: Some(bounds::DELAY),
        ..QueueChange::default()
    };
    h.store.configure(queue("q"), change.clone()).await.expect("configure");
    h.store.configure(queue("q2"), change).await.expect("configure");
    let others =
        |queues: Vec<Queue>| queues.into_iter().filter(|it| it.name != queue("q")).collect::<Vec<_>>();
    let before = others(h.store.queues().await.expect("queues"));
    assert!(deleted(h).await);
    assert_eq!(h.store.queues().await.expect("queues"), before, "the others stay as they are");
    assert!(!deleted(h).await);
    let id = h.put_one().await;
    let found = h.store.queues().await.expect("queues");
    assert!(found.contains(&Queue { name: queue("q"), settings: Settings::default() }), "{found:?}");
    assert_eq!(h.claim_one(node).await.id, id, "the node that serves it goes on");
}

/// A setting, even one that changes nothing, and a node that joins make it known again; its jobs' kinds are as they were.
pub async fn deleted_queue_is_there_again_once_it_is_named(h: &Harness) {
    let id = h.put_one().await;
    h.apply(id, Verb::Delete).await;
    for by_node in [false, true] {
        assert!(deleted(h).await);
        assert!(names(h).await.is_empty());
        if by_node {
            h.node_with(|node| node.queues = vec![(queue("q"), 1)]).await;
        } else {
            h.store.configure(queue("q"), QueueChange::default()).await.expect("configure");
        }
        assert_eq!(names(h).await, ["q"]);
    }
    h.put_one().await;
    assert_eq!(h.counts().await.of(&queue("q"), State::Ready), 1);
}

/// A job in it makes it one of the queues for as long as it is kept.
pub async fn deleted_queue_is_there_while_it_has_jobs(h: &Harness) {
    h.store.configure(queue("q"), QueueChange::default()).await.expect("configure");
    assert!(deleted(h).await);
    let id = h.put(h.job_with(|job| job.run = Some(When::After(SECOND)))).await;
    assert_eq!(names(h).await, ["q"]);
    h.apply(id, cancel("")).await;
    assert_eq!(names(h).await, ["q"]);
    assert!(matches!(h.store.delete_queue(queue("q")).await, Err(Error::QueueNotEmpty { ended: 1, .. })));
    h.apply(id, Verb::Delete).await;
    assert!(names(h).await.is_empty());
    assert!(!deleted(h).await);
}

/// A job in any place refuses the deletion, is counted, and stays with the queue's settings. Jobs of other queues do not matter.
pub async fn queue_with_jobs_is_not_deleted(h: &Harness) {
    let change = QueueChange { backoff: Some(Some(Backoff::Fixed(SECOND))), ..QueueChange::default() };
    let configured = h.store.configure(queue("q"), change).await.expect("configure");
    h.put(h.job_with(|job| job.queue = queue("q2"))).await;
    let node = h.node().await;
    let refused = async |expected| match h.store.delete_queue(queue("q")).await {
        Err(Error::QueueNotEmpty { queue: of, waiting, running, ended }) => {
            assert_eq!((of, (waiting, running, ended)), (queue("q"), expected));
            let queues = h.store.queues().await.expect("queues");
            assert_eq!(queues.first(), Some(&configured), "nothing was changed");
        }
        answer => panic!("{answer:?}"),
    };
    h.put_one().await;
    refused((1, 0, 0)).await;
    let claim = h.claim_one(node).await;
    refused((0, 1, 0)).await;
    h.end(node, claim, retry(SECOND)).await;
    refused((1, 0, 0)).await;
    h.apply(claim.id, Verb::Hold { why: String::new() }).await;
    refused((1, 0, 0)).await;
    h.apply(claim.id, Verb::Fail { why: String::new() }).await;
    refused((0, 0, 1)).await;
    h.put_many(2).await;
    h.claim_one(node).await;
    refused((1, 1, 1)).await;
    let other = h.store.delete_queue(queue("q2")).await;
    assert!(matches!(other, Err(Error::QueueNotEmpty { waiting: 1, .. })), "{other:?}");
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
