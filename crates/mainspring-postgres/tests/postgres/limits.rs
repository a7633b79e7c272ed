//! Limits on Postgres: what its tables say between calls.

use std::time::Duration;

use mainspring_core::id::NodeNo;
use mainspring_core::job::New;
use mainspring_core::limit::{Change, KeyChange, LimitUse, Rate, Total};
use mainspring_core::name::LimitName;
use mainspring_core::store::{Claimed, Finish};
use mainspring_testkit::executor::block_on;
use mainspring_testkit::harness::{Harness, queue, succeed};

use crate::conformance::postgres;

fn limit(name: &str) -> LimitName {
    LimitName::new(name).expect("a name")
}

async fn set(harness: &Harness, name: &str, max: Option<u32>, rate: Option<Rate>) {
    let change = Change { max: Some(max), rate: Some(rate), paused: None };
    harness.store.set_limit(limit(name), change, "tester".into()).await.expect("a limit");
}

fn job(harness: &Harness, uses: &[(&str, &str, u16)]) -> New {
    let one = |(name, key, units): &(&str, &str, u16)| LimitUse::new(limit(name)).key(*key).units(*units);
    harness.job_with(|job| job.options.limits = uses.iter().map(one).collect())
}

async fn put(harness: &Harness, count: usize, uses: &[(&str, &str, u16)]) {
    let jobs = (0..count).map(|_| job(harness, uses)).collect();
    harness.enqueue_all(jobs).await;
}

async fn end(harness: &Harness, node: NodeNo, claimed: &[Claimed]) {
    let finishes = claimed.iter().map(|job| Finish { claim: job.claim, outcome: succeed() }).collect();
    harness.store.finish(node, finishes).await.expect("finish");
}

/// The self-check finds nothing.
async fn sound(harness: &Harness) {
    let findings = harness.store.check().await.expect("a check");
    assert!(findings.is_empty(), "{findings:?}");
}

async fn in_use(harness: &Harness, name: &str, key: &str) -> u32 {
    harness.store.limit_key(limit(name), key.into()).await.expect("a key").key.in_use
}

#[test]
fn maximum_bounds_claims_and_every_end_lets_the_next_in() {
    block_on(async {
        let harness = postgres();
        set(&harness, "gpu", Some(2), None).await;
        put(&harness, 5, &[("gpu", "", 1)]).await;
        harness.put_one().await;
        let node = harness.node().await;
        let first = harness.claim(node, 10).await;
        assert_eq!(first.len(), 3);
        sound(&harness).await;
        assert!(harness.claim(node, 10).await.is_empty());
        assert_eq!(in_use(&harness, "gpu", "").await, 2);
        end(&harness, node, &first).await;
        sound(&harness).await;
        let next = harness.claim(node, 10).await;
        assert_eq!(next.len(), 2);
        harness.store.retire(node).await.expect("retired");
        sound(&harness).await;
        assert_eq!(in_use(&harness, "gpu", "").await, 0);
        let node = harness.node().await;
        assert_eq!(harness.claim(node, 10).await.len(), 2);
        sound(&harness).await;
    });
}

#[test]
fn keys_are_counted_one_by_one_and_together() {
    block_on(async {
        let harness = postgres();
        set(&harness, "all", Some(3), None).await;
        set(&harness, "tenant", Some(1), None).await;
        for key in ["a", "b", "c", "d"] {
            put(&harness, 2, &[("all", "", 1), ("tenant", key, 1)]).await;
        }
        let node = harness.node().await;
        let mut left = 8;
        while left > 0 {
            let claimed = harness.claim(node, 10).await;
            assert_eq!(claimed.len(), left.min(3), "{left} are left");
            sound(&harness).await;
            assert!(harness.claim(node, 10).await.is_empty());
            sound(&harness).await;
            end(&harness, node, &claimed).await;
            sound(&harness).await;
            left -= claimed.len();
            if left == 2 {
                break;
            }
        }
    });
}

#[test]
fn units_changes_and_pauses() {
    block_on(async {
        let harness = postgres();
        set(&harness, "gpu", Some(4), None).await;
        put(&harness, 2, &[("gpu", "", 3)]).await;
        put(&harness, 2, &[("gpu", "", 1)]).await;
        let node = harness.node().await;
        let first = harness.claim(node, 10).await;
        assert!(first.len() >= 2);
        sound(&harness).await;
        set(&harness, "gpu", Some(0), None).await;
        end(&harness, node, &first).await;
        assert!(harness.claim(node, 10).await.is_empty());
        sound(&harness).await;
        set(&harness, "gpu", None, None).await;
        sound(&harness).await;
        let paused = KeyChange { max: None, paused: Some(true) };
        harness
            .store
            .set_limit_key(limit("gpu"), String::new(), paused, "tester".into())
            .await
            .expect("paused");
        assert!(harness.claim(node, 10).await.is_empty());
        sound(&harness).await;
        let resumed = KeyChange { max: None, paused: Some(false) };
        harness
            .store
            .set_limit_key(limit("gpu"), String::new(), resumed, "tester".into())
            .await
            .expect("resumed");
        assert_eq!(harness.claim(node, 10).await.len(), 4 - first.len());
        sound(&harness).await;
    });
}

#[test]
fn rate_lets_in_on_time() {
    block_on(async {
        let harness = postgres();
        set(&harness, "api", None, Some(Rate::new(1, Duration::from_secs(10)).burst(2))).await;
        put(&harness, 4, &[("api", "", 1)]).await;
        let node = harness.node().await;
        assert_eq!(harness.claim(node, 10).await.len(), 2);
        assert!(harness.claim(node, 10).await.is_empty());
        let next = harness.store.promote(10).await.expect("a look").next.expect("a time");
        assert_eq!(next, harness.now().after(Duration::from_secs(10)));
        harness.advance(Duration::from_secs(10));
        harness.store.renew(mainspring_core::store::Renewal::new(node)).await.expect("renewed");
        harness.store.promote(10).await.expect("a look");
        assert_eq!(harness.claim(node, 10).await.len(), 1);
        sound(&harness).await;
        assert!(harness.claim(node, 10).await.is_empty());
    });
}

#[test]
fn total_is_exact_also_when_it_is_introduced_while_jobs_run() {
    block_on(async {
        let harness = postgres();
        harness.put_many(6).await;
        set(&harness, "gpu", Some(5), None).await;
        put(&harness, 3, &[("gpu", "", 1)]).await;
        let node = harness.node().await;
        let first = harness.claim(node, 2).await;
        assert_eq!(first.len(), 2);
        let total = || Total::Queue(queue("q"));
        harness.store.set_total(total(), Some(3), "tester".into()).await.expect("a total");
        sound(&harness).await;
        assert_eq!(harness.store.totals().await.expect("totals")[0].in_use, 2);
        let second = harness.claim(node, 10).await;
        assert_eq!(second.len(), 1);
        sound(&harness).await;
        assert!(harness.claim(node, 10).await.is_empty());
        end(&harness, node, &first).await;
        sound(&harness).await;
        let third = harness.claim(node, 10).await;
        assert_eq!(third.len(), 2);
        sound(&harness).await;
        harness.store.set_total(total(), None, "tester".into()).await.expect("no total");
        let rest = harness.claim(node, 10).await;
        assert_eq!(rest.len(), 4);
        for some in [&second, &third, &rest] {
            end(&harness, node, some).await;
        }
        sound(&harness).await;
    });
}
