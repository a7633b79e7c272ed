//! Limits that change while jobs run and wait; and rates, which time changes.

use std::time::Duration;

use mainspring_core::job::Outcome;
use mainspring_core::limit::{Change, KeyChange, Rate};

use super::limit_calls::{limit, take, take_key};
use crate::harness::{Harness, MICRO, SECOND, claimed_ids, just_before, succeed};

/// A maximum that is raised lets the next jobs in at once.
pub async fn raised_maximum_lets_the_next_in(h: &Harness) {
    h.max("l", 1).await;
    let ids = h.put_all_limited(2, &[take_key("l", "a")]).await;
    let others = h.put_all_limited(2, &[take_key("l", "b")]).await;
    let node = h.node().await;
    assert_eq!(h.claim_all(node).await.len(), 2);
    h.max("l", 2).await;
    let mut next = claimed_ids(&h.claim_all(node).await);
    next.sort_unstable();
    let mut both = vec![ids[1], others[1]];
    both.sort_unstable();
    assert_eq!(next, both);
}

/// A maximum that is lowered ends nobody, and lets nobody in until there is room again.
pub async fn lowered_maximum_ends_nobody(h: &Harness) {
    h.max("l", 3).await;
    let ids = h.put_all_limited(5, &[take("l")]).await;
    let node = h.node().await;
    let claimed = h.claim_all(node).await;
    assert_eq!(claimed.len(), 3);
    h.max("l", 1).await;
    h.assert_full(node).await;
    for one in &claimed[..2] {
        h.end(node, one.claim, succeed()).await;
        h.assert_full(node).await;
    }
    assert_eq!(h.in_use("l", "").await, 1);
    h.end(node, claimed[2].claim, succeed()).await;
    assert_eq!(claimed_ids(&h.claim(node, 10).await), [ids[3]]);
}

/// A maximum of 0 admits nobody; raised again, everybody has their turn.
pub async fn maximum_of_zero_admits_nobody(h: &Harness) {
    h.max("l", 0).await;
    let ids = h.put_all_limited(3, &[take("l")]).await;
    let node = h.node().await;
    h.assert_full(node).await;
    h.put_all_limited(1, &[take("l")]).await;
    h.assert_full(node).await;
    h.max("l", 1).await;
    assert_eq!(h.run_all(node).await[..3], ids);
}

/// A limit that is paused lets nobody in, at any key; resumed, it lets in as before.
pub async fn paused_limit_lets_nobody_in(h: &Harness) {
    h.max("l", 2).await;
    let pause = |paused| Change { paused: Some(paused), ..Change::default() };
    let first = h.put_limited(&[take_key("l", "a")]).await;
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    h.change_limit("l", pause(true)).await;
    h.put_limited(&[take_key("l", "a")]).await;
    h.put_limited(&[take_key("l", "b")]).await;
    h.assert_full(node).await;
    h.end(node, claim, Outcome::Release).await;
    h.assert_full(node).await;
    h.change_limit("l", pause(false)).await;
    let ran = h.run_all(node).await;
    assert_eq!((ran.len(), ran.contains(&first)), (3, true));
}

/// A key that is paused lets nobody in; the others are as before.
pub async fn paused_key_lets_nobody_in(h: &Harness) {
    h.max("l", 1).await;
    let pause = |paused| KeyChange { paused: Some(paused), ..KeyChange::default() };
    h.change_key("l", "a", pause(true)).await;
    let held = h.put_all_limited(2, &[take_key("l", "a")]).await;
    let free = h.put_all_limited(2, &[take_key("l", "b")]).await;
    let node = h.node().await;
    assert_eq!(h.run_all(node).await, free);
    h.change_key("l", "a", pause(false)).await;
    assert_eq!(h.run_all(node).await, held);
}

/// A key can have a maximum of its own, higher or lower than its limit's, until that is taken back.
pub async fn key_can_have_a_maximum_of_its_own(h: &Harness) {
    h.max("l", 2).await;
    let own = |max| KeyChange { max: Some(max), ..KeyChange::default() };
    h.change_key("l", "a", own(Some(3))).await;
    for key in ["a", "b"] {
        h.put_all_limited(5, &[take_key("l", key)]).await;
    }
    let node = h.node().await;
    assert_eq!(h.claim_all(node).await.len(), 5);
    assert_eq!((h.in_use("l", "a").await, h.in_use("l", "b").await), (3, 2));
    h.change_key("l", "b", own(Some(4))).await;
    assert_eq!(h.claim_all(node).await.len(), 2);
    h.max("l", 4).await;
    h.assert_full(node).await;
    h.change_key("l", "a", own(None)).await;
    assert_eq!(h.claim_all(node).await.len(), 1);
    assert_eq!((h.in_use("l", "a").await, h.in_use("l", "b").await), (4, 4));
    h.change_key("l", "b", own(Some(0))).await;
    h.assert_full(node).await;
}

/// A maximum that is taken away lets all in.
pub async fn removed_maximum_lets_all_in(h: &Harness) {
    h.max("l", 1).await;
    h.put_all_limited(5, &[take("l")]).await;
    let node = h.node().await;
    assert_eq!(h.claim_all(node).await.len(), 1);
    h.change_limit("l", Change { max: Some(None), ..Change::default() }).await;
    assert_eq!(h.claim_all(node).await.len(), 4);
}

/// A rate admits its burst, and then one job per interval; a promotion says when the next one is due, and lets it in.
pub async fn rate_admits_its_burst_and_then_one_per_interval(h: &Harness) {
    h.rate("l", Rate::new(10, SECOND).burst(3)).await;
    let ids = h.put_all_limited(6, &[take("l")]).await;
    let node = h.node().await;
    assert_eq!(h.run_all(node).await, ids[..3]);
    let tenth = Duration::from_millis(100);
    for id in &ids[3..] {
        h.assert_full(node).await;
        let due = h.store.promote(10).await.expect("promote").next;
        assert_eq!(due, Some(h.now().after(tenth)));
        h.advance(just_before(tenth));
        h.promote().await;
        h.assert_full(node).await;
        h.advance(MICRO);
        h.promote().await;
        assert_eq!(h.run_all(node).await, [*id]);
    }
    assert_eq!(h.store.promote(10).await.expect("promote").next, None);
}

/// Each key has tokens of its own, and a job takes as many as it takes units.
pub async fn keys_have_tokens_of_their_own(h: &Harness) {
    h.rate("l", Rate::new(1, SECOND).burst(4)).await;
    for key in ["a", "b"] {
        h.put_all_limited(3, &[take_key("l", key).units(2)]).await;
    }
    let node = h.node().await;
    assert_eq!(h.run_all(node).await.len(), 4);
    h.advance(SECOND);
    h.promote().await;
    h.assert_full(node).await;
    h.advance(SECOND);
    h.promote().await;
    assert_eq!(h.run_all(node).await.len(), 2);
}

/// Tokens are taken by claims and not given back: a start is a start.
pub async fn tokens_are_not_given_back(h: &Harness) {
    h.rate("l", Rate::new(1, SECOND)).await;
    let id = h.put_limited(&[take("l")]).await;
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    h.end(node, claim, Outcome::Release).await;
    h.assert_full(node).await;
    h.advance(SECOND);
    h.promote().await;
    assert_eq!(h.claim_one(node).await.id, id);
}

/// A limit with a maximum and a rate admits a job if both do.
pub async fn rate_and_maximum_hold_together(h: &Harness) {
    let rate = Rate::new(1, SECOND).burst(3);
    h.change_limit("l", Change { max: Some(Some(2)), rate: Some(Some(rate)), paused: None }).await;
    h.put_all_limited(5, &[take("l")]).await;
    let node = h.node().await;
    let claimed = h.claim_all(node).await;
    assert_eq!(claimed.len(), 2);
    h.end(node, claimed[0].claim, succeed()).await;
    assert_eq!(h.claim_all(node).await.len(), 1);
    h.end(node, claimed[1].claim, succeed()).await;
    h.assert_full(node).await;
    h.advance(SECOND);
    h.promote().await;
    assert_eq!(h.claim_all(node).await.len(), 1);
    h.advance(SECOND * 9);
    h.promote().await;
    h.assert_full(node).await;
}

/// A rate that is changed or taken away holds at once.
pub async fn changed_rate_holds_at_once(h: &Harness) {
    h.rate("l", Rate::new(1, SECOND * 1_000)).await;
    h.put_all_limited(5, &[take("l")]).await;
    let node = h.node().await;
    assert_eq!(h.run_all(node).await.len(), 1);
    h.rate("l", Rate::new(1, SECOND)).await;
    h.advance(SECOND * 17);
    h.promote().await;
    assert_eq!(h.run_all(node).await.len(), 1);
    h.change_limit("l", Change { rate: Some(None), ..Change::default() }).await;
    assert_eq!(h.run_all(node).await.len(), 3);
}

/// A clock that goes back delays a key with a rate by its burst at most.
pub async fn clock_that_went_back_delays_a_rate_by_its_burst_at_most(h: &Harness) {
    let now = h.now();
    h.advance(SECOND * 10_000);
    h.rate("l", Rate::new(1, SECOND).burst(2)).await;
    let node = h.node().await;
    h.put_all_limited(2, &[take("l")]).await;
    assert_eq!(h.run_all(node).await.len(), 2);
    h.clock.set_wall(now);
    let id = h.put_limited(&[take("l")]).await;
    h.assert_full(node).await;
    h.advance(SECOND * 18);
    h.promote().await;
    assert_eq!(h.run_all(node).await, [id]);
}

/// A group that time has not let in yet is let in by room that somebody makes, and the other way round.
pub async fn many_keys_are_due_together(h: &Harness) {
    h.rate("l", Rate::new(1, SECOND)).await;
    let node = h.node().await;
    for n in 0..25 {
        h.put_all_limited(2, &[take_key("l", &n.to_string())]).await;
    }
    assert_eq!(h.run_all(node).await.len(), 25);
    h.advance(SECOND);
    let mut sweeps = 0;
    while h.store.promote(10).await.expect("promote").next.is_some_and(|next| next <= h.now()) {
        sweeps += 1;
        assert!(sweeps <= 3, "ten keys each time");
    }
    assert_eq!(h.run_all(node).await.len(), 25);
}

/// Groups and keys that nobody needs any more are removed; what somebody has set stays.
pub async fn idle_limit_keys_are_pruned(h: &Harness) {
    h.rate("l", Rate::new(1, SECOND)).await;
    h.max("m", 1).await;
    let node = h.node().await;
    for n in 0..5 {
        h.put_limited(&[take_key("l", &n.to_string()), take_key("m", &n.to_string())]).await;
    }
    h.change_key("m", "0", KeyChange { max: Some(Some(3)), ..KeyChange::default() }).await;
    let claimed = h.claim_all(node).await;
    assert_eq!(claimed.len(), 5);
    for one in &claimed[1..] {
        h.end(node, one.claim, succeed()).await;
    }
    let prune = async || {
        while h.prune().await > 0 {}
    };
    let keys = async |name: &str| h.store.limit_keys(limit(name), None, 10).await.expect("keys");
    prune().await;
    assert_eq!(keys("l").await.len(), 5, "their tokens are not back");
    assert_eq!(
        keys("m").await.iter().map(|key| (key.key.as_str(), key.in_use)).filter(|it| it.1 > 0).count(),
        1
    );
    h.advance(SECOND);
    h.end(node, claimed[0].claim, succeed()).await;
    h.advance(SECOND * 100_000);
    prune().await;
    prune().await;
    assert_eq!(keys("l").await, []);
    assert_eq!(
        keys("m").await.iter().map(|key| (key.key.as_str(), key.max)).collect::<Vec<_>>(),
        [("0", Some(3))]
    );
    let id = h.put_limited(&[take_key("l", "1"), take_key("m", "1")]).await;
    let node = h.node().await;
    assert_eq!(h.run_all(node).await, [id]);
}
