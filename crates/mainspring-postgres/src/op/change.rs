//! What operators do to jobs.
//!
//! A look at all places in one snapshot tells where the jobs are; the state machine tells what becomes of them; then all
//! are moved at once. A job that somebody else has moved meanwhile is not where it was, and the whole call begins anew.
//!
//! # Invariants
//! - All jobs of a call change in one commit, or none does.

use std::collections::BTreeMap;

use mainspring_core::Error;
use mainspring_core::id::JobId;
use mainspring_core::job::{Reason, State, Status, Verb};
use mainspring_core::name::Key;
use mainspring_core::store::{Changed, flags};
use tokio_postgres::Row;
use uuid::Uuid;

use super::family::{self, UnsentEnd};
use super::places::{
    count, end_waiting, enter, enter_suspended, enter_timers, is_limited, leave_done, leave_waiting,
    of_place, place, remove, return_kept, state, update_waiting,
};
use super::rewind::{self, Back};
use super::signal::Woken;
use super::{Op, claim, node, now};
use crate::connection::Conn;
use crate::error::{Result, corrupt};
use crate::hint::Hints;
use crate::names;
use crate::shared::Shared;
use crate::sql::{At, Present, Query, statement};

/// How often a call begins anew because jobs were moved under its eyes.
const ROUNDS: usize = 16;

/// What a statement does to jobs, in the order of all locks: leases, what has ended, and then what waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Action {
    Flag,
    Revive,
    DeleteDone,
    End,
    Wait,
    DeleteWaiting,
    SetPriority,
}

/// Jobs that something is done to, and the state that each was seen in.
type Groups = BTreeMap<Action, BTreeMap<i64, State>>;

statement! {
    /// Unique index of ids, then the primary keys of the places, in one snapshot: each job is in one of them.
    pub(crate) Locate<'a> = "change.locate",
    by ["jobs_id_key", "done_pkey", "ready_pkey", "limited_pkey", "lease_pkey", "timers_pkey", "suspended_pkey"],
    (at: Present, ids: Vec<Uuid>)
    -> Located {
        now: At, position: i64, no: i64, state: Option<i32>, reason: Option<i16>, due: Option<At>,
        flags: Option<i16>, claim: Option<i32>, legible: Option<bool>,
    };
    concat!(
    "WITH ",
    now!(),
    "SELECT t.now, u.o, j.no, ",
    state!(),
    "::int AS state, coalesce(s.reason, d.reason) AS reason,
        coalesce(m.due, CASE WHEN s.reason = {reason.hold} THEN s.due END) AS due,
        ",
    of_place!("flags"),
    " AS flags, ",
    of_place!("claim"),
    " AS claim, least(",
    of_place!("claim"),
    ", ",
    of_place!("failures"),
    ", ",
    of_place!("crashes"),
    ") >= 0
            AND coalesce(coalesce(r.level, w.level) BETWEEN 0 AND {level.last}
                    AND coalesce(r.level, w.level) & {level.priority_bits} <= {priority.last},
                m.priority BETWEEN 0 AND {priority.last}, s.priority BETWEEN 0 AND {priority.last}, true) AS legible
    FROM t CROSS JOIN unnest($2::uuid[]) WITH ORDINALITY AS u(id, o)
    CROSS JOIN LATERAL (SELECT no FROM mainspring.jobs WHERE id = u.id OFFSET 0) j",
    place!()
)
}

/// Takes jobs out of where they wait, in order of the numbers. The line is the job's own, by the primary key of `jobs`: where a
/// place says another, it is damaged, and the job would be counted in a line that it never was in.
macro_rules! taken {
    ($more:literal) => {
        concat!(
            "WITH ",
            now!(),
            leave_waiting!("$2::bigint[]"),
            "
    , e AS (SELECT w.was, w.no, (SELECT j.line FROM mainspring.jobs j WHERE j.no = w.no) AS line, w.claim, w.priority,
            w.failures, w.crashes, w.crashed, w.flags, w.due",
            $more,
            " FROM w)"
        )
    };
}

statement! {
    /// Waiting jobs end.
    pub(crate) EndWaiting<'a> = "change.end",
    by ["ready_pkey", "limited_pkey", "timers_pkey", "suspended_pkey", "jobs_pkey", "keys_no", "deadlines_pkey"],
    (at: Present, nos: Vec<i64>, state: i16, reason: i16, why: &'a str)
    -> Ended { no: i64, was: i32, flags: i16 };
    concat!(
    taken!(", $3::smallint AS state, $4::smallint AS reason, $5::text AS note, NULL::bytea AS result"),
    end_waiting!("e"),
    count!("e"),
    " SELECT e.no, e.was, e.flags FROM e"
)
}
statement! {
    /// Waiting jobs wait in another way: held, or ready, or for their time if that is to come. `$3`: the reason of those that
    /// are held. `$4`, `$5`: whether failures and crashes are cleared. `$6`: by how much claim numbers grow. `$7`: why they are held.
    pub(crate) WaitAgain<'a> = "change.wait", by ["ready_pkey", "limited_pkey", "timers_pkey", "suspended_pkey", "jobs_pkey"],
    (
        at: Present, nos: Vec<i64>, held: Option<i16>, clear_failures: bool, clear_crashes: bool, growth: i32,
        why: &'a str,
    )
    -> Waits {
        no: i64, line: Option<i32>, level: Option<i16>, ready_at: Option<At>, due: Option<At>, was: i32, limited: bool,
    };
    concat!(
    taken!(""),
    "
    , f AS (SELECT e.was, e.no, e.line, e.claim + $6::int AS claim, e.priority, e.flags, e.due,
            CASE WHEN $4 THEN 0 ELSE e.failures END::smallint AS failures,
            CASE WHEN $5 THEN 0 ELSE e.crashes END::smallint AS crashes,
            CASE WHEN $5 THEN 0 ELSE e.crashed END AS crashed, ({level.fresh} + e.priority)::smallint AS level,
            CASE WHEN $3::smallint IS NOT NULL THEN {state.suspended}
                WHEN e.due > t.now AND NOT $4 THEN {state.scheduled} ELSE {state.ready} END AS state
        FROM e, t)",
    enter!("(SELECT * FROM f WHERE f.state = {state.ready}) e"),
    enter_timers!("(SELECT * FROM f WHERE f.state = {state.scheduled}) e"),
    enter_suspended!(
        "(SELECT f.*, $3::smallint AS reason, NULL::jsonb AS waits, nullif($7, '') AS note
        FROM f WHERE f.state = {state.suspended}) e"
    ),
    count!("f"),
    " SELECT f.no, f.line, CASE WHEN f.state = {state.ready} THEN f.level END, t.now,
        CASE WHEN f.state = {state.scheduled} THEN f.due END, f.was, ",
    is_limited!("f.flags"),
    " FROM f, t"
)
}
statement! {
    /// Primary key of `done`: ended jobs run again. They hold neither key nor deadline any more. Whose family is still to be told
    /// of the end waits for that. `$3`: by how much claim numbers grow.
    pub(crate) Revive<'a> = "change.revive", by ["done_pkey", "ends_pkey"],
    (at: Present, nos: Vec<i64>, growth: i32) -> Waits;
    concat!(
    "WITH ",
    now!(),
    leave_done!(
        "p.no, p.line, p.claim, p.priority, p.state, p.reason, p.finished_at, p.flags, p.claimed_at, p.node"
    ),
    "
    , u AS (INSERT INTO mainspring.superseded (no, finished_at, claimed_at, claim, node, state, reason)
        SELECT e.no, e.finished_at, e.claimed_at, e.claim, e.node, e.state, e.reason FROM e)
    , f AS (SELECT e.no, e.line, e.claim + $3::int AS claim, 0 AS failures, 0 AS crashes, 0 AS crashed,
            (e.flags | CASE WHEN g.no IS NULL THEN 0 ELSE {flag.limited} END)::smallint AS flags, ({level.fresh} + e.priority)::smallint AS level, e.state AS was, {state.ready} AS state FROM e
        LEFT JOIN LATERAL (SELECT no FROM mainspring.limited_jobs WHERE no = e.no OFFSET 0) g ON true)",
    enter!("f e"),
    count!("f"),
    " SELECT f.no, f.line, f.level, t.now, NULL::timestamptz, f.was::int, ",
    is_limited!("f.flags"),
    " FROM f, t"
)
}
statement! {
    /// Primary key, in order of the numbers. The reason first given stays.
    pub(crate) Flag<'a> = "change.flag", by ["lease_pkey"],
    (at: Present, nos: Vec<i64>, why: &'a str, orphan: i16) -> Flagged { no: i64, node: i32 };
    "UPDATE mainspring.lease l SET cancel = coalesce(l.cancel, $3),
        flags = CASE WHEN l.cancel IS NULL THEN l.flags | $4 ELSE l.flags END
    WHERE l.no = ANY($2::bigint[]) AND ($1::timestamptz IS NULL OR true)
    RETURNING l.no, l.node"
}
statement! {
    /// The class of a ready job stays: it is the high bits of the level.
    pub(crate) SetPriority<'a> = "change.set_priority", by ["ready_pkey", "limited_pkey", "timers_pkey", "suspended_pkey"],
    (at: Present, nos: Vec<i64>, priority: i16) -> Waits;
    concat!(
    "WITH ",
    now!(),
    update_waiting!(
        "$2::bigint[]",
        "true",
        "level = (p.level & ~{level.priority_bits}) | $3",
        "priority = $3"
    ),
    "
    , to_turns AS (INSERT INTO mainspring.group_turns (line, level, at, limit_group)
        SELECT DISTINCT w.line, w.level, t.now, w.limit_group FROM w, t WHERE w.limit_group IS NOT NULL)
    SELECT w.no, w.line, w.level, CASE WHEN w.limit_group IS NULL THEN w.ready_at ELSE t.now END, NULL::timestamptz, w.was,
        w.limit_group IS NOT NULL FROM w, t"
)
}

statement! {
    /// Primary keys, and the indexes by number of the side tables. Their keys go with them.
    pub(crate) DeleteWaiting<'a> = "change.delete_waiting",
    by ["ready_pkey", "limited_pkey", "timers_pkey", "suspended_pkey", "jobs_pkey", "tags_no", "keys_no", "children_parent"],
    (at: Present, nos: Vec<i64>) -> Removed { no: i64, was: i32, flags: i16 };
    concat!(
    taken!(""),
    return_kept!("e"),
    remove!(),
    ", gone_keys AS (DELETE FROM mainspring.keys x WHERE x.no = ANY(ARRAY(SELECT e.no FROM e)))
    SELECT e.no, e.was, e.flags FROM e"
)
}
statement! {
    pub(crate) DeleteDone<'a> = "change.delete_done",
    by ["done_pkey", "jobs_pkey", "tags_no", "keys_no", "children_parent"],
    (at: Present, nos: Vec<i64>) -> Removed;
    concat!(
    "WITH ",
    now!(),
    leave_done!("p.no, p.line, p.state::int AS was, p.flags"),
    remove!(),
    ", gone_keys AS (DELETE FROM mainspring.keys x WHERE x.no = ANY(ARRAY(SELECT e.no FROM e)))
    SELECT e.no, e.was, e.flags FROM e"
)
}

/// Applies a verb to jobs.
pub(crate) struct Change {
    pub(crate) ids: Vec<JobId>,
    pub(crate) verb: Verb,
    pub(crate) dry_run: bool,
}

impl Op for Change {
    type Answer = Vec<Changed>;
    const MOVES: bool = true;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Vec<Changed>> {
        self.verb.check()?;
        let mailbox = shared.mailbox();
        let all: Vec<Uuid> = self.ids.iter().map(|id| Uuid::from_bytes(*id.as_bytes())).collect();
        for _ in 0..ROUNDS {
            let mut answers = vec![Changed::NotFound; self.ids.len()];
            // Whoever removes a job tells its parent and keeps others from telling it.
            let lock = (matches!(self.verb, Verb::Delete) && !self.dry_run)
                .then(|| family::LockRelatives { mailbox: &mailbox, ids: &all }.call());
            conn.begin(shared, "", lock.as_slice()).await?;
            let mut announcements = Vec::new();
            let mut steady = true;
            for layer in layers(&self.ids) {
                steady = steady && self.layer(conn, shared, &layer, &mut answers, &mut announcements).await?;
            }
            if steady {
                conn.end(&[]).await?;
                announce(conn, shared, announcements).await?;
                return Ok(answers);
            }
            conn.roll_back().await;
            // What others have ended and not told of yet stays as it is until then.
            if matches!(self.verb, Verb::Retry | Verb::Rewind { .. } | Verb::Delete) {
                family::notify_overdue(conn, shared, 0).await?;
            }
        }
        Err(Error::unavailable("other sessions keep moving the jobs").into())
    }
}

/// Positions of ids, so that no layer has an id twice: an id that is named again meets what was done to it before.
fn layers(ids: &[JobId]) -> Vec<Vec<usize>> {
    let mut seen: BTreeMap<JobId, usize> = BTreeMap::new();
    let mut layers: Vec<Vec<usize>> = Vec::new();
    for (index, id) in ids.iter().enumerate() {
        let times = seen.entry(*id).or_default();
        if layers.len() <= *times {
            layers.push(Vec::new());
        }
        layers[*times].push(index);
        *times += 1;
    }
    layers
}

/// What was done, and what there is to tell of it.
enum Announcement {
    Waits(Vec<Waits>),
    Flagged(Vec<Flagged>),
    Woken(Vec<Woken>),
    /// Whose families are to be told.
    Ended(Vec<UnsentEnd>),
    /// Numbers of children that are to be cancelled.
    Lost(Vec<i64>),
}

impl Change {
    /// Applies the verb to some of the ids. False if one of them was moved meanwhile.
    async fn layer(
        &self,
        conn: &mut Conn,
        shared: &Shared,
        layer: &[usize],
        answers: &mut [Changed],
        announcements: &mut Vec<Announcement>,
    ) -> Result<bool> {
        let at = shared.at();
        let ids: Vec<Uuid> =
            layer.iter().map(|&index| Uuid::from_bytes(*self.ids[index].as_bytes())).collect();
        let rows = conn.step(&[Locate { at: &at, ids: &ids }.call()]).await?.pop().unwrap_or_default();
        let mut groups = Groups::new();
        let mut backs = Vec::new();
        for job in Locate::rows(&rows)? {
            let family = job.flags.unwrap_or(0) & flags::TOLD != 0;
            let index = usize::try_from(job.position - 1).ok().and_then(|o| layer.get(o).copied());
            let index = index.ok_or_else(|| corrupt("an answer to nothing"))?;
            // In no place: it is being moved, or removed, at this moment.
            let Some(from) = status(&job)? else { return Ok(false) };
            let later = job.due.is_some_and(|due| due > job.now);
            answers[index] = match self.verb.apply(from, later) {
                Ok(to) if goes_on(to) && !self.is_legible(conn, shared, &job, from).await? => {
                    Changed::Illegal(self.verb.refused(from))
                }
                Ok(to) => {
                    if let Verb::Rewind { from: step, claim } = &self.verb {
                        let seen = job.claim.and_then(|seen| u32::try_from(seen).ok()) == Some(*claim);
                        let back = if seen { rewind::look(conn, job.no, step).await? } else { None };
                        let Some(back) = back else {
                            answers[index] = Changed::Stale;
                            continue;
                        };
                        backs.push(back);
                    }
                    groups.entry(self.action(from, to, family)).or_default().insert(job.no, from.state);
                    Changed::Applied { from, to }
                }
                Err(illegal) => Changed::Illegal(illegal),
            };
        }
        if self.dry_run {
            return Ok(true);
        }
        if let Verb::Rewind { from, .. } = &self.verb {
            return self.take_back(conn, &at, groups, from, &backs, announcements).await;
        }
        self.apply(conn, &at, groups, announcements).await
    }

    /// Whether a job that is to wait or to run on can be read.
    async fn is_legible(
        &self,
        conn: &mut Conn,
        shared: &Shared,
        job: &Located,
        from: Status,
    ) -> Result<bool> {
        let decodes = matches!(self.verb, Verb::Resume) || from.reason == Some(Reason::Unreadable);
        let legible = job.legible.unwrap_or(true);
        Ok(legible && !(decodes && claim::illegible(conn, shared, job.no).await?.is_some()))
    }

    /// Moves jobs and takes back what they have recorded from a step on. False if one of them was moved meanwhile.
    async fn take_back(
        &self,
        conn: &mut Conn,
        at: &Present,
        groups: Groups,
        from: &Key,
        backs: &[Back],
        announcements: &mut Vec<Announcement>,
    ) -> Result<bool> {
        let mut children: Vec<i64> = backs.iter().flat_map(|back| &back.children).copied().collect();
        children.sort_unstable();
        if !children.is_empty() {
            // Leases before places.
            announcements.push(Announcement::Flagged(family::flag_children(conn, at, &children).await?));
        }
        if !self.apply(conn, at, groups, announcements).await? {
            return Ok(false);
        }
        for back in backs {
            if !rewind::run(conn, at, from, back).await? {
                return Ok(false);
            }
        }
        if !children.is_empty() {
            announcements.push(Announcement::Ended(family::cancel_free(conn, at, &children).await?));
            announcements.push(Announcement::Lost(children));
        }
        Ok(true)
    }

    /// What is to be done so that it is as the state machine says; if `family`, somebody is to be told of an end.
    fn action(&self, from: Status, to: Option<Status>, family: bool) -> Action {
        let ended = from.state.is_terminal();
        match (&self.verb, to) {
            (_, None) if ended => Action::DeleteDone,
            // It ends before it is removed.
            (_, None) if family => Action::End,
            (_, None) => Action::DeleteWaiting,
            (Verb::Cancel { .. } | Verb::Recall { .. }, Some(to)) if to.state == State::Running => {
                Action::Flag
            }
            (Verb::Cancel { .. } | Verb::Recall { .. } | Verb::Fail { .. }, Some(_)) => Action::End,
            (Verb::SetPriority(_), Some(_)) => Action::SetPriority,
            (_, Some(_)) if ended => Action::Revive,
            (_, Some(_)) => Action::Wait,
        }
    }

    async fn apply(
        &self,
        conn: &mut Conn,
        at: &Present,
        groups: Groups,
        announcements: &mut Vec<Announcement>,
    ) -> Result<bool> {
        let why = match &self.verb {
            Verb::Cancel { why } | Verb::Recall { why } | Verb::Hold { why } | Verb::Fail { why } => {
                why.as_str()
            }
            _ => "",
        };
        let (state, reason) = match self.verb {
            Verb::Fail { .. } => (State::Failed, Reason::Operator),
            Verb::Recall { .. } => (State::Cancelled, Reason::Parent),
            _ => (State::Cancelled, Reason::Operator),
        };
        let orphan = if reason == Reason::Parent { flags::ORPHAN } else { 0 };
        let (state, reason) = (i16::from(state.code()), i16::from(reason.code()));
        let hold = matches!(self.verb, Verb::Hold { .. }).then_some(i16::from(Reason::Hold.code()));
        let retry = matches!(self.verb, Verb::Retry | Verb::Rewind { .. });
        let clear = retry || matches!(self.verb, Verb::Resume);
        let growth = i32::from(matches!(self.verb, Verb::Rewind { .. }));
        let priority = match self.verb {
            Verb::SetPriority(priority) => i16::from(priority.get()),
            _ => 0,
        };
        for (action, jobs) in groups {
            let nos: Vec<i64> = jobs.keys().copied().collect();
            let nos = &nos;
            let call = match action {
                Action::Flag => Flag { at, nos, why: &why, orphan: &orphan }.call(),
                Action::Revive => Revive { at, nos, growth: &growth }.call(),
                Action::DeleteDone => DeleteDone { at, nos }.call(),
                Action::End => EndWaiting { at, nos, state: &state, reason: &reason, why: &why }.call(),
                Action::Wait => WaitAgain {
                    at,
                    nos,
                    held: &hold,
                    clear_failures: &retry,
                    clear_crashes: &clear,
                    growth: &growth,
                    why: &why,
                }
                .call(),
                Action::DeleteWaiting => DeleteWaiting { at, nos }.call(),
                Action::SetPriority => SetPriority { at, nos, priority: &priority }.call(),
            };
            let rows = conn.step(&[call]).await?.pop().unwrap_or_default();
            // Whoever was found elsewhere than it was seen may be what the verb does not apply to.
            let found = found(action, &rows)?;
            let as_seen = |(no, from): (&i64, &State)| {
                found.get(no).is_some_and(|was| was.is_none_or(|was| was == i32::from(from.code())))
            };
            if !jobs.iter().all(as_seen) {
                return Ok(false);
            }
            match action {
                Action::End if matches!(self.verb, Verb::Delete) => {
                    remove(conn, at, nos, &EndWaiting::rows(&rows)?, announcements).await?;
                }
                Action::End => {
                    let mut unsent: Vec<UnsentEnd> =
                        family::families(conn, &EndWaiting::rows(&rows)?).collect();
                    let children = family::cancel_waiting(conn, at, &unsent).await?;
                    unsent.extend(children);
                    announcements.push(Announcement::Ended(unsent));
                }
                Action::Flag => announcements.push(Announcement::Flagged(Flag::rows(&rows)?)),
                Action::Wait | Action::Revive | Action::SetPriority => {
                    announcements.push(Announcement::Waits(WaitAgain::rows(&rows)?));
                }
                Action::DeleteWaiting => {
                    DeleteWaiting::rows(&rows)?.iter().for_each(|job| conn.note_ended(job.flags));
                }
                Action::DeleteDone => {}
            }
        }
        Ok(true)
    }
}

/// Whether a verb lets a job wait or run on.
fn goes_on(to: Option<Status>) -> bool {
    to.is_some_and(|to| !to.state.is_terminal() && to.state != State::Running)
}

/// Removes jobs that have ended in the same transaction, and tells their families before.
async fn remove(
    conn: &mut Conn,
    at: &Present,
    nos: &Vec<i64>,
    ended: &[Ended],
    announcements: &mut Vec<Announcement>,
) -> Result<()> {
    let (woken, flagged, unsent) = family::notify_within(conn, at, nos, ended).await?;
    let removed = conn.step(&[DeleteDone { at, nos }.call()]).await?.pop().unwrap_or_default();
    if removed.len() != nos.len() {
        return Err(corrupt("a job that has just ended cannot be removed"));
    }
    announcements.extend([
        Announcement::Woken(woken),
        Announcement::Flagged(flagged),
        Announcement::Ended(unsent),
    ]);
    Ok(())
}

/// The jobs that a statement has found, and the state of each; `None` if it looks for one state only.
fn found(action: Action, rows: &[Row]) -> Result<BTreeMap<i64, Option<i32>>> {
    Ok(match action {
        Action::Flag => Flag::rows(rows)?.into_iter().map(|row| (row.no, None)).collect(),
        Action::End => EndWaiting::rows(rows)?.into_iter().map(|row| (row.no, Some(row.was))).collect(),
        Action::Wait | Action::Revive | Action::SetPriority => {
            WaitAgain::rows(rows)?.into_iter().map(|row| (row.no, Some(row.was))).collect()
        }
        Action::DeleteWaiting | Action::DeleteDone => {
            DeleteDone::rows(rows)?.into_iter().map(|row| (row.no, Some(row.was))).collect()
        }
    })
}

/// What a job is; `None` if it is in no place.
fn status(job: &Located) -> Result<Option<Status>> {
    let Some(state) = job.state else { return Ok(None) };
    let state = u8::try_from(state)
        .ok()
        .and_then(State::from_code)
        .ok_or_else(|| corrupt(format!("{state} is not a state")))?;
    let reason = match job.reason {
        None => None,
        Some(code) => {
            let reason = u8::try_from(code).ok().and_then(Reason::from_code);
            // One that is none is that of a job that cannot be read.
            Some(reason.unwrap_or(Reason::Unreadable))
        }
    };
    Ok(Some(Status { state, reason }))
}

/// Tells where jobs wait now, and whose claims were flagged.
async fn announce(conn: &mut Conn, shared: &Shared, announcements: Vec<Announcement>) -> Result<()> {
    let mut hints = Hints::default();
    let (mut lines, mut unsent, mut lost) = (Vec::new(), Vec::new(), Vec::new());
    for announcement in announcements {
        match announcement {
            Announcement::Ended(families) => unsent.extend(families),
            Announcement::Lost(children) => lost.extend(children),
            Announcement::Woken(woken) => {
                for job in woken {
                    lines.push(job.line);
                    hints.enter(job.limited, (job.line, job.level), (job.now.0, job.no));
                }
            }
            Announcement::Flagged(claims) => {
                for claim in claims {
                    node::flagged(&mut hints, claim.node);
                }
            }
            Announcement::Waits(jobs) => {
                for job in jobs {
                    if let (Some(line), Some(level), Some(at)) = (job.line, job.level, job.ready_at) {
                        lines.push(line);
                        hints.enter(job.limited, (line, level), (at.0, job.no));
                    }
                    job.due.into_iter().for_each(|due| hints.due(due.0));
                }
            }
        }
    }
    names::learn_for_hints(conn, shared, lines).await;
    hints.send(conn, shared).await;
    family::notify(conn, shared, unsent).await;
    family::cancel_lost(conn, shared, lost).await;
    Ok(())
}
