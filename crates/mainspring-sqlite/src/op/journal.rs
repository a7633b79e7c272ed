//! Journals: what claimed jobs record, and what a claim gets of it.
//!
//! Recording is the hot path of workflows: the fence is one read of the claim's row in `lease`, and an entry is one insert
//! that appends to `steps`. Only the first recording of a claim writes to `lease`.
//!
//! # Invariants
//! - What is recorded was recorded by the owner of the claim: the fence is read in the same transaction.
//! - A job with a row in `steps` or `output` has the flag of journals, wherever it is.
//! - An entry never changes.

use std::collections::BTreeMap;
use std::time::Duration;

use mainspring_core::id::{Claim, NodeNo};
use mainspring_core::journal::{Entry, EntryKind, Journal, Recorded, Recording, Value, Writes, Written};
use mainspring_core::name::Key;
use mainspring_core::store::{Claimed, flags};
use mainspring_core::time::{Timestamp, millis};
use mainspring_core::{Error, bounds};
use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

use super::family::{self, Started};
use super::{as_i64, inbox, limits, output};
use crate::error::{Result, corrupt, legible};
use crate::writer::Tx;

/// Primary keys. Claim number and node are the fence; the id is that of the number, or the claim is none of ours.
pub(crate) const FENCE: &str = "SELECT l.flags, l.crashes, l.crashed
    FROM mainspring_lease l CROSS JOIN mainspring_jobs j ON j.no = l.no
    WHERE l.no = ?1 AND l.claim = ?2 AND l.node = ?3 AND j.id = ?4";
/// Primary key; once per claim, mostly.
const MARK: &str = "UPDATE mainspring_lease SET flags = flags | ?2, crashes = 0, crashed = 0 WHERE no = ?1";
/// Primary key; of what is no progress.
const MARK_IDLE: &str = "UPDATE mainspring_lease SET flags = flags | ?2 WHERE no = ?1";
/// An append, and the unique index of keys: an entry that is there already stays as it is.
pub(crate) const INTO_STEPS: &str =
    "INSERT INTO mainspring_steps (no, key, kind, overlapped, claim, at, took, value)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT (no, key) DO NOTHING";
/// Unique index of keys.
pub(crate) const FORGET: &str = "DELETE FROM mainspring_steps WHERE no = ?1 AND key = ?2";
/// Unique index of keys, then primary keys; a value that is longer than the last parameter is left where it is. Not
/// sorted here: SQLite would carry the values through its sorter.
pub(crate) const ENTRIES: &str = "SELECT seq, key, kind, overlapped, claim, at, length(value),
        CASE WHEN length(value) <= ?2 THEN value END, took
    FROM mainspring_steps WHERE no = ?1";
/// Unique index of keys.
const HAS: &str = "SELECT 1 FROM mainspring_steps WHERE no = ?1 AND key = ?2";
/// Primary key.
const VALUE: &str = "SELECT value FROM mainspring_steps WHERE seq = ?1";

/// A value up to this size is on the page of its row, and costs nothing more to read with it.
const AT_HAND: usize = 1 << 10;

/// Writes into the journals of claimed jobs.
pub(crate) fn record(tx: &mut Tx<'_>, node: NodeNo, recordings: &[Recording]) -> Result<Vec<Recorded>> {
    check_children(tx, recordings)?;
    let mut writer = Writer::new(tx)?;
    let mut fence = tx.conn.prepare_cached(FENCE)?;
    let mut answers = Vec::with_capacity(recordings.len());
    for recording in recordings {
        answers.push(record_one(tx, &mut fence, &mut writer, node, recording)?);
    }
    Ok(answers)
}

/// Whether a node holds a claim.
pub(crate) fn is_held(tx: &Tx<'_>, node: NodeNo, claim: &Claim) -> Result<bool> {
    let values = params![claim.row.0, claim.number, node.0, claim.id.as_bytes()];
    Ok(tx.conn.prepare_cached(FENCE)?.exists(values)?)
}

/// Whether something is recorded under a key.
pub(crate) fn has(tx: &Tx<'_>, no: i64, key: &Key) -> Result<bool> {
    Ok(tx.conn.prepare_cached(HAS)?.exists(params![no, key.as_str()])?)
}

/// Names the parent in the options of its children.
pub(crate) fn adopt_children(recording: &mut Recording) {
    for child in &mut recording.children {
        child.job.options.parent = Some(recording.claim.id);
    }
}

/// Rows that a recording writes.
pub(crate) fn rows(recording: &Recording) -> usize {
    1 + rows_of(&recording.writes) + recording.children.len()
}

/// Rows that these writes touch.
pub(crate) fn rows_of(writes: &Writes) -> usize {
    writes.entries.len() + writes.read.len() + writes.forget.len() + writes.output.len()
}

/// Bytes of payload that a recording brings.
pub(crate) fn bytes(recording: &Recording) -> usize {
    let inputs: usize = recording.children.iter().map(|child| child.job.input.len()).sum();
    recording.writes.bytes() + inputs
}

/// All before any: a call that is refused has no effect.
pub(crate) fn check_children(tx: &mut Tx<'_>, recordings: &[Recording]) -> Result<()> {
    let children = || recordings.iter().flat_map(|recording| &recording.children).map(|child| &child.job);
    if children().any(|child| child.options.unique.is_some()) {
        return Err(Error::Invalid { what: "child", why: "it has a unique key".into() }.into());
    }
    if children().any(|child| !child.journal.is_empty()) {
        return Err(Error::Invalid { what: "child", why: "it has a journal".into() }.into());
    }
    if children().next().is_some() {
        limits::cache::check(&mut tx.state.limits, tx.conn, children())?;
        tx.state.names.lines_of(tx.conn, children())?;
    }
    Ok(())
}

fn record_one(
    tx: &mut Tx<'_>,
    fence: &mut CachedStatement<'_>,
    writer: &mut Writer<'_>,
    node: NodeNo,
    recording: &Recording,
) -> Result<Recorded> {
    let Recording { claim, writes, .. } = recording;
    let no = claim.row.0;
    let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    let held: Option<(i16, i64, i64)> =
        fence.query_row(params![no, claim.number, node.0, claim.id.as_bytes()], row).optional()?;
    let Some((flags, crashes, crashed)) = held else { return Ok(Recorded::LeaseLost) };
    let mut wanted = flags | flags::JOURNAL;
    match family::start(tx, no, recording)? {
        Started::All(any) => wanted |= if any { flags::CHILDREN } else { 0 },
        Started::Taken(answer) => return Ok(answer),
    }
    writer.write(tx, no, claim.number, writes)?;
    if writes.idle {
        if wanted != flags {
            tx.conn.prepare_cached(MARK_IDLE)?.execute(params![no, wanted])?;
        }
    } else if wanted != flags || crashes != 0 || crashed != 0 {
        tx.conn.prepare_cached(MARK)?.execute(params![no, wanted])?;
    }
    Ok(Recorded::Stored)
}

/// What writes into journals.
pub(crate) struct Writer<'a> {
    insert: CachedStatement<'a>,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(tx: &Tx<'a>) -> Result<Self> {
        Ok(Writer { insert: tx.conn.prepare_cached(INTO_STEPS)? })
    }

    /// Writes into the journal of a job. Whoever calls this has met its claim, and sees to its flag.
    pub(crate) fn write(&mut self, tx: &Tx<'_>, no: i64, claim: u32, writes: &Writes) -> Result<()> {
        for key in &writes.forget {
            tx.conn.prepare_cached(FORGET)?.execute(params![no, key.as_str()])?;
        }
        self.add(tx, no, claim, &writes.entries)?;
        if !writes.read.is_empty() {
            inbox::mark_read(tx, no, &writes.read)?;
        }
        if !writes.output.is_empty() {
            output::say(tx, no, claim, &writes.output)?;
        }
        Ok(())
    }

    /// Adds entries.
    pub(crate) fn add(&mut self, tx: &Tx<'_>, no: i64, claim: u32, entries: &[Entry]) -> Result<()> {
        let now = tx.micros();
        for entry in entries {
            let (key, kind) = (entry.key.as_str(), entry.kind.code());
            let took = entry.took.map(millis);
            self.insert.execute(params![no, key, kind, entry.overlapped, claim, now, took, entry.value])?;
        }
        Ok(())
    }
}

/// Reads the journals of claimed jobs that have one, as far as a claim brings them along. Jobs whose journals cannot be
/// read are taken out and returned, with what is wrong.
pub(crate) fn prefetch(tx: &Tx<'_>, jobs: &mut Vec<Claimed>) -> Result<Vec<(i64, String)>> {
    let mut left = bounds::BATCH_BYTES;
    let mut unreadable = Vec::new();
    for job in &mut *jobs {
        let no = job.claim.row.0;
        let Some(journal) = &mut job.journal else { continue };
        if let Err(why) = legible(bring(tx, no, journal, &mut left))? {
            unreadable.push((no, format!("its journal: {why}")));
        }
    }
    jobs.retain(|job| !unreadable.iter().any(|(no, _)| *no == job.claim.row.0));
    Ok(unreadable)
}

/// Reads the journal of one job, and takes what it weighs off what is left.
fn bring(tx: &Tx<'_>, no: i64, journal: &mut Journal, left: &mut usize) -> Result<()> {
    let mut budget = (*left).min(bounds::PREFETCH_BYTES);
    let before = budget;
    journal.entries = entries(tx.conn, no, &mut budget)?;
    *left -= before - budget;
    journal.inbox = inbox::unread(tx.conn, no, 0, *left)?;
    let bytes: usize = journal.inbox.messages.iter().map(|message| message.body.bytes()).sum();
    *left = left.saturating_sub(bytes);
    Ok(())
}

/// All entries of a job, in the order in which they were recorded; values as far as the budget goes.
fn entries(conn: &Connection, no: i64, budget: &mut usize) -> Result<Vec<Written>> {
    let mut found = BTreeMap::new();
    let mut statement = conn.prepare_cached(ENTRIES)?;
    let mut rows = statement.query([no, as_i64(AT_HAND.min(*budget))])?;
    while let Some(row) = rows.next()? {
        found.insert(row.get::<_, i64>(0)?, read_entry(row)?);
    }
    let mut entries = Vec::with_capacity(found.len());
    for (seq, mut entry) in found {
        let size = match &entry.value {
            Value::Here(value) => value.len(),
            Value::There(size) => *size,
        };
        if size > *budget {
            entry.value = Value::There(size);
        } else {
            *budget -= size;
            if let Value::There(_) = entry.value {
                let value = conn.prepare_cached(VALUE)?.query_row([seq], |row| row.get(0))?;
                entry.value = Value::Here(value);
            }
        }
        entries.push(entry);
    }
    Ok(entries)
}

/// An entry from a row of [`ENTRIES`] and the like.
pub(crate) fn read_entry(row: &rusqlite::Row<'_>) -> Result<Written> {
    let key: String = row.get(1)?;
    let size: u32 = row.get(6)?;
    let value: Option<Vec<u8>> = row.get(7)?;
    Ok(Written {
        key: Key::new(key).map_err(|error| corrupt(error.to_string()))?,
        kind: EntryKind::from_code(row.get(2)?).ok_or_else(|| corrupt("an unknown kind of entry"))?,
        overlapped: row.get(3)?,
        claim: row.get(4)?,
        at: Timestamp::from_micros(row.get(5)?),
        value: value.map_or(Value::There(usize::try_from(size).unwrap_or(usize::MAX)), Value::Here),
        took: row.get::<_, Option<u32>>(8)?.map(|took| Duration::from_millis(took.into())),
    })
}
