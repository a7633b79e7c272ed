//! Limits: each call of this part of the store on its connection.

use mainspring_core::Result;
use mainspring_core::id::JobId;
use mainspring_core::limit::{
    Change, KeyChange, KeyUse, Limit, LimitKey, LimitSeed, Obstacle, Total, TotalUse,
};
use mainspring_core::name::LimitName;
use mainspring_core::seam::Pending;
use mainspring_core::store::Limits;

use crate::op::limits::define::{DeleteLimit, ListLimits, ResetLimit, SeedLimits, SetLimit, SetLimitKey};
use crate::op::limits::totals::{SetTotal, Totals};
use crate::read::limits::{FindObstacle, ListLimitKeys, ShowLimitKey};
use crate::store::Postgres;

impl Limits for Postgres {
    fn seed_limits(&self, seeds: Vec<LimitSeed>) -> Pending<'_, Result<Vec<Limit>>> {
        self.call(|to| &to.admin, SeedLimits(seeds))
    }

    fn set_limit(&self, name: LimitName, change: Change, who: String) -> Pending<'_, Result<Limit>> {
        self.call(|to| &to.admin, SetLimit { name, change, who })
    }

    fn reset_limit(&self, name: LimitName, who: String) -> Pending<'_, Result<Limit>> {
        self.call(|to| &to.admin, ResetLimit { name, who })
    }

    fn delete_limit(&self, name: LimitName, who: String) -> Pending<'_, Result<bool>> {
        self.call(|to| &to.admin, DeleteLimit { name, who })
    }

    fn limits(&self) -> Pending<'_, Result<Vec<Limit>>> {
        self.call(|to| &to.read, ListLimits)
    }

    fn set_limit_key(
        &self,
        limit: LimitName,
        key: String,
        change: KeyChange,
        who: String,
    ) -> Pending<'_, Result<LimitKey>> {
        self.call(|to| &to.admin, SetLimitKey { limit, key, change, who })
    }

    fn limit_keys(
        &self,
        name: LimitName,
        after: Option<String>,
        limit: usize,
    ) -> Pending<'_, Result<Vec<LimitKey>>> {
        self.call(|to| &to.read, ListLimitKeys { name, after, limit })
    }

    fn limit_key(&self, limit: LimitName, key: String) -> Pending<'_, Result<KeyUse>> {
        self.call(|to| &to.read, ShowLimitKey { limit, key })
    }

    fn obstacle(&self, id: JobId) -> Pending<'_, Result<Option<Obstacle>>> {
        self.call(|to| &to.read, FindObstacle(id))
    }

    fn set_total(&self, total: Total, max: Option<u32>, who: String) -> Pending<'_, Result<()>> {
        self.call(|to| &to.admin, SetTotal { total, max, who })
    }

    fn totals(&self) -> Pending<'_, Result<Vec<TotalUse>>> {
        self.call(|to| &to.read, Totals)
    }
}
