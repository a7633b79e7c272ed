//! Finish: how a claim ends, and what it says before.
//!
//! # Invariants
//! - A job leaves `lease` only with the right claim number and node: the delete is the fence.
//! - A claim that was asked to cancel never goes back to waiting.

use std::collections::BTreeSet;

use mainspring_core::id::{Claim, ClaimBatchNo, NodeNo};
use mainspring_core::job::{Fault, Input, Outcome, Progress, Reason, State, Status, transition};
use mainspring_core::journal::Suspension;
use mainspring_core::planted::{self, Defect};
use mainspring_core::store::{Finish, Finished, flags};
use mainspring_core::time::{Timestamp, micros};
use mainspring_core::{bounds, named};
use rusqlite::{OptionalExtension, params};

use super::moves::{self, Ending, SuspendedRow};
use super::place::{self, Card, leased, read_leased};
use super::{as_i64, family, inbox, journal, unique_key};
use crate::error::{Result, corrupt};
use crate::writer::Tx;

/// Primary key. Claim number and node are the fence; the delete that follows in the same transaction meets the same
/// row. (`DELETE … RETURNING` would be one statement, but SQLite makes a temporary table for each.)
pub(crate) const HELD_ONE: &str = leased!("no = ?1 AND claim = ?2 AND node = ?3");
/// Primary key.
const CANCEL: &str = "SELECT cancel, flags FROM mainspring_lease WHERE no = ?1";
/// Primary key: who has a job, for a defect that does not ask.
const HOLDER: &str = "SELECT claim, node FROM mainspring_lease WHERE no = ?1";
/// Primary key, a range: how much of a stretch is held under this claim number by this node, without flags (but for
/// `ahead`, which ends with the claim), and of which lines. What is found to be whole is then moved as a whole, in the same transaction.
pub(crate) const HELD_ALL: &str = named!(
    "SELECT count(*), min(line), max(line) FROM mainspring_lease
    WHERE no BETWEEN ?1 AND ?2 AND claim = ?3 AND node = ?4 AND flags & ~{flag.ahead} = 0"
);
/// Below this, three statements for all are no cheaper than three for each.
const STRETCH_MIN: usize = 3;
/// Index `done_no`, then primary key of `jobs`: whether a job ended like this under this claim.
pub(crate) const ENDED: &str =
    "SELECT EXISTS (SELECT 1 FROM mainspring_done d JOIN mainspring_jobs j ON j.no = d.no
    WHERE d.no = ?1 AND d.claim = ?2 AND d.state = ?3 AND d.reason IS ?4 AND j.id = ?5)";
/// Primary keys of `errors` and `jobs`.
const FAILED: &str = named!(
    "SELECT EXISTS (SELECT 1 FROM mainspring_errors e JOIN mainspring_jobs j ON j.no = e.no
    WHERE e.no = ?1 AND e.claim = ?2 AND e.kind <> {fault.crashed} AND j.id = ?3)"
);
/// Primary key. A claim fails or crashes once.
const INTO_ERRORS: &str = "INSERT INTO mainspring_errors (no, claim, claimed_at, node, at, kind, message)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (no, claim) DO NOTHING";
/// Primary key, from its end: the errors of one job.
const TRIM_ERRORS: &str = "DELETE FROM mainspring_errors WHERE no = ?1 AND claim <= (
    SELECT claim FROM mainspring_errors WHERE no = ?1 ORDER BY claim DESC LIMIT 1 OFFSET ?2)";
/// A scan of `lease`, whose size is bounded by the slots of all nodes; once per renewal.
const HELD: &str = leased!("node = ?1 AND batch <= ?2 ORDER BY no");
/// Primary keys; a stale claim meets no row of `lease`.
const PROGRESS: &str = "INSERT INTO mainspring_progress (no, claim, done, total, note)
    SELECT no, claim, ?4, ?5, ?6 FROM mainspring_lease WHERE no = ?1 AND claim = ?2 AND node = ?3
    ON CONFLICT (no) DO UPDATE SET claim = excluded.claim, done = excluded.done, total = excluded.total,
        note = excluded.note";

/// Ends claims.
///
/// Most batches are long stretches of plain successes, claimed together and so numbered one after the other: those move
/// as a whole. All else moves one by one; jobs whose end reaches others, which may be in the same batch, in the order in
/// which they were given.
pub(crate) fn run(tx: &mut Tx<'_>, node: NodeNo, finishes: &[Finish]) -> Result<Vec<Finished>> {
    for finish in finishes {
        finish.outcome.check()?;
    }
    let mut order: Vec<usize> = (0..finishes.len()).collect();
    order.sort_by_key(|&at| finishes[at].claim.row);
    let mut answers = vec![Finished::LeaseLost; finishes.len()];
    // Jobs of one line come in runs: counted once per run.
    let mut run = LineCounts::default();
    let mut rest = order.as_slice();
    let mut families = Vec::new();
    while !rest.is_empty() {
        let (stretch, after) = rest.split_at(stretch(finishes, rest));
        rest = after;
        if stretch.len() >= STRETCH_MIN && end_all(tx, node, finishes, stretch, &mut run)? {
            for &at in stretch {
                answers[at] = Finished::Applied;
            }
        } else {
            for &at in stretch {
                match end_one(tx, node, &finishes[at], &mut run, flags::TOLD)? {
                    Some(answer) => answers[at] = answer,
                    None => families.push(at),
                }
            }
        }
    }
    families.sort_unstable();
    for at in families {
        answers[at] = end_one(tx, node, &finishes[at], &mut run, 0)?.unwrap_or(Finished::LeaseLost);
    }
    run.settle(tx);
    Ok(answers)
}

/// How many finishes from the first on are plain successes under one claim number, with numbers that follow each other;
/// one at least.
fn stretch(finishes: &[Finish], order: &[usize]) -> usize {
    let plain = |at: usize| matches!(finishes[at].outcome, Outcome::Succeed { result: None });
    let follows = |pair: &&[usize]| {
        let (one, next) = (&finishes[pair[0]].claim, &finishes[pair[1]].claim);
        plain(pair[1]) && next.row.0 == one.row.0 + 1 && next.number == one.number
    };
    1 + if plain(order[0]) { order.windows(2).take_while(follows).count() } else { 0 }
}

/// Ends a stretch as a whole. `false`, and nothing is changed, if not all of it is this node's, plain and of one line.
fn end_all(
    tx: &mut Tx<'_>,
    node: NodeNo,
    finishes: &[Finish],
    stretch: &[usize],
    run: &mut LineCounts,
) -> Result<bool> {
    let (first, last) = (&finishes[stretch[0]].claim, &finishes[stretch[stretch.len() - 1]].claim);
    let (from, to) = (first.row.0, last.row.0);
    let count = i64::try_from(stretch.len()).unwrap_or(i64::MAX);
    let (held, low, high): (i64, Option<i64>, Option<i64>) =
        tx.conn.prepare_cached(HELD_ALL)?.query_row(params![from, to, first.number, node.0], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?;
    let Some(line) = low.filter(|_| held == count && low == high) else { return Ok(false) };
    moves::end_plain(tx, from, to)?;
    run.of(tx, line).succeeded += count;
    Ok(true)
}

/// Ends one claim. `None`, and nothing is changed, if the job has one of the flags that are to wait.
fn end_one(
    tx: &mut Tx<'_>,
    node: NodeNo,
    finish: &Finish,
    run: &mut LineCounts,
    later: i16,
) -> Result<Option<Finished>> {
    let Finish { claim, outcome } = finish;
    let (number, holder) = if planted::is(Defect::ClaimIgnored) {
        // Whoever holds it now.
        let held = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
        tx.conn.query_row(HOLDER, [claim.row.0], held).optional()?.unwrap_or((claim.number, node.0))
    } else {
        (claim.number, node.0)
    };
    let values = params![claim.row.0, number, holder];
    let found = tx.conn.prepare_cached(HELD_ONE)?.query_row(values, read_leased).optional()?;
    let Some((card, cancel)) = found else {
        let applied = was_applied(tx, claim, outcome)?;
        return Ok(Some(if applied { Finished::Applied } else { Finished::LeaseLost }));
    };
    let mut card = place::mend(tx, card)?;
    if card.flags & later != 0 {
        return Ok(None);
    }
    let keeps = matches!(outcome, Outcome::Suspend(suspension) if suspension.keep) && cancel.is_none();
    moves::leave_lease(tx, &mut card, keeps)?;
    let run = run.of(tx, card.line);
    if let Outcome::Succeed { result } = outcome {
        run.succeeded += 1;
        card.crashes = 0;
        let ending = Ending { status: Status::plain(State::Succeeded), note: "", result: result.as_deref() };
        moves::append(tx, &card, ending)?;
        if card.flags & flags::TOLD != 0 {
            family::close(tx, &card, ending)?;
        }
    } else {
        run.other += 1;
        end(tx, card, outcome, cancel.as_deref())?;
    }
    Ok(Some(Finished::Applied))
}

/// Counts of a run of one line.
#[derive(Default)]
struct LineCounts {
    line: i64,
    succeeded: i64,
    other: i64,
}

impl LineCounts {
    /// The run of a line; that of another line is counted first.
    fn of(&mut self, tx: &mut Tx<'_>, line: i64) -> &mut LineCounts {
        if self.line != line {
            self.settle(tx);
            self.line = line;
        }
        self
    }

    fn settle(&mut self, tx: &mut Tx<'_>) {
        let LineCounts { line, succeeded, other } = std::mem::take(self);
        if succeeded + other > 0 {
            moves::count(tx, line, State::Running, -(succeeded + other));
            moves::count(tx, line, State::Succeeded, succeeded);
        }
    }
}

/// What all outcomes but success do with a card that was taken out of `lease` and is already counted out of it.
fn end(tx: &mut Tx<'_>, mut card: Card, outcome: &Outcome, cancel: Option<&str>) -> Result<()> {
    match outcome {
        Outcome::Succeed { .. } | Outcome::Cancel { .. } | Outcome::Release => {}
        Outcome::Retry { .. } | Outcome::Fail { .. } | Outcome::Snooze { .. } | Outcome::Suspend(_) => {
            (card.crashes, card.crashed) = (0, 0);
        }
    }
    if let Outcome::Retry { fault, .. } | Outcome::Fail { fault, .. } = outcome {
        fail(tx, &mut card, fault)?;
    }
    if planted::is(Defect::KeyDropped) && matches!(outcome, Outcome::Retry { .. }) {
        unique_key::forget(tx.conn, card.no)?;
    }
    if let Outcome::Suspend(suspension) = outcome {
        let claim = u32::try_from(card.claim).map_err(|_| corrupt("a claim number beyond its bound"))?;
        journal::Writer::new(tx)?.write(tx, card.no, claim, &suspension.writes)?;
        card.flags |= flags::JOURNAL;
    }
    let cancel = cancel.filter(|_| !planted::is(Defect::CancelLost));
    let status = transition(Status::plain(State::Running), outcome.input())
        .map_err(|illegal| corrupt(illegal.to_string()))?;
    let ending = Ending { status, note: "", result: None };
    match (outcome, cancel) {
        (Outcome::Fail { .. }, _) => moves::end(tx, &card, ending),
        (Outcome::Cancel { why, .. }, _) => moves::end(tx, &card, Ending { note: why, ..ending }),
        (Outcome::Succeed { result }, _) => {
            moves::end(tx, &card, Ending { result: result.as_deref(), ..ending })
        }
        (_, Some(why)) => stop(tx, &card, why),
        (Outcome::Retry { after, .. } | Outcome::Snooze { after }, None) => {
            let due = tx.micros().saturating_add(micros(*after));
            moves::enter_timers(tx, &card, due)
        }
        (Outcome::Suspend(suspension), None) => suspend(tx, &card, suspension),
        (Outcome::Release, None) => moves::enter_ready(tx, &card, moves::returned(&card)),
    }
}

/// Sets a job aside, or lets it go on at once if what it waits for is there. Its messages were looked for in the
/// transaction that would set it aside, so none comes in between.
fn suspend(tx: &mut Tx<'_>, card: &Card, suspension: &Suspension) -> Result<()> {
    // What it keeps was kept when its claim ended.
    let Suspension { reason, waits, until, note, keep: _, writes: _ } = suspension;
    let over = until.is_some_and(|until| until <= tx.now) || inbox::answers(tx, card.no, waits)?;
    if over && reason.awaits() {
        return moves::enter_ready(tx, card, moves::returned(card));
    }
    let due = until.map(Timestamp::as_micros);
    moves::enter_suspended(tx, card, &SuspendedRow { reason: *reason, due, waits, note: note.as_deref() })
}

/// Ends a claim that was asked to cancel.
pub(crate) fn stop(tx: &mut Tx<'_>, card: &Card, why: &str) -> Result<()> {
    let status = transition(Status::plain(State::Running), Input::Stop(flags::canceller(card.flags)))
        .map_err(|illegal| corrupt(illegal.to_string()))?;
    moves::end(tx, card, Ending { status, note: why, result: None })
}

/// Releases a claim that is still in `lease`, counting nothing.
pub(crate) fn give_back(tx: &mut Tx<'_>, card: &Card, cancel: Option<String>) -> Result<()> {
    let mut card = card.clone();
    let cancel = cancel_now(tx, &mut card, cancel)?;
    moves::leave_lease(tx, &mut card, false)?;
    moves::count(tx, card.line, State::Running, -1);
    end(tx, card, &Outcome::Release, cancel.as_deref())
}

/// Why a claim is to be cancelled. One that was read without a reason may have got one since in the same transaction, if
/// its parent was among those that ended.
pub(crate) fn cancel_now(tx: &Tx<'_>, card: &mut Card, cancel: Option<String>) -> Result<Option<String>> {
    if cancel.is_some() || card.flags & flags::PARENT == 0 {
        return Ok(cancel);
    }
    let now = tx.conn.prepare_cached(CANCEL)?.query_row([card.no], |row| Ok((row.get(0)?, row.get(1)?)));
    let (cancel, flags) = now.optional()?.unwrap_or((None, card.flags));
    card.flags = flags;
    Ok(cancel)
}

/// Counts a failure and keeps its error.
fn fail(tx: &Tx<'_>, card: &mut Card, fault: &Fault) -> Result<()> {
    card.failures = (card.failures + 1).min(i64::from(u16::MAX));
    note(tx, card, fault)
}

/// Keeps what went wrong under a claim, and not more than the bound.
pub(crate) fn note(tx: &Tx<'_>, card: &Card, fault: &Fault) -> Result<()> {
    let Some(began) = card.began else { return Ok(()) };
    let now = tx.micros();
    let at = began.at.unwrap_or(now);
    let values = params![card.no, card.claim, at, began.node, now, fault.kind.code(), fault.message];
    tx.conn.prepare_cached(INTO_ERRORS)?.execute(values)?;
    tx.conn.prepare_cached(TRIM_ERRORS)?.execute([card.no, as_i64(bounds::ERRORS_KEPT)])?;
    Ok(())
}

/// Whether this very outcome was applied before, as far as it left a trace.
fn was_applied(tx: &Tx<'_>, claim: &Claim, outcome: &Outcome) -> Result<bool> {
    let (no, number, id) = (claim.row.0, claim.number, claim.id.as_bytes());
    Ok(match outcome {
        Outcome::Succeed { .. } | Outcome::Fail { .. } | Outcome::Cancel { .. } => {
            let Ok(to) = transition(Status::plain(State::Running), outcome.input()) else { return Ok(false) };
            let values = params![no, number, to.state.code(), to.reason.map(Reason::code), id];
            tx.conn.prepare_cached(ENDED)?.query_row(values, |row| row.get(0))?
        }
        Outcome::Retry { .. } => {
            tx.conn.prepare_cached(FAILED)?.query_row(params![no, number, id], |row| row.get(0))?
        }
        Outcome::Snooze { .. } | Outcome::Release | Outcome::Suspend(_) => false,
    })
}

/// Releases claims of a node that it does not know of.
pub(crate) fn disown(tx: &mut Tx<'_>, node: NodeNo, settled: ClaimBatchNo, keep: &[Claim]) -> Result<usize> {
    let settled = i64::try_from(settled.0).unwrap_or(i64::MAX);
    let held = tx
        .conn
        .prepare_cached(HELD)?
        .query_map([node.0, settled], read_leased)?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    let keep: BTreeSet<(i64, i64)> =
        keep.iter().map(|claim| (claim.row.0, i64::from(claim.number))).collect();
    let mut released = 0;
    for (card, cancel) in held.into_iter().filter(|(card, _)| !keep.contains(&(card.no, card.claim))) {
        let card = place::mend(tx, card)?;
        give_back(tx, &card, cancel)?;
        released += 1;
    }
    Ok(released)
}

/// Keeps what handlers say of their progress.
pub(crate) fn progress(tx: &Tx<'_>, node: NodeNo, progress: &[(Claim, Progress)]) -> Result<()> {
    let mut statement = tx.conn.prepare_cached(PROGRESS)?;
    // SQLite's integers are signed; nobody counts that far.
    let count = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    for (claim, it) in progress {
        let values = params![claim.row.0, claim.number, node.0, count(it.done), count(it.total), it.note];
        statement.execute(values)?;
    }
    Ok(())
}
