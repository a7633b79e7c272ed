//! Listings: newest first, in pages, driven by the most selective table.
//!
//! Every table that can drive a listing has the job's number as (the end of) its key, so each gives numbers from high
//! to low; several are merged. Numbers are looked up in chunks and held against the filter, which alone decides.
//!
//! # Invariants
//! - One call looks at no more than [`bounds::SCAN`] rows.
//! - A page goes on exactly below the last number looked at, so nothing is listed twice and nothing is passed over.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use mainspring_core::job::Summary;
use mainspring_core::store::{Filter, Listing, Page, PagePosition};
use mainspring_core::tables::listing::{self, sources, wanted_lines};
use mainspring_core::{bounds, named};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::SNAPSHOT;
use super::get::{SUMMARIES, line, number, summary};
use crate::connection::Conn;
use crate::error::{Result, corrupt};
use crate::names;
use crate::op::Op;
use crate::shared::Shared;
use crate::sql::Call;

/// Primary keys of the places, downwards.
pub(crate) const READY: &str =
    "SELECT no, line FROM mainspring.ready WHERE no < $1 ORDER BY no DESC LIMIT $2";
pub(crate) const TIMERS: &str =
    "SELECT no, line FROM mainspring.timers WHERE no < $1 ORDER BY no DESC LIMIT $2";
pub(crate) const LEASE: &str =
    "SELECT no, line FROM mainspring.lease WHERE no < $1 ORDER BY no DESC LIMIT $2";
pub(crate) const SUSPENDED: &str =
    "SELECT no, line FROM mainspring.suspended WHERE no < $1 ORDER BY no DESC LIMIT $2";
/// Primary key of `jobs`, downwards.
pub(crate) const JOBS: &str = "SELECT no, line FROM mainspring.jobs WHERE no < $1 ORDER BY no DESC LIMIT $2";
/// Partial index `done_rare`, downwards.
pub(crate) const RARE: &str = named!(
    "SELECT no, line FROM mainspring.done
    WHERE state = $3 AND state <> {state.succeeded} AND no < $1 ORDER BY no DESC LIMIT $2"
);
/// Primary key of `tags`, downwards.
pub(crate) const TAGGED: &str =
    "SELECT no, NULL::int FROM mainspring.tags WHERE tag = $3 AND no < $1 ORDER BY no DESC LIMIT $2";
/// Primary key of `errors`, downwards; a job comes as often as it keeps errors.
pub(crate) const FAULTY: &str =
    "SELECT no, NULL::int FROM mainspring.errors WHERE no < $1 ORDER BY no DESC LIMIT $2";
/// Those of some jobs whose last error contains a text in lower case. The end of each job's part of the primary key. In
/// collation C only ASCII letters have a case, as in [`ErrorText`](mainspring_core::store::ErrorText).
const SAYING: &str = "SELECT n.no FROM unnest($1::bigint[]) AS n(no) WHERE strpos(lower((SELECT e.message
    FROM mainspring.errors e WHERE e.no = n.no ORDER BY e.claim DESC LIMIT 1) COLLATE \"C\"), $2) > 0";

/// Rows fetched at a time: at least, because a round trip costs as much as some tens of them; and at most.
const CHUNK: (usize, usize) = (32, 2_000);

/// Jobs that match, from a cursor on.
pub(crate) struct List {
    pub(crate) filter: Filter,
    pub(crate) page: Page,
}

/// What a look at the store came to.
enum Seen {
    Listing(Listing),
    /// A line that is not known yet.
    Unknown(i32),
}

impl Op for List {
    type Answer = Listing;

    const WRITES: bool = false;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Listing> {
        let before = self.page.after.as_ref().map_or(Ok(i64::MAX), PagePosition::no)?;
        // Lines that are none.
        let mut missing = BTreeSet::new();
        loop {
            let seen = self.look(conn, shared, before, &missing).await?;
            conn.end(&[]).await?;
            match seen {
                Seen::Listing(listing) => return Ok(listing),
                // RecordedClaims anew with one line more at least; there is a bound on lines.
                Seen::Unknown(line) => {
                    names::refresh(conn, shared).await?;
                    if !shared.names().knows_line(line) {
                        missing.insert(line);
                    }
                }
            }
        }
    }
}

impl List {
    /// Looks for matching jobs in one snapshot, which is left open.
    async fn look(
        &self,
        conn: &mut Conn,
        shared: &Shared,
        before: i64,
        missing: &BTreeSet<i32>,
    ) -> Result<Seen> {
        let limit = self.page.limit.clamp(1, bounds::PAGE);
        let lines = wanted_lines(shared.names().lines(), &self.filter);
        let mut merged = Merged::new(sources(&self.filter).into_iter().map(statement), before);
        let (mut jobs, mut last, mut looked_at) = (Vec::new(), None, 0);
        // One more than fits on the page tells whether there is another.
        let mut chunk = (limit + 1).clamp(CHUNK.0, CHUNK.1);
        let mut begun = false;
        loop {
            merged.fill(conn, shared, chunk, begun).await?;
            begun = true;
            let found = merged.take(chunk);
            if found.is_empty() {
                return Ok(Seen::Listing(Listing { jobs, next: None }));
            }
            if let Some(unknown) = unknown(shared, found.iter().filter_map(|(_, line)| *line), missing) {
                return Ok(Seen::Unknown(unknown));
            }
            let wanted = found.iter().filter(|(_, line)| is_wanted(*line, lines.as_ref()));
            let nos = wanted.map(|(no, _)| *no).collect();
            let mut summaries = match summaries(conn, shared, nos, missing).await? {
                Ok(summaries) => summaries,
                Err(unknown) => return Ok(Seen::Unknown(unknown)),
            };
            let saying = self.saying(conn, &summaries).await?;
            for (no, line) in found {
                if jobs.len() == limit || looked_at == bounds::SCAN {
                    let next = last.map(PagePosition::behind);
                    return Ok(Seen::Listing(Listing { jobs, next }));
                }
                looked_at += 1;
                last = Some(no);
                match summaries.remove(&no) {
                    Some(summary)
                        if self.filter.matches(&summary)
                            && saying.as_ref().is_none_or(|saying| saying.contains(&no)) =>
                    {
                        jobs.push(summary);
                    }
                    None if is_wanted(line, lines.as_ref()) => {
                        return Err(corrupt(format!("job number {no} is missing")));
                    }
                    _ => {}
                }
            }
            chunk = (chunk * 2).min(CHUNK.1);
        }
    }

    /// Those of these jobs whose last error is one that the filter allows; `None` if it allows any.
    async fn saying(
        &self,
        conn: &mut Conn,
        summaries: &BTreeMap<i64, Summary>,
    ) -> Result<Option<BTreeSet<i64>>> {
        let Some(text) = &self.filter.error else { return Ok(None) };
        let fits = summaries.iter().filter(|(_, summary)| self.filter.matches(summary));
        let nos: Vec<i64> = fits.map(|(no, _)| *no).collect();
        if nos.is_empty() {
            return Ok(Some(BTreeSet::new()));
        }
        let text = text.as_str();
        let call = Call::new(SAYING, vec![(&nos, Type::INT8_ARRAY), (&text, Type::TEXT)]);
        let rows = conn.step(&[call]).await?.pop().unwrap_or_default();
        Ok(Some(rows.iter().map(|row: &Row| row.get(0)).collect()))
    }
}

/// The jobs of these numbers, or a line that is not known yet.
async fn summaries(
    conn: &mut Conn,
    shared: &Shared,
    nos: Vec<i64>,
    missing: &BTreeSet<i32>,
) -> Result<Result<BTreeMap<i64, Summary>, i32>> {
    if nos.is_empty() {
        return Ok(Ok(BTreeMap::new()));
    }
    let call = Call::new(SUMMARIES, vec![(&nos, Type::INT8_ARRAY)]);
    let rows = conn.step(&[call]).await?.pop().unwrap_or_default();
    if let Some(unknown) = unknown(shared, rows.iter().map(line), missing) {
        return Ok(Err(unknown));
    }
    let names = shared.names();
    let summaries = rows.iter().map(|row| Ok((number(row), summary(&names, row)?)));
    summaries.collect::<Result<_>>().map(Ok)
}

/// The first of these lines that is not known yet, nor known to be missing.
fn unknown(shared: &Shared, mut lines: impl Iterator<Item = i32>, missing: &BTreeSet<i32>) -> Option<i32> {
    let names = shared.names();
    lines.find(|line| !names.knows_line(*line) && !missing.contains(line))
}

/// Whether a job of this line can match; not every source knows the line.
fn is_wanted(line: Option<i32>, lines: Option<&BTreeSet<i32>>) -> bool {
    line.is_none_or(|line| lines.is_none_or(|lines| lines.contains(&line)))
}

/// What a source's statement wants to know besides where to begin.
enum Extra {
    Nothing,
    State(i16),
    Tag(String),
}

/// The statement of a source.
fn statement(source: listing::Source<'_>) -> (&'static str, Extra) {
    match source {
        listing::Source::Ready => (READY, Extra::Nothing),
        listing::Source::Timers => (TIMERS, Extra::Nothing),
        listing::Source::Lease => (LEASE, Extra::Nothing),
        listing::Source::Suspended => (SUSPENDED, Extra::Nothing),
        listing::Source::Jobs => (JOBS, Extra::Nothing),
        listing::Source::Rare(state) => (RARE, Extra::State(state.code().into())),
        listing::Source::Tagged(tag) => (TAGGED, Extra::Tag(tag.as_str().to_owned())),
        listing::Source::Faulty => (FAULTY, Extra::Nothing),
    }
}

/// The number of a job, and its line if the source knows it.
type Found = (i64, Option<i32>);

/// One source and what was fetched from it.
struct Source {
    sql: &'static str,
    extra: Extra,
    rows: VecDeque<Found>,
    /// Where the next rows begin.
    below: i64,
    exhausted: bool,
}

impl Source {
    fn is_thirsty(&self) -> bool {
        self.rows.is_empty() && !self.exhausted
    }

    /// A job that comes more than once comes in a row, and is taken once.
    fn add(&mut self, rows: impl IntoIterator<Item = Found>, asked: usize) {
        let mut given = 0;
        for row in rows {
            given += 1;
            if self.rows.back() != Some(&row) {
                self.rows.push_back(row);
            }
        }
        self.exhausted = given < asked;
        self.below = self.rows.back().map_or(self.below, |(no, _)| *no);
    }
}

/// Numbers of several sources, from high to low.
struct Merged(Vec<Source>);

impl Merged {
    fn new(sources: impl IntoIterator<Item = (&'static str, Extra)>, before: i64) -> Self {
        let source =
            |(sql, extra)| Source { sql, extra, rows: VecDeque::new(), below: before, exhausted: false };
        Merged(sources.into_iter().map(source).collect())
    }

    /// Fetches the next rows of all sources that have none left, in one round trip.
    async fn fill(&mut self, conn: &mut Conn, shared: &Shared, chunk: usize, begun: bool) -> Result<()> {
        let limit = i64::try_from(chunk).unwrap_or(i64::MAX);
        let thirsty = self.0.iter().filter(|source| source.is_thirsty());
        let calls: Vec<Call<'_>> = thirsty
            .map(|source| {
                let mut args = vec![(&source.below as _, Type::INT8), (&limit as _, Type::INT8)];
                match &source.extra {
                    Extra::Nothing => {}
                    Extra::State(state) => args.push((state as _, Type::INT2)),
                    Extra::Tag(tag) => args.push((tag as _, Type::TEXT)),
                }
                Call::new(source.sql, args)
            })
            .collect();
        let answers = match (begun, calls.is_empty()) {
            (false, _) => conn.begin(shared, SNAPSHOT, &calls).await?,
            (true, false) => conn.step(&calls).await?,
            (true, true) => Vec::new(),
        };
        let thirsty = self.0.iter_mut().filter(|source| source.is_thirsty());
        for (source, rows) in thirsty.zip(answers) {
            source.add(rows.iter().map(|row: &Row| (row.get(0), row.get(1))), chunk);
        }
        Ok(())
    }

    /// The next numbers, at most so many, as far as they are known. None if there are no more.
    fn take(&mut self, most: usize) -> Vec<Found> {
        let mut taken = Vec::new();
        // What a source that is to be filled will give may come before all others.
        while taken.len() < most && !self.0.iter().any(Source::is_thirsty) {
            let highest = self.0.iter_mut().max_by_key(|source| source.rows.front().copied());
            let Some(found) = highest.and_then(|source| source.rows.pop_front()) else { break };
            taken.push(found);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_merged_downwards_as_far_as_all_sources_are_known() {
        let two = vec![(READY, Extra::Nothing), (TIMERS, Extra::Nothing)];
        let mut merged = Merged::new(two, 100);
        assert!(merged.take(10).is_empty());
        merged.0[0].add([(90, None), (50, None)], 2);
        merged.0[1].add([(80, None), (70, None)], 2);
        let numbers = |found: Vec<Found>| found.into_iter().map(|(no, _)| no).collect::<Vec<_>>();
        // The second source may go on between 70 and 50.
        assert_eq!(numbers(merged.take(10)), [90, 80, 70]);
        assert_eq!(merged.0[1].below, 70);
        merged.0[1].add([(60, None)], 2);
        assert_eq!(numbers(merged.take(1)), [60]);
        assert_eq!(numbers(merged.take(10)), [50]);
        assert!(merged.0[0].is_thirsty() && merged.0[1].exhausted);
        merged.0[0].add([(40, None), (40, None)], 2);
        assert!(!merged.0[0].exhausted);
        assert_eq!(numbers(merged.take(10)), [40]);
        merged.0[0].add([], 2);
        assert!(merged.take(10).is_empty());
    }
}
