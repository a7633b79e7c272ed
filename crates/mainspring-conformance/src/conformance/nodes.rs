//! Nodes: joining, renewing, marks, giving back, progress.

use std::time::Duration;

use mainspring_core::Error;
use mainspring_core::id::{ClaimBatchNo, NodeNo};
use mainspring_core::job::{Outcome, Progress, State};
use mainspring_core::store::{ActivityReport, LastClaim, Mark, Node, NodeState, QueueActivity, Renewal};

use super::workflow_calls::steps;

use crate::harness::{Harness, LEASE, SECOND, claimed_ids, kind, label, plain, queue, retry, succeed};

/// A node is listed with all that it said of itself.
pub async fn registered_node_is_listed(h: &Harness) {
    let mut registration = h.registration();
    registration.name = "app-worker-2.0-7".into();
    registration.version = "2.0".into();
    registration.abilities.labels = vec![label("eu"), label("gpu")];
    registration.queues = vec![(queue("mail"), 3), (queue("bulk"), 1)];
    registration.abilities.kinds = vec![kind("a"), kind("b")];
    let member = h.store.register(registration.clone()).await.expect("register");
    assert_eq!(member.now, h.now());
    let nodes = h.store.nodes().await.expect("nodes");
    let expected = Node {
        no: member.no,
        id: registration.id,
        name: registration.name,
        version: registration.version,
        pid: registration.pid,
        queues: registration.queues,
        abilities: registration.abilities,
        state: NodeState::Live,
        started_at: h.now(),
        renewed_at: h.now(),
        lease_until: h.now().after(LEASE),
        claims: 0,
        backed_up: false,
        report: None,
    };
    assert_eq!(nodes, [expected]);
}

/// The same node id again is the same node, unchanged.
pub async fn repeated_registration_gives_the_same_number(h: &Harness) {
    let registration = h.registration();
    let first = h.store.register(registration.clone()).await.expect("register");
    h.advance(SECOND);
    let before = h.node_view(first.no).await;
    let again = h.store.register(registration).await.expect("register");
    assert_eq!((again.no, again.now), (first.no, h.now()));
    assert_eq!(h.node_view(first.no).await, before);
}

/// Every node has a number of its own, and the newest is listed first.
pub async fn node_numbers_grow(h: &Harness) {
    let mut numbers = Vec::new();
    for _ in 0..3 {
        let node = h.node().await;
        numbers.push(node);
        h.store.retire(node).await.expect("retire");
    }
    assert!(numbers.is_sorted_by(|a, b| a < b));
    let listed: Vec<_> = h.store.nodes().await.expect("nodes").into_iter().map(|node| node.no).collect();
    numbers.reverse();
    assert_eq!(listed, numbers);
}

/// A renewal extends the lease from now.
pub async fn renewal_extends_the_lease(h: &Harness) {
    let node = h.node().await;
    h.advance(SECOND * 5);
    let renewed = h.renew(node).await;
    assert_eq!((renewed.now, renewed.cancel), (h.now(), Vec::new()));
    let view = h.node_view(node).await;
    assert_eq!((view.renewed_at, view.lease_until), (h.now(), h.now().after(LEASE)));
    assert_eq!(view.started_at, h.now().before(SECOND * 5));
}

/// A lapsed lease that nobody acted on is extended, and its claims are as before.
pub async fn lapsed_lease_is_extended(h: &Harness) {
    let (node, claim) = h.running().await;
    h.advance(LEASE * 4);
    h.renew(node).await;
    let rescuer = h.node().await;
    assert!(h.rescue(rescuer).await.expired.is_empty());
    h.end(node, claim, succeed()).await;
}

/// Expired, retired and unknown nodes are told so.
pub async fn node_that_is_gone_cannot_renew(h: &Harness) {
    let (expired, _) = h.running().await;
    h.lose(expired).await;
    let retired = h.node().await;
    h.store.retire(retired).await.expect("retire");
    for node in [expired, retired, NodeNo(999_999)] {
        let answer = h.try_renew(node).await;
        assert!(matches!(answer, Err(Error::LeaseLost)), "{answer:?}");
    }
    assert_eq!(h.node_state(expired).await, NodeState::Expired);
    assert_eq!(h.node_state(retired).await, NodeState::Retired);
}

/// It is as the last renewal said, and a claim says nothing of it.
pub async fn node_is_backed_up_until_a_renewal_says_otherwise(h: &Harness) {
    let node = h.node().await;
    let other = h.node().await;
    let renew = async |backed_up| {
        let renewal = Renewal { backed_up, ..Renewal::new(node) };
        h.store.renew(renewal).await.expect("renew");
    };
    renew(true).await;
    assert!(h.node_view(node).await.backed_up && !h.node_view(other).await.backed_up);
    // Late enough for the claim to renew the lease.
    h.advance(LEASE / 2);
    h.claim(node, 1).await;
    assert!(h.node_view(node).await.backed_up);
    renew(false).await;
    assert!(!h.node_view(node).await.backed_up);
}

/// What a node says of its queues with a renewal is kept as it is until the next renewal; a claim says nothing of it.
pub async fn node_is_listed_with_its_last_report(h: &Harness) {
    let node = h.node().await;
    assert_eq!(h.node_view(node).await.report, None, "it has not renewed its lease yet");
    let last_claim = LastClaim { asked: 4, got: 3, at: h.now() };
    let activity = |name, last_claim| QueueActivity {
        queue: queue(name),
        slots: 10,
        running: 9,
        waiting: 5,
        unstored: 7,
        asking: 2,
        last_claim,
        next_look: Duration::from_micros(1_234_567),
    };
    let queues = vec![activity("mail", Some(last_claim)), activity("bulk", None)];
    h.advance(SECOND);
    let said = h.now();
    h.store.renew(Renewal { queues: queues.clone(), ..Renewal::new(node) }).await.expect("renew");
    // Late enough for the claim to renew the lease.
    h.advance(LEASE / 2);
    h.claim(node, 1).await;
    assert_eq!(h.node_view(node).await.report, Some(ActivityReport { at: said, queues }));
    h.renew(node).await;
    let empty = ActivityReport { at: h.now(), queues: Vec::new() };
    assert_eq!(h.node_view(node).await.report, Some(empty));
}

/// The queues with slots in its last report are those that a node serves; before its first, those that it registered with.
pub async fn node_serves_the_queues_of_its_last_report(h: &Harness) {
    let mut registration = h.registration();
    registration.queues = vec![(queue("mail"), 3), (queue("bulk"), 1)];
    let node = h.store.register(registration).await.expect("register").no;
    let activity = |name, slots| QueueActivity {
        queue: queue(name),
        slots,
        running: 1,
        waiting: 0,
        unstored: 0,
        asking: 0,
        last_claim: None,
        next_look: Duration::ZERO,
    };
    let queues = vec![activity("mail", 20), activity("bulk", 0), activity("new", 2)];
    h.store.renew(Renewal { queues, ..Renewal::new(node) }).await.expect("renew");
    assert_eq!(h.node_view(node).await.queues, [(queue("mail"), 20), (queue("new"), 2)]);
    h.store.retire(node).await.expect("retire");
    assert_eq!(h.node_view(node).await.queues, [(queue("mail"), 20), (queue("new"), 2)]);
}

async fn mark(h: &Harness, node: NodeNo, claim: mainspring_core::id::Claim, mark: Mark) {
    h.store.renew(Renewal { marks: vec![(claim, mark)], ..Renewal::new(node) }).await.expect("renew");
}

/// A stuck handler is shown for as long as its claim lasts.
pub async fn stuck_mark_lasts_as_long_as_the_claim(h: &Harness) {
    let (node, claim) = h.running().await;
    assert!(!h.get(claim.id).await.summary.stuck);
    mark(h, node, claim, Mark::Stuck).await;
    assert!(h.get(claim.id).await.summary.stuck);
    h.renew(node).await;
    assert!(h.get(claim.id).await.summary.stuck);
    h.end(node, claim, Outcome::Release).await;
    assert!(!h.get(claim.id).await.summary.stuck);
    h.claim_one(node).await;
    assert!(!h.get(claim.id).await.summary.stuck);
}

/// A handler that awaits something foreign is shown until it goes on, with what it recorded last; one that is stuck is
/// shown as that.
pub async fn foreign_await_is_shown_until_the_handler_goes_on(h: &Harness) {
    let (node, claim) = h.running().await;
    let seen = async || {
        let record = h.get(claim.id).await;
        let last = record.last.map(|(key, _)| key.to_string());
        (record.summary.foreign, record.summary.stuck, last)
    };
    mark(h, node, claim, Mark::GoesOn).await;
    assert_eq!(seen().await, (false, false, None));
    mark(h, node, claim, Mark::Foreign).await;
    assert_eq!(seen().await, (true, false, None));
    for name in ["a", "c", "b"] {
        h.record(node, claim, steps([name])).await;
    }
    h.renew(node).await;
    assert_eq!(seen().await, (true, false, Some("b".to_owned())));
    mark(h, node, claim, Mark::GoesOn).await;
    assert_eq!(seen().await, (false, false, None));
    let marks = [Mark::Foreign, Mark::GoesOn, Mark::Foreign].map(|mark| (claim, mark)).to_vec();
    h.store.renew(Renewal { marks, ..Renewal::new(node) }).await.expect("renew");
    assert_eq!(seen().await, (true, false, Some("b".to_owned())), "marks are taken in their order");
    mark(h, node, claim, Mark::Stuck).await;
    assert_eq!(seen().await, (false, true, None));
    mark(h, node, claim, Mark::GoesOn).await;
    assert_eq!(seen().await, (false, true, None), "it does not");
}

/// A suspect that outlived its crashes counts one from there on, and the next crash does not quarantine it.
pub async fn cleared_suspect_counts_one_crash(h: &Harness) {
    let id = h.put_one().await;
    h.crash(2).await;
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    mark(h, node, claim, Mark::Cleared).await;
    assert_eq!(h.get(id).await.summary.crashes, 1);
    h.lose(node).await;
    let summary = h.get(id).await.summary;
    assert_eq!((summary.status, summary.crashes), (plain(State::Ready), 2));
}

/// Clearing adds nothing to a job without crashes.
pub async fn clearing_adds_no_crash(h: &Harness) {
    let (node, claim) = h.running().await;
    mark(h, node, claim, Mark::Cleared).await;
    assert_eq!(h.get(claim.id).await.summary.crashes, 0);
}

/// Marks of stale claims, of other nodes, and of jobs unknown are ignored.
pub async fn stale_marks_are_ignored(h: &Harness) {
    let id = h.put_one().await;
    h.crash(2).await;
    let (node, other) = (h.node().await, h.node().await);
    let stale = h.claim_one(node).await;
    h.end(node, stale, Outcome::Release).await;
    let claim = h.claim_one(node).await;
    for what in [Mark::Stuck, Mark::Foreign, Mark::Cleared] {
        mark(h, node, stale, what).await;
        mark(h, other, claim, what).await;
    }
    let summary = h.get(id).await.summary;
    assert_eq!((summary.stuck, summary.foreign, summary.crashes), (false, false, 2));
}

/// A node that retires gives back all that it holds, counting nothing.
pub async fn retiring_gives_everything_back(h: &Harness) {
    let ids = h.put_many(3).await;
    let node = h.node().await;
    h.claim(node, 2).await;
    h.claim(node, 2).await;
    assert_eq!(h.store.retire(node).await.expect("retire"), 3);
    assert_eq!(h.node_state(node).await, NodeState::Retired);
    assert_eq!(h.node_view(node).await.claims, 0);
    for id in &ids {
        let summary = h.get(*id).await.summary;
        assert_eq!(summary.status, plain(State::Ready));
        assert_eq!((summary.failures, summary.crashes, summary.claim), (0, 0, 1));
    }
    let next = h.node().await;
    assert_eq!(claimed_ids(&h.claim(next, 3).await), ids);
}

/// Retiring twice, retiring the expired and retiring nobody are no errors and do nothing.
pub async fn retiring_again_is_no_error(h: &Harness) {
    let (expired, _) = h.running().await;
    h.lose(expired).await;
    let retired = h.node().await;
    assert_eq!(h.store.retire(retired).await.expect("retire"), 0);
    for node in [retired, expired, NodeNo(999_999)] {
        assert_eq!(h.store.retire(node).await.expect("retire"), 0);
    }
    assert_eq!(h.node_state(expired).await, NodeState::Expired);
}

/// A suspect that is given back is still a suspect.
pub async fn suspect_that_is_given_back_is_still_one(h: &Harness) {
    h.put_one().await;
    h.crash(2).await;
    let node = h.node().await;
    h.claim_one(node).await;
    h.store.retire(node).await.expect("retire");
    let next = h.node().await;
    let mut request = h.request(next, 1);
    request.suspects = 0;
    assert!(h.claim_as(request).await.is_empty());
    assert_eq!(h.claim(next, 1).await[0].crashes, 2);
}

/// Claims that their node does not know of go back; those that it keeps, and batches under way, do not.
pub async fn disown_releases_what_is_not_kept(h: &Harness) {
    h.put_many(4).await;
    let (node, other) = (h.node().await, h.node().await);
    let known = h.claim_one(node).await;
    let lost = h.claim_one(node).await;
    let open = h.claim_one(node).await;
    let others = h.claim_one(other).await;
    assert_eq!(h.store.disown(node, ClaimBatchNo(2), vec![known]).await.expect("disown"), 1);
    let summary = h.get(lost.id).await.summary;
    assert_eq!((summary.status, summary.failures, summary.crashes), (plain(State::Ready), 0, 0));
    for (node, claim) in [(node, known), (node, open), (other, others)] {
        assert_eq!(h.get(claim.id).await.summary.node, Some(node));
    }
    assert_eq!(h.store.disown(node, ClaimBatchNo(2), vec![known]).await.expect("disown"), 0);
    assert_eq!(h.store.disown(node, ClaimBatchNo(3), Vec::new()).await.expect("disown"), 2);
}

/// A kept claim of an older number keeps nothing.
pub async fn disown_does_not_keep_stale_claims(h: &Harness) {
    let (node, stale) = h.running().await;
    h.end(node, stale, Outcome::Release).await;
    let claim = h.claim_one(node).await;
    assert_eq!(h.store.disown(node, ClaimBatchNo(2), vec![stale]).await.expect("disown"), 1);
    assert_eq!(h.get(claim.id).await.summary.status, plain(State::Ready));
}

fn half(note: &str) -> Progress {
    Progress { done: 1, total: 2, note: note.into() }
}

/// The last that a handler said of its progress is kept, also after its end.
pub async fn progress_is_kept(h: &Harness) {
    let (node, claim) = h.running().await;
    assert_eq!(h.get(claim.id).await.progress, None);
    for note in ["one", "two"] {
        h.store.progress(node, vec![(claim, half(note))]).await.expect("progress");
    }
    assert_eq!(h.get(claim.id).await.progress, Some(half("two")));
    let both = vec![(claim, half("three")), (claim, half("four"))];
    h.store.progress(node, both).await.expect("progress");
    h.end(node, claim, retry(Duration::ZERO)).await;
    h.promote().await;
    let claim = h.claim_one(node).await;
    h.end(node, claim, succeed()).await;
    assert_eq!(h.get(claim.id).await.progress, Some(half("four")));
}

/// Progress of a stale claim or of another node is ignored.
pub async fn stale_progress_is_ignored(h: &Harness) {
    let (node, stale) = h.running().await;
    h.end(node, stale, Outcome::Release).await;
    h.store.progress(node, vec![(stale, half("waiting"))]).await.expect("progress");
    let claim = h.claim_one(node).await;
    let other = h.node().await;
    h.store.progress(node, vec![(stale, half("stale"))]).await.expect("progress");
    h.store.progress(other, vec![(claim, half("other"))]).await.expect("progress");
    assert_eq!(h.get(claim.id).await.progress, None);
}

/// Progress counts up to the largest number that stores keep.
pub async fn largest_progress_survives(h: &Harness) {
    let (node, claim) = h.running().await;
    let most = i64::MAX as u64;
    let progress = Progress { done: u64::MAX, total: most, note: String::new() };
    h.store.progress(node, vec![(claim, progress.clone())]).await.expect("progress");
    assert_eq!(h.get(claim.id).await.progress, Some(Progress { done: most, ..progress }));
}
