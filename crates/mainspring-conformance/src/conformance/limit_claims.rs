//! Limits and claims: what a claim takes, whom it lets in, and in which order.

use std::collections::{BTreeMap, BTreeSet};

use mainspring_core::job::{Outcome, State, Verb, When};
use mainspring_core::limit::Change;
use mainspring_core::store::{ClaimRequest, Filter, Line, QueueChange};

use super::limit_calls::{take, take_key};
use crate::harness::{
    Harness, SECOND, cancel, claimed_ids, kind, label, plain, priority, queue, retry, succeed,
};

/// A limited job that waits is ready, in listings, counts and lines.
pub async fn limited_job_is_ready(h: &Harness) {
    h.max("l", 1).await;
    let id = h.put_limited(&[take("l")]).await;
    assert_eq!(h.status(id).await, plain(State::Ready));
    assert_eq!(h.counts().await.of(&queue("q"), State::Ready), 1);
    let ready = Filter { states: vec![State::Ready], ..Filter::default() };
    assert_eq!(h.ids(&ready).await, [id]);
    let line = Line { queue: queue("q"), kind: kind("k"), labels: Vec::new() };
    assert_eq!(h.store.lines().await.expect("lines"), [line]);
    let node = h.node().await;
    h.claim_one(node).await;
    assert_eq!(h.store.lines().await.expect("lines"), []);
    assert_eq!(h.status(id).await, plain(State::Running));
}

/// No more jobs run than the maximum, however many ask.
pub async fn claims_never_exceed_the_maximum(h: &Harness) {
    h.max("l", 3).await;
    let ids = h.put_all_limited(8, &[take("l")]).await;
    let (one, two) = (h.node().await, h.node().await);
    let mut claimed = h.claim(one, 2).await;
    claimed.extend(h.claim(two, 2).await);
    assert_eq!(claimed_ids(&claimed), ids[..3]);
    h.assert_full(one).await;
    h.assert_full(two).await;
    assert_eq!(h.in_use("l", "").await, 3);
    h.end(one, claimed[0].claim, succeed()).await;
    assert_eq!(claimed_ids(&h.claim(two, 10).await), [ids[3]]);
}

/// Each key has room of its own.
pub async fn each_key_has_its_own_room(h: &Harness) {
    h.max("l", 1).await;
    let mut first = Vec::new();
    for key in ["a", "b", "c"] {
        first.push(h.put_all_limited(2, &[take_key("l", key)]).await[0]);
    }
    let node = h.node().await;
    let claimed: BTreeSet<_> = claimed_ids(&h.claim_all(node).await).into_iter().collect();
    assert_eq!(claimed, first.into_iter().collect());
    assert_eq!((h.in_use("l", "a").await, h.in_use("l", "b").await, h.in_use("l", "").await), (1, 1, 0));
}

/// A limit holds over queues and kinds.
pub async fn limit_holds_over_queues_and_kinds(h: &Harness) {
    h.max("l", 2).await;
    for (name, of) in [("q", "k"), ("q2", "k2"), ("q3", "k")] {
        for _ in 0..2 {
            let mut job = h.limited(&[take("l")]);
            (job.queue, job.kind) = (queue(name), kind(of));
            h.put(job).await;
        }
    }
    let node = h.node().await;
    let all = ["q", "q2", "q3"].map(|name| (queue(name), 10)).to_vec();
    let mut ran = 0;
    loop {
        let claimed = h.claim_as(ClaimRequest { queues: all.clone(), ..h.request(node, 1) }).await;
        if claimed.is_empty() {
            break;
        }
        assert!(claimed.len() <= 2);
        for one in claimed {
            h.end(node, one.claim, succeed()).await;
            ran += 1;
        }
    }
    assert_eq!(ran, 6);
}

/// A job takes all its units or waits; jobs that need fewer go on meanwhile.
pub async fn claim_takes_all_units_or_none(h: &Harness) {
    h.max("l", 5).await;
    let big = h.put_all_limited(2, &[take("l").units(3)]).await;
    let small = h.put_all_limited(3, &[take("l").units(2)]).await;
    let node = h.node().await;
    let claimed = h.claim_all(node).await;
    let units: u32 = claimed.iter().map(|job| u32::from(job.options.limits[0].units)).sum();
    assert!(units > 3 && units <= 5, "{units}");
    assert_eq!(h.in_use("l", "").await, units);
    for one in claimed {
        h.end(node, one.claim, succeed()).await;
    }
    assert_eq!(h.run_all(node).await.len(), 3);
    for id in big.into_iter().chain(small) {
        assert_eq!(h.status(id).await, plain(State::Succeeded));
    }
}

/// A job that takes more than the maximum waits, and holds up nobody.
pub async fn job_that_takes_more_than_the_maximum_waits(h: &Harness) {
    h.max("l", 3).await;
    let big = h.put_limited(&[take("l").units(4)]).await;
    let small = h.put_all_limited(2, &[take("l")]).await;
    let node = h.node().await;
    assert_eq!(h.run_all(node).await, small);
    h.max("l", 4).await;
    assert_eq!(h.run_all(node).await, [big]);
}

/// A job with several limits takes of all or of none.
pub async fn several_limits_are_taken_together(h: &Harness) {
    h.max("l", 1).await;
    h.max("m", 2).await;
    let both = h.put_all_limited(2, &[take("l"), take_key("m", "a")]).await;
    let node = h.node().await;
    let claimed = h.claim_all(node).await;
    assert_eq!(claimed_ids(&claimed), [both[0]]);
    assert_eq!((h.in_use("l", "").await, h.in_use("m", "a").await), (1, 1));
    let one = h.put_all_limited(2, &[take_key("m", "a")]).await;
    assert_eq!(claimed_ids(&h.claim_all(node).await), [one[0]]);
    h.end(node, claimed[0].claim, succeed()).await;
    let next = h.claim(node, 1).await;
    assert!([both[1], one[1]].contains(&next[0].claim.id));
    h.assert_full(node).await;
    assert_eq!(h.in_use("m", "a").await, 2);
}

/// A job that lacks room at one key passes the room at its others on.
pub async fn job_blocked_at_one_key_holds_up_nobody_at_another(h: &Harness) {
    h.max("l", 1).await;
    h.max("m", 1).await;
    let blocker = h.put_limited(&[take("l")]).await;
    let holder = h.put_limited(&[take("m")]).await;
    let node = h.node().await;
    let claimed = h.claim_all(node).await;
    assert_eq!(claimed.len(), 2);
    h.put_all_limited(3, &[take("l"), take("m")]).await;
    let waiting = h.put_all_limited(2, &[take("m")]).await;
    h.assert_full(node).await;
    let of = |id| claimed.iter().find(|one| one.claim.id == id).expect("it is claimed").claim;
    h.end(node, of(holder), succeed()).await;
    assert_eq!(h.run_all(node).await, waiting);
    h.end(node, of(blocker), succeed()).await;
    assert_eq!(h.run_all(node).await.len(), 3);
}

/// Room that was passed on to a job which lacks room at another key by now is used by the same claim.
pub async fn room_that_a_blocked_job_leaves_is_used_at_once(h: &Harness) {
    h.max("l", 1).await;
    h.max("m", 1).await;
    h.put_limited(&[take("m")]).await;
    let node = h.node().await;
    let holder = h.claim_one(node).await;
    let both = h.put_limited(&[take("l"), take("m")]).await;
    h.assert_full(node).await;
    let one = h.put_limited(&[take("m")]).await;
    h.assert_full(node).await;
    let other = h.put_limited(&[take("l")]).await;
    let claim = h.claim_one(node).await;
    assert_eq!(claim.id, other);
    h.end(node, holder, succeed()).await;
    assert_eq!(claimed_ids(&h.claim(node, 10).await), [one]);
    h.end(node, claim, succeed()).await;
    h.assert_full(node).await;
    h.apply(one, cancel("no")).await;
    h.lose(node).await;
    let node = h.node().await;
    assert_eq!(h.run_all(node).await, [both]);
}

/// Every group that waits at a key has its turn in the end, however many there are.
pub async fn every_group_at_a_key_has_its_turn(h: &Harness) {
    h.max("l", 2).await;
    h.max("m", 1).await;
    let mut ids = BTreeSet::new();
    for n in 0..40 {
        h.advance(SECOND);
        ids.extend(h.put_all_limited(1 + n % 3, &[take("l"), take_key("m", &n.to_string())]).await);
    }
    let node = h.node().await;
    let mut running = h.claim_all(node).await;
    let mut ran = BTreeSet::new();
    while let Some(one) = running.pop() {
        assert!(running.len() < 2, "never more than the maximum");
        h.end(node, one.claim, succeed()).await;
        ran.insert(one.claim.id);
        running.extend(h.claim_all(node).await);
    }
    assert_eq!(ran, ids);
}

/// Jobs of a group keep their order: by level, then by time.
pub async fn group_keeps_its_order(h: &Harness) {
    h.max("l", 1).await;
    let mut ids = Vec::new();
    for level in [5, 9, 0, 5] {
        h.advance(SECOND);
        let mut job = h.limited(&[take("l")]);
        job.priority = priority(level);
        ids.push(h.put(job).await);
    }
    let node = h.node().await;
    assert_eq!(h.run_all(node).await, [ids[2], ids[0], ids[3], ids[1]]);
}

/// An urgent job of another group comes first.
pub async fn urgent_group_comes_first(h: &Harness) {
    h.max("l", 1).await;
    let slow = h.put_all_limited(2, &[take_key("l", "a")]).await;
    let mut job = h.limited(&[take_key("l", "b")]);
    job.priority = priority(0);
    let urgent = h.put(job).await;
    let node = h.node().await;
    assert_eq!(claimed_ids(&h.claim(node, 1).await), [urgent]);
    assert_eq!(claimed_ids(&h.claim(node, 1).await), [slow[0]]);
}

/// Plain and limited jobs of one level both get some, also if a node asks for one at a time.
pub async fn plain_and_limited_jobs_both_get_some(h: &Harness) {
    h.max("l", 100).await;
    for limit in [1, 4] {
        let plain: BTreeSet<_> = h.put_many(20).await.into_iter().collect();
        let limited: BTreeSet<_> = h.put_all_limited(20, &[take("l")]).await.into_iter().collect();
        let node = h.node().await;
        let mut seen = (0, 0);
        for _ in 0..16 / limit {
            for one in h.claim(node, limit).await {
                seen.0 += usize::from(plain.contains(&one.claim.id));
                seen.1 += usize::from(limited.contains(&one.claim.id));
                h.end(node, one.claim, succeed()).await;
            }
        }
        assert_eq!(seen.0 + seen.1, 16);
        assert!(seen.0 >= 3 && seen.1 >= 3, "{seen:?}");
        assert_eq!(h.run_all(node).await.len(), 24);
    }
}

/// Limited jobs are claimed for free slots alone; where none is free, one waits for the next.
pub async fn limited_jobs_are_claimed_for_free_slots(h: &Harness) {
    h.max("l", 100).await;
    h.put_all_limited(10, &[take("l")]).await;
    let node = h.node().await;
    let ask = |ahead: usize| ClaimRequest { ahead: vec![(queue("q"), ahead)], ..h.request(node, 6) };
    let claimed = h.claim_as(ask(4)).await;
    assert_eq!(claimed.len(), 2);
    assert!(claimed.iter().all(|job| !job.ahead));
    assert_eq!(h.claim_as(ask(6)).await.len(), 1);
    h.put_many(10).await;
    let mixed = h.claim_as(ask(3)).await;
    assert_eq!(mixed.len(), 6);
    for (at, job) in mixed.iter().enumerate() {
        assert_eq!(job.ahead, at >= 3, "the first three are for free slots");
        assert!(at < 3 || job.options.limits.is_empty(), "no limited job waits for a slot");
    }
    assert_eq!(h.claim_as(ask(0)).await.len(), 6);
}

/// A batch whose answer was lost is adopted; it takes nothing twice.
pub async fn adopted_claims_take_nothing_twice(h: &Harness) {
    h.max("l", 3).await;
    h.put_all_limited(5, &[take("l")]).await;
    let node = h.node().await;
    let request = h.request(node, 2);
    let claimed = h.claim_as(request.clone()).await;
    assert_eq!(claimed_ids(&h.claim_as(request).await), claimed_ids(&claimed));
    assert_eq!(h.in_use("l", "").await, 2);
}

/// A queue that is paused holds up no other queue at the same key, although its jobs came first.
pub async fn paused_queue_holds_up_no_other_at_its_key(h: &Harness) {
    let (node, claim) = h.holding().await;
    for name in ["q2", "q"] {
        for _ in 0..2 {
            let mut job = h.limited(&[take("l")]);
            job.queue = queue(name);
            h.put(job).await;
        }
    }
    let both = |limit| ClaimRequest {
        queues: vec![(queue("q2"), limit), (queue("q"), limit)],
        ..h.request(node, 1)
    };
    assert_eq!(h.claim_as(both(5)).await, [], "all wait at the key");
    let pause = |paused| QueueChange { paused: Some(paused), ..QueueChange::default() };
    h.store.configure(queue("q2"), pause(true)).await.expect("configure");
    h.end(node, claim, succeed()).await;
    assert_eq!(h.run_all(node).await.len(), 2);
    h.store.configure(queue("q2"), pause(false)).await.expect("configure");
    let first = h.claim_as(both(5)).await;
    assert_eq!(first.len(), 1);
    h.end(node, first[0].claim, succeed()).await;
    assert_eq!(h.claim_as(both(5)).await.len(), 1);
}

/// Jobs that no node can run hold up no others at their key, although they came first.
pub async fn stranded_jobs_hold_up_no_others_at_their_key(h: &Harness) {
    let (node, claim) = h.holding().await;
    let mut stranded = h.limited(&[take("l")]);
    stranded.options.labels = vec![label("gpu")];
    let stranded = h.put(stranded).await;
    let other = h.put_limited(&[take("l")]).await;
    let able = h.node_with(|node| node.abilities.labels = vec![label("gpu")]).await;
    assert_eq!(h.claim(able, 10).await, [], "both wait at the key");
    h.end(node, claim, succeed()).await;
    assert_eq!(h.run_all(node).await, [other]);
    assert_eq!(h.run_all(able).await, [stranded]);
}

/// Suspects that a node does not ask for hold up no others at their key.
pub async fn suspects_hold_up_no_others_at_their_key(h: &Harness) {
    h.max("l", 1).await;
    h.max("m", 9).await;
    let suspect = h.put_limited(&[take("l")]).await;
    h.crash(2).await;
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    let other = h.put_limited(&[take("l"), take("m")]).await;
    h.assert_full(node).await;
    h.end(node, claim, Outcome::Release).await;
    let without = |limit| ClaimRequest { suspects: 0, ..h.request(node, limit) };
    assert_eq!(claimed_ids(&h.claim_as(without(3)).await), [other]);
    assert_eq!(h.claim_as(without(3)).await, []);
    h.assert_full(node).await;
    let record = h.get(suspect).await;
    assert_eq!((record.summary.status, record.summary.crashes), (plain(State::Ready), 2));
}

/// Suspects and lost jobs among limited ones are bounded as plain ones are.
pub async fn limited_suspects_are_bounded(h: &Harness) {
    h.max("l", 100).await;
    for key in ["a", "b"] {
        h.put_limited(&[take_key("l", key)]).await;
    }
    for _ in 0..2 {
        let node = h.node().await;
        assert_eq!(h.claim(node, 10).await.len(), 2);
        assert_eq!(h.lose(node).await.returned, 2);
    }
    let node = h.node().await;
    let fresh = h.put_limited(&[take_key("l", "a")]).await;
    let one = ClaimRequest { suspects: 1, ..h.request(node, 10) };
    let claimed = h.claim_as(one).await;
    assert_eq!((claimed.len(), claimed[0].is_suspect(), claimed[1].claim.id), (2, true, fresh));
    assert_eq!(h.claim(node, 10).await.len(), 1);
}

/// A waiting limited job takes another place in its group when its priority changes.
pub async fn priority_of_a_limited_job_changes_its_place(h: &Harness) {
    let (node, claim) = h.holding().await;
    let ids = h.put_all_limited(3, &[take("l")]).await;
    h.assert_full(node).await;
    h.apply(ids[2], Verb::SetPriority(priority(1))).await;
    h.apply(ids[0], Verb::SetPriority(priority(9))).await;
    h.end(node, claim, succeed()).await;
    assert_eq!(h.run_all(node).await, [ids[2], ids[1], ids[0]]);
}

/// Limited jobs that were scheduled, retried or resumed obey their limits as all others.
pub async fn limits_hold_for_jobs_that_come_back(h: &Harness) {
    let (node, claim) = h.holding().await;
    let mut later = h.limited(&[take("l")]);
    later.run = Some(When::After(SECOND * 3));
    let later = h.put(later).await;
    let held = h.put_limited(&[take("l")]).await;
    h.apply(held, Verb::Hold { why: String::new() }).await;
    h.advance(SECOND * 3);
    assert_eq!(h.promote().await, 1);
    h.apply(held, Verb::Resume).await;
    h.assert_full(node).await;
    h.end(node, claim, retry(SECOND)).await;
    let first = h.claim_one(node).await;
    assert_eq!(first.id, later);
    h.advance(SECOND);
    assert_eq!(h.promote().await, 1);
    h.assert_full(node).await;
    h.end(node, first, crate::harness::fail()).await;
    h.apply(later, Verb::Retry).await;
    let rest: BTreeSet<_> = h.run_all(node).await.into_iter().collect();
    assert_eq!(rest, BTreeSet::from([held, later, claim.id]));
}

/// Whatever limits jobs have, every one of them runs in the end, and none too early.
pub async fn every_limited_job_is_claimed_in_the_end(h: &Harness) {
    for (name, max) in [("l", 3), ("m", 2), ("n", 1)] {
        h.max(name, max).await;
    }
    let all = ["l", "m", "n"];
    let mut ids = BTreeSet::new();
    for n in 0..120_usize {
        let uses: Vec<_> = all
            .iter()
            .enumerate()
            .filter(|(bit, _)| (n % 8) & (1 << bit) != 0)
            .map(|(bit, name)| take_key(name, ["a", "b"][(n / 8 + bit) % 2]))
            .collect();
        let mut job = h.limited(&uses);
        job.priority = priority(u8::try_from(n % 3).unwrap_or(0));
        job.kind = kind(["k", "k2"][n % 2]);
        ids.insert(h.put(job).await);
    }
    let nodes = [h.node().await, h.node().await];
    let mut running = Vec::new();
    let mut ran = BTreeSet::new();
    for round in 0.. {
        let node = nodes[round % 2];
        let claimed = h.claim(node, 1 + round % 5).await;
        let idle = claimed.is_empty();
        running.extend(claimed.into_iter().map(|one| (node, one)));
        let mut units: BTreeMap<_, u32> = BTreeMap::new();
        for (_, one) in &running {
            for it in &one.options.limits {
                *units.entry((it.limit.as_str(), it.key.as_str())).or_default() += u32::from(it.units);
            }
        }
        for ((name, key), units) in units {
            let max = match name {
                "l" => 3,
                "m" => 2,
                _ => 1,
            };
            assert!(units <= max, "{units} of {name} {key}");
        }
        if idle || running.len() > 6 {
            if running.is_empty() {
                break;
            }
            let (owner, one) = running.remove(round % running.len());
            let outcome = if round % 3 == 0 { Outcome::Release } else { succeed() };
            if round % 3 != 0 {
                ran.insert(one.claim.id);
            }
            h.end(owner, one.claim, outcome).await;
        }
        assert!(round < 10_000, "it ends");
    }
    assert_eq!(ran, ids);
}

/// A limit without a maximum and a rate admits all.
pub async fn limit_without_bounds_admits_all(h: &Harness) {
    h.change_limit("l", Change::default()).await;
    h.put_all_limited(20, &[take("l").units(16)]).await;
    let node = h.node().await;
    assert_eq!(h.claim_all(node).await.len(), 20);
}
