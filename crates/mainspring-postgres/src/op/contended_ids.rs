//! Ids in the hands of open transactions: their jobs are set aside.
//!
//! A caller's own transaction holds a shared advisory lock on the id of each job that it brings. An insert of the same id
//! would wait for its end, and everybody else in the batch with it. That is so rare that nobody looks for these locks
//! beforehand: an insert that has to wait is given up soon, and the batch is gone through again with a look at the locks.
//! The ids that were found so are remembered, because they will be asked for again.

use std::collections::BTreeSet;
use std::sync::Mutex;

use mainspring_core::id::JobId;
use mainspring_core::job::New;
use mainspring_core::store::Receipt;
use uuid::Uuid;

use crate::shared::lock;
use crate::sql::statement;

statement! {
    /// Advisory locks, without waiting.
    pub(crate) TryIds<'a> = "enqueue.try_ids", whole ("it touches no table"), (ids: Vec<Uuid>) -> Tried { got: bool };
    "SELECT pg_try_advisory_xact_lock(hashtextextended(u.id::text, 0))
    FROM unnest($1::uuid[]) WITH ORDINALITY AS u(id, o) ORDER BY u.o"
}
/// The same lock, and then the number of a job: part of a caller's insert.
macro_rules! number_under_lock {
    () => {
        "CASE WHEN pg_advisory_xact_lock_shared(hashtextextended(u.id::text, 0)) IS NOT NULL
            THEN nextval('mainspring.job_numbers') END"
    };
}
pub(crate) use number_under_lock;

/// Ids that are remembered at most. Who is forgotten waits once more.
const REMEMBERED: usize = 1_000;

/// Ids that were in the hands of open transactions when they were last asked for.
#[derive(Default)]
pub(crate) struct ContendedIds(Mutex<BTreeSet<JobId>>);

impl ContendedIds {
    /// Whether one of these jobs was set aside before.
    pub(crate) fn knows(&self, jobs: &[New]) -> bool {
        let ids = lock(&self.0);
        !ids.is_empty() && jobs.iter().any(|job| ids.contains(&job.id))
    }

    /// Remembers who was set aside, and forgets who was not.
    pub(crate) fn note(&self, jobs: &[New], receipts: &[Receipt]) {
        let mut ids = lock(&self.0);
        if ids.len() > REMEMBERED {
            ids.clear();
        }
        for (job, receipt) in jobs.iter().zip(receipts) {
            if *receipt == Receipt::Contended {
                ids.insert(job.id);
            } else {
                ids.remove(&job.id);
            }
        }
    }
}
