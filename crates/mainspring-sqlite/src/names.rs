//! Interned names: queues, kinds and lines as small numbers.
//!
//! A line is a queue, a kind and a set of required labels. The tables behind this only grow, so what is cached here
//! stays true; only settings of queues change, and a counter in `meta` tells when.
//!
//! # Invariants
//! - What a rolled back transaction has interned is forgotten with it: the writer drops the whole cache then.
//! - There are never more than [`bounds::LINES`] lines.

use std::collections::{BTreeMap, BTreeSet};

use mainspring_core::bounds;
use mainspring_core::job::New;
use mainspring_core::name::{Kind, Label, QueueName};
use mainspring_core::store::{Queue, Settings};
use mainspring_core::tables::names::{self, QueueColumns};
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::error::{Result, corrupt};

/// One line.
pub(crate) type Line = names::Line<i64>;

/// What is known of the interned names.
#[derive(Debug, Default)]
pub(crate) struct Names {
    queues: BTreeMap<i64, Queue>,
    queue_nos: BTreeMap<QueueName, i64>,
    kinds: BTreeMap<i64, Kind>,
    kind_nos: BTreeMap<Kind, i64>,
    /// By number; numbers are dense.
    lines: Vec<Option<Line>>,
    /// Lines without labels by queue and kind: nearly all.
    plain: BTreeMap<(i64, i64), i64>,
    /// The others, with their labels as they are stored.
    labelled: BTreeMap<(i64, i64, String), i64>,
    /// The counter of settings changes that `queues` reflects.
    settings: i64,
}

/// Primary key of `meta`: how often settings of queues have changed.
const SETTINGS: &str = "SELECT value FROM mainspring_meta WHERE key = 'settings'";
/// Primary keys: rows that are newer than what is cached.
const NEW_QUEUES: &str = "SELECT no, name, paused, backoff, retain_succeeded, retain_failed
    FROM mainspring_queues WHERE no > ?1";
const NEW_KINDS: &str = "SELECT no, name FROM mainspring_kinds WHERE no > ?1";
const NEW_LINES: &str = "SELECT no, queue, kind, labels FROM mainspring_lines WHERE no > ?1";
/// Unique indexes: a name that is not cached.
const FIND_QUEUE: &str = "SELECT no, name, paused, backoff, retain_succeeded, retain_failed
    FROM mainspring_queues WHERE name = ?1";
const FIND_KIND: &str = "SELECT no FROM mainspring_kinds WHERE name = ?1";
const FIND_LINE: &str = "SELECT no FROM mainspring_lines WHERE queue = ?1 AND kind = ?2 AND labels = ?3";
/// Safe against other processes: the writer's transaction excludes them between the look-up and this.
const ADD_QUEUE: &str =
    "INSERT INTO mainspring_queues (name, retain_succeeded, retain_failed) VALUES (?1, ?2, ?3)";
const ADD_KIND: &str = "INSERT INTO mainspring_kinds (name) VALUES (?1)";
const ADD_LINE: &str = "INSERT INTO mainspring_lines (queue, kind, labels) VALUES (?1, ?2, ?3)";
/// The end of the primary key: numbers are dense, so this is how many there are.
const COUNT_LINES: &str = "SELECT coalesce(max(no), 0) FROM mainspring_lines";

impl Names {
    /// Reads what other processes have added or changed since the last time.
    pub(crate) fn refresh(&mut self, conn: &Connection) -> Result<()> {
        let settings =
            conn.prepare_cached(SETTINGS)?.query_row([], |row| row.get(0)).optional()?.unwrap_or(0);
        if settings != self.settings {
            self.queues.clear();
            self.settings = settings;
        }
        let mut statement = conn.prepare_cached(NEW_QUEUES)?;
        let mut rows = statement.query([last(&self.queues)])?;
        while let Some(row) = rows.next()? {
            self.know_queue(row)?;
        }
        let mut statement = conn.prepare_cached(NEW_KINDS)?;
        let mut rows = statement.query([last(&self.kinds)])?;
        while let Some(row) = rows.next()? {
            let (no, name): (i64, String) = (row.get(0)?, row.get(1)?);
            let kind = Kind::new(name).map_err(|error| corrupt(error.to_string()))?;
            self.kinds.insert(no, kind.clone());
            self.kind_nos.insert(kind, no);
        }
        let mut statement = conn.prepare_cached(NEW_LINES)?;
        let known = i64::try_from(self.lines.len()).unwrap_or(i64::MAX) - 1;
        let mut rows = statement.query([known])?;
        while let Some(row) = rows.next()? {
            self.know_line(row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)?;
        }
        Ok(())
    }

    /// A line by its number.
    pub(crate) fn line(&self, no: i64) -> Result<&Line> {
        usize::try_from(no)
            .ok()
            .and_then(|index| self.lines.get(index)?.as_ref())
            .ok_or_else(|| corrupt(format!("line {no} is missing")))
    }

    /// All lines with their numbers.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (i64, &Line)> {
        (0_i64..).zip(&self.lines).filter_map(|(no, line)| Some((no, line.as_ref()?)))
    }

    /// One more than the highest number of a line.
    pub(crate) fn lines_end(&self) -> usize {
        self.lines.len()
    }

    /// All queues with their numbers.
    pub(crate) fn queues(&self) -> impl Iterator<Item = (i64, &Queue)> {
        self.queues.iter().map(|(no, queue)| (*no, queue))
    }

    /// A queue by its number.
    pub(crate) fn queue(&self, no: i64) -> Result<&Queue> {
        self.queues.get(&no).ok_or_else(|| corrupt(format!("queue {no} is missing")))
    }

    /// The number of a queue that is known.
    pub(crate) fn queue_no(&self, name: &QueueName) -> Option<i64> {
        self.queue_nos.get(name).copied()
    }

    /// The number of a queue that is known, by what is stored of its name.
    pub(crate) fn queue_named(&self, name: &str) -> Option<i64> {
        self.queue_nos.get(&QueueName::new(name).ok()?).copied()
    }

    /// The number of a kind that is known, by what is stored of its name.
    pub(crate) fn kind_named(&self, name: &str) -> Option<i64> {
        self.kind_nos.get(&Kind::new(name).ok()?).copied()
    }

    /// The counter of settings changes that this reflects.
    pub(crate) fn settings(&self) -> i64 {
        self.settings
    }

    /// The numbers of the lines of these jobs; `None` for those that [`Names::add`] has yet to make. Refuses if there
    /// is no room for them.
    pub(crate) fn lines_of<'j>(
        &mut self,
        conn: &Connection,
        jobs: impl IntoIterator<Item = &'j New>,
    ) -> Result<Vec<Option<i64>>> {
        let jobs = jobs.into_iter();
        let mut nos = Vec::with_capacity(jobs.size_hint().0);
        let mut missing = BTreeSet::new();
        // Bulk calls bring long runs of one line.
        let mut previous: Option<(&New, Option<i64>)> = None;
        for job in jobs {
            let same = previous.filter(|(other, _)| names::is_same_line(other, job));
            let no = match same {
                Some((_, no)) => no,
                None => self.find(conn, job)?,
            };
            if no.is_none() {
                missing.insert((&job.queue, &job.kind, &job.options.labels));
            }
            previous = Some((job, no));
            nos.push(no);
        }
        if !missing.is_empty() {
            Names::check_room(conn, missing.len())?;
        }
        Ok(nos)
    }

    /// The number of a queue, adding it if it is missing.
    pub(crate) fn intern_queue(&mut self, conn: &Connection, name: &QueueName) -> Result<i64> {
        if let Some(no) = self.find_queue(conn, name)? {
            return Ok(no);
        }
        let (succeeded, failed) = names::default_retention();
        conn.prepare_cached(ADD_QUEUE)?.execute(params![name.as_str(), succeeded, failed])?;
        let no = conn.last_insert_rowid();
        self.queues.insert(no, Queue { name: name.clone(), settings: Settings::default() });
        self.queue_nos.insert(name.clone(), no);
        Ok(no)
    }

    fn check_room(conn: &Connection, missing: usize) -> Result<()> {
        let count: i64 = conn.prepare_cached(COUNT_LINES)?.query_row([], |row| row.get(0))?;
        Ok(names::check_room(count, missing)?)
    }

    fn find(&mut self, conn: &Connection, job: &New) -> Result<Option<i64>> {
        let Some(queue) = self.find_queue(conn, &job.queue)? else { return Ok(None) };
        let Some(kind) = self.kind_no(conn, &job.kind)? else { return Ok(None) };
        let labels = labels_text(&job.options.labels);
        let known = match &labels {
            None => self.plain.get(&(queue, kind)),
            Some(labels) => self.labelled.get(&(queue, kind, labels.clone())),
        };
        if let Some(no) = known {
            return Ok(Some(*no));
        }
        let text = labels.unwrap_or_else(|| "[]".to_owned());
        let found: Option<i64> = conn
            .prepare_cached(FIND_LINE)?
            .query_row(params![queue, kind, text], |row| row.get(0))
            .optional()?;
        if let Some(no) = found {
            self.know_line(no, queue, kind, text)?;
        }
        Ok(found)
    }

    /// The number of a job's line, made if it is the first of its kind.
    pub(crate) fn add(&mut self, conn: &Connection, job: &New) -> Result<i64> {
        if let Some(no) = self.find(conn, job)? {
            return Ok(no);
        }
        let queue = self.intern_queue(conn, &job.queue)?;
        let kind = self.intern_kind(conn, &job.kind)?;
        let labels = labels_text(&job.options.labels).unwrap_or_else(|| "[]".to_owned());
        conn.prepare_cached(ADD_LINE)?.execute(params![queue, kind, labels])?;
        let no = conn.last_insert_rowid();
        self.know_line(no, queue, kind, labels)?;
        Ok(no)
    }

    /// The number of a queue that is known, to us or to the database.
    pub(crate) fn find_queue(&mut self, conn: &Connection, name: &QueueName) -> Result<Option<i64>> {
        if let Some(no) = self.queue_nos.get(name) {
            return Ok(Some(*no));
        }
        let mut statement = conn.prepare_cached(FIND_QUEUE)?;
        let mut rows = statement.query([name.as_str()])?;
        rows.next()?.map(|row| self.know_queue(row)).transpose()
    }

    /// The number of a kind, adding it if it is missing.
    pub(crate) fn intern_kind(&mut self, conn: &Connection, name: &Kind) -> Result<i64> {
        if let Some(no) = self.kind_no(conn, name)? {
            return Ok(no);
        }
        conn.prepare_cached(ADD_KIND)?.execute([name.as_str()])?;
        let no = conn.last_insert_rowid();
        self.kinds.insert(no, name.clone());
        self.kind_nos.insert(name.clone(), no);
        Ok(no)
    }

    /// The number of a kind that is known, to us or to the database.
    pub(crate) fn kind_no(&mut self, conn: &Connection, name: &Kind) -> Result<Option<i64>> {
        if let Some(no) = self.kind_nos.get(name) {
            return Ok(Some(*no));
        }
        let no: Option<i64> =
            conn.prepare_cached(FIND_KIND)?.query_row([name.as_str()], |row| row.get(0)).optional()?;
        if let Some(no) = no {
            self.kinds.insert(no, name.clone());
            self.kind_nos.insert(name.clone(), no);
        }
        Ok(no)
    }

    fn know_queue(&mut self, row: &Row<'_>) -> Result<i64> {
        let (no, queue) = read_queue(row)?;
        self.queue_nos.insert(queue.name.clone(), no);
        self.queues.insert(no, queue);
        Ok(no)
    }

    fn know_line(&mut self, no: i64, queue: i64, kind: i64, labels: String) -> Result<()> {
        let parsed = names::read_labels(no, &labels)?;
        let line = Line {
            queue,
            queue_name: self.queue(queue)?.name.clone(),
            kind,
            kind_name: self
                .kinds
                .get(&kind)
                .ok_or_else(|| corrupt(format!("kind {kind} is missing")))?
                .clone(),
            labels: parsed,
        };
        if line.labels.is_empty() {
            self.plain.insert((queue, kind), no);
        } else {
            self.labelled.insert((queue, kind, labels), no);
        }
        // Numbers are dense, so one above the bound is no line's, and a list up to it might fill all memory.
        let index = usize::try_from(no).ok().filter(|index| *index <= bounds::LINES);
        let index = index.ok_or_else(|| corrupt(format!("{no} is no line's number")))?;
        if self.lines.len() <= index {
            self.lines.resize_with(index + 1, || None);
        }
        self.lines[index] = Some(line);
        Ok(())
    }
}

/// A queue from a row of its table.
pub(crate) fn read_queue(row: &Row<'_>) -> Result<(i64, Queue)> {
    let columns = QueueColumns {
        name: row.get(1)?,
        paused: row.get(2)?,
        backoff: row.get(3)?,
        retain_succeeded: row.get(4)?,
        retain_failed: row.get(5)?,
    };
    Ok((row.get(0)?, columns.read()?))
}

/// Labels as they are stored; `None` if there are none.
fn labels_text(labels: &[Label]) -> Option<String> {
    if labels.is_empty() {
        return None;
    }
    Some(names::labels_text(labels))
}

fn last<T>(map: &BTreeMap<i64, T>) -> i64 {
    map.last_key_value().map_or(0, |(no, _)| *no)
}
