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
use mainspring_core::time::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::family::{self, UnsentEnd, ends};
use super::rewind::{self, Back};
use super::{Op, claim, node, now};
use crate::connection::Conn;
use crate::error::{Result, corrupt};
use crate::hint::Hints;
use crate::names;
use crate::shared::Shared;
use crate::sql::{At, Call, Present};

/// How often a call begins anew because jobs were moved under its eyes.
const ROUNDS: usize = 16;

/// Unique index of ids, then the primary keys of the places, in one snapshot: each job is in one of them.
const LOCATE: &str = concat!(
    "WITH ",
    now!(),
    "SELECT t.now, u.o, j.no, j.line,
        CASE WHEN r.no IS NOT NULL THEN 2 WHEN m.no IS NOT NULL THEN 1 WHEN s.no IS NOT NULL THEN 4
            WHEN l.no IS NOT NULL THEN 3 ELSE d.state END AS state,
        coalesce(s.reason, d.reason) AS reason, coalesce(m.due, CASE WHEN s.reason = 8 THEN s.due END) AS due,
        coalesce(r.flags, m.flags, s.flags, 0::smallint) AS flags,
        coalesce(r.claim, m.claim, s.claim, l.claim, d.claim) AS claim,
        least(coalesce(r.claim, m.claim, s.claim, l.claim, d.claim),
            coalesce(r.failures, m.failures, s.failures, l.failures, d.failures),
            coalesce(r.crashes, m.crashes, s.crashes, l.crashes, d.crashes)) >= 0
            AND coalesce(r.level BETWEEN 0 AND 63 AND r.level & 15 <= 9, m.priority BETWEEN 0 AND 9,
                s.priority BETWEEN 0 AND 9, true) AS legible
    FROM t CROSS JOIN unnest($2::uuid[]) WITH ORDINALITY AS u(id, o)
    CROSS JOIN LATERAL (SELECT no, line FROM mainspring.jobs WHERE id = u.id OFFSET 0) j
    LEFT JOIN mainspring.ready r ON r.no = j.no
    LEFT JOIN mainspring.timers m ON m.no = j.no
    LEFT JOIN mainspring.suspended s ON s.no = j.no
    LEFT JOIN mainspring.lease l ON l.no = j.no
    LEFT JOIN mainspring.done d ON d.no = j.no"
);

/// Takes jobs out of where they wait, by the primary keys, in order of the numbers. The time of one that was held comes
/// with it; that of one that waited for something else too does not. The line is the job's own, by the primary key of `jobs`: where a
/// place says another, it is damaged, and the job would be counted in a line that it never was in.
macro_rules! taken {
    () => {
        concat!(
            "WITH ",
            now!(),
            ", r AS (DELETE FROM mainspring.ready p WHERE p.no = ANY($2::bigint[])
                RETURNING p.no, p.claim, least(p.level & 15, 9)::smallint AS priority, p.failures, p.crashes, p.crashed,
                    p.flags, NULL::timestamptz AS due)
            , m AS (DELETE FROM mainspring.timers p WHERE p.no = ANY($2::bigint[])
                RETURNING p.no, p.claim, p.priority, p.failures, p.crashes, p.crashed, p.flags, p.due)
            , s AS (DELETE FROM mainspring.suspended p WHERE p.no = ANY($2::bigint[])
                RETURNING p.no, p.claim, p.priority, p.failures, p.crashes, p.crashed, p.flags,
                    CASE WHEN p.reason = 8 THEN p.due END)
            , p AS (SELECT 2 AS was, r.* FROM r UNION ALL SELECT 1, m.* FROM m UNION ALL SELECT 4, s.* FROM s)
            , e AS (SELECT p.*, (SELECT j.line FROM mainspring.jobs j WHERE j.no = p.no) AS line FROM p)"
        )
    };
}

/// Waiting jobs end. `$6`: of which families there is something to tell.
pub(crate) const END: &str = concat!(
    taken!(),
    ", i AS (INSERT INTO mainspring.done
            (no, finished_at, line, claim, state, reason, priority, failures, crashes, flags, bad, note)
        SELECT e.no, t.now, e.line, e.claim, $3, $4, e.priority, e.failures, e.crashes, e.flags & 56, true,
            nullif($5, '') FROM e, t)",
    ends!("e", "$6"),
    "
    , k AS (DELETE FROM mainspring.keys k
        WHERE k.no = ANY(ARRAY(SELECT e.no FROM e WHERE e.flags & 1 <> 0)) AND k.until <> 2)
    , k2 AS (UPDATE mainspring.keys k SET expires_at = t.now + k.period * interval '1 us'
        FROM t WHERE k.no = ANY(ARRAY(SELECT e.no FROM e WHERE e.flags & 1 <> 0)) AND k.until = 2
        AND k.expires_at IS NULL)
    , z AS (DELETE FROM mainspring.deadlines z
        WHERE z.no = ANY(ARRAY(SELECT e.no FROM e WHERE e.flags & 2 <> 0)))
    , c AS (INSERT INTO mainspring.count_deltas (line, state, n)
        SELECT line, was, -count(*) FROM e GROUP BY line, was
        UNION ALL SELECT line, $3, count(*) FROM e GROUP BY line)
    SELECT e.no, e.was, e.flags FROM e"
);
/// Waiting jobs wait in another way: held, or ready, or for their time if that is to come. `$3`: the reason of those that
/// are held. `$4`, `$5`: whether failures and crashes are cleared. `$6`: by how much claim numbers grow. `$7`: why they are held.
const WAIT: &str = concat!(
    taken!(),
    ", f AS (SELECT e.no, e.line, e.claim + $6::int AS claim, e.priority, e.flags, e.due, e.was,
            CASE WHEN $4 THEN 0 ELSE e.failures END::smallint AS failures,
            CASE WHEN $5 THEN 0 ELSE e.crashes END::smallint AS crashes,
            CASE WHEN $5 THEN 0 ELSE e.crashed END AS crashed,
            CASE WHEN $3::smallint IS NOT NULL THEN 4 WHEN e.due > t.now AND NOT $4 THEN 1 ELSE 2 END AS state
        FROM e, t)
    , ir AS (INSERT INTO mainspring.ready (no, ready_at, crashed, line, claim, level, failures, crashes, flags)
        SELECT f.no, t.now, f.crashed, f.line, f.claim, 48 + f.priority, f.failures, f.crashes, f.flags
        FROM f, t WHERE f.state = 2)
    , im AS (INSERT INTO mainspring.timers (no, due, crashed, line, claim, priority, failures, crashes, flags)
        SELECT f.no, f.due, f.crashed, f.line, f.claim, f.priority, f.failures, f.crashes, f.flags
        FROM f WHERE f.state = 1)
    , iu AS (INSERT INTO mainspring.suspended
            (no, due, crashed, line, claim, priority, reason, failures, crashes, flags, note)
        SELECT f.no, f.due, f.crashed, f.line, f.claim, f.priority, $3, f.failures, f.crashes, f.flags, nullif($7, '')
        FROM f WHERE f.state = 4)
    , c AS (INSERT INTO mainspring.count_deltas (line, state, n)
        SELECT line, was, -count(*) FROM f GROUP BY line, was
        UNION ALL SELECT line, state, count(*) FROM f GROUP BY line, state)
    SELECT f.no, f.line, CASE WHEN f.state = 2 THEN (48 + f.priority)::smallint END, t.now,
        CASE WHEN f.state = 1 THEN f.due END, f.was FROM f, t"
);
/// Primary key of `done`: ended jobs run again. They hold neither key nor deadline any more. Whose family is still to be told
/// of the end waits for that. `$3`: by how much claim numbers grow.
const REVIVE: &str = concat!(
    "WITH ",
    now!(),
    ", e AS (DELETE FROM mainspring.done p WHERE p.no = ANY($2::bigint[])
            AND (p.flags & 48 = 0 OR NOT EXISTS (SELECT 1 FROM mainspring.ends x WHERE x.no = p.no))
        RETURNING p.no, p.line, p.claim, p.priority, p.state, p.reason, p.finished_at, p.flags)
    , u AS (INSERT INTO mainspring.superseded (no, finished_at, claim, state, reason)
        SELECT e.no, e.finished_at, e.claim, e.state, e.reason FROM e)
    , r AS (INSERT INTO mainspring.ready (no, ready_at, crashed, line, claim, level, failures, crashes, flags)
        SELECT e.no, t.now, 0, e.line, e.claim + $3::int, 48 + e.priority, 0, 0, e.flags FROM e, t)
    , c AS (INSERT INTO mainspring.count_deltas (line, state, n)
        SELECT line, state, -count(*) FROM e GROUP BY line, state
        UNION ALL SELECT line, 2, count(*) FROM e GROUP BY line)
    SELECT e.no, e.line, (48 + e.priority)::smallint, t.now, NULL::timestamptz, e.state::int FROM e, t"
);
/// Primary key, in order of the numbers. The reason first given stays.
pub(crate) const FLAG: &str = "UPDATE mainspring.lease l SET cancel = coalesce(l.cancel, $3),
        flags = CASE WHEN l.cancel IS NULL THEN l.flags | $4 ELSE l.flags END
    WHERE l.no = ANY($2::bigint[]) AND ($1::timestamptz IS NULL OR true)
    RETURNING l.no, l.node";
/// Primary keys. The class of a ready job stays: it is the high bits of the level.
const READY_PRIORITY: &str = "UPDATE mainspring.ready p SET level = (p.level & ~15) | $3
    WHERE p.no = ANY($2::bigint[]) AND ($1::timestamptz IS NULL OR true)
    RETURNING p.no, p.line, p.level, p.ready_at, NULL::timestamptz";
const TIMERS_PRIORITY: &str = "UPDATE mainspring.timers p SET priority = $3
    WHERE p.no = ANY($2::bigint[]) AND ($1::timestamptz IS NULL OR true) RETURNING p.no";
const SUSPENDED_PRIORITY: &str = "UPDATE mainspring.suspended p SET priority = $3
    WHERE p.no = ANY($2::bigint[]) AND ($1::timestamptz IS NULL OR true) RETURNING p.no";

/// Removes jobs that are in no place any more with everything known of them, their keys included.
macro_rules! removed {
    () => {
        ", j AS (DELETE FROM mainspring.jobs x WHERE x.no = ANY(ARRAY(SELECT e.no FROM e)))
        , x1 AS (DELETE FROM mainspring.errors x WHERE x.no = ANY(ARRAY(SELECT e.no FROM e)))
        , x2 AS (DELETE FROM mainspring.progress x WHERE x.no = ANY(ARRAY(SELECT e.no FROM e)))
        , x3 AS (DELETE FROM mainspring.tags x WHERE x.no = ANY(ARRAY(SELECT e.no FROM e)))
        , x4 AS (DELETE FROM mainspring.deadlines x WHERE x.no = ANY(ARRAY(SELECT e.no FROM e)))
        , x5 AS (DELETE FROM mainspring.superseded x WHERE x.no = ANY(ARRAY(SELECT e.no FROM e)))
        , x6 AS (DELETE FROM mainspring.keys x WHERE x.no = ANY(ARRAY(SELECT e.no FROM e)))
        , x7 AS (DELETE FROM mainspring.steps x WHERE x.no = ANY(ARRAY(SELECT e.no FROM e WHERE e.flags & 8 <> 0)))
        , x11 AS (DELETE FROM mainspring.output x WHERE x.no = ANY(ARRAY(SELECT e.no FROM e WHERE e.flags & 8 <> 0)))
        , x8 AS (DELETE FROM mainspring.inbox x WHERE x.no = ANY(ARRAY(SELECT e.no FROM e)))
        , x9 AS (DELETE FROM mainspring.children x WHERE x.no = ANY(ARRAY(SELECT e.no FROM e WHERE e.flags & 32 <> 0)))
        , x10 AS (DELETE FROM mainspring.children x
            WHERE x.parent = ANY(ARRAY(SELECT e.no FROM e WHERE e.flags & 16 <> 0)))
        , c AS (INSERT INTO mainspring.count_deltas (line, state, n)
            SELECT line, was, -count(*) FROM e GROUP BY line, was)
        SELECT e.no, e.was FROM e"
    };
}
/// Primary keys, and the indexes by number of the side tables.
const DELETE_WAITING: &str = concat!(taken!(), removed!());
const DELETE_DONE: &str = concat!(
    "WITH ",
    now!(),
    ", e AS (DELETE FROM mainspring.done p USING t WHERE p.no = ANY($2::bigint[])
            AND (p.flags & 48 = 0 OR NOT EXISTS (SELECT 1 FROM mainspring.ends x WHERE x.no = p.no))
        RETURNING p.no, p.line, p.state::int AS was, p.flags)",
    removed!()
);

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
            let lock = (matches!(self.verb, Verb::Delete) && !self.dry_run).then(|| {
                let args = vec![(&mailbox as _, Type::INT8), (&all as _, Type::UUID_ARRAY)];
                Call::new(family::LOCK_RELATIVES, args)
            });
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
        Err(Error::unavailable("the jobs are being moved by others").into())
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
    /// Rows of number, line, level, time and due.
    Waits(Vec<Row>),
    /// Rows of number and node.
    Flagged(Vec<Row>),
    /// Rows of number, line, level and time.
    Woken(Vec<Row>),
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
        let locate = Call::new(LOCATE, vec![(&at, Type::TIMESTAMPTZ), (&ids, Type::UUID_ARRAY)]);
        let rows = conn.step(&[locate]).await?.pop().unwrap_or_default();
        let mut groups: BTreeMap<&'static str, BTreeMap<i64, State>> = BTreeMap::new();
        let mut backs = Vec::new();
        for row in &rows {
            let family = row.get::<_, i16>(7) & flags::TOLD != 0;
            let index = usize::try_from(row.get::<_, i64>(1) - 1).ok().and_then(|o| layer.get(o).copied());
            let index = index.ok_or_else(|| corrupt("an answer to nothing"))?;
            let no: i64 = row.get(2);
            // In no place: it is being moved, or removed, at this moment.
            let Some(from) = status(row)? else { return Ok(false) };
            let due: Option<At> = row.get(6);
            let later = due.is_some_and(|due| due.0 > row.get::<_, At>(0).0);
            answers[index] = match self.verb.apply(from, later) {
                Ok(to) if goes_on(to) && !self.is_legible(conn, shared, row, from).await? => {
                    Changed::Illegal(self.verb.refused(from))
                }
                Ok(to) => {
                    if let Verb::Rewind { from: step, claim } = &self.verb {
                        let seen = u32::try_from(row.get::<_, i32>(8)) == Ok(*claim);
                        let back = if seen { rewind::look(conn, no, step).await? } else { None };
                        let Some(back) = back else {
                            answers[index] = Changed::Stale;
                            continue;
                        };
                        backs.push(back);
                    }
                    groups.entry(self.statement(from, to, family)?).or_default().insert(no, from.state);
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
    async fn is_legible(&self, conn: &mut Conn, shared: &Shared, row: &Row, from: Status) -> Result<bool> {
        let legible = row.get::<_, Option<bool>>(9).unwrap_or(true);
        let aside = from.reason == Some(Reason::Unreadable);
        Ok(legible && !(aside && claim::illegible(conn, shared, row.get(2)).await?.is_some()))
    }

    /// Moves jobs and takes back what they have recorded from a step on. False if one of them was moved meanwhile.
    async fn take_back(
        &self,
        conn: &mut Conn,
        at: &Present,
        groups: BTreeMap<&'static str, BTreeMap<i64, State>>,
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

    /// The statement that does what the state machine says; if `family`, somebody is to be told of an end.
    fn statement(&self, from: Status, to: Option<Status>, family: bool) -> Result<&'static str> {
        let ended = from.state.is_terminal();
        Ok(match (&self.verb, to) {
            (_, None) if ended => DELETE_DONE,
            // It ends before it is removed.
            (_, None) if family => END,
            (_, None) => DELETE_WAITING,
            (Verb::Cancel { .. } | Verb::Recall { .. }, Some(to)) if to.state == State::Running => FLAG,
            (Verb::Cancel { .. } | Verb::Recall { .. } | Verb::Fail { .. }, Some(_)) => END,
            (Verb::SetPriority(_), Some(_)) => match from.state {
                State::Ready => READY_PRIORITY,
                State::Scheduled => TIMERS_PRIORITY,
                State::Suspended => SUSPENDED_PRIORITY,
                _ => return Err(corrupt("a priority of a job that does not wait")),
            },
            (_, Some(_)) if ended => REVIVE,
            (_, Some(_)) => WAIT,
        })
    }

    async fn apply(
        &self,
        conn: &mut Conn,
        at: &Present,
        groups: BTreeMap<&'static str, BTreeMap<i64, State>>,
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
        // The order of all locks: leases, what has ended, and then as the statements that take from all waiting places.
        let mut order: Vec<(&'static str, BTreeMap<i64, State>)> = groups.into_iter().collect();
        order.sort_by_key(|(sql, _)| match *sql {
            FLAG => 0,
            REVIVE | DELETE_DONE => 1,
            TIMERS_PRIORITY => 3,
            SUSPENDED_PRIORITY => 4,
            _ => 2,
        });
        for (sql, jobs) in order {
            let nos: Vec<i64> = jobs.keys().copied().collect();
            let mut args = vec![(at as _, Type::TIMESTAMPTZ), (&nos as _, Type::INT8_ARRAY)];
            match sql {
                END => args.extend([
                    (&state as _, Type::INT2),
                    (&reason as _, Type::INT2),
                    (&why as _, Type::TEXT),
                    (&flags::TOLD as _, Type::INT2),
                ]),
                WAIT => args.extend([
                    (&hold as _, Type::INT2),
                    (&retry as _, Type::BOOL),
                    (&clear as _, Type::BOOL),
                    (&growth as _, Type::INT4),
                    (&why as _, Type::TEXT),
                ]),
                REVIVE => args.push((&growth as _, Type::INT4)),
                FLAG => args.extend([(&why as _, Type::TEXT), (&orphan as _, Type::INT2)]),
                READY_PRIORITY | TIMERS_PRIORITY | SUSPENDED_PRIORITY => {
                    args.push((&priority as _, Type::INT2));
                }
                _ => {}
            }
            let rows = conn.step(&[Call::new(sql, args)]).await?.pop().unwrap_or_default();
            let done: BTreeMap<i64, Option<i32>> =
                rows.iter().map(|row| Ok((row.get(0), was(sql, row)?))).collect::<Result<_>>()?;
            // Whoever was found elsewhere than it was seen may be what the verb does not apply to.
            let as_seen = |(no, from): (&i64, &State)| {
                done.get(no).is_some_and(|was| was.is_none_or(|was| was == i32::from(from.code())))
            };
            if !jobs.iter().all(as_seen) {
                return Ok(false);
            }
            match sql {
                END if matches!(self.verb, Verb::Delete) => {
                    remove(conn, at, &nos, &rows, announcements).await?;
                }
                END => {
                    let mut unsent: Vec<UnsentEnd> = family::families(&rows).collect();
                    let children = family::cancel_waiting(conn, at, &unsent).await?;
                    unsent.extend(children);
                    announcements.push(Announcement::Ended(unsent));
                }
                FLAG => announcements.push(Announcement::Flagged(rows)),
                WAIT | REVIVE | READY_PRIORITY => announcements.push(Announcement::Waits(rows)),
                _ => {}
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
    ended: &[Row],
    announcements: &mut Vec<Announcement>,
) -> Result<()> {
    let (woken, flagged, unsent) = family::notify_within(conn, at, nos, ended).await?;
    let args = vec![(at as _, Type::TIMESTAMPTZ), (nos as _, Type::INT8_ARRAY)];
    let removed = conn.step(&[Call::new(DELETE_DONE, args)]).await?.pop().unwrap_or_default();
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

/// The state in which a statement found a job; `None` if it looks for one state only.
fn was(sql: &'static str, row: &Row) -> Result<Option<i32>> {
    let column = match sql {
        END | DELETE_WAITING | DELETE_DONE => 1,
        WAIT | REVIVE => 5,
        _ => return Ok(None),
    };
    row.try_get(column).map(Some).map_err(Into::into)
}

/// What a job is; `None` if it is in no place.
fn status(row: &Row) -> Result<Option<Status>> {
    let Some(state) = row.get::<_, Option<i32>>(4) else { return Ok(None) };
    let state = u8::try_from(state)
        .ok()
        .and_then(State::from_code)
        .ok_or_else(|| corrupt(format!("{state} is no state")))?;
    let reason = match row.get::<_, Option<i16>>(5) {
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
            Announcement::Woken(rows) => {
                for row in &rows {
                    lines.push(row.get(1));
                    hints.ready((row.get(1), row.get(2)), (row.get::<_, At>(3).0, row.get(0)));
                }
            }
            Announcement::Flagged(rows) => rows.iter().for_each(|row| node::flagged(&mut hints, row.get(1))),
            Announcement::Waits(rows) => {
                for row in &rows {
                    lines.push(row.get(1));
                    if let Some(level) = row.get::<_, Option<i16>>(2) {
                        hints.ready((row.get(1), level), (row.get::<_, At>(3).0, row.get(0)));
                    }
                    let due: Option<Timestamp> = row.get::<_, Option<At>>(4).map(|at| at.0);
                    if let Some(due) = due {
                        hints.due(due);
                    }
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
