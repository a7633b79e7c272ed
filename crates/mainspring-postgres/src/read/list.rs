//! Listings: newest first, in pages, driven by the most selective table.
//!
//! Every table that can drive a listing has the job's number as (the end of) its key, so each gives numbers from high
//! to low; several are merged. Numbers are looked up in chunks and held against the filter, which alone decides.
//!
//! # Invariants
//! - One call looks at no more than [`bounds::SCAN`] rows.
//! - A page goes on exactly below the last number looked at, so nothing is listed twice and nothing is passed over.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use mainspring_core::bounds;
use mainspring_core::job::Summary;
use mainspring_core::store::{Filter, Listing, Page, PagePosition};
use mainspring_core::tables::listing::{self, sources, wanted_lines};

use super::SNAPSHOT;
use super::get::{Summaries, summary};
use crate::connection::Conn;
use crate::error::{Result, corrupt};
use crate::names;
use crate::op::Op;
use crate::shared::Shared;
use crate::sql::{Call, Query, statement};

statement! {
    /// Primary keys of the places, downwards.
    pub(crate) ListReady<'a> = "list.ready", by ["ready_pkey"], (below: i64, limit: i64) -> Found { no: i64, line: Option<i32> };
    "SELECT no, line FROM mainspring.ready WHERE no < $1 ORDER BY no DESC LIMIT $2"
}
statement! {
    pub(crate) ListLimited<'a> = "list.limited", by ["limited_pkey"], (below: i64, limit: i64) -> Found;
    "SELECT no, line FROM mainspring.limited WHERE no < $1 ORDER BY no DESC LIMIT $2"
}
statement! {
    pub(crate) ListTimers<'a> = "list.timers", by ["timers_pkey"], (below: i64, limit: i64) -> Found;
    "SELECT no, line FROM mainspring.timers WHERE no < $1 ORDER BY no DESC LIMIT $2"
}
statement! {
    pub(crate) ListLease<'a> = "list.lease", by ["lease_pkey"], (below: i64, limit: i64) -> Found;
    "SELECT no, line FROM mainspring.lease WHERE no < $1 ORDER BY no DESC LIMIT $2"
}
statement! {
    pub(crate) ListSuspended<'a> = "list.suspended", by ["suspended_pkey"], (below: i64, limit: i64) -> Found;
    "SELECT no, line FROM mainspring.suspended WHERE no < $1 ORDER BY no DESC LIMIT $2"
}
statement! {
    /// Primary key of `jobs`, downwards.
    pub(crate) ListJobs<'a> = "list.jobs", by ["jobs_pkey"], (below: i64, limit: i64) -> Found;
    "SELECT no, line FROM mainspring.jobs WHERE no < $1 ORDER BY no DESC LIMIT $2"
}
statement! {
    /// Partial index `done_rare`, downwards.
    pub(crate) ListRare<'a> = "list.rare", by ["done_rare"], (below: i64, limit: i64, state: i16) -> Found;
    "SELECT no, line FROM mainspring.done
    WHERE state = $3 AND state <> {state.succeeded} AND no < $1 ORDER BY no DESC LIMIT $2"
}
statement! {
    /// Primary key of `tags`, downwards.
    pub(crate) ListTagged<'a> = "list.tagged", by ["tags_pkey"], (below: i64, limit: i64, tag: String) -> Found;
    "SELECT no, NULL::int FROM mainspring.tags WHERE tag = $3 AND no < $1 ORDER BY no DESC LIMIT $2"
}
statement! {
    /// Primary key of `errors`, downwards; a job comes as often as it keeps errors.
    pub(crate) ListFaulty<'a> = "list.faulty", by ["errors_pkey"], (below: i64, limit: i64) -> Found;
    "SELECT no, NULL::int FROM mainspring.errors WHERE no < $1 ORDER BY no DESC LIMIT $2"
}
statement! {
    /// Those of some jobs whose last error contains a text in lower case. The end of each job's part of the primary key. In
    /// collation C only ASCII letters have a case, as in [`ErrorText`](mainspring_core::store::ErrorText).
    pub(crate) ListSaying<'a> = "list.saying", by ["errors_pkey"], (nos: Vec<i64>, text: &'a str) -> SayingJob { no: i64 };
    "SELECT n.no FROM unnest($1::bigint[]) AS n(no) WHERE strpos(lower((SELECT e.message
    FROM mainspring.errors e WHERE e.no = n.no AND e.kind <> {fault.crashed}
    ORDER BY e.claim DESC LIMIT 1) COLLATE \"C\"), $2) > 0"
}

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
        let mut merged = Merged::new(sources(&self.filter).into_iter().flat_map(Table::of), before);
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
            if let Some(unknown) = unknown(shared, found.iter().filter_map(|found| found.line), missing) {
                return Ok(Seen::Unknown(unknown));
            }
            let wanted = found.iter().filter(|found| is_wanted(found.line, lines.as_ref()));
            let nos = wanted.map(|found| found.no).collect();
            let mut summaries = match summaries(conn, shared, nos, missing).await? {
                Ok(summaries) => summaries,
                Err(unknown) => return Ok(Seen::Unknown(unknown)),
            };
            let saying = self.saying(conn, &summaries).await?;
            for Found { no, line } in found {
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
        let saying = ListSaying { nos: &nos, text: &text }.call();
        let rows = conn.step(&[saying]).await?.pop().unwrap_or_default();
        Ok(Some(ListSaying::rows(&rows)?.into_iter().map(|job| job.no).collect()))
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
    let rows = conn.step(&[Summaries { nos: &nos }.call()]).await?.pop().unwrap_or_default();
    let rows = Summaries::rows(&rows)?;
    if let Some(unknown) = unknown(shared, rows.iter().map(|row| row.line), missing) {
        return Ok(Err(unknown));
    }
    let names = shared.names();
    let summaries = rows.iter().map(|row| Ok((row.no, summary(&names, row)?)));
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

/// A table that drives a listing.
enum Table {
    Jobs,
    Ready,
    Limited,
    Timers,
    Lease,
    Suspended,
    /// Those that did not end well, in one state.
    Rare(i16),
    Tagged(String),
    Faulty,
}

impl Table {
    fn of(source: listing::Source<'_>) -> Vec<Self> {
        let table = match source {
            listing::Source::Jobs => Table::Jobs,
            listing::Source::Ready => return vec![Table::Ready, Table::Limited],
            listing::Source::Timers => Table::Timers,
            listing::Source::Lease => Table::Lease,
            listing::Source::Suspended => Table::Suspended,
            listing::Source::Rare(state) => Table::Rare(state.code().into()),
            listing::Source::Tagged(tag) => Table::Tagged(tag.as_str().to_owned()),
            listing::Source::Faulty => Table::Faulty,
        };
        vec![table]
    }

    fn call<'a>(&'a self, below: &'a i64, limit: &'a i64) -> Call<'a> {
        match self {
            Table::Jobs => ListJobs { below, limit }.call(),
            Table::Ready => ListReady { below, limit }.call(),
            Table::Limited => ListLimited { below, limit }.call(),
            Table::Timers => ListTimers { below, limit }.call(),
            Table::Lease => ListLease { below, limit }.call(),
            Table::Suspended => ListSuspended { below, limit }.call(),
            Table::Rare(state) => ListRare { below, limit, state }.call(),
            Table::Tagged(tag) => ListTagged { below, limit, tag }.call(),
            Table::Faulty => ListFaulty { below, limit }.call(),
        }
    }
}

/// One source and what was fetched from it.
struct Source {
    table: Table,
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
            if self.rows.back().is_none_or(|last| last.no != row.no) {
                self.rows.push_back(row);
            }
        }
        self.exhausted = given < asked;
        self.below = self.rows.back().map_or(self.below, |found| found.no);
    }
}

/// Numbers of several sources, from high to low.
struct Merged(Vec<Source>);

impl Merged {
    fn new(sources: impl IntoIterator<Item = Table>, before: i64) -> Self {
        let source = |table| Source { table, rows: VecDeque::new(), below: before, exhausted: false };
        Merged(sources.into_iter().map(source).collect())
    }

    /// Fetches the next rows of all sources that have none left, in one round trip.
    async fn fill(&mut self, conn: &mut Conn, shared: &Shared, chunk: usize, begun: bool) -> Result<()> {
        let limit = i64::try_from(chunk).unwrap_or(i64::MAX);
        let thirsty = self.0.iter().filter(|source| source.is_thirsty());
        let calls: Vec<Call<'_>> = thirsty.map(|source| source.table.call(&source.below, &limit)).collect();
        let answers = match (begun, calls.is_empty()) {
            (false, _) => conn.begin(shared, SNAPSHOT, &calls).await?,
            (true, false) => conn.step(&calls).await?,
            (true, true) => Vec::new(),
        };
        let thirsty = self.0.iter_mut().filter(|source| source.is_thirsty());
        for (source, rows) in thirsty.zip(answers) {
            source.add(ListJobs::rows(&rows)?, chunk);
        }
        Ok(())
    }

    /// The next numbers, at most so many, as far as they are known. None if there are no more.
    fn take(&mut self, most: usize) -> Vec<Found> {
        let mut taken = Vec::new();
        // What a source that is to be filled will give may come before all others.
        while taken.len() < most && !self.0.iter().any(Source::is_thirsty) {
            let highest = self.0.iter_mut().max_by_key(|source| source.rows.front().map(|found| found.no));
            let Some(found) = highest.and_then(|source| source.rows.pop_front()) else { break };
            taken.push(found);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(no: i64) -> Found {
        Found { no, line: None }
    }

    #[test]
    fn numbers_are_merged_downwards_as_far_as_all_sources_are_known() {
        let two = vec![Table::Ready, Table::Timers];
        let mut merged = Merged::new(two, 100);
        assert!(merged.take(10).is_empty());
        merged.0[0].add([found(90), found(50)], 2);
        merged.0[1].add([found(80), found(70)], 2);
        let numbers = |found: Vec<Found>| found.into_iter().map(|found| found.no).collect::<Vec<_>>();
        // The second source may go on between 70 and 50.
        assert_eq!(numbers(merged.take(10)), [90, 80, 70]);
        assert_eq!(merged.0[1].below, 70);
        merged.0[1].add([found(60)], 2);
        assert_eq!(numbers(merged.take(1)), [60]);
        assert_eq!(numbers(merged.take(10)), [50]);
        assert!(merged.0[0].is_thirsty() && merged.0[1].exhausted);
        merged.0[0].add([found(40), found(40)], 2);
        assert!(!merged.0[0].exhausted);
        assert_eq!(numbers(merged.take(10)), [40]);
        merged.0[0].add([], 2);
        assert!(merged.take(10).is_empty());
    }
}
