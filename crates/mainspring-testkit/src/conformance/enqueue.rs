//! Enqueue: what is stored, when it is due, and what a repeat does.

use std::collections::BTreeMap;
use std::time::Duration;

use mainspring_core::backoff::Backoff;
use mainspring_core::job::{Options, Record, State, Summary, Unique, When};
use mainspring_core::store::{Filter, Receipt};
use mainspring_core::time::Span;
use mainspring_core::{Error, bounds};

use crate::harness::{Harness, SECOND, kind, label, plain, priority, queue, succeed, tag};

/// A job that sets nothing is ready, with every field as documented.
pub async fn new_job_is_ready(h: &Harness) {
    let job = h.job();
    let id = h.put(job.clone()).await;
    let summary = Summary {
        id,
        kind: kind("k"),
        queue: queue("q"),
        priority: priority(5),
        status: plain(State::Ready),
        claim: 0,
        failures: 0,
        crashes: 0,
        created_at: h.now(),
        run_at: None,
        claimed_at: None,
        finished_at: None,
        deadline: None,
        node: None,
        cancelling: false,
        stuck: false,
        foreign: false,
        options: Options::default(),
    };
    let record = Record {
        summary,
        input: job.input,
        output: None,
        note: None,
        errors: Vec::new(),
        progress: None,
        waits: Vec::new(),
        last: None,
    };
    assert_eq!(h.get(id).await, record);
}

/// A job that sets everything has everything, in `get`, in the listing and in the claim.
pub async fn every_option_survives(h: &Harness) {
    let options = Options {
        max_attempts: 3,
        backoff: Some(Backoff::Linear { step: SECOND, max: Duration::from_mins(1) }),
        timeout: Some(Span(Duration::from_millis(1_500))),
        unique: Some(Unique::new("key")),
        tags: vec![tag("eu"), tag("batch 7")],
        labels: vec![label("gpu"), label("ssd")],
        headers: BTreeMap::from([("traceparent".into(), "00-1-2".into()), ("x".into(), String::new())]),
        parent: None,
        forked: None,
    };
    let job = h.job_with(|job| {
        job.kind = kind("k2");
        job.priority = priority(1);
        job.input = br#"{"user":7}"#.to_vec();
        job.deadline = Some(When::After(Duration::from_hours(1)));
        job.options = options.clone();
    });
    let id = h.put(job.clone()).await;
    let deadline = Some(h.now().after(Duration::from_hours(1)));
    let record = h.get(id).await;
    assert_eq!((record.summary.options.clone(), record.input), (options.clone(), job.input.clone()));
    assert_eq!((record.summary.priority, record.summary.deadline), (priority(1), deadline));
    assert_eq!(h.list(&Filter::default(), 10).await, [record.summary]);

    let node = h.node_with(|node| node.able.labels = vec![label("gpu"), label("ssd")]).await;
    let claimed = h.claim(node, 1).await.remove(0);
    assert_eq!((claimed.kind, claimed.queue, claimed.priority), (kind("k2"), queue("q"), priority(1)));
    assert_eq!((claimed.input, claimed.options, claimed.deadline), (job.input, options, deadline));
    assert_eq!(claimed.created_at, h.now());
}

/// The same id again is acknowledged and changes nothing.
pub async fn repeated_enqueue_is_stored_once(h: &Harness) {
    let job = h.job();
    h.put(job.clone()).await;
    let before = h.get(job.id).await;
    h.advance(SECOND);
    let mut again = job.clone();
    again.input = b"other".to_vec();
    again.queue = queue("q2");
    assert_eq!(h.enqueue(again).await, Receipt::Created);
    assert_eq!(h.get(job.id).await, before);
    assert_eq!(h.counts().await.total(State::Ready), 1);
}

/// The same id again does not run an ended job a second time.
pub async fn repeated_enqueue_of_an_ended_job_changes_nothing(h: &Harness) {
    let job = h.job();
    h.put(job.clone()).await;
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    h.end(node, claim, succeed()).await;
    let before = h.get(job.id).await;
    assert_eq!(h.enqueue(job.clone()).await, Receipt::Created);
    assert_eq!(h.get(job.id).await, before);
    assert!(h.claim(node, 1).await.is_empty());
}

/// One id twice in one batch is one job.
pub async fn same_id_twice_in_one_batch_is_stored_once(h: &Harness) {
    let job = h.job();
    let receipts = h.enqueue_all(vec![job.clone(), h.job(), job]).await;
    assert_eq!(receipts, [Receipt::Created; 3]);
    assert_eq!(h.counts().await.total(State::Ready), 2);
}

/// A receipt stands where its job stood, whatever became of the others.
pub async fn receipts_come_in_order_of_the_batch(h: &Harness) {
    let held = h.put(h.job_with(|job| job.options.unique = Some("key".into()))).await;
    let keep = h.job_with(|job| job.options.unique = Some("key".into()));
    let reject = h.job_with(|job| job.options.unique = Some(Unique::new("key").reject()));
    let receipts = h.enqueue_all(vec![h.job(), keep, h.job(), reject, h.job()]).await;
    let created = Receipt::Created;
    assert_eq!(receipts, [created, Receipt::Existing(held), created, Receipt::Rejected(held), created]);
}

/// Nothing is nothing.
pub async fn empty_batch_is_accepted(h: &Harness) {
    assert!(h.enqueue_all(Vec::new()).await.is_empty());
    assert!(h.counts().await.0.is_empty());
}

/// A batch as large as allowed is one call.
pub async fn full_batch_is_stored(h: &Harness) {
    let ids = h.put_many(bounds::BATCH).await;
    assert_eq!(h.counts().await.of(&queue("q"), State::Ready), bounds::BATCH as u64);
    let mut listed = h.ids(&Filter::default()).await;
    listed.reverse();
    assert_eq!(listed, ids);
}

/// A delay makes a job scheduled until then.
pub async fn delayed_job_is_scheduled(h: &Harness) {
    let id = h.put(h.job_with(|job| job.run = Some(When::After(SECOND)))).await;
    let summary = h.get(id).await.summary;
    assert_eq!((summary.status, summary.run_at), (plain(State::Scheduled), Some(h.now().after(SECOND))));
    let node = h.node().await;
    assert!(h.claim(node, 1).await.is_empty());
}

/// A point in time does the same, to the microsecond.
pub async fn job_for_a_point_in_time_is_scheduled(h: &Harness) {
    let at = h.now().after(Duration::from_micros(1));
    let id = h.put(h.job_with(|job| job.run = Some(When::At(at)))).await;
    let summary = h.get(id).await.summary;
    assert_eq!((summary.status.state, summary.run_at), (State::Scheduled, Some(at)));
}

/// A time that has come is no time to wait for.
pub async fn job_due_now_or_in_the_past_is_ready(h: &Harness) {
    for run in [When::At(h.now()), When::At(h.now().before(SECOND)), When::After(Duration::ZERO)] {
        let id = h.put(h.job_with(|job| job.run = Some(run))).await;
        let summary = h.get(id).await.summary;
        assert_eq!((summary.status.state, summary.run_at), (State::Ready, None));
    }
}

/// The longest delay that is allowed fits.
pub async fn longest_delay_is_kept(h: &Harness) {
    let far = Some(When::After(bounds::DELAY));
    let id = h
        .put(h.job_with(|job| {
            job.run = far;
            job.deadline = far;
        }))
        .await;
    let at = Some(h.now().after(bounds::DELAY));
    let summary = h.get(id).await.summary;
    assert_eq!((summary.run_at, summary.deadline), (at, at));
}

/// A store holds so many lines and not one more; a batch that would make one is refused whole.
pub async fn lines_are_bounded(h: &Harness) {
    let of_kind = |number: usize| h.job_with(|job| job.kind = kind(&format!("kind-{number}")));
    let kinds: Vec<usize> = (0..bounds::LINES).collect();
    for numbers in kinds.chunks(bounds::BATCH) {
        h.enqueue_all(numbers.iter().copied().map(of_kind).collect()).await;
    }
    let answer = h.store.enqueue(vec![of_kind(0), of_kind(bounds::LINES)]).await;
    assert!(matches!(answer, Err(Error::TooLarge { .. })), "{answer:?}");
    assert_eq!(h.counts().await.total(State::Ready), bounds::LINES as u64);
    h.put(of_kind(0)).await;
}
