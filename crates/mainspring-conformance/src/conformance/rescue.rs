//! Rescue: who is dead, who may say so, and what becomes of their jobs.

use std::time::Duration;

use mainspring_core::id::ClaimBatchNo;
use mainspring_core::job::{Outcome, Reason, State, Verb};
use mainspring_core::store::{ClaimRequest, Claimed, Finished, NodeState, Rescue};
use mainspring_core::time::Timestamp;
use mainspring_core::time::micros;
use mainspring_core::{Error, bounds};

use crate::harness::{
    Harness, LEASE, SECOND, because, just_before, kind, plain, priority, queue, retry, succeed,
};

/// A node that stopped renewing is expired, and its jobs go back with one crash more.
pub async fn jobs_of_a_dead_node_go_back(h: &Harness) {
    let ids = h.put_many(3).await;
    let (dead, live) = (h.node().await, h.node().await);
    h.claim(dead, 2).await;
    h.claim(live, 1).await;
    h.advance(LEASE);
    h.renew(live).await;
    let rescued = h.rescue(live).await;
    assert_eq!((rescued.expired, rescued.returned, rescued.quarantined), (vec![dead], 2, 0));
    assert!(!rescued.more);
    assert_eq!(h.node_state(dead).await, NodeState::Expired);
    assert_eq!((h.node_view(dead).await.claims, h.node_view(live).await.claims), (0, 1));
    for id in &ids[..2] {
        let summary = h.get(*id).await.summary;
        assert_eq!((summary.status, summary.node), (plain(State::Ready), None));
        assert_eq!((summary.crashes, summary.failures, summary.claim), (1, 0, 1));
    }
    assert_eq!(h.get(ids[2]).await.summary.crashes, 0);
}

/// Rescued jobs go before fresh ones.
pub async fn rescued_jobs_are_claimed_first(h: &Harness) {
    let id = h.put(h.job_with(|job| job.priority = priority(9))).await;
    h.crash(1).await;
    h.put(h.job_with(|job| job.priority = priority(0))).await;
    let node = h.node().await;
    assert_eq!(h.claim_one(node).await.id, id);
}

/// A lease that has not lapsed protects its node, to the microsecond.
pub async fn live_node_is_not_expired(h: &Harness) {
    let (node, claim) = h.running().await;
    let rescuer = h.node().await;
    h.advance(just_before(LEASE));
    let rescued = h.rescue(rescuer).await;
    assert_eq!((rescued.expired.len(), rescued.returned), (0, 0));
    h.end(node, claim, succeed()).await;
}

/// A rescuer that has not itself seen the store answer for a lease judges nobody.
pub async fn rescue_needs_a_steady_rescuer(h: &Harness) {
    let (dead, _) = h.running().await;
    h.advance(LEASE * 2);
    let by = h.node().await;
    for steady in [Duration::ZERO, just_before(LEASE)] {
        let rescued = h.store.rescue(Rescue { by, steady, seen: Timestamp::MAX }).await.expect("rescue");
        assert!(rescued.expired.is_empty());
    }
    assert_eq!(h.counts().await.total(State::Running), 1);
    let rescued = h.store.rescue(Rescue { by, steady: LEASE, seen: Timestamp::MAX }).await.expect("rescue");
    assert_eq!(rescued.expired, [dead]);
}

/// A rescuer that was not answered for long judges nobody: whoever seems dead may have waited for the store as well.
pub async fn rescue_after_a_silence_judges_nobody(h: &Harness) {
    let (dead, _) = h.running().await;
    let by = h.node().await;
    let seen = h.rescue(by).await.now;
    h.advance(LEASE * 2);
    let silent = Rescue { by, steady: LEASE * 3, seen };
    let rescued = h.store.rescue(silent).await.expect("rescue");
    assert!(rescued.expired.is_empty());
    assert_eq!(rescued.now, seen.after(LEASE * 2));
    let heard = Rescue { seen: rescued.now.before(LEASE / 2), ..silent };
    assert_eq!(h.store.rescue(heard).await.expect("rescue").expired, [dead]);
}

/// What counts is the lease of the dead node, not the rescuer's own.
pub async fn steadiness_is_measured_by_the_dead_nodes_lease(h: &Harness) {
    h.put_many(2).await;
    let short = h.node_with(|node| node.lease = SECOND).await;
    let long = h.node_with(|node| node.lease = SECOND * 60).await;
    h.claim_one(short).await;
    h.claim_one(long).await;
    h.advance(SECOND * 100);
    let by = h.node().await;
    let rescued =
        h.store.rescue(Rescue { by, steady: SECOND * 2, seen: Timestamp::MAX }).await.expect("rescue");
    assert_eq!(rescued.expired, [short]);
    let rescued =
        h.store.rescue(Rescue { by, steady: SECOND * 60, seen: Timestamp::MAX }).await.expect("rescue");
    assert_eq!(rescued.expired, [long]);
}

/// The dead cannot bury the dead.
pub async fn rescue_needs_a_live_rescuer(h: &Harness) {
    let (dead, _) = h.running().await;
    let retired = h.node().await;
    h.store.retire(retired).await.expect("retire");
    h.advance(LEASE);
    let answer = h.store.rescue(Rescue { by: retired, steady: LEASE, seen: Timestamp::MAX }).await;
    assert!(matches!(answer, Err(Error::LeaseLost)), "{answer:?}");
    assert_eq!(h.node_state(dead).await, NodeState::Live);
    h.lose(dead).await;
    let answer = h.store.rescue(Rescue { by: dead, steady: LEASE, seen: Timestamp::MAX }).await;
    assert!(matches!(answer, Err(Error::LeaseLost)), "{answer:?}");
}

/// A node does not find itself dead.
pub async fn rescuer_does_not_expire_itself(h: &Harness) {
    let (node, claim) = h.running().await;
    h.advance(LEASE * 2);
    assert!(h.rescue(node).await.expired.is_empty());
    h.end(node, claim, succeed()).await;
}

/// A lapsed node that holds nothing is left alone: there is nothing to rescue.
pub async fn idle_lapsed_node_is_not_expired(h: &Harness) {
    let idle = h.node().await;
    h.advance(LEASE * 2);
    let rescuer = h.node().await;
    assert!(h.rescue(rescuer).await.expired.is_empty());
    assert_eq!(h.node_state(idle).await, NodeState::Live);
    h.renew(idle).await;
}

/// Who has been expired is not expired again.
pub async fn node_is_expired_once(h: &Harness) {
    let (dead, claim) = h.running().await;
    h.advance(LEASE);
    let (one, two) = (h.node().await, h.node().await);
    assert_eq!(h.rescue(one).await.expired, [dead]);
    let second = h.rescue(two).await;
    assert_eq!((second.expired.len(), second.returned), (0, 0));
    assert_eq!(h.get(claim.id).await.summary.crashes, 1);
}

/// Several dead nodes are expired at once.
pub async fn all_dead_nodes_are_expired_together(h: &Harness) {
    h.put_many(3).await;
    let mut dead = Vec::new();
    for _ in 0..3 {
        let node = h.node().await;
        h.claim_one(node).await;
        dead.push(node);
    }
    h.advance(LEASE);
    let rescuer = h.node().await;
    let mut rescued = h.rescue(rescuer).await;
    rescued.expired.sort();
    assert_eq!((rescued.expired, rescued.returned), (dead, 3));
}

/// The second crash makes a suspect, the third quarantines; nothing else is counted.
pub async fn third_crash_quarantines(h: &Harness) {
    let id = h.put_one().await;
    h.crash(2).await;
    let summary = h.get(id).await.summary;
    assert_eq!((summary.status, summary.crashes), (plain(State::Ready), 2));
    let node = h.node().await;
    h.claim_one(node).await;
    let rescued = h.lose(node).await;
    assert_eq!((rescued.returned, rescued.quarantined), (0, 1));
    let summary = h.get(id).await.summary;
    assert_eq!(summary.status, because(State::Suspended, Reason::Quarantine));
    assert_eq!((summary.crashes, summary.failures, summary.claim), (3, 0, 3));
    let node = h.node().await;
    assert!(h.claim(node, 1).await.is_empty());
}

/// A quarantined job that an operator lets go on begins without crashes.
pub async fn resumed_job_begins_without_crashes(h: &Harness) {
    let id = h.put_one().await;
    h.crash(3).await;
    h.apply(id, Verb::Resume).await;
    let summary = h.get(id).await.summary;
    assert_eq!((summary.status, summary.crashes), (plain(State::Ready), 0));
    let node = h.node().await;
    let claimed = h.claim(node, 1).await.remove(0);
    assert_eq!((claimed.crashes, claimed.crashed_micros, claimed.claim.number), (0, 0, 4));
}

/// Crashes with progress between them do not add up.
pub async fn crashes_with_an_outcome_between_do_not_add_up(h: &Harness) {
    let id = h.put_one().await;
    h.crash(2).await;
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    h.end(node, claim, retry(Duration::ZERO)).await;
    h.promote().await;
    h.crash(2).await;
    let summary = h.get(id).await.summary;
    assert_eq!((summary.status, summary.crashes, summary.failures), (plain(State::Ready), 2, 1));
}

/// A claim tells how long the longest crashed claim lasted, up to its rescue.
pub async fn longest_crashed_claim_is_told(h: &Harness) {
    h.put_one().await;
    for seconds in [40, 20] {
        let node = h.node().await;
        h.claim_one(node).await;
        h.advance(Duration::from_secs(seconds).saturating_sub(LEASE));
        h.lose(node).await;
    }
    let node = h.node().await;
    let claimed = h.claim(node, 1).await.remove(0);
    assert_eq!((claimed.crashes, claimed.crashed_micros), (2, micros(SECOND * 40)));
    h.end(node, claimed.claim, Outcome::Snooze { after: Duration::ZERO }).await;
    h.promote().await;
    let claimed = h.claim(node, 1).await.remove(0);
    assert_eq!((claimed.crashes, claimed.crashed_micros), (0, 0));
}

/// One call moves a batch at most and asks for another; what is left still belongs to the expired node.
pub async fn more_than_a_batch_takes_another_call(h: &Harness) {
    h.put_many(bounds::BATCH + 3).await;
    let dead = h.node().await;
    let claims: Vec<_> = h.claim(dead, bounds::BATCH + 3).await.into_iter().map(|job| job.claim).collect();
    assert_eq!(claims.len(), bounds::BATCH + 3);
    h.advance(LEASE);
    let rescuer = h.node().await;
    let first = h.rescue(rescuer).await;
    assert_eq!((first.expired, first.returned, first.more), (vec![dead], bounds::BATCH, true));
    assert_eq!(h.node_view(dead).await.claims, 3);
    let mut applied = 0;
    for claim in claims {
        if h.get(claim.id).await.summary.node == Some(dead) && applied == 0 {
            h.end(dead, claim, succeed()).await;
            applied += 1;
        }
    }
    let second = h.rescue(rescuer).await;
    assert_eq!((second.expired.len(), second.returned, second.more), (0, 2, false));
    assert_eq!(h.counts().await.total(State::Ready), bounds::BATCH as u64 + 2);
}

/// A rescue tells the shortest lease of those who live.
pub async fn shortest_lease_of_the_living_is_told(h: &Harness) {
    let by = h.node().await;
    assert_eq!(h.rescue(by).await.shortest_lease, LEASE);
    let short = h.node_with(|node| node.lease = SECOND * 2).await;
    h.node_with(|node| node.lease = SECOND * 60).await;
    assert_eq!(h.rescue(by).await.shortest_lease, SECOND * 2);
    h.store.retire(short).await.expect("retire");
    assert_eq!(h.rescue(by).await.shortest_lease, LEASE);
}

/// An expired node's number is never another node's.
pub async fn expired_node_stays_expired(h: &Harness) {
    let registration = h.registration();
    let dead = h.store.register(registration.clone()).await.expect("register").no;
    h.put_one().await;
    let claim = h.claim_one(dead).await;
    h.lose(dead).await;
    assert_eq!(h.store.register(registration).await.expect("register").no, dead);
    assert_eq!(h.node_state(dead).await, NodeState::Expired);
    assert!(matches!(h.try_renew(dead).await, Err(Error::LeaseLost)));
    assert_eq!(h.finish(dead, claim, succeed()).await, Finished::LeaseLost);
    assert!(h.node().await > dead);
}

/// A job that its node had only claimed ahead counts no crash. It is claimed for a free slot next, and that counts.
pub async fn jobs_that_were_claimed_ahead_count_no_crash(h: &Harness) {
    let ids = h.put_many(5).await;
    let request =
        |node, limit, ahead| ClaimRequest { ahead: vec![(queue("q"), ahead)], ..h.request(node, limit) };
    let dead = h.node().await;
    let claimed = h.claim_as(request(dead, 5, 3)).await;
    assert_eq!(claimed.iter().map(|job| job.ahead).collect::<Vec<_>>(), [false, false, true, true, true]);
    let repeated = ClaimRequest { batch: ClaimBatchNo(1), ..request(dead, 5, 3) };
    let again = h.claim_as(repeated).await;
    assert_eq!(again.iter().filter(|job| job.ahead).count(), 3, "a repeat says the same");
    h.lose(dead).await;
    let crashes = async || {
        let mut crashes = Vec::new();
        for id in &ids {
            let summary = h.get(*id).await.summary;
            assert_eq!(summary.status, plain(State::Ready));
            crashes.push(summary.crashes);
        }
        crashes
    };
    assert_eq!(crashes().await, [1, 1, 0, 0, 0]);

    let fresh = h.put(h.job_with(|job| job.priority = priority(0))).await;
    let node = h.node().await;
    let told = |claimed: &[Claimed]| claimed.iter().map(|job| (job.claim.id, job.ahead)).collect::<Vec<_>>();
    let busy = h.claim_as(request(node, 3, 3)).await;
    assert_eq!(told(&busy), [(ids[0], false), (fresh, true)], "one of the lost, where no slot is free");
    let free = h.claim_as(request(node, 10, 8)).await;
    assert_eq!(told(&free), [(ids[1], false), (ids[2], false)], "one for each free slot");
    h.lose(node).await;
    assert_eq!(crashes().await, [2, 2, 1, 0, 0]);
    assert_eq!(h.get(fresh).await.summary.crashes, 0);
}

/// The jobs of one claim are counted per queue: each has free slots of its own.
pub async fn free_slots_are_counted_per_queue(h: &Harness) {
    for name in ["q", "q2"] {
        for kind_name in ["k", "k2", "k"] {
            h.put(h.job_with(|job| (job.queue, job.kind) = (queue(name), kind(kind_name)))).await;
        }
    }
    let node = h.node().await;
    let request = ClaimRequest {
        queues: vec![(queue("q2"), 3), (queue("q"), 3)],
        ahead: vec![(queue("q"), 2), (queue("q2"), 1)],
        ..h.request(node, 0)
    };
    let claimed = h.claim_as(request).await;
    let ahead: Vec<_> = claimed.iter().map(|job| (job.queue.clone(), job.ahead)).collect();
    let told = |name, ahead: [bool; 3]| ahead.map(|ahead| (queue(name), ahead));
    assert_eq!(ahead, [told("q2", [false, false, true]), told("q", [false, true, true])].concat());
}

/// Whoever kills each of its nodes is quarantined at the fourth death, however many jobs are claimed ahead.
pub async fn a_killer_that_is_claimed_ahead_is_quarantined_at_the_fourth_death(h: &Harness) {
    let id = h.put_one().await;
    let mut crashes = Vec::new();
    for _ in 0..4 {
        let node = h.node().await;
        let request = ClaimRequest { ahead: vec![(queue("q"), 9)], ..h.request(node, 9) };
        assert_eq!(h.claim_as(request).await.len(), 1);
        h.lose(node).await;
        crashes.push(h.get(id).await.summary.crashes);
    }
    assert_eq!(crashes, [0, 1, 2, 3]);
    assert_eq!(h.get(id).await.summary.status, because(State::Suspended, Reason::Quarantine));
}
