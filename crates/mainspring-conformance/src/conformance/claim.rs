//! Claim: which jobs a node gets, in which order, and which it never gets.

use std::collections::BTreeSet;
use std::time::Duration;

use mainspring_core::Error;
use mainspring_core::backoff::Backoff;
use mainspring_core::id::{ClaimBatchNo, NodeNo};
use mainspring_core::job::{Outcome, State, Verb, When};
use mainspring_core::store::{ClaimRequest, Line, QueueChange};

use crate::harness::{
    Harness, LEASE, MICRO, SECOND, cancel, claimed_ids, fail, kind, label, plain, priority, queue, retry,
    succeed,
};

/// A claimed job runs, on that node, from that time, under that number.
pub async fn claim_makes_a_job_run(h: &Harness) {
    let id = h.put_one().await;
    h.advance(SECOND);
    let node = h.node().await;
    let batch = h.store.claim(h.request(node, 1)).await.expect("claim");
    assert_eq!(batch.now, h.now());
    let claimed = &batch.jobs[0];
    assert_eq!((claimed.claim.id, claimed.claim.number), (id, 1));
    assert_eq!((claimed.failures, claimed.crashes, claimed.crashed_micros), (0, 0, 0));
    let summary = h.get(id).await.summary;
    assert_eq!((summary.status, summary.claim), (plain(State::Running), 1));
    assert_eq!((summary.node, summary.claimed_at), (Some(node), Some(h.now())));
    assert_eq!(h.node_view(node).await.claims, 1);
}

/// Nothing to claim is no error.
pub async fn claim_of_nothing_is_empty(h: &Harness) {
    let node = h.node().await;
    assert!(h.claim(node, 10).await.is_empty());
    let request = ClaimRequest { queues: Vec::new(), ..h.request(node, 1) };
    assert!(h.claim_as(request).await.is_empty());
    h.put_one().await;
    assert!(h.claim(node, 0).await.is_empty());
}

/// A job belongs to whoever claimed it, until that claim ends.
pub async fn claimed_job_is_not_claimed_again(h: &Harness) {
    h.put_many(3).await;
    let (one, two) = (h.node().await, h.node().await);
    assert_eq!(h.claim(one, 2).await.len(), 2);
    assert_eq!(h.claim(two, 10).await.len(), 1);
    assert!(h.claim(one, 10).await.is_empty());
}

/// Low priority numbers go first.
pub async fn higher_priority_is_claimed_first(h: &Harness) {
    let mut ids = Vec::new();
    for level in [5, 9, 0, 7] {
        ids.push(h.put(h.job_with(|job| job.priority = priority(level))).await);
    }
    let node = h.node().await;
    assert_eq!(claimed_ids(&h.claim(node, 10).await), [ids[2], ids[0], ids[3], ids[1]]);
}

/// Of one priority, who came first goes first; also within one batch, and when claimed one by one.
pub async fn first_in_is_first_out(h: &Harness) {
    let mut ids = h.put_many(3).await;
    h.advance(SECOND);
    ids.extend(h.put_many(3).await);
    let node = h.node().await;
    let mut claimed = claimed_ids(&h.claim(node, 2).await);
    claimed.extend(claimed_ids(&h.claim(node, 1).await));
    claimed.extend(claimed_ids(&h.claim(node, 10).await));
    assert_eq!(claimed, ids);
}

/// Kinds share their queue fairly: by priority, then by time.
pub async fn kinds_of_one_queue_are_merged_by_time(h: &Harness) {
    let mut ids = Vec::new();
    for name in ["k3", "k", "k2", "k", "k3"] {
        ids.push(h.put(h.job_with(|job| job.kind = kind(name))).await);
        h.advance(SECOND);
    }
    let urgent = h.job_with(|job| {
        job.kind = kind("k2");
        job.priority = priority(0);
    });
    ids.insert(0, h.put(urgent).await);
    let node = h.node().await;
    let mut claimed = claimed_ids(&h.claim(node, 4).await);
    claimed.extend(claimed_ids(&h.claim(node, 4).await));
    assert_eq!(claimed, ids);
}

/// Work that was begun and given back goes before all fresh work.
pub async fn returned_work_is_claimed_before_fresh(h: &Harness) {
    let begun = h.put(h.job_with(|job| job.priority = priority(9))).await;
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    let urgent = h.put(h.job_with(|job| job.priority = priority(0))).await;
    h.advance(SECOND);
    h.end(node, claim, Outcome::Release).await;
    assert_eq!(claimed_ids(&h.claim(node, 2).await), [begun, urgent]);
}

/// Suspects go before everything else, so that they are known sooner.
pub async fn suspects_are_claimed_first(h: &Harness) {
    let suspect = h.put(h.job_with(|job| job.priority = priority(9))).await;
    h.crash(2).await;
    let returned = h.put(h.job_with(|job| job.priority = priority(8))).await;
    let node = h.node().await;
    let mut request = h.request(node, 1);
    request.suspects = 0;
    let claim = h.claim_as(request).await.remove(0).claim;
    h.end(node, claim, Outcome::Release).await;
    let fresh = h.put(h.job_with(|job| job.priority = priority(0))).await;
    let claimed = h.claim(node, 10).await;
    assert_eq!(claimed_ids(&claimed), [suspect, returned, fresh]);
    assert!(claimed[0].is_suspect() && !claimed[1].is_suspect());
    assert_eq!((claimed[0].crashes, claimed[0].claim.number), (2, 3));
}

/// A node gets no more suspects than it asked for, over all queues together; other jobs it gets as usual.
pub async fn suspects_are_limited_over_all_queues(h: &Harness) {
    for name in ["q", "q", "q2"] {
        h.put(h.job_with(|job| job.queue = queue(name))).await;
    }
    let all = |node: NodeNo, suspects| ClaimRequest {
        queues: vec![(queue("q"), 10), (queue("q2"), 10)],
        suspects,
        ..h.request(node, 0)
    };
    for _ in 0..2 {
        let node = h.node().await;
        assert_eq!(h.claim_as(all(node, 10)).await.len(), 3);
        h.lose(node).await;
    }
    for name in ["q", "q2"] {
        h.put(h.job_with(|job| job.queue = queue(name))).await;
    }
    let node = h.node().await;
    let claimed = h.claim_as(all(node, 2)).await;
    assert_eq!(claimed.iter().filter(|job| job.is_suspect()).count(), 2);
    assert_eq!(claimed.iter().filter(|job| !job.is_suspect()).count(), 2);
    assert!(h.claim_as(all(node, 0)).await.is_empty());
    assert_eq!(h.claim_as(all(node, 1)).await.len(), 1);
}

/// A suspect is a suspect under any kind: the limit spans the lines of one queue.
pub async fn suspects_are_limited_over_all_kinds(h: &Harness) {
    for name in ["k", "k2"] {
        h.put(h.job_with(|job| job.kind = kind(name))).await;
    }
    for _ in 0..2 {
        let node = h.node().await;
        assert_eq!(h.claim(node, 10).await.len(), 2);
        h.lose(node).await;
    }
    let fresh = h.put_one().await;
    let node = h.node().await;
    let claimed = h.claim_as(ClaimRequest { suspects: 1, ..h.request(node, 10) }).await;
    assert_eq!(claimed.len(), 2);
    assert!(claimed[0].is_suspect());
    assert_eq!(claimed[1].claim.id, fresh);
}

/// Queues are served in the order given, each up to its own limit.
pub async fn each_queue_has_its_own_limit(h: &Harness) {
    for name in ["q", "q2", "q3"] {
        for _ in 0..4 {
            h.put(h.job_with(|job| job.queue = queue(name))).await;
        }
    }
    let node = h.node().await;
    let mut request = h.request(node, 0);
    request.queues = vec![(queue("q3"), 1), (queue("q"), 3), (queue("q2"), 0)];
    let queues: Vec<_> = h.claim_as(request).await.into_iter().map(|job| job.queue).collect();
    assert_eq!(queues, [queue("q3"), queue("q"), queue("q"), queue("q")]);
}

/// A full limit of one queue takes nothing from another.
pub async fn one_queue_does_not_use_the_slots_of_another(h: &Harness) {
    h.put_many(10).await;
    let other = h.put(h.job_with(|job| job.queue = queue("q2"))).await;
    let node = h.node().await;
    let mut request = h.request(node, 0);
    request.queues = vec![(queue("q"), 2), (queue("q2"), 2)];
    let claimed = h.claim_as(request).await;
    assert_eq!((claimed.len(), claimed[2].claim.id), (3, other));
}

/// Jobs that a node has no handler for are left to others, and are not in its way.
pub async fn kinds_a_node_does_not_handle_are_skipped(h: &Harness) {
    let foreign: BTreeSet<_> =
        [h.put(h.job_with(|job| job.kind = kind("foreign"))).await, h.put(foreign_job(h)).await].into();
    let own = h.put_one().await;
    let node = h.node().await;
    assert_eq!(claimed_ids(&h.claim(node, 10).await), [own]);
    let summary = h.get(*foreign.first().expect("two")).await.summary;
    assert_eq!((summary.status, summary.failures), (plain(State::Ready), 0));
    let able = h.node_with(|node| node.abilities.kinds = vec![kind("foreign")]).await;
    assert_eq!(BTreeSet::from_iter(claimed_ids(&h.claim(able, 10).await)), foreign);
}

fn foreign_job(h: &Harness) -> mainspring_core::job::New {
    h.job_with(|job| {
        job.kind = kind("foreign");
        job.priority = priority(0);
    })
}

/// A node needs all labels that a job requires; it may have more.
pub async fn labels_a_node_lacks_are_skipped(h: &Harness) {
    let both = h.put(h.job_with(|job| job.options.labels = vec![label("gpu"), label("ssd")])).await;
    let one = h.put(h.job_with(|job| job.options.labels = vec![label("gpu")])).await;
    let none = h.put_one().await;
    let plain = h.node().await;
    assert_eq!(claimed_ids(&h.claim(plain, 10).await), [none]);
    let gpu = h.node_with(|node| node.abilities.labels = vec![label("gpu")]).await;
    assert_eq!(claimed_ids(&h.claim(gpu, 10).await), [one]);
    let all = h.node_with(|node| node.abilities.labels = vec![label("eu"), label("gpu"), label("ssd")]).await;
    assert_eq!(claimed_ids(&h.claim(all, 10).await), [both]);
}

/// A label that a node has from a time on counts from then on, for jobs that were there before as for later ones.
pub async fn labels_of_later_count_from_their_time(h: &Harness) {
    let from = h.now().after(LEASE / 2);
    let node = h.node_with(|node| node.abilities.later = vec![(label("gpu"), from)]).await;
    let barred = || h.job_with(|job| job.options.labels = vec![label("gpu")]);
    let (early, plain) = (h.put(barred()).await, h.put_one().await);
    assert_eq!(claimed_ids(&h.claim(node, 10).await), [plain]);
    h.advance((LEASE / 2).saturating_sub(MICRO));
    assert_eq!(claimed_ids(&h.claim(node, 10).await), []);
    h.advance(MICRO);
    assert_eq!(claimed_ids(&h.claim(node, 10).await), [early]);
    let late = h.put(barred()).await;
    assert_eq!(claimed_ids(&h.claim(node, 10).await), [late]);
}

/// The lines are those of ready jobs, each once, whether or not somebody can run them.
pub async fn lines_are_those_of_ready_jobs(h: &Harness) {
    let lines = async || h.store.lines().await.expect("lines");
    assert_eq!(lines().await, []);
    let node = h.node().await;
    h.put_one().await;
    h.put_one().await;
    let barred = h.put(h.job_with(|job| job.options.labels = vec![label("eu"), label("gpu")])).await;
    h.put(h.job_with(|job| job.queue = queue("a"))).await;
    h.put(h.job_with(|job| job.run = Some(When::After(LEASE)))).await;
    let line = |name: &str, labels: &[&str]| Line {
        queue: queue(name),
        kind: kind("k"),
        labels: labels.iter().map(|text| label(text)).collect(),
    };
    let (a, plain, far) = (line("a", &[]), line("q", &[]), line("q", &["eu", "gpu"]));
    assert_eq!(lines().await, [a.clone(), plain, far.clone()]);
    h.claim(node, 10).await;
    assert_eq!(lines().await, [a.clone(), far], "those of `q` are claimed");
    h.change(barred, Verb::Hold { why: String::new() }).await;
    assert_eq!(lines().await, [a]);
}

/// A paused queue gives nothing to anybody; the others do, and so does it when resumed.
pub async fn paused_queue_gives_nothing(h: &Harness) {
    let id = h.put_one().await;
    let other = h.put(h.job_with(|job| job.queue = queue("q2"))).await;
    let pause = |paused| QueueChange { paused: Some(paused), ..QueueChange::default() };
    h.store.configure(queue("q"), pause(true)).await.expect("pause");
    let node = h.node().await;
    let mut request = h.request(node, 0);
    request.queues = vec![(queue("q"), 10), (queue("q2"), 10)];
    assert_eq!(claimed_ids(&h.claim_as(request).await), [other]);
    assert_eq!(h.status(id).await, plain(State::Ready));
    h.store.configure(queue("q"), pause(false)).await.expect("resume");
    assert_eq!(claimed_ids(&h.claim(node, 10).await), [id]);
}

/// A queue that nobody has named gives nothing, and asking does not name it.
pub async fn unknown_queue_gives_nothing(h: &Harness) {
    let node = h.node_with(|node| node.queues = vec![(queue("q"), 1)]).await;
    let mut request = h.request(node, 0);
    request.queues = vec![(queue("nobody"), 10)];
    assert!(h.claim_as(request).await.is_empty());
    let names: Vec<_> = h.store.queues().await.expect("queues").into_iter().map(|queue| queue.name).collect();
    assert_eq!(names, [queue("q")]);
}

/// Whatever happens between two claims, the number grows by one.
pub async fn claim_numbers_grow_by_one(h: &Harness) {
    let id = h.put_one().await;
    let node = h.node().await;
    let mut number = 0;
    for outcome in [Outcome::Release, retry(Duration::ZERO), Outcome::Snooze { after: SECOND }, fail()] {
        let claim = h.claim_one(node).await;
        number += 1;
        assert_eq!((claim.id, claim.number), (id, number));
        h.end(node, claim, outcome).await;
        h.advance(SECOND);
        h.promote().await;
    }
    h.apply(id, Verb::Retry).await;
    h.crash(1).await;
    let claim = h.claim_one(node).await;
    assert_eq!(claim.number, number + 2);
    h.apply(id, cancel("")).await;
    h.end(node, claim, Outcome::Release).await;
    assert_eq!(h.get(id).await.summary.claim, number + 2);
}

/// A repeat of a batch gives what that batch holds, and nothing new.
pub async fn repeated_batch_is_adopted(h: &Harness) {
    h.put_many(5).await;
    let node = h.node().await;
    let request = h.request(node, 2);
    let first = h.claim_as(request.clone()).await;
    h.advance(SECOND);
    let again = h.claim_as(request.clone()).await;
    let sorted =
        |jobs: &[mainspring_core::store::Claimed]| jobs.iter().map(|job| job.claim).collect::<BTreeSet<_>>();
    assert_eq!((sorted(&again), again.len()), (sorted(&first), 2));
    assert_eq!(h.counts().await.total(State::Running), 2);
    // What has ended since is not given again.
    h.end(node, first[0].claim, succeed()).await;
    assert_eq!(sorted(&h.claim_as(request).await), sorted(&first[1..]));
    // Another number is another claim, and the same number of another node too.
    assert_eq!(h.claim(node, 1).await.len(), 1);
    let other = h.node().await;
    assert_eq!(h.claim_as(ClaimRequest { batch: ClaimBatchNo(1), ..h.request(other, 1) }).await.len(), 1);
}

/// A repeat of a batch that found nothing claims what has come since.
pub async fn repeated_empty_batch_claims(h: &Harness) {
    let node = h.node().await;
    let request = h.request(node, 2);
    assert!(h.claim_as(request.clone()).await.is_empty());
    let id = h.put_one().await;
    assert_eq!(claimed_ids(&h.claim_as(request).await), [id]);
}

/// A claim renews the node's lease, also one that finds nothing; but not each, for claims are frequent.
pub async fn claim_renews_the_lease(h: &Harness) {
    let node = h.node().await;
    let start = h.now();
    h.advance(LEASE / 3);
    h.claim(node, 1).await;
    assert_eq!(h.node_view(node).await.renewed_at, start);
    h.advance(MICRO);
    h.claim(node, 1).await;
    let view = h.node_view(node).await;
    assert_eq!((view.renewed_at, view.lease_until), (h.now(), h.now().after(LEASE)));
}

/// A node whose lease has lapsed but whom nobody has expired claims as before.
pub async fn lapsed_node_can_claim(h: &Harness) {
    h.put_one().await;
    let node = h.node().await;
    h.advance(LEASE * 3);
    assert_eq!(h.claim(node, 1).await.len(), 1);
}

/// Expired, retired and unknown nodes get nothing but `LeaseLost`.
pub async fn node_that_is_gone_cannot_claim(h: &Harness) {
    let (expired, _) = h.running().await;
    h.lose(expired).await;
    let retired = h.node().await;
    h.store.retire(retired).await.expect("retire");
    for node in [expired, retired, NodeNo(999_999)] {
        let answer = h.try_claim(h.request(node, 1)).await;
        assert!(matches!(answer, Err(Error::LeaseLost)), "{answer:?}");
    }
    assert_eq!(h.counts().await.total(State::Ready), 1);
}

/// A job's backoff is its own, or else its queue's.
pub async fn backoff_is_the_jobs_or_the_queues(h: &Harness) {
    let (own, queues) = (Backoff::Fixed(SECOND), Backoff::Fixed(SECOND * 7));
    let change = QueueChange { backoff: Some(Some(queues)), ..QueueChange::default() };
    h.store.configure(queue("q"), change).await.expect("configure");
    let with = h.put(h.job_with(|job| job.options.backoff = Some(own))).await;
    let without = h.put_one().await;
    let node = h.node().await;
    let claimed = h.claim(node, 2).await;
    assert_eq!(claimed[0].options.backoff, Some(own));
    assert_eq!(claimed[1].options.backoff, Some(queues));
    assert_eq!(h.get(with).await.summary.options.backoff, Some(own));
    assert_eq!(h.get(without).await.summary.options.backoff, None);
}

/// A claim does not mind deadlines that have passed: that is the node's business.
pub async fn late_job_is_still_claimed(h: &Harness) {
    let id = h.put(h.job_with(|job| job.deadline = Some(When::After(SECOND)))).await;
    h.advance(SECOND * 2);
    let node = h.node().await;
    let claimed = h.claim(node, 1).await;
    assert_eq!((claimed[0].claim.id, claimed[0].deadline), (id, Some(h.now().before(SECOND))));
}

/// Jobs that enter behind those already claimed, because the clock went back, are not forgotten.
pub async fn jobs_are_claimed_after_the_clock_went_back(h: &Harness) {
    h.put_one().await;
    let node = h.node().await;
    assert_eq!(h.claim(node, 10).await.len(), 1);
    h.clock.set_wall(h.now().before(Duration::from_hours(1)));
    let early = h.put_one().await;
    let urgent = h.put(h.job_with(|job| job.priority = priority(0))).await;
    assert_eq!(claimed_ids(&h.claim(node, 10).await), [urgent, early]);
}

/// However claims, returns and enqueues mix, every job is claimed in the end, once.
pub async fn every_waiting_job_is_claimed_in_the_end(h: &Harness) {
    let node = h.node().await;
    let mut expected = BTreeSet::new();
    let mut done = BTreeSet::new();
    for round in 0..40_u8 {
        for step in 0..5_u8 {
            let job = h.job_with(|job| {
                job.priority = priority((round % 10 * 7 + step * 3) % 10);
                job.kind = kind(["k", "k2", "k3"][usize::from(step) % 3]);
            });
            expected.insert(h.put(job).await);
        }
        h.advance(Duration::from_millis(10));
        for (index, claimed) in h.claim(node, 6).await.into_iter().enumerate() {
            if index == 0 && claimed.claim.number == 1 {
                h.end(node, claimed.claim, Outcome::Release).await;
            } else {
                assert!(done.insert(claimed.claim.id), "claimed twice");
                h.end(node, claimed.claim, succeed()).await;
            }
        }
    }
    loop {
        let claimed = h.claim(node, 50).await;
        if claimed.is_empty() {
            break;
        }
        for claimed in claimed {
            assert!(done.insert(claimed.claim.id), "claimed twice");
            h.end(node, claimed.claim, succeed()).await;
        }
    }
    assert_eq!(done, expected);
}
