//! Interned names: queues, kinds and lines as small numbers.
//!
//! A line is a queue, a kind and a set of required labels. The tables behind this only grow, so what is cached here
//! stays true; only settings of queues change, and a counter in `meta` tells when. Names are interned in transactions of
//! their own, never in one that stays open: an open transaction would hold up everybody who needs the same new name.
//!
//! # Invariants
//! - Names are added one transaction after the other, so that numbers become visible in their order.
//! - There are never more than [`bounds::LINES`] lines.

use std::collections::{BTreeMap, BTreeSet};

use mainspring_core::job::New;
use mainspring_core::name::{Kind, Label, QueueName};
use mainspring_core::store::{Queue, TicketLine};
use mainspring_core::tables::names::{self as tables, QueueColumns};
use tokio_postgres::Row;

use crate::connection::Conn;
use crate::error::{Result, corrupt};
use crate::op::limits::groups::groups_of;
use crate::shared::Shared;
use crate::sql::{Call, Query, statement};

/// One line.
pub(crate) type Line = tables::Line<i32>;

/// What is known of the interned names.
#[derive(Debug, Default)]
pub(crate) struct Names {
    queues: BTreeMap<i32, Queue>,
    queue_nos: BTreeMap<QueueName, i32>,
    kinds: BTreeMap<i32, Kind>,
    kind_nos: BTreeMap<Kind, i32>,
    lines: BTreeMap<i32, Line>,
    line_nos: BTreeMap<(i32, i32, Vec<Label>), i32>,
    /// Limit keys of totals: of queues and of kinds, by their numbers.
    queue_totals: BTreeMap<i32, i64>,
    kind_totals: BTreeMap<i32, i64>,
    /// The counter of settings changes that `queues` reflects.
    settings: String,
}

statement! {
    /// Advisory lock: one transaction at a time adds names. The second number is none of a node's.
    pub(crate) Lock<'a> = "names.lock", whole ("it touches no table"), (class: i32);
    "SELECT pg_advisory_xact_lock($1, -1)"
}
statement! {
    /// Primary key of `meta`.
    pub(crate) SettingsCounter = "names.settings", by ["meta_pkey"], () -> Counter { value: String };
    "SELECT value FROM mainspring.meta WHERE key = 'settings'"
}
statement! {
    /// Small tables, by their primary keys: what is newer than what is cached.
    pub(crate) NewQueues<'a> = "names.queues", by ["queues_pkey"],
    (after: i32)
    -> QueueRow {
        no: i32, name: String, paused: bool, backoff: Option<String>, retain_succeeded: i64, retain_failed: i64,
        deleted: bool,
    };
    "SELECT no, name, paused, backoff, retain_succeeded, retain_failed, deleted
    FROM mainspring.queues WHERE no > $1 ORDER BY no"
}
statement! {
    pub(crate) NewKinds<'a> = "names.kinds", by ["kinds_pkey"], (after: i32) -> KindRow { no: i32, name: String };
    "SELECT no, name FROM mainspring.kinds WHERE no > $1 ORDER BY no"
}
statement! {
    pub(crate) NewLines<'a> = "names.lines", by ["lines_pkey"],
    (after: i32) -> LineRow { no: i32, queue: i32, kind: i32, labels: String };
    "SELECT no, queue, kind, labels FROM mainspring.lines WHERE no > $1 ORDER BY no"
}
statement! {
    /// A small table, and the only key of each of its rows by the unique index of keys.
    pub(crate) AllTotals = "names.totals", by ["limit_keys_limit_no_key_key"], ()
    -> TotalRow { of_queue: bool, name: String, limit_key: i64 };
    "SELECT l.scope = {limit_scope.queue}, l.name, k.no FROM mainspring.limits l
    CROSS JOIN LATERAL (SELECT no FROM mainspring.limit_keys WHERE limit_no = l.no AND key = '' OFFSET 0) k
    WHERE l.scope <> {limit_scope.limit} AND NOT l.deleted"
}
statement! {
    /// A count of a table that is bounded.
    pub(crate) CountLines = "names.count_lines", whole ("`lines` is bounded"), () -> LineCount { count: i64 };
    "SELECT count(*) FROM mainspring.lines"
}
statement! {
    /// Unique indexes. The lock excludes others, so a conflict is with what was there before.
    pub(crate) AddQueues<'a> = "names.add_queues", by ["queues_name_key"],
    (names: Vec<&'a str>, retain_succeeded: i64, retain_failed: i64);
    "INSERT INTO mainspring.queues (name, retain_succeeded, retain_failed)
    SELECT name, $2, $3 FROM unnest($1::text[]) AS u(name) ON CONFLICT (name) DO NOTHING"
}
statement! {
    pub(crate) AddKinds<'a> = "names.add_kinds", by ["kinds_name_key"], (names: Vec<&'a str>);
    "INSERT INTO mainspring.kinds (name)
    SELECT name FROM unnest($1::text[]) AS u(name) ON CONFLICT (name) DO NOTHING"
}
statement! {
    pub(crate) AddLines<'a> = "names.add_lines", by ["queues_name_key", "kinds_name_key"],
    (queues: Vec<&'a str>, kinds: Vec<&'a str>, labels: Vec<&'a str>);
    "INSERT INTO mainspring.lines (queue, kind, labels)
    SELECT q.no, k.no, u.labels FROM unnest($1::text[], $2::text[], $3::text[]) AS u(queue, kind, labels)
    JOIN mainspring.queues q ON q.name = u.queue JOIN mainspring.kinds k ON k.name = u.kind
    ON CONFLICT (queue, kind, labels) DO NOTHING"
}

impl Names {
    /// A line by its number.
    pub(crate) fn line(&self, no: i32) -> Result<&Line> {
        self.lines.get(&no).ok_or_else(|| corrupt(format!("line {no} is missing")))
    }

    /// Whether a line is known.
    pub(crate) fn knows_line(&self, no: i32) -> bool {
        self.lines.contains_key(&no)
    }

    /// All lines with their numbers.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (i32, &Line)> {
        self.lines.iter().map(|(no, line)| (*no, line))
    }

    /// A queue by its number.
    pub(crate) fn queue(&self, no: i32) -> Result<&Queue> {
        self.queues.get(&no).ok_or_else(|| corrupt(format!("queue {no} is missing")))
    }

    /// The number of a queue that is known.
    pub(crate) fn queue_no(&self, name: &QueueName) -> Option<i32> {
        self.queue_nos.get(name).copied()
    }

    /// Whether there are totals.
    pub(crate) fn has_totals(&self) -> bool {
        !self.queue_totals.is_empty() || !self.kind_totals.is_empty()
    }

    /// The limit keys of the totals of a line's queue and kind.
    pub(crate) fn totals_of(&self, line: &Line) -> (Option<i64>, Option<i64>) {
        (self.queue_totals.get(&line.queue).copied(), self.kind_totals.get(&line.kind).copied())
    }

    /// The queues whose jobs count in one of these totals.
    pub(crate) fn queues_of_totals(&self, keys: &BTreeSet<i64>) -> BTreeSet<i32> {
        let counts = |line: &&Line| {
            let (queue, kind) = self.totals_of(line);
            [queue, kind].into_iter().flatten().any(|key| keys.contains(&key))
        };
        self.lines.values().filter(counts).map(|line| line.queue).collect()
    }

    /// The counter of settings changes that this reflects.
    pub(crate) fn settings(&self) -> &str {
        &self.settings
    }

    /// The line of a job, if it is known.
    fn find(&self, job: &New) -> Option<TicketLine> {
        let queue = *self.queue_nos.get(&job.queue)?;
        let kind = *self.kind_nos.get(&job.kind)?;
        let line = *self.line_nos.get(&(queue, kind, job.options.labels.clone()))?;
        Some(TicketLine { line, queue, kind, group: None })
    }

    /// The lines of these jobs, in order; `None` if one is not known.
    fn find_all(&self, jobs: &[New]) -> Option<Vec<TicketLine>> {
        let mut found: Vec<TicketLine> = Vec::with_capacity(jobs.len());
        for (index, job) in jobs.iter().enumerate() {
            // Bulk calls bring long runs of one line.
            let same = index.checked_sub(1).filter(|&before| tables::is_same_line(&jobs[before], job));
            found.push(match same {
                Some(before) => found[before],
                None => self.find(job)?,
            });
        }
        Some(found)
    }

    fn know(&mut self, rows: &[Vec<Row>]) -> Result<()> {
        let [settings, lines, queues, kinds, totals] = rows else {
            return Err(corrupt("names came incomplete"));
        };
        self.settings = SettingsCounter::first(settings)?.map(|counter| counter.value).unwrap_or_default();
        for row in NewQueues::rows(queues)? {
            let (no, queue) = row.read()?;
            self.queue_nos.insert(queue.name.clone(), no);
            self.queues.insert(no, queue);
        }
        for KindRow { no, name } in NewKinds::rows(kinds)? {
            let kind = Kind::new(name).map_err(|error| corrupt(error.to_string()))?;
            self.kinds.insert(no, kind.clone());
            self.kind_nos.insert(kind, no);
        }
        for row in NewLines::rows(lines)? {
            self.know_line(row)?;
        }
        self.queue_totals.clear();
        self.kind_totals.clear();
        for TotalRow { of_queue, name, limit_key } in AllTotals::rows(totals)? {
            if of_queue {
                let queue = self.queue_nos.iter().find(|(queue, _)| queue.as_str() == name);
                self.queue_totals.extend(queue.map(|(_, no)| (*no, limit_key)));
            } else {
                let kind = self.kind_nos.iter().find(|(kind, _)| kind.as_str() == name);
                self.kind_totals.extend(kind.map(|(_, no)| (*no, limit_key)));
            }
        }
        Ok(())
    }

    fn know_line(&mut self, LineRow { no, queue, kind, labels }: LineRow) -> Result<()> {
        let labels = tables::read_labels(no.into(), &labels)?;
        let kind_name =
            self.kinds.get(&kind).ok_or_else(|| corrupt(format!("kind {kind} is missing")))?.clone();
        let queue_name = self.queue(queue)?.name.clone();
        self.line_nos.insert((queue, kind, labels.clone()), no);
        self.lines.insert(no, Line { queue, queue_name, kind, kind_name, labels });
        Ok(())
    }
}

/// Reads what others have added or changed.
pub(crate) async fn refresh(conn: &mut Conn, shared: &Shared) -> Result<()> {
    let (kinds, lines) = {
        let names = shared.names();
        (last(&names.kinds), last(&names.lines))
    };
    // Queues are read as a whole: their settings change.
    let none = 0_i32;
    // Each statement sees more than the one before: a line's queue and kind are there when the line is.
    let calls = [
        SettingsCounter.call(),
        NewLines { after: &lines }.call(),
        NewQueues { after: &none }.call(),
        NewKinds { after: &kinds }.call(),
        AllTotals.call(),
    ];
    let rows = conn.commit(shared, &calls).await?;
    shared.names().know(&rows)
}

/// Reads names again if there is a line among these that is not known, or settings have changed.
pub(crate) async fn learn(
    conn: &mut Conn,
    shared: &Shared,
    lines: impl IntoIterator<Item = i32>,
    settings: &str,
) -> Result<()> {
    let known = {
        let names = shared.names();
        names.settings() == settings && lines.into_iter().all(|line| names.knows_line(line))
    };
    if known { Ok(()) } else { refresh(conn, shared).await }
}

/// Reads names again if there is a line among these that is not known, for what is to be told of a commit. That is made:
/// it must not be said to have failed, and what cannot be told is found by the next look at all pairs.
pub(crate) async fn learn_for_hints(conn: &mut Conn, shared: &Shared, lines: impl IntoIterator<Item = i32>) {
    let settings = shared.names().settings().to_owned();
    if let Err(fault) = learn(conn, shared, lines, &settings).await {
        tracing::debug!(?fault, "cannot refresh names");
    }
}

/// The lines of these jobs, in order, and the groups of limited ones; made if they are the first.
pub(crate) async fn lines_of(conn: &mut Conn, shared: &Shared, jobs: &[New]) -> Result<Vec<TicketLine>> {
    let mut lines = known_lines_of(conn, shared, jobs).await?;
    if jobs.iter().any(|job| !job.options.limits.is_empty()) {
        let groups = groups_of(conn, shared, jobs, &lines).await?;
        lines.iter_mut().zip(groups).for_each(|(line, group)| line.group = group);
    }
    Ok(lines)
}

async fn known_lines_of(conn: &mut Conn, shared: &Shared, jobs: &[New]) -> Result<Vec<TicketLine>> {
    let found = shared.names().find_all(jobs);
    if let Some(found) = found {
        return Ok(found);
    }
    refresh(conn, shared).await?;
    let found = shared.names().find_all(jobs);
    if let Some(found) = found {
        return Ok(found);
    }
    add(conn, shared, jobs).await?;
    refresh(conn, shared).await?;
    let found = shared.names().find_all(jobs);
    found.ok_or_else(|| corrupt("a line that was just added is missing"))
}

async fn add(conn: &mut Conn, shared: &Shared, jobs: &[New]) -> Result<()> {
    let missing: BTreeSet<(&str, &str, String)> = {
        let names = shared.names();
        let new = jobs.iter().filter(|job| names.find(job).is_none());
        new.map(|job| (job.queue.as_str(), job.kind.as_str(), tables::labels_text(&job.options.labels)))
            .collect()
    };
    let class = shared.class();
    let begun = conn.begin(shared, "", &[Lock { class: &class }.call(), CountLines.call()]).await?;
    let count = CountLines::first(&begun[1])?.map_or(0, |row| row.count);
    // What others have added between our look and the lock is counted twice: the bound is far from exact there.
    tables::check_room(count, missing.len())?;
    let queues: Vec<&str> = missing.iter().map(|(queue, ..)| *queue).collect();
    let kinds: Vec<&str> = missing.iter().map(|(_, kind, _)| *kind).collect();
    let labels: Vec<&str> = missing.iter().map(|(.., labels)| labels.as_str()).collect();
    let retention = tables::default_retention();
    conn.end(&[
        add_queues_call(&queues, &retention),
        AddKinds { names: &kinds }.call(),
        AddLines { queues: &queues, kinds: &kinds, labels: &labels }.call(),
    ])
    .await?;
    Ok(())
}

/// Makes queues known.
pub(crate) async fn add_queues(conn: &mut Conn, shared: &Shared, queues: &[&str]) -> Result<()> {
    let missing: Vec<&str> = {
        let names = shared.names();
        let known = |name: &str| names.queue_nos.keys().any(|queue| queue.as_str() == name);
        queues.iter().copied().filter(|name| !known(name)).collect()
    };
    if missing.is_empty() {
        return Ok(());
    }
    let (class, retention) = (shared.class(), tables::default_retention());
    let lock = Lock { class: &class }.call();
    conn.commit(shared, &[lock, add_queues_call(&missing, &retention)]).await?;
    refresh(conn, shared).await
}

fn add_queues_call<'a>(names: &'a Vec<&'a str>, retention: &'a (i64, i64)) -> Call<'a> {
    AddQueues { names, retain_succeeded: &retention.0, retain_failed: &retention.1 }.call()
}

impl QueueRow {
    /// The queue, and its number.
    pub(crate) fn read(self) -> Result<(i32, Queue)> {
        let QueueRow { no, name, paused, backoff, retain_succeeded, retain_failed, .. } = self;
        Ok((no, QueueColumns { name, paused, backoff, retain_succeeded, retain_failed }.read()?))
    }
}

fn last<T>(map: &BTreeMap<i32, T>) -> i32 {
    map.last_key_value().map_or(0, |(no, _)| *no)
}
