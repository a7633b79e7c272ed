//! Ids that are there already: whether the job that has one is the job that was asked for.
//!
//! Asked only when an insert has met an id: nobody else pays for it.

use std::collections::BTreeMap;

use mainspring_core::job::{Differs, New};
use mainspring_core::store::Receipt;
use mainspring_core::tables::options::read_options;
use uuid::Uuid;

use crate::connection::Conn;
use crate::error::Result;
use crate::sql::{Query, statement};

statement! {
    /// Unique index of ids, then primary keys. An input that is the same byte by byte is not sent back.
    pub(crate) SameId<'a> = "enqueue.same_id", by ["jobs_id_key"],
    (ids: Vec<Uuid>, inputs: Vec<&'a [u8]>)
    -> SameIdRow { index: i64, kind: String, options: Option<String>, input: Option<Vec<u8>> };
    "SELECT u.o - 1,
        coalesce((SELECT k.name FROM mainspring.lines l JOIN mainspring.kinds k ON k.no = l.kind WHERE l.no = j.line), ''),
        j.options::text, CASE WHEN j.input <> u.input THEN j.input END
    FROM unnest($1::uuid[], $2::bytea[]) WITH ORDINALITY AS u(id, input, o)
    CROSS JOIN LATERAL (SELECT line, options, input FROM mainspring.jobs WHERE id = u.id OFFSET 0) j"
}
/// Jobs that are looked at in one statement: what it sends back may be as large as so many inputs.
const AT_ONCE: usize = 64;

/// The job that has an id.
pub(crate) struct Holder {
    pub(crate) kind: String,
    pub(crate) options: Option<String>,
    /// `None`: the same as that of the job it was asked for.
    pub(crate) input: Option<Vec<u8>>,
}

impl Holder {
    /// In what it differs from a job; `None`: it is that job.
    pub(crate) fn differs(&self, job: &New) -> Option<Differs> {
        let options = read_options(self.options.as_deref().map(str::as_bytes));
        // Options that cannot be read are another job's.
        let Ok(options) = options else { return Some(Differs::Kind) };
        job.differs(&self.kind, &options, self.input.as_ref().unwrap_or(&job.input))
    }
}

/// In what the jobs that have these jobs' ids differ from them, by index; none is said of an id that is free.
pub(crate) async fn meet(
    conn: &mut Conn,
    jobs: &[New],
    asked: impl Fn(&New) -> bool,
) -> Result<BTreeMap<usize, Option<Differs>>> {
    let asked: Vec<usize> = (0..jobs.len()).filter(|&index| asked(&jobs[index])).collect();
    let mut met = BTreeMap::new();
    for some in asked.chunks(AT_ONCE) {
        let ids: Vec<Uuid> = some.iter().map(|&index| Uuid::from_bytes(*jobs[index].id.as_bytes())).collect();
        let inputs: Vec<&[u8]> = some.iter().map(|&index| jobs[index].input.as_slice()).collect();
        let rows =
            conn.step(&[SameId { ids: &ids, inputs: &inputs }.call()]).await?.pop().unwrap_or_default();
        for SameIdRow { index, kind, options, input } in SameId::rows(&rows)? {
            let Some(&index) = usize::try_from(index).ok().and_then(|at| some.get(at)) else {
                continue;
            };
            let holder = Holder { kind, options, input };
            met.insert(index, holder.differs(&jobs[index]));
        }
    }
    Ok(met)
}

/// In what the first job of an id in a batch differs from a later one.
pub(crate) fn compare(job: &New, first: &New) -> Option<Differs> {
    job.differs(first.kind.as_str(), &first.options, &first.input)
}

/// What is said of a job whose id is there already.
pub(crate) fn receipt(differs: Option<Differs>) -> Receipt {
    differs.map_or(Receipt::Repeated, Receipt::Taken)
}
