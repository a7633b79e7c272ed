//! Listings: newest first, in pages, driven by the most selective table.
//!
//! Every table that can drive a listing has the job's number as (the end of) its key, so each gives numbers from high
//! to low; several are merged. Each number is then looked up and held against the filter, which alone decides.
//!
//! # Invariants
//! - One call looks at no more than [`bounds::SCAN`] rows.
//! - A page goes on exactly below the last number looked at, so nothing is listed twice and nothing is passed over.

use std::collections::BinaryHeap;

use mainspring_core::job::Summary;
use mainspring_core::store::{Filter, Listing, Page, PagePosition};
use mainspring_core::tables::listing::{self, sources, wanted_lines};
use mainspring_core::{bounds, named};
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};

use super::Reader;
use super::summary::summary;
use crate::error::Result;
use crate::op::family::LAST_ERROR;

/// Primary keys of the places, downwards.
pub(crate) const READY: &str =
    "SELECT no, line FROM mainspring_ready WHERE no < ?1 ORDER BY no DESC LIMIT ?2";
pub(crate) const LIMITED: &str =
    "SELECT no, line FROM mainspring_limited WHERE no < ?1 ORDER BY no DESC LIMIT ?2";
pub(crate) const TIMERS: &str =
    "SELECT no, line FROM mainspring_timers WHERE no < ?1 ORDER BY no DESC LIMIT ?2";
pub(crate) const LEASE: &str =
    "SELECT no, line FROM mainspring_lease WHERE no < ?1 ORDER BY no DESC LIMIT ?2";
pub(crate) const SUSPENDED: &str =
    "SELECT no, line FROM mainspring_suspended WHERE no < ?1 ORDER BY no DESC LIMIT ?2";
/// Primary key of `jobs`, downwards.
pub(crate) const JOBS: &str = "SELECT no, line FROM mainspring_jobs WHERE no < ?1 ORDER BY no DESC LIMIT ?2";
/// Partial index `done_rare`, downwards.
pub(crate) const RARE: &str = named!(
    "SELECT no, NULL FROM mainspring_done
    WHERE state = ?3 AND state <> {state.succeeded} AND superseded = 0 AND no < ?1 ORDER BY no DESC LIMIT ?2"
);
/// Primary key of `tags`, downwards.
pub(crate) const TAGGED: &str =
    "SELECT no, NULL FROM mainspring_tags WHERE tag = ?3 AND no < ?1 ORDER BY no DESC LIMIT ?2";
/// Primary key of `errors`, downwards; a job comes as often as it keeps errors.
pub(crate) const FAULTY: &str =
    "SELECT no, NULL FROM mainspring_errors WHERE no < ?1 ORDER BY no DESC LIMIT ?2";

/// Rows fetched from a source at a time.
const CHUNK: usize = 512;

/// Jobs that match, from a cursor on.
pub(crate) fn list(reader: &mut Reader, filter: &Filter, page: &Page) -> Result<Listing> {
    let before = page.after.as_ref().map_or(Ok(i64::MAX), PagePosition::no)?;
    let limit = page.limit.clamp(1, bounds::PAGE);
    let (conn, names) = (&reader.conn, &reader.names);
    let lines = wanted_lines(names.lines(), filter);
    let mut merged = Merged::new(conn, sources(filter).into_iter().flat_map(statements), before)?;
    let mut jobs: Vec<Summary> = Vec::new();
    let mut last = None;
    let mut looked_at = 0;
    while let Some((no, line)) = merged.next()? {
        if jobs.len() == limit || looked_at == bounds::SCAN {
            return Ok(Listing { jobs, next: last.map(PagePosition::behind) });
        }
        looked_at += 1;
        last = Some(no);
        if line.is_some_and(|line| lines.as_ref().is_some_and(|lines| !lines.contains(&line))) {
            continue;
        }
        let summary = summary(conn, names, no)?;
        if filter.matches(&summary) && says(conn, no, filter)? {
            jobs.push(summary);
        }
    }
    Ok(Listing { jobs, next: None })
}

/// Whether a job's last error is one that the filter allows.
fn says(conn: &Connection, no: i64, filter: &Filter) -> Result<bool> {
    let Some(text) = &filter.error else { return Ok(true) };
    let mut statement = conn.prepare_cached(LAST_ERROR)?;
    let mut rows = statement.query([no])?;
    let message = rows.next()?.and_then(|row| row.get::<_, String>(0).ok());
    Ok(text.is_in(message.as_deref()))
}

/// A statement that gives numbers downwards, with its own parameter.
type Source = (&'static str, Option<Value>);
/// The number of a job, and its line if the source knows it.
type Found = (i64, Option<i64>);

/// The statements of a source.
fn statements(source: listing::Source<'_>) -> Vec<Source> {
    let one = match source {
        listing::Source::Ready => return vec![(READY, None), (LIMITED, None)],
        listing::Source::Timers => (TIMERS, None),
        listing::Source::Lease => (LEASE, None),
        listing::Source::Suspended => (SUSPENDED, None),
        listing::Source::Jobs => (JOBS, None),
        listing::Source::Rare(state) => (RARE, Some(Value::Integer(i64::from(state.code())))),
        listing::Source::Tagged(tag) => (TAGGED, Some(Value::Text(tag.as_str().to_owned()))),
        listing::Source::Faulty => (FAULTY, None),
    };
    vec![one]
}

/// Numbers of several sources, from high to low, each once.
struct Merged<'a> {
    conn: &'a Connection,
    sources: Vec<(Source, Vec<Found>)>,
    heap: BinaryHeap<(i64, Option<i64>, usize)>,
    previous: i64,
}

impl<'a> Merged<'a> {
    fn new(conn: &'a Connection, sources: impl Iterator<Item = Source>, before: i64) -> Result<Self> {
        let sources = sources.map(|source| (source, Vec::new())).collect();
        let mut merged = Merged { conn, sources, heap: BinaryHeap::new(), previous: i64::MAX };
        for index in 0..merged.sources.len() {
            merged.fill(index, before)?;
            merged.draw(index);
        }
        Ok(merged)
    }

    fn next(&mut self) -> Result<Option<Found>> {
        while let Some((no, line, index)) = self.heap.pop() {
            if self.sources[index].1.is_empty() {
                self.fill(index, no)?;
            }
            self.draw(index);
            if no != self.previous {
                self.previous = no;
                return Ok(Some((no, line)));
            }
        }
        Ok(None)
    }

    fn draw(&mut self, index: usize) {
        if let Some((no, line)) = self.sources[index].1.pop() {
            self.heap.push((no, line, index));
        }
    }

    /// Fetches the next rows of a source, kept in reverse so that the next one is popped.
    fn fill(&mut self, index: usize, before: i64) -> Result<()> {
        let ((sql, parameter), rows) = &mut self.sources[index];
        let values = [Value::Integer(before), Value::Integer(i64::try_from(CHUNK).unwrap_or(i64::MAX))];
        let values = values.into_iter().chain(parameter.clone());
        let mut statement = self.conn.prepare_cached(sql)?;
        // A line that cannot be read is looked up with the job.
        let found = statement.query_map(params_from_iter(values), |row| {
            Ok((row.get(0)?, row.get::<_, Option<i64>>(1).unwrap_or(None)))
        })?;
        *rows = found.collect::<rusqlite::Result<_>>()?;
        rows.reverse();
        Ok(())
    }
}
