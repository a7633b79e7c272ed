//! Enqueue: jobs come in, by the writer or inside a caller's own transaction.
//!
//! # Invariants
//! - A repeated id changes nothing.
//! - Inside a caller's transaction there are only inserts, and a conflict never aborts it.

use mainspring_core::job::{Differs, Input, New, OnConflict, Reason, State, Unique, transition};
use mainspring_core::store::{Class, Level, Receipt, flags};
use mainspring_core::tables::options::{options_text, read_options};
use rusqlite::{CachedStatement, OptionalExtension, params};

use super::moves::{self, Ending, INTO_LIMITED, INTO_READY, INTO_TIMERS};
use super::place;
use super::{deadline, journal, limits, unique_key};
use crate::error::{Result, corrupt};
use crate::writer::Tx;

/// An append to the primary key, and a look-up in the unique index of ids; a repeated id is no error.
pub(crate) const INTO_JOBS: &str = "INSERT INTO mainspring_jobs
    (no, id, line, priority, created_at, deadline, options, input) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
    ON CONFLICT (id) DO NOTHING";
/// Unique index of ids.
const EXISTS: &str = "SELECT EXISTS (SELECT 1 FROM mainspring_jobs WHERE id = ?1)";
/// Unique index of ids, then primary keys. As blobs: what is damaged must not fail a batch.
const KNOWN: &str = "SELECT CAST(coalesce(k.name, '') AS BLOB), CAST(j.options AS BLOB), CAST(j.input AS BLOB)
    FROM mainspring_jobs j LEFT JOIN mainspring_lines l ON l.no = j.line LEFT JOIN mainspring_kinds k ON k.no = l.kind
    WHERE j.id = ?1";
/// Primary key; a tag that a job names twice is there once.
const INTO_TAGS: &str = "INSERT OR IGNORE INTO mainspring_tags (tag, no) VALUES (?1, ?2)";

/// Stores jobs.
pub(crate) fn run(tx: &mut Tx<'_>, jobs: &[New]) -> Result<Vec<Receipt>> {
    limits::cache::check(&mut tx.state.limits, tx.conn, jobs)?;
    let lines = tx.state.names.lines_of(tx.conn, jobs)?;
    let mut adder = Adder::new(tx)?;
    let mut receipts = Vec::with_capacity(jobs.len());
    for (job, line) in jobs.iter().zip(lines) {
        if let Some(unique) = &job.options.unique
            && let Some(receipt) = meet(tx, job, unique)?
        {
            receipts.push(receipt);
            continue;
        }
        let line = match line {
            Some(line) => line,
            None => tx.state.names.add(tx.conn, job)?,
        };
        receipts.push(match adder.add(tx, job, line)? {
            Some(_) => Receipt::Created,
            None => known(tx, job)?.unwrap_or(Receipt::Created),
        });
    }
    Ok(receipts)
}

/// Stores a job that another one has started. Returns its number, or `None` if its id is there already.
pub(crate) fn child(tx: &mut Tx<'_>, job: &New) -> Result<Option<i64>> {
    let line = tx.state.names.add(tx.conn, job)?;
    Adder::new(tx)?.add(tx, job, line)
}

/// What is said of a job whose id is there already; `None` if it is not.
pub(crate) fn known(tx: &Tx<'_>, job: &New) -> Result<Option<Receipt>> {
    let row = |row: &rusqlite::Row<'_>| {
        Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, Option<Vec<u8>>>(1)?, row.get::<_, Vec<u8>>(2)?))
    };
    let found = tx.conn.prepare_cached(KNOWN)?.query_row([job.id.as_bytes()], row).optional()?;
    let Some((kind, options, input)) = found else { return Ok(None) };
    // Options that cannot be read are another job's.
    let options = read_options(options.as_deref());
    let differs = match (std::str::from_utf8(&kind), options) {
        (Ok(kind), Ok(options)) => job.differs(kind, &options, &input),
        _ => Some(Differs::Kind),
    };
    Ok(Some(differs.map_or(Receipt::Repeated, Receipt::Taken)))
}

/// What adds jobs.
struct Adder<'a> {
    insert: CachedStatement<'a>,
    ready: CachedStatement<'a>,
    /// The group and the level of the last limited job: they have a turn, or are blocked.
    turn: Option<(i64, u8)>,
}

impl<'a> Adder<'a> {
    fn new(tx: &Tx<'a>) -> Result<Self> {
        Ok(Adder {
            insert: tx.conn.prepare_cached(INTO_JOBS)?,
            ready: tx.conn.prepare_cached(INTO_READY)?,
            turn: None,
        })
    }

    /// Adds a job whose key is free. Returns its number, or `None` if its id is there already.
    fn add(&mut self, tx: &mut Tx<'_>, job: &New, line: i64) -> Result<Option<i64>> {
        let now = tx.micros();
        let no = tx.state.numbers.no + 1;
        let due_at = job.deadline.map(|deadline| deadline.resolve(tx.now).as_micros());
        let options = options_text(&job.options)?;
        let inserted = self.insert.execute(params![
            no,
            job.id.as_bytes(),
            line,
            job.priority.get(),
            now,
            due_at,
            options,
            job.input
        ])?;
        if inserted == 0 {
            return Ok(None);
        }
        tx.state.numbers.no = no;
        let flags = flags::of(job);
        if !job.journal.is_empty() {
            journal::Writer::new(tx)?.add(tx, no, 0, &job.journal)?;
        }
        let run_at = job.run.map(|run| run.resolve(tx.now)).filter(|at| *at > tx.now);
        if let Some(at) = run_at {
            let priority = job.priority.get();
            let values = params![no, line, priority, at.as_micros(), 0, 0, 0, 0, flags];
            tx.conn.prepare_cached(INTO_TIMERS)?.execute(values)?;
            tx.hints.due(at);
        } else {
            let level = Level::new(Class::Fresh, job.priority).code();
            let uses = &job.options.limits;
            let group = if uses.is_empty() { None } else { tx.state.limits.group_of(tx.conn, line, uses)? };
            if let Some(group) = group {
                let values = params![no, group, line, level, now, 0, 0, 0, 0, flags];
                tx.conn.prepare_cached(INTO_LIMITED)?.execute(values)?;
                // Bulk calls bring long runs of one group.
                if self.turn.replace((group, level)) != Some((group, level)) {
                    limits::counters::give_turn(tx, line, level, group)?;
                }
            } else {
                self.ready.execute(params![no, line, level, now, 0, 0, 0, 0, flags])?;
            }
            tx.hints.ready(&job.queue);
        }
        let queue = tx.state.names.line(line)?.queue;
        tx.count(queue, if run_at.is_some() { State::Scheduled } else { State::Ready }, 1);
        if options.is_some() || due_at.is_some() {
            insert_side_rows(tx, job, no, line, due_at)?;
        }
        Ok(Some(no))
    }
}

/// Rows that few jobs have.
fn insert_side_rows(tx: &mut Tx<'_>, job: &New, no: i64, line: i64, deadline: Option<i64>) -> Result<()> {
    if let Some(unique) = &job.options.unique {
        let kind = tx.state.names.line(line)?.kind;
        unique_key::take(tx.conn, kind, unique, no, job.id)?;
    }
    if let Some(at) = deadline {
        deadline::set(tx.conn, no, at)?;
        tx.hints.due(mainspring_core::time::Timestamp::from_micros(at));
    }
    for tag in &job.options.tags {
        tx.conn.prepare_cached(INTO_TAGS)?.execute(params![tag.as_str(), no])?;
    }
    Ok(())
}

/// What the unique key of a job says; `None` if the job may go in and take it.
fn meet(tx: &mut Tx<'_>, job: &New, unique: &Unique) -> Result<Option<Receipt>> {
    let known = known(tx, job)?;
    if known.is_some() {
        return Ok(known);
    }
    let Some(kind) = tx.state.names.kind_no(tx.conn, &job.kind)? else { return Ok(None) };
    let Some(holder) = unique_key::holder(tx.conn, kind, &unique.key, tx.micros())? else { return Ok(None) };
    Ok(match unique.on_conflict {
        OnConflict::Reject => Some(Receipt::Rejected(holder.id)),
        OnConflict::Replace if replace(tx, &holder)? => None,
        OnConflict::Keep | OnConflict::Replace => Some(Receipt::Existing(holder.id)),
    })
}

/// Cancels a waiting job in favour of a new one. False if it does not wait.
fn replace(tx: &mut Tx<'_>, holder: &unique_key::Holder) -> Result<bool> {
    let exists: bool = tx.conn.prepare_cached(EXISTS)?.query_row([holder.id.as_bytes()], |row| row.get(0))?;
    if !exists {
        return Ok(false);
    }
    let (card, found) = place::locate(tx, holder.no)?;
    let from = found.status();
    if from.state == State::Running || from.state.is_terminal() {
        return Ok(false);
    }
    let status =
        transition(from, Input::Cancel(Reason::Replaced)).map_err(|illegal| corrupt(illegal.to_string()))?;
    moves::leave(tx, &card, &found)?;
    moves::end(tx, &card, Ending { status, note: "", result: None })?;
    // A key that is held for a period after the end goes to the new job as well.
    unique_key::forget(tx.conn, holder.no)?;
    Ok(true)
}
