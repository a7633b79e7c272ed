//! Limits, which this store does not have yet: it refuses them.

use mainspring_core::id::JobId;
use mainspring_core::limit::{
    Change, KeyChange, KeyUse, Limit, LimitKey, LimitSeed, Obstacle, Total, TotalUse,
};
use mainspring_core::name::LimitName;
use mainspring_core::seam::Pending;
use mainspring_core::store::Limits;
use mainspring_core::{Error, Result};

use crate::store::Sqlite;

pub(crate) fn refused() -> Error {
    Error::Invalid { what: "limits", why: "this store does not have them yet".into() }
}

fn refuse<T: Send + 'static>() -> Pending<'static, Result<T>> {
    Box::pin(std::future::ready(Err(refused())))
}

impl Limits for Sqlite {
    fn seed_limits(&self, _seeds: Vec<LimitSeed>) -> Pending<'_, Result<Vec<Limit>>> {
        refuse()
    }

    fn set_limit(&self, _name: LimitName, _change: Change, _who: String) -> Pending<'_, Result<Limit>> {
        refuse()
    }

    fn reset_limit(&self, _name: LimitName, _who: String) -> Pending<'_, Result<Limit>> {
        refuse()
    }

    fn delete_limit(&self, _name: LimitName, _who: String) -> Pending<'_, Result<bool>> {
        refuse()
    }

    fn limits(&self) -> Pending<'_, Result<Vec<Limit>>> {
        refuse()
    }

    fn set_limit_key(
        &self,
        _limit: LimitName,
        _key: String,
        _change: KeyChange,
        _who: String,
    ) -> Pending<'_, Result<LimitKey>> {
        refuse()
    }

    fn limit_keys(
        &self,
        _name: LimitName,
        _after: Option<String>,
        _limit: usize,
    ) -> Pending<'_, Result<Vec<LimitKey>>> {
        refuse()
    }

    fn limit_key(&self, _limit: LimitName, _key: String) -> Pending<'_, Result<KeyUse>> {
        refuse()
    }

    fn obstacle(&self, _id: JobId) -> Pending<'_, Result<Option<Obstacle>>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn set_total(&self, _total: Total, _max: Option<u32>, _who: String) -> Pending<'_, Result<()>> {
        refuse()
    }

    fn totals(&self) -> Pending<'_, Result<Vec<TotalUse>>> {
        refuse()
    }
}
