//! Totals: how many jobs of a queue or a kind run at once, over all nodes.

use mainspring_core::audit::Subject;
use mainspring_core::job::Outcome;
use mainspring_core::journal::Suspension;
use mainspring_core::limit::{Obstacle, Total, TotalUse};
use mainspring_core::store::ClaimRequest;
use mainspring_core::{Error, bounds};

use super::limit_calls::{take, take_key};
use super::workflow_calls::{suspended, until_signal};
use crate::harness::{Harness, SECOND, cancel, claimed_ids, kind, queue, retry, succeed};

fn of_queue(name: &str) -> Total {
    Total::Queue(queue(name))
}

fn of_kind(name: &str) -> Total {
    Total::Kind(kind(name))
}

async fn in_use(h: &Harness, total: &Total) -> Option<(u32, u32)> {
    let totals = h.store.totals().await.expect("totals");
    totals.into_iter().find(|it| it.total == *total).map(|it| (it.in_use, it.max))
}

/// No more jobs of a queue run than its total, over all nodes; other queues are as before.
pub async fn total_of_a_queue_holds_over_all_nodes(h: &Harness) {
    h.total(of_queue("q"), Some(3)).await;
    let ids = h.put_many(6).await;
    for _ in 0..4 {
        h.put(h.job_with(|job| job.queue = queue("q2"))).await;
    }
    let (one, two) = (h.node().await, h.node().await);
    let first = h.claim(one, 2).await;
    let second = h.claim(two, 10).await;
    assert_eq!((first.len(), claimed_ids(&second)), (2, vec![ids[2]]));
    h.assert_full(one).await;
    h.assert_full(two).await;
    let other = ClaimRequest { queues: vec![(queue("q2"), 10)], ..h.request(one, 1) };
    assert_eq!(h.claim_as(other).await.len(), 4);
    assert_eq!(in_use(h, &of_queue("q")).await, Some((3, 3)));
    h.end(two, second[0].claim, succeed()).await;
    assert_eq!(claimed_ids(&h.claim(one, 10).await), [ids[3]]);
}

/// The total of a kind holds over all queues; other kinds of a queue are as before.
pub async fn total_of_a_kind_holds_over_all_queues(h: &Harness) {
    h.total(of_kind("k"), Some(2)).await;
    for name in ["q", "q2"] {
        for of in ["k", "k", "k2"] {
            h.put(h.job_with(|job| (job.queue, job.kind) = (queue(name), kind(of)))).await;
        }
    }
    let node = h.node().await;
    let all = |limit| ClaimRequest {
        queues: vec![(queue("q"), limit), (queue("q2"), limit)],
        ..h.request(node, 1)
    };
    let claimed = h.claim_as(all(10)).await;
    let of = |name: &str| claimed.iter().filter(|job| job.kind == kind(name)).count();
    assert_eq!((of("k"), of("k2")), (2, 2));
    assert_eq!(h.claim_as(all(10)).await, []);
    for one in claimed {
        h.end(node, one.claim, succeed()).await;
    }
    assert_eq!(h.claim_as(all(10)).await.len(), 2);
}

/// A total that is introduced while jobs run counts them, from that moment on.
pub async fn total_counts_jobs_that_ran_before(h: &Harness) {
    let ids = h.put_many(6).await;
    h.max("l", 9).await;
    let limited = h.put_limited(&[take("l")]).await;
    let node = h.node().await;
    let mut claimed = h.claim(node, 2).await;
    while !claimed_ids(&claimed).contains(&limited) {
        claimed.extend(h.claim(node, 1).await);
    }
    let running = u32::try_from(claimed.len()).unwrap_or(u32::MAX);
    h.total(of_queue("q"), Some(2)).await;
    h.total(of_kind("k"), Some(9)).await;
    assert_eq!(in_use(h, &of_queue("q")).await, Some((running, 2)));
    assert_eq!(in_use(h, &of_kind("k")).await, Some((running, 9)));
    h.assert_full(node).await;
    let mut left = running;
    for one in claimed {
        h.end(node, one.claim, succeed()).await;
        left -= 1;
        assert_eq!(in_use(h, &of_queue("q")).await, Some((left, 2)));
    }
    assert_eq!(h.claim(node, 10).await.len(), 2);
    h.assert_full(node).await;
    let _ = ids;
}

/// A total that is lowered ends nobody; raised or removed, it lets the next in at once.
pub async fn changed_total_holds_at_once(h: &Harness) {
    h.total(of_queue("q"), Some(3)).await;
    h.put_many(9).await;
    let node = h.node().await;
    let claimed = h.claim(node, 10).await;
    h.total(of_queue("q"), Some(1)).await;
    for one in &claimed {
        h.assert_full(node).await;
        h.end(node, one.claim, succeed()).await;
    }
    assert_eq!(h.claim(node, 10).await.len(), 1);
    h.total(of_queue("q"), Some(2)).await;
    assert_eq!(h.claim(node, 10).await.len(), 1);
    h.total(of_queue("q"), Some(0)).await;
    h.assert_full(node).await;
    h.total(of_queue("q"), None).await;
    assert_eq!(h.claim(node, 10).await.len(), 4);
    assert_eq!(h.store.totals().await.expect("totals"), []);
    h.total(of_queue("q"), Some(5)).await;
    assert_eq!(in_use(h, &of_queue("q")).await, Some((6, 5)));
}

/// Whatever ends a claim gives its place in a total back.
pub async fn every_end_leaves_room_in_a_total(h: &Harness) {
    h.total(of_queue("q"), Some(1)).await;
    let outcomes = [
        succeed(),
        retry(SECOND * 100),
        Outcome::Snooze { after: SECOND * 100 },
        suspended(until_signal("go")),
        suspended(Suspension { keep: true, ..until_signal("go") }),
    ];
    let node = h.node().await;
    for outcome in outcomes {
        h.put_one().await;
        let claim = h.claim_one(node).await;
        h.assert_full(node).await;
        h.end(node, claim, outcome).await;
        assert_eq!(in_use(h, &of_queue("q")).await, Some((0, 1)));
    }
    h.put_one().await;
    let claim = h.claim_one(node).await;
    h.end(node, claim, Outcome::Release).await;
    let claim = h.claim_one(node).await;
    h.apply(claim.id, cancel("no")).await;
    h.lose(node).await;
    assert_eq!(in_use(h, &of_queue("q")).await, Some((0, 1)));
    h.put_one().await;
    let node = h.node().await;
    h.claim_one(node).await;
    assert_eq!(h.store.retire(node).await.expect("retire"), 1);
    assert_eq!(in_use(h, &of_queue("q")).await, Some((0, 1)));
}

/// Limited jobs count in totals, and a keeper takes its place again when it is claimed.
pub async fn limited_jobs_count_in_totals(h: &Harness) {
    h.max("l", 2).await;
    h.total(of_queue("q"), Some(2)).await;
    for key in ["a", "b"] {
        h.put_all_limited(3, &[take_key("l", key)]).await;
    }
    h.put_many(2).await;
    let node = h.node().await;
    let claimed = h.claim_all(node).await;
    assert_eq!((claimed.len(), in_use(h, &of_queue("q")).await), (2, Some((2, 2))));
    for one in claimed {
        h.end(node, one.claim, succeed()).await;
    }
    assert_eq!(h.run_all(node).await.len(), 6);
    h.total(of_queue("q"), Some(1)).await;
    h.put_limited(&[take("l")]).await;
    let claim = h.claim_one(node).await;
    h.suspend(node, claim, Suspension { keep: true, ..until_signal("go") }).await;
    assert_eq!((in_use(h, &of_queue("q")).await, h.in_use("l", "").await), (Some((0, 1)), 1));
    h.put_one().await;
    let other = h.claim_one(node).await;
    h.send(claim.id, "go", "ann").await;
    h.assert_full(node).await;
    h.end(node, other, succeed()).await;
    assert_eq!(h.claim_one(node).await.id, claim.id);
    assert_eq!((in_use(h, &of_queue("q")).await, h.in_use("l", "").await), (Some((1, 1)), 1));
}

/// A total that is reached holds up no limited jobs of other lines at the same key.
pub async fn total_holds_up_no_other_line_at_a_key(h: &Harness) {
    let (node, claim) = h.holding().await;
    for of in ["k2", "k"] {
        let mut job = h.limited(&[take("l")]);
        job.kind = kind(of);
        h.put(job).await;
    }
    h.assert_full(node).await;
    h.total(of_kind("k2"), Some(0)).await;
    h.end(node, claim, succeed()).await;
    assert_eq!(h.run_all(node).await.len(), 1);
    h.total(of_kind("k2"), None).await;
    assert_eq!(h.run_all(node).await.len(), 1);
}

/// Totals are listed, and their changes remembered; a deleted queue has none.
pub async fn totals_are_listed_and_remembered(h: &Harness) {
    h.total(of_kind("a"), Some(7)).await;
    h.total(of_queue("z"), Some(5)).await;
    h.total(of_queue("z"), Some(5)).await;
    h.total(of_queue("b"), Some(bounds::LIMIT_MAX)).await;
    let refused = h.store.set_total(of_queue("b"), Some(bounds::LIMIT_MAX + 1), "ann".into()).await;
    assert!(matches!(refused, Err(Error::TooLarge { .. })), "{refused:?}");
    let shown = |total, max| TotalUse { total, max, in_use: 0 };
    let all = [shown(of_queue("b"), bounds::LIMIT_MAX), shown(of_queue("z"), 5), shown(of_kind("a"), 7)];
    assert_eq!(h.store.totals().await.expect("totals"), all);
    let entries = h.store.audit(Some(Subject::Queue(queue("z"))), 10).await.expect("audit");
    assert_eq!(
        entries.iter().map(|it| (it.verb.as_str(), it.who.as_str())).collect::<Vec<_>>(),
        [("set", "ann")]
    );
    assert_eq!(entries[0].new.as_ref().map(|new| new["max_running"].clone()), Some(5.into()));
    assert_eq!(entries[0].old, None);
    let queues = h.store.queues().await.expect("queues");
    assert_eq!(queues.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["b", "z"]);
    h.store.delete_queue(queue("z")).await.expect("delete");
    assert_eq!(h.store.totals().await.expect("totals").len(), 2);
}

/// A job that a total holds back says so.
pub async fn job_behind_a_total_says_so(h: &Harness) {
    h.total(of_queue("q"), Some(1)).await;
    let ids = h.put_many(2).await;
    assert_eq!(h.obstacle(ids[0]).await, None);
    let node = h.node().await;
    h.claim_one(node).await;
    let expected = Obstacle::Total { total: of_queue("q"), in_use: 1, max: 1 };
    assert_eq!(h.obstacle(ids[1]).await, Some(expected));
    assert_eq!(h.obstacle(ids[0]).await, None, "it runs");
}
