//! What jobs have said.

use mainspring_core::bounds;
use mainspring_core::job::Progress;
use mainspring_core::name::Key;
use mainspring_core::output::{Ask, Output, OutputItem, What};
use uuid::Uuid;

use super::get::status;
use crate::connection::Conn;
use crate::error::{Result, corrupt};
use crate::op::Op;
use crate::op::output::{KEPT, KEPT_BYTES};
use crate::shared::Shared;
use crate::sql::{At, Query, bound, statement};

statement! {
    /// Unique index of ids, then primary keys; of `output` the last row, the first that is kept, and a page. A page ends before it
    /// takes too many bytes, but not before its first item. One row at least for each question.
    pub(crate) PageOutputs<'a> = "read.outputs", by ["jobs_id_key", "done_pkey", "progress_pkey", "output_pkey"],
    (ids: Vec<Uuid>, afters: Vec<i64>, limits: Vec<i64>, kept: i64, kept_bytes: i64, page_bytes: i64)
    -> OutputRow {
        asked: i64, known: bool, state: Option<i16>, reason: Option<i16>, done: Option<i64>, total: Option<i64>,
        note: Option<String>, last: Option<i64>, first: Option<i64>, position: Option<i64>, at: Option<At>,
        claim: Option<i32>, void_from: Option<i64>, step: Option<String>, body: Option<Vec<u8>>,
    };
    "SELECT u.o, j.no IS NOT NULL, d.state, d.reason, g.done, g.total, g.note,
        l.position, f.position, i.position, i.at, i.claim, i.void_from, i.step, i.body
    FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) WITH ORDINALITY AS u(id, after, most, o)
    LEFT JOIN LATERAL (SELECT no FROM mainspring.jobs WHERE id = u.id OFFSET 0) j ON true
    LEFT JOIN LATERAL (SELECT state, reason FROM mainspring.done WHERE no = j.no OFFSET 0) d ON true
    LEFT JOIN LATERAL (SELECT done, total, note FROM mainspring.progress WHERE no = j.no OFFSET 0) g ON true
    LEFT JOIN LATERAL (SELECT o.position, o.before + coalesce(octet_length(o.body), 0) AS total
        FROM mainspring.output o WHERE o.no = j.no ORDER BY o.position DESC LIMIT 1) l ON true
    LEFT JOIN LATERAL (SELECT o.position FROM mainspring.output o
        WHERE o.no = j.no AND o.position > l.position - $4 AND o.before >= l.total - $5
        ORDER BY o.position LIMIT 1) f ON true
    LEFT JOIN LATERAL (SELECT o.*, row_number() OVER w AS place,
            sum(coalesce(octet_length(o.body), 0)) OVER w AS bytes
        FROM (SELECT o.position, o.at, o.claim, o.void_from, o.step, o.body FROM mainspring.output o
            WHERE o.no = j.no AND o.position > greatest(u.after, f.position - 1)
            ORDER BY o.position LIMIT u.most) o
        WINDOW w AS (ORDER BY o.position)) i ON i.place = 1 OR i.bytes <= $6
    ORDER BY u.o, i.position"
}

const PAGE_BYTES: i64 = bound(bounds::PREFETCH_BYTES);

/// What jobs have said, each from behind a position on.
pub(crate) struct Outputs(pub(crate) Vec<Ask>);

impl Op for Outputs {
    type Answer = Vec<Option<Output>>;

    const WRITES: bool = false;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Self::Answer> {
        let ids: Vec<Uuid> = self.0.iter().map(|ask| Uuid::from_bytes(*ask.id.as_bytes())).collect();
        let afters: Vec<i64> =
            self.0.iter().map(|ask| i64::try_from(ask.after).unwrap_or(i64::MAX)).collect();
        let limits: Vec<i64> = self.0.iter().map(|ask| bound(ask.limit.min(bounds::OUTPUT_PAGE))).collect();
        let page = PageOutputs {
            ids: &ids,
            afters: &afters,
            limits: &limits,
            kept: &KEPT,
            kept_bytes: &KEPT_BYTES,
            page_bytes: &PAGE_BYTES,
        };
        let rows = conn.commit(shared, &[page.call()]).await?.pop().unwrap_or_default();
        let mut outputs = vec![None; ids.len()];
        for row in PageOutputs::rows(&rows)? {
            let index = usize::try_from(row.asked - 1).unwrap_or(usize::MAX);
            let output = outputs.get_mut(index).ok_or_else(|| corrupt("an answer to nothing"))?;
            if !row.known {
                continue;
            }
            if output.is_none() {
                *output = Some(head(&row)?);
            }
            if let (Some(output), Some(item)) = (output, item(row)?) {
                output.items.push(item);
            }
        }
        Ok(outputs)
    }
}

fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

fn head(row: &OutputRow) -> Result<Output> {
    let ended = row.state.map(|state| status(state, row.reason)).transpose()?;
    let progress = row.done.map(|done| Progress {
        done: count(done),
        total: row.total.map_or(0, count),
        note: row.note.clone().unwrap_or_default(),
    });
    let position = |position: Option<i64>| position.map_or(0, count);
    Ok(Output { items: Vec::new(), first: position(row.first), last: position(row.last), ended, progress })
}

fn item(row: OutputRow) -> Result<Option<OutputItem>> {
    let (Some(position), Some(at)) = (row.position, row.at) else { return Ok(None) };
    let what = match (row.body, row.void_from) {
        (Some(body), _) => What::Frame(body),
        (None, Some(from)) => What::Reset { from: count(from) },
        (None, None) => return Err(corrupt("an output that says nothing")),
    };
    let step = row.step.map(Key::new).transpose();
    Ok(Some(OutputItem {
        position: count(position),
        at: at.0,
        claim: row.claim.and_then(|claim| u32::try_from(claim).ok()).unwrap_or(0),
        step: step.map_err(|error| corrupt(error.to_string()))?,
        what,
    }))
}
