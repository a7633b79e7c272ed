//! What operators see of limits: who holds a key, who waits, and why a job is not claimed.

use mainspring_core::job::{Why, why};
use mainspring_core::limit::{Change, KeyChange, Obstacle, Rate};

use super::limit_calls::{limit, take, take_key};
use crate::harness::{Harness, SECOND, succeed};

/// A key shows its holders and the jobs that wait for it.
pub async fn key_shows_holders_and_waiters(h: &Harness) {
    h.max("l", 3).await;
    h.max("m", 1).await;
    let first = h.put_limited(&[take_key("l", "a").units(2)]).await;
    let node = h.node().await;
    h.claim_one(node).await;
    let both = h.put_limited(&[take_key("l", "a"), take("m")]).await;
    let waiting = h.put_all_limited(3, &[take_key("l", "a").units(2)]).await;
    h.put_limited(&[take_key("l", "b")]).await;
    let found = h.key_use("l", "a").await;
    assert_eq!((found.key.in_use, found.waiting), (2, 4));
    assert_eq!(
        found.holders.iter().map(|it| (it.job, it.units, it.keeps)).collect::<Vec<_>>(),
        [(first, 2, false)]
    );
    let mut waiters = found.waiters.clone();
    waiters.sort_unstable();
    let mut expected: Vec<_> = waiting.iter().copied().chain([both]).collect();
    expected.sort_unstable();
    assert_eq!(waiters, expected);
    let none = h.key_use("l", "nobody").await;
    assert_eq!((none.key.in_use, none.waiting, none.holders.len()), (0, 0, 0));
}

/// A job that waits says at which limit, who holds it, and when room is expected.
pub async fn waiting_job_says_what_is_in_its_way(h: &Harness) {
    h.max("l", 1).await;
    let uses = [take_key("l", "a")];
    let ids = h.put_all_limited(3, &uses).await;
    assert_eq!(h.obstacle(ids[0]).await, None);
    assert_eq!(h.obstacle(ids[2]).await, Some(Obstacle::Behind { job: ids[0] }));
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    let full = Obstacle::Limit {
        limit: limit("l"),
        key: "a".into(),
        units: 1,
        in_use: 1,
        max: 1,
        holders: vec![ids[0]],
    };
    for id in &ids[1..] {
        assert_eq!(h.obstacle(*id).await.as_ref(), Some(&full));
    }
    let record = h.get(ids[1]).await;
    let nodes = h.store.nodes().await.expect("nodes");
    let told = why(&record, None, &nodes, Some(&full), h.now());
    assert_eq!(told, Why::Limited(full));
    h.end(node, claim, succeed()).await;
    assert_eq!(h.obstacle(ids[1]).await, None);
    let pause = KeyChange { paused: Some(true), ..KeyChange::default() };
    h.change_key("l", "a", pause).await;
    let paused = Obstacle::Paused { limit: limit("l"), key: Some("a".into()) };
    assert_eq!(h.obstacle(ids[2]).await, Some(paused));
    h.change_limit("l", Change { paused: Some(true), ..Change::default() }).await;
    assert_eq!(h.obstacle(ids[2]).await, Some(Obstacle::Paused { limit: limit("l"), key: None }));
}

/// A job that waits for a token says when it comes; of several limits, the first that is in the way is told.
pub async fn job_behind_a_rate_says_when(h: &Harness) {
    h.rate("m", Rate::new(1, SECOND * 10)).await;
    h.max("n", 0).await;
    h.max("a", 5).await;
    let uses = [take("a"), take("m"), take("n")];
    let id = h.put_limited(&uses).await;
    let closed = h.obstacle(id).await;
    assert!(
        matches!(&closed, Some(Obstacle::Limit { limit: it, max: 0, .. }) if *it == limit("n")),
        "{closed:?}"
    );
    let first = h.put_limited(&[take("m")]).await;
    let node = h.node().await;
    assert_eq!(h.claim_one(node).await.id, first);
    let until = h.now().after(SECOND * 10);
    let expected = Obstacle::Rate { limit: limit("m"), key: String::new(), until };
    assert_eq!(h.obstacle(id).await, Some(expected));
}
