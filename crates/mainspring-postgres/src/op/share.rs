//! What forks share with the jobs they come from: journals that are stored with new jobs.
//!
//! Few jobs have one; a batch without any has no statement for it.

use mainspring_core::job::New;
use mainspring_core::time::millis;
use uuid::Uuid;

use super::now;
use crate::sql::{Call, Present, statement};

statement! {
    /// Unique index of ids, then appends, in the order of the journals. The jobs are of the same transaction, so nobody else
    /// records for them.
    pub(crate) Share<'a> = "enqueue.share_journal", by ["jobs_id_key"],
    (
        at: Present, ids: Vec<Uuid>, kinds: Vec<i16>, overlapped: Vec<bool>, took: Vec<Option<i32>>, keys: Vec<&'a str>, values: Vec<&'a [u8]>,
    );
    concat!(
    "WITH ",
    now!(),
    "INSERT INTO mainspring.steps (no, at, claim, kind, overlapped, took, key, value)
    SELECT j.no, t.now, 0, e.kind, e.overlapped, e.took, e.key, e.value
    FROM t CROSS JOIN unnest($2::uuid[], $3::smallint[], $4::boolean[], $5::int[], $6::text[], $7::bytea[]) WITH ORDINALITY
        AS e(id, kind, overlapped, took, key, value, o)
    CROSS JOIN LATERAL (SELECT no FROM mainspring.jobs WHERE id = e.id OFFSET 0) j ORDER BY e.o"
)
}

/// Journals as arguments, one column each.
#[derive(Default)]
pub(super) struct Shares<'a> {
    ids: Vec<Uuid>,
    kinds: Vec<i16>,
    overlapped: Vec<bool>,
    took: Vec<Option<i32>>,
    keys: Vec<&'a str>,
    values: Vec<&'a [u8]>,
}

impl<'a> Shares<'a> {
    pub(super) fn new(jobs: &'a [New], chosen: &[usize]) -> Self {
        let mut shares = Shares::default();
        for job in chosen.iter().map(|&index| &jobs[index]) {
            for entry in &job.journal {
                shares.ids.push(Uuid::from_bytes(*job.id.as_bytes()));
                shares.kinds.push(entry.kind.code().into());
                shares.overlapped.push(entry.overlapped);
                shares.took.push(entry.took.map(millis));
                shares.keys.push(entry.key.as_str());
                shares.values.push(&entry.value);
            }
        }
        shares
    }

    /// The statement, if there is something to store.
    pub(super) fn call<'c>(&'c self, at: &'c Present) -> Option<Call<'c>> {
        if self.ids.is_empty() {
            return None;
        }
        let share = Share {
            at,
            ids: &self.ids,
            kinds: &self.kinds,
            overlapped: &self.overlapped,
            took: &self.took,
            keys: &self.keys,
            values: &self.values,
        };
        Some(share.call())
    }
}
