//! Claim: from `ready` and `limited` to `lease`.
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

use mainspring_core::bounds;
use mainspring_core::id::{Claim, JobId, Row};
use mainspring_core::job::{Priority, State};
use mainspring_core::journal::Value;
use mainspring_core::name::QueueName;
use mainspring_core::named;
use mainspring_core::store::{ClaimRequest, Claimed, ClaimedBatch, Class, Level, flags};
use mainspring_core::tables::options::read_options;
use mainspring_core::time::Timestamp;
use rusqlite::types::Value as Column;
use rusqlite::{CachedStatement, OptionalExtension, params};

use super::limits::{self, counters};
use super::moves::{self, FROM_READY, HOLD_FIRST, HOLD_FIRST_COUNTED, HOLD_ONE, TAKE_FIRST};
use super::{as_i64, journal, node, place, unique_key};
use crate::error::{Result, corrupt, legible};
use crate::names::Names;
use crate::writer::Tx;

/// Index `ready_claim`: the next line that has a job, and its first level. One seek. (A comparison of row values would
/// look simpler, but SQLite then seeks to the beginning of the pair and walks over all its jobs.)
pub(crate) const NEXT_LINE: &str =
    "SELECT line, level FROM mainspring_ready WHERE line > ?1 ORDER BY line, level LIMIT 1";
/// Index `ready_claim`: the next level of a line that has a job. One seek.
pub(crate) const NEXT_LEVEL: &str =
    "SELECT line, level FROM mainspring_ready WHERE line = ?1 AND level > ?2 ORDER BY level LIMIT 1";
/// Primary key of `group_turns`: the same of groups that have a turn.
pub(crate) const NEXT_TURN_LINE: &str =
    "SELECT line, level FROM mainspring_group_turns WHERE line > ?1 ORDER BY line, level LIMIT 1";
pub(crate) const NEXT_TURN_LEVEL: &str = "SELECT line, level FROM mainspring_group_turns
    WHERE line = ?1 AND level > ?2 ORDER BY level LIMIT 1";
/// Primary key of `group_turns`: turns of a line, and of a level unless that is NULL, which are none.
const STRAY_TURNS: &str = "DELETE FROM mainspring_group_turns WHERE line = ?1 AND (?2 IS NULL OR level = ?2)";
/// Index `ready_claim`: jobs of a line, and of a level unless that is NULL, which are none.
const STRAY: &str = "SELECT no FROM mainspring_ready WHERE line = ?1 AND (?2 IS NULL OR level = ?2) LIMIT ?3";
/// What a node gets of a job, as columns. The level's low bits are the priority. The size of an input is in the header of its
/// row: one that is left out is not read, unless it is of another type than an input has.
macro_rules! columns {
    ($priority:literal) => {
        concat!(
            "SELECT p.no, p.line, ",
            $priority,
            ", p.claim, p.failures, p.crashes, p.crashed, p.flags,
            j.id, j.created_at, j.deadline, j.options, octet_length(j.input),
            CASE WHEN octet_length(j.input) <= {bound.claim_input_bytes} OR typeof(j.input) <> 'blob' THEN j.input END "
        )
    };
}

/// Index `ready_claim`, in its order, then primary keys: the first jobs of a line and level.
pub(crate) const FIRST: &str = named!(concat!(
    columns!("p.level & {level.priority_bits}"),
    ", p.ready_at FROM mainspring_ready p CROSS JOIN mainspring_jobs j ON j.no = p.no
    WHERE p.line = ?1 AND p.level = ?2 ORDER BY p.ready_at, p.no LIMIT ?3"
));
/// The same of a job that is set aside: whether it can be read again.
const ASIDE: &str = named!(concat!(
    columns!("p.priority"),
    "FROM mainspring_suspended p CROSS JOIN mainspring_jobs j ON j.no = p.no WHERE p.no = ?1"
));
/// Index `ready_claim`, covering: the first jobs of one of several lines.
pub(crate) const HEADS: &str = "SELECT ready_at, no FROM mainspring_ready
    WHERE line = ?1 AND level = ?2 ORDER BY ready_at, no LIMIT ?3";
/// Primary keys: one of these jobs, read.
pub(crate) const ONE: &str = named!(concat!(
    columns!("p.level & {level.priority_bits}"),
    "FROM mainspring_ready p CROSS JOIN mainspring_jobs j ON j.no = p.no WHERE p.no = ?1"
));
/// Index `limited_claim`, in its order, then primary keys: the first jobs of a group and level.
pub(crate) const FIRST_LIMITED: &str = named!(concat!(
    columns!("p.level & {level.priority_bits}"),
    "FROM mainspring_limited p CROSS JOIN mainspring_jobs j ON j.no = p.no
    WHERE p.line = ?1 AND p.limit_group = ?2 AND p.level = ?3 ORDER BY p.ready_at, p.no LIMIT ?4"
));

/// A scan of `lease`, whose size is bounded by the slots of all nodes; only for a repeated claim.
const ADOPT: &str = named!(concat!(
    columns!("p.priority"),
    "FROM mainspring_lease p CROSS JOIN mainspring_jobs j ON j.no = p.no
    WHERE p.node = ?1 AND p.batch = ?2 ORDER BY p.no"
));

/// Claims jobs for a node.
pub(crate) fn run(tx: &mut Tx<'_>, request: &ClaimRequest) -> Result<ClaimedBatch> {
    node::touch(tx, request.node)?;
    let mut unreadable = Vec::new();
    let mut jobs = adopt(tx, request, &mut unreadable)?;
    if jobs.is_empty() && unreadable.is_empty() {
        counters::settle(tx)?;
        let pairs = pairs(tx, request)?;
        let mut suspects = request.suspects;
        let mut takers = Takers::new(tx, request)?;
        for (queue, limit) in &request.queues {
            let Some(levels) = pairs.get(queue) else { continue };
            let before = jobs.len();
            let room = QueueClaim {
                limit: *limit,
                free: request.free(queue),
                lost: request.lost(queue),
                limited: request.limited(queue),
            };
            serve(tx, &mut takers, levels, room, &mut suspects, &mut jobs)?;
            let claimed = i64::try_from(jobs.len() - before).unwrap_or(i64::MAX);
            if let Some(no) = tx.state.names.queue_no(queue).filter(|_| claimed > 0) {
                tx.count(no, State::Ready, -claimed);
                tx.count(no, State::Running, claimed);
            }
        }
    }
    unreadable.extend(journal::prefetch(tx, &mut jobs)?);
    for (no, why) in unreadable {
        let (card, found) = place::locate(tx, no)?;
        moves::leave(tx, &card, &found)?;
        moves::set_aside(tx, &card, &why)?;
    }
    Ok(ClaimedBatch { now: tx.now, jobs })
}

/// Why a job that is set aside cannot be read; `None` if it can.
pub(crate) fn illegible(tx: &Tx<'_>, no: i64) -> Result<Option<String>> {
    let mut statement = tx.conn.prepare_cached(ASIDE)?;
    let mut rows = statement.query([no])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    Ok(match legible(read_claimed(row, &tx.state.names, 0))? {
        Err(why) => Some(why),
        Ok((claimed, _)) => journal::prefetch(tx, &mut vec![claimed])?.into_iter().next().map(|(_, why)| why),
    })
}

/// What the node already holds under this batch's number: a repeat after a lost answer.
fn adopt(
    tx: &mut Tx<'_>,
    request: &ClaimRequest,
    unreadable: &mut Vec<(i64, String)>,
) -> Result<Vec<Claimed>> {
    let local = node::local(tx, request.node)?;
    let repeated = local.batch.is_some_and(|last| request.batch.0 <= last) || !local.fresh;
    local.batch = local.batch.max(Some(request.batch.0));
    local.fresh = true;
    if !repeated {
        return Ok(Vec::new());
    }
    let mut held = tx.conn.prepare_cached(ADOPT)?;
    let mut rows = held.query(params![request.node.0, batch_no(request)?])?;
    let mut jobs = Vec::new();
    while let Some(row) = rows.next()? {
        match legible(read_claimed(row, &tx.state.names, 0))? {
            Ok((claimed, _)) => jobs.push(claimed),
            Err(why) => unreadable.push((row.get(0)?, why)),
        }
    }
    Ok(jobs)
}

/// The lines that have jobs of one level.
#[derive(Default)]
struct Lines {
    /// In `ready`.
    plain: Vec<i64>,
    /// With groups that have a turn.
    limited: Vec<i64>,
}

/// The lines that have jobs for this node, by queue and level.
type Pairs = BTreeMap<QueueName, BTreeMap<Level, Lines>>;

/// The pairs that have jobs for this node, per queue that it asks for.
///
/// Whatever else the index has, in a line or on a level that is none, is set aside.
fn pairs(tx: &mut Tx<'_>, request: &ClaimRequest) -> Result<Pairs> {
    node::learn_lines(tx, request.node)?;
    let mut found = Pairs::new();
    let plain = find_pairs(tx, request, (NEXT_LINE, NEXT_LEVEL), &mut found, |lines| &mut lines.plain)?;
    for (line, level) in plain {
        let wanted = as_i64(bounds::BATCH);
        let mut lost = tx.conn.prepare_cached(STRAY)?;
        let nos = lost.query_map(params![line, level, wanted], |row| row.get(0))?;
        for no in nos.collect::<rusqlite::Result<Vec<i64>>>()? {
            claim_unreadable(
                tx,
                no,
                "its line or level in `ready` is invalid; resume the job to restore both",
            )?;
        }
    }
    let statements = (NEXT_TURN_LINE, NEXT_TURN_LEVEL);
    let turns = find_pairs(tx, request, statements, &mut found, |lines| &mut lines.limited)?;
    for (line, level) in turns {
        // Their groups get others when jobs without a turn are looked for.
        tx.conn.prepare_cached(STRAY_TURNS)?.execute(params![line, level])?;
    }
    Ok(found)
}

/// Adds the pairs that two statements find. Returns those whose line or whose level is none.
fn find_pairs(
    tx: &Tx<'_>,
    request: &ClaimRequest,
    (next_line, next_level): (&str, &str),
    pairs: &mut Pairs,
    which: fn(&mut Lines) -> &mut Vec<i64>,
) -> Result<Vec<(Column, Option<Column>)>> {
    let mut stray = Vec::new();
    let names = &tx.state.names;
    let Some(local) = tx.state.nodes.get(&request.node.0) else { return Ok(stray) };
    let wanted: Vec<i64> = request
        .queues
        .iter()
        .filter_map(|(queue, limit)| names.queue_no(queue).filter(|_| *limit > 0))
        .filter(|no| names.queue(*no).is_ok_and(|queue| !queue.settings.paused))
        .collect();
    let mut next_line = tx.conn.prepare_cached(next_line)?;
    let mut next_level = tx.conn.prepare_cached(next_level)?;
    let pair = |row: &rusqlite::Row<'_>| Ok((place::raw(row, 0)?, place::raw(row, 1)?));
    let mut after = Column::Integer(i64::MIN);
    while let Some((line_no, first)) = next_line.query_row([&after], pair).optional()? {
        after = line_no;
        let known = as_integer(&after).and_then(|no| Some((no, names.line(no).ok()?)));
        let Some((no, line)) = known else {
            stray.push((after.clone(), None));
            continue;
        };
        let runs = usize::try_from(no).ok().and_then(|index| local.runs.get(index)).copied().unwrap_or(false);
        if !runs || !wanted.contains(&line.queue) {
            continue;
        }
        let levels = pairs.entry(line.queue_name.clone()).or_default();
        let mut code = Some(first);
        while let Some(found) = code {
            let number = as_integer(&found).and_then(|code| u8::try_from(code).ok());
            match number.and_then(Level::from_code) {
                Some(level) => which(levels.entry(level).or_default()).push(no),
                None => stray.push((Column::Integer(no), Some(found.clone()))),
            }
            code = next_level.query_row(params![no, found], pair).optional()?.map(|(_, level)| level);
        }
    }
    Ok(stray)
}

/// How much one queue is to give.
#[derive(Clone, Copy)]
struct QueueClaim {
    limit: usize,
    /// The first so many are for free slots.
    free: usize,
    /// Jobs whose nodes were lost.
    lost: usize,
    /// Jobs with limits.
    limited: usize,
}

/// Serves one queue: levels from low to high, up to its limit.
fn serve(
    tx: &mut Tx<'_>,
    takers: &mut Takers<'_>,
    levels: &BTreeMap<Level, Lines>,
    room: QueueClaim,
    suspects: &mut usize,
    jobs: &mut Vec<Claimed>,
) -> Result<()> {
    let first = jobs.len();
    let mut lost = room.lost;
    let mut limited = room.limited;
    for (level, lines) in levels {
        let taken = jobs.len() - first;
        let left = room.limit - taken;
        if left == 0 {
            break;
        }
        let wanted = match level.class() {
            Class::Suspect => left.min(*suspects),
            Class::Lost => left.min(lost),
            Class::Returned | Class::Fresh => left,
        };
        let free = if level.is_for_free_slots() { usize::MAX } else { room.free.saturating_sub(taken) };
        let before = jobs.len();
        if lines.limited.is_empty() {
            plain(tx, takers, &lines.plain, *level, (wanted, free), jobs)?;
        } else {
            mix(tx, takers, lines, *level, (wanted, free), &mut limited, jobs)?;
        }
        match level.class() {
            Class::Suspect => *suspects -= jobs.len() - before,
            Class::Lost => lost -= jobs.len() - before,
            Class::Returned | Class::Fresh => {}
        }
    }
    Ok(())
}

/// Takes limited and plain jobs of one level: half of each, if both have so many. Of an odd number, batches give one more by turns.
fn mix(
    tx: &mut Tx<'_>,
    takers: &mut Takers<'_>,
    lines: &Lines,
    level: Level,
    (wanted, free): (usize, usize),
    limited: &mut usize,
    jobs: &mut Vec<Claimed>,
) -> Result<()> {
    let before = jobs.len();
    let odd = usize::from(takers.batch % 2 == 0);
    let half = if lines.plain.is_empty() { wanted } else { usize::midpoint(wanted, odd) };
    for share in [half, wanted] {
        let taken = jobs.len() - before;
        let most = share.saturating_sub(taken).min(*limited);
        let wanted_now = limits::claim::Wanted { jobs: most, free: free.saturating_sub(taken) };
        limits::claim::take(tx, takers, &lines.limited, level, wanted_now, jobs)?;
        *limited -= jobs.len() - before - taken;
        let taken = jobs.len() - before;
        let left = (wanted - taken, free.saturating_sub(taken));
        plain(tx, takers, &lines.plain, level, left, jobs)?;
    }
    Ok(())
}

/// Takes plain jobs of one level.
fn plain(
    tx: &mut Tx<'_>,
    takers: &mut Takers<'_>,
    lines: &[i64],
    level: Level,
    (wanted, free): (usize, usize),
    jobs: &mut Vec<Claimed>,
) -> Result<()> {
    if wanted == 0 || lines.is_empty() {
        return Ok(());
    }
    if tx.state.limits.has_totals() {
        return counted(tx, takers, lines, level, (wanted, free), jobs);
    }
    uncounted(tx, takers, lines, level, (wanted, free), jobs)
}

/// Takes plain jobs of lines of which some count in totals: each gets its share first, and then what the others left.
fn counted(
    tx: &mut Tx<'_>,
    takers: &mut Takers<'_>,
    lines: &[i64],
    level: Level,
    (wanted, free): (usize, usize),
    jobs: &mut Vec<Claimed>,
) -> Result<()> {
    let before = jobs.len();
    let mut sources: Vec<(Vec<i64>, Vec<i64>)> = Vec::new();
    for no in lines {
        let totals: Vec<i64> = tx.state.limits.totals(tx.state.names.line(*no)?).collect();
        match sources.iter_mut().find(|(_, known)| totals.is_empty() && known.is_empty()) {
            Some((lines, _)) => lines.push(*no),
            None => sources.push((vec![*no], totals)),
        }
    }
    let count = sources.len();
    for round in 0..2 {
        for (at, (lines, totals)) in sources.iter().enumerate() {
            let taken = jobs.len() - before;
            let left = wanted - taken;
            let share = if round == 0 { left.div_ceil(count - at) } else { left };
            let free = free.saturating_sub(taken);
            if totals.is_empty() {
                if share > 0 {
                    uncounted(tx, takers, lines, level, (share, free), jobs)?;
                }
                continue;
            }
            let mut room = share;
            for key in totals {
                room = room.min(usize::try_from(counters::room_at(tx, *key, 1)?).unwrap_or(usize::MAX));
            }
            if room == 0 {
                continue;
            }
            let before = jobs.len();
            takers.take_all_of(tx, lines[0], level, (room, free), HOLD_FIRST_COUNTED, jobs)?;
            let taken = u32::try_from(jobs.len() - before).unwrap_or(u32::MAX);
            for key in totals {
                counters::take(tx, *key, taken)?;
            }
        }
    }
    Ok(())
}

/// Takes plain jobs of lines that count in no total.
fn uncounted(
    tx: &mut Tx<'_>,
    takers: &mut Takers<'_>,
    lines: &[i64],
    level: Level,
    (wanted, free): (usize, usize),
    jobs: &mut Vec<Claimed>,
) -> Result<()> {
    match lines {
        [line] => takers.take_all_of(tx, *line, level, (wanted, free), HOLD_FIRST, jobs),
        lines => merge(tx, takers, lines, level, (wanted, free), jobs),
    }
}

/// Takes from several lines of one level, earliest first; the first so many for free slots.
fn merge(
    tx: &mut Tx<'_>,
    takers: &mut Takers<'_>,
    lines: &[i64],
    level: Level,
    (wanted, free): (usize, usize),
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
        if let Some(claimed) = takers.take(tx, no, taken >= free)? {
            jobs.push(claimed);
            taken += 1;
        }
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

/// What moves jobs for one claim.
pub(crate) struct Takers<'a> {
    heads: CachedStatement<'a>,
    one: CachedStatement<'a>,
    hold_one: CachedStatement<'a>,
    take_one: CachedStatement<'a>,
    pub(super) node: i64,
    pub(super) batch: i64,
}

impl<'a> Takers<'a> {
    fn new(tx: &Tx<'a>, request: &ClaimRequest) -> Result<Self> {
        Ok(Takers {
            heads: tx.conn.prepare_cached(HEADS)?,
            one: tx.conn.prepare_cached(ONE)?,
            hold_one: tx.conn.prepare_cached(HOLD_ONE)?,
            take_one: tx.conn.prepare_cached(FROM_READY)?,
            node: request.node.0,
            batch: batch_no(request)?,
        })
    }

    /// Takes the first jobs of a line. Behind jobs that cannot be read there may be more of this level, and they come before the
    /// next one's.
    fn take_all_of(
        &mut self,
        tx: &mut Tx<'_>,
        line: i64,
        level: Level,
        (mut wanted, mut free): (usize, usize),
        hold: &str,
        jobs: &mut Vec<Claimed>,
    ) -> Result<()> {
        loop {
            let before = jobs.len();
            let met_unreadable = self.take_first(tx, line, level, (wanted, free), hold, jobs)?;
            let taken = jobs.len() - before;
            (wanted, free) = (wanted - taken, free.saturating_sub(taken));
            if wanted == 0 || !met_unreadable {
                return Ok(());
            }
        }
    }

    /// Moves the first jobs of a line: three statements, however many there are. The first so many are for free slots. Tells
    /// whether it met some that cannot be read, which leave the line, too.
    fn take_first(
        &mut self,
        tx: &mut Tx<'_>,
        line: i64,
        level: Level,
        (wanted, free): (usize, usize),
        hold: &str,
        jobs: &mut Vec<Claimed>,
    ) -> Result<bool> {
        let mut first = tx.conn.prepare_cached(FIRST)?;
        let mut rows = first.query(params![line, level.code(), as_i64(wanted)])?;
        let before = jobs.len();
        let mut unreadable = Vec::new();
        // Time and number of the last one for a free slot.
        let mut bound = if free == 0 { (i64::MIN, i64::MIN) } else { (i64::MAX, i64::MAX) };
        while let Some(row) = rows.next()? {
            let read = read_claimed(row, &tx.state.names, 1);
            match legible(read.and_then(|read| Ok((read, row.get(14)?))))? {
                Ok(((mut claimed, flags), ready_at)) => {
                    started(tx, claimed.claim.row.0, flags)?;
                    let position = jobs.len() - before + 1;
                    claimed.ahead = position > free;
                    if position == free {
                        bound = (ready_at, claimed.claim.row.0);
                    }
                    jobs.push(claimed);
                }
                Err(why) => unreadable.push((row.get(0)?, why)),
            }
        }
        drop(rows);
        // Those that are left are the first ones then.
        let met_unreadable = !unreadable.is_empty();
        for (no, why) in unreadable {
            claim_unreadable(tx, no, &why)?;
        }
        let count = jobs.len() - before;
        let (bound_at, bound_no) = bound;
        let values = params![
            self.node,
            self.batch,
            tx.micros(),
            line,
            level.code(),
            as_i64(count),
            bound_at,
            bound_no
        ];
        let held = tx.conn.prepare_cached(hold)?.execute(values)?;
        let take = params![line, level.code(), as_i64(count)];
        let taken = tx.conn.prepare_cached(TAKE_FIRST)?.execute(take)?;
        // Not an error to return: the transaction must not commit.
        assert!(held == count && taken == count, "a claim moves what it read: {count}, {held}, {taken}");
        Ok(met_unreadable)
    }

    fn heads(&mut self, line: i64, level: Level, limit: usize) -> Result<VecDeque<(i64, i64)>> {
        let values = params![line, level.code(), as_i64(limit)];
        let rows = self.heads.query_map(values, |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// Moves one job; `None` if it cannot be read and was set aside.
    fn take(&mut self, tx: &mut Tx<'_>, no: i64, ahead: bool) -> Result<Option<Claimed>> {
        let mut rows = self.one.query([no])?;
        let row = rows.next()?.ok_or_else(|| corrupt(format!("job number {no} is missing")))?;
        let read = legible(read_claimed(row, &tx.state.names, 1))?;
        drop(rows);
        let (mut claimed, flags) = match read {
            Ok(claimed) => claimed,
            Err(why) => return claim_unreadable(tx, no, &why).map(|()| None),
        };
        claimed.ahead = ahead;
        self.hold_one.execute(params![self.node, self.batch, tx.micros(), no, ahead])?;
        self.take_one.execute([no])?;
        started(tx, no, flags)?;
        Ok(Some(claimed))
    }
}

/// A job of a group with its number: as a node gets it with its flags, or why it cannot be read.
type Read = (i64, Result<(Claimed, i16), String>);

/// Reads the first jobs of a group and level.
pub(super) fn first_limited(
    tx: &Tx<'_>,
    (line, group, level): (i64, i64, u8),
    limit: usize,
) -> Result<Vec<Read>> {
    let mut statement = tx.conn.prepare_cached(FIRST_LIMITED)?;
    let mut rows = statement.query(params![line, group, level, as_i64(limit)])?;
    let mut jobs = Vec::new();
    while let Some(row) = rows.next()? {
        jobs.push((row.get(0)?, legible(read_claimed(row, &tx.state.names, 1))?));
    }
    Ok(jobs)
}

/// Sets a job aside that is ready and cannot be read: claimed and suspended in one step.
pub(super) fn claim_unreadable(tx: &mut Tx<'_>, no: i64, why: &str) -> Result<()> {
    let (mut card, found) = place::locate(tx, no)?;
    moves::leave(tx, &card, &found)?;
    started(tx, no, card.flags)?;
    card.claim += 1;
    moves::set_aside(tx, &card, why)
}

/// Releases a key that is held until the first claim.
pub(super) fn started(tx: &Tx<'_>, no: i64, flags: i16) -> Result<()> {
    if flags & flags::KEY_UNTIL_STARTED != 0 {
        unique_key::release(tx.conn, no, tx.micros())?;
    }
    Ok(())
}

/// What a node gets of a job, and its flags. `growth`: by how much the claim number is to grow, which SQLite would do with
/// anything.
fn read_claimed(row: &rusqlite::Row<'_>, names: &Names, growth: u32) -> Result<(Claimed, i16)> {
    let line = names.line(row.get(1)?)?;
    let text = row.get_ref(11)?.as_str_or_null().map_err(rusqlite::Error::from)?;
    let mut options = read_options(text.map(str::as_bytes))?;
    if options.backoff.is_none() {
        options.backoff = names.queue(line.queue)?.settings.backoff;
    }
    let flags: i16 = row.get(7)?;
    let deadline: Option<i64> = row.get(10)?;
    let number = row.get::<_, u32>(3)?.checked_add(growth);
    let number = number.ok_or_else(|| corrupt("a claim number beyond its bound"))?;
    let claimed = Claimed {
        ahead: flags & flags::AHEAD != 0,
        // To be filled in once the job is claimed.
        journal: (flags & flags::JOURNAL != 0).then(Box::default),
        claim: Claim { id: JobId::from_bytes(row.get(8)?), row: Row(row.get(0)?), number },
        kind: line.kind_name.clone(),
        queue: line.queue_name.clone(),
        priority: Priority::new(row.get(2)?).unwrap_or_default(),
        input: match row.get_ref(13)?.as_bytes_or_null().map_err(rusqlite::Error::from)? {
            Some(input) => Value::Here(input.to_vec()),
            None => Value::There(usize::try_from(row.get::<_, i64>(12)?).unwrap_or(0)),
        },
        failures: row.get(4)?,
        crashes: row.get(5)?,
        crashed_micros: row.get(6)?,
        created_at: Timestamp::from_micros(row.get(9)?),
        // A job that an operator ran again has no deadline any more.
        deadline: deadline.filter(|_| flags & flags::DEADLINE != 0).map(Timestamp::from_micros),
        options,
    };
    Ok((claimed, flags))
}

fn as_integer(value: &Column) -> Option<i64> {
    if let Column::Integer(number) = value { Some(*number) } else { None }
}

fn batch_no(request: &ClaimRequest) -> Result<i64> {
    i64::try_from(request.batch.0).map_err(|_| corrupt("a batch number beyond its bound"))
}
