//! Claims of limited jobs: by the turns of their groups.
//!
//! The first statement locks turns and the limit keys of their groups. The second looks at jobs and keys, and decides: how many
//! jobs of each group, who goes on having a turn, and who is blocked where. A group gets what its keys have left of what all groups
//! before it have asked for: never too much. If that is too little, its turn stays, and the next round makes up for it.
//!
//! # Invariants
//! - A turn goes only if a look saw no more jobs of its group than were taken, or if its group is blocked at a key or has a
//!   later turn.
//! - The first group whose keys have room for it gets a job. So rounds without a job end.

use std::collections::BTreeSet;

use mainspring_core::Error;
use mainspring_core::name::QueueName;
use mainspring_core::store::{ClaimRequest, Class};
use mainspring_core::time::Timestamp;

use super::{fits, key_columns, leave_keys, limit_key, lock_keys, room};
use crate::connection::Conn;
use crate::error::{Result, corrupt};
use crate::hint::Hints;
use crate::idle_poll;
use crate::names;
use crate::op::claim::{Found, Job, LockAndTouch, Plan, Taken, class, plain, take, taken_of};
use crate::op::now;
use crate::op::places::{count, leave_limited};
use crate::scan_bounds::{LineLevel, Position, bound_args};
use crate::shared::Shared;
use crate::sql::statement::row;
use crate::sql::{At, Present, Query, statement};

statement! {
    /// Primary key of `group_turns` from the bounds on, stepping over what others hold; then the keys of the groups, and those of
    /// totals. The transaction remembers the turns. Nothing for a node that is not live, or by settings that have changed.
    pub(crate) ChooseTurns<'a> = "limits.choose_turns",
    by ["nodes_pkey", "meta_pkey", "queues_pkey", "group_turns_pkey", "limit_groups_pkey", "limit_keys_pkey"],
    (
        node: i32, settlements: i32, settings: &'a str, lines: Vec<i32>, levels: Vec<i16>, bound_at: Vec<At>,
        bound_no: Vec<i64>, queues: Vec<i32>, visits: i64, totals: Vec<i64>,
    );
    concat!(
    "WITH p AS MATERIALIZED (SELECT * FROM unnest($4::int[], $5::smallint[], $6::timestamptz[], $7::bigint[], $8::int[])
            AS u(line, level, bound_at, bound_no, queue)
        WHERE EXISTS (SELECT 1 FROM mainspring.nodes WHERE no = $1 AND state = {node.live} AND settlements = $2)
            AND coalesce((SELECT value FROM mainspring.meta WHERE key = 'settings'), '') = $3
            AND NOT EXISTS (SELECT 1 FROM mainspring.queues q WHERE q.no = u.queue AND q.paused))
    , v AS MATERIALIZED (SELECT x.tid, x.limit_group FROM p CROSS JOIN LATERAL (
            SELECT ctid AS tid, limit_group FROM mainspring.group_turns g
            WHERE g.line = p.line AND g.level = p.level AND (g.at, g.no) > (p.bound_at, p.bound_no)
            ORDER BY g.at, g.no LIMIT $9 FOR UPDATE SKIP LOCKED) x LIMIT $9)
    , k AS MATERIALIZED (SELECT DISTINCT y.limit_key FROM (
            SELECT unnest(g.units) AS limit_key FROM (SELECT DISTINCT v.limit_group FROM v) d
            CROSS JOIN LATERAL (SELECT units FROM mainspring.limit_groups WHERE no = d.limit_group OFFSET 0) g
            UNION ALL SELECT unnest($10::bigint[])) y ORDER BY y.limit_key)",
    lock_keys!(),
    " SELECT set_config('mainspring_limits.turns', (SELECT coalesce(array_agg(v.tid), '{}') FROM v)::text, true),
        (SELECT count(*) FROM locked)"
)
}

row! {
    /// A job that was claimed, if any; and on the first row what became of turns: of each pair the last one that is gone, the first
    /// one that stays, and how many were visited; and the pairs that have new ones.
    pub(crate) FoundLimited after Found {
        visited: Option<Vec<i64>>, gone_at: Option<Vec<Option<At>>>, gone_no: Option<Vec<Option<i64>>>,
        stays_at: Option<Vec<Option<At>>>, stays_no: Option<Vec<Option<i64>>>, turn_lines: Option<Vec<i32>>,
        turn_levels: Option<Vec<i16>>,
    }
}

statement! {
    /// The turns that were locked; index `limited_claim` for each of their groups, stepping over what others hold; the primary key
    /// of `limit_keys`, whose rows are locked; `blocked_groups` from the head of each key. `$4`: the lines, with their queues and
    /// how many are wanted of those, and with the keys of their totals.
    pub(crate) TakeLimited<'a> = "limits.take",
    by [
        "limit_groups_pkey", "limited_claim", "limit_keys_pkey", "limits_pkey", "blocked_groups_pkey", "jobs_pkey", "keys_no",
    ],
    (
        at: Present, node: i32, batch: i64, lines: Vec<i32>, queues: Vec<i32>, wants: Vec<i32>, totals: Vec<Option<i64>>,
        kind_totals: Vec<Option<i64>>, suspects: i64, pair_lines: Vec<i32>, pair_levels: Vec<i16>, settlements: i32, ahead: bool,
    )
    -> FoundLimited;
    concat!(
    "WITH ",
    now!(),
    ", c AS MATERIALIZED (SELECT (extract(epoch FROM t.now) * 1000000)::bigint AS us FROM t)
    , q AS MATERIALIZED (SELECT u.line, u.queue, u.want,
            array_remove(ARRAY[u.total, u.kind_total], NULL) AS totals
        FROM unnest($4::int[], $5::int[], $6::int[], $7::bigint[], $8::bigint[]) AS u(line, queue, want, total, kind_total))
    , v AS MATERIALIZED (SELECT g.ctid AS tid, g.line, g.level, g.at, g.no, g.limit_group,
            (g.limit_group::bigint << 1) + (g.level < {level.lost})::int AS source
        FROM mainspring.group_turns g WHERE g.ctid = ANY(nullif(current_setting('mainspring_limits.turns', true), '')::tid[]))
    , a AS MATERIALIZED (SELECT v.source, v.limit_group, v.line, min(v.level) AS level, min(v.at) AS at, min(v.no) AS no,
            count(*) AS turns
        FROM v GROUP BY v.source, v.limit_group, v.line)
    , b AS MATERIALIZED (SELECT a.source, a.limit_group, a.line, a.level, a.turns, q.queue, q.want, g.units || q.totals AS units,
            a.level < {level.lost} AS suspect,
            CASE WHEN a.level < {level.lost} THEN $9
                ELSE (q.want - 1) / count(*) OVER (PARTITION BY q.queue, a.level) + 1 END AS most,
            row_number() OVER (ORDER BY a.level, a.at, a.no) AS o
        FROM a CROSS JOIN LATERAL (SELECT * FROM q WHERE q.line = a.line LIMIT 1) q
        CROSS JOIN LATERAL (SELECT units FROM mainspring.limit_groups WHERE no = a.limit_group OFFSET 0) g)
    , s AS MATERIALIZED (SELECT b.*, c.levels, least(c.claimable, b.most) AS asked FROM b CROSS JOIN LATERAL (
            SELECT array_agg(r.level) AS levels, count(*) FILTER (WHERE r.level <= b.level) AS claimable FROM (
                SELECT r.level FROM mainspring.limited r WHERE r.limit_group = b.limit_group
                    AND r.level >= CASE WHEN b.suspect THEN {level.suspect} ELSE {level.lost} END
                    AND r.level <= CASE WHEN b.suspect THEN {level.lost} - 1 ELSE {level.last} END
                ORDER BY r.level, r.ready_at, r.no LIMIT greatest(b.most, 0) + 1) r) c)
    , m AS MATERIALIZED (SELECT s.source, s.o, s.limit_group, s.line AS of_line, s.level, s.turns, s.queue, s.want, s.suspect,
            s.levels, s.asked, u.each, k.*
        FROM s CROSS JOIN LATERAL (
            SELECT y.limit_key, count(*) AS each FROM unnest(s.units) AS y(limit_key) GROUP BY y.limit_key) u
        CROSS JOIN LATERAL (SELECT ",
    key_columns!("x.in_use"),
    " FROM c",
    limit_key!("u.limit_key"),
    ") k)
    , m1 AS (SELECT m.*, least(m.asked, min(",
    room!("m.each", "m.free", "m.tokens", "m.burst"),
    ") OVER (PARTITION BY m.source)) AS ask FROM m)
    , m2 AS (SELECT m1.*, coalesce(sum(m1.ask * m1.each) OVER (PARTITION BY m1.limit_key ORDER BY m1.o
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)::bigint AS before FROM m1)
    , m3 AS MATERIALIZED (SELECT m2.*, least(m2.ask, min(",
    room!("m2.each", "m2.free - m2.before", "(m2.tokens - m2.before)", "m2.burst"),
    ") OVER (PARTITION BY m2.source)) AS granted FROM m2)
    , g1 AS (SELECT m3.source, m3.o, m3.limit_group, m3.queue, m3.suspect, m3.level, min(m3.want) AS want,
            min(m3.granted) AS granted
        FROM m3 GROUP BY m3.source, m3.o, m3.limit_group, m3.queue, m3.suspect, m3.level)
    , g2 AS (SELECT g1.*, CASE WHEN NOT g1.suspect THEN g1.granted
            ELSE least(g1.granted, greatest($9 - coalesce(sum(g1.granted) OVER (PARTITION BY g1.suspect ORDER BY g1.o
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0), 0)) END AS allowed FROM g1)
    , g3 AS MATERIALIZED (SELECT g2.*, least(g2.allowed, greatest(g2.want - coalesce(sum(g2.allowed) OVER (PARTITION BY g2.queue
            ORDER BY g2.o ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0), 0))::bigint AS taking FROM g2)",
    leave_limited!(
        "d",
        "ctid = ANY(ARRAY(SELECT r.tid FROM g3 CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM mainspring.limited r WHERE r.limit_group = g3.limit_group
                AND r.level >= CASE WHEN g3.suspect THEN {level.suspect} ELSE {level.lost} END AND r.level <= g3.level
            ORDER BY r.level, r.ready_at, r.no LIMIT g3.taking FOR UPDATE SKIP LOCKED) r))",
        "p.no, p.line, p.limit_group, p.level, p.ready_at, p.claim + 1 AS claim, p.failures, p.crashes, p.crashed, p.flags"
    ),
    "
    , l AS (INSERT INTO mainspring.lease
            (no, claimed_at, batch, crashed, line, claim, node, priority, failures, crashes, flags, units)
        SELECT d.no, (SELECT t.now FROM t), $3, d.crashed, d.line, d.claim, $2, d.level & {level.priority_bits}, d.failures,
            d.crashes, (d.flags | CASE WHEN $13 AND d.level >= {level.returned} THEN {flag.ahead} ELSE 0 END)::smallint, (SELECT g.units FROM mainspring.limit_groups g WHERE g.no = d.limit_group)
                || (SELECT q.totals FROM q WHERE q.line = d.line LIMIT 1)
        FROM d)",
    "
    , started AS (DELETE FROM mainspring.keys k
        WHERE k.no = ANY(ARRAY(SELECT d.no FROM d WHERE d.flags & {flag.key_until_started} <> 0))
            AND k.until = {until.started})",
    count!("d", "ready", "running"),
    "
    , ta AS MATERIALIZED (SELECT coalesce(array_agg(y.source ORDER BY y.source), '{}') AS sources,
            coalesce(array_agg(y.n ORDER BY y.source), '{}') AS ns
        FROM (SELECT (d.limit_group::bigint << 1) + (d.level < {level.lost})::int AS source, count(*) AS n FROM d GROUP BY 1) y)
    , m4 AS (SELECT m3.*, CASE WHEN (ta.sources)[width_bucket(m3.source, ta.sources)] = m3.source
            THEN (ta.ns)[width_bucket(m3.source, ta.sources)] ELSE 0 END AS took FROM m3, ta)
    , m5 AS (SELECT m4.*, (sum(m4.took * m4.each) OVER (PARTITION BY m4.limit_key))::bigint AS used FROM m4)
    , m6 AS (SELECT m5.*, min(CASE WHEN NOT ",
    fits!("m5.each", "m5.free - m5.used", "m5.tokens - m5.used", "m5.burst"),
    " THEN m5.limit_key END) OVER (PARTITION BY m5.source) AS blocked_at FROM m5)
    , m7 AS MATERIALIZED (SELECT m6.*, (m6.levels)[(m6.took + 1)::int] AS next_level,
            (m6.levels)[(m6.took + 1)::int] <= m6.level AND m6.blocked_at = m6.limit_key AS blocks,
            (m6.levels)[(m6.took + 1)::int] <= m6.level AND m6.blocked_at IS NULL AND m6.took = 0 AND m6.turns = 1 AS stays
        FROM m6)
    , kk AS MATERIALIZED (SELECT m7.limit_key, m7.generation, m7.head, m7.tail, m7.blocked, m7.line, m7.interval, m7.burst, m7.full_at,
            (m7.free - m7.used)::bigint AS free, (m7.tokens - m7.used)::bigint AS tokens, m7.used AS taken, 0::bigint AS given,
            m7.used AS spent, count(*) FILTER (WHERE m7.blocks) AS more,
            CASE WHEN min(m7.of_line) FILTER (WHERE m7.blocks) = max(m7.of_line) FILTER (WHERE m7.blocks)
                THEN min(m7.of_line) FILTER (WHERE m7.blocks) ELSE 0 END AS more_line
        FROM m7 GROUP BY m7.limit_key, m7.generation, m7.head, m7.tail, m7.blocked, m7.line, m7.interval, m7.burst,
            m7.full_at, m7.free, m7.tokens, m7.used)",
    leave_keys!(),
    "
    , sa AS MATERIALIZED (SELECT coalesce(array_agg(y.source ORDER BY y.source), '{}') AS sources
        FROM (SELECT DISTINCT m7.source FROM m7 WHERE m7.stays) y)
    , v2 AS MATERIALIZED (SELECT v.*, coalesce((sa.sources)[width_bucket(v.source, sa.sources)] = v.source, false) AS stays FROM v, sa)
    , gone AS (DELETE FROM mainspring.group_turns WHERE ctid = ANY(ARRAY(SELECT v2.tid FROM v2 WHERE NOT v2.stays)))
    , stuck AS (INSERT INTO mainspring.blocked_groups (limit_key, seq, line, limit_group, level, units)
        SELECT m7.limit_key, m7.tail + row_number() OVER (PARTITION BY m7.limit_key ORDER BY m7.o), m7.of_line, m7.limit_group,
            m7.next_level, m7.each FROM m7 WHERE m7.blocks)
    , turned AS (INSERT INTO mainspring.group_turns (line, level, at, limit_group)
        SELECT i.line, i.level, t.now, i.limit_group FROM let_in i, t
        UNION ALL SELECT DISTINCT m7.of_line, m7.next_level, t.now, m7.limit_group FROM m7, t
            WHERE m7.next_level > m7.level OR m7.blocked_at IS NULL AND m7.next_level IS NOT NULL AND NOT m7.stays
        RETURNING line, level)
    , told AS MATERIALIZED (SELECT array_agg(y.line) AS lines, array_agg(y.level) AS levels
        FROM (SELECT DISTINCT line, level FROM turned) y)
    , said AS MATERIALIZED (SELECT array_agg(z.n ORDER BY u.o) AS visited, array_agg(z.gone_at ORDER BY u.o) AS gone_at,
            array_agg(z.gone_no ORDER BY u.o) AS gone_no, array_agg(z.stays_at ORDER BY u.o) AS stays_at,
            array_agg(z.stays_no ORDER BY u.o) AS stays_no
        FROM unnest($10::int[], $11::smallint[]) WITH ORDINALITY AS u(line, level, o) CROSS JOIN LATERAL (
            SELECT count(*) AS n, max(v2.at) FILTER (WHERE NOT v2.stays) AS gone_at,
                (array_agg(v2.no ORDER BY v2.at DESC, v2.no DESC) FILTER (WHERE NOT v2.stays))[1] AS gone_no,
                min(v2.at) FILTER (WHERE v2.stays) AS stays_at,
                (array_agg(v2.no ORDER BY v2.at, v2.no) FILTER (WHERE v2.stays))[1] AS stays_no
            FROM v2 WHERE v2.line = u.line AND v2.level = u.level) z)
    SELECT t.now, EXISTS (SELECT 1 FROM mainspring.nodes WHERE no = $2 AND state = {node.live} AND settlements = $12) AS live,
        (SELECT value FROM mainspring.meta WHERE key = 'settings') AS settings,
        d.no, d.line, d.level, d.ready_at, d.claim, d.failures, d.crashes, d.crashed,
        (d.flags | CASE WHEN $13 AND d.level >= {level.returned} THEN {flag.ahead} ELSE 0 END)::smallint,
        j.id, j.created_at, j.deadline, j.options::text,
        CASE WHEN octet_length(j.input) <= {bound.claim_input_bytes} THEN j.input END AS input,
        octet_length(j.input), NULL::bigint[], NULL::int[], said.visited, said.gone_at, said.gone_no, said.stays_at, said.stays_no,
        told.lines, told.levels
    FROM t CROSS JOIN said CROSS JOIN told LEFT JOIN (d CROSS JOIN LATERAL (
        SELECT id, created_at, deadline, options, input FROM mainspring.jobs WHERE no = d.no OFFSET 0) j) ON true"
)
}

/// How often a claim goes on in one queue. Each round takes a job, moves a turn, or finds less than there was.
const ROUNDS: usize = 100;
/// Turns that one round visits at least, and at most.
const VISITS: (usize, usize) = (64, 1_000);

/// The queues of a request in which groups have turns, or that have totals: claimed from one by one.
pub(crate) fn special_queues(shared: &Shared, request: &ClaimRequest, node: i32) -> BTreeSet<QueueName> {
    let (nodes, names) = (shared.nodes(), shared.names());
    let mut turn_bounds = shared.turn_bounds();
    let Some(local) = nodes.get(&node) else { return BTreeSet::new() };
    if !turn_bounds.is_active() && !names.has_totals() {
        return BTreeSet::new();
    }
    let now = idle_poll::present(shared).unwrap_or_else(|| shared.clock.now());
    let asked: BTreeSet<&QueueName> =
        request.queues.iter().filter(|(_, limit)| *limit > 0).map(|(queue, _)| queue).collect();
    let lines = names.lines().filter(|(_, line)| {
        asked.contains(&line.queue_name) && local.abilities.runs(&line.kind_name, &line.labels, now)
    });
    let special = lines
        .filter(|(no, line)| names.totals_of(line) != (None, None) || turn_bounds.plan(*no).next().is_some());
    special.map(|(_, line)| line.queue_name.clone()).collect()
}

/// Claims from all queues, from these one by one.
pub(crate) async fn claim(
    conn: &mut Conn,
    shared: &Shared,
    request: &ClaimRequest,
    (node, batch): (i32, i64),
    special: &BTreeSet<QueueName>,
) -> Result<Taken> {
    let queues: Vec<(QueueName, usize)> =
        request.queues.iter().filter(|(queue, _)| !special.contains(queue)).cloned().collect();
    let rest = ClaimRequest { queues, ..request.clone() };
    let mut taken = if rest.queues.is_empty() {
        Taken::nothing(Timestamp::EPOCH)
    } else {
        plain(conn, shared, &rest, node, batch).await?
    };
    let mut suspects = request.suspects.saturating_sub(taken.suspects());
    let mut seen = BTreeSet::new();
    for (queue, limit) in request.queues.iter().filter(|(queue, _)| special.contains(queue)) {
        let no = shared.names().queue_no(queue);
        let Some(no) = no.filter(|_| *limit > 0 && seen.insert(queue)) else { continue };
        let mut one = OneQueue {
            request,
            node,
            batch,
            queue,
            no,
            want: *limit,
            plain_from: i16::MIN,
            turns_from: i16::MIN,
            lost: request.lost(queue),
            suspects,
            taken: Taken::nothing(Timestamp::EPOCH),
        };
        one.claim(conn, shared).await?;
        suspects = one.suspects;
        shared.waiting(&[(no, one.want > 0)]);
        taken.extend(one.taken);
    }
    if taken.is_timeless() {
        // Nothing was asked of the store.
        taken.extend(plain(conn, shared, &rest, node, batch).await?);
    }
    taken.sort(&request.queues, shared)?;
    Ok(taken)
}

/// A claim from one queue: what is still to be claimed, and what was.
struct OneQueue<'a> {
    request: &'a ClaimRequest,
    node: i32,
    batch: i64,
    queue: &'a QueueName,
    no: i32,
    want: usize,
    /// Levels below these have no more to give.
    plain_from: i16,
    turns_from: i16,
    lost: usize,
    suspects: usize,
    taken: Taken,
}

/// Turns of a line and level, with the bound behind which they are visited.
type TurnPair = (LineLevel, Position);

impl OneQueue<'_> {
    /// Claims by level. Within a level, plain and limited jobs get half of what is wanted each, and the rest in the next round.
    async fn claim(&mut self, conn: &mut Conn, shared: &Shared) -> Result<()> {
        for round in 0..ROUNDS {
            if self.want == 0 {
                break;
            }
            let (turns, looks) = (self.turns(shared), self.looks(shared));
            let level = |pair: &LineLevel| pair.1;
            let limited = turns.iter().map(|(pair, _)| level(pair)).min();
            let plain = looks.iter().map(level).min();
            let share = match (limited, plain) {
                (None, None) => break,
                (Some(limited), Some(plain)) if limited == plain => {
                    let even = (usize::try_from(self.batch).unwrap_or(0) + round) % 2;
                    self.want.div_ceil(2) - usize::from(even == 0 && self.want % 2 == 1)
                }
                (Some(limited), plain) if plain.is_none_or(|plain| limited < plain) => self.want,
                _ => 0,
            };
            let before = self.want;
            if share > 0 {
                let until = plain.unwrap_or(i16::MAX);
                let first = limited.unwrap_or(0);
                let visited = turns.into_iter().filter(|(pair, _)| pair.1 < until || pair.1 == first);
                self.take_limited(conn, shared, visited.collect(), share).await?;
            }
            // What limited jobs have left of their share is for the next round.
            if share < before && plain.is_some() {
                let want = self.want.min(before - share);
                let until = limited.unwrap_or(i16::MAX);
                let last = plain.map_or(until, |plain| if plain == until { plain } else { until - 1 });
                self.take_plain(conn, shared, want, last, round + 1 == ROUNDS).await?;
            }
        }
        Ok(())
    }

    /// How many limited jobs may be claimed: they are for free slots, which the first jobs have.
    fn limited(&self) -> usize {
        self.request.limited(self.queue).saturating_sub(self.taken.len())
    }

    /// Whether jobs of this level may be claimed.
    fn admits(&self, level: i16) -> bool {
        match class(level) {
            Class::Suspect => self.suspects > 0,
            Class::Lost => self.lost > 0,
            Class::Returned | Class::Fresh => true,
        }
    }

    /// The pairs of this queue that may have turns.
    fn turns(&self, shared: &Shared) -> Vec<TurnPair> {
        if self.limited() == 0 {
            return Vec::new();
        }
        let (nodes, names) = (shared.nodes(), shared.names());
        let mut turn_bounds = shared.turn_bounds();
        let Some(local) = nodes.get(&self.node) else { return Vec::new() };
        let now = idle_poll::present(shared).unwrap_or_else(|| shared.clock.now());
        let mut turns: Vec<TurnPair> = Vec::new();
        for (no, line) in names.lines().filter(|(_, line)| line.queue == self.no) {
            if local.abilities.runs(&line.kind_name, &line.labels, now) {
                let admitted = |(pair, _): &TurnPair| pair.1 >= self.turns_from && self.admits(pair.1);
                turns.extend(turn_bounds.plan(no).filter(admitted));
            }
        }
        turns.sort_by_key(|(pair, _)| (pair.1, pair.0));
        turns
    }

    /// The pairs of this queue that may have plain jobs.
    fn looks(&self, shared: &Shared) -> Vec<LineLevel> {
        let plan = Plan::new(shared, &self.rest(self.want), self.node);
        plan.pairs().filter(|pair| pair.1 >= self.plain_from && self.admits(pair.1)).collect()
    }

    /// What is left of the request, for so many plain jobs.
    fn rest(&self, want: usize) -> ClaimRequest {
        let free = self.request.free(self.queue).saturating_sub(self.taken.len());
        let ahead = vec![(self.queue.clone(), want.saturating_sub(free))];
        let queues = vec![(self.queue.clone(), want)];
        ClaimRequest { queues, ahead, suspects: self.suspects, ..self.request.clone() }
    }

    async fn take_plain(
        &mut self,
        conn: &mut Conn,
        shared: &Shared,
        want: usize,
        last_level: i16,
        last_try: bool,
    ) -> Result<()> {
        let mut plan = Plan::new(shared, &self.rest(want), self.node);
        plan.narrow(self.lost, |level| level >= self.plain_from && level <= last_level && self.admits(level));
        let settings = shared.names().settings().to_owned();
        let (taken, _) = take(conn, shared, &plan, self.node, self.batch, last_try).await?;
        if taken.len() < want && *shared.names().settings() == settings {
            self.plain_from = last_level.saturating_add(1);
        }
        self.add(taken);
        Ok(())
    }

    fn add(&mut self, taken: Taken) {
        self.want = self.want.saturating_sub(taken.len());
        self.suspects = self.suspects.saturating_sub(taken.suspects());
        self.lost = self.lost.saturating_sub(taken.lost());
        self.taken.extend(taken);
    }

    /// Visits turns, and takes so many jobs at most.
    async fn take_limited(
        &mut self,
        conn: &mut Conn,
        shared: &Shared,
        mut turns: Vec<TurnPair>,
        share: usize,
    ) -> Result<()> {
        let first = turns.first().map_or(Class::Fresh, |(pair, _)| class(pair.1));
        // Classes are bounded one by one.
        turns.retain(|(pair, _)| class(pair.1) == first || first > Class::Lost);
        let most = match first {
            Class::Suspect => self.suspects,
            Class::Lost => self.lost,
            Class::Returned | Class::Fresh => share,
        };
        let visit = Visit::new(shared, &turns, self.no, share.min(self.limited()).min(most))?;
        let mut found = self.visit(conn, shared, &visit).await?;
        let Some(first) = found.first_mut() else { return Err(corrupt("a claim without an answer")) };
        if !first.base.live {
            return Err(Error::LeaseLost.into());
        }
        let now = first.base.now.0;
        let settings = first.base.settings.take().unwrap_or_default();
        let told = Told {
            visited: first.visited.take().unwrap_or_default(),
            gone: zip(first.gone_at.take(), first.gone_no.take()),
            stays: zip(first.stays_at.take(), first.stays_no.take()),
        };
        let lines = first.turn_lines.take().unwrap_or_default().into_iter();
        let turned: Vec<LineLevel> = lines.zip(first.turn_levels.take().unwrap_or_default()).collect();
        let jobs: Vec<Job> = found.into_iter().filter_map(|row| row.base.job()).collect();
        names::learn(conn, shared, jobs.iter().map(|job| job.line), &settings).await?;
        if visit.settings == settings {
            let paused = shared.names().queue(self.no).is_ok_and(|queue| queue.settings.paused);
            if !told.remember(shared, &turns, visit.visits, paused) && jobs.is_empty() {
                self.turns_from = turns.last().map_or(i16::MAX, |(pair, _)| pair.1).saturating_add(1);
            }
        }
        if !jobs.is_empty() {
            shared.moved();
        }
        let taken = taken_of(conn, shared, jobs, now).await?;
        self.add(taken);
        self.tell(conn, shared, turned, now).await;
        Ok(())
    }

    async fn visit(&self, conn: &mut Conn, shared: &Shared, visit: &Visit) -> Result<Vec<FoundLimited>> {
        let (at, class_no, settings) = (shared.at(), shared.class(), visit.settings.as_str());
        let settlements = shared.nodes().get(&self.node).map_or(0, |local| local.settlements);
        let suspects = i64::try_from(self.suspects.min(self.want)).unwrap_or(i64::MAX);
        // Where no slot is free, one waits for the next.
        let ahead = self.request.free(self.queue) <= self.taken.len();
        let calls = [
            LockAndTouch { at: &at, node: &self.node, class: &class_no }.call(),
            ChooseTurns {
                node: &self.node,
                settlements: &settlements,
                settings: &settings,
                lines: &visit.lines,
                levels: &visit.levels,
                bound_at: &visit.bound_at,
                bound_no: &visit.bound_no,
                queues: &visit.queues,
                visits: &visit.visits,
                totals: &visit.totals,
            }
            .call(),
            TakeLimited {
                at: &at,
                node: &self.node,
                batch: &self.batch,
                lines: &visit.line_nos,
                queues: &visit.line_queues,
                wants: &visit.wants,
                totals: &visit.queue_totals,
                kind_totals: &visit.kind_totals,
                suspects: &suspects,
                pair_lines: &visit.lines,
                pair_levels: &visit.levels,
                settlements: &settlements,
                ahead: &ahead,
            }
            .call(),
        ];
        TakeLimited::rows(&conn.commit(shared, &calls).await?.pop().unwrap_or_default())
    }

    /// Remembers new turns; and tells others of those of queues that nobody claims from here.
    async fn tell(&self, conn: &mut Conn, shared: &Shared, turned: Vec<LineLevel>, now: Timestamp) {
        let others = {
            let names = shared.names();
            let mut turn_bounds = shared.turn_bounds();
            for pair in &turned {
                turn_bounds.add(*pair, (now, 0));
            }
            turned.iter().any(|(line, _)| names.line(*line).is_ok_and(|line| line.queue != self.no))
        };
        if others {
            let mut hints = Hints::default();
            for pair in turned {
                hints.turn(pair, now);
            }
            hints.send(conn, shared).await;
        }
    }
}

/// What one round visits, as arguments: pairs of lines and levels, and their lines once each.
struct Visit {
    settings: String,
    visits: i64,
    lines: Vec<i32>,
    levels: Vec<i16>,
    bound_at: Vec<At>,
    bound_no: Vec<i64>,
    queues: Vec<i32>,
    line_nos: Vec<i32>,
    line_queues: Vec<i32>,
    wants: Vec<i32>,
    queue_totals: Vec<Option<i64>>,
    kind_totals: Vec<Option<i64>>,
    totals: Vec<i64>,
}

impl Visit {
    fn new(shared: &Shared, turns: &[TurnPair], queue: i32, want: usize) -> Result<Self> {
        let visits = want.saturating_mul(2).clamp(VISITS.0, VISITS.1);
        let (bound_at, bound_no): (Vec<At>, Vec<i64>) =
            turns.iter().map(|(_, bound)| bound_args(*bound)).unzip();
        let line_nos: BTreeSet<i32> = turns.iter().map(|(pair, _)| pair.0).collect();
        let (mut queue_totals, mut kind_totals) = (Vec::new(), Vec::new());
        let names = shared.names();
        for no in &line_nos {
            let (of_queue, of_kind) = names.totals_of(names.line(*no)?);
            queue_totals.push(of_queue);
            kind_totals.push(of_kind);
        }
        let totals: BTreeSet<i64> = queue_totals.iter().chain(&kind_totals).flatten().copied().collect();
        Ok(Visit {
            settings: names.settings().to_owned(),
            visits: i64::try_from(visits).unwrap_or(i64::MAX),
            lines: turns.iter().map(|(pair, _)| pair.0).collect(),
            levels: turns.iter().map(|(pair, _)| pair.1).collect(),
            bound_at,
            bound_no,
            queues: vec![queue; turns.len()],
            line_queues: vec![queue; line_nos.len()],
            wants: vec![i32::try_from(want).unwrap_or(i32::MAX); line_nos.len()],
            line_nos: line_nos.into_iter().collect(),
            queue_totals,
            kind_totals,
            totals: totals.into_iter().collect(),
        })
    }
}

/// Positions from their columns.
fn zip(at: Option<Vec<Option<At>>>, no: Option<Vec<Option<i64>>>) -> Vec<Option<Position>> {
    let pairs = at.unwrap_or_default().into_iter().zip(no.unwrap_or_default());
    pairs.map(|(at, no)| Some((at?.0, no?))).collect()
}

/// What became of the turns of each pair.
struct Told {
    visited: Vec<i64>,
    gone: Vec<Option<Position>>,
    stays: Vec<Option<Position>>,
}

impl Told {
    /// Remembers where the next claim begins. Whether a turn is gone, or there was none.
    fn remember(&self, shared: &Shared, turns: &[TurnPair], visits: i64, paused: bool) -> bool {
        let all: i64 = self.visited.iter().sum();
        let mut turn_bounds = shared.turn_bounds();
        for (at, (pair, _)) in turns.iter().enumerate() {
            let gone = self.gone.get(at).copied().flatten();
            let stays = self.stays.get(at).copied().flatten();
            let last = match (gone, stays) {
                (Some(gone), Some((at, no))) => Some(gone.min((at, no - 1))),
                (gone, None) => gone,
                (None, Some(_)) => None,
            };
            turn_bounds.took(*pair, last, all < visits && stays.is_none() && !paused);
        }
        !paused && (all == 0 || self.gone.iter().any(Option::is_some))
    }
}
