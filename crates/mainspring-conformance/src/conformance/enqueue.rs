//! Enqueue: what is stored, when it is due, and what a repeat does.

use std::collections::BTreeMap;
use std::time::Duration;

use mainspring_core::backoff::Backoff;
use mainspring_core::job::{Differs, New, Options, Origin, Record, State, Summary, Unique, Verb, When};
use mainspring_core::journal::Value;
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
        unreadable: None,
        options: Options::default(),
    };
    let record = Record {
        summary,
        input: job.input,
        result: None,
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
        limits: Vec::new(),
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

    let node = h.node_with(|node| node.abilities.labels = vec![label("gpu"), label("ssd")]).await;
    let claimed = h.claim(node, 1).await.remove(0);
    assert_eq!((claimed.kind, claimed.queue, claimed.priority), (kind("k2"), queue("q"), priority(1)));
    assert_eq!(
        (claimed.input, claimed.options, claimed.deadline),
        (Value::Here(job.input), options, deadline)
    );
    assert_eq!(claimed.created_at, h.now());
}

/// The same id again is acknowledged and changes nothing: neither queue and options nor the way the input is written matter.
pub async fn repeated_enqueue_is_stored_once(h: &Harness) {
    let job = h.job_with(|job| job.input = br#"{"a":1,"b":[2]}"#.to_vec());
    h.put(job.clone()).await;
    let before = h.get(job.id).await;
    h.advance(SECOND);
    let mut again = job.clone();
    again.queue = queue("q2");
    again.priority = priority(1);
    again.options.tags = vec![tag("late")];
    again.run = Some(When::After(SECOND));
    assert_eq!(h.enqueue(again.clone()).await, Receipt::Repeated);
    again.input = br#" { "b" : [ 2 ], "a" : 1 } "#.to_vec();
    again.options.unique = Some("a key".into());
    assert_eq!(h.enqueue(again).await, Receipt::Repeated);
    assert_eq!(h.get(job.id).await, before);
    assert_eq!(h.counts().await.total(State::Ready), 1);
    assert_eq!(
        h.enqueue(h.job_with(|job| job.options.unique = Some("a key".into()))).await,
        Receipt::Created
    );
}

/// An id that belongs to another job is refused, with what is different; nothing is stored, whatever has become of that job.
pub async fn id_of_another_job_is_taken(h: &Harness) {
    let job = h.job_with(|job| job.input = b"{\"n\":1}".to_vec());
    h.put(job.clone()).await;
    let before = h.get(job.id).await;
    let changed = |change: fn(&mut New)| {
        let mut other = job.clone();
        change(&mut other);
        other
    };
    let others = [
        (changed(|job| job.kind = kind("k2")), Differs::Kind),
        (changed(|job| job.input = b"{\"n\":2}".to_vec()), Differs::Input),
        (changed(|job| job.options.parent = Some(job.id)), Differs::Parent),
        (changed(|job| job.options.forked = Some(Origin { job: job.id, step: None })), Differs::Origin),
    ];
    for (other, differs) in others {
        assert_eq!(h.enqueue(other.clone()).await, Receipt::Taken(differs));
        let keyed = New { options: Options { unique: Some("k".into()), ..other.options.clone() }, ..other };
        assert_eq!(h.enqueue(keyed).await, Receipt::Taken(differs));
    }
    assert_eq!(h.get(job.id).await, before);
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    let other = changed(|job| job.kind = kind("k2"));
    assert_eq!(h.enqueue(other.clone()).await, Receipt::Taken(Differs::Kind));
    h.end(node, claim, succeed()).await;
    assert_eq!(h.enqueue(other.clone()).await, Receipt::Taken(Differs::Kind));
    // The id of a job that was removed is free.
    h.apply(job.id, Verb::Delete).await;
    assert_eq!(h.enqueue(other.clone()).await, Receipt::Created);
    assert_eq!(h.get(job.id).await.summary.kind, kind("k2"));
    assert_eq!(h.enqueue(job).await, Receipt::Taken(Differs::Kind));
    h.assert_sound().await;
}

/// One id that is taken does not fail its batch, and neither does one that is there twice in it.
pub async fn taken_ids_do_not_fail_their_batch(h: &Harness) {
    let job = h.job();
    h.put(job.clone()).await;
    let other = New { kind: kind("k2"), ..job.clone() };
    let (one, two) = (h.job(), h.job_with(|job| job.options.unique = Some("k".into())));
    let again = New { input: b"[7]".to_vec(), ..one.clone() };
    let keyed = New { kind: kind("k2"), ..two.clone() };
    let batch = vec![one.clone(), other.clone(), two.clone(), job, again, keyed, one.clone(), h.job()];
    let [created, repeated] = [Receipt::Created, Receipt::Repeated];
    let [kinds, inputs] = [Differs::Kind, Differs::Input].map(Receipt::Taken);
    let expected = [created, kinds, created, repeated, inputs, kinds, repeated, created];
    assert_eq!(h.enqueue_all(batch).await, expected);
    assert_eq!(h.counts().await.total(State::Ready), 4);
    // The same without a key among them.
    let again = New { input: b"[7]".to_vec(), ..one.clone() };
    let batch = vec![h.job(), other, h.job(), one, again];
    assert_eq!(h.enqueue_all(batch).await, [created, kinds, created, repeated, inputs]);
    assert_eq!(h.counts().await.total(State::Ready), 6);
    h.assert_sound().await;
}

/// A whole batch again, as after a lost answer, tells that all of it is there.
pub async fn repeated_batch_is_told_as_one(h: &Harness) {
    let jobs: Vec<New> =
        (0..200).map(|number| h.job_with(|job| job.input = format!("[{number}]").into_bytes())).collect();
    assert_eq!(h.enqueue_all(jobs.clone()).await, vec![Receipt::Created; 200]);
    assert_eq!(h.enqueue_all(jobs.clone()).await, vec![Receipt::Repeated; 200]);
    let turned: Vec<New> = jobs.iter().map(|job| New { input: b"[]".to_vec(), ..job.clone() }).collect();
    assert_eq!(h.enqueue_all(turned).await, vec![Receipt::Taken(Differs::Input); 200]);
    assert_eq!(h.counts().await.total(State::Ready), 200);
}

/// The same id again does not run an ended job a second time.
pub async fn repeated_enqueue_of_an_ended_job_changes_nothing(h: &Harness) {
    let job = h.job();
    h.put(job.clone()).await;
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    h.end(node, claim, succeed()).await;
    let before = h.get(job.id).await;
    assert_eq!(h.enqueue(job.clone()).await, Receipt::Repeated);
    assert_eq!(h.get(job.id).await, before);
    assert!(h.claim(node, 1).await.is_empty());
}

/// One id twice in one batch is one job.
pub async fn same_id_twice_in_one_batch_is_stored_once(h: &Harness) {
    let job = h.job();
    let receipts = h.enqueue_all(vec![job.clone(), h.job(), job]).await;
    assert_eq!(receipts, [Receipt::Created, Receipt::Created, Receipt::Repeated]);
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
