//! Families: what the end of a job does to its parent and its children.
//!
//! Whoever ends a job that has a parent or children leaves a row in `ends`, in the same commit, and tells the family right
//! after it: the parent gets a message, children that wait are cancelled, children that run are flagged. What a crash left
//! untold is told by the next sweep. Operators and handlers take waiting children with them in the same commit already, but
//! for those that somebody else is moving. So an end waits for no lock but its own, and plain jobs pay for none of this.
//!
//! # Invariants
//! - An end is told at least once, and nothing is told twice: a message is known by its subject, a cancellation by its place.
//! - A job whose end is not told yet is neither pruned nor deleted nor run again: all that is told of it is still there.
//! - A parent is looked at under the lock of its mailbox, in a statement that begins after that was granted.

use std::collections::BTreeMap;

use mainspring_core::fault;
use mainspring_core::id::{JobId, NodeNo};
use mainspring_core::job::{Reason, State};
use mainspring_core::store::flags;
use tokio_postgres::Row;
use uuid::Uuid;

use super::change::{EndWaiting, Ended, Flag, Flagged};
use super::mailbox::wake;
use super::now;
use super::places::lock_waiting;
use super::signal::{Woken, announce};
use crate::connection::Conn;
use crate::error::{Result, corrupt};
use crate::hint::Hints;
use crate::shared::Shared;
use crate::sql::statement::FromRow;
use crate::sql::{Call, Present, Query, statement};

statement! {
    /// Primary key of `children`; then advisory locks on the mailboxes of the parents, in order of their numbers.
    pub(crate) LockParents<'a> = "family.lock_parents", by ["children_pkey"], (mailbox: i64, nos: Vec<i64>);
    "SELECT count(pg_advisory_xact_lock($1 # x.no)) FROM (
    SELECT DISTINCT c.no FROM unnest($2::bigint[]) AS u(no)
    CROSS JOIN LATERAL (SELECT parent AS no FROM mainspring.children WHERE no = u.no OFFSET 0) c ORDER BY c.no) x"
}
statement! {
    /// Primary keys: messages to parents that are still known. The primary key of `inbox` tells of a repeat. Returns the ids of
    /// parents that run.
    pub(crate) Post<'a> = "family.post", by ["ends_pkey", "children_pkey", "jobs_pkey", "done_pkey", "lease_pkey"],
    (nos: Vec<i64>) -> Running { id: Uuid };
    "WITH i AS (INSERT INTO mainspring.inbox (no, at, state, reason, subject, sender, note, body)
        SELECT c.parent, d.finished_at, d.state, d.reason, 'c:' || j.id, '',
            CASE WHEN d.state <> {state.succeeded} THEN coalesce(d.note, (SELECT x.message FROM mainspring.errors x
                WHERE x.no = u.no AND x.kind <> {fault.crashed} ORDER BY x.claim DESC LIMIT 1)) END, d.result
        FROM unnest($1::bigint[]) AS u(no)
        CROSS JOIN LATERAL (SELECT 1 FROM mainspring.ends WHERE no = u.no OFFSET 0) e
        CROSS JOIN LATERAL (SELECT parent FROM mainspring.children WHERE no = u.no OFFSET 0) c
        CROSS JOIN LATERAL (SELECT id FROM mainspring.jobs WHERE no = u.no OFFSET 0) j
        CROSS JOIN LATERAL (SELECT * FROM mainspring.done WHERE no = u.no OFFSET 0) d
        WHERE EXISTS (SELECT 1 FROM mainspring.jobs x WHERE x.no = c.parent)
        ON CONFLICT (no, subject, sender) DO NOTHING RETURNING no)
    SELECT j.id FROM (SELECT DISTINCT no FROM i) i
    CROSS JOIN LATERAL (SELECT 1 FROM mainspring.lease WHERE no = i.no OFFSET 0) l
    CROSS JOIN LATERAL (SELECT id FROM mainspring.jobs WHERE no = i.no OFFSET 0) j"
}
statement! {
    pub(crate) Wake<'a> = "family.wake", by ["children_pkey", "jobs_pkey", "suspended_pkey", "inbox_pkey"],
    (at: Present, nos: Vec<i64>) -> Woken;
    wake!(
    "SELECT c.parent AS no, 'c:' || j.id AS subject FROM unnest($2::bigint[]) AS u(no)
    CROSS JOIN LATERAL (SELECT parent FROM mainspring.children WHERE no = u.no OFFSET 0) c
    CROSS JOIN LATERAL (SELECT id FROM mainspring.jobs WHERE no = u.no OFFSET 0) j"
)
}
statement! {
    /// Index `children_parent`, primary key of `done`: children that are to be cancelled and have not ended.
    pub(crate) Open<'a> = "family.open", by ["children_parent", "done_pkey"], (nos: Vec<i64>) -> Child { no: i64 };
    "SELECT c.no FROM unnest($1::bigint[]) AS u(no)
    CROSS JOIN LATERAL (SELECT c.no FROM mainspring.children c WHERE c.parent = u.no AND c.on_close = {on_close.cancel}
        AND NOT EXISTS (SELECT 1 FROM mainspring.done d WHERE d.no = c.no)) c
    ORDER BY c.no"
}
statement! {
    /// Primary keys of the places: those of these that nobody else is about to move. Whoever has already locked others must not
    /// wait for them; they are met again when the end is told.
    pub(crate) Free<'a> = "family.free", by ["ready_pkey", "limited_pkey", "timers_pkey", "suspended_pkey"], (nos: Vec<i64>) -> Child;
    concat!(
    "WITH x AS MATERIALIZED (SELECT DISTINCT u.no FROM unnest($1::bigint[]) AS u(no) ORDER BY u.no)",
    lock_waiting!("FOR UPDATE SKIP LOCKED"),
    " SELECT no FROM in_ready UNION ALL SELECT no FROM in_limited UNION ALL SELECT no FROM in_timers UNION ALL SELECT no FROM in_suspended"
)
}
statement! {
    /// Primary key of `ends`; index `children_parent` and primary keys: all has been told once no child is left that neither
    /// has ended nor is flagged. One that was moved from place to place meanwhile is met the next time.
    pub(crate) ForgetEnds<'a> = "family.forget_ends", by ["ends_pkey", "children_parent", "done_pkey", "lease_pkey"],
    (nos: Vec<i64>);
    "DELETE FROM mainspring.ends e WHERE e.no = ANY($1::bigint[])
    AND NOT (e.flags & {flag.children} <> 0 AND EXISTS (
        SELECT 1 FROM mainspring.children c WHERE c.parent = e.no AND c.on_close = {on_close.cancel}
        AND NOT EXISTS (SELECT 1 FROM mainspring.done d WHERE d.no = c.no)
        AND NOT EXISTS (SELECT 1 FROM mainspring.lease l WHERE l.no = c.no AND l.cancel IS NOT NULL)))"
}
statement! {
    /// Primary key of `ends`: what is left of these. Others may have told the rest.
    pub(crate) Rest<'a> = "family.rest", by ["ends_pkey"], (nos: Vec<i64>) -> End { no: i64, flags: i16 };
    "SELECT e.no, e.flags FROM mainspring.ends e WHERE e.no = ANY($1::bigint[]) ORDER BY e.no"
}
statement! {
    /// Primary key of `ends`, from its beginning: what has not been told for a while.
    pub(crate) Overdue<'a> = "family.overdue", by ["ends_pkey"], (at: Present, patience: i64) -> End;
    concat!(
    "WITH ",
    now!(),
    "SELECT e.no, e.flags FROM t, mainspring.ends e WHERE e.at <= t.now - $2 * interval '1 us' ORDER BY e.no LIMIT 1000"
)
}

/// Whoever ended a job tells of it at once; after so many microseconds somebody else does.
pub(crate) const PATIENCE: i64 = 1_000_000;
/// Rounds of one telling: generations of a family, and children that were moved meanwhile.
const ROUNDS: usize = 64;
/// Why a running child is to stop.
const PARENT_ENDED: &str = "its parent ended";

/// A job of a family that has ended: its number and its flags.
pub(crate) type UnsentEnd = (i64, i16);

/// Tells families of ends that are committed. A failure is not worth a word: the next sweep makes up for it.
pub(crate) async fn notify(conn: &mut Conn, shared: &Shared, unsent: Vec<UnsentEnd>) {
    if unsent.is_empty() {
        return;
    }
    fault::point!("postgres.telling");
    if let Err(fault) = deliver(conn, shared, unsent).await {
        conn.roll_back().await;
        tracing::debug!(?fault, "cannot notify a family of an end; a sweep will");
    }
}

/// Tells what others have left.
pub(crate) async fn notify_overdue(conn: &mut Conn, shared: &Shared, patience: i64) -> Result<()> {
    let at = shared.at();
    let overdue = Overdue { at: &at, patience: &patience }.call();
    let overdue = Overdue::rows(&conn.send(&overdue).await?)?;
    deliver(conn, shared, overdue.into_iter().map(|end| (end.no, end.flags)).collect()).await
}

async fn deliver(conn: &mut Conn, shared: &Shared, unsent: Vec<UnsentEnd>) -> Result<()> {
    let mut unsent: BTreeMap<i64, i16> = unsent.into_iter().collect();
    for _ in 0..ROUNDS {
        if unsent.is_empty() {
            break;
        }
        let nos: Vec<i64> = unsent.keys().copied().collect();
        let parents: Vec<i64> =
            unsent.iter().filter(|(_, flags)| **flags & flags::CHILDREN != 0).map(|(no, _)| *no).collect();
        if unsent.values().any(|flags| flags & flags::PARENT != 0) {
            notify_parents(conn, shared, &nos, parents.is_empty()).await?;
        }
        if parents.is_empty() {
            break;
        }
        // What was told is gone from here. Parents are told once.
        unsent = close(conn, shared, &parents, &nos).await?;
    }
    Ok(())
}

/// Messages to parents; and if that is all that there is to tell, it is told.
async fn notify_parents(conn: &mut Conn, shared: &Shared, nos: &Vec<i64>, all: bool) -> Result<()> {
    let (at, mailbox) = (shared.at(), shared.mailbox());
    let mut calls = vec![
        LockParents { mailbox: &mailbox, nos }.call(),
        Post { nos }.call(),
        Wake { at: &at, nos }.call(),
    ];
    if all {
        calls.push(ForgetEnds { nos }.call());
    }
    let rows = conn.commit(shared, &calls).await?;
    let [_, running, woken, ..] = rows.as_slice() else { return Err(corrupt("an end without an answer")) };
    announce(conn, shared, hints(&Post::rows(running)?), &Wake::rows(woken)?).await;
    Ok(())
}

fn hints(running: &[Running]) -> Hints {
    let mut hints = Hints::default();
    for parent in running {
        hints.message(JobId::from_bytes(*parent.id.as_bytes()));
    }
    hints
}

/// Cancels children that wait and flags those that run. What is still to be told: their own children, and what was moved.
async fn close(
    conn: &mut Conn,
    shared: &Shared,
    parents: &Vec<i64>,
    nos: &Vec<i64>,
) -> Result<BTreeMap<i64, i16>> {
    let at = shared.at();
    let begun = conn.begin(shared, "", &[Open { nos: parents }.call()]).await?;
    let children = children_of(&begun)?;
    let cancel = Cancel::new(&at, &children);
    let mut calls = Vec::new();
    if !children.is_empty() {
        calls.extend(cancel.calls());
    }
    calls.push(ForgetEnds { nos }.call());
    calls.push(Rest { nos }.call());
    let rows = conn.end(&calls).await?;
    let rest = Rest::rows(rows.last().map_or(&[], Vec::as_slice))?;
    let mut unsent: BTreeMap<i64, i16> =
        rest.into_iter().map(|end| (end.no, end.flags & flags::CHILDREN)).collect();
    if let [flagged, ended, ..] = rows.as_slice()
        && !children.is_empty()
    {
        shared.moved();
        unsent.extend(families(conn, &EndWaiting::rows(ended)?));
        let mut hints = Hints::default();
        for claim in Flag::rows(flagged)? {
            hints.cancel(NodeNo(claim.node.into()));
        }
        hints.send(conn, shared).await;
    }
    Ok(unsent)
}

/// The numbers of children that statements have found.
fn children_of(answers: &[Vec<Row>]) -> Result<Vec<i64>> {
    let children = answers.iter().flatten().map(|row| Ok(Child::read(row)?.no));
    children.collect()
}

/// Those of ended jobs whose families are to be told.
pub(crate) fn families(conn: &mut Conn, ended: &[Ended]) -> impl Iterator<Item = UnsentEnd> {
    for job in ended {
        conn.note_ended(job.flags);
    }
    ended.iter().map(|job| (job.no, job.flags & flags::TOLD)).filter(|(_, flags)| *flags != 0)
}

/// The numbers of those that have children.
fn parents_among(ended: &[UnsentEnd]) -> Vec<i64> {
    ended.iter().filter(|(_, flags)| flags & flags::CHILDREN != 0).map(|(no, _)| *no).collect()
}

/// Children that are cancelled because their parent has ended, as arguments.
struct Cancel<'a> {
    at: &'a Present,
    children: &'a Vec<i64>,
    state: i16,
    reason: i16,
}

impl<'a> Cancel<'a> {
    fn new(at: &'a Present, children: &'a Vec<i64>) -> Self {
        let (state, reason) = (State::Cancelled.code().into(), Reason::Parent.code().into());
        Cancel { at, children, state, reason }
    }

    /// Flags what runs and ends what waits: leases before places.
    fn calls(&self) -> [Call<'_>; 2] {
        [flag(self.at, self.children), self.end()]
    }

    fn end(&self) -> Call<'_> {
        let Cancel { at, children, state, reason } = self;
        EndWaiting { at, nos: children, state, reason, why: &"" }.call()
    }
}

fn flag<'a>(at: &'a Present, children: &'a Vec<i64>) -> Call<'a> {
    Flag { at, nos: children, why: &PARENT_ENDED, orphan: &flags::ORPHAN }.call()
}

/// Cancels children that wait, and theirs, in the transaction that is open and has ended these jobs.
pub(crate) async fn cancel_waiting(
    conn: &mut Conn,
    at: &Present,
    ended: &[UnsentEnd],
) -> Result<Vec<UnsentEnd>> {
    let mut unsent: Vec<UnsentEnd> = Vec::new();
    let mut parents = parents_among(ended);
    for _ in 0..ROUNDS {
        if parents.is_empty() {
            break;
        }
        let children = children_of(&conn.step(&[Open { nos: &parents }.call()]).await?)?;
        let ended = cancel_these(conn, at, &children).await?;
        parents = parents_among(&ended);
        unsent.extend(ended);
    }
    Ok(unsent)
}

/// Cancels those of these children that wait and that nobody else is about to move.
async fn cancel_these(conn: &mut Conn, at: &Present, children: &Vec<i64>) -> Result<Vec<UnsentEnd>> {
    let mut children = children_of(&conn.step(&[Free { nos: children }.call()]).await?)?;
    if children.is_empty() {
        return Ok(Vec::new());
    }
    children.sort_unstable();
    let rows = conn.step(&[Cancel::new(at, &children).end()]).await?.pop().unwrap_or_default();
    Ok(families(conn, &EndWaiting::rows(&rows)?).collect())
}

/// As [`cancel_waiting`], for children whose parent does without them: those, and theirs.
pub(crate) async fn cancel_free(
    conn: &mut Conn,
    at: &Present,
    children: &Vec<i64>,
) -> Result<Vec<UnsentEnd>> {
    let mut unsent = cancel_these(conn, at, children).await?;
    let theirs = cancel_waiting(conn, at, &unsent).await?;
    unsent.extend(theirs);
    Ok(unsent)
}

/// Flags those of these children that run.
pub(crate) async fn flag_children(
    conn: &mut Conn,
    at: &Present,
    children: &Vec<i64>,
) -> Result<Vec<Flagged>> {
    Flag::rows(&conn.step(&[flag(at, children)]).await?.pop().unwrap_or_default())
}

statement! {
    /// Primary keys: those of these children that have neither ended nor been flagged.
    pub(crate) Lost<'a> = "family.lost", by ["jobs_pkey", "done_pkey", "lease_pkey"], (nos: Vec<i64>) -> Child;
    "SELECT u.no FROM unnest($1::bigint[]) AS u(no)
    WHERE EXISTS (SELECT 1 FROM mainspring.jobs j WHERE j.no = u.no)
        AND NOT EXISTS (SELECT 1 FROM mainspring.done d WHERE d.no = u.no)
        AND NOT EXISTS (SELECT 1 FROM mainspring.lease l WHERE l.no = u.no AND l.cancel IS NOT NULL) ORDER BY u.no"
}

/// Cancels what is left of children that their parent does without: those that somebody else was moving when that was
/// committed. Mostly none is. A failure is not worth a word: what is left is cancelled with its parent.
pub(crate) async fn cancel_lost(conn: &mut Conn, shared: &Shared, children: Vec<i64>) {
    if children.is_empty() {
        return;
    }
    if let Err(fault) = cancel_rest(conn, shared, children).await {
        conn.roll_back().await;
        tracing::debug!(?fault, "cannot cancel a child that its parent gave up; a sweep will");
    }
}

async fn cancel_rest(conn: &mut Conn, shared: &Shared, mut children: Vec<i64>) -> Result<()> {
    for _ in 0..ROUNDS {
        children = children_of(&conn.commit(shared, &[Lost { nos: &children }.call()]).await?)?;
        if children.is_empty() {
            break;
        }
        let at = shared.at();
        let rows = conn.commit(shared, &Cancel::new(&at, &children).calls()).await?;
        shared.moved();
        let [flagged, ended] = rows.as_slice() else {
            return Err(corrupt("a cancellation without an answer"));
        };
        let mut hints = Hints::default();
        for claim in Flag::rows(flagged)? {
            hints.cancel(NodeNo(claim.node.into()));
        }
        hints.send(conn, shared).await;
        let ended = families(conn, &EndWaiting::rows(ended)?).collect();
        notify(conn, shared, ended).await;
    }
    Ok(())
}

/// Tells the families of jobs that the open transaction has ended and is about to remove. The mailboxes of their parents
/// are locked. Returns who was woken, and who was flagged.
pub(crate) async fn notify_within(
    conn: &mut Conn,
    at: &Present,
    nos: &Vec<i64>,
    ended: &[Ended],
) -> Result<(Vec<Woken>, Vec<Flagged>, Vec<UnsentEnd>)> {
    let children = children_of(&conn.step(&[Open { nos }.call()]).await?)?;
    let flagged = flag_children(conn, at, &children).await?;
    let families = families(conn, ended).collect::<Vec<_>>();
    let unsent = cancel_waiting(conn, at, &families).await?;
    let calls = [Post { nos }.call(), Wake { at, nos }.call(), ForgetEnds { nos }.call()];
    let woken = Wake::rows(&conn.step(&calls).await?.swap_remove(1))?;
    Ok((woken, flagged, unsent))
}

statement! {
    /// Unique index of ids, primary key of `children`; then advisory locks on the mailboxes of these jobs and of their parents,
    /// in order of the numbers: for jobs that are about to be removed.
    pub(crate) LockRelatives<'a> = "family.lock_relatives", by ["jobs_id_key", "children_pkey"],
    (mailbox: i64, ids: Vec<Uuid>);
    "SELECT count(pg_advisory_xact_lock($1 # x.no)) FROM (
    SELECT DISTINCT y.no FROM unnest($2::uuid[]) AS u(id)
    CROSS JOIN LATERAL (SELECT no FROM mainspring.jobs WHERE id = u.id OFFSET 0) j
    CROSS JOIN LATERAL (SELECT j.no UNION ALL SELECT c.parent FROM mainspring.children c WHERE c.no = j.no) AS y(no)
    ORDER BY y.no) x"
}
