//! Finish: how a claim ends, and what it says before.
//!
//! # Invariants
//! - A job leaves `lease` only with the right claim number and node: the delete is the fence.
//! - A claim that was asked to cancel never goes back to waiting.

use std::collections::{BTreeMap, BTreeSet};

use mainspring_core::Error;
use mainspring_core::id::{Claim, NodeNo};
use mainspring_core::job::{Outcome, Progress, State, Status, transition};
use mainspring_core::store::{Finish, Finished};
use uuid::Uuid;

use super::ending::Pass;
use super::limits::limit_key;
use super::limits::settle::{self, Count};
use super::mailbox::{self, came};
use super::node::{self, number_of};
use super::places::{
    canceller, count, end, enter, enter_suspended, enter_timers, fence, is_limited, keep_errors, leave_lease,
    level, return_units, told,
};
use super::{Confirm, Op, family, now, record};
use crate::connection::Conn;
use crate::error::Result;
use crate::hint::Hints;
use crate::names;
use crate::shared::Shared;
use crate::sql::{At, Call, Present, Query, statement};

statement! {
    /// Primary key of `lease`, in order of the numbers: claim number and node are the fence. Then appends. Jobs without flags
    /// touch no other table.
    ///
    /// A join with the arguments would say the same as [`fence`], but be planned by how many rows `lease` was last seen to have,
    /// which is often none: then it goes through all claims for each argument. The same holds for side tables, which are looked
    /// up by arrays of numbers.
    pub(crate) Succeed<'a> = "finish.succeed", by ["lease_pkey", "keys_no", "deadlines_pkey"],
    (at: Present, node: i32, nos: Vec<i64>, claims: Vec<i32>, results: Vec<Option<&'a [u8]>>)
    -> Succeeded { nos: Option<Vec<i64>>, claims: Option<Vec<i32>>, told: Option<Vec<i16>> };
    concat!(
    "WITH ",
    now!(),
    leave_lease!(
        "d",
        fence!(),
        "l.no, l.claim, l.line, l.priority, l.failures, l.flags,
            ($5::bytea[])[width_bucket(l.no, $3::bigint[])] AS result"
    ),
    end!(
        "(SELECT d.*, {state.succeeded} AS state, NULL::smallint AS reason, 0 AS crashes, NULL::text AS note FROM d) e"
    ),
    count!("d", "running", "succeeded"),
    " SELECT array_agg(d.no), array_agg(d.claim), array_agg((d.flags & {flags.told})::smallint) FROM d"
)
}

statement! {
    /// The same for every other outcome. A claim that was flagged and would wait again is cancelled instead.
    pub(crate) End<'a> = "finish.end", by ["lease_pkey", "keys_no", "deadlines_pkey", "errors_pkey"],
    (
        at: Present, node: i32, nos: Vec<i64>, claims: Vec<i32>, states: Vec<i16>, reasons: Vec<Option<i16>>,
        afters: Vec<i64>, faults: Vec<Option<i16>>, messages: Vec<Option<&'a str>>, notes: Vec<Option<&'a str>>,
        resets: Vec<bool>,
    )
    -> Left {
        no: i64, line: i32, state: i32, level: i16, now: At, due: Option<At>, claim: i32, told: i16, limited: bool,
    };
    concat!(
    "WITH ",
    now!(),
    leave_lease!(
        "l",
        fence!(),
        "l.no, l.claim, l.line, l.priority, (l.flags & ~{flag.keeps})::smallint AS flags, l.cancel, l.failures, l.crashes,
            l.crashed,
            width_bucket(l.no, $3::bigint[]) AS o"
    ),
    "
    , d AS (SELECT l.no, l.claim, l.claimed_at, l.node, l.line, l.priority, l.flags, l.cancel, f.state, f.reason, f.after, f.fault, f.message,
            f.note, f.state < {states.first_ended} AND l.cancel IS NOT NULL AS stop,
            least(l.failures + (f.fault IS NOT NULL)::int, 32767)::smallint AS failures,
            CASE WHEN f.resets THEN 0 ELSE l.crashes END::smallint AS crashes,
            CASE WHEN f.resets THEN 0 ELSE l.crashed END AS crashed
        FROM l CROSS JOIN LATERAL (SELECT ($5::smallint[])[o] AS state, ($6::smallint[])[o] AS reason,
            ($7::bigint[])[o] AS after, ($8::smallint[])[o] AS fault, ($9::text[])[o] AS message,
            ($10::text[])[o] AS note, ($11::boolean[])[o] AS resets) f)
    , e AS (SELECT d.no, d.claim, d.claimed_at, d.node, d.line, d.priority, d.flags, d.failures, d.crashes, d.crashed, d.fault, d.message,
            CASE WHEN d.stop THEN {state.cancelled} ELSE d.state END AS state,
            CASE WHEN NOT d.stop THEN d.reason ELSE ",
    canceller!(),
    " END AS reason,
            CASE WHEN d.stop THEN d.cancel ELSE d.note END AS note,
            t.now + d.after * interval '1 us' AS due, ",
    level!("returned"),
    " AS level
        FROM d CROSS JOIN t)",
    end!("(SELECT e.*, NULL::bytea AS result FROM e WHERE e.state >= {states.first_ended}) e"),
    enter_timers!("(SELECT * FROM e WHERE e.state = {state.scheduled}) e"),
    enter!("(SELECT * FROM e WHERE e.state = {state.ready}) e"),
    keep_errors!("(SELECT * FROM e WHERE e.fault IS NOT NULL) e", "e.fault", "e.message"),
    count!("e", "running"),
    " SELECT e.no, e.line, e.state, e.level, t.now, e.due, e.claim, ",
    told!(),
    ", ",
    is_limited!("e.flags"),
    " FROM e, t"
)
}

statement! {
    /// The same for suspensions, whose mailboxes are locked: whoever waits for what has come goes to `ready`. What has come is
    /// found by the primary key of `inbox`, subject by subject.
    pub(crate) Suspend<'a> = "finish.suspend", by ["lease_pkey", "inbox_pkey", "keys_no", "deadlines_pkey", "kept_units_pkey"],
    (
        at: Present, node: i32, nos: Vec<i64>, claims: Vec<i32>, reasons: Vec<i16>, dues: Vec<Option<At>>,
        waits: Vec<String>, notes: Vec<Option<&'a str>>, keeps: Vec<bool>,
    )
    -> Left;
    concat!(
    "WITH ",
    now!(),
    leave_lease!(
        "l",
        fence!(),
        "l.no, l.claim, l.line, l.priority, (l.flags | {flag.journal})::smallint AS flags, l.cancel, l.failures,
            width_bucket(l.no, $3::bigint[]) AS o",
        but_units
    ),
    "
    , d AS (SELECT l.no, l.claim, l.claimed_at, l.node, l.line, l.priority, l.cancel, l.failures, f.reason,
            CASE WHEN f.reason <= {reasons.last_awaiting} THEN f.due END AS due, f.waits, f.note, l.units, l.keeps, f.stays,
            (l.flags & ~{flag.keeps} | CASE WHEN f.stays THEN {flag.keeps} ELSE 0 END)::smallint AS flags
        FROM l CROSS JOIN LATERAL (SELECT ($5::smallint[])[o] AS reason, ($6::timestamptz[])[o] AS due,
            ($7::text[])[o]::jsonb AS waits, ($8::text[])[o] AS note,
            ($9::boolean[])[o] AND l.cancel IS NULL AND l.flags & {flag.limited} <> 0 AS stays) f)
    , e AS MATERIALIZED (SELECT d.*, ({level.returned} + d.priority)::smallint AS level,
            CASE WHEN d.cancel IS NOT NULL THEN {state.cancelled}
                WHEN d.reason <= {reasons.last_awaiting} AND (d.due <= t.now OR EXISTS (
                    SELECT 1 FROM jsonb_array_elements(d.waits) AS w(wait) WHERE ",
    came!("d.no", "w.wait"),
    ")) THEN {state.ready} ELSE {state.suspended} END AS state
        FROM d, t)",
    return_units!("e", "NOT e.stays"),
    // What a claim took of a total goes back in any case.
    "
    , parts AS MATERIALIZED (SELECT e.no, array_agg(u.limit_key) FILTER (WHERE coalesce(l.scope, 0) = 0) AS kept,
            array_agg(u.limit_key) FILTER (WHERE l.scope <> 0) AS free
        FROM e CROSS JOIN LATERAL unnest(e.units) AS u(limit_key)",
    limit_key!("u.limit_key"),
    "WHERE e.stays GROUP BY e.no)
    , keeps AS (INSERT INTO mainspring.kept_units (no, units) SELECT parts.no, parts.kept FROM parts WHERE parts.kept IS NOT NULL)
    , freed AS (INSERT INTO mainspring.returned_units (units) SELECT parts.free FROM parts WHERE parts.free IS NOT NULL)",
    end!(concat!(
        "(SELECT no, line, claim, state, ",
        canceller!(),
        " AS reason, priority, failures, 0 AS crashes, flags, cancel AS note, NULL::bytea AS result,
            claimed_at, node
        FROM e WHERE state = {state.cancelled}) e"
    )),
    enter!("(SELECT e.*, 0 AS crashes, 0 AS crashed FROM e WHERE e.state = {state.ready}) e"),
    enter_suspended!("(SELECT e.*, 0 AS crashes, 0 AS crashed FROM e WHERE e.state = {state.suspended}) e"),
    count!("e", "running"),
    " SELECT e.no, e.line, e.state, e.level, t.now, e.due, e.claim, ",
    told!(),
    ", ",
    is_limited!("e.flags"),
    " FROM e, t"
)
}

statement! {
    /// Primary key of `lease`, in order of the numbers. For batches of more than one statement: each of them keeps to that
    /// order, but all together do not, and whoever flags or gives back the same claims would wait for them in a circle.
    pub(crate) Lock<'a> = "finish.lock", by ["lease_pkey"], (node: i32, nos: Vec<i64>);
    "SELECT count(*) FROM unnest($2::bigint[]) AS f(no)
    CROSS JOIN LATERAL (SELECT 1 FROM mainspring.lease l WHERE l.no = f.no AND l.node = $1 FOR UPDATE) l"
}

statement! {
    /// Unique index of ids; primary keys of `done`, `superseded` and `errors`: whether these very outcomes were applied before.
    pub(crate) Applied<'a> = "finish.applied", by ["jobs_id_key", "done_pkey", "superseded_pkey", "errors_pkey"],
    (
        nos: Vec<i64>, ids: Vec<Uuid>, claims: Vec<i32>, states: Vec<Option<i16>>, reasons: Vec<Option<i16>>,
    )
    -> AppliedBefore { position: i64 };
    "SELECT f.o FROM unnest($1::bigint[], $2::uuid[], $3::int[], $4::smallint[], $5::smallint[])
        WITH ORDINALITY AS f(no, id, claim, state, reason, o)
    CROSS JOIN LATERAL (SELECT 1 FROM mainspring.jobs j WHERE j.no = f.no AND j.id = f.id OFFSET 0) j
    WHERE CASE WHEN f.state IS NULL
        THEN EXISTS (SELECT 1 FROM mainspring.errors e WHERE e.no = f.no AND e.claim = f.claim
            AND e.kind <> {fault.crashed})
        ELSE EXISTS (SELECT 1 FROM mainspring.done d WHERE d.no = f.no AND d.claim = f.claim AND d.state = f.state
                AND d.reason IS NOT DISTINCT FROM f.reason)
            OR EXISTS (SELECT 1 FROM mainspring.superseded d WHERE d.no = f.no AND d.claim = f.claim
                AND d.state = f.state AND d.reason IS NOT DISTINCT FROM f.reason) END"
}

statement! {
    /// Primary keys; a stale claim meets no row of `lease`. The lock on the lease row keeps the claim from ending meanwhile.
    pub(crate) Note<'a> = "finish.progress", by ["lease_pkey", "progress_pkey"],
    (
        node: i32, nos: Vec<i64>, claims: Vec<i32>, done: Vec<i64>, total: Vec<i64>, notes: Vec<&'a str>,
    );
    "WITH l AS (SELECT l.no, l.claim, p.done, p.total, p.note
        FROM unnest($2::bigint[], $3::int[], $4::bigint[], $5::bigint[], $6::text[]) AS p(no, claim, done, total, note)
        CROSS JOIN LATERAL (SELECT no, claim FROM mainspring.lease
            WHERE no = p.no AND claim = p.claim AND node = $1 FOR SHARE) l)
    INSERT INTO mainspring.progress (no, claim, done, total, note)
    SELECT no, claim, done, total, note FROM l ORDER BY no
    ON CONFLICT (no) DO UPDATE SET claim = excluded.claim, done = excluded.done, total = excluded.total,
        note = excluded.note"
}

/// Ends claims.
pub(crate) struct FinishOp {
    pub(crate) node: NodeNo,
    pub(crate) finishes: Vec<Finish>,
}

impl Op for FinishOp {
    type Answer = Vec<Finished>;
    const MOVES: bool = true;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Vec<Finished>> {
        for finish in &self.finishes {
            finish.outcome.check()?;
        }
        let node = node::number(self.node).unwrap_or(-1);
        // In order of the numbers, as locks are taken; and each claim once.
        let mut order: Vec<usize> = (0..self.finishes.len()).collect();
        order
            .sort_by_key(|&index| (self.finishes[index].claim.row, self.finishes[index].claim.number, index));
        order.dedup_by_key(|index| (self.finishes[*index].claim.row, self.finishes[*index].claim.number));
        let passes = self.passes(&order);
        let moved = apply(conn, shared, node, &passes).await?;
        let mut answers = vec![Finished::LeaseLost; self.finishes.len()];
        let mut asked = Vec::new();
        let first: BTreeSet<usize> = order.into_iter().collect();
        for (index, finish) in self.finishes.iter().enumerate() {
            if first.contains(&index) && moved.contains(&(finish.claim.row.0, number_of(&finish.claim))) {
                answers[index] = Finished::Applied;
            } else {
                asked.push(index);
            }
        }
        // What was held is stored by now: a failure from here on must not say that nothing was.
        let before = self.applied_before(conn, &asked).await;
        for index in before.map_err(|_| Error::OutcomeUnknown { source: None })? {
            answers[index] = Finished::Applied;
        }
        Ok(answers)
    }
}

/// Moves what is held. The numbers of the jobs that were, and of their claims.
async fn apply(
    conn: &mut Conn,
    shared: &Shared,
    node: i32,
    passes: &[Pass<'_>],
) -> Result<BTreeSet<(i64, i32)>> {
    let writes = passes.iter().any(|pass| pass.suspended.pages.has_entries());
    match apply_once(conn, shared, node, passes, false).await {
        Err(fault) if writes && record::is_repeat(&fault) => {
            conn.roll_back().await;
            apply_once(conn, shared, node, passes, true).await
        }
        applied => applied,
    }
}

/// The same. `again`: whether entries of suspended jobs may be there already.
async fn apply_once(
    conn: &mut Conn,
    shared: &Shared,
    node: i32,
    passes: &[Pass<'_>],
    again: bool,
) -> Result<BTreeSet<(i64, i32)>> {
    let at = shared.at();
    let held: Vec<i64> = passes.iter().flat_map(Pass::nos).collect::<BTreeSet<i64>>().into_iter().collect();
    let mailbox = shared.mailbox();
    let waiting: Vec<i64> = passes.iter().flat_map(|pass| &pass.suspended.nos).copied().collect();
    let mut calls = Vec::new();
    if !waiting.is_empty() {
        calls.push(mailbox::Lock { mailbox: &mailbox, nos: &waiting }.call());
    }
    if passes.iter().any(|pass| pass.kinds() > 1) || passes.len() > 1 || !waiting.is_empty() {
        calls.push(Lock { node: &node, nos: &held }.call());
    }
    for Pass { succeeded, ended, suspended } in passes {
        if !succeeded.nos.is_empty() {
            calls.push(succeeded.call(&at, &node));
        }
        if !ended.nos.is_empty() {
            calls.push(ended.call(&at, &node));
        }
        if !suspended.nos.is_empty() {
            calls.extend(suspended.pages.calls(&at, &node, again));
            calls.push(suspended.call(&at, &node));
        }
    }
    if calls.is_empty() {
        return Ok(BTreeSet::new());
    }
    // Limit keys are the last locks, and nobody waits for us while we hold one.
    let count = (shared.has_limited(&held) || shared.names().has_totals()).then(|| Count::new(shared, &at));
    // Whoever has children takes those that wait with it, in the same commit; all others are one round trip.
    let is_parent = shared.has_parents(&held);
    let last: Vec<Call<'_>> = count.iter().flat_map(Count::calls).collect();
    let plain = calls.len();
    if !is_parent {
        calls.extend(count.iter().flat_map(Count::calls));
    }
    let mut answers =
        if is_parent { conn.begin(shared, "", &calls).await? } else { conn.commit(shared, &calls).await? };
    let mut counted = answers.split_off(plain);
    let (mut moved, mut unsent, mut left) = (BTreeSet::new(), Vec::new(), Vec::new());
    for (call, rows) in calls.iter().zip(&answers) {
        if call.is::<Succeed<'_>>() {
            let Some(Succeeded { nos, claims, told }) = Succeed::first(rows)? else { continue };
            let nos = nos.unwrap_or_default();
            let told = nos.iter().copied().zip(told.unwrap_or_default());
            unsent.extend(told.filter(|(_, told)| *told != 0));
            moved.extend(nos.into_iter().zip(claims.unwrap_or_default()));
        } else if call.is::<End<'_>>() || call.is::<Suspend<'_>>() {
            left.extend(End::rows(rows)?);
        }
    }
    moved.extend(left.iter().map(|job| (job.no, job.claim)));
    unsent.extend(left.iter().filter(|job| job.told != 0).map(|job| (job.no, job.told)));
    if is_parent {
        let children = family::cancel_waiting(conn, &at, &unsent).await?;
        unsent.extend(children);
        counted = conn.end(&last).await?;
        shared.forget_parents(&held);
    }
    if let Some(rows) = counted.last() {
        shared.forget_limited(&held);
        settle::announce(conn, shared, rows).await;
    }
    announce(conn, shared, &left).await;
    family::notify(conn, shared, unsent).await;
    Ok(moved)
}

impl FinishOp {
    /// These claims, so that no pass has a job twice. Nearly always one pass.
    fn passes(&self, order: &[usize]) -> Vec<Pass<'_>> {
        let mut passes: Vec<Pass<'_>> = Vec::new();
        let (mut previous, mut pass) = (None, 0);
        for finish in order.iter().map(|&index| &self.finishes[index]) {
            pass = if previous == Some(finish.claim.row) { pass + 1 } else { 0 };
            previous = Some(finish.claim.row);
            if passes.len() <= pass {
                passes.push(Pass::default());
            }
            passes[pass].add(finish);
        }
        passes
    }

    /// Those of these that were applied before, as far as they left a trace.
    async fn applied_before(&self, conn: &mut Conn, asked: &[usize]) -> Result<Vec<usize>> {
        let mut kept = Vec::new();
        let (mut nos, mut ids, mut claims, mut states, mut reasons) =
            (vec![], vec![], vec![], vec![], vec![]);
        for &index in asked {
            let Finish { claim, outcome } = &self.finishes[index];
            let status = match outcome {
                Outcome::Succeed { .. } | Outcome::Fail { .. } | Outcome::Cancel { .. } => {
                    transition(Status::plain(State::Running), outcome.input()).ok()
                }
                Outcome::Retry { .. } => None,
                Outcome::Snooze { .. } | Outcome::Release | Outcome::Suspend(_) => continue,
            };
            kept.push(index);
            nos.push(claim.row.0);
            ids.push(Uuid::from_bytes(*claim.id.as_bytes()));
            claims.push(number_of(claim));
            states.push(status.map(|status| i16::from(status.state.code())));
            reasons.push(status.and_then(|status| status.reason).map(|reason| i16::from(reason.code())));
        }
        if kept.is_empty() {
            return Ok(Vec::new());
        }
        let applied =
            Applied { nos: &nos, ids: &ids, claims: &claims, states: &states, reasons: &reasons }.call();
        let applied = Applied::rows(&conn.send(&applied).await?)?;
        if !applied.is_empty() {
            conn.send(&Confirm.call()).await?;
        }
        let index = |row: AppliedBefore| kept.get(usize::try_from(row.position - 1).ok()?).copied();
        Ok(applied.into_iter().filter_map(index).collect())
    }
}

/// Tells where jobs wait now.
async fn announce(conn: &mut Conn, shared: &Shared, left: &[Left]) {
    names::learn_for_hints(conn, shared, left.iter().map(|job| job.line)).await;
    let mut hints = Hints::default();
    for job in left {
        match u8::try_from(job.state).ok().and_then(State::from_code) {
            Some(State::Scheduled | State::Suspended) => {
                job.due.into_iter().for_each(|due| hints.due(due.0));
            }
            Some(State::Ready) => hints.enter(job.limited, (job.line, job.level), (job.now.0, job.no)),
            _ => {}
        }
    }
    hints.send(conn, shared).await;
}

/// Keeps what handlers say of their progress.
pub(crate) struct ProgressOp {
    pub(crate) node: NodeNo,
    pub(crate) progress: Vec<(Claim, Progress)>,
}

impl Op for ProgressOp {
    type Answer = ();

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<()> {
        let node = node::number(self.node).unwrap_or(-1);
        // Of several notes of one claim the last one counts.
        let last: BTreeMap<i64, &(Claim, Progress)> =
            self.progress.iter().map(|one| (one.0.row.0, one)).collect();
        if last.is_empty() {
            return Ok(());
        }
        let count = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let nos: Vec<i64> = last.keys().copied().collect();
        let claims: Vec<i32> = last.values().map(|(claim, _)| number_of(claim)).collect();
        let done: Vec<i64> = last.values().map(|(_, it)| count(it.done)).collect();
        let total: Vec<i64> = last.values().map(|(_, it)| count(it.total)).collect();
        let notes: Vec<&str> = last.values().map(|(_, it)| it.note.as_str()).collect();
        let note =
            Note { node: &node, nos: &nos, claims: &claims, done: &done, total: &total, notes: &notes }
                .call();
        conn.commit(shared, &[note]).await?;
        Ok(())
    }
}
