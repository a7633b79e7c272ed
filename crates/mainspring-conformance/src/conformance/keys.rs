//! Unique keys: who holds one, until when, and what happens to those who meet it.

use std::time::Duration;

use mainspring_core::id::JobId;
use mainspring_core::job::{Reason, State, Unique, Until, Verb, When};
use mainspring_core::store::{QueueChange, Receipt};

use crate::harness::{
    Harness, MICRO, SECOND, because, cancel, fail, just_before, kind, plain, queue, retry, succeed,
};

const MINUTE: Duration = Duration::from_mins(1);

async fn enqueue(h: &Harness, unique: Unique) -> (JobId, Receipt) {
    let job = h.job_with(|job| job.options.unique = Some(unique));
    (job.id, h.enqueue(job).await)
}

async fn hold(h: &Harness, unique: Unique) -> JobId {
    let (id, receipt) = enqueue(h, unique).await;
    assert_eq!(receipt, Receipt::Created);
    id
}

async fn is_free(h: &Harness) -> bool {
    // Rejected, so that asking does not take the key where it is held; where it is free, it is given back.
    let (id, receipt) = enqueue(h, Unique::new("key").reject()).await;
    if receipt == Receipt::Created {
        h.apply(id, Verb::Delete).await;
    }
    receipt == Receipt::Created
}

/// By default the existing job is kept, and nothing is stored.
pub async fn held_key_keeps_the_existing_job(h: &Harness) {
    let holder = hold(h, "key".into()).await;
    let (id, receipt) = enqueue(h, "key".into()).await;
    assert_eq!(receipt, Receipt::Existing(holder));
    assert_eq!(h.find(id).await, None);
    assert_eq!(h.counts().await.total(State::Ready), 1);
}

/// A job that asks for it is refused, and nothing is stored.
pub async fn held_key_rejects_who_asks_for_it(h: &Harness) {
    let holder = hold(h, "key".into()).await;
    let (id, receipt) = enqueue(h, Unique::new("key").reject()).await;
    assert_eq!(receipt, Receipt::Rejected(holder));
    assert_eq!(h.find(id).await, None);
}

/// Keys of different kinds, and different keys of one kind, have nothing to do with each other.
pub async fn key_belongs_to_one_kind(h: &Harness) {
    hold(h, "key".into()).await;
    hold(h, "KEY".into()).await;
    let other = h.job_with(|job| {
        job.kind = kind("k2");
        job.options.unique = Some("key".into());
    });
    assert_eq!(h.enqueue(other).await, Receipt::Created);
}

/// A key is one key in all queues.
pub async fn key_holds_across_queues(h: &Harness) {
    let holder = hold(h, "key".into()).await;
    let other = h.job_with(|job| {
        job.queue = queue("q2");
        job.options.unique = Some("key".into());
    });
    assert_eq!(h.enqueue(other).await, Receipt::Existing(holder));
}

/// Within a batch the first gets the key.
pub async fn keys_are_taken_in_order_of_the_batch(h: &Harness) {
    let with_key = |key: &str| h.job_with(|job| job.options.unique = Some(key.into()));
    let batch = vec![with_key("a"), with_key("b"), with_key("a"), with_key("b"), with_key("a")];
    let (first, second) = (batch[0].id, batch[1].id);
    let (a, b) = (Receipt::Existing(first), Receipt::Existing(second));
    assert_eq!(h.enqueue_all(batch).await, [Receipt::Created, Receipt::Created, a, b, a]);
}

/// Replacing cancels a holder that waits in any way, and takes its key.
pub async fn replace_cancels_a_waiting_holder(h: &Harness) {
    let ready = hold(h, "ready".into()).await;
    let later = h.job_with(|job| {
        job.run = Some(When::After(SECOND));
        job.options.unique = Some("scheduled".into());
    });
    let scheduled = h.put(later).await;
    let held = hold(h, "held".into()).await;
    h.apply(held, Verb::Hold { why: String::new() }).await;
    h.advance(SECOND);
    for (key, holder) in [("ready", ready), ("scheduled", scheduled), ("held", held)] {
        let (id, receipt) = enqueue(h, Unique::new(key).replace()).await;
        assert_eq!(receipt, Receipt::Created, "{key}");
        let summary = h.get(holder).await.summary;
        assert_eq!(summary.status, because(State::Cancelled, Reason::Replaced), "{key}");
        assert_eq!((summary.finished_at, summary.run_at), (Some(h.now()), None), "{key}");
        assert_eq!(enqueue(h, key.into()).await.1, Receipt::Existing(id), "{key}");
    }
    assert_eq!(h.promote().await, 0);
}

/// A running holder is kept.
pub async fn replace_keeps_a_running_holder(h: &Harness) {
    let holder = hold(h, "key".into()).await;
    let node = h.node().await;
    h.claim_one(node).await;
    let (id, receipt) = enqueue(h, Unique::new("key").replace()).await;
    assert_eq!(receipt, Receipt::Existing(holder));
    assert_eq!(h.find(id).await, None);
    assert_eq!(h.status(holder).await, plain(State::Running));
}

/// A holder that has ended but whose period goes on is kept.
pub async fn replace_keeps_an_ended_holder(h: &Harness) {
    let holder = hold(h, Unique::new("key").until(Until::after(MINUTE))).await;
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    h.end(node, claim, succeed()).await;
    assert_eq!(enqueue(h, Unique::new("key").replace()).await.1, Receipt::Existing(holder));
    assert_eq!(h.status(holder).await, plain(State::Succeeded));
}

/// A later job of a batch replaces an earlier one.
pub async fn replace_works_within_a_batch(h: &Harness) {
    let with_key = || h.job_with(|job| job.options.unique = Some(Unique::new("key").replace()));
    let batch = vec![with_key(), with_key(), with_key()];
    let ids: Vec<JobId> = batch.iter().map(|job| job.id).collect();
    assert_eq!(h.enqueue_all(batch).await, [Receipt::Created; 3]);
    let replaced = because(State::Cancelled, Reason::Replaced);
    assert_eq!(h.status(ids[0]).await, replaced);
    assert_eq!(h.status(ids[1]).await, replaced);
    assert_eq!(h.status(ids[2]).await, plain(State::Ready));
}

/// A repeat of a replacing enqueue finds itself and replaces nothing.
pub async fn repeated_replace_replaces_nothing(h: &Harness) {
    let job = h.job_with(|job| job.options.unique = Some(Unique::new("key").replace()));
    h.put(job.clone()).await;
    let other = hold(h, Unique::new("key").replace()).await;
    assert_eq!(h.enqueue(job.clone()).await, Receipt::Repeated);
    assert_eq!(h.status(job.id).await, because(State::Cancelled, Reason::Replaced));
    assert_eq!(h.status(other).await, plain(State::Ready));
}

/// The end of a replaced holder starts no period: its key has another holder.
pub async fn replaced_holder_leaves_no_period(h: &Harness) {
    hold(h, Unique::new("key").until(Until::after(MINUTE))).await;
    let holder = hold(h, Unique::new("key").replace()).await;
    h.advance(MINUTE);
    h.prune().await;
    assert_eq!(enqueue(h, "key".into()).await.1, Receipt::Existing(holder));
    h.apply(holder, cancel("")).await;
    assert!(is_free(h).await);
}

/// A key until the start is free when the job is first claimed, and not before.
pub async fn key_until_started_is_free_after_the_claim(h: &Harness) {
    let holder = hold(h, Unique::new("key").until(Until::Started)).await;
    assert!(!is_free(h).await);
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    let next = hold(h, Unique::new("key").until(Until::Started)).await;
    // The first holder comes and goes without touching the key of the second.
    h.end(node, claim, retry(Duration::ZERO)).await;
    assert_eq!(enqueue(h, "key".into()).await.1, Receipt::Existing(next));
    h.apply(holder, cancel("")).await;
    assert_eq!(enqueue(h, "key".into()).await.1, Receipt::Existing(next));
}

/// A key until the end is held through retries, and free when the job ends in whatever way.
pub async fn key_until_finished_is_held_through_retries(h: &Harness) {
    let node = h.node().await;
    for outcome in [succeed(), fail(), crate::harness::stopped("")] {
        hold(h, "key".into()).await;
        let claim = h.claim_one(node).await;
        assert!(!is_free(h).await);
        h.end(node, claim, retry(SECOND)).await;
        assert!(!is_free(h).await);
        h.advance(SECOND);
        h.promote().await;
        assert!(!is_free(h).await);
        let claim = h.claim_one(node).await;
        h.end(node, claim, outcome).await;
        assert!(is_free(h).await);
    }
}

/// Jobs that end without ever running release their keys.
pub async fn key_is_free_when_a_waiting_job_ends(h: &Harness) {
    for until in [Until::Started, Until::Finished] {
        let cancelled = hold(h, Unique::new("key").until(until)).await;
        h.apply(cancelled, cancel("")).await;
        assert!(is_free(h).await);
        let late = h.job_with(|job| {
            job.deadline = Some(When::After(SECOND));
            job.options.unique = Some(Unique::new("key").until(until));
        });
        h.put(late).await;
        h.advance(SECOND);
        assert_eq!(h.expire().await, 1);
        assert!(is_free(h).await);
    }
}

/// A period begins at the end of the job and ends on time.
pub async fn key_is_held_for_its_period(h: &Harness) {
    let holder = hold(h, Unique::new("key").until(Until::after(MINUTE))).await;
    h.advance(MINUTE);
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    assert_eq!(enqueue(h, "key".into()).await.1, Receipt::Existing(holder));
    h.end(node, claim, succeed()).await;
    h.advance(just_before(MINUTE));
    assert_eq!(enqueue(h, "key".into()).await.1, Receipt::Existing(holder));
    h.advance(MICRO);
    let next = hold(h, "key".into()).await;
    assert_eq!(enqueue(h, "key".into()).await.1, Receipt::Existing(next));
    assert_eq!(h.status(next).await, plain(State::Ready));
}

/// An operator's retry takes no key and starts no second period.
pub async fn key_is_not_taken_again_by_a_retry(h: &Harness) {
    let first = hold(h, "key".into()).await;
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    h.end(node, claim, fail()).await;
    h.apply(first, Verb::Retry).await;
    let second = hold(h, "key".into()).await;
    // Both exist; the end of the first leaves the second's key alone.
    let claimed = h.claim(node, 10).await;
    assert_eq!(claimed.len(), 2);
    let of_first = claimed.iter().find(|job| job.claim.id == first).expect("it runs again").claim;
    h.end(node, of_first, succeed()).await;
    assert_eq!(enqueue(h, "key".into()).await.1, Receipt::Existing(second));
}

/// The period of a key begins once, however often an operator runs the job again.
pub async fn period_begins_once(h: &Harness) {
    let holder = hold(h, Unique::new("key").until(Until::after(MINUTE))).await;
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    h.end(node, claim, fail()).await;
    h.apply(holder, Verb::Retry).await;
    h.advance(MINUTE / 2);
    let claim = h.claim_one(node).await;
    assert!(!is_free(h).await);
    h.end(node, claim, succeed()).await;
    h.advance(MINUTE / 2);
    assert!(is_free(h).await);
}

/// Two dead jobs that share a key can both be run again.
pub async fn jobs_that_share_a_key_are_all_retried(h: &Harness) {
    let node = h.node().await;
    let mut ids = Vec::new();
    for _ in 0..2 {
        ids.push(hold(h, "key".into()).await);
        let claim = h.claim_one(node).await;
        h.end(node, claim, fail()).await;
    }
    let answers = h.store.change(ids, Verb::Retry, false).await.expect("retry");
    assert_eq!(answers.len(), 2);
    assert_eq!(h.counts().await.total(State::Ready), 2);
    assert!(is_free(h).await);
}

/// A key outlives the retention of its job.
pub async fn key_of_a_pruned_job_is_held_for_its_period(h: &Harness) {
    let day = Duration::from_hours(24);
    let change = QueueChange { retain_succeeded: Some(MINUTE), ..QueueChange::default() };
    h.store.configure(queue("q"), change).await.expect("configure");
    let holder = hold(h, Unique::new("key").until(Until::after(day))).await;
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    h.end(node, claim, succeed()).await;
    h.advance(MINUTE);
    assert_eq!(h.prune().await, 1);
    assert_eq!(h.find(holder).await, None);
    assert_eq!(enqueue(h, "key".into()).await.1, Receipt::Existing(holder));
    assert_eq!(enqueue(h, Unique::new("key").replace()).await.1, Receipt::Existing(holder));
    assert_eq!(enqueue(h, Unique::new("key").reject()).await.1, Receipt::Rejected(holder));
    h.advance(day);
    h.prune().await;
    assert!(is_free(h).await);
}

/// Whoever deletes a job frees its key, whatever its period.
pub async fn key_of_a_deleted_job_is_free(h: &Harness) {
    let waiting = hold(h, "key".into()).await;
    h.apply(waiting, Verb::Delete).await;
    assert!(is_free(h).await);
    let ended = hold(h, Unique::new("key").until(Until::after(MINUTE))).await;
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    h.end(node, claim, succeed()).await;
    h.apply(ended, Verb::Delete).await;
    assert!(is_free(h).await);
}

/// Deleting a former holder leaves the key of the present one alone.
pub async fn deleting_a_former_holder_frees_nothing(h: &Harness) {
    let former = hold(h, "key".into()).await;
    h.apply(former, cancel("")).await;
    let holder = hold(h, "key".into()).await;
    h.apply(former, Verb::Delete).await;
    assert_eq!(enqueue(h, "key".into()).await.1, Receipt::Existing(holder));
}

/// Crashes and releases do not touch a key.
pub async fn key_is_held_through_crashes_and_releases(h: &Harness) {
    let holder = hold(h, "key".into()).await;
    h.crash(3).await;
    assert_eq!(h.status(holder).await, because(State::Suspended, Reason::Quarantine));
    assert_eq!(enqueue(h, "key".into()).await.1, Receipt::Existing(holder));
    h.apply(holder, Verb::Resume).await;
    let node = h.node().await;
    h.claim_one(node).await;
    h.store.retire(node).await.expect("retire");
    assert_eq!(enqueue(h, "key".into()).await.1, Receipt::Existing(holder));
}
