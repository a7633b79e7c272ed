//! Short words for what behaviors of limits do all the time.

use mainspring_core::bounds;
use mainspring_core::id::{Claim, JobId, NodeNo};
use mainspring_core::job::New;
use mainspring_core::limit::{Change, KeyChange, KeyUse, Limit, LimitUse, Obstacle, Rate, Total};
use mainspring_core::name::LimitName;
use mainspring_core::store::Claimed;

use crate::harness::{Harness, succeed};

impl Harness {
    /// Changes a limit, as `ann`.
    pub(super) async fn change_limit(&self, name: &str, change: Change) -> Limit {
        self.store.set_limit(limit(name), change, "ann".into()).await.expect("set_limit")
    }

    /// Defines a limit by its maximum.
    pub(super) async fn max(&self, name: &str, max: u32) {
        self.change_limit(name, Change { max: Some(Some(max)), ..Change::default() }).await;
    }

    /// Defines a limit by its rate.
    pub(super) async fn rate(&self, name: &str, rate: Rate) {
        self.change_limit(name, Change { rate: Some(Some(rate)), ..Change::default() }).await;
    }

    /// Changes one key of a limit, as `ann`.
    pub(super) async fn change_key(&self, name: &str, key: &str, change: KeyChange) {
        let changed = self.store.set_limit_key(limit(name), key.into(), change, "ann".into()).await;
        changed.expect("set_limit_key");
    }

    /// Sets a total, as `ann`.
    pub(super) async fn total(&self, total: Total, max: Option<u32>) {
        self.store.set_total(total, max, "ann".into()).await.expect("set_total");
    }

    /// A job with limits.
    pub(super) fn limited(&self, uses: &[LimitUse]) -> New {
        let mut uses = uses.to_vec();
        uses.sort();
        self.job_with(|job| job.options.limits = uses)
    }

    /// Enqueues one.
    pub(super) async fn put_limited(&self, uses: &[LimitUse]) -> JobId {
        self.put(self.limited(uses)).await
    }

    /// Enqueues several; ids in order.
    pub(super) async fn put_all_limited(&self, count: usize, uses: &[LimitUse]) -> Vec<JobId> {
        let mut ids = Vec::new();
        for _ in 0..count {
            ids.push(self.put_limited(uses).await);
        }
        ids
    }

    /// Who uses a limit key.
    pub(super) async fn key_use(&self, name: &str, key: &str) -> KeyUse {
        self.store.limit_key(limit(name), key.into()).await.expect("limit_key")
    }

    /// Units of a limit key that are in use.
    pub(super) async fn in_use(&self, name: &str, key: &str) -> u32 {
        self.key_use(name, key).await.key.in_use
    }

    /// What keeps a job from being claimed.
    pub(super) async fn obstacle(&self, id: JobId) -> Option<Obstacle> {
        self.store.obstacle(id).await.expect("obstacle")
    }

    /// Claims jobs of `q` until nothing comes.
    pub(super) async fn claim_all(&self, node: NodeNo) -> Vec<Claimed> {
        let mut all = Vec::new();
        loop {
            let claimed = self.claim(node, 10).await;
            if claimed.is_empty() {
                return all;
            }
            all.extend(claimed);
            assert!(all.len() <= bounds::BATCH, "it ends");
        }
    }

    /// Nothing of `q` can be claimed, by a node that asks more than once.
    pub(super) async fn assert_full(&self, node: NodeNo) {
        for _ in 0..2 {
            assert_eq!(self.claim(node, 10).await, []);
        }
    }

    /// Claims and ends jobs of `q` until nothing comes; in the order in which they came.
    pub(super) async fn run_all(&self, node: NodeNo) -> Vec<JobId> {
        let mut order = Vec::new();
        loop {
            let claimed = self.claim(node, 10).await;
            if claimed.is_empty() {
                return order;
            }
            for one in claimed {
                self.end(node, one.claim, succeed()).await;
                order.push(one.claim.id);
            }
            assert!(order.len() <= 5_000, "it ends");
        }
    }

    /// The claim of a job of `q` with the one unit of limit `l`, and the node that holds it.
    pub(super) async fn holding(&self) -> (NodeNo, Claim) {
        self.max("l", 1).await;
        self.put_limited(&[take("l")]).await;
        let node = self.node().await;
        let claim = self.claim_one(node).await;
        assert_eq!(self.in_use("l", "").await, 1);
        (node, claim)
    }
}

/// A limit's name.
pub(super) fn limit(name: &str) -> LimitName {
    LimitName::new(name).expect("a limit's name")
}

/// One unit of a limit that is not divided.
pub(super) fn take(name: &str) -> LimitUse {
    LimitUse::new(limit(name))
}

/// One unit of a limit key.
pub(super) fn take_key(name: &str, key: &str) -> LimitUse {
    take(name).key(key)
}
