//! Claim: from `ready` to `lease`.
//!
//! The index of `ready` starts with (line, level), so the pairs that have jobs are found by one seek each, however many
//! jobs there are; lines that the node cannot run are stepped over. Then each queue is served level by level; the lines
//! of one level are merged by the time of entering.
//!
//! # Invariants
//! - A claim number is one higher than the job's last, and is written with the move.
//! - A claim that finds nothing writes nothing, unless the node's lease has to be renewed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use mainspring_core::id::{Claim, JobId, Row};
use mainspring_core::job::{Options, Priority, State};
use mainspring_core::name::QueueName;
use mainspring_core::store::{ClaimRequest, Claimed, ClaimedBatch, Class, Level};
use mainspring_core::time::Timestamp;
use rusqlite::{CachedStatement, OptionalExtension, params};

use super::{key, node};
use crate::error::{Result, corrupt};
use crate::flags;
use crate::names::Names;
use crate::writer::Tx;

/// Index `ready_claim`: the next line that has a job, and its first level. One seek. (A comparison of row values would
/// look simpler, but SQLite then seeks to the beginning of the pair and walks over all its jobs.)
pub(crate) const NEXT_LINE: &str =
    "SELECT line, level FROM mainspring_ready WHERE line > ?1 ORDER BY line, level LIMIT 1";
/// Index `ready_claim`: the next level of a line that has a job. One seek.
pub(crate) const NEXT_LEVEL: &str =
    "SELECT line, level FROM mainspring_ready WHERE line = ?1 AND level > ?2 ORDER BY level LIMIT 1";
/// Index `ready_claim`, covering: the first jobs of a line and level.
pub(crate) const HEADS: &str = "SELECT ready_at, no FROM mainspring_ready
    WHERE line = ?1 AND level = ?2 ORDER BY ready_at, no LIMIT ?3";
/// Primary key. The transaction excludes other writers, so what was seen is still there.
pub(crate) const TAKE: &str =
    "DELETE FROM mainspring_ready WHERE no = ?1 RETURNING claim, failures, crashes, crashed, flags";
/// An append, mostly: the primary key refuses a job that is claimed already.
pub(crate) const HOLD: &str = "INSERT INTO mainspring_lease
    (no, claim, node, batch, claimed_at, line, priority, failures, crashes, crashed, flags)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";
/// Primary key.
pub(crate) const JOB: &str =
    "SELECT id, created_at, deadline, options, input FROM mainspring_jobs WHERE no = ?1";
/// A scan of `lease`, whose size is bounded by the slots of all nodes; only for a repeated claim.
const ADOPT: &str = "SELECT no, claim, line, priority, failures, crashes, crashed, flags
    FROM mainspring_lease WHERE node = ?1 AND batch = ?2 ORDER BY no";

/// A pair of line and level that has jobs.
#[derive(Debug, Clone, Copy)]
struct Pair {
    line: i64,
    level: Level,
}

/// What the place carried of a claimed job.
struct Held {
    no: i64,
    line: i64,
    claim: i64,
    priority: Priority,
    failures: u16,
    crashes: u16,
    crashed: i64,
    flags: i64,
}

/// Claims jobs for a node.
pub(crate) fn run(tx: &mut Tx<'_>, request: &ClaimRequest) -> Result<ClaimedBatch> {
    node::touch(tx, request.node)?;
    let mut jobs = adopt(tx, request)?;
    if jobs.is_empty() {
        let pairs = pairs(tx, request)?;
        let mut suspects = request.suspects;
        let mut takers = Takers::new(tx, request)?;
        for (queue, limit) in &request.queues {
            let Some(levels) = pairs.get(queue) else { continue };
            let before = jobs.len();
            serve(tx, &mut takers, levels, *limit, &mut suspects, &mut jobs)?;
            let claimed = i64::try_from(jobs.len() - before).unwrap_or(i64::MAX);
            if let Some(no) = tx.state.names.queue_no(queue).filter(|_| claimed > 0) {
                tx.count(no, State::Ready, -claimed);
                tx.count(no, State::Running, claimed);
            }
        }
    }
    Ok(ClaimedBatch { now: tx.now, jobs })
}

/// What the node already holds under this batch's number: a repeat after a lost answer.
fn adopt(tx: &mut Tx<'_>, request: &ClaimRequest) -> Result<Vec<Claimed>> {
    let local = node::local(tx, request.node)?;
    let repeated = local.batch.is_some_and(|last| request.batch.0 <= last) || !local.fresh;
    local.batch = local.batch.max(Some(request.batch.0));
    local.fresh = true;
    if !repeated {
        return Ok(Vec::new());
    }
    let batch = batch_no(request)?;
    let held: Vec<Held> = tx
        .conn
        .prepare_cached(ADOPT)?
        .query_map(params![request.node.0, batch], |row| {
            Ok(Held {
                no: row.get(0)?,
                claim: row.get(1)?,
                line: row.get(2)?,
                priority: Priority::new(row.get(3)?).unwrap_or_default(),
                failures: row.get(4)?,
                crashes: row.get(5)?,
                crashed: row.get(6)?,
                flags: row.get(7)?,
            })
        })?
        .collect::<rusqlite::Result<_>>()?;
    let mut job = tx.conn.prepare_cached(JOB)?;
    held.iter().map(|held| read_job(&mut job, &tx.state.names, held)).collect()
}

/// The pairs that have jobs for this node, per queue that it asks for.
fn pairs(tx: &mut Tx<'_>, request: &ClaimRequest) -> Result<BTreeMap<QueueName, BTreeMap<Level, Vec<i64>>>> {
    node::learn_lines(tx, request.node)?;
    let mut found: BTreeMap<QueueName, BTreeMap<Level, Vec<i64>>> = BTreeMap::new();
    let names = &tx.state.names;
    let Some(local) = tx.state.nodes.get(&request.node.0) else { return Ok(found) };
    let wanted: Vec<i64> = request
        .queues
        .iter()
        .filter_map(|(queue, limit)| names.queue_no(queue).filter(|_| *limit > 0))
        .filter(|no| names.queue(*no).is_ok_and(|queue| !queue.settings.paused))
        .collect();
    let mut next_line = tx.conn.prepare_cached(NEXT_LINE)?;
    let mut next_level = tx.conn.prepare_cached(NEXT_LEVEL)?;
    let pair = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, u8>(1)?));
    let mut after = -1;
    while let Some((no, first)) = next_line.query_row([after], pair).optional()? {
        after = no;
        let line = names.line(no)?;
        let runs = usize::try_from(no).ok().and_then(|index| local.runs.get(index)).copied().unwrap_or(false);
        if !runs || !wanted.contains(&line.queue) {
            continue;
        }
        let levels = found.entry(line.queue_name.clone()).or_default();
        let mut code = Some(first);
        while let Some(found) = code {
            let level = Level::from_code(found).ok_or_else(|| corrupt(format!("{found} is no level")))?;
            levels.entry(level).or_default().push(no);
            code = next_level.query_row(params![no, found], pair).optional()?.map(|(_, level)| level);
        }
    }
    Ok(found)
}

/// Serves one queue: levels from low to high, up to its limit.
fn serve(
    tx: &Tx<'_>,
    takers: &mut Takers<'_>,
    levels: &BTreeMap<Level, Vec<i64>>,
    limit: usize,
    suspects: &mut usize,
    jobs: &mut Vec<Claimed>,
) -> Result<()> {
    let end = jobs.len() + limit;
    for (level, lines) in levels {
        let room = end - jobs.len();
        let suspect = level.class() == Class::Suspect;
        let wanted = if suspect { room.min(*suspects) } else { room };
        if room == 0 {
            break;
        }
        let before = jobs.len();
        match lines.as_slice() {
            _ if wanted == 0 => {}
            [line] => {
                for (_, no) in takers.heads(*line, *level, wanted)? {
                    jobs.push(takers.take(tx, no, Pair { line: *line, level: *level })?);
                }
            }
            lines => merge(tx, takers, lines, *level, wanted, jobs)?,
        }
        if suspect {
            *suspects -= jobs.len() - before;
        }
    }
    Ok(())
}

/// Takes from several lines of one level, earliest first.
fn merge(
    tx: &Tx<'_>,
    takers: &mut Takers<'_>,
    lines: &[i64],
    level: Level,
    wanted: usize,
    jobs: &mut Vec<Claimed>,
) -> Result<()> {
    // A few from each at first; a line that gives more is asked again. What was taken is gone, so its next jobs are
    // its first ones.
    let chunk = (wanted / lines.len()).max(8);
    let mut streams: Vec<VecDeque<(i64, i64)>> = Vec::with_capacity(lines.len());
    let mut heap = BinaryHeap::new();
    for (index, line) in lines.iter().enumerate() {
        let mut stream = takers.heads(*line, level, chunk)?;
        heap.extend(stream.pop_front().map(|head| Reverse((head, index))));
        streams.push(stream);
    }
    let mut taken = 0;
    while let Some(Reverse(((_, no), index))) = heap.pop() {
        jobs.push(takers.take(tx, no, Pair { line: lines[index], level })?);
        taken += 1;
        if taken == wanted {
            break;
        }
        if streams[index].is_empty() {
            streams[index] = takers.heads(lines[index], level, chunk)?;
        }
        heap.extend(streams[index].pop_front().map(|head| Reverse((head, index))));
    }
    Ok(())
}

/// The statements of a claim, prepared once for all its jobs.
struct Takers<'a> {
    heads: CachedStatement<'a>,
    take: CachedStatement<'a>,
    hold: CachedStatement<'a>,
    job: CachedStatement<'a>,
    node: i64,
    batch: i64,
}

impl<'a> Takers<'a> {
    fn new(tx: &Tx<'a>, request: &ClaimRequest) -> Result<Self> {
        Ok(Takers {
            heads: tx.conn.prepare_cached(HEADS)?,
            take: tx.conn.prepare_cached(TAKE)?,
            hold: tx.conn.prepare_cached(HOLD)?,
            job: tx.conn.prepare_cached(JOB)?,
            node: request.node.0,
            batch: batch_no(request)?,
        })
    }

    fn heads(&mut self, line: i64, level: Level, limit: usize) -> Result<VecDeque<(i64, i64)>> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows =
            self.heads.query_map(params![line, level.code(), limit], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// Moves one job.
    fn take(&mut self, tx: &Tx<'_>, no: i64, pair: Pair) -> Result<Claimed> {
        let held = self.take.query_row([no], |row| {
            Ok(Held {
                no,
                line: pair.line,
                claim: row.get::<_, i64>(0)? + 1,
                priority: pair.level.priority(),
                failures: row.get(1)?,
                crashes: row.get(2)?,
                crashed: row.get(3)?,
                flags: row.get(4)?,
            })
        })?;
        self.hold.execute(params![
            no,
            held.claim,
            self.node,
            self.batch,
            tx.micros(),
            pair.line,
            held.priority.get(),
            held.failures,
            held.crashes,
            held.crashed,
            held.flags
        ])?;
        if held.flags & flags::KEY_UNTIL_STARTED != 0 {
            key::release(tx.conn, no, tx.micros())?;
        }
        read_job(&mut self.job, &tx.state.names, &held)
    }
}

/// What a node gets of a job.
fn read_job(statement: &mut CachedStatement<'_>, names: &Names, held: &Held) -> Result<Claimed> {
    let line = names.line(held.line)?;
    let mut rows = statement.query([held.no])?;
    let row = rows.next()?.ok_or_else(|| corrupt(format!("job number {} is missing", held.no)))?;
    let options = row.get_ref(3)?;
    let mut options: Options = match options.as_str_or_null().map_err(rusqlite::Error::from)? {
        None => Options::default(),
        Some(text) => serde_json::from_str(text).map_err(|error| corrupt(format!("options: {error}")))?,
    };
    if options.backoff.is_none() {
        options.backoff = names.queue(line.queue)?.settings.backoff;
    }
    let deadline: Option<i64> = row.get(2)?;
    Ok(Claimed {
        claim: Claim {
            id: JobId::from_bytes(row.get(0)?),
            row: Row(held.no),
            number: u32::try_from(held.claim).map_err(|_| corrupt("a claim number beyond its bound"))?,
        },
        kind: line.kind_name.clone(),
        queue: line.queue_name.clone(),
        priority: held.priority,
        input: row.get(4)?,
        failures: held.failures,
        crashes: held.crashes,
        crashed_micros: held.crashed,
        created_at: Timestamp::from_micros(row.get(1)?),
        // A job that an operator ran again has no deadline any more.
        deadline: deadline.filter(|_| held.flags & flags::DEADLINE != 0).map(Timestamp::from_micros),
        options,
    })
}

fn batch_no(request: &ClaimRequest) -> Result<i64> {
    i64::try_from(request.batch.0).map_err(|_| corrupt("a batch number beyond its bound"))
}
