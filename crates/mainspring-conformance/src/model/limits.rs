//! The part of a life that is about limits: what operators do to them, and what can be seen of them.

use std::sync::Arc;
use std::time::Duration;

use mainspring_core::id::JobId;
use mainspring_core::limit::{
    Change, Definition, KeyChange, KeyUse, LimitSeed, LimitUse, Obstacle, Rate, Seed, Total,
};
use mainspring_core::name::LimitName;
use mainspring_core::store::{Limits, Nodes, Store, Swept};

use super::life::{KINDS, LIMIT, Life, QUEUES, equal};
use super::op::{LIMIT_KEYS, LIMITS};
use super::view::{answers, same};
use crate::harness::{kind, queue};

const NAMES: [&str; LIMITS] = ["l", "m", "r"];
const KEYS: [&str; LIMIT_KEYS] = ["", "a"];

fn name(limit: usize) -> LimitName {
    LimitName::new(NAMES[limit]).expect("a limit's name")
}

/// The limits of a draft, in order.
pub(super) fn uses(drafts: &[(usize, usize, u16)]) -> Vec<LimitUse> {
    let one =
        |(limit, key, units): &(usize, usize, u16)| LimitUse::new(name(*limit)).key(KEYS[*key]).units(*units);
    drafts.iter().map(one).collect()
}

/// Two of limit `l`, one of `m`, and two at once and one a second of `r`.
fn seeds() -> Vec<LimitSeed> {
    let rate = Rate::new(1, Duration::from_secs(1)).burst(2);
    let definitions = [
        Definition { max: Some(2), rate: None },
        Definition { max: Some(1), rate: None },
        Definition { max: None, rate: Some(rate) },
    ];
    let seed = |(limit, definition)| LimitSeed {
        name: name(limit),
        seed: Seed { revision: 1, definition, by: "1".into() },
    };
    definitions.into_iter().enumerate().map(seed).collect()
}

impl Life<'_> {
    pub(super) async fn define_limits(&self) -> Result<(), String> {
        equal("seeded", self.model.seed_limits(seeds()).await, self.any().seed_limits(seeds()).await)
    }

    pub(super) async fn set_limit(
        &self,
        limit: usize,
        max: Option<u32>,
        paused: Option<bool>,
    ) -> Result<(), String> {
        let change = Change { max: max.map(|max| (max < 3).then_some(max)), rate: None, paused };
        let model = self.model.set_limit(name(limit), change, "ann".into()).await;
        equal("limit", model, self.any().set_limit(name(limit), change, "ann".into()).await)
    }

    pub(super) async fn set_limit_key(
        &self,
        limit: usize,
        key: usize,
        max: Option<u32>,
        paused: bool,
    ) -> Result<(), String> {
        let change = KeyChange { max: Some(max), paused: Some(paused) };
        let of = |store: Arc<dyn Store>| async move {
            store.set_limit_key(name(limit), KEYS[key].into(), change, "ann".into()).await
        };
        let (model, store) = (of(Arc::new(self.model.clone())).await, of(self.any()).await);
        let Some((model, store)) = answers(model, store)? else { return Ok(()) };
        same("a key", &(model.in_use, model.max, model.paused), &(store.in_use, store.max, store.paused))
    }

    /// Limits that were forgotten are there again at once, as code says, so that jobs can name them.
    pub(super) async fn drop_limit(&self, limit: usize, reset: bool) -> Result<(), String> {
        if reset {
            let model = self.model.reset_limit(name(limit), "ann".into()).await;
            return equal("reset", model, self.any().reset_limit(name(limit), "ann".into()).await);
        }
        let model = self.model.delete_limit(name(limit), "ann".into()).await;
        equal("deleted", model, self.any().delete_limit(name(limit), "ann".into()).await)?;
        self.define_limits().await
    }

    pub(super) async fn set_total(&self, at: usize, of_queue: bool, max: Option<u32>) -> Result<(), String> {
        let total = if of_queue { Total::Queue(queue(QUEUES[at])) } else { Total::Kind(kind(KINDS[at])) };
        let model = self.model.set_total(total.clone(), max, "ann".into()).await;
        equal("total", model, self.any().set_total(total, max, "ann".into()).await)
    }

    /// When the next key is due depends on which groups a store has visited.
    pub(super) async fn promote_with_limits(&self) -> Result<(), String> {
        let without_next = |swept: Swept| Swept { next: None, ..swept };
        let model = self.model.promote(LIMIT).await.map(without_next);
        equal("promoted", model, self.any().promote(LIMIT).await.map(without_next))
    }

    pub(super) async fn compare_limits(&self) -> Result<(), String> {
        equal("the limits", self.model.limits().await, self.any().limits().await)?;
        equal("the totals", self.model.totals().await, self.any().totals().await)?;
        for limit in 0..LIMITS {
            for key in KEYS {
                let model = self.model.limit_key(name(limit), key.into()).await.map(sorted);
                equal("a limit key", model, self.any().limit_key(name(limit), key.into()).await.map(sorted))?;
            }
        }
        Ok(())
    }

    pub(super) async fn compare_obstacle(&self, id: JobId) -> Result<(), String> {
        let shown = |found: Option<Obstacle>| match found {
            // Which of them are named is each store's own affair; and so is the first of those that came at once.
            Some(Obstacle::Limit { limit, key, units, in_use, max, holders }) => {
                format!("{limit} {key} {units} {in_use} {max} {}", holders.len())
            }
            Some(Obstacle::Behind { .. }) | None => "none of its own".to_owned(),
            Some(Obstacle::Rate { limit, key, .. }) => format!("{limit} {key}"),
            Some(other) => format!("{other:?}"),
        };
        equal(
            "an obstacle",
            self.model.obstacle(id).await.map(shown),
            self.any().obstacle(id).await.map(shown),
        )
    }
}

/// What stores must agree on.
fn sorted(mut found: KeyUse) -> KeyUse {
    found.holders.sort_by_key(|holder| holder.job);
    found.waiters.sort_unstable();
    found.key.next_free = None;
    found
}
