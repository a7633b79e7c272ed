//! What jobs have said.

use mainspring_core::bounds;
use mainspring_core::job::Progress;
use mainspring_core::name::Key;
use mainspring_core::output::{Ask, Output, OutputItem, What};
use mainspring_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension};

use super::Reader;
use super::journal::find;
use super::summary::progress;
use crate::error::{Result, corrupt};
use crate::op::as_i64;
use crate::op::output::{first, last, unsigned};
use crate::op::place::read_status;

/// Index `done_no`.
const ENDED: &str = "SELECT state, reason FROM mainspring_done WHERE no = ?1 AND superseded = 0";
/// Index `output_position`.
pub(crate) const PAGE: &str = "SELECT position, at, claim, void_from, step, body FROM mainspring_output
    WHERE no = ?1 AND position > ?2 ORDER BY position LIMIT ?3";

/// What jobs have said, each from behind a position on.
pub(crate) fn outputs(reader: &Reader, asks: &[Ask]) -> Result<Vec<Option<Output>>> {
    asks.iter().map(|ask| output(&reader.conn, ask)).collect()
}

fn output(conn: &Connection, ask: &Ask) -> Result<Option<Output>> {
    let Some(no) = find(conn, ask.id)? else { return Ok(None) };
    // Whether it has ended is read first: what is said before its end is there then.
    let mut statement = conn.prepare_cached(ENDED)?;
    let status = statement.query_row([no], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    let ended = status.map(|(state, reason)| read_status(state, reason)).transpose()?;
    let progress: Option<Progress> = progress(conn, no)?;
    let kept = last(conn, no)?.kept;
    if kept.last == 0 {
        return Ok(Some(Output { ended, progress, ..Output::default() }));
    }
    let first = first(conn, no, kept)?;
    let after = ask.after.max(first.saturating_sub(1));
    let items = page(conn, no, after, ask.limit.min(bounds::OUTPUT_PAGE))?;
    Ok(Some(Output { items, first, last: kept.last, ended, progress }))
}

fn page(conn: &Connection, no: i64, after: u64, limit: usize) -> Result<Vec<OutputItem>> {
    let after = i64::try_from(after).unwrap_or(i64::MAX);
    let mut statement = conn.prepare_cached(PAGE)?;
    let mut rows = statement.query([no, after, as_i64(limit)])?;
    let (mut items, mut bytes) = (Vec::new(), 0);
    while let Some(row) = rows.next()? {
        let body: Option<Vec<u8>> = row.get(5)?;
        bytes += body.as_deref().map_or(0, <[u8]>::len);
        if bytes > bounds::PREFETCH_BYTES && !items.is_empty() {
            break;
        }
        let void_from: Option<i64> = row.get(3)?;
        let step: Option<String> = row.get(4)?;
        items.push(OutputItem {
            position: unsigned(row.get(0)?),
            at: Timestamp::from_micros(row.get(1)?),
            claim: row.get(2)?,
            step: step.map(Key::new).transpose().map_err(|error| corrupt(error.to_string()))?,
            what: match (body, void_from) {
                (Some(body), _) => What::Frame(body),
                (None, Some(from)) => What::Reset { from: unsigned(from) },
                (None, None) => return Err(corrupt("an output that says nothing")),
            },
        });
    }
    Ok(items)
}
