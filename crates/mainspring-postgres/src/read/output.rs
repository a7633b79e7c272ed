//! What jobs have said.

use mainspring_core::bounds;
use mainspring_core::job::Progress;
use mainspring_core::name::Key;
use mainspring_core::output::{Ask, Output, OutputItem, What};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::get::{status, time_of};
use crate::connection::Conn;
use crate::error::{Result, corrupt};
use crate::op::Op;
use crate::op::output::{KEPT, KEPT_BYTES};
use crate::shared::Shared;
use crate::sql::{Call, bound};

/// Unique index of ids, then primary keys; of `output` the last row, the first that is kept, and a page. A page ends before it
/// takes too many bytes, but not before its first item. One row at least for each question.
const OUTPUTS: &str = "SELECT u.o, j.no IS NOT NULL, d.state, d.reason, g.done, g.total, g.note,
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
    ORDER BY u.o, i.position";

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
        let args = vec![
            (&ids as _, Type::UUID_ARRAY),
            (&afters as _, Type::INT8_ARRAY),
            (&limits as _, Type::INT8_ARRAY),
            (&KEPT as _, Type::INT8),
            (&KEPT_BYTES as _, Type::INT8),
            (&PAGE_BYTES as _, Type::INT8),
        ];
        let rows = conn.commit(shared, &[Call::new(OUTPUTS, args)]).await?.pop().unwrap_or_default();
        let mut outputs = vec![None; ids.len()];
        for row in &rows {
            let index = usize::try_from(row.get::<_, i64>(0) - 1).unwrap_or(usize::MAX);
            let output = outputs.get_mut(index).ok_or_else(|| corrupt("an answer to nothing"))?;
            if !row.get::<_, bool>(1) {
                continue;
            }
            if output.is_none() {
                *output = Some(head(row)?);
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

fn head(row: &Row) -> Result<Output> {
    let ended = row.get::<_, Option<i16>>(2).map(|state| status(state, row.get(3))).transpose()?;
    let progress = row.get::<_, Option<i64>>(4).map(|done| Progress {
        done: count(done),
        total: count(row.get(5)),
        note: row.get(6),
    });
    let position = |index| row.get::<_, Option<i64>>(index).map_or(0, count);
    Ok(Output { items: Vec::new(), first: position(8), last: position(7), ended, progress })
}

fn item(row: &Row) -> Result<Option<OutputItem>> {
    let Some(position) = row.get::<_, Option<i64>>(9) else { return Ok(None) };
    let what = match (row.get::<_, Option<Vec<u8>>>(14), row.get::<_, Option<i64>>(12)) {
        (Some(body), _) => What::Frame(body),
        (None, Some(from)) => What::Reset { from: count(from) },
        (None, None) => return Err(corrupt("an output that says nothing")),
    };
    let step = row.get::<_, Option<String>>(13).map(Key::new).transpose();
    Ok(Some(OutputItem {
        position: count(position),
        at: time_of(row, 10),
        claim: u32::try_from(row.get::<_, i32>(11)).unwrap_or(0),
        step: step.map_err(|error| corrupt(error.to_string()))?,
        what,
    }))
}
