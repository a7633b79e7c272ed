//! The statements of claims.

use uuid::Uuid;

use crate::op::now;
use crate::op::places::count;
use crate::sql::{At, Present, statement};

statement! {
    /// Shared advisory locks on the node, which whoever takes its claims away takes for himself, and on the settings, which whoever
    /// changes a limit takes for himself. Then the primary key of `nodes`:
    /// the lease is renewed once a third of it has passed, and if the clock went back.
    pub(crate) LockAndTouch<'a> = "claim.lock", by ["nodes_pkey"], (at: Present, node: i32, class: i32);
    concat!(
    "WITH ",
    now!(),
    ", u AS (UPDATE mainspring.nodes n SET renewed_at = t.now, lease_until = t.now + n.lease * interval '1 us'
        FROM t WHERE n.no = $2 AND n.state = {node.live}
        AND (n.lease_until - t.now < (n.lease - n.lease / 3) * interval '1 us'
            OR n.lease_until - t.now > n.lease * interval '1 us'))
    SELECT pg_advisory_xact_lock_shared($3, $2), pg_advisory_xact_lock_shared($3, -3)"
)
}

/// What a claim moves, and what it gives to the node. The size of a value is told by its header: a large input, which lies in a
/// table of its own, is not read. `$position`: where a job stands among those of its queue, with the pairs that tell how many of
/// them are for free slots; what lies beyond is marked as claimed ahead, except suspects and jobs whose nodes were lost. `$planned`: how many were meant to be taken of which pairs.
macro_rules! claim {
    ($with:expr, $chosen:expr, $position:expr, $from:expr, $planned:expr) => {
        claim!($with, $chosen, $position, $from, $planned, "", "", "")
    };
    ($with:expr, $chosen:expr, $position:expr, $from:expr, $planned:expr, $column:expr, $units:expr, $after:expr) => {
        concat!(
            "WITH ",
            now!(),
            ", n AS MATERIALIZED (SELECT no FROM mainspring.nodes WHERE no = $2 AND state = {node.live}
                AND settlements = $3)",
            ", p AS MATERIALIZED (SELECT * FROM unnest($5::int[], $6::smallint[], $7::timestamptz[], $8::bigint[],
                $9::int[], $10::int[], $11::int[], $12::int[])
                WITH ORDINALITY AS u(line, level, bound_at, bound_no, queue, want, most, free, o)
                WHERE EXISTS (SELECT 1 FROM n)
                AND coalesce((SELECT value FROM mainspring.meta WHERE key = 'settings'), '') = $13
                AND NOT EXISTS (SELECT 1 FROM mainspring.queues q WHERE q.no = u.queue AND q.paused))",
            $with,
            ", d AS (DELETE FROM mainspring.ready WHERE ctid = ANY(ARRAY(",
            $chosen,
            ")) RETURNING no, line, level, ready_at, claim + 1 AS claim, failures, crashes, crashed, flags)
            , a AS MATERIALIZED (SELECT d.no, d.line, d.level, d.ready_at, d.claim, d.failures, d.crashes, d.crashed,
                    (d.flags | CASE WHEN d.level >= {level.returned} AND ",
            $position,
            " THEN {flag.ahead} ELSE 0 END)::smallint AS flags
                FROM ",
            $from,
            ")
            , l AS (INSERT INTO mainspring.lease
                    (no, claimed_at, batch, crashed, line, claim, node, priority, failures, crashes, flags",
            $column,
            ")
                SELECT a.no, (SELECT t.now FROM t), $4, a.crashed, a.line, a.claim, $2, a.level & {level.priority_bits}, a.failures, a.crashes,
                    a.flags",
            $units,
            "
                FROM a)
            , k AS (DELETE FROM mainspring.keys k
                WHERE k.no = ANY(ARRAY(SELECT d.no FROM d WHERE d.flags & {flag.key_until_started} <> 0))
                    AND k.until = {until.started})",
            count!("d", "ready", "running"),
            $after,
            " SELECT t.now, EXISTS (SELECT 1 FROM n) AS live,
                (SELECT value FROM mainspring.meta WHERE key = 'settings') AS settings,
                a.no, a.line, a.level, a.ready_at, a.claim, a.failures, a.crashes, a.crashed, a.flags,
                j.id, j.created_at, j.deadline, j.options::text,
                CASE WHEN octet_length(j.input) <= {bound.claim_input_bytes} THEN j.input END AS input,
                octet_length(j.input), ",
            $planned,
            " FROM t LEFT JOIN (a CROSS JOIN LATERAL (
                SELECT id, created_at, deadline, options, input FROM mainspring.jobs WHERE no = a.no OFFSET 0) j) ON true"
        )
    };
}

statement! {
    /// One queue whose levels have one line each. Index `ready_claim` from the bound on, in its order, stepping over what
    /// others hold; the limit over all stops at the first pair that fills it, so that nothing is locked in vain.
    pub(crate) ClaimOneQueue<'a> = "claim.one_queue", by ["nodes_pkey", "ready_claim", "jobs_pkey", "keys_no"],
    (
        at: Present, node: i32, settlements: i32, batch: i64, lines: Vec<i32>, levels: Vec<i16>, bound_at: Vec<At>,
        bound_no: Vec<i64>, queues: Vec<i32>, wants: Vec<i32>, mosts: Vec<i32>, frees: Vec<i32>, settings: &'a str,
        total: i64,
    )
    -> Found {
        now: At, live: bool, settings: Option<String>, no: Option<i64>, line: Option<i32>, level: Option<i16>,
        ready_at: Option<At>, claim: Option<i32>, failures: Option<i16>, crashes: Option<i16>, crashed: Option<i64>,
        flags: Option<i16>, id: Option<Uuid>, created_at: Option<At>, deadline: Option<At>, options: Option<String>,
        input: Option<Vec<u8>>, input_bytes: Option<i32>, pairs: Option<Vec<i64>>, planned: Option<Vec<i32>>,
    };
    claim!(
    "",
    "SELECT r.tid FROM p CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM mainspring.ready r
        WHERE r.line = p.line AND r.level = p.level AND (r.ready_at, r.no) > (p.bound_at, p.bound_no)
        ORDER BY r.ready_at, r.no LIMIT p.want FOR UPDATE SKIP LOCKED) r
    LIMIT $14",
    "row_number() OVER (ORDER BY d.level, d.ready_at, d.no) > (SELECT max(p.free) FROM p)",
    "d",
    "NULL::bigint[], NULL::int[]"
)
}

statement! {
    /// Several queues, lines that are merged by time, suspects, or jobs whose nodes were lost: first, without locks, how many of each pair are among the
    /// first of their queue; then those are taken as above.
    pub(crate) ClaimMerged<'a> = "claim.merged", by ["nodes_pkey", "ready_claim", "jobs_pkey", "keys_no"],
    (
        at: Present, node: i32, settlements: i32, batch: i64, lines: Vec<i32>, levels: Vec<i16>, bound_at: Vec<At>,
        bound_no: Vec<i64>, queues: Vec<i32>, wants: Vec<i32>, mosts: Vec<i32>, frees: Vec<i32>, settings: &'a str, suspects: i64,
        order: Vec<i32>,
    )
    -> Found;
    claim!(
    ", c0 AS MATERIALIZED (
        SELECT p.o, p.line, p.level, p.bound_at, p.bound_no, p.queue, p.want, p.most, r.ready_at, r.no,
            least(p.level & ~{level.priority_bits}, {level.returned}) AS class
        FROM p CROSS JOIN LATERAL (
            SELECT r.ready_at, r.no FROM mainspring.ready r
            WHERE r.line = p.line AND r.level = p.level AND (r.ready_at, r.no) > (p.bound_at, p.bound_no)
            ORDER BY r.ready_at, r.no LIMIT p.want) r)
    , c1 AS (SELECT *, row_number() OVER (PARTITION BY queue, class ORDER BY level, ready_at, no) AS in_class,
            array_position($15::int[], queue) AS turn FROM c0)
    , c2 AS (SELECT *, row_number() OVER (PARTITION BY class ORDER BY turn, level, ready_at, no) AS overall
            FROM c1 WHERE in_class <= want)
    , c3 AS (SELECT *, row_number() OVER (PARTITION BY queue ORDER BY level, ready_at, no) AS in_queue
            FROM c2 WHERE class <> {level.suspect} OR overall <= $14)
    , w AS MATERIALIZED (SELECT o, line, level, bound_at, bound_no, count(*)::int AS want
            FROM c3 WHERE in_queue <= most GROUP BY o, line, level, bound_at, bound_no)",
    "SELECT r.tid FROM w CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM mainspring.ready r
        WHERE r.line = w.line AND r.level = w.level AND (r.ready_at, r.no) > (w.bound_at, w.bound_no)
        ORDER BY r.ready_at, r.no LIMIT w.want FOR UPDATE SKIP LOCKED) r",
    "row_number() OVER (PARTITION BY p.queue ORDER BY d.level, d.ready_at, d.no) > p.free",
    "d JOIN p ON p.line = d.line AND p.level = d.level",
    "(SELECT array_agg(w.o ORDER BY w.o) FROM w), (SELECT array_agg(w.want ORDER BY w.o) FROM w)"
)
}

/// The room of a total, whose key is locked; any if there is none.
macro_rules! room_of {
    ($key:literal) => {
        concat!(
            "coalesce((SELECT greatest(l.max - x.in_use, 0) FROM (SELECT * FROM mainspring.limit_keys WHERE no = ",
            $key,
            " ORDER BY generation DESC LIMIT 1) x
        JOIN LATERAL (SELECT max FROM mainspring.limits WHERE no = x.limit_no AND NOT deleted OFFSET 0) l ON true), {bound.any_units})"
        )
    };
}

statement! {
    /// The same for lines with totals, whose limit keys are locked: no more than these have room for, of each kind and then of the queue.
    pub(crate) ClaimCapped<'a> = "claim.capped",
    by ["nodes_pkey", "ready_claim", "jobs_pkey", "keys_no", "limit_keys_pkey", "limits_pkey"],
    (
        at: Present, node: i32, settlements: i32, batch: i64, lines: Vec<i32>, levels: Vec<i16>, bound_at: Vec<At>,
        bound_no: Vec<i64>, queues: Vec<i32>, wants: Vec<i32>, mosts: Vec<i32>, frees: Vec<i32>, settings: &'a str, suspects: i64,
        totals: Vec<Option<i64>>, kind_totals: Vec<Option<i64>>,
    )
    -> Found;
    claim!(
    concat!(
    ", y AS MATERIALIZED (SELECT u.o, u.total, u.kind_total, ", room_of!("u.total"), " AS room, ", room_of!("u.kind_total"), " AS kind_room
        FROM unnest($15::bigint[], $16::bigint[]) WITH ORDINALITY AS u(total, kind_total, o))
    , c0 AS MATERIALIZED (
        SELECT p.o, p.line, p.level, p.bound_at, p.bound_no, p.want, p.most, r.ready_at, r.no, y.total, y.kind_total, y.room,
            y.kind_room, least(p.level & ~{level.priority_bits}, {level.returned}) AS class
        FROM p CROSS JOIN LATERAL (SELECT * FROM y WHERE y.o = p.o LIMIT 1) y CROSS JOIN LATERAL (
            SELECT r.ready_at, r.no FROM mainspring.ready r
            WHERE r.line = p.line AND r.level = p.level AND (r.ready_at, r.no) > (p.bound_at, p.bound_no)
            ORDER BY r.ready_at, r.no LIMIT p.want) r)
    , c1 AS (SELECT *, row_number() OVER (PARTITION BY class ORDER BY level, ready_at, no) AS in_class FROM c0)
    , c2 AS (SELECT *, row_number() OVER (PARTITION BY kind_total ORDER BY level, ready_at, no) AS in_kind
            FROM c1 WHERE in_class <= want AND (class <> {level.suspect} OR in_class <= $14))
    , c3 AS (SELECT *, row_number() OVER (ORDER BY level, ready_at, no) AS in_queue
            FROM c2 WHERE kind_total IS NULL OR in_kind <= kind_room)
    , w AS MATERIALIZED (SELECT o, line, level, bound_at, bound_no, count(*)::int AS want
            FROM c3 WHERE in_queue <= least(most, room) GROUP BY o, line, level, bound_at, bound_no)"),
    "SELECT r.tid FROM w CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM mainspring.ready r
        WHERE r.line = w.line AND r.level = w.level AND (r.ready_at, r.no) > (w.bound_at, w.bound_no)
        ORDER BY r.ready_at, r.no LIMIT w.want FOR UPDATE SKIP LOCKED) r",
    "row_number() OVER (PARTITION BY p.queue ORDER BY d.level, d.ready_at, d.no) > p.free",
    "d JOIN p ON p.line = d.line AND p.level = d.level",
    "(SELECT array_agg(w.o ORDER BY w.o) FROM w), (SELECT array_agg(w.want ORDER BY w.o) FROM w)",
    ", units",
    ", nullif((SELECT array_remove(ARRAY[y.total, y.kind_total], NULL) FROM p JOIN y ON y.o = p.o WHERE p.line = a.line LIMIT 1), '{}')",
    "
    , z AS MATERIALIZED (SELECT u.limit_key, count(*) AS n FROM a CROSS JOIN LATERAL (
            SELECT y.total, y.kind_total FROM p JOIN y ON y.o = p.o WHERE p.line = a.line LIMIT 1) y
        CROSS JOIN LATERAL (VALUES (y.total), (y.kind_total)) AS u(limit_key) WHERE u.limit_key IS NOT NULL GROUP BY u.limit_key)
    , newest AS MATERIALIZED (SELECT z.limit_key, z.n, x.generation FROM z CROSS JOIN LATERAL (
            SELECT generation FROM mainspring.limit_keys WHERE no = z.limit_key ORDER BY generation DESC LIMIT 1) x)
    , written AS (UPDATE mainspring.limit_keys x SET hits = x.hits + 1, generation = (x.hits + 1) / {bound.generation_hits},
            in_use = x.in_use + newest.n
        FROM newest WHERE x.no = newest.limit_key AND x.generation = newest.generation)"
)
}

statement! {
    /// Primary key of `group_turns`, one seek per pair: the first turn of every pair.
    pub(crate) ScanTurns = "claim.scan_turns", by ["group_turns_pkey"], () -> First;
    "WITH RECURSIVE s AS (
        (SELECT line, level, at, no FROM mainspring.group_turns ORDER BY line, level, at, no LIMIT 1)
        UNION ALL
        SELECT n.line, n.level, n.at, n.no FROM s CROSS JOIN LATERAL (
            SELECT r.line, r.level, r.at, r.no FROM mainspring.group_turns r
            WHERE (r.line, r.level) > (s.line, s.level)
            ORDER BY r.line, r.level, r.at, r.no LIMIT 1) n)
    SELECT line, level, at, no FROM s"
}

statement! {
    /// Index `ready_claim`, one seek per pair, over what is dead at its front: the first job of every pair.
    pub(crate) Scan = "claim.scan", by ["ready_claim"], () -> First { line: i32, level: i16, ready_at: At, no: i64 };
    "WITH RECURSIVE s AS (
        (SELECT line, level, ready_at, no FROM mainspring.ready ORDER BY line, level, ready_at, no LIMIT 1)
        UNION ALL
        SELECT n.line, n.level, n.ready_at, n.no FROM s CROSS JOIN LATERAL (
            SELECT r.line, r.level, r.ready_at, r.no FROM mainspring.ready r
            WHERE (r.line, r.level) > (s.line, s.level)
            ORDER BY r.line, r.level, r.ready_at, r.no LIMIT 1) n)
    SELECT line, level, ready_at, no FROM s"
}

statement! {
    /// The primary key of `lease` as a whole, whose size is bounded by the slots of all nodes; only for a repeated claim.
    pub(crate) Adopt<'a> = "claim.adopt", whole ("`lease` has no more rows than all nodes have slots"),
    (at: Present, node: i32, batch: i64) -> Found;
    concat!(
    "WITH ",
    now!(),
    "SELECT t.now, true AS live, (SELECT value FROM mainspring.meta WHERE key = 'settings') AS settings,
        l.no, l.line, l.priority AS level, l.claimed_at AS ready_at, l.claim, l.failures, l.crashes, l.crashed, l.flags,
        j.id, j.created_at, j.deadline, j.options::text,
        CASE WHEN octet_length(j.input) <= {bound.claim_input_bytes} THEN j.input END AS input, octet_length(j.input),
        NULL::bigint[], NULL::int[]
    FROM t CROSS JOIN mainspring.lease l JOIN mainspring.jobs j ON j.no = l.no
    WHERE l.node = $2 AND l.batch = $3 ORDER BY l.no"
)
}

statement! {
    /// Primary keys: what a claim would read of a job that is set aside. Its columns are those of a claim.
    pub(crate) Aside<'a> = "claim.aside", by ["suspended_pkey", "jobs_pkey"], (no: i64) -> Found;
    "SELECT j.created_at, true, NULL::text,
        s.no, s.line, s.priority AS level, j.created_at, s.claim, s.failures, s.crashes, s.crashed, s.flags,
        j.id, j.created_at, j.deadline, j.options::text, NULL::bytea, 0,
        NULL::bigint[], NULL::int[]
    FROM mainspring.suspended s JOIN mainspring.jobs j ON j.no = s.no WHERE s.no = $1"
}
